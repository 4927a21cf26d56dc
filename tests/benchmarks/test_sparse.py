import pytest
import torch

import snnipu
from benchmarks import Settings, Unavailable, run_case, sparse_problem
from benchmarks.cases import sparse
from snnipu.training import methods

SMALL = {"steps": 8, "batch_size": 4, "beta": 0.95, "hidden_neurons": 24, "activity": 0.1}
NAMES = ["sparse-network", "sparse-ops", "dense", "snntorch", "spikingjelly"]


def check(settings, name):
    contender = next(c for c in sparse.build(settings).contenders if c.name == name)
    try:
        return contender.build().check()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def no_problem_left_over():
    """A test that changes what a problem is made of must not leave it to the next, nor take one over."""
    sparse._problem.cache_clear()
    yield
    sparse._problem.cache_clear()


def test_published_sizes():
    assert sparse.network_sizes(Settings()) == [2312, 1466, 1466, 10]
    assert sparse.network_sizes(Settings(hidden_layers=5)) == [2312, 588, 586, 586, 586, 586, 10]
    assert sparse.network_sizes(Settings(input="shd", hidden_layers=4)) == [700, 732, 730, 730, 730, 20]
    assert sparse.network_sizes(Settings(hidden_layers=3, hidden_neurons=7)) == [2312, 7, 7, 7, 10]
    for _, hidden, _ in sparse.NETWORKS.values():
        assert all(len(sizes) == depth for depth, sizes in hidden.items())
        assert tuple(hidden) == sparse.DEPTHS


def test_sums_on_the_grid_are_exact_in_any_order():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 1000, generator=generator)
    rounded = sparse_problem.on_grid(weight)
    assert (rounded - weight).abs().max() < 1e-3 * weight.abs().max()
    exact = rounded.double().sum(1)
    for _ in range(3):
        order = torch.randperm(1000, generator=generator)
        assert torch.equal(rounded[:, order].cumsum(1)[:, -1].double(), exact)
    # What it is for: these sums are not the same without it.
    assert not torch.equal(weight.cumsum(1)[:, -1].double(), weight.double().sum(1))


