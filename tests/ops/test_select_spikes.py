"""What is particular to ``snnipu.ops.select_spikes``: the contract of all is in test_sparse_contract.py."""

import itertools

import pytest
import snntorch
import torch
from oracle import (
    SURROGATES,
    assert_slots,
    at_slots,
    masked_spikes,
    on_grid,
    poison_new_tensors,
    relative_error,
    trimmed,
)

from snnipu import ops, surrogate

SIZES = [1, 5, 63, 64, 65, 200]
GRAD_THRESHOLDS = [None, 0.5, -1e30, float("-inf"), 2.0]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


def both(mem, threshold=1.0, spike_grad=(None, None), **options):
    """Slots, and gradients of membrane and threshold: the oracle's, then ours."""
    upstream = torch.randn_like(mem)
    theirs = mem.detach().clone().requires_grad_()
    their_threshold = torch.as_tensor(threshold, dtype=mem.dtype).detach().clone().requires_grad_()
    dense, slots = masked_spikes(theirs, their_threshold, spike_grad=spike_grad[1], **options)
    (dense * upstream).sum().backward()
    ours = mem.detach().clone().requires_grad_()
    own_threshold = torch.as_tensor(threshold, dtype=mem.dtype).detach().clone().requires_grad_()
    spikes = ops.select_spikes(ours, own_threshold, spike_grad=spike_grad[0], **options)
    # What is upstream of padding goes nowhere.
    (spikes.values * at_slots(upstream, spikes, padding=1e6)).sum().backward()
    slots = trimmed(slots) if options.get("max_spikes") is None else slots
    return (slots, theirs.grad, their_threshold.grad), (spikes, ours.grad, own_threshold.grad)


def assert_same(results, tolerance=1e-5):
    (slots, grad, threshold_grad), (spikes, own, own_threshold_grad) = results
    assert_slots(spikes, slots)
    assert own.shape == grad.shape
    assert own.dtype == grad.dtype
    assert own_threshold_grad.shape == threshold_grad.shape
    if grad.numel():
        assert relative_error(own, grad) <= tolerance
        assert relative_error(own_threshold_grad, threshold_grad, grad) <= tolerance
    else:
        assert not own_threshold_grad.any()


def chosen(spikes, t, b=0):
    """Ids of the spikes, and of the slots that only carry gradient."""
    fired, used = spikes.counts[t, b].tolist()
    return spikes.ids[t, b, :fired].tolist(), spikes.ids[t, b, fired:used].tolist()


# Of 8 neurons 1, 3, 5 and 7 are above the threshold of 1, and 0, 4 and 6 above the second one, 0.5.
MEM = torch.tensor([0.7, 1.5, 0.2, 2.0, 0.6, 1.1, 1.0, 3.0]).expand(4, 1, 8)


@pytest.mark.parametrize(
    ("max_spikes", "overflow", "spikes", "others", "lost"),
    [
        (None, "lowest", [[1, 3, 5, 7]] * 4, [[0, 4, 6]] * 4, (0, 0)),
        (7, "lowest", [[1, 3, 5, 7]] * 4, [[0, 4, 6]] * 4, (0, 0)),
        (6, "lowest", [[1, 3, 5, 7]] * 4, [[0, 4]] * 4, (0, 1)),
        (3, "lowest", [[1, 3, 5]] * 4, [[]] * 4, (1, 4)),
        (0, "lowest", [[]] * 4, [[]] * 4, (4, 7)),
        (100, "lowest", [[1, 3, 5, 7]] * 4, [[0, 4, 6]] * 4, (0, 0)),
        # From 0, 3, 6 and 9 % 8 = 1 on.
        (3, "rotate", [[1, 3, 5], [3, 5, 7], [1, 3, 7], [1, 3, 5]], [[]] * 4, (1, 4)),
        # From 0, 6, 12 % 8 = 4 and 18 % 8 = 2 on.
        (6, "rotate", [[1, 3, 5, 7]] * 4, [[0, 4], [0, 6], [4, 6], [4, 6]], (0, 1)),
        # From 0, 5, 2 and 7 on.
        (5, "rotate", [[1, 3, 5, 7]] * 4, [[0], [6], [4], [0]], (0, 2)),
        # From 0, 2, 4 and 6 on.
        (2, "rotate", [[1, 3], [3, 5], [5, 7], [1, 7]], [[]] * 4, (2, 5)),
        (100, "rotate", [[1, 3, 5, 7]] * 4, [[0, 4, 6]] * 4, (0, 0)),
        (None, "rotate", [[1, 3, 5, 7]] * 4, [[0, 4, 6]] * 4, (0, 0)),
        (0, "rotate", [[]] * 4, [[]] * 4, (4, 7)),
    ],
)
def test_what_is_chosen(max_spikes, overflow, spikes, others, lost, poisoned):
    out = ops.select_spikes(MEM, 1.0, 0.5, max_spikes, overflow=overflow)
    assert [chosen(out, t) for t in range(4)] == list(zip(spikes, others))
    assert out.dropped.tolist() == [[list(lost)]] * 4
    assert out.overflow == 4 * lost[0]
    assert out.capacity == (7 if max_spikes is None else min(max_spikes, 8))
    assert out.num_neurons == 8
    for t in range(4):
        used = int(out.counts[t, 0, 1])
        assert out.values[t, 0].tolist() == [1.0] * len(spikes[t]) + [0.0] * (out.capacity - len(spikes[t]))
        assert out.ids[t, 0, used:].tolist() == [0] * (out.capacity - used)


