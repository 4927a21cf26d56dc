"""Tests as tables of text: refused calls with their errors, and statements of random programs."""

import re

import pytest


def rows(table):
    """Return the rows of a table. An indented line continues the row before it."""
    return re.sub(r"\n +", " ", table.strip()).splitlines()


def each_row(table):
    """Run a test once for each row of a table, as its argument ``row``."""
    return pytest.mark.parametrize("row", rows(table))


def assert_refused(row, names, **more):
    """Evaluate the call of a row ``call | Error: message`` with these names; the message is a regular expression."""
    call, error = row.split(" | ")
    kind, message = error.split(": ", 1)
    names = {**names, **more}
    with pytest.raises(eval(kind, names), match=message):
        eval(call, names)


def lines_of(table):
    r"""Return the lines of a table; ``\n`` within a line stands for the end of a line."""
    return tuple(line.strip().replace("\\n", "\n") for line in table.strip().splitlines())


def cells_of(table):
    """Return the cells of each line of a table, which ``|`` separates; a cell may be empty."""
    lines = [line for line in table.splitlines() if line.strip()]
    return tuple(sum((lines_of(cell) or ("",) for cell in re.split(r" \|(?: |$)", line)), ()) for line in lines)
