"""The class of a model while a ``trainingModel`` wraps it, and what programs take from PopTorch's ``_impl``."""

import copyreg
import weakref
from typing import Any, Callable

import torch


class _WrappedModel:
    """Mixed into the class of a model while a ``trainingModel`` wraps it."""

    _poptorch_executor: Callable[[], Any]

    def copyWeightsToHostIfNeeded(self) -> bool:
        """False: the weights on the host are always the current ones."""
        return False

    def destroy(self) -> None:
        """Undo the wrapping; the model can be wrapped again."""
        executor = type(self)._poptorch_executor()
        if executor is not None:
            executor.destroy()
        else:
            unwrapIfWrapped(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies and pickles are of the class that the user wrote, and load without snnipu.
        function, arguments, *rest = super().__reduce_ex__(protocol)  # type: ignore
        if arguments and arguments[0] is type(self):
            cls = type(self).__mro__[2]
            return (copyreg._reconstructor, (cls, object, None), *rest)  # type: ignore[attr-defined]
        return (function, arguments, *rest)


def is_wrapped(model: Any) -> bool:
    return isinstance(model, _WrappedModel)


def wrap(model: torch.nn.Module, executor: Any) -> None:
    cls = type(model)
    wrapped = type(f"Poptorch{cls.__name__}", (_WrappedModel, cls), {"_poptorch_executor": weakref.ref(executor)})
    wrapped.__module__ = cls.__module__
    model.__class__ = wrapped  # type: ignore[assignment]


def unwrapIfWrapped(model: Any) -> Any:
    """``model``, of the class that the user wrote again."""
    if is_wrapped(model):
        model.__class__ = type(model).__mro__[2]
    return model


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Nothing to do: PopTorch gives parameters and buffers of a wrapped model classes of its own, a host does not."""


rewrapModelIfNecessary = unwrapModelIfNecessary
