"""No op lacks a part: the tables in CONTRIBUTING.md are checked for every op of ``snnipu.ops``."""

import ast
import itertools
import re
from pathlib import Path

import pytest
import torch
from support import sparse_cases

from snnipu import ops
from snnipu.backends import host, sparse_call
from snnipu.ops import _library
from snnipu.poptorch import custom_ops

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def table(name):
    """The rows of the table between the marks of this name, as lists of cells."""
    text = CONTRIBUTING.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
    rows = [line.strip().strip("|").split("|") for line in text.strip().splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def code(cell):
    return [piece.strip("`") for piece in re.findall(r"`[^`]+`", cell)]


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


COLUMNS = ("kernels", "backend", "function", "vertex", "maths", "popart", "triton")
KERNELS = {code(row[0])[0]: dict(zip(COLUMNS, map(code, row))) for row in table("kernels")}
# op -> placeholder -> what it stands for, in turn
OPS = {
    code(op)[0]: {"op": code(op), "operator": code(operators), **KERNELS[code(kernels)[0]]}
    for op, operators, kernels in table("ops")
}
PARTS = [(part, code(file)[0], code(holds)) for part, file, holds in table("parts")]


def fill(patterns, names):
    """The patterns with their placeholders replaced, once for every combination of what those stand for."""
    wanted = {word.lower() for pattern in patterns for word in re.findall(r"<(\w+)>", pattern)}
    columns = sorted({"operator" if word == "group" else word for word in wanted})
    for values in itertools.product(*(names[column] for column in columns)):
        chosen = dict(zip(columns, values))
        chosen["group"] = re.sub("_(fwd|bwd)$", "", chosen.get("operator", ""))
        for word in list(chosen):
            chosen[camel(word)] = camel(chosen[word])
        yield [re.sub(r"<(\w+)>", lambda match, chosen=chosen: chosen[match.group(1)], p) for p in patterns]


def missing_parts(names):
    """What of CONTRIBUTING.md's list is not there, one line each."""
    missing = []
    for part, file, holds in PARTS:
        for path, piece in (filled for pattern in holds for filled in fill([file, pattern], names)):
            if not (ROOT / path).is_file():
                missing.append(f"{part}: there is no {path}")
            elif piece not in (ROOT / path).read_text(encoding="utf-8"):
                missing.append(f"{part}: {path} lacks {piece}")
    return missing


def test_every_op_is_listed():
    assert sorted(OPS) == sorted(ops.__all__)
    assert {names["kernels"][0] for names in OPS.values()} == set(KERNELS)


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_no_part_is_missing(op):
    assert missing_parts(OPS[op]) == []


@pytest.mark.parametrize("column", sorted(OPS["sparse_linear"]))
def test_a_missing_part_is_noticed(column):
    """A name that is nowhere makes every part missing that is told with it, and no other."""
    missing = missing_parts({**OPS["sparse_linear"], column: ["no_such_name"]})
    words = {column, "group"} if column == "operator" else {column}
    about = [
        part
        for part, file, holds in PARTS
        if words & {word.lower() for word in re.findall(r"<(\w+)>", " ".join([file, *holds]))}
    ]
    assert [part for part, _, _ in PARTS if any(line.startswith(part + ": ") for line in missing)] == about
    assert about


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_docstring(op):
    """Equation, arguments, results, errors and source, or the op of the list that has them."""
    docstring = getattr(ops, op).__doc__
    if "Args:" not in docstring:
        referred = [name for name in re.findall(r":func:`(\w+)`", docstring) if name in ops.__all__ and name != op]
        docstring = getattr(ops, referred[0]).__doc__
    for section in (".. math::", "Args:", "Returns:", "Raises:", "Source:"):
        assert section in docstring, section
    assert getattr(ops, op).__module__ == f"snnipu.ops.{op}"


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_schemas_and_kernels(op):
    expected = {"CompositeExplicitAutograd", "Meta", "CUDA"} | ({"CPU"} if host.library is not None else set())
    assert len(OPS[op]["operator"]) == 2
    for name in OPS[op]["operator"]:
        assert set(_library.REGISTERED[name]) >= expected
        assert callable(getattr(torch.ops.snnipu, name))


# Operators without a public function, and their C functions: what MultiStep and
# SparseNetwork run in the place of modules.
INTERNAL = {f"{pool}_{way}" for pool in ("max_pool2d", "avg_pool2d") for way in ("fwd", "bwd")}
# A layer's with delays.
INTERNAL |= {"delay_linear_fwd", "delay_linear_bwd", "delay_linear_input_bwd"}
# Likewise, by the C functions of others: a layer's without its pool, sparse_to_dense's for SparseSpikes.spike_count.
BY_OTHERS = {"sparse_conv_lif_pool_fwd", "spike_count_fwd", "spike_count_bwd"}
# By their reference everywhere: a pruned matrix as a list.
BY_REFERENCE = {"listed_linear_fwd", "listed_linear_bwd"}


# A neuron's sequence, with a C interface of its own.
BY_A_NEURON = {"spiking_lstm_fwd", "spiking_lstm_bwd"}


def test_no_operator_is_without_an_op():
    # Of the generated neurons, whose list of parts is docs/explanation/adding-a-neuron.md.
    generated = {"neuron_recurrent_fwd", "neuron_recurrent_bwd"}
    assert set(_library.REGISTERED) - generated - INTERNAL - BY_OTHERS - BY_REFERENCE - BY_A_NEURON == {
        name for names in OPS.values() for name in names["operator"]
    }


@pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")
@pytest.mark.parametrize("kernels", sorted(KERNELS))
def test_c_functions(kernels):
    for function in KERNELS[kernels]["function"]:
        assert hasattr(host.library, f"snnipu_{function}"), function


def test_no_c_function_is_without_a_row():
    header = (ROOT / "csrc" / "host" / "sparse.h").read_text(encoding="utf-8")
    declared = re.findall(r"^SNNIPU_SPARSE\((\w+)\);", header, re.MULTILINE)
    listed = [function for row in KERNELS.values() for function in row["function"]]
    assert sorted(declared) == sorted([*listed, *INTERNAL]) == sorted(sparse_call.FUNCTIONS)


def test_popart_operators():
    """Those of the table, and no others: the sparse operators get theirs with a row that says so."""
    named = {f"{custom_ops.DOMAIN}.{camel(name)}:1" for row in KERNELS.values() for name in row["popart"]}
    named.add(f"{custom_ops.DOMAIN}.NeuronSequence:1")  # of the generated neurons
    named.add(f"{custom_ops.DOMAIN}.DelayLinear:1")  # of a layer with delays
    assert {name for name in custom_ops.registered() if name.startswith(custom_ops.DOMAIN + ".")} == named
    cells = [row[COLUMNS.index("popart")] for row in table("kernels")]
    assert all(row["popart"] or "none yet" in cell for row, cell in zip(KERNELS.values(), cells))


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_contract_has_tests(op):
    tree = ast.parse((ROOT / "tests" / "ops" / f"test_{op}.py").read_text(encoding="utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert "test_bad_input" in tests or op in sparse_cases.OPS  # whose contract is tests/ops/test_sparse_contract.py
    assert len(tests) > 1
