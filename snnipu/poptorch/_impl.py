"""The class of a model while a ``trainingModel`` wraps it, and the functions that programs import from ``_impl``."""

import copyreg
import weakref
from typing import Any, Callable

import torch


class _WrappedModel:
    """A mixin that the class of a model has while a ``trainingModel`` wraps it."""

    _poptorch_executor: Callable[[], Any]

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return False: the weights on the host are always current."""
        return False

    def destroy(self) -> None:
        """Unwrap the model, which can then be wrapped again."""
        executor = type(self)._poptorch_executor()
        if executor is not None:
            executor.destroy()
        else:
            unwrapIfWrapped(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies and pickles have the user's class, so that they load without snnipu.
        function, arguments, *state = super().__reduce_ex__(protocol)  # type: ignore
        if arguments and arguments[0] is type(self):
            cls = type(self).__mro__[2]
            return (copyreg._reconstructor, (cls, object, None), *state)  # type: ignore[attr-defined]
        return (function, arguments, *state)


def is_wrapped(model: Any) -> bool:
    return isinstance(model, _WrappedModel)


def wrap(model: torch.nn.Module, executor: Any) -> None:
    cls = type(model)
    wrapped = type(f"Poptorch{cls.__name__}", (_WrappedModel, cls), {"_poptorch_executor": weakref.ref(executor)})
    wrapped.__module__ = cls.__module__
    model.__class__ = wrapped  # type: ignore[assignment]


def unwrapIfWrapped(model: Any) -> Any:
    """Give a wrapped model its original class again; return the model."""
    if is_wrapped(model):
        model.__class__ = type(model).__mro__[2]
    return model


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Do nothing: PopTorch changes the classes of a wrapped model's parameters and buffers, the host does not."""


rewrapModelIfNecessary = unwrapModelIfNecessary
