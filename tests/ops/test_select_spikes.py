"""Tests specific to ``snnipu.ops.select_spikes``; test_sparse_contract.py tests the common contract."""

import pytest
import snntorch
import torch

from snnipu import ops, surrogate


def selected_ids(spikes, t, b=0):
    """Return the ids of the spikes, and the ids of the slots that only carry gradient."""
    fired, used = spikes.counts[t, b].tolist()
    return spikes.ids[t, b, :fired].tolist(), spikes.ids[t, b, fired:used].tolist()


# Neurons 1, 3, 5 and 7 are above the threshold of 1, and 0, 4 and 6 above the second threshold of 0.5.
MEM = torch.tensor([0.7, 1.5, 0.2, 2.0, 0.6, 1.1, 1.0, 3.0]).expand(4, 1, 8)


@pytest.mark.parametrize(
    ("max_spikes", "overflow", "spikes", "others", "lost"),
    [
        (None, "lowest", [[1, 3, 5, 7]] * 4, [[0, 4, 6]] * 4, [0, 0]),
        (6, "lowest", [[1, 3, 5, 7]] * 4, [[0, 4]] * 4, [0, 1]),
        # The first neurons are 0, 3, 6 and 9 % 8 = 1.
        (3, "rotate", [[1, 3, 5], [3, 5, 7], [1, 3, 7], [1, 3, 5]], [[]] * 4, [1, 4]),
        # The first neurons are 0, 6, 12 % 8 = 4 and 18 % 8 = 2.
        (6, "rotate", [[1, 3, 5, 7]] * 4, [[0, 4], [0, 6], [4, 6], [4, 6]], [0, 1]),
    ],
)
def test_what_is_chosen(max_spikes, overflow, spikes, others, lost):
    """A definition by hand; test_sparse_properties.py compares all slots of random membranes with the rule."""
    out = ops.select_spikes(MEM, 1.0, 0.5, max_spikes, overflow=overflow)
    assert [selected_ids(out, t) for t in range(4)] == list(zip(spikes, others))
    assert out.dropped.tolist() == [[lost]] * 4
    assert out.overflow == 4 * lost[0]


@pytest.mark.parametrize("source", [surrogate, snntorch.surrogate], ids=["snnipu", "snntorch"])
def test_stochastic_surrogate(source):
    mem = torch.randn(3, 2, 9, requires_grad=True)
    spikes = ops.select_spikes(mem, 0.5, spike_grad=source.SSO(0.1, 0.3))
    spikes.values.sum().backward()
    above = mem.detach() > 0.5
    assert (mem.grad[above] == 1).all()
    assert (mem.grad[~above].abs() <= 0.6 * 0.3).all()
    assert mem.grad[~above].unique().numel() > 10


@pytest.mark.parametrize("shape", [(1,), (1, 70), (1, 1)])
def test_shapes_of_the_threshold(shape):
    flat, results = torch.linspace(0.3, 1, torch.Size(shape).numel()), []
    for threshold in (flat.reshape(shape), flat.expand(70).clone()):
        threshold.requires_grad_()
        mem = torch.linspace(-2, 2, 840).sin().reshape(4, 3, 70).requires_grad_()
        spikes = ops.select_spikes(mem, threshold, 0.1, 9)
        (spikes.values * spikes.ids).sum().backward()
        results.append([spikes.ids, spikes.values.detach(), mem.grad, threshold.grad.sum().reshape(1)])
        assert threshold.grad.shape == threshold.shape
    torch.testing.assert_close(*results)


def test_nan_does_not_spike(poisoned):
    mem = torch.full((2, 1, 70), 2.0)
    mem[0, 0, ::3] = float("nan")
    mem[1, 0, 5], mem[1, 0, 66], mem[1, 0, 69] = float("inf"), -float("inf"), float("nan")
    spikes = ops.select_spikes(mem, 1.0, 0.5)
    assert selected_ids(spikes, 0) == ([n for n in range(70) if n % 3], [])
    assert selected_ids(spikes, 1) == ([n for n in range(70) if n not in (66, 69)], [])
    # With no second threshold every neuron carries gradient at any membrane.
    assert selected_ids(ops.select_spikes(mem, 1.0), 0)[1] == list(range(0, 70, 3))
    assert selected_ids(ops.select_spikes(mem, float("nan"), 0.5), 0) == ([], [n for n in range(70) if n % 3])
