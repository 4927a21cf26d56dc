import importlib.util
import shutil

import pytest
import torch

import snnipu
from snnipu.benchmarking import Settings, cases, peers, run_case
from snnipu.benchmarking.cases import lif, network

SMALL = {"steps": 6, "batch_size": 3, "neurons": 20}


def check(case, name):
    contender = next(c for c in case.contenders if c.name == name)
    return contender.build().check()


def test_available_cases():
    assert list(cases.available()) == sorted(cases.available())
    assert {"lif", "network"} <= set(cases.available())


@pytest.mark.parametrize("name", sorted(cases.available()))
def test_what_every_case_has(name):
    module = cases.available()[name]
    case = module.build(Settings(**SMALL))
    assert module.SUMMARY
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


@pytest.mark.parametrize("name", ["snnipu-loop", "snnipu-multistep", "snntorch", "snntorch-hoisted"])
def test_network_is_the_same_training(name):
    result = check(network.build(Settings(**SMALL)), name)
    assert result.passed, result.detail
    assert result.against == "snnTorch"


@pytest.mark.parametrize("build", [lif.build, network.build])
@pytest.mark.parametrize("peer", ["spikingjelly", "norse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_peers_follow_their_rules(build, peer, dtype):
    if importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    result = check(build(Settings(dtype=dtype, **SMALL)), peer)
    assert result.passed, result.detail
    assert result.against == "its own rule"


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch.compile needs a C++ compiler")
@pytest.mark.skipif(not hasattr(torch, "compile"), reason="no torch.compile")
def test_compiled_loop():
    case = lif.build(Settings(steps=2, batch_size=2, neurons=5))
    workload = next(c for c in case.contenders if c.name == "compile").build()
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
    case = network.build(Settings(**SMALL))
    workload = next(c for c in case.contenders if c.name == "snnipu-loop").build()
    losses = [float(workload.step().detach()) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_contenders_begin_with_the_same_weights():
    case = network.build(Settings(**SMALL))
    first = {c.name: float(c.build().step().detach()) for c in case.contenders if c.own or c.peer == "snntorch"}
    assert len({round(loss, 3) for loss in first.values()}) == 1
