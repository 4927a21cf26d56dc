"""Optimizer states by PopART's names, so that this host and IPUs can load each other's checkpoints.

``ipu_state`` holds a tensor for each accumulator of each weight, under the accumulator's name, ``___`` and the weight's
name. ``ipu_param`` holds the hyperparameters that are not constants of the compiled model.

=========  =============================================================================================
optimizer  accumulators in ``ipu_state``
=========  =============================================================================================
SGD        ``Accl1``: velocity * loss scaling; ``Accl`` with ``use_combined_accum``, see
           :func:`_decay_in_accl`
Adam(W)    ``Accl1``: mean of gradients, ``Accl2``: mean of squares, ``Step``: steps, if bias-corrected
LAMB       the same as Adam
RMSprop    ``Accl1``: mean of squares, ``Accl2``: mean of gradients, if centered, ``Accl3``: momentum
=========  =============================================================================================
"""

import math
from typing import Any, Dict, List, NamedTuple, Tuple

import torch

from snnipu.poptorch._errors import InvalidArgument, InvalidType, check_tensor

_STATE = ("Accl1", "Accl2", "Accl3", "Accl", "Step", "Accum")
_PARAMETERS = (
    "learningRate", "weightDecay", "maxWeightNorm", "adamBeta1", "adamBeta2", "adamEps", "adamGradientScaling",
    "adaptiveAlpha", "adaptiveEps", "adaptiveMomentum", "adaptiveGradientScaling", "scaledLearningRate0",
    "weightDecayScaleFactor0", "scaledLearningRate1", "scaledWeightDecay1", "dampeningScaleFactor1", "scaledMomentum1",
    "scaledLearningRate2", "dampeningScaleFactor2", "scaledMomentum2", "sgdWeightDecay", "sgdMomentum",
    "nesterovGradScaleFactor1", "nesterovGradScaleFactor2", "nesterovDampeningScaleFactor1",
    "nesterovDampeningScaleFactor2", "lossScaling", "step",
)  # fmt: skip


class Divisors(NamedTuple):
    """The factors that the mean divides by if it divides last."""

    accumulation: int = 1
    replication: int = 1


def _weight_of(name: str) -> Tuple[str, str]:
    kind, _, weight = name.partition("___")
    return kind, weight


def check_names(state: Dict[str, Any], parameters: Dict[str, Any]) -> None:
    """Raise ``poptorch.Error`` for a name that no optimizer of PopTorch uses."""
    for name, value in state.items():
        kind, weight = _weight_of(name)
        if kind not in _STATE or not weight:
            raise InvalidArgument(
                f"load_state_dict: unknown entry {name!r} of 'ipu_state', expected "
                + ", ".join(f"{known}___<weight>" for known in _STATE)
            )
        check_tensor(value, f"load_state_dict: {name} of 'ipu_state'")
    for name in parameters:
        kind, scope = _weight_of(name)
        if kind.startswith("lossScaling_"):
            continue
        if kind not in _PARAMETERS or not scope.startswith(("specific___", "default___")):
            raise InvalidArgument(f"load_state_dict: unknown entry {name!r} of 'ipu_param'")


def kind_of(optimizer: Any) -> str:
    """Return the kind of an optimizer; raise ``poptorch.Error`` for a kind that PopTorch lacks."""
    if "max_weight_norm" in optimizer.defaults:
        return "LAMB"
    # AdamW before Adam: it is a subclass of Adam in later versions of PyTorch.
    for name in ("SGD", "AdamW", "Adam", "RMSprop"):
        if isinstance(optimizer, getattr(torch.optim, name)):
            return name
    raise InvalidType(
        f"optimizer: {type(optimizer).__name__} is not one that PopTorch supports: use SGD, Adam, AdamW or RMSprop of "
        "torch.optim or poptorch.optim, or poptorch.optim.LAMB"
    )


class _Accumulator(NamedTuple):
    """An accumulator: its name in PopART and in PyTorch, and the type in which an IPU stores it."""

    ipu: str
    host: str
    dtype: torch.dtype


