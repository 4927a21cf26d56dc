"""Optimizer states by PopART's names, so that checkpoints go from this host to IPUs and back.

``ipu_state`` holds one tensor a weight and accumulator, ``ipu_param`` the hyperparameters that a compiled model does
not hold as constants:

=========  ==============================================================================================
optimizer  ``ipu_state``, each followed by ``___`` and the weight's name
=========  ==============================================================================================
SGD        ``Accl1``: velocity * loss scaling; with ``use_combined_accum`` ``Accl``, see :func:`_combined`
Adam(W)    ``Accl1``: mean of gradients, ``Accl2``: of their squares, ``Step``: steps (with bias correction)
LAMB       as Adam
RMSprop    ``Accl1``: mean of squares, ``Accl2``: of gradients (centered), ``Accl3``: momentum
=========  ==============================================================================================
"""

import math
from typing import Any, Dict, List, NamedTuple, Tuple

import torch

from snnipu.poptorch._errors import InvalidArgument, InvalidType

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
    """What the mean divides by when it divides last: accumulation and replication."""

    accumulation: int = 1
    replication: int = 1


def _weight_of(name: str) -> Tuple[str, str]:
    kind, _, weight = name.partition("___")
    return kind, weight


def check_names(state: Dict[str, Any], parameters: Dict[str, Any]) -> None:
    """Raises ``poptorch.Error`` for a name that no optimizer of PopTorch's has."""
    for name, value in state.items():
        kind, weight = _weight_of(name)
        if kind not in _STATE or not weight:
            raise InvalidArgument(
                f"load_state_dict: unknown entry {name!r} of 'ipu_state', expected "
                + ", ".join(f"{known}___<weight>" for known in _STATE)
            )
        if not isinstance(value, torch.Tensor):
            raise InvalidType(f"load_state_dict: {name} of 'ipu_state' must be a torch.Tensor, got {value!r}")
    for name in parameters:
        kind, scope = _weight_of(name)
        if kind.startswith("lossScaling_"):
            continue
        if kind not in _PARAMETERS or not scope.startswith(("specific___", "default___")):
            raise InvalidArgument(f"load_state_dict: unknown entry {name!r} of 'ipu_param'")


def _kind(optimizer: Any) -> str:
    names = [base.__name__ for base in type(optimizer).__mro__]
    return next(name for name in ("SGD", "RMSprop", "LAMB", "AdamW", "Adam") if name in names)


class _Slot(NamedTuple):
    """One accumulator: PopART's name, PyTorch's, and the type that an IPU stores it in."""

    ipu: str
    host: str
    dtype: torch.dtype


def _may_be(optimizer: Any, group: Dict[str, Any], name: str) -> bool:
    """Whether a momentum needs an accumulator: it is above 0, or may come to be."""
    return bool(group[name]) or not optimizer.variable_attrs.isConstant(name)


def _slots(optimizer: Any, group: Dict[str, Any]) -> List[_Slot]:
    kind = _kind(optimizer)
    if kind == "SGD":
        if not _may_be(optimizer, group, "momentum"):
            return []
        name = "Accl" if optimizer.use_combined_accum else "Accl1"
        dtype = torch.float32 if optimizer.use_combined_accum else optimizer.velocity_accum_type
        return [_Slot(name, "momentum_buffer", dtype)]
    first, second = optimizer.first_order_momentum_accum_type, optimizer.second_order_momentum_accum_type
    if kind == "RMSprop":
        slots = [_Slot("Accl1", "square_avg", first)]
        if group["centered"]:
            slots.append(_Slot("Accl2", "grad_avg", second))
        if _may_be(optimizer, group, "momentum"):
            slots.append(_Slot("Accl3", "momentum_buffer", second))
        return slots
    slots = [_Slot("Accl1", "exp_avg", first), _Slot("Accl2", "exp_avg_sq", second)]
    if getattr(optimizer, "bias_correction", True):
        slots.append(_Slot("Step", "step", torch.float32))
    return slots


def _start(optimizer: Any, slot: _Slot, weight: torch.Tensor) -> torch.Tensor:
    if slot.ipu == "Step":
        return torch.tensor(0.0)
    ones = slot.host == "square_avg" and getattr(optimizer, "use_tf_variant", False)
    return (torch.ones_like if ones else torch.zeros_like)(weight, dtype=torch.float32)


def _combined(group: Dict[str, Any], weight: torch.Tensor) -> torch.Tensor:
    """What ``Accl`` has beside momentum * velocity: PopART adds the next step's weight decay after each step."""
    return (1 - group["dampening"]) * group["weight_decay"] * weight.detach().float()


def read(optimizer: Any, names: Dict[int, str]) -> Dict[str, torch.Tensor]:
    """``ipu_state`` of an optimizer whose weights have these names, by id."""
    made: Dict[str, torch.Tensor] = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not weight.requires_grad or id(weight) not in names:
                continue
            for slot in _slots(optimizer, group):
                value = optimizer.state.get(weight, {}).get(slot.host)
                value = _start(optimizer, slot, weight) if value is None else torch.as_tensor(value).detach().float()
                if slot.ipu == "Accl":
                    value = (group["momentum"] * value + _combined(group, weight)) * group["velocity_scaling"]
                elif _kind(optimizer) == "SGD":
                    value = value * optimizer.loss_scaling
                made[f"{slot.ipu}___{names[id(weight)]}"] = value.to(slot.dtype, copy=True)
    return made