def test_with_rotation_every_neuron_has_its_turn():
    mem = torch.full((10, 2, 10), 2.0)
    assert ops.select_spikes(mem, max_spikes=3, overflow="rotate").spike_count().tolist() == [[3.0] * 10] * 2
    assert ops.select_spikes(mem, max_spikes=3).spike_count().tolist() == [[10.0] * 3 + [0.0] * 7] * 2


@pytest.mark.slow
@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("max_spikes", [None, 0, 1, 7, 64, 1000])
@pytest.mark.parametrize("neurons", SIZES)
def test_equals_the_oracle(neurons, max_spikes, overflow, poisoned):
    mem = on_grid(5, 2, neurons, most=2.0)  # some of it equal to a threshold
    for grad_threshold in GRAD_THRESHOLDS:
        options = {"grad_threshold": grad_threshold, "max_spikes": max_spikes, "overflow": overflow}
        assert_same(both(mem, 1.0, **options))


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates(name, poisoned):
    mem = torch.randn(4, 3, 70)
    for threshold, dtype in itertools.product((0.4, torch.rand(70) + 0.2), (torch.float32, torch.float64)):
        options = {"grad_threshold": 0.1, "max_spikes": 20, "spike_grad": SURROGATES[name]}
        results = both(mem.to(dtype), threshold, **options)
        assert results[0][1].any()
        # A function evaluated in PyTorch gets the gradient in the float32 of snnTorch's spikes.
        double = 2e-7 if name == "custom_surrogate" else 1e-12
        assert_same(results, 1e-5 if dtype == torch.float32 else double)


@pytest.mark.parametrize("source", [surrogate, snntorch.surrogate], ids=["snnipu", "snntorch"])
def test_stochastic_surrogate(source):
    mem = torch.randn(3, 2, 9, requires_grad=True)
    spikes = ops.select_spikes(mem, 0.5, spike_grad=source.SSO(0.1, 0.3))
    spikes.values.sum().backward()
    above = mem.detach() > 0.5
    assert (mem.grad[above] == 1).all()
    assert (mem.grad[~above].abs() <= 0.6 * 0.3).all()
    assert mem.grad[~above].unique().numel() > 10


@pytest.mark.parametrize("level", [-5.0, 5.0])
@pytest.mark.parametrize("grad_threshold", [None, 0.5])
@pytest.mark.parametrize("neurons", SIZES)
def test_none_and_all_spiking(neurons, grad_threshold, level, poisoned):
    mem = torch.full((3, 2, neurons), level)
    for max_spikes in (None, 3):
        results = both(mem, 1.0, grad_threshold=grad_threshold, max_spikes=max_spikes)
        assert_same(results)
        most = neurons if max_spikes is None else min(neurons, 3)
        assert results[1][0].num_spikes == (6 * most if level > 0 else 0)


@pytest.mark.parametrize("shape", [(), (1,), (70,), (1, 70), (1, 1)])
def test_shapes_of_the_threshold(shape, poisoned):
    assert_same(both(torch.randn(4, 3, 70), torch.rand(shape) + 0.3, grad_threshold=0.1, max_spikes=9))


def test_nan_does_not_spike(poisoned):
    mem = torch.full((2, 1, 70), 2.0)
    mem[0, 0, ::3] = float("nan")
    mem[1, 0, 5], mem[1, 0, 66], mem[1, 0, 69] = float("inf"), -float("inf"), float("nan")
    spikes = ops.select_spikes(mem, 1.0, 0.5)
    assert chosen(spikes, 0) == ([n for n in range(70) if n % 3], [])
    assert chosen(spikes, 1) == ([n for n in range(70) if n not in (66, 69)], [])
    # With no second threshold every neuron carries gradient, whatever its membrane.
    assert chosen(ops.select_spikes(mem, 1.0), 0)[1] == list(range(0, 70, 3))
    assert chosen(ops.select_spikes(mem, float("nan"), 0.5), 0) == ([], [n for n in range(70) if n % 3])


# ---- kernels
