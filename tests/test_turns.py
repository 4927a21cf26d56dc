"""The tests that take turns in CI."""

import ast

from support.turns import TURNS, in_turn, long_tests


def test_long_tests_exist(repository):
    names = long_tests()
    assert names == sorted(set(names))
    for name in names:
        file, function = name.split("::")
        tree = ast.parse((repository / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_each_case_has_one_turn_of_three():
    """A function with three cases runs one at each turn; what is not long runs always."""
    long = long_tests()
    names = [f"{name}[{case}]" for name in long for case in "abc"] + ["tests/test_turns.py::test_long_tests_exist"]
    turns = [in_turn(names, turn) for turn in range(5, 5 + TURNS)]
    assert [sum(runs) for runs in zip(*turns)] == [1] * (len(names) - 1) + [TURNS]
    for place in range(len(long)):
        assert all(sum(runs[3 * place : 3 * place + 3]) == 1 for runs in turns)


def test_long_tests_are_spread_over_the_turns():
    """Those of one case each, too."""
    names = long_tests()
    shares = [sum(in_turn(names, turn)) for turn in range(TURNS)]
    assert sum(shares) == len(names)
    assert min(shares) > 0.2 * len(names)
