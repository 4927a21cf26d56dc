"""Every case in a tiny size: each contender's check passes, and fails for a wrong result."""

from dataclasses import replace

import pytest
import torch
from support.versions import needs_backend, needs_compile, needs_gloo

import snnipu
from benchmarks import peers, programs
from benchmarks.case import Settings, Unavailable, cross, headline, product
from benchmarks.cases import CASES, conv, memory, neurons, online, sparse, zeros
from benchmarks.runner import run_table
from snnipu.training import METHODS

SMALL = Settings(steps=8, batch_size=3, neurons=24, activity=0.1, longest_delay=5, hidden_neurons=24)
KEPT = ("tensor", "processes", "beta")
# More settings of a case, for which every contender must be right, too.
MORE = {
    "compile": [{"network": name} for name in list(programs.NETWORKS)[1:]],
    "conv": [{"input": "layer-2-34x34"}],
    "convolution": [{"work": "weights", "layer": "2-34x34"}],
    "eventprop": [{"work": "backward"}],
    "lif": [{"dtype": torch.float64}, {"dtype": torch.bfloat16}],
    "neurons": [{"neuron": name} for name in list(neurons.KINDS)[1:]],
    "online": [{"steps": 60}],
    "programs": [{"program": name} for name in list(programs.PROGRAMS)[1:]],
    "sparse": [{"hidden_layers": 3, "activity": 0.4}, {"input": "shd", "steps": 12}],
    "zeros": [{"work": "inference"}],
}
# These have a separate test, or run only in new processes.
LEFT_OUT = {"compile", "snnipu-automatic", "snnipu-compiled"}


def settings_of(name, **more):
    case = CASES[name]
    point = case.points(headline({**case.sizes, **case.quick}))[0]
    sizes = {key: getattr(SMALL, key) for key in point if key not in (*case.choices, *KEPT)}
    return replace(SMALL, **{**point, **sizes, **more})


def build(name, contender, settings=None):
    settings = settings_of(name) if settings is None else settings
    try:
        return next(row for row in CASES[name].contenders(settings) if row.name == contender).build()
    except Unavailable as error:
        pytest.skip(str(error))


def rows():
    for name, case in CASES.items():
        for more in [{}, *MORE.get(name, [])]:
            for contender in case.contenders(settings_of(name, **more)):
                if contender.name not in LEFT_OUT and name != "scale":
                    what = "-".join([name, contender.name, *map(str, more.values())])
                    yield pytest.param(name, more, contender.name, id=what)


@pytest.mark.parametrize(("name", "more", "contender"), rows())
def test_every_row_is_right(name, more, contender):
    workload = build(name, contender, settings_of(name, **more))
    check = workload.check()
    assert check.passed, check.detail
    workload.step()


@pytest.mark.parametrize("name", CASES)
def test_what_every_case_has(name):
    case = CASES[name]
    settings = settings_of(name)
    names = [contender.name for contender in case.contenders(settings)]
    assert len(set(names)) == len(names)
    assert case.reference in names
    assert all(contender.peer in ("", *peers.PEERS) for contender in case.contenders(settings))
    assert any(not contender.peer for contender in case.contenders(settings))
    assert {contender.floor for contender in case.contenders(settings)} <= {"", *names}
    points = [Settings(**point) for point in case.points(dict(case.sizes))] if name != "memory" else [settings]
    titles = [case.title(point) for point in points]
    assert len(set(titles)) == len(titles)
    assert set(case.quick) <= set(case.sizes)
    assert set(case.axes) <= {*case.sizes, *case.parameters_of(settings)}


@pytest.mark.slow
@needs_compile
@pytest.mark.parametrize("steps", [1, 3])
def test_compiled_loop_and_step(steps, monkeypatch):
    monkeypatch.setattr(peers, "LONGEST_COMPILED_LOOP", 1)
    workload = build("lif", "compile", Settings(steps=steps, batch_size=2, neurons=5))
    assert workload.compile_seconds > 0
    assert workload.check().passed


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize("name", ["training", "lists", "subclass", "rsynaptic", "rate"])
def test_automatic_is_the_same_training(name):
    check = build("programs", "snnipu-automatic", settings_of("programs", program=name)).check()
    assert check.passed, check.detail


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize("name", ["tutorial-5", "tutorial-7"])
def test_compiled_is_the_same_training(name):
    workload = build("compile", "snnipu-compiled", settings_of("compile", network=name))
    assert workload.check().passed
    assert set(workload.phases()) == {"forward", "backward", "optimizer"}


def of_input(right, factor):
    return lambda self, x, *more, **options: right(self, factor * x, *more, **options)


def of_result(right, factor):
    def wrong(*arguments, **options):
        result = right(*arguments, **options)
        return [factor * part for part in result] if isinstance(result, list) else factor * result

    return wrong


