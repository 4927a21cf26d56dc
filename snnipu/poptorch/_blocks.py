"""Annotations of a model's code: blocks (layers that run on one IPU), names, attributes and convolution groups.

Annotations do not change results. The host checks their arguments; the execution strategy records the blocks.
"""

import contextlib
from typing import Any, Callable, Dict, Optional, TypeVar

import torch

from snnipu.poptorch import _errors
from snnipu.poptorch._errors import InvalidArgument
from snnipu.poptorch._execution import StageManager
from snnipu.poptorch._options_base import Check, OptionRow, OptionsDict, member_of
from snnipu.poptorch.enums import MultiConvPlanType

_F = TypeVar("_F", bound=Callable[..., Any])


def _check_ids(function: str, user_id: Optional[str], ipu_id: Optional[int]) -> None:
    if user_id is not None:  # PopTorch takes a number as well
        _errors.check_type(user_id, f"{function}: user_id", (str, int), "a str")
    if ipu_id is not None:
        _errors.check_int(ipu_id, f"{function}: ipu_id")


class Block(torch.nn.Module):
    """A context that marks the layers called inside it: ``with poptorch.Block("name", ipu_id=0):``.

    Source: PopTorch user guide, "Annotations".

    Args:
        user_id: the block's name; None: the next number.
        ipu_id: the number of the IPU that runs the block; None: the execution strategy decides.
    """

    # The strategy of the wrapper that runs forward; None outside of forward, where blocks have no effect.
    _manager: Optional[StageManager] = None

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        super().__init__()
        _check_ids("Block", user_id, ipu_id)
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Restart the numbers of blocks without an id at 0; call it first in ``forward``."""
        if Block._manager is not None:
            Block._manager.resetAutoId()

    @staticmethod
    def start(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        """Begin a block that lasts until the next block begins.

        Args:
            user_id, ipu_id: as in :class:`Block`.
        """
        _check_ids("Block.start", user_id, ipu_id)
        if Block._manager is not None:
            Block._manager.beginStage(user_id, ipu_id)

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, *exc_info: Any) -> None:
        if Block._manager is not None:
            Block._manager.endStage()


class _BlockHook:
    """The forward pre-hook that :func:`BeginBlock` adds to a module."""

    def __init__(self, user_id: Optional[str], ipu_id: Optional[int]) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        if Block._manager is not None and self._user_id is None:
            self._user_id = Block._manager.nextAutoId()  # all runs of the module belong to one block
        Block.start(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


def BeginBlock(layer_to_call: Any, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> Any:
    """Begin a block whenever a layer runs; return the module itself, or a wrapper of a function.

    Args:
        layer_to_call: a module or function. A module that begins a block already raises ``poptorch.Error``.
        user_id, ipu_id: as in :class:`Block`.
    """
    _check_ids("BeginBlock", user_id, ipu_id)
    if not isinstance(layer_to_call, torch.nn.Module):
        _errors.check_type(layer_to_call, "BeginBlock: layer_to_call", Callable, "a torch.nn.Module or a function")
        return BlockFunction(user_id, ipu_id)(layer_to_call)
    if any(isinstance(hook, _BlockHook) for hook in layer_to_call._forward_pre_hooks.values()):
        raise InvalidArgument("BeginBlock: the module begins a block already; removeBlocks(module) removes it")
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> Callable[[_F], _F]:
    """Return a decorator that makes each call of a function a block.

    Args:
        user_id, ipu_id: as in :class:`Block`.
    """
    _check_ids("BlockFunction", user_id, ipu_id)

    def decorate(function: _F) -> _F:
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return in_block  # type: ignore[return-value]

    return decorate


def removeBlocks(module: torch.nn.Module) -> None:
    """Remove the blocks that :func:`BeginBlock` added to a module and its submodules."""
    for child in _errors.check_module(module, "removeBlocks: module").modules():
        for key in [key for key, hook in child._forward_pre_hooks.items() if isinstance(hook, _BlockHook)]:
            del child._forward_pre_hooks[key]


def module_repr(module: torch.nn.Module) -> str:
    """Return the text of a module, followed by the blocks that it and its submodules begin."""
    lines = repr(module).split("\n")
    blocks = [
        f"{name or '(the module itself)'}: {hook!r}"
        for name, child in module.named_modules()
        for hook in child._forward_pre_hooks.values()
        if isinstance(hook, _BlockHook)
    ]
    return "\n".join([*lines, *blocks])


class Attribute(contextlib.nullcontext):  # type: ignore[type-arg]
    """A context that gives operators PopART attributes; no effect on the host.

    Args:
        kwargs: ``name={key: value}`` for each attribute.
    """

    def __init__(self, **kwargs: Dict[str, Any]) -> None:
        for name, values in kwargs.items():
            _errors.check_type(values, f"Attribute: {name}", dict, "a dict")
        super().__init__()


class NameScope(contextlib.nullcontext):  # type: ignore[type-arg]
    """A context that prefixes the names of operators; no effect on the host.

    Args:
        name: the prefix.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = _errors.check_str(name, "NameScope: name")


def _check_partials(value: Any, name: str) -> Any:
    if value not in (torch.float32, torch.float16):
        raise InvalidArgument(f"{name}: Invalid partials types. Expected torch.float or torch.half, got {value!r}")
    return value


def _each(check: Check) -> Check:
    """Return the check of one value for all convolutions, or of a list with one value per convolution."""

    def check_values(value: Any, name: str) -> Any:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise InvalidArgument(f"{name}: expected at least one value")
        return tuple(check(element, name) for element in values if element is not None)

    return check_values


class MultiConv(OptionsDict):
    """A context whose convolutions an IPU plans together; no effect on the host.

    Every setter returns self, and takes one value for all convolutions or a list with one value per convolution.
    """

    _active = False
    _prefix = "MultiConv."
    _table = tuple(
        OptionRow(name, "value", doc=doc, convert=_each(check), stored_as=name)
        for name, check, doc in (
            (
                "availableMemoryProportions",
                _errors.check_fraction,
                "Set the share of tile memory that a convolution may use for temporary data, between 0 and 1.",
            ),
            ("partialsTypes", _check_partials, "Choose the format of partial sums: ``torch.float`` or ``torch.half``."),
            ("enableConvDithering", _errors.check_bool, "Spread each convolution over tiles."),
            ("planType", member_of(MultiConvPlanType), "Run the convolutions in parallel or one after another."),
            ("perConvReservedTiles", _errors.check_int, "Set the number of tiles to reserve for each convolution."),
            (
                "cycleBackOff",
                _errors.check_fraction,
                "Set PopLibs' ``cycleBackOff``: the share of cycles to give up for memory, between 0 and 1.",
            ),
        )
    )

    def __enter__(self) -> None:
        if MultiConv._active:
            raise InvalidArgument("Nested poptorch.MultiConv is not supported")
        MultiConv._active = True

    def __exit__(self, *exc_info: Any) -> None:
        MultiConv._active = False
