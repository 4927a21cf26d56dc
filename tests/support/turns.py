"""Which of the long tests CI runs at a commit: they take turns, and six commits in a row run them all.

A test function is long where `tests/long_tests.txt` names it. Its cases are counted in their order.
"""

import zlib
from collections import Counter
from pathlib import Path
from typing import Iterable, List, Optional

TURNS = 6
LIST = Path(__file__).resolve().parent.parent / "long_tests.txt"


def long_tests() -> List[str]:
    """``file::function``, as pytest writes it, from the repository's root."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def in_turn(names: Iterable[str], turn: Optional[int]) -> List[bool]:
    """For each of pytest's ``names``, in their order, whether it runs at this turn, any number; None: at no turn."""
    long, seen, runs = set(long_tests()), Counter(), []  # type: ignore[var-annotated]
    for name in names:
        function = name.split("[")[0]
        place = zlib.crc32(function.encode()) + seen[function]
        seen[function] += 1
        runs.append(function not in long or (turn is not None and (place - turn) % TURNS == 0))
    return runs