def test_grid_survives_tf32():
    """11 significant bits, and sums that are exact in float32 all the same."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 1000, generator=generator)
    rounded = sparse_problem.on_grid(weight, tf32=True)
    assert (rounded - weight).abs().max() <= 2.0**-11 * weight.abs().max()
    mantissa, _ = torch.frexp(rounded)
    assert torch.equal((mantissa * 2**11).round(), mantissa * 2**11)
    order = torch.randperm(1000, generator=generator)
    assert torch.equal(rounded[:, order].cumsum(1)[:, -1].double(), rounded.double().sum(1))
    # What it is for: without it the factors would be rounded.
    mantissa, _ = torch.frexp(sparse_problem.on_grid(weight))
    assert not torch.equal((mantissa * 2**11).round(), mantissa * 2**11)


def test_references_are_computed_without_tf32():
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        for allowed in (False, True):
            matmul.allow_tf32 = allowed
            with sparse.full_precision():
                assert not matmul.allow_tf32
            assert matmul.allow_tf32 == allowed
    finally:
        matmul.allow_tf32 = before


def test_contenders_on_a_gpu():
    """Nothing is built, no GPU is needed: one row more, whose path is chosen at run time."""
    case = sparse.build(Settings(**SMALL, device=torch.device("cuda")))
    assert [c.name for c in case.contenders] == [NAMES[0], "sparse-network-auto", *NAMES[1:]]
    assert [c.name for c in sparse.build(Settings(**SMALL)).contenders] == NAMES
    assert "cuda" in sparse.DEVICES


def test_slots_are_what_the_busiest_row_needs():
    problem = sparse.Problem(Settings(**SMALL))
    slots = problem.measured()["slots"][1:]
    assert [layer.max_spikes for layer in problem.network().layers] == [None] * 3
    problem.device = torch.device("cuda")
    problem._network = sparse.Problem(Settings(**SMALL))._network
    assert [layer.max_spikes for layer in problem.network(path="auto").layers] == slots
    assert [layer.max_spikes for layer in problem.network(grad_threshold=None).layers] == [24, 24, 10]
    assert problem.network(path="auto").layers[0].path == "auto"


def test_auto_passes_the_gate():
    workload = sparse._sparse(Settings(**SMALL), methods.sparse_network, "auto")
    assert workload.check().passed
    assert len(workload.step()) == 3


def test_grid_of_silent_and_of_extreme_weights():
    assert torch.equal(sparse_problem.on_grid(torch.zeros(2, 3)), torch.zeros(2, 3))
    for scale in (1e-20, 1e20):
        weight = scale * torch.tensor([[1.0, -0.3], [0.2, 1.0]])
        torch.testing.assert_close(sparse_problem.on_grid(weight), weight, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "more", [{}, {"hidden_layers": 3, "activity": 0.4}, {"input": "shd", "steps": 12}], ids=["2", "3", "shd"]
)
def test_gate_is_exact(name, more):
    result = check(Settings(**{**SMALL, **more}), name)
    assert result.passed, result.detail
    assert result.against == ("its own rule" if name == "spikingjelly" else "snnTorch")
    assert result.errors["spikes_differing"] == 0
    if name.startswith("sparse"):
        assert result.errors["spikes_differing_without_second_threshold"] == 0
        assert result.errors["gradient_error_without_second_threshold"] < 1e-5


def test_second_threshold_changes_the_gradient():
    """The two references differ: else the gate would not see whether a selection was made."""
    problem = sparse.Problem(Settings(**SMALL))
    (spikes, every), (same_spikes, selected) = problem.reference, problem.selected_reference
    assert all(map(torch.equal, spikes, same_spikes))
    assert all((a - b).abs().max() > 0 for a, b in zip(every, selected))


def test_measured_activity_is_the_one_asked_for():
    settings = Settings(**{**SMALL, "steps": 40, "batch_size": 8, "hidden_neurons": 100, "activity": 0.05})
    measured = sparse.Problem(settings).measured()
    assert measured["activity"] == pytest.approx([0.05] * 4, rel=0.1)
    assert measured["dropped"] == 0
    # The input has no slots that only carry gradient.
    assert measured["carried"][0] == measured["activity"][0]
    assert all(c > a for c, a in zip(measured["carried"][1:], measured["activity"][1:]))
    sizes = sparse.network_sizes(settings)
    assert all(slots <= size for slots, size in zip(measured["slots"], sizes))


def test_other_selection_of_gradients_is_red_and_not_timed(monkeypatch, no_problem_left_over):
    def wrong(network, x):
        for layer in network.layers:
            layer.grad_threshold = None if layer.grad_threshold is None else 0.5
        return methods.sparse_network(network, x)

    monkeypatch.setattr(sparse, "sparse_network", wrong)
    result = run_case(sparse.build(Settings(**SMALL)), [], torch.device("cpu"), repeats=1, min_seconds=0.0)
    rows = {row.contender.name: row for row in result.results}
    assert rows["sparse-network"].status == "red"
    assert rows["sparse-network"].timing is None
    assert rows["sparse-network"].check.errors["spikes_differing"] == 0
    assert rows["sparse-network"].check.errors["gradient_error_without_second_threshold"] < 1e-5
    assert rows["sparse-ops"].status == rows["dense"].status == "ok"
    assert not result.passed


def test_other_spikes_are_red(monkeypatch, no_problem_left_over):
    sequence = snnipu.Leaky.sequence
    monkeypatch.setattr(snnipu.Leaky, "sequence", lambda self, x, mem=None: sequence(self, x * 1.1, mem))
    result = run_case(sparse.build(Settings(**SMALL)), ["snntorch"], torch.device("cpu"), 1, 0.0)
    rows = {row.contender.name: row for row in result.results}
    assert rows["dense"].status == "red"
    assert "spikes differ" in rows["dense"].reason
    assert rows["sparse-network"].ratios.keys() == {"sparse-network", "sparse-ops"}


def test_whole_case(no_problem_left_over):
    result = run_case(sparse.build(Settings(**SMALL)), ["snntorch"], torch.device("cpu"), 1, 0.0)
    assert result.passed
    assert len(result.measured["activity"]) == 4
    assert result.case.parameters["sizes"] == [2312, 24, 24, 10]
    assert result.memory_reference() == next(r.peak_bytes for r in result.results if r.contender.name == "dense")


def test_only_one_problem_is_kept():
    first = sparse._problem(Settings(**SMALL))
    assert sparse._problem(Settings(**SMALL)) is first
    sparse._problem(Settings(**{**SMALL, "activity": 0.2}))
    assert sparse._problem.cache_info().currsize == 1


def test_too_small_for_the_activity():
    result = run_case(
        sparse.build(Settings(steps=2, batch_size=1, hidden_neurons=2, activity=0.001)), [], torch.device("cpu"), 1, 0.0
    )
    assert not result.passed
    assert result.measured == {}
    assert all("out of reach of so few steps" in row.reason for row in result.results)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"hidden_layers": 6}, "hidden_layers"), ({"activity": 0.0}, "activity"), ({"activity": 1.0}, "activity")],
)
def test_settings_that_do_not_exist(more, said):
    with pytest.raises(ValueError, match=said):
        sparse.build(Settings(**more))


def test_sweep_has_every_point_once():
    sweep = sparse.sweep(Settings(activity=0.02), (0.5, 0.02, 0.1), (3, 2))
    where = [(point.activity, point.hidden_layers) for point in sweep.points]
    assert where == [(0.02, 2), (0.1, 2), (0.5, 2), (0.02, 3)]
    assert sweep.headline == {"activity": 0.02, "hidden_layers": 2}
    assert [list(axis.values) for axis in sweep.axes] == [[0.02, 0.1, 0.5], [2, 3]]


def test_sweep_without_a_common_point():
    sweep = sparse.sweep(Settings(activity=0.005), (0.1,), (3,))
    assert [(point.activity, point.hidden_layers) for point in sweep.points] == [(0.1, 2), (0.005, 3)]
    assert sweep.headline == {"activity": 0.1, "hidden_layers": 2}