def _needs_momentum(optimizer: Any, group: Dict[str, Any], name: str) -> bool:
    """Return True if the momentum needs an accumulator: it is above 0 or may change."""
    return bool(group[name]) or not optimizer.variable_attrs.isConstant(name)


def _accumulators(optimizer: Any, group: Dict[str, Any]) -> List[_Accumulator]:
    kind = kind_of(optimizer)
    if kind == "SGD":
        if not _needs_momentum(optimizer, group, "momentum"):
            return []
        name = "Accl" if optimizer.use_combined_accum else "Accl1"
        dtype = torch.float32 if optimizer.use_combined_accum else optimizer.velocity_accum_type
        return [_Accumulator(name, "momentum_buffer", dtype)]
    first, second = optimizer.first_order_momentum_accum_type, optimizer.second_order_momentum_accum_type
    if kind == "RMSprop":
        accumulators = [_Accumulator("Accl1", "square_avg", first)]
        if group["centered"]:
            accumulators.append(_Accumulator("Accl2", "grad_avg", second))
        if _needs_momentum(optimizer, group, "momentum"):
            accumulators.append(_Accumulator("Accl3", "momentum_buffer", second))
        return accumulators
    accumulators = [_Accumulator("Accl1", "exp_avg", first), _Accumulator("Accl2", "exp_avg_sq", second)]
    if getattr(optimizer, "bias_correction", True):
        accumulators.append(_Accumulator("Step", "step", torch.float32))
    return accumulators


def _initial(optimizer: Any, accumulator: _Accumulator, weight: torch.Tensor) -> torch.Tensor:
    if accumulator.ipu == "Step":
        return torch.tensor(0.0)
    ones = accumulator.host == "square_avg" and getattr(optimizer, "use_tf_variant", False)
    return (torch.ones_like if ones else torch.zeros_like)(weight, dtype=torch.float32)


def _decay_in_accl(group: Dict[str, Any], weight: torch.Tensor) -> torch.Tensor:
    """Return the weight decay in ``Accl``. It holds momentum * velocity plus the weight decay of the next step."""
    return (1 - group["dampening"]) * group["weight_decay"] * weight.detach().float()


def read(optimizer: Any, names: Dict[int, str]) -> Dict[str, torch.Tensor]:
    """Return ``ipu_state`` of an optimizer; ``names`` are the weights' names by id."""
    state: Dict[str, torch.Tensor] = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not weight.requires_grad or id(weight) not in names:
                continue
            for accumulator in _accumulators(optimizer, group):
                value = optimizer.state.get(weight, {}).get(accumulator.host)
                value = (
                    _initial(optimizer, accumulator, weight)
                    if value is None
                    else torch.as_tensor(value).detach().float()
                )
                if accumulator.ipu == "Accl":
                    value = (group["momentum"] * value + _decay_in_accl(group, weight)) * group["velocity_scaling"]
                elif kind_of(optimizer) == "SGD":
                    value = value * optimizer.loss_scaling
                state[f"{accumulator.ipu}___{names[id(weight)]}"] = value.to(accumulator.dtype, copy=True)
    return state


def write(optimizer: Any, names: Dict[int, str], state: Dict[str, torch.Tensor], old: Dict[Any, Any]) -> None:
    """Load an ``ipu_state`` into an optimizer; missing accumulators are copied from ``old``, its previous state.

    Raises ``poptorch.Error`` for a weight that the model lacks, an accumulator that the optimizer lacks, or a shape
    that differs from the weight's.
    """
    unused = {name for name in state if not name.startswith("Accum___")}  # ``Accum`` is zero between steps
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight), "")
            before = old.get(weight, {})
            entry: Dict[str, Any] = {}
            loaded = False
            for accumulator in _accumulators(optimizer, group):
                key = f"{accumulator.ipu}___{name}"
                if key not in state:
                    entry[accumulator.host] = before.get(accumulator.host, _initial(optimizer, accumulator, weight))
                    continue
                unused.discard(key)
                loaded = True
                entry[accumulator.host] = _host_value(optimizer, group, accumulator, weight, key, state[key])
            if loaded:
                if kind_of(optimizer) != "SGD":
                    entry.setdefault("step", before.get("step", torch.tensor(0.0)))
                optimizer.state[weight] = entry
            elif before:
                optimizer.state[weight] = before
    if unused:
        raise InvalidArgument(
            f"load_state_dict: {sorted(unused)} of 'ipu_state' fit no weight and accumulator of this "
            f"{type(optimizer).__name__} and its model"
        )


