"""``snnipu.StateLeaky`` and ``snnipu.LinearLeaky`` against snnTorch's convolution."""

import pytest
import snntorch
import torch
from oracle import relative_error
from support.loops import with_gradients

import snnipu as snn
from snnipu.neurons import state_leaky


def results(module, x):
    def call(module, x):
        out = module(x)
        return out if isinstance(out, tuple) else (out,)

    out, gradients = with_gradients(call, module, x)
    return [*out, *gradients]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"learn_beta": True},
        {"beta": torch.linspace(0.1, 0.99, 6), "learn_beta": True, "learn_threshold": True},
        {"beta": 1.0},
        {"output": False},
        {"graded_spikes_factor": 0.5, "learn_graded_spikes_factor": True},
        {"kernel_truncation_steps": 4},
        {"kernel_truncation_steps": 400},
        {"state_quant": snn.functional.quant.state_quant(4)},
    ],
)
@pytest.mark.parametrize("name", ["StateLeaky", "LinearLeaky"])
def test_equals_snntorchs(name, options, dtype, tolerance, monkeypatch):
    fused, apply = [], state_leaky.lif_sequence
    monkeypatch.setattr(state_leaky, "lif_sequence", lambda *x, **how: fused.append(1) or apply(*x, **how))
    size = {"channels": 6} if name == "StateLeaky" else {"in_features": 6, "out_features": 6}
    x = torch.randn(20, 3, 6, dtype=dtype)
    both = []
    for library in (snn, snntorch):
        torch.manual_seed(1)
        module = getattr(library, name)(**{"beta": 0.9, **size, **options}).to(dtype)
        both.append(module)
    assert isinstance(both[0], getattr(snntorch, name))
    assert list(both[0].state_dict()) == list(both[1].state_dict())
    for actual, expected in zip(results(both[0], x), results(both[1], x)):
        assert (actual is None) == (expected is None)
        if actual is not None:
            assert relative_error(actual, expected) <= tolerance
    assert len(fused) == (0 if options.get("kernel_truncation_steps") == 4 else 1)


def test_growing_states_are_snntorchs():
    ours, theirs = (library.StateLeaky(beta=1.5, channels=2) for library in (snn, snntorch))
    x = torch.randn(5, 2, 2)
    assert torch.equal(ours(x)[1], theirs(x)[1])
