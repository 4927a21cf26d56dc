"""Instructions of the vertices, as csrc/ipu_model/popc/counts.py reads them from Clang's assembly."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "csrc" / "ipu_model" / "popc" / "counts.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the sources")

# Two loops, one in the other: the inner one adds a vector, the outer one stores.
ASSEMBLY = """
probe_Sum:
\t.fnstart
\tpush\t{r4, lr}
.LBB0_1:
\tvmov.i32\td16, #0x0
.LBB0_2:
\tvldr\td17, [r0]                     @ 8-byte load
\tvbsl\td18, d17, d16
\tvmla.f32\td16, d17, d18
\tadd\tr0, r0, #8
\tsubs\tr1, r1, #1
\tbne\t.LBB0_2
\tvstr\td16, [r2]
\tbne\t.LBB0_1
\tbl\thelper
\tpop\t{r4, pc}
.Lfunc_end0:
\t.size\tprobe_Sum, .Lfunc_end0-probe_Sum
\t.fnend
helper:
\tbx\tlr
\t.fnend
"""


@pytest.fixture(scope="module")
def counts():
    spec = importlib.util.spec_from_file_location("counts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_innermost_loop_by_class(counts):
    bodies = counts.functions(ASSEMBLY)
    assert set(bodies) == {"probe_Sum", "helper"}
    found = counts.counted(counts.hottest(bodies["probe_Sum"]))
    # A selection is three instructions of a tile, a multiplication and addition two.
    assert found == {"load": 1, "select": 3, "arithmetic": 2, "integer": 2, "branch": 1}
    assert counts.with_callees(bodies, "probe_Sum") == 12 + 1
    with pytest.raises(counts.CountError, match="no loop"):
        counts.hottest(bodies["helper"])


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
    # Of the neurons each variant has two.
    variants = re.findall(r"<float,snnipu::(\w+),snnipu::Variant::(V\d)>", "\n".join(sizes))
    probes |= {f"Neuron{way}_{neuron}_{number}" for neuron, number in variants for way in ("Forward", "Backward")}
    assert set(loops) == probes
    # Two loads at most for what each neuron has of its own: one value for all is not read again and again.
    line = next(line for line in counts.TABLE.read_text().splitlines() if '"NeuronForward_Leaky_V0",' in line)
    assert "load 2," in line


def test_the_table_is_of_these_sources(counts):
    """Else it has to be counted again: `make check-counts` tells what is off, and counts.py writes the table."""
    said = "csrc/vertices or csrc/neuron has changed: run csrc/ipu_model/popc/counts.py"
    assert counts.counted_sources() == counts.fingerprint(), said


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


def test_what_is_further_off_is_told(counts):
    sizes, loops = counts.written()
    as_measured = {name: {"all": count} for name, count in loops.items()}
    assert counts.differences(sizes, as_measured) == []
    twice = {**as_measured, "gather_4": {"all": 2 * loops["gather_4"]}}
    assert counts.differences(sizes, twice) == [
        f"loop gather_4: {loops['gather_4']} instructions in counts.cpp, {2 * loops['gather_4']} now"
    ]
    name = next(iter(sizes))
    assert counts.differences({key: value for key, value in sizes.items() if key != name}, as_measured) == [
        f"codelet {name} is in one of them only"
    ]
