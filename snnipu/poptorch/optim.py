"""``poptorch.optim``: PyTorch's optimizers with PopTorch's extra arguments, and LAMB.

The update rules are PyTorch's (PopTorch user guide, "Optimizers"). PopTorch's extra arguments, in any optimizer that
takes them:

* ``loss_scaling`` (default 1) multiplies the loss before the backward pass and divides the gradients before the update.
* ``max_grad_norm`` (default: unlimited) scales the gradients of all parameters down to this common L2 norm.
* ``bias_correction=False`` (AdamW, LAMB) leaves out the correction of the averages in the first steps.
* ``use_tf_variant`` (RMSprop): the average of squared gradients starts at one, ``eps`` is added under the root and the
  learning rate is inside the momentum.
* ``max_weight_norm`` (LAMB) bounds the weight norm in the trust ratio; default 65500.
* ``accum_type``, ``velocity_accum_type``, ``first_order_momentum_accum_type`` and
  ``second_order_momentum_accum_type`` (``torch.float32`` or ``torch.float16``), ``velocity_scaling`` and
  ``use_combined_accum`` choose how an IPU stores accumulators. The host checks them and stores float32.

An argument that was not given is a constant of the compiled model. ``setOptimizer`` refuses to change a constant,
unless ``optimizer.variable_attrs.markAsVariable(name)`` was called before compiling.
"""

import inspect
import math
from functools import partial
from typing import Any, Callable, ClassVar, Dict, Iterable, Optional, Tuple

import torch

from snnipu.poptorch import _optimizer_state
from snnipu.poptorch._errors import NUMBER, InvalidArgument, InvalidUse, check_bool, check_type
from snnipu.poptorch._logging import logger
from snnipu.poptorch._optimizer_state import Divisors

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]


