"""Every operator has all parts of docs/explanation/adding-an-op.md: a comparison of the registries."""

import ast
import re

import pytest
import torch
from support import sparse_cases
from support.commands import ROOT

from snnipu import ops
from snnipu.backends import host, sparse_call
from snnipu.ops import _library
from snnipu.poptorch import custom_ops

# Operators that run only as their reference: on every device, and on CUDA.
BY_REFERENCE = {"listed_linear_fwd", "listed_linear_bwd"}
ON_CPUS_ALONE = {f"{name}_{way}" for name in ("max_pool2d", "avg_pool2d", "spiking_lstm") for way in ("fwd", "bwd")}
ON_CPUS_ALONE |= {"sparse_conv_lif_pool_fwd", "eventprop_bwd"}
# Another operator computes the gradient of these.
ADJOINT_OF_ANOTHER = {"dense_to_sparse", "sparse_conv_lif_pool"}
# A network of fully connected layers is one PopART operator; on a host its layers are separate operators.
ON_AN_IPU_ALONE = {"SparseNetwork"}


def text_of(*path):
    return ROOT.joinpath(*path).read_text(encoding="utf-8")


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_docstring(op):
    """The docstring has equation, arguments, results, errors and source, or names the op that has them."""
    docstring = getattr(ops, op).__doc__
    if ".. math::" not in docstring:
        referred = [name for name in re.findall(r":func:`(\w+)`", docstring) if name in ops.__all__ and name != op]
        docstring = getattr(ops, referred[0]).__doc__
    for section in (".. math::", "Args:", "Returns:", "Raises:", "Source:"):
        assert section in docstring, section


@pytest.mark.parametrize("op", sorted(ops.__all__))
def test_contract_and_reference(op):
    if op not in sparse_cases.OPS:  # their contract is tests/ops/test_sparse_contract.py
        tested = "lif_sequence" if op == "lif_step" else op
        tree = ast.parse(text_of("tests", "ops", f"test_{tested}.py"))
        tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert "test_bad_input" in tests
        assert len([name for name in tests if name.startswith("test_")]) > 1
    assert f"snnipu.ops.{op}" in text_of("docs", "reference", "ops.md")


@pytest.mark.parametrize("name", sorted(_library.REGISTERED))
def test_kernels(name):
    required = {"CompositeExplicitAutograd", "Meta"}
    if name not in BY_REFERENCE:
        required |= {"CPU"} if host.library is not None else set()
        required |= set() if name in ON_CPUS_ALONE else {"CUDA"}
    assert set(_library.REGISTERED[name]) == required
    assert callable(getattr(torch.ops.snnipu, name))


def test_every_operator_has_a_gradient():
    names = set(_library.REGISTERED)
    assert all(name.endswith(("_fwd", "_bwd")) for name in names)
    forward = {name[:-4] for name in names if name.endswith("_fwd")}
    assert {name for name in forward if f"{name}_bwd" not in names} == ADJOINT_OF_ANOTHER


def test_c_functions():
    """The header's functions are those that Python calls, and the library exports them."""
    declared = re.findall(r"^SNNIPU_SPARSE\((\w+)\);", text_of("csrc", "host", "sparse.h"), re.MULTILINE)
    assert sorted(declared) == sorted(sparse_call.SIGNATURES)
    if host.library is not None:
        assert [name for name in declared if not hasattr(host.library, f"snnipu_{name}")] == []


def test_popart_operators():
    """Each has its description, its graph builder and its host implementation."""
    described = {
        name: path.stem
        for path in (ROOT / "custom_ops").glob("*.cpp")
        for name in re.findall(r"^const Registered<(\w+)>", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    registered = {
        name.split(":")[0].rpartition(".")[2] for name in custom_ops.registered() if custom_ops.DOMAIN in name
    }
    assert registered == set(described) - ON_AN_IPU_ALONE
    for name, file in described.items():
        description = text_of("custom_ops", f"{file}.cpp")
        assert f'name = "{name}"' in description
        builders = re.findall(r'#include "graph/(\w+)\.hpp"', description)
        assert builders
        assert all((ROOT / "csrc" / "graph" / f"{builder}.cpp").is_file() for builder in builders)


def test_sources_are_built():
    setup = text_of("setup.py")
    sources = {path.name for path in (ROOT / "csrc" / "host").glob("*.cpp")}
    assert {name for name in sources if f"host/{name}" not in setup} == set()
