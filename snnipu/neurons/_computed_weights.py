"""Layers whose weights are computed at each call, by ``weight_norm``, a parametrization or a pruning mask."""

from typing import Any, Dict, List, Sequence

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from snnipu.neurons._hooks import is_plain
from snnipu.ops._arguments import is_compiling, is_interpreted

LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)


def is_computed(module: nn.Module) -> bool:
    """Return True if each call of the module computes its weights from other parameters."""
    return parametrize.is_parametrized(module) or bool(_hooks(module))


def _hooks(module: nn.Module) -> List[Any]:
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, _HOOKS)]


def computed_once(name: str, module: nn.Module) -> nn.Module:
    """Compute the weights of ``module`` once, under autograd, and return a plain layer that has them.

    Gradients reach the parameters from which the weights are computed. A module without computed weights is returned
    unchanged.

    Raises:
        ValueError: the computation changes the module's buffers.
    """
    kind, hooks = parametrize.type_before_parametrizations(module), _hooks(module)
    if kind not in LAYERS or not is_computed(module) or "forward" in module.__dict__:
        return module
    before = _versions(module)
    for hook in hooks:
        hook(module, ())
    names = [getattr(hook, "name", getattr(hook, "_tensor_name", "")) for hook in hooks]
    if parametrize.is_parametrized(module):
        names += list(module.parametrizations)  # type: ignore[arg-type]
    values: Dict[str, torch.Tensor] = {key: getattr(module, key) for key in names}
    if _versions(module) != before:
        raise ValueError(
            f"module {name} ({kind.__name__}) changes its buffers when its weight is computed, as spectral_norm does "
            "in training: gradients would depend on the division into chunks; call .eval() on the module, or make it a "
            "plain one"
        )
    layer: Any = kind.__new__(kind)
    layer.__dict__.update({key: value for key, value in module.__dict__.items() if key not in values})
    layer._parameters = {key: values.get(key, module._parameters.get(key)) for key in ("weight", "bias")}
    layer._buffers, layer._modules = {}, {}
    layer._forward_pre_hooks = type(module._forward_pre_hooks)(
        {key: hook for key, hook in module._forward_pre_hooks.items() if hook not in hooks}
    )
    return layer  # type: ignore[no-any-return]


def computed_for_all_steps(name: str, module: nn.Module) -> nn.Module:
    """Return :func:`computed_once` if each step computes the same weights, and ``module`` unchanged otherwise.

    Steps may compute other weights if a computation changes buffers or draws random numbers. Both are then restored.
    """
    if not is_computed(module):
        return module
    parts = [part for child in module.children() for part in child.modules()]
    gpus = list({parameter.device for parameter in module.parameters() if parameter.is_cuda})
    if (
        is_compiling()
        or is_interpreted()
        or not is_plain(*parts)
        or any(isinstance(part, nn.modules.dropout._DropoutNd) and part.training for part in parts)
        or (gpus and torch.cuda.is_current_stream_capturing())  # a graph that is captured hides its random numbers
    ):
        return module
    buffers = [
        (part._buffers, key, buffer, buffer.clone())
        for part in module.modules()
        for key, buffer in part._buffers.items()
        if buffer is not None
    ]
    random = _random_states(gpus)
    try:
        layer = computed_once(name, module)
        if is_plain(layer) and all(map(torch.equal, _random_states(gpus), random)):
            return layer
    except ValueError:  # changed buffers, or an error that the first step raises again
        pass
    torch.set_rng_state(random[0])
    for state, gpu in zip(random[1:], gpus):
        torch.cuda.set_rng_state(state, gpu)
    with torch.no_grad():
        for owner, key, buffer, value in buffers:
            owner[key] = buffer.copy_(value)
    return module


def _random_states(gpus: Sequence[torch.device]) -> List[torch.Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]


def _versions(module: nn.Module) -> Dict[str, Any]:
    return {name: (id(buffer), version(buffer)) for name, buffer in module.named_buffers()}


def version(tensor: torch.Tensor) -> int:
    """Return the tensor's version, which each change in place increments; 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version
