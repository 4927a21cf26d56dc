import io
import json
import math
import sys

import pytest
import torch

import snnipu
from snnipu.backends.memory import memory_of_machine
from benchmarks import Settings, Workload, resident, run_case
from benchmarks.cases import lif, memory
from benchmarks.memory import available_memory, peak_extra_bytes

CPU = torch.device("cpu")
SMALL = Settings(steps=6, batch_size=8, neurons=20)


@pytest.fixture(autouse=True)
def anew():
    memory._work.cache_clear()
    yield
    memory._work.cache_clear()


def run(settings, peers=("snntorch", "spikingjelly", "norse", "copy")):
    result = run_case(memory.build(settings), peers, CPU, repeats=1, min_seconds=0.0)
    return {row.contender.name: row for row in result.results}


def test_rows():
    rows = run(SMALL, ["snntorch", "copy"])
    assert list(rows) == ["snnipu", "snnipu-spikes", "snntorch-unbind", "copy-24", "copy-20"]
    assert {name: row.status for name, row in rows.items()} == dict.fromkeys(rows, "ok")
    for name, floor in (("snnipu", "copy-24"), ("snnipu-spikes", "copy-20"), ("snntorch-unbind", "copy-24")):
        assert rows[name].check.errors["spikes_differing"] == 0
        assert rows[name].copy_share == rows[floor].timing.median / rows[name].timing.median
    assert rows["copy-20"].copy_share == 1


