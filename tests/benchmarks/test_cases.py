import pytest
import torch

import snnipu
from benchmarks import Settings, Unavailable, cases, loop_networks, peers, run_case
from benchmarks.cases import compile as loops
from benchmarks.cases import layer, lif, network

SMALL = {"steps": 6, "batch_size": 3, "neurons": 20}


def build(case, name):
    contender = next(c for c in case.contenders if c.name == name)
    try:
        return contender.build()
    except Unavailable as error:
        pytest.skip(str(error))


def check(case, name):
    return build(case, name).check()


def test_available_cases():
    assert list(cases.available()) == sorted(cases.available())
    assert {"lif", "network"} <= set(cases.available())


@pytest.mark.parametrize("name", sorted(cases.available()))
def test_what_every_case_has(name):
    module = cases.available()[name]
    case = module.build(Settings(**SMALL))
    assert module.SUMMARY
    assert torch.float32 in module.DTYPES
    assert case.name == name
    assert case.title
    assert case.caption
    names = [contender.name for contender in case.contenders]
    assert len(set(names)) == len(names)
    assert case.memory_reference in names
    assert any(contender.own and contender.ratio_label for contender in case.contenders)
    assert all(contender.peer in (None, *peers.PEERS) for contender in case.contenders)


@pytest.mark.parametrize("name", ["snnipu", "snntorch", "snntorch-unbind", "snntorch-membrane"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lif_is_exact(name, dtype):
    result = check(lif.build(Settings(dtype=dtype, **SMALL)), name)
    assert result.passed, result.detail
    assert result.against == "snnTorch"
    assert result.errors["spikes_differing"] == 0


@pytest.mark.parametrize("name", ["snnipu", "snntorch"])
def test_layer_is_exact(name):
    result = check(layer.build(Settings(**SMALL)), name)
    assert result.passed, result.detail
    assert result.against == "snnTorch"
    assert result.errors["spikes_differing"] == 0


@pytest.mark.parametrize("neurons", [20, 512])
def test_layer_spikes(neurons):
    """Neither silent nor always on, whatever its size."""
    spk, _ = build(layer.build(Settings(steps=20, batch_size=2, neurons=neurons)), "snnipu").step()
    assert 0.005 < spk.mean() < 0.3


def test_wrong_layer_is_red(monkeypatch):
    sequence = snnipu.Leaky.sequence
    monkeypatch.setattr(snnipu.Leaky, "sequence", lambda self, x, mem=None: sequence(self, 1.01 * x, mem))
    assert not check(layer.build(Settings(steps=20, batch_size=2, neurons=64)), "snnipu").passed


@pytest.mark.parametrize("module", [lif, layer])
def test_tables_where_no_sizes_are_asked_for(module):
    settings = Settings()
    assert module.variants(settings) == [settings]
    tables = module.variants(Settings(device=torch.device("cuda")))
    assert len(tables) > 1
    assert len(set(tables)) == len(tables)
    assert all(table.dtype in module.DTYPES and table.device.type == "cuda" for table in tables)


def test_copy_moves_six_sequences():
    x = torch.randn(3, 4, 5)
    workload = lif.copy_of_least_traffic(x)
    assert workload.check().passed
    copied = workload.step()
    # Each is read once and written once.
    assert 2 * copied.numel() == 6 * x.numel()
    assert all(torch.equal(part, x) for part in copied)


@pytest.mark.parametrize("name", loop_networks.NETWORKS)
def test_loop_networks_are_the_same_training(name):
    case = loops.build(Settings(network=name, **SMALL))
    for contender in ("snnipu-loop", "snnipu-multistep"):
        result = check(case, contender)
        assert result.passed, result.detail
        assert result.against == "snnTorch"


def test_long_loop_is_compiled_by_steps(monkeypatch):
    monkeypatch.setattr(peers, "LONGEST_COMPILED_LOOP", 1)
    case = lif.build(Settings(steps=3, batch_size=2, neurons=5))
    assert "snnTorch step, torch.compile" in [contender.label for contender in case.contenders]
    result = check(case, "compile")
    assert result.passed, result.detail


@pytest.mark.parametrize("name", ["snnipu-loop", "snnipu-multistep", "snntorch", "snntorch-hoisted"])
def test_network_is_the_same_training(name):
    result = check(network.build(Settings(**SMALL)), name)
    assert result.passed, result.detail
    assert result.against == "snnTorch"


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (lif, torch.float32),
        (lif, torch.float64),
        (lif, torch.bfloat16),
        (layer, torch.float32),
        (network, torch.float32),
    ],
)
@pytest.mark.parametrize("peer", ["spikingjelly", "norse"])
def test_peers_follow_their_rules(case, peer, dtype):
    result = check(case.build(Settings(dtype=dtype, **SMALL)), peer)
    assert result.passed, result.detail
    assert result.against == "its own rule"


def test_compiled_loop():
    workload = build(lif.build(Settings(steps=1, batch_size=2, neurons=5)), "compile")
    assert workload.compile_seconds > 0
    result = workload.check()
    assert result.passed, result.detail


def test_wrong_neuron_is_red_and_not_timed(monkeypatch):
    sequence = snnipu.Leaky.sequence

    def wrong(self, x, mem=None):
        spk, mem = sequence(self, x * 1.01, mem)
        return spk, mem

    monkeypatch.setattr(snnipu.Leaky, "sequence", wrong)
    result = run_case(lif.build(Settings(**SMALL)), ["snntorch"], torch.device("cpu"), repeats=1, min_seconds=0.0)
    rows = {r.contender.name: r for r in result.results}
    assert rows["snnipu"].status == "red"
    assert rows["snnipu"].timing is None
    assert rows["snntorch"].timing is not None
    assert not result.passed


def test_batched_loss_is_the_tutorials_loss():
    generator = torch.Generator().manual_seed(0)
    mem_rec = torch.randn(6, 4, 10, generator=generator, dtype=torch.float64)
    targets = torch.tensor([1, 0, 9, 4])
    torch.testing.assert_close(
        network.batched_loss(mem_rec, targets), network.tutorial_loss(mem_rec, targets).reshape(())
    )


def test_training_step_trains():
    workload = build(network.build(Settings(**SMALL)), "snnipu-loop")
    losses = [float(workload.step().detach()) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_contenders_begin_with_the_same_weights():
    case = network.build(Settings(**SMALL))
    first = {c.name: float(c.build().step().detach()) for c in case.contenders if c.own or c.peer == "snntorch"}
    assert len({round(loss, 3) for loss in first.values()}) == 1
