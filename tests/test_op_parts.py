"""No op lacks a part: the list in CONTRIBUTING.md is checked for every op of ``snnipu.ops``."""

import ast
import re
from pathlib import Path

import pytest
import torch

from snnipu import ops
from snnipu.backends import host
from snnipu.ops import _library
from snnipu.poptorch import custom_ops

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SUFFIXES = ["f32", "f64", "f16", "bf16"]


def table(name):
    """The rows of the table between the marks of this name, as lists of cells."""
    text = CONTRIBUTING.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
    rows = [line.strip().strip("|").split("|") for line in text.strip().splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


OPS = {code(op)[0]: (code(operators)[0], code(neuron)[0]) for op, operators, neuron in table("ops")}
PARTS = [(part, code(file)[0], code(holds)) for part, file, holds in table("parts")]


def fill(pattern, op, operators, neuron):
    """``pattern`` with its placeholders replaced."""
    names = {
        "op": op,
        "operators": operators,
        "neuron": neuron,
        "Operators": camel(operators),
        "Neuron": camel(neuron),
        "OPERATORS": operators.upper(),
    }
    return re.sub(r"<(\w+)>", lambda match: names[match.group(1)], pattern)


def missing_parts(op, operators, neuron):
    """What of CONTRIBUTING.md's list is not there, one line each."""
    missing = []
    for part, file, holds in PARTS:
        path = fill(file, op, operators, neuron)
        text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else None
        if text is None:
            missing.append(f"{part}: there is no {path}")
        else:
            wanted = [fill(piece, op, operators, neuron) for piece in holds]
            missing += [f"{part}: {path} lacks {piece}" for piece in wanted if piece not in text]
    return missing


def test_every_op_is_listed():
    assert sorted(OPS) == sorted(ops.__all__)
    assert all(operators in OPS for operators, _ in OPS.values())


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_no_part_is_missing(op):
    assert missing_parts(op, *OPS[op]) == []


def test_a_missing_part_is_noticed():
    missing = missing_parts("no_such_op", "no_such_operator", "no_such_neuron")
    assert [part for part, _, _ in PARTS if not any(line.startswith(part + ": ") for line in missing)] == []


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_docstring(op):
    """Equation, arguments, results, errors and source, or the op of the list that has them."""
    docstring = getattr(ops, op).__doc__
    referred = [name for name in re.findall(r":func:`(\w+)`", docstring) if name in ops.__all__ and name != op]
    if referred:
        docstring = getattr(ops, referred[0]).__doc__
    for section in (".. math::", "Args:", "Returns:", "Raises:", "Source:"):
        assert section in docstring, section
    assert getattr(ops, op).__module__ == f"snnipu.ops.{op}"


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_schemas_and_kernels(op):
    expected = {"CompositeExplicitAutograd", "Meta"} | ({"CPU"} if host.library is not None else set())
    for direction in ("fwd", "bwd"):
        name = f"{OPS[op][0]}_{direction}"
        assert set(_library.REGISTERED[name]) >= expected
        assert callable(getattr(torch.ops.snnipu, name))


def test_no_operator_is_without_an_op():
    operators = {operators for operators, _ in OPS.values()}
    assert set(_library.REGISTERED) == {f"{name}_{direction}" for name in operators for direction in ("fwd", "bwd")}


@pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")
@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_c_functions(op):
    names = [f"snnipu_{OPS[op][0]}_{direction}_{suffix}" for direction in ("fwd", "bwd") for suffix in SUFFIXES]
    assert [name for name in names if not hasattr(host.library, name)] == []


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_popart_interface(op):
    name = f"{custom_ops.DOMAIN}.{camel(OPS[op][0])}:1"
    assert name in custom_ops.registered()


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_contract_has_tests(op):
    tree = ast.parse((ROOT / "tests" / "ops" / f"test_{op}.py").read_text(encoding="utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert "test_bad_input" in tests
    assert len(tests) > 1
