"""Options of the command that one case alone has."""

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence


@dataclass(frozen=True)
class Option:
    """An option for the sweep of one case: ``--name``, with hyphens.

    Attributes:
        name: of an argument of the case's ``sweep``.
        parse: from text; its ValueError says what was expected.
        full, quick: the value where none is given, without and with ``--quick``.
        setting: the field of Settings that it sets in place of an argument of ``sweep``, where it is given.
        choices: all there are.
        metavar: its value in the help.
        replaces: the sizes of the command that a sweep has from this option alone.
    """

    name: str
    help: str
    parse: Callable[[str], Any] = str
    full: Any = None
    quick: Any = None
    setting: str = ""
    choices: Optional[Sequence[str]] = None
    metavar: Optional[str] = None
    replaces: Sequence[str] = ()

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def comma_separated(text: str, kind: Callable[[str], Any], what: str) -> List[Any]:
    """Values of ``kind`` without repetition, in ascending order.

    Raises:
        ValueError: one is no ``kind``; says that ``what`` was expected.
    """
    try:
        return sorted({kind(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"expected {what}, separated by commas, but is {text!r}") from None


def names_of(known: Sequence[str]) -> Callable[[str], List[str]]:
    """Parser of names of ``known``, separated by commas: those that are named, in the order of ``known``."""

    def parse(text: str) -> List[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"expected names of {', '.join(known)}, separated by commas, but one is {unknown[0]!r}")
        return [name for name in known if name in names]

    return parse


def batch_sizes(text: str) -> List[int]:
    """Batch sizes, separated by commas, in ascending order."""
    found: List[int] = comma_separated(text, int, "whole numbers")
    if found[0] < 1:
        raise ValueError(f"must be at least 1, but is {found[0]}")
    return found
