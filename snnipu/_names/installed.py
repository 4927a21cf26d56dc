"""Probes of the installed snnTorch: functions that run it to find how it behaves. snnipu's neurons then do the same.

Each probe names the difference between versions that it detects. Probes run once, most of them at import.
"""

import inspect
from typing import Any, Callable, Mapping, Sequence, Tuple

import snntorch
import snntorch.functional.quant
import snntorch.utils
import torch
from torch import nn

# Equation -> arguments of the snnTorch neuron that is probed. With them no neuron draws random numbers.
_NEURONS: Mapping[str, Mapping[str, Any]] = {
    "leaky": {"beta": 0.75},
    "lapicque": {"R": 1.5, "C": 2.0, "time_step": 1.0},
    "synaptic": {"alpha": 0.875, "beta": 0.75},
    "alpha": {"alpha": 0.875, "beta": 0.75},
    "rleaky": {"beta": 0.75, "V": 0.5, "all_to_all": False},
    "rsynaptic": {"alpha": 0.875, "beta": 0.75, "V": 0.5, "all_to_all": False},
    "delta_leaky": {"beta": 0.75, "delta_threshold": 0.5},
}


class _ProbeContext:
    """A context for probes: CPU tensors, gradients enabled, and a separate list of neuron instances.

    So a probe works in any mode in which a program imports snnipu, and ``utils.reset`` does not reach its neurons.
    """

    def __enter__(self) -> None:
        self._modes = (torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"))
        for mode in self._modes:
            mode.__enter__()
        self._neurons = snntorch.SpikingNeuron.instances
        snntorch.SpikingNeuron.instances = []

    def __exit__(self, *error: Any) -> None:
        snntorch.SpikingNeuron.instances = self._neurons
        for mode in reversed(self._modes):
            mode.__exit__(*error)


def _spikes_keep_dtype() -> bool:
    """Return True if spikes have the dtype of the membrane; up to snnTorch 1.0 they are float32."""
    with _ProbeContext():
        return bool(snntorch.surrogate.atan()(torch.ones(1, dtype=torch.float64)).dtype == torch.float64)


def _state_quant_keeps_dtype() -> bool:
    """Return True if a quantized state has the dtype of the state; up to snnTorch 1.0 it has that of the levels."""
    with _ProbeContext():
        levels = torch.tensor([0.0, 1.0], dtype=torch.float32)
        quantized = snntorch.functional.quant.StateQuant.apply(torch.ones(1, dtype=torch.float64), levels)
        return bool(quantized.dtype == torch.float64)


def reset_reaches_others() -> bool:
    """Return True if ``utils.reset(net)`` also resets neurons of other networks. Up to snnTorch 1.0 it does."""
    with _ProbeContext():
        inside, outside = (snntorch.Leaky(beta=0.5, init_hidden=True) for _ in range(2))
        outside.mem = torch.ones(1)
        snntorch.utils.reset(nn.Sequential(inside))
        return not outside.mem.any()


SPIKES_KEEP_DTYPE = _spikes_keep_dtype()
STATE_QUANT_KEEPS_DTYPE = _state_quant_keeps_dtype()


def spike_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the spikes of a membrane of ``dtype``."""
    return dtype if SPIKES_KEEP_DTYPE else torch.float32


def has_gradient(
    name: str, arguments: Sequence[float], gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> bool:
    """Return True if the surrogate ``snntorch.surrogate.<name>(*arguments)`` has the given gradient, or fails.

    Kernels are compiled with snnipu's formulas; a later snnTorch may change one. ``LSO`` of snnTorch 1.0 fails: then
    there is no other formula to follow.

    Args:
        name: name of the surrogate.
        arguments: its parameters.
        gradient: the expected gradient as a function of the membrane above the threshold and the upstream gradient.
    """
    with _ProbeContext():
        u = torch.tensor([-1.5, -0.25, -0.01, 0.01, 0.25, 1.5], dtype=torch.float64, requires_grad=True)
        grad = torch.tensor([1.0, -0.5, 2.0, 0.25, 1.0, -1.0], dtype=torch.float64)
        try:
            node = getattr(snntorch.surrogate, name)(*arguments)(u).grad_fn
            # The node is called directly. Autograd's engine would initialise CUDA, after which a program can neither
            # fork nor set CUDA_VISIBLE_DEVICES.
            expected = node.apply(grad)
        except (AttributeError, RuntimeError, TypeError):
            return True
        expected = expected[0] if isinstance(expected, tuple) else expected
        return torch.allclose(gradient(u.detach(), grad), expected.detach(), rtol=1e-6, atol=0)


def reset_mechanisms(
    stock: Any,
    step: Callable[..., Any],
    states: Sequence[str],
    parameters: Sequence[str],
    options: Mapping[str, Sequence[Any]],
) -> Tuple[str, ...]:
    """Return the reset mechanisms for which a step of snnTorch's neuron equals ``step``.

    Equal means the same bits, and a reset that is detached. A later snnTorch may change its resets, as the open pull
    request 426 does; neurons with a mechanism that differs run snnTorch's code. Gradients are not compared, because
    that would start autograd's engine, and with it CUDA, at import.

    Args:
        stock: snnTorch's class.
        step: the function of ``snnipu.equations``.
        states: names of the states, in the order of ``step``.
        parameters: names of the parameters, in the order of ``step``.
        options: the values of each option of any step.
    """
    step_options, keywords = inspect.signature(step).parameters, inspect.signature(stock).parameters
    delays = options["reset_delay"] if "reset_delay" in step_options and "reset_delay" in keywords else ()
    with _ProbeContext():
        return tuple(
            mechanism
            for mechanism in options["reset_mechanism"]
            if all(
                _is_step(stock, step, states, parameters, {**reset, **delay})
                for reset in [{"reset_mechanism": mechanism} if "reset_mechanism" in step_options else {}]
                for delay in [{"reset_delay": value} for value in delays] or [{}]
            )
        )


def _is_step(
    stock: Any, step: Callable[..., Any], states: Sequence[str], parameters: Sequence[str], chosen: Mapping[str, Any]
) -> bool:
    values_of_x = torch.tensor([-0.5, 0.25, 0.75, 1.25, 1.5, 2.5])  # on both sides of the thresholds
    x, *before = (values_of_x.roll(places).requires_grad_() for places in range(1 + len(states)))
    try:
        neuron = stock(**_NEURONS[step.__name__], **chosen, init_hidden=True)
        values = {name: torch.as_tensor(getattr(neuron, name)) for name in parameters}
        for name, state in zip(states, before):
            setattr(neuron, name, state)
        try:
            out = neuron(x)
        except TypeError:  # Synaptic without reset_delay fails in snnTorch 0.9.1: there is nothing to differ from
            return True
        theirs = [out[0] if isinstance(out, tuple) else out, *(getattr(neuron, name) for name in states)]
        spk, *after = step(x, *before, **values, spike=neuron.spike_grad, **chosen)
        ours = [spk, *([spk] if states[0] == "spk" else []), *after]
    except Exception:  # this version has other attributes or arguments
        return False
    if getattr(neuron.__dict__.get("reset"), "requires_grad", False):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs))
