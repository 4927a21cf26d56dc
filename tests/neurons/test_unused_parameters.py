"""A parameter that no result depends on has the gradient None, as in snnTorch, and not zeros."""

import pytest
import snntorch
import torch
from support.loops import sequence, steps

import snnipu as snn

NEURONS = {
    "Leaky": lambda kit, reset: kit.Leaky(
        0.9, learn_beta=True, learn_threshold=True, learn_graded_spikes_factor=True, reset_mechanism=reset
    ),
    "Synaptic": lambda kit, reset: kit.Synaptic(
        0.9, 0.8, learn_alpha=True, learn_beta=True, learn_threshold=True, reset_mechanism=reset
    ),
    "Lapicque": lambda kit, reset: kit.Lapicque(0.9, learn_beta=True, learn_threshold=True, reset_mechanism=reset),
}
READ = ("membranes", "spikes", "both")


@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("all_to_all", [False, True])
def test_so_it_is_of_one_step_of_a_recurrent_neuron(all_to_all, reset):
    """The spikes are a state that only the next step reads."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 2
    is_none = []
    for kit in (snntorch, snn):
        neuron = kit.RLeaky(
            0.9,
            all_to_all=all_to_all,
            linear_features=4 if all_to_all else None,
            learn_threshold=True,
            reset_mechanism=reset,
            reset_delay=False,
        )
        _, mem = neuron(x, *neuron.reset_mem())
        mem.sum().backward(retain_graph=True)
        is_none.append(neuron.threshold.grad is None)
    assert is_none == [reset == "none"] * 2


@pytest.mark.parametrize("run", [steps, sequence])
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("kind", NEURONS)
def test_gradients_are_none_where_they_are_snntorchs(kind, reset, read, run):
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0)) * 2
    results = []
    for kit, function in ((snntorch, steps), (snn, run)):
        neuron = NEURONS[kind](kit, reset)
        spk, *_, mem = function(neuron, x, *[None] * (1 + (kind == "Synaptic")))
        sum(part.square().sum() for part in {"membranes": [mem], "spikes": [spk], "both": [spk, mem]}[read]).backward()
        results.append({name: parameter.grad for name, parameter in neuron.named_parameters()})
    expected, gradients = results
    assert {name for name, grad in gradients.items() if grad is None} == {n for n, g in expected.items() if g is None}
    for name, grad in expected.items():
        assert grad is None or torch.allclose(gradients[name], grad, rtol=1e-5, atol=1e-5)
