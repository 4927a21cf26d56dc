"""Instructions of the vertices, which csrc/ipu_model/popc/counts.py reads from Clang's assembly."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "csrc" / "ipu_model" / "popc" / "counts.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the sources")


@pytest.fixture(scope="module")
def counts():
    spec = importlib.util.spec_from_file_location("counts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_of_symbols(counts):
    text = (ROOT / "csrc" / "neuron" / "leaky.hpp").read_text() + "enum class Variant : unsigned { V0, V1, V2 };"
    enumerators = counts.enumerators_of(text)
    assert enumerators["snnipu::Reset"][2] == "snnipu::Reset::None"
    symbol = "_ZN6snnipu14NeuronBackwardIDF16_NS_8SynapticELNS_7VariantE2EE7computeEj"
    if not sys.platform.startswith("linux"):
        pytest.skip("the runtime of this machine has another name")
    demangled = counts.demangle([symbol])[symbol]
    name = counts.codelet_of(demangled, enumerators)
    assert name == "snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V2>"
    assert name in counts.registered()
    assert counts.codelet_of("snnipu::load<float>(float const*)", enumerators) is None


def test_the_table_has_every_codelet(counts):
    sizes, loops = counts.written()
    assert set(sizes) == counts.registered()
    probes = set(re.findall(r"^SNNIPU_PROBE\((\w+)\)", (SCRIPT.parent / "probes.cpp").read_text(), re.M))
    # Each variant of a neuron has two probes.
    variants = re.findall(r"<float,snnipu::(\w+),snnipu::Variant::(V\d)>", "\n".join(sizes))
    probes |= {f"Neuron{way}_{neuron}_{number}" for neuron, number in variants for way in ("Forward", "Backward")}
    assert set(loops) == probes
    # The loop loads the membrane and the input; a parameter that all neurons share is loaded before it.
    line = next(line for line in counts.TABLE.read_text().splitlines() if '"NeuronForward_Leaky_V0",' in line)
    assert "load 2," in line


def test_the_table_matches_the_sources(counts):
    """If it does not, `make check-counts` shows the differences, and counts.py writes a new table."""
    hint = "csrc/vertices or csrc/neuron has changed: run csrc/ipu_model/popc/counts.py"
    assert counts.counted_sources() == counts.fingerprint(), hint


def test_comments_and_layout_are_not_counted_again(counts, tmp_path, monkeypatch):
    known = counts.fingerprint()
    copy = tmp_path / "csrc"
    shutil.copytree(counts.CSRC, copy, ignore=shutil.ignore_patterns("host", "graph", "*.so"))
    shutil.copytree(counts.CSRC.parent / "snnipu" / "_generator", tmp_path / "snnipu" / "_generator")
    shutil.copy(counts.CSRC.parent / "snnipu" / "equations.py", tmp_path / "snnipu")
    monkeypatch.setattr(counts, "CSRC", copy)
    vertex, host = copy / "vertices" / "tile.cpp", copy / "vertices" / "lif.cpp"
    text = vertex.read_text()
    host.write_text("// of the host alone\nint x;\n")
    vertex.write_text(text.replace("\n\n", "\n  // said otherwise\n\n\n"))
    assert counts.fingerprint() == known
    vertex.write_text(text.replace("+=", "-=", 1))
    assert counts.fingerprint() != known
