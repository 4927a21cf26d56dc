"""The optimizer of a wrapped model: the hyperparameters of the last ``setOptimizer``, one step per accumulation.

On an IPU the compiled program holds the optimizer. It reads the hyperparameters when the model is wrapped and at every
``setOptimizer``. Other changes, for instance by a learning rate scheduler, have no effect on it.
"""

import math
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from snnipu.poptorch import optim
from snnipu.poptorch._errors import Error, InvalidArgument, check_type
from snnipu.poptorch._logging import logger
from snnipu.poptorch._optimizer_state import Divisors, kind_of
from snnipu.poptorch.enums import MeanReductionStrategy, ReductionType
from snnipu.poptorch.options import Options

# An attribute of a torch.optim optimizer is a constant of the compiled model if it has this value, or always.
_ALWAYS = object()
_CONSTANT_AT: Dict[str, Any] = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "dampening": 0.0,
    "eps": 1e-8,
    "betas": _ALWAYS,
    "alpha": _ALWAYS,
    "nesterov": _ALWAYS,
}
# Arguments that choose how the compiled model stores and computes; all are its constants.
_COMPILED_IN = (
    "accum_type", "velocity_accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type",
    "use_combined_accum", "use_tf_variant", "bias_correction", "max_grad_norm",
)  # fmt: skip


def _accumulates_in_half(optimizer: Any) -> bool:
    half = getattr(optimizer, "accum_type", torch.float32) == torch.float16
    return half and not getattr(optimizer, "use_combined_accum", False)


class _Hyperparameters:
    """The hyperparameters of an optimizer at one moment."""

    def __init__(self, optimizer: Any) -> None:
        self.kind = kind_of(optimizer)
        self.groups: List[Dict[str, Any]] = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        self.loss_scaling = float(getattr(optimizer, "loss_scaling", 1.0))
        self.max_grad_norm = float(getattr(optimizer, "max_grad_norm", math.inf))
        self.compiled_in = {name: getattr(optimizer, name) for name in _COMPILED_IN if hasattr(optimizer, name)}
        variable = getattr(optimizer, "variable_attrs", None)
        self.constants: List[Set[str]] = [
            {name for name, value in group.items() if self._constant(variable, name, value)} for group in self.groups
        ]

    def _constant(self, variable: Any, name: str, value: Any) -> bool:
        if variable is not None:
            return bool(name in variable._allowed_attributes and variable.isConstant(name))
        if name not in _CONSTANT_AT:
            return False
        constant_value = 1e-2 if (self.kind, name) == ("AdamW", "weight_decay") else _CONSTANT_AT[name]
        return constant_value is _ALWAYS or bool(constant_value == value)

    def check_replaces(self, old: "_Hyperparameters") -> None:
        """Raise ``poptorch.Error`` if a model that was compiled with ``old`` cannot change to these."""
        if self.kind != old.kind:
            raise Error(f"setOptimizer: the model is compiled for {old.kind} and cannot change to {self.kind}")
        for name, before in old.compiled_in.items():
            if name in self.compiled_in and self.compiled_in[name] != before:
                raise InvalidArgument(
                    f"setOptimizer: {name} is a constant of the compiled model: {before} cannot become "
                    f"{self.compiled_in[name]}, the executable is already compiled."
                )
        if len(self.groups) != len(old.groups):
            raise Error(f"setOptimizer: the model is compiled for {len(old.groups)} groups, got {len(self.groups)}")
        for number, (new, before) in enumerate(zip(self.groups, old.groups)):
            for name in sorted(old.constants[number]):
                if name in new and new[name] != before[name]:
                    raise Error(
                        f"setOptimizer: {name} of group {number} is a constant of the compiled model: {before[name]} "
                        f"cannot become {new[name]}. Give it explicitly when creating the poptorch.optim optimizer, or "
                        f"call optimizer.variable_attrs.markAsVariable({name!r}), before compiling."
                    )