@pytest.mark.parametrize("elements", [1, 50, 100, 10**6])
def test_check_by_parts_sees_every_neuron(monkeypatch, elements):
    """Wherever the one wrong neuron is: its spikes, or its gradient alone."""
    monkeypatch.setattr(memory, "_CHECKED_ELEMENTS", elements)
    sequence = snnipu.Leaky.sequence
    settings = Settings(steps=6, batch_size=2, neurons=5)
    parts = memory.Work(settings).parts
    assert [stop for _, stop in parts][:-1] == [start for start, _ in parts][1:]
    assert (parts[0][0], parts[-1][1]) == (0, 10)
    assert len(parts) == max(1, min(10, math.ceil(10 / max(1, elements // 6))))
    for sample, neuron in ((0, 0), (1, 4)):
        for gradient_only in (False, True):

            def wrong(self, x, mem=None, place=(sample, neuron), gradient_only=gradient_only):
                spk, mem = sequence(self, x, mem)
                error = torch.zeros(spk.shape)
                error[(2, *place)] = 1
                return (spk + error * (x - x.detach()) if gradient_only else spk + error), mem

            monkeypatch.setattr(snnipu.Leaky, "sequence", wrong)
            check = memory.Work(settings).sequence().check()
            assert not check.passed
            assert check.errors["spikes_differing"] == (0 if gradient_only else 1)
    monkeypatch.setattr(snnipu.Leaky, "sequence", sequence)
    assert memory.Work(settings).sequence().check().passed


def test_results_of_another_shape_are_no_pass(monkeypatch):
    sequence = snnipu.Leaky.sequence

    def more(self, x, mem=None):
        spk, mem = sequence(self, x, mem)
        return torch.cat([spk, spk], -1), mem

    monkeypatch.setattr(snnipu.Leaky, "sequence", more)
    work = lif.Work(SMALL)
    work.grad_spk = torch.cat([work.grad_spk, work.grad_spk], -1)
    with pytest.raises(ValueError, match="expected results of shape"):
        work.sequence().check()


@pytest.mark.parametrize("largest", [7, 10**9])
@pytest.mark.parametrize(("traffic", "elements"), [(24, 3 * 960), (20, 2.5 * 960)])
def test_copy_moves_as_many_bytes_into_memory_that_is_there(monkeypatch, largest, traffic, elements):
    monkeypatch.setattr(memory, "_COPY_ELEMENTS", largest)
    work = memory.Work(SMALL)
    source, destination = work.copied
    workload = work.copy(traffic)
    copied = []
    copy_ = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, from_: copied.append(to.numel()) or copy_(to, from_))
    destination.fill_(-1)
    workload.step()
    assert sum(copied) == elements
    assert torch.equal(destination[: max(copied)], source[: max(copied)])
    assert source.data_ptr() != destination.data_ptr()
    assert workload.check().passed
    assert peak_extra_bytes(workload.step, CPU) == 0


def test_copy_that_does_not_copy_is_red(monkeypatch):
    workload = memory.Work(SMALL).copy(24)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, from_: to)
    assert not workload.check().passed


def test_peer_that_takes_too_long_is_unavailable(monkeypatch):
    monkeypatch.setattr(memory, "_PROBE_ELEMENTS", 100)
    monkeypatch.setattr(memory, "_seconds", lambda settings, make: 21.0)
    rows = run(SMALL, ["snntorch", "copy"])
    assert rows["snntorch-unbind"].reason == "would take about 21 s a step; those above 20 s do not run"
    assert rows["snntorch-unbind"].status == "unavailable"
    assert rows["snnipu"].status == rows["copy-24"].status == "ok"


@pytest.mark.parametrize(("each", "expected"), [(0.0, 3.0), (0.5, 3.0 + 0.5 * 64)])
def test_time_of_a_peer_is_that_of_its_calls_and_of_its_samples(monkeypatch, each, expected):
    """A loop over many steps takes as long for one sample as for some: it is not 64 times as slow for 64."""
    monkeypatch.setattr(memory, "_PROBE_ELEMENTS", 10)
    monkeypatch.setattr(memory, "_warm_seconds", lambda workload, device: workload.step())
    settings = Settings(steps=2, batch_size=64, neurons=5)

    def make(work):
        return Workload(lambda: 3.0 + each * work.settings.batch_size, None)

    assert memory._seconds(settings, make) == pytest.approx(expected)
    # Where even the plain proportion is short enough, one part tells.
    monkeypatch.setattr(memory, "LONGEST_SECONDS", 1e6)
    assert memory._seconds(settings, make) == pytest.approx(3.0 + each)


def test_memory_of_a_peer_is_told_from_a_part(monkeypatch):
    monkeypatch.setattr(memory, "_PROBE_ELEMENTS", 6 * 2 * 2000)
    settings = Settings(steps=6, batch_size=8, neurons=2000)
    whole = peak_extra_bytes(lif.Work(settings).loop_unbind().step, CPU)
    assert memory._peak_bytes(settings, lif.Work.loop_unbind) == pytest.approx(whole, rel=0.05)


def test_peer_without_memory_is_unavailable(monkeypatch):
    monkeypatch.setattr(memory, "_PROBE_ELEMENTS", 100)
    monkeypatch.setattr(memory, "available_memory", lambda device: 10_000)
    rows = run(SMALL, ["snntorch", "copy"])
    assert rows["snntorch-unbind"].status == "unavailable"
    assert rows["snntorch-unbind"].reason.startswith("needs about 0.0 GB of memory, of which 0.0 GB are available")
    assert {name for name, row in rows.items() if row.status == "ok"} == {
        "snnipu",
        "snnipu-spikes",
        "copy-24",
        "copy-20",
    }
    for available in (10**12, None):
        monkeypatch.setattr(memory, "available_memory", lambda device, available=available: available)
        assert run(SMALL, ["snntorch"])["snntorch-unbind"].status == "ok"


def test_resident_memory_of_what_does_not_fit_is_not_told(monkeypatch, capsys):
    monkeypatch.setattr(memory, "_PROBE_ELEMENTS", 100)
    monkeypatch.setattr(memory, "available_memory", lambda device: 0)
    settings = {"steps": 6, "batch_size": 8, "neurons": 20, "dtype": "float32", "device": "cpu"}
    request = {"case": "memory", "contender": "snntorch-unbind", "threads": 1, "settings": settings}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    resident.child()
    assert capsys.readouterr().out.split() == ["null"]


def test_sweep_leaves_out_what_there_is_no_memory_for(monkeypatch):
    tensors = [(10, 10, 1000), (2, 10, 1000), (10, 10, 10_000)]  # 0.4, 0.08 and 4 MB
    monkeypatch.setattr(memory, "available_memory", lambda device: 5_000_000)
    sweep = memory.sweep(SMALL, tensors)
    assert [(point.steps, point.batch_size, point.neurons) for point in sweep.points] == [(2, 10, 1000), (10, 10, 1000)]
    assert sweep.axes[0].values == [0.08, 0.4]
    assert sweep.left_out == [
        "10 × 10 × 10000 is left out: it needs about 0.0 GB of memory, of which 0.0 GB are available."
    ]
    assert [memory.build(point).parameters["megabytes"] for point in sweep.points] == sweep.axes[0].values
    monkeypatch.setattr(memory, "available_memory", lambda device: None)
    assert len(memory.sweep(SMALL, tensors).points) == 3
    assert memory.sweep(SMALL, tensors).left_out == []
    monkeypatch.setattr(memory, "available_memory", lambda device: 0)
    with pytest.raises(ValueError, match="tensors: 2 × 10 × 1000 is left out"):
        memory.sweep(SMALL, tensors)


def test_memory_is_given_back_where_there_is_little(monkeypatch):
    size = memory.megabytes(SMALL) * 1e6
    for available, tight in ((23 * size, True), (25 * size, False), (None, False)):
        monkeypatch.setattr(memory, "available_memory", lambda device, available=available: available)
        case = memory.build(SMALL)
        assert case.alone is case.parameters["memory_given_back"] is tight


def test_default_sizes():
    sizes = [math.prod(shape) * 4 / 1e6 for shape in memory.TENSORS]
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert 1000 < sizes[-1] < 1100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not tell")
def test_available_memory(monkeypatch):
    assert 0 < available_memory() <= memory_of_machine()
    # A control group that allows less.
    monkeypatch.setattr("benchmarks.memory.memory_of_machine", lambda: 1)
    assert available_memory() == 0
