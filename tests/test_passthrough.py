"""Every snnTorch name resolves through snnipu."""

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest
import snntorch.utils
import torch
from support.commands import python

import snnipu as snn

OWN = {"Alpha", "DeltaLeaky", "Lapicque", "Leaky", "LinearLeaky", "RLeaky", "RSynaptic", "SConv2dLSTM", "SLSTM"}
OWN |= {"StateLeaky", "Synaptic", "surrogate"}


def test_every_public_name():
    for name in dir(snntorch):
        if name.startswith("_"):
            continue
        assert hasattr(snn, name), name
        assert name in dir(snn), name
        if name not in OWN and not isinstance(getattr(snntorch, name), type(snntorch)):
            assert getattr(snn, name) is getattr(snntorch, name), name


def test_type_checkers_are_told_of_every_module():
    tree = ast.parse(Path(snn.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and node.test.id == "TYPE_CHECKING")
    declared = {alias.name for node in block.body for alias in node.names}
    modules = {module.name for module in pkgutil.iter_modules(snntorch.__path__) if not module.name.startswith("_")}
    assert "*" in declared
    assert modules - declared == {"surrogate"}  # imported for real


@pytest.mark.parametrize("name", ["functional.reg", "functional.acc", "spikegen"])
def test_submodules(name):
    assert importlib.import_module(f"snnipu.{name}") is importlib.import_module(f"snntorch.{name}")


def test_spikeplot_names_the_extra_it_needs(monkeypatch):
    for name in ("snnipu.spikeplot", "snntorch.spikeplot"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'spikeplot needs pandas, .*pip install "snnipu\[plot\]"'):
        importlib.import_module("snnipu.spikeplot")


def test_functional_has_snntorchs_names():
    ours = {"quant", "loss", "ce_rate_loss", "ce_temporal_loss", "mse_membrane_loss", "mse_temporal_loss"}
    for name in dir(snntorch.functional):
        if not name.startswith("_") and name not in ours:
            assert getattr(snn.functional, name) is getattr(snntorch.functional, name), name
    for name in ours - {"quant", "loss"}:
        assert issubclass(getattr(snn.functional, name), getattr(snntorch.functional, name))
        assert getattr(snn.functional.loss, name) is getattr(snn.functional, name)
    assert snn.functional.padded_loss is snn.functional.loss.padded_loss
    assert "padded_loss" in snn.functional.__all__
    assert snn.functional.loss.mse_count_loss is snntorch.functional.loss.mse_count_loss
    assert snn.functional.quant.__name__ == "snnipu.functional.quant"
    assert snn.functional.quant.math is snntorch.functional.quant.math


def test_utils_has_snntorchs_names():
    for name in dir(snntorch.utils):
        if not name.startswith("_") and name != "reset":
            assert getattr(snn.utils, name) is getattr(snntorch.utils, name), name
    layer = snn.Leaky(beta=0.9, init_hidden=True)
    layer(torch.ones(2, 3))
    snn.utils.reset(torch.nn.Sequential(layer))
    assert not layer.mem.any()


@pytest.mark.slow
def test_names_resolve_in_a_fresh_process():
    code = (
        "import snnipu as snn, snntorch\n"
        "assert snn.LeakyParallel is snntorch.LeakyParallel\n"
        "import snntorch.functional, snntorch.spikegen\n"
        "assert snn.functional.ce_count_loss is snntorch.functional.ce_count_loss\n"
        "assert snn.spikegen.rate is snntorch.spikegen.rate\n"
        "from snnipu.functional import loss\n"
        "from snnipu import utils, spikegen\n"
        "assert snn.Leaky is not snntorch.Leaky\n"
        "assert snntorch.spikegen.__spec__.name == 'snntorch.spikegen'\n"
    )
    python("-c", code)


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'snnipu' has no attribute 'no_such_neuron'"):
        snn.no_such_neuron  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("snnipu.no_such_module")