@pytest.mark.parametrize(
    ("name", "contender", "owner", "method", "scaled", "factor"),
    [
        *((name, "snnipu", snnipu.Leaky, "sequence", of_input, 1.1) for name in ("lif", "layer", "memory", "neurons")),
        ("sparse", "dense", snnipu.Leaky, "sequence", of_input, 1.1),
        ("zeros", "multistep", snnipu.Leaky, "over_time", of_input, 1.05),
        ("delays", "events", snnipu.DelayLinear, "forward", of_result, 1.001),
        ("convolution", "sparse", snnipu.SparseConv2d, "forward", of_result, 1.001),
        ("eventprop", "eventprop", snnipu.SparseSynaptic, "membranes", of_result, 1.001),
        ("online", "ottt", online.Problem, "by_steps", of_result, 1.001),
        ("programs", "snnipu-import", snnipu.Leaky, "forward", of_input, 1.01),
        ("network", "snnipu-loop", snnipu.Leaky, "forward", of_input, 1.01),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_results_are_red_and_not_timed(name, contender, owner, method, scaled, factor, monkeypatch):
    settings = settings_of(name, program="counters", **({"steps": 30} if name in ("layer", "lif") else {}))
    for problem in (sparse.problem_of, zeros._problem, memory.work_of, neurons.work_of):
        problem.cache_clear()
    if name == "zeros":  # draw its weights before the neuron is replaced
        zeros.problem_of(settings)
    chosen = [row for row in CASES[name].contenders(settings) if row.name == contender]
    case = replace(CASES[name], contenders=lambda _: chosen, measured=lambda _: {})
    monkeypatch.setattr(owner, method, scaled(getattr(owner, method), factor))
    records = []
    run_table(name, case, settings, records)
    zeros._problem.cache_clear()
    assert [record["status"] for record in records] == ["red"]
    assert "seconds" not in records[0]


def test_a_sparse_row_without_the_second_threshold_is_red(monkeypatch):
    def wrong(network, x, right=METHODS["sparse_network"]):
        for layer in network.layers:
            layer.grad_threshold = None if layer.grad_threshold is None else 0.5
        return right(network, x)

    monkeypatch.setitem(METHODS, "sparse_network", wrong)
    check = build("sparse", "sparse-network").check()
    assert not check.passed
    assert "0 of" in check.detail.split(";")[0]
    problem = sparse.problem_of(settings_of("sparse"))
    for every, selected in zip(problem.reference[1], problem.selected_reference[1]):
        assert not torch.equal(every, selected)


def test_a_flipped_spike_of_many_is_no_failure_of_a_convolution():
    """Gradients are compared for samples without a flipped spike; enough samples must remain."""
    spikes, gradient = torch.zeros(2, 4, 50_000), torch.ones(3)
    flipped = spikes.clone()
    flipped[0, 0, 0] = 1

    def run(result, error):
        return lambda samples: ([result], [gradient + (error if samples is conv.EVERY else 0)])

    assert conv.compared(run(flipped, 1.0), run(spikes, 0.0), "it").passed
    assert not conv.compared(run(spikes, 1.0), run(spikes, 0.0), "it").passed
    flipped[0, :3, 0] = 1
    assert not conv.compared(run(flipped, 0.0), run(spikes, 0.0), "it").passed


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_programs_have_spikes(name):
    """The check of a silent program would compare nothing."""
    import snntorch

    kind, settings = programs.PROGRAMS[name], Settings(steps=25, batch_size=3, neurons=64)
    net = programs.make(kind, snntorch, settings)
    net.optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    spikes = []
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron):
            module.register_forward_hook(
                lambda module, inputs, out: spikes.append(float((out[0] if isinstance(out, tuple) else out).sum()))
            )
    torch.manual_seed(0)
    loss = net.step(kind.data(settings, torch.Generator().manual_seed(0)), torch.arange(3))
    if not net.trains:
        loss.backward()
    assert sum(spikes) > 0
    moved = [parameter for parameter in net.parameters() if parameter.grad is not None and parameter.grad.any()]
    assert len(moved) >= len(list(net.parameters())) - 1


def test_every_fused_neuron_is_there():
    fused = {name for name, kind in vars(snnipu).items() if getattr(kind, "__module__", "") == "snnipu.neurons.zoo"}
    assert {kind.name for kind in neurons.KINDS.values()} == fused | {"Leaky"}


def test_measured_activity_is_the_one_asked_for():
    settings = replace(SMALL, steps=40, batch_size=8, hidden_neurons=100, activity=0.05)
    measured = sparse.Problem(settings).measured()
    assert measured["activity"] == pytest.approx([0.05] * 4, rel=0.1)
    # All slots of the input are spikes.
    assert measured["carried"][0] == measured["activity"][0]
    assert all(c > a for c, a in zip(measured["carried"][1:], measured["activity"][1:]))
    for work, first in (("training", True), ("inference", False)):
        measured = zeros.measured(settings_of("zeros", network="conv", work=work))
        assert [path.endswith("events") for path in measured["path"]] == [first, True, True, False]
        assert measured["activity"] == pytest.approx([0.1] * 4, abs=0.02)


def test_points_of_sweeps():
    values = {"activity": (0.01, 0.02), "hidden_layers": (2, 3), "steps": 5}
    assert headline(values) == {"activity": 0.02, "hidden_layers": 2, "steps": 5}
    assert len(product(values)) == 4
    places = [(point["activity"], point["hidden_layers"]) for point in cross(values)]
    assert places == [(0.01, 2), (0.02, 2), (0.02, 3)]
    assert cross({"steps": 5}) == [{"steps": 5}]
    compiled = CASES["compile"].points({"network": ("tutorial-5", "tutorial-6"), "batch_size": (1, 16, 64, 128)})
    assert [(point["network"], point["batch_size"]) for point in compiled] == [
        ("tutorial-5", 128),
        *(("tutorial-6", batch) for batch in (1, 16, 64, 128)),
    ]


@pytest.mark.slow
@needs_gloo
def test_one_and_two_processes():
    """Each kind has one sample per round; with weak scaling the batch grows with the processes."""
    for processes in (1, 2):
        records = []
        settings = Settings(steps=3, batch_size=8, neurons=16, processes=processes)
        run_table("scale", CASES["scale"], settings, records, repeats=2)
        assert len(records) == 4 * 2
        samples = {record["contender"]: record["samples"] for record in records if "samples" in record}
        assert samples["strong"] == 8
        assert samples["weak"] == 8 * processes
        assert all(record["seconds"] > 0 for record in records)
