"""The base class of all option groups: a checked dictionary, frozen on first use, with methods made from a table."""

import copy
from inspect import Parameter, Signature
from typing import Any, Callable, ClassVar, Dict, NamedTuple, Tuple

from snnipu.poptorch._errors import FrozenOptions, InvalidArgument, UnknownName, check_enum, check_int, suggestion

ABSENT = Parameter.empty
Check = Callable[[Any, str], Any]  # (value, the option's name in errors) -> the value to store


def unchecked(value: Any, name: str) -> Any:
    return value


class OptionRow(NamedTuple):
    """An option: a row in the table of a group.

    Each row adds a method to its group, unless the group defines a method of that name or the name is no identifier.
    """

    name: str  # the method's name, also used in errors
    argument: str
    check: Check = unchecked  # checks the method's argument, and a value assigned to the attribute
    default: Any = ABSENT  # the value before any call; without it, the attribute exists only after a call
    doc: str = "Check and store the value, which has no effect on the host."
    convert: Check = unchecked  # converts the method's argument before ``check``
    call_default: Any = ABSENT  # default of the method's argument
    stored_as: str = ""  # attribute, if not ``argument``; a name with a leading "_" is not in repr and toDict
    popart: str = ""  # PopART's session option that stores the value, instead of the group

    @property
    def place(self) -> str:
        return self.stored_as or self.argument


def at_least(minimum: int) -> Check:
    return lambda value, name: check_int(value, name, minimum)


def member_of(enum_type: Any) -> Check:
    return lambda value, name: check_enum(value, name, enum_type)


class OptionsDict:
    """A group of named options with checked values.

    Options read and write as attributes (``options.device_iterations``). ``_table`` holds the check of each option. An
    unknown name or a value outside its range raises ``poptorch.Error`` naming the option. So does every change after a
    model or a data loader has used the options.
    """

    _prefix: ClassVar[str] = ""  # precedes the options' names in errors
    _table: ClassVar[Tuple[OptionRow, ...]] = ()

    def __init_subclass__(cls) -> None:
        for row in vars(cls).get("_table", ()):
            if row.name.isidentifier() and row.name not in vars(cls):
                setattr(cls, row.name, _method(row, cls))

    def __init__(self, **groups: "OptionsDict") -> None:
        self.__dict__.update(groups, _is_frozen=False, _values={})
        for row in self._table:
            if row.default is not ABSENT:
                self._store(row.place, copy.deepcopy(row.default))

    def set(self, **values: Any) -> None:
        """Change existing options."""
        self.checkIsFrozen()
        for name, value in values.items():
            if name not in self._values:
                raise InvalidArgument(
                    f"Options: there is no option {name!r}{suggestion(name, self._values)} "
                    f"Known here: {', '.join(sorted(self._values))}"
                )
            self.createOrSet(**{name: value})

    def createOrSet(self, **values: Any) -> None:
        """Change options, and add options that do not exist yet."""
        self.checkIsFrozen()
        for name, value in values.items():
            for row in self._table:
                if row.place == name:
                    value = row.check(value, self._prefix + row.name)
            self._store(name, value)

    def _store(self, name: str, value: Any) -> None:
        (self.__dict__ if name.startswith("_") else self._values)[name] = value

    def exists(self, option: str) -> bool:
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        self.checkIsFrozen()
        self._values.pop(option, None)

    def checkIsFrozen(self) -> None:
        """Raise ``poptorch.Error`` if a model or data loader uses the options."""
        if self.__dict__.get("_is_frozen"):
            raise FrozenOptions(
                "these options are frozen: a model or a DataLoader uses them. Change a copy (options.clone())."
            )

    def toDict(self) -> Dict[str, Any]:
        """Return the options as a plain dictionary."""
        return dict(self._values)

    def _freeze(self, frozen: bool = True) -> None:
        self.__dict__["_is_frozen"] = frozen
        for group in self.__dict__.values():
            if isinstance(group, OptionsDict):
                group._freeze(frozen)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "OptionsDict":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo), _is_frozen=False)
        return copied

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        known = [*values, *(public for public in dir(self) if not public.startswith("_"))]
        raise UnknownName(f"Options: there is no option {name!r}{suggestion(name, known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        (self.createOrSet if name.startswith("_") else self.set)(**{name: value})

    def __call__(self, option: str) -> Any:
        return getattr(self, option)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def _method(row: OptionRow, group_type: Any) -> Callable[..., OptionsDict]:
    name, kind = group_type._prefix + row.name, Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter("self", kind), Parameter(row.argument, kind, default=row.call_default)])

    def method(*args: Any, **kwargs: Any) -> OptionsDict:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        group, value = bound.args
        value = row.convert(value, name)
        if row.popart:
            group._Popart.set(row.popart, row.check(value, name))
        else:
            group.createOrSet(**{row.place: value})
        return group

    method.__name__, method.__qualname__, method.__doc__ = row.name, f"{group_type.__name__}.{row.name}", row.doc
    method.__dict__["__signature__"] = signature
    return method
