"""The tests that take turns in CI."""

import ast

from support.turns import TURNS, in_turn, long_tests


def test_long_tests_exist(repository):
    names = long_tests()
    assert names == sorted(set(names))
    found = set()
    for file in {name.split("::")[0] for name in names}:
        body = ast.parse((repository / file).read_text(encoding="utf-8")).body
        found |= {f"{file}::{node.name}" for node in body if isinstance(node, ast.FunctionDef)}
    assert set(names) <= found


def test_each_case_has_one_turn():
    """A function with as many cases as there are turns runs one at each; what is not long runs always."""
    long = long_tests()
    cases = range(TURNS)
    names = [f"{name}[{case}]" for name in long for case in cases] + ["tests/test_turns.py::test_long_tests_exist"]
    turns = [in_turn(names, turn) for turn in range(5, 5 + TURNS)]
    assert [sum(runs) for runs in zip(*turns)] == [1] * (len(names) - 1) + [TURNS]
    for place in range(len(long)):
        assert all(sum(runs[TURNS * place : TURNS * (place + 1)]) == 1 for runs in turns)
    assert in_turn(names, None) == [False] * (len(names) - 1) + [True]


def test_long_tests_are_spread_over_the_turns():
    """Those of one case each, too."""
    names = long_tests()
    shares = [sum(in_turn(names, turn)) for turn in range(TURNS)]
    assert sum(shares) == len(names)
    assert min(shares) > 0.6 * len(names) / TURNS