def _host_value(
    optimizer: Any,
    group: Dict[str, Any],
    accumulator: _Accumulator,
    weight: torch.Tensor,
    key: str,
    value: torch.Tensor,
) -> torch.Tensor:
    shape = () if accumulator.ipu == "Step" else tuple(weight.shape)
    if tuple(value.shape) != shape and not (accumulator.ipu == "Step" and value.numel() == 1):
        raise InvalidArgument(f"load_state_dict: {key} must have shape {shape}, got {tuple(value.shape)}")
    value = value.detach().float().clone().reshape(shape)
    if accumulator.ipu == "Accl":
        if not group["momentum"]:
            return torch.zeros_like(value)
        return (value / group["velocity_scaling"] - _decay_in_accl(group, weight)) / group["momentum"]
    if kind_of(optimizer) == "SGD":
        return value / optimizer.loss_scaling
    return value


# Attribute of an optimizer -> PopART's names of its numbers.
_ADAPTIVE = {"lr": ("learningRate",), "weight_decay": ("weightDecay",)}
_ADAM = {**_ADAPTIVE, "betas": ("adamBeta1", "adamBeta2"), "eps": ("adamEps",)}
_HYPERPARAMETERS: Dict[str, Dict[str, Tuple[str, ...]]] = {
    "RMSprop": {**_ADAPTIVE, "alpha": ("adaptiveAlpha",), "momentum": ("adaptiveMomentum",), "eps": ("adaptiveEps",)},
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "LAMB": {**_ADAM, "max_weight_norm": ("maxWeightNorm",)},
}


def _hyperparameters(optimizer: Any, group: Dict[str, Any], divisors: Divisors) -> List[Tuple[Any, ...]]:
    """Return the hyperparameters of a group: PopART's name, the value, and the attributes from which it is computed."""
    kind = kind_of(optimizer)
    if kind != "SGD":
        return [
            (name, number, attribute)
            for attribute, names in _HYPERPARAMETERS[kind].items()
            for name, number in zip(names, group[attribute] if attribute == "betas" else [group[attribute]])
        ]
    rate, decay, scaling = group["lr"], group["weight_decay"], optimizer.loss_scaling
    undamped = 1 - group["dampening"]
    if not _needs_momentum(optimizer, group, "momentum"):
        first = rate * undamped / (scaling * math.prod(divisors))
        return [
            ("scaledLearningRate0", first, "lr", "loss_scaling", "dampening"),
            ("weightDecayScaleFactor0", 1 - rate * undamped * decay, "lr", "weight_decay", "dampening"),
        ]
    if optimizer.use_combined_accum:
        return []
    return [
        ("scaledLearningRate2", rate / scaling, "lr", "loss_scaling"),
        ("scaledMomentum2", group["momentum"], "momentum"),
        ("scaledWeightDecay1", undamped * decay * scaling, "dampening", "weight_decay", "loss_scaling"),
    ]


def parameters(optimizer: Any, names: Dict[int, str], divisors: Divisors) -> Dict[str, torch.Tensor]:
    """Return ``ipu_param``: each weight's hyperparameters that may change, and the loss scaling."""
    hyperparameters: Dict[str, torch.Tensor] = {}
    constant = optimizer.variable_attrs.isConstant
    if not constant("loss_scaling") and divisors == Divisors():
        hyperparameters["lossScaling_FLOAT"] = torch.tensor(float(optimizer.loss_scaling))
    for group in optimizer.param_groups:
        rows = _hyperparameters(optimizer, group, divisors)
        for weight in group["params"]:
            if weight.requires_grad and id(weight) in names:
                for name, value, *attributes in rows:
                    if not all(map(constant, attributes)):
                        hyperparameters[f"{name}___specific___{names[id(weight)]}"] = torch.tensor(float(value))
    return hyperparameters
