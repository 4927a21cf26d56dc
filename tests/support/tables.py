"""Tests as tables of text, whose rows are a call and the error that it must raise."""

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