def write(optimizer: Any, names: Dict[int, str], state: Dict[str, torch.Tensor], old: Dict[Any, Any]) -> None:
    """Make ``state``, an ``ipu_state``, the optimizer's; what it lacks is taken from ``old``, the state before.

    Raises ``poptorch.Error`` for a weight that the model does not have, an accumulator that the optimizer does not
    have, and another shape than the weight's.
    """
    left = {name for name in state if not name.startswith("Accum___")}  # those are zero between steps
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight), "")
            before = old.get(weight, {})
            entry: Dict[str, Any] = {}
            given = False
            for slot in _slots(optimizer, group):
                key = f"{slot.ipu}___{name}"
                if key not in state:
                    entry[slot.host] = before.get(slot.host, _start(optimizer, slot, weight))
                    continue
                left.discard(key)
                given = True
                entry[slot.host] = _host_value(optimizer, group, slot, weight, key, state[key])
            if given:
                if _kind(optimizer) != "SGD":
                    entry.setdefault("step", before.get("step", torch.tensor(0.0)))
                optimizer.state[weight] = entry
            elif before:
                optimizer.state[weight] = before
    if left:
        raise InvalidArgument(
            f"load_state_dict: {sorted(left)} of 'ipu_state' fit no weight and accumulator of this "
            f"{type(optimizer).__name__} and its model"
        )


def _host_value(
    optimizer: Any, group: Dict[str, Any], slot: _Slot, weight: torch.Tensor, key: str, value: torch.Tensor
) -> torch.Tensor:
    shape = () if slot.ipu == "Step" else tuple(weight.shape)
    if tuple(value.shape) != shape and not (slot.ipu == "Step" and value.numel() == 1):
        raise InvalidArgument(f"load_state_dict: {key} must have shape {shape}, got {tuple(value.shape)}")
    value = value.detach().float().clone().reshape(shape)
    if slot.ipu == "Accl":
        if not group["momentum"]:
            return torch.zeros_like(value)
        return (value / group["velocity_scaling"] - _combined(group, weight)) / group["momentum"]
    if _kind(optimizer) == "SGD":
        return value / optimizer.loss_scaling
    return value


def parameters(optimizer: Any, names: Dict[int, str], divisors: Divisors) -> Dict[str, torch.Tensor]:
    """``ipu_param``: the hyperparameters that may change, for each weight, and the loss scaling."""
    made: Dict[str, torch.Tensor] = {}
    constant = optimizer.variable_attrs.isConstant
    kind = _kind(optimizer)
    scaling = optimizer.loss_scaling
    if not constant("loss_scaling") and divisors == Divisors():
        made["lossScaling_FLOAT"] = torch.tensor(float(scaling))
    for group in optimizer.param_groups:
        values: Dict[str, Tuple[float, Tuple[str, ...]]] = {}
        rate, decay = group["lr"], group["weight_decay"]
        if kind == "SGD":
            kept = 1 - group["dampening"]
            if not _may_be(optimizer, group, "momentum"):
                divisor = scaling * math.prod(divisors)
                values["scaledLearningRate0"] = (rate * kept / divisor, ("lr", "loss_scaling", "dampening"))
                values["weightDecayScaleFactor0"] = (1 - rate * kept * decay, ("lr", "weight_decay", "dampening"))
            elif not optimizer.use_combined_accum:
                values["scaledLearningRate2"] = (rate / scaling, ("lr", "loss_scaling"))
                values["scaledMomentum2"] = (group["momentum"], ("momentum",))
                values["scaledWeightDecay1"] = (kept * decay * scaling, ("dampening", "weight_decay", "loss_scaling"))
        else:
            values["learningRate"], values["weightDecay"] = (rate, ("lr",)), (decay, ("weight_decay",))
            if kind == "RMSprop":
                values["adaptiveAlpha"] = (group["alpha"], ("alpha",))
                values["adaptiveMomentum"] = (group["momentum"], ("momentum",))
                values["adaptiveEps"] = (group["eps"], ("eps",))
            else:
                values["adamBeta1"] = (group["betas"][0], ("betas",))
                values["adamBeta2"] = (group["betas"][1], ("betas",))
                values["adamEps"] = (group["eps"], ("eps",))
            if kind == "LAMB":
                values["maxWeightNorm"] = (group["max_weight_norm"], ("max_weight_norm",))
        for weight in group["params"]:
            if weight.requires_grad and id(weight) in names:
                for name, (value, attributes) in values.items():
                    if not all(constant(attribute) for attribute in attributes):
                        made[f"{name}___specific___{names[id(weight)]}"] = torch.tensor(float(value))
    return made