class VariableAttributes:
    """The attributes of an optimizer that may change after the model is compiled.

    Args:
        variable_attributes: the names that may change at first.
        allowed_attributes: all names; any other name raises ``poptorch.Error``.
    """

    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]) -> None:
        self._variable_attributes = set(variable_attributes)
        self._allowed_attributes = set(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Return True if ``attr`` may not change."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Forbid changes of ``attr`` after compiling."""
        self._variable_attributes.discard(self._known(attr))

    def markAsVariable(self, attr: str) -> None:
        """Allow changes of ``attr`` after compiling."""
        self._variable_attributes.add(self._known(attr))

    def _known(self, attr: str) -> str:
        if attr not in self._allowed_attributes:
            raise InvalidArgument(
                f"variable_attrs: unknown attribute {attr!r}, known: {sorted(self._allowed_attributes)}"
            )
        return attr


def _dtype(value: Optional[torch.dtype], name: str) -> torch.dtype:
    if value is None:
        return torch.float32
    if value not in (torch.float16, torch.float32):
        raise InvalidArgument(f"{name}: expected torch.float32 or torch.float16, got {value!r}")
    return value


def _positive(value: Optional[float], name: str, default: float) -> float:
    if value is None:
        return default
    if not check_type(value, name, NUMBER, "a number") > 0:
        raise InvalidArgument(f"{name}: expected a number above 0, got {value}")
    return float(value)


def _flag(value: Optional[bool], name: str, default: bool) -> bool:
    return default if value is None else check_bool(value, name)


# The check of each of PopTorch's arguments; None gives the default.
_EXTRAS: Dict[str, Callable[[Any, str], Any]] = {
    "loss_scaling": partial(_positive, default=1.0),
    "velocity_scaling": partial(_positive, default=1.0),
    "max_grad_norm": partial(_positive, default=math.inf),
    "bias_correction": partial(_flag, default=True),
    "use_combined_accum": partial(_flag, default=False),
    "use_tf_variant": partial(_flag, default=False),
    "accum_type": _dtype,
    "velocity_accum_type": _dtype,
    "first_order_momentum_accum_type": _dtype,
    "second_order_momentum_accum_type": _dtype,
}
_VARIABLE_EXTRAS = ("loss_scaling", "velocity_scaling")


class Optimizer(torch.optim.Optimizer):
    """PopTorch's additions to PyTorch's optimizers: extra arguments, constants and IPU states."""

    # PopTorch's arguments, in addition to those of PyTorch's optimizer: the keys of ``_EXTRAS``.
    _arguments: ClassVar[Tuple[str, ...]] = ()
    # True if a compiled model holds this optimizer.
    _on_device = False

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        """Store PopTorch's arguments as attributes and pass the others to PyTorch's optimizer.

        Args:
            params: the parameters, or groups of parameters.
            args, kwargs: arguments of PyTorch's optimizer, and by name PopTorch's; None stands for the default.
        """
        extras = {name: _EXTRAS[name](kwargs.get(name), name) for name in self._arguments}
        pytorch_kwargs = {name: value for name, value in kwargs.items() if name not in extras}
        try:
            bound = inspect.signature(super().__init__).bind(params, *args, **pytorch_kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        given = {name: value for name, value in bound.arguments.items() if value is not None}
        super().__init__(**given)
        scaling = extras.pop("velocity_scaling", 1.0)
        if extras.get("use_combined_accum"):  # each group has its velocity scaling
            self.defaults["velocity_scaling"] = scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", scaling)
        elif kwargs.get("velocity_scaling") is not None:
            logger.warning("SGD: velocity_scaling has no effect without use_combined_accum=True.")
        self.__dict__.update(extras)
        variable = [*given, *(name for name in _VARIABLE_EXTRAS if kwargs.get(name) is not None)]
        self.variable_attrs = VariableAttributes(variable, [*self.defaults, "loss_scaling"])

    # The trained model's weight names by id, and the divisors of its mean; None: no model.
    _names: Optional[Dict[int, str]] = None
    _divisors = Divisors()
    # Loaded and not used yet: ipu_state, ipu_param and PyTorch's state before loading.
    _loaded: Optional[Tuple[Dict[str, Any], Dict[str, Any], Dict[Any, Any]]] = None

    def state_dict(self) -> Dict[str, Any]:
        """Return PyTorch's state and PopTorch's ``ipu_state`` and ``ipu_param``, which are None before compiling.

        ``ipu_state`` and ``ipu_param`` have PopART's names (``Accl1___fc.weight``,
        ``learningRate___specific___fc.weight``), so PopTorch on an IPU can load them.
        """
        state = torch.optim.Optimizer.state_dict(self)
        if self._loaded is not None:
            return {"ipu_state": dict(self._loaded[0]), "ipu_param": dict(self._loaded[1]), **state}
        if self._names is None or not (self._on_device or state["state"]):
            return {"ipu_state": None, "ipu_param": None, **state}
        return {
            "ipu_state": _optimizer_state.read(self, self._names),
            "ipu_param": _optimizer_state.parameters(self, self._names, self._divisors),
            **state,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`, saved here or by PopTorch on an IPU.

        ``ipu_state``, if present, replaces PyTorch's state; the hyperparameters are read from ``param_groups``.

        Args:
            state: the state to load.

        Raises:
            poptorch.Error: the state is empty, is a plain PyTorch state, or has an entry with an unknown name. An entry
                that does not fit the model's weights raises when the model is wrapped, or at the next step.
        """
        if not state:
            raise InvalidUse("Cannot load optimizer state dictionary because it is empty.")
        if "ipu_state" not in state or "ipu_param" not in state:
            raise InvalidUse(
                "Only IPU optimizer states can be loaded onto the IPU. load_state_dict: this is not the state of a "
                "poptorch.optim optimizer, it has no 'ipu_state' and 'ipu_param'"
            )
        ipu_state, ipu_param = state["ipu_state"], state["ipu_param"]
        if ipu_state is not None:
            _optimizer_state.check_names(ipu_state, ipu_param or {})
        before = dict(self.state)
        pytorch = {name: value for name, value in state.items() if name not in ("ipu_state", "ipu_param")}
        torch.optim.Optimizer.load_state_dict(self, pytorch)
        self._loaded = None if ipu_state is None else (dict(ipu_state), dict(ipu_param or {}), before)

    def _use_loaded(self) -> None:
        """Give the weights the loaded ``ipu_state``, once a model has given their names."""
        if self._loaded is None or self._names is None:
            return
        ipu_state, _, before = self._loaded
        _optimizer_state.write(self, self._names, ipu_state, {**before, **self.state})
        self._loaded = None

    def has_state(self) -> bool:
        """Return True if a step was taken or a state was loaded."""
        return bool(self.state) or self._loaded is not None

    def __getstate__(self) -> Dict[str, Any]:
        state: Dict[str, Any] = torch.optim.Optimizer.__getstate__(self)
        names = ("variable_attrs", *self._arguments)
        return {**state, **{name: self.__dict__[name] for name in names if name in self.__dict__}}


_ADAM_TYPES = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


class SGD(Optimizer, torch.optim.SGD):
    """``torch.optim.SGD`` with PopTorch's arguments, which the docstring of ``poptorch.optim`` describes."""

    _arguments = (
        "loss_scaling",
        "velocity_scaling",
        "use_combined_accum",
        "accum_type",
        "velocity_accum_type",
        "max_grad_norm",
    )

    def __init__(self, params: Iterable[Any], lr: float, *args: Any, **kwargs: Any) -> None:  # lr has no default here
        super().__init__(params, lr, *args, **kwargs)


class Adam(Optimizer, torch.optim.Adam):
    """``torch.optim.Adam`` with PopTorch's arguments (see ``poptorch.optim``); ``amsgrad`` is not supported."""

    _arguments = ("loss_scaling", *_ADAM_TYPES, "max_grad_norm")


class AdamW(Optimizer, torch.optim.AdamW):
    """``torch.optim.AdamW`` with PopTorch's arguments (see ``poptorch.optim``); ``amsgrad`` is not supported."""

    _arguments = ("loss_scaling", "bias_correction", *_ADAM_TYPES, "max_grad_norm")
    bias_correction: bool

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update all parameters that have a gradient; return the loss of ``closure``, if given."""
        if self.bias_correction:
            return torch.optim.AdamW.step(self, closure)
        return _step(self, closure, _uncorrected_adamw)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """``torch.optim.RMSprop`` with PopTorch's arguments, which the docstring of ``poptorch.optim`` describes."""

    _arguments = ("loss_scaling", *_ADAM_TYPES, "use_tf_variant")
    use_tf_variant: bool

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update all parameters that have a gradient; return the loss of ``closure``, if given."""
        if not self.use_tf_variant:
            return torch.optim.RMSprop.step(self, closure)
        return _step(self, closure, _tensorflow_rmsprop)


class _PlainLAMB(torch.optim.Optimizer):
    """The hyperparameters of LAMB, which PyTorch does not have."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        max_weight_norm: float = 65500.0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise InvalidArgument(f"{name}: expected a number of at least 0, got {value}")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InvalidArgument(f"betas: expected two numbers, at least 0 and below 1, got {betas}")
        _positive(max_weight_norm, "max_weight_norm", 1.0)
        hyperparameters = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**hyperparameters, "max_weight_norm": max_weight_norm})


class LAMB(Optimizer, _PlainLAMB):
    """Layer-wise adaptive moments (You et al., "Large Batch Optimization for Deep Learning", arXiv:1904.00962).

    For each parameter w with gradient g, and Adam's running averages m of g and v of g²:
    ``u = m / (sqrt(v) + eps) + weight_decay * w``, ``w -= lr * min(|w|, max_weight_norm) / |u| * u``. The ratio of
    norms is 1 if either norm is 0. Unless ``bias_correction=False``, m and v are corrected for their start at 0.

    Args:
        params: the parameters, or groups of parameters.
        lr: learning rate, default 1e-3.
        betas: decay factors of m and v, default (0.9, 0.999).
        eps: added to the root of v, default 1e-8.
        weight_decay: default 1e-2.
        bias_correction, loss_scaling, max_weight_norm, accum_type, first_order_momentum_accum_type,
            second_order_momentum_accum_type: see ``poptorch.optim``.
    """

    _arguments = ("bias_correction", "loss_scaling", *_ADAM_TYPES)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update all parameters that have a gradient; return the loss of ``closure``, if given."""
        return _step(self, closure, _lamb)


_Update = Callable[[Any, Dict[str, Any], torch.Tensor, torch.Tensor], None]


def _step(optimizer: Any, closure: Optional[Callable[[], Any]], update: _Update) -> Any:
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = -parameter.grad if group.get("maximize") else parameter.grad
                    update(optimizer, group, parameter, gradient)
    return loss


def _moments(optimizer: Any, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> Any:
    """Update Adam's running averages; return those of the gradient and its square, and the number of steps."""
    state = optimizer.state[parameter]
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    state["step"] += 1
    beta1, beta2 = group["betas"]
    state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return state["exp_avg"], state["exp_avg_sq"], float(state["step"])


def _uncorrected_adamw(optimizer: Any, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    mean, square, _ = _moments(optimizer, group, parameter, gradient)
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-group["lr"])


def _lamb(optimizer: Any, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    mean, square, steps = _moments(optimizer, group, parameter, gradient)
    if optimizer.bias_correction:
        beta1, beta2 = group["betas"]
        mean, square = mean / (1 - beta1**steps), square / (1 - beta2**steps)
    direction = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
    weight_norm = float(parameter.norm().clamp(max=group["max_weight_norm"]))
    direction_norm = float(direction.norm())
    trust = weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0
    parameter.add_(direction, alpha=-group["lr"] * trust)


def _tensorflow_rmsprop(optimizer: Any, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    state = optimizer.state[parameter]
    for name, start in (("square_avg", 1.0), ("grad_avg", 0.0), ("momentum_buffer", 0.0)):
        if name not in state:  # an IPU writes only the accumulators that it uses
            state[name] = torch.full_like(parameter, start)
    if group["weight_decay"]:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    square, alpha = state["square_avg"], group["alpha"]
    square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
    variance = square
    if group["centered"]:
        state["grad_avg"].mul_(alpha).add_(gradient, alpha=1 - alpha)
        variance = square - state["grad_avg"] ** 2
    change = group["lr"] * gradient / (variance + group["eps"]).sqrt()
    parameter.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(change))