class OptimizerRunner:
    """A runner that steps the user's optimizer with the hyperparameters of the last ``set``."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        self._parameters = {id(parameter): name for name, parameter in model.named_parameters()}
        self._options = options
        self._warned: Set[Tuple[int, str]] = set()
        self.optimizer: Optional[Any] = None
        self._settings: Optional[_Hyperparameters] = None

    def set(self, optimizer: Any, compiled: bool) -> None:
        """Adopt an optimizer and its hyperparameters. An optimizer without a state takes over the previous state."""
        check_type(optimizer, "optimizer", torch.optim.Optimizer, "a torch.optim.Optimizer")
        settings = _Hyperparameters(optimizer)
        if not type(optimizer).__module__.startswith(("torch.optim", "snnipu.poptorch")):
            logger.warning(
                "The code of the optimizer subclass %s runs on the host only: an IPU runs PopART's %s.",
                type(optimizer).__name__,
                settings.kind,
            )
        if any(group.get("amsgrad") for group in settings.groups):
            raise InvalidArgument("optimizer: amsgrad=True is not supported")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._parameters:
                    raise InvalidArgument(
                        f"optimizer: it holds a parameter of shape {tuple(parameter.shape)} that is not the model's"
                    )
        self._choose_reduction(optimizer, compiled)
        if compiled and self._settings is not None:
            settings.check_replaces(self._settings)
            self._warn_of_new_attributes(settings)
            if optimizer is not self.optimizer and self.optimizer is not None and not optimizer.state:
                optimizer.state.update(self.optimizer.state)
        self.optimizer, self._settings = optimizer, settings
        if isinstance(optimizer, optim.Optimizer):
            optimizer._names, optimizer._divisors = self._parameters, self._divisors()
            optimizer._use_loaded()
        if compiled:
            self.note_compiled()
        self._warned.clear()

    def _choose_reduction(self, optimizer: Any, compiled: bool) -> None:
        """Switch to the running mean if gradients accumulate in half, as PopTorch does."""
        training = self._options.Training
        running = training.meanAccumulationAndReplicationReductionStrategy == MeanReductionStrategy.Running
        if running or not _accumulates_in_half(optimizer):
            return
        if compiled:
            raise InvalidArgument(
                "setOptimizer: Invalid optimizer: the new optimizer would require changing options.Training."
                "meanAccumulationAndReplicationReductionStrategy to poptorch.MeanReductionStrategy.Running (accum_type "
                "is torch.float16), but the executable is already compiled."
            )
        self._options._freeze(False)
        training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
        self._options._freeze()

    def _divisors(self) -> Divisors:
        training = self._options.Training
        post = training.meanAccumulationAndReplicationReductionStrategy == MeanReductionStrategy.Post
        if training.accumulation_and_replication_reduction_type != ReductionType.Mean or not post:
            return Divisors()
        return Divisors(training.gradient_accumulation, self._options.replication_factor)

    def _warn_of_new_attributes(self, settings: _Hyperparameters) -> None:
        assert self._settings is not None
        for number, (new, old) in enumerate(zip(settings.groups, self._settings.groups)):
            extra = sorted(set(new) - set(old))
            if extra and not self._options._relax_optimizer_checks:
                logger.warning(
                    "Group %d of the %s optimizer has attributes that PopTorch ignores: %s",
                    number,
                    settings.kind,
                    extra,
                )

    def note_compiled(self) -> None:
        """Record that a compiled model holds the optimizer's state."""
        if isinstance(self.optimizer, optim.Optimizer):
            self.optimizer._on_device = True

    @property
    def loss_scaling(self) -> float:
        return self._settings.loss_scaling if self._settings else 1.0

    def parameters(self) -> List[torch.nn.Parameter]:
        assert self.optimizer is not None
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def warn_of_unset_changes(self) -> None:
        """Warn once of each hyperparameter that changed since the last ``set``: the change has no effect."""
        assert self.optimizer is not None
        assert self._settings is not None
        for number, (group, taken) in enumerate(zip(self.optimizer.param_groups, self._settings.groups)):
            for name, value in taken.items():
                if name in group and group[name] is not value and group[name] != value:
                    key = (number, name)
                    if key not in self._warned:
                        self._warned.add(key)
                        logger.warning(
                            "The optimizer's %s is now %s but training continues with %s: call setOptimizer(optimizer) "
                            "on the poptorch model after changing it, or stepping a learning rate scheduler.",
                            name,
                            group[name],
                            value,
                        )

    @property
    def accumulates_in_half(self) -> bool:
        """True if gradients of several micro-batches are accumulated in float16."""
        return self._options.Training.gradient_accumulation > 1 and _accumulates_in_half(self.optimizer)

    def _warn_of_overflow(self, gradients: Dict[torch.nn.Parameter, torch.Tensor]) -> None:
        key = (-1, "loss_scaling")
        if self.loss_scaling == 1 or key in self._warned:
            return
        if not all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
            self._warned.add(key)
            logger.warning(
                "Gradients are infinite or NaN with a loss_scaling of %s: float16 holds at most 65504. The weights are "
                "updated nevertheless, as on an IPU. Choose a smaller loss_scaling.",
                self.loss_scaling,
            )

    def step(self, gradients: Dict[torch.nn.Parameter, torch.Tensor]) -> None:
        """Clip the float32 gradients and update the parameters. Half parameters are updated in float32."""
        assert self.optimizer is not None
        assert self._settings is not None
        if isinstance(self.optimizer, optim.Optimizer):
            self.optimizer._use_loaded()
        self._warn_of_overflow(gradients)
        _clip(gradients, self._settings.max_grad_norm)
        halves = {parameter: parameter.data for parameter in gradients if parameter.dtype == torch.float16}
        groups_before = [dict(group) for group in self.optimizer.param_groups]
        previous = {parameter: parameter.grad for parameter in self.parameters()}
        try:
            for group, taken in zip(self.optimizer.param_groups, self._settings.groups):
                group.update(taken)
            for parameter in previous:
                parameter.grad = None
            for parameter, gradient in gradients.items():
                if parameter in halves:
                    parameter.data = halves[parameter].float()
                    state = self.optimizer.state.get(parameter, {})
                    state.update({name: value.float() for name, value in state.items() if _is_half(value)})
                parameter.grad = gradient.to(parameter.dtype)
            self.optimizer.step()
        finally:
            for group, before in zip(self.optimizer.param_groups, groups_before):
                group.update(before)
            for parameter, half in halves.items():
                parameter.grad = None
                half.copy_(parameter.data)
                parameter.data = half
            for parameter, gradient_before in previous.items():
                parameter.grad = gradient_before


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float16


def _clip(gradients: Dict[torch.nn.Parameter, torch.Tensor], maximum: float) -> None:
    if math.isinf(maximum) or not gradients:
        return
    norm = float(torch.stack([gradient.float().norm() for gradient in gradients.values()]).norm())
    if norm > maximum:
        for gradient in gradients.values():
            gradient.mul_(maximum / norm)
