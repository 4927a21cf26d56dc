"""The input activity that a layer on a GPU knows. Stand-ins replace the copies to the host: no GPU is needed."""

import copy
import pickle

import pytest
import torch
from oracle import random_spikes

import snnipu
from snnipu.neurons import sparse_activity, sparse_linear
from snnipu.neurons.sparse_activity import EVERY, LATER, DeviceActivity
from snnipu.ops import _break_even


class Copied:
    """An event that logs calls of ``synchronize``."""

    def __init__(self, log):
        self.log = log

    def synchronize(self):
        self.log.append("waited")


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    class Here(DeviceActivity):
        def __init__(self):
            super().__init__()
            self.log = []

        def _ask(self, spikes):
            self.log.append("asked")
            return sparse_activity._Pending(
                spikes.counts[..., 0].sum(), Copied(self.log), spikes.shape.numel(), self._calls + LATER
            )

    return Here()


def spikes_of(rate, slack=2):
    torch.manual_seed(0)
    return random_spikes(5, 4, 40, rate, 0.1, slack=slack)


def test_measured_now_and_then_and_told_later(measured):
    often, seldom = spikes_of(0.4), spikes_of(0.1, slack=20)
    most = often.capacity / 40
    assert most < 1
    assert [measured.activity(often) for _ in range(LATER)] == [most] * LATER
    assert measured.log == ["asked"]
    assert [measured.activity(seldom) for _ in range(LATER, EVERY)] == [often.activity] * (EVERY - LATER)
    assert measured.log == ["asked", "waited"]
    assert [measured.activity(seldom) for _ in range(LATER)] == [often.activity] * LATER
    assert measured.activity(seldom) == seldom.activity
    assert measured.log == ["asked", "waited"] * 2


def test_never_more_than_there_is_room_for(measured):
    often, few = spikes_of(0.4), spikes_of(0.01, slack=0)
    for _ in range(LATER + 1):
        measured.activity(often)
    assert measured.activity(few) == few.capacity / 40
    assert measured.activity(spikes_of(0.5, slack=100)) <= 1


def test_nothing_is_measured_during_capture_or_without_samples(measured, monkeypatch):
    measured.activity(spikes_of(0.4)[:, :0])
    assert measured.log == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(2 * EVERY):
        assert measured.activity(spikes_of(0.4)) == spikes_of(0.4).capacity / 40
    assert measured.log == []


def test_the_number_is_copied_to_pinned_memory_behind_what_is_under_way(monkeypatch):
    """Stand-ins replace the functions that only CUDA has."""
    log = []
    empty = torch.empty

    def pinned(*size, pin_memory, **options):
        assert pin_memory
        return empty(*size, **options)

    class Event(Copied):
        def __init__(self):
            super().__init__(log)

        def record(self, stream):
            log.append(f"recorded on {stream}")

    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    spikes, activity = spikes_of(0.3), DeviceActivity()
    assert [activity.activity(spikes) for _ in range(LATER)] == [spikes.capacity / 40] * LATER
    assert log == ["recorded on the stream of cpu"]
    assert activity.activity(spikes) == spikes.activity
    assert log[1:] == ["waited"]


def test_copies_know_nothing(measured):
    measured.activity(spikes_of(0.4))
    for other in (copy.deepcopy(measured), pickle.loads(pickle.dumps(DeviceActivity()))):
        assert (other._calls, other._pending, other._known) == (0, None, None)
    layer = snnipu.SparseLinear(3, 2)
    layer._measured._known = 0.5
    assert copy.deepcopy(layer)._measured._known is None


@pytest.mark.parametrize(("precision", "share"), [("ieee", 0.05), ("tf32", 0.008)])
def test_choice_on_a_gpu(precision, share, measured, monkeypatch):
    """The break-even is that of the matrix product in this precision."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        matmul.allow_tf32 = precision == "tf32"
        weight = torch.ones(3, 40)
        monkeypatch.setattr(sparse_linear, "backend_for", lambda *_: "triton")
        measured._known = share
        assert not sparse_linear._is_dense_on_gpu(spikes_of(0.4), weight, measured)
        measured._known, measured._pending = 2 * share, None
        assert sparse_linear._is_dense_on_gpu(spikes_of(0.4), weight, measured)
        # Too few slots for so many spikes: the activity is not measured.
        calls = measured._calls
        little = snnipu.SparseSpikes(
            torch.zeros(1, 1, 1, dtype=torch.int32), torch.ones(1, 1, 1), torch.ones(1, 1, 2, dtype=torch.int32), 1000
        )
        assert not sparse_linear._is_dense_on_gpu(little, weight, measured)
        assert measured._calls == calls
        monkeypatch.setattr(sparse_linear, "backend_for", lambda *_: "reference")
        assert sparse_linear._is_dense_on_gpu(little, weight, measured)
    finally:
        matmul.allow_tf32 = before


def test_sixteen_bit_products_break_even_earlier(monkeypatch):
    assert _break_even.break_even(torch.float64) == _break_even.DOUBLE
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda: True)
    assert _break_even.break_even(torch.float32) == _break_even.HALF
