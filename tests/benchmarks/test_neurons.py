"""The case of every neuron: what is compared with what."""

import pytest
import torch

import snnipu
from benchmarks import Settings, run_case
from benchmarks.cases import neurons

SMALL = {"steps": 6, "batch_size": 2, "neurons": 7}


def contender(case, name):
    return next(found for found in case.contenders if found.name == name).build()


@pytest.mark.parametrize("kind", neurons.KINDS)
def test_own_rows_are_snntorchs(kind):
    case = neurons.build(Settings(neuron=kind, **SMALL))
    for name in ("snnipu", "snnipu-spikes", "snntorch-unbind"):
        workload = contender(case, name)
        found = workload.check()
        assert found.passed, found.detail
        assert found.against == "snnTorch"
        assert found.errors["spikes_differing"] == 0
        spk = workload.step()[0]
        assert 0.02 < spk.mean() < 0.9


def test_every_fused_neuron_is_there():
    fused = {name for name, kind in vars(snnipu).items() if getattr(kind, "__module__", "") == "snnipu.neurons.zoo"}
    assert {kind.name for kind in neurons.KINDS.values()} == fused | {"Leaky"}


@pytest.mark.parametrize("kind", ["Synaptic", "RLeaky all-to-all"])
def test_a_wrong_neuron_is_red(kind, monkeypatch):
    layer = getattr(snnipu, neurons.KINDS[kind].name)
    sequence = layer.sequence
    monkeypatch.setattr(layer, "sequence", lambda self, x: sequence(self, 1.1 * x))
    assert not contender(neurons.build(Settings(neuron=kind, **SMALL)), "snnipu").check().passed


def test_norses_neuron_follows_its_rule():
    pytest.importorskip("norse")
    found = contender(neurons.build(Settings(neuron="Synaptic", **SMALL)), "norse").check()
    assert found.passed, found.detail
    assert found.against == "its own rule"


def test_copies_move_the_least_bytes():
    """Of a neuron with two states: x, spikes and states; x, two gradients."""
    work = neurons.Work(Settings(neuron="Synaptic", **SMALL))
    for traffic, values in ((28, 7), (20, 5)):
        copied = []
        workload = work.copy(traffic)
        assert workload.check().passed
        original = torch.Tensor.copy_
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                torch.Tensor, "copy_", lambda to, src, n=copied, own=original: n.append(src.numel()) or own(to, src)
            )
            workload.step()
        assert 2 * sum(copied) == values * work.x.numel()


def test_shares_are_of_each_rows_own_copy():
    result = run_case(
        neurons.build(Settings(neuron="Synaptic", **SMALL)), ["snntorch", "copy"], torch.device("cpu"), 1, 0.0
    )
    rows = {row.contender.name: row for row in result.results}
    for name, floor in (("snnipu", "copy"), ("snnipu-spikes", "copy-spikes"), ("snntorch-unbind", "copy")):
        assert rows[name].copy_share == rows[floor].timing.median / rows[name].timing.median
    recurrent = neurons.build(Settings(neuron="RLeaky all-to-all", **SMALL))
    assert not any(row.floor for row in recurrent.contenders)


def test_unknown_kinds_are_named():
    with pytest.raises(ValueError, match=r"expected names of Leaky, .* but one is 'Neuron'"):
        neurons.OPTIONS[0].parse("Leaky,Neuron")
    assert neurons.OPTIONS[0].parse("Alpha,Leaky") == ["Leaky", "Alpha"]
