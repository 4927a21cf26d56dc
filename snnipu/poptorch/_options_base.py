"""The base of all option groups: a checked dictionary that freezes on first use."""

import copy
from typing import Any, Callable, ClassVar, Dict, List

from snnipu.poptorch._errors import FrozenOptions, InvalidArgument, UnknownName, suggestion


class OptionsDict:
    """Named values that only existing names and accepted values can change.

    Values read and write as attributes (``options.device_iterations``); what a name accepts is in ``_validators``.
    Raises ``poptorch.Error`` naming the option for an unknown name, a value outside its range, and, once a model or a
    data loader has used the options, for every change.
    """

    _validators: ClassVar[Dict[str, Callable[[Any], Any]]] = {}

    def __init__(self, **default_values: Any) -> None:
        self.__dict__["_is_frozen"] = False
        self.__dict__["_values"] = dict(default_values)

    def set(self, **values: Any) -> None:
        """Change existing options."""
        self.checkIsFrozen()
        for name, value in values.items():
            if name not in self._values:
                raise InvalidArgument(
                    f"Options: there is no option {name!r}{suggestion(name, self._values)} "
                    f"Known here: {', '.join(sorted(self._values))}"
                )
            self._values[name] = self._checked(name, value)

    def createOrSet(self, **values: Any) -> None:
        """Change options, or add those that are not there yet."""
        self.checkIsFrozen()
        for name, value in values.items():
            self._values[name] = self._checked(name, value)

    def exists(self, option: str) -> bool:
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        self.checkIsFrozen()
        self._values.pop(option, None)

    def checkIsFrozen(self) -> None:
        """Raise ``poptorch.Error`` where the options have been used already."""
        if self.__dict__.get("_is_frozen"):
            raise FrozenOptions(
                "these options are frozen: a model or a DataLoader uses them. Change a copy (options.clone())."
            )

    def toDict(self) -> Dict[str, Any]:
        """The options as a plain dictionary."""
        return dict(self._values)

    def _checked(self, name: str, value: Any) -> Any:
        validator = self._validators.get(name)
        return value if validator is None else validator(value)

    def _groups(self) -> List["OptionsDict"]:
        return [value for value in self.__dict__.values() if isinstance(value, OptionsDict)]

    def _set_frozen(self, frozen: bool) -> None:
        self.__dict__["_is_frozen"] = frozen
        for group in self._groups():
            group._set_frozen(frozen)

    def _freeze(self) -> None:
        self._set_frozen(True)

    def _unfreeze(self) -> None:
        self._set_frozen(False)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "OptionsDict":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in self.__dict__.items():
            copied.__dict__[name] = copy.deepcopy(value, memo)
        copied.__dict__["_is_frozen"] = False
        return copied

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        known = [*values, *(public for public in dir(type(self)) if not public.startswith("_"))]
        raise UnknownName(f"Options: there is no option {name!r}{suggestion(name, known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            self.checkIsFrozen()
            object.__setattr__(self, name, value)
        else:
            self.set(**{name: value})

    def __call__(self, option: str) -> Any:
        return getattr(self, option)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"
