"""The IPU model's Poplar: errors, results and counts; its popc; the hello world program."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.tables import cells_of

from snnipu.backends.host import native_folder

ROOT = Path(__file__).resolve().parent.parent.parent
CSRC = ROOT / "csrc"
EXAMPLES = CSRC / "ipu_model" / "examples"
POPC = CSRC / "ipu_model" / "popc" / "popc.py"
LIBRARY = "libsnnipu-ipu-model.so"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the native libraries need GCC or Clang")


def compiler():
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    name = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if name is None:
        pytest.skip("no C++ compiler")
    return [name]


@pytest.fixture(scope="module")
def compile_program(tmp_path_factory):
    """Return a function that compiles sources to a program linked with the model's library."""
    folder = native_folder()
    if not (folder / LIBRARY).is_file():
        assert os.environ.get("SNNIPU_REQUIRE_NATIVE") != "1", f"no {LIBRARY} in {folder}"
        pytest.skip(f"no {LIBRARY} in {folder}")

    def build(name, *sources):
        program = tmp_path_factory.mktemp("ipu_model") / name
        command = [*compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread"]
        roots = [CSRC / "ipu_model" / name / "include" for name in ("poplar", "poplibs")]
        command += [f"-I{CSRC}", *(f"-I{root}" for root in roots), *map(str, sources)]
        command += [str(folder / LIBRARY), f"-Wl,-rpath,{folder}", "-o", str(program)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return program

    return build


@pytest.fixture(scope="module")
def case(compile_program):
    """Return a function that runs a case of poplar_cases.cpp and returns the lines it prints."""
    program = compile_program("cases", ROOT / "tests" / "ipu" / "poplar_cases.cpp")

    def run(*arguments):
        done = subprocess.run(
            [str(program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    return run


def test_hello_world(compile_program):
    program = compile_program("adder", EXAMPLES / "adder.cpp", EXAMPLES / "adder_table.cpp")
    lines = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert lines[0] == "11 22 33 44 "
    # The supervisor takes 11 cycles, a worker 6 x 8. Tile 0 sends three elements, 4 bytes per cycle. Two syncs take
    # 200.
    assert lines[1] == f"{11 + 6 * 8 + 3 + 200} cycles"
    assert "fullest tile: 0" in "\n".join(lines)


# --- popc


@pytest.fixture(scope="module")
def popc():
    pytest.importorskip("clang.cindex", reason="libclang is not installed: pip install libclang")
    compiler()

    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(POPC), "--compiler", compiler()[0], *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


@pytest.mark.slow
def test_the_tables_of_codelets_match_the_vertices(popc):
    done = popc("--check")
    assert done.returncode == 0, done.stdout
    tables = sorted(path.stem[len("codelets_") :] for path in (CSRC / "ipu_model").glob("codelets_*.cpp"))
    texts = {path.stem: path.read_text() for path in (CSRC / "vertices").glob("*.cpp")}
    sources = (stem for stem, text in texts.items() if "public poplar::" in text and "__POPC__" in text)
    assert tables == sorted(sources)


@pytest.mark.parametrize(
    ("folder", "name"), [(EXAMPLES, "adder"), (CSRC / "ipu_model" / "popart" / "src", "sum")], ids=["adder", "sum"]
)
def test_other_tables_match_their_codelets(popc, tmp_path, folder, name):
    output = tmp_path / "table.cpp"
    done = popc(str(folder / f"{name}_codelets.cpp"), "-o", str(output))
    assert done.returncode == 0, done.stdout
    assert output.read_text() == (folder / f"{name}_table.cpp").read_text()


def test_popc_spells_out_template_arguments(popc, tmp_path):
    source, output = tmp_path / "my.codelets.cpp", tmp_path / "table.cpp"
    source.write_text(
        "#include <poplar/Vertex.hpp>\n"
        "namespace a {\n"
        "enum class Way { Up, Down };\n"
        "struct Plain {};\n"
        "template <typename T, Way W, typename Q = Plain, bool B = W == Way::Down>\n"
        "class V : public poplar::MultiVertex {\n"
        "public:\n"
        "  poplar::Input<poplar::Vector<T>> in;\n"
        "  unsigned n;\n"
        "  void compute(unsigned) {}\n"
        "};\n"
        "template class V<half, Way::Down>;\n"
        "template class V<unsigned, Way::Up, int>;\n"
        "class None : public poplar::Vertex { public: bool compute() { return true; } };\n"
        "class Other {};\n"
        "}\n"
    )
    assert popc(str(source), "-o", str(output)).returncode == 0
    text = output.read_text()
    assert "a::V<half, a::Way::Down, a::Plain, true>)" in text
    assert "a::V<unsigned int, a::Way::Up, int, false>)" in text
    assert "a::None)" in text
    assert "Other" not in text
    assert 'registrationOf_my("my", {' in text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "class V : public poplar::Vertex { private: unsigned n; public: bool compute() { return n == 0; } };",
            "field n of V is not public",
        ),
        (
            "class V : public poplar::Vertex { public: unsigned n = nothing; bool compute() { return n == 0; } };",
            "undeclared identifier",
        ),
        # The SDK's name for such a vertex is unknown.
        (
            "template <typename T> struct Policy {};\n"
            "template <template <typename> class P> class V : public poplar::Vertex {\n"
            "public:\n"
            "  bool compute() { return true; }\n"
            "};\n"
            "template class V<Policy>;",
            "template parameter P is neither a type nor a number",
        ),
    ],
    ids=["private", "undeclared", "template"],
)
def test_popc_refuses(popc, tmp_path, code, message):
    source = tmp_path / "bad.cpp"
    source.write_text(f"#include <poplar/Vertex.hpp>\n{code}\n")
    done = popc(str(source), "-o", str(tmp_path / "table.cpp"))
    assert done.returncode != 0
    assert message in done.stdout
    assert not (tmp_path / "table.cpp").exists()


# --- tensors and execution


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensors", "mappings", "runs", "racesByDefinition"])
def test_against_the_definition(case, name):
    assert case(name) == ["ok"]


@pytest.mark.slow
def test_half(case):
    # These are 0.1, the largest half, a subnormal number, -2 and infinity.
    assert list(map(int, case("halves"))) == [0x2E66, 0x7BFF, 2, 0xC000, 0x7C00]


def test_loops(case):
    lines = case("loops")
    # 3 steps, then 7 up to the limit of 10, each with two runs of `more`; the false condition runs `more` once again.
    assert lines[0] == "10 15 15"
    assert lines[1:5] == ["step 10", "test 8", "more 15", " 1"]  # the copy has no name
    # An estimate counts a loop as one iteration, and both branches of the If.
    assert lines[5:] == ["step 5", "test 1", "more 3", " 1"]


def test_streams(case):
    lines = case("streams")
    assert 'stream "in" is not connected' in lines[0]
    assert lines[1] == "101 102 103 104 101 102"
    assert lines[2] == "100 101 102 103 104 105"
    assert lines[3] == str(2 * 3 * 2 * 8)


def test_constants_and_undefined_values(case):
    values, refused = case("constants")
    assert values == "4 -1 6"
    assert refused.startswith("graph_program_compilation_error: Copy to a constant")


def test_short_messages_cost_their_instructions(case):
    """A received message takes 3 instructions, a sent one 2, unless its words take longer.

    A tile receives a word from each of eight tiles, then sends one to each; then a message of 400 words.
    """
    assert [int(line) for line in case("messages")] == [8 * 3, 8 * 2, 400]


def test_virtual_graphs(case):
    *lines, message = case("virtualGraph")
    assert lines == ["4 1 1", "2", "5", "10", "13"]
    assert message.startswith("invalid_tile_mapping: tile 8")


# --- accounts


def test_accounts(case):
    text, cycles = case("accounts")
    assert cycles == "0"  # nothing has run
    report = json.loads(text)
    everything, plain, copy, local = report["steps"]
    assert [step["executions"] for step in report["steps"]] == [2, 2, 2, 2]
    assert (everything["name"], everything["kind"], everything["vertices"]) == ("all", "compute", 3)
    # Tile 1 runs 500 and 50 cycles one after the other, tile 4 runs 300; the other four tiles none.
    assert everything["compute_cycles"] == 550
    assert everything["balance"] == pytest.approx((550 + 300) / (6 * 550))
    # Tiles receive 80 bytes, 40 bytes over the link, and then 4 bytes of a result.
    assert everything["exchange_bytes"] == 80 + 40 + 4
    assert everything["inter_ipu_bytes"] == 40
    # The last message takes three instructions, more than the cycles of its word.
    assert everything["exchange_cycles"] == 80 // 4 + 3
    assert everything["sync_cycles"] == 100 + 600 + 100
    # The workers of tile 2 run 30, 20 + 20, 20 + 20, 20, 20 and 20 cycles, at most 40.
    assert plain["compute_cycles"] == 11 + 6 * 40
    assert plain["exchange_bytes"] == 16  # sent once, although eight vertices read it
    assert (copy["kind"], copy["exchange_bytes"], copy["compute_cycles"]) == ("copy", 32, 0)
    assert (local["exchange_bytes"], local["compute_cycles"]) == (0, 30 + 3)
    for total in ("compute_cycles", "exchange_cycles", "sync_cycles", "exchange_bytes"):
        assert report[total] == sum(2 * step[total] for step in report["steps"])
    assert report["cycles"] == report["compute_cycles"] + report["exchange_cycles"] + report["sync_cycles"]
    assert report["seconds"] == pytest.approx(report["cycles"] / 1.33e9)
    assert report["tile_variables_bytes"] == [400, 80, 8 + 32, 0, 40, 0]
    # Fields of the vertices: two pointers, a float and an unsigned; one pointer; a pointer with a size and a pointer.
    assert report["tile_vertex_state_bytes"] == [0, 16 + 8 + 4 + 8, 8 * (12 + 8), 0, 16 + 8, 0]
    assert report["tile_exchange_buffers_bytes"] == [0, 80 + 4, 16, 0, 40, 0]
    assert report["tile_exchange_bytes"] == [0, 2 * (80 + 32), 2 * (4 + 16), 0, 2 * 40, 0]
    assert report["fits"]
    assert report["tile_memory_max_bytes"] == max(
        map(
            sum,
            zip(*(report[f"tile_{name}_bytes"] for name in ("variables", "vertex_state", "exchange_buffers", "code"))),
        )
    )


def test_a_tiles_elements_of_a_variable_are_contiguous(case):
    columns, row = case("layout")
    assert columns == "0 100 16"
    exchanged, cycles, _ = row.split()
    # The four elements have another order in memory, so 16 bytes are copied, 8 per cycle.
    assert (exchanged, cycles) == ("0", str(100 + 30 + 2))


def test_tutorial_networks(case):
    """Tensors are divided equally among four tiles in whole vectors, with at least 128 bytes or a given number each."""
    lines = case("tutorials")
    assert lines[:4] == ["254 254 254 248", "64 6 0 0", "20 20 20 10", "7"]
    assert lines[4] == "poplar_error: mapTensorLinearly: grainSize must be 1 or more"


def test_machines(case):
    lines = case("machines")
    assert lines[:3] == ["ipu1 2432 262144 1.6e+09", "ipu2 2944 638976 1.33e+09", "bow 2944 638976 1.85e+09"]
    assert lines[3] == "invalid_machine_model: ipu2 has 1472 tiles, not 1473"


def test_estimates_of_our_vertices(case):
    lines = case("estimators")
    names = [line for line in lines if line.startswith("snnipu::")]
    assert "snnipu::NeuronForward<float,snnipu::Leaky,snnipu::Variant::V2>" in names
    assert "snnipu::SparseLinearForward<half,unsigned int>" in names
    source = (CSRC / "ipu_model" / "perf_estimates.cpp").read_text()
    for name in names:
        assert f'{{"{name.split("<")[0]}", ' in source, f"{name} has no estimate of its cycles"
    # 6 workers x (29 + 3 + registers x (4 for loads and stores, 2 for H, 3 for the loop)) + 11, for 1 and 100
    # registers.
    assert [int(line.split()[1]) for line in lines if line.startswith("cycles")] == [
        6 * (32 + share * 9) + 11 for share in (1, 100)
    ]


# --- errors

# Case, class of the error, and parts of its message.
REFUSED = cells_of(
    """
    unmapped           | invalid_tile_mapping            | variable "forgotten" (float{6}); element 4; setTileMapping
    race               | graph_program_compilation_error | "set"; element 3; "shared"; tile 0; tile 1; writes it
    readWriteRace      | graph_program_compilation_error | "set"; variable "y"; reads it; field "from"
    ownRace            | graph_program_compilation_error | "from"; "to"; element 1; InOut
    noSuchTile         | invalid_tile_mapping            | tile 4; variable "x"; does not exist; 0 to 3
    vertexOnNoSuchTile | invalid_tile_mapping            | tile 5888; AddTo<float>; does not exist
    vertexOnNoTile     | invalid_tile_mapping            | Increment; on no tile; "set"
    unconnected        | graph_connection_error          | field "to"; AddTo<float>; not connected; "set"
    memberNotSet       | graph_connection_error          | field "size"; AddTo<float>; setInitialValue
    wrongType          | graph_connection_error          | field "from"; holds float; half{3}
    wrongRank          | graph_connection_error          | field "from"; {3,2}; flatten
    wrongValue         | type_error                      | field "size"; -1; unsigned int
    unknownField       | unknown_field                   | "sise"; from, to, by, size
    unknownVertex      | unknown_vertex_type             | AddTo<double>; AddTo<float>; AddTo<half>
    unknownCodelets    | file_load_error                 | "others"; cases, snnipu, sum_codelets; popc
    noEstimate         | missing_perf_estimate           | Increment; setPerfEstimate
    unknownOption      | invalid_option                  | "treads"; threads
    notLoaded          | graph_object_load_error         | Engine::load
    copyOfOtherSize    | graph_program_compilation_error | int{3}; int{2}
    """
)


def test_a_vertex_without_an_estimate_gets_one(case):
    """The estimate is six instructions per element of its fields; a codelet is warned of once."""
    warning, cycles = case("defaultEstimate")
    assert "Increment" in warning
    assert "has no estimate of its cycles" in warning
    assert "Graph::registerPerfEstimator" in warning
    assert cycles == f"cycles {11 + 6 * 6}"


def test_alignment(case):
    """A misaligned field is copied, which is counted, or refused; an unaligned access of a vertex is an error."""
    assert case("misaligned", "copy") == [f"cycles {11 + 6 * 100 + 30 + 2}", "1 2 3 4"]
    (message,) = case("misaligned", "refuse")
    assert message.startswith('graph_program_compilation_error: field "from" of Pairs')
    assert "a multiple of 8 bytes" in message
    message = case("misaligned", "access")[-1]
    assert message.startswith("runtime_error: Pairs")
    assert "reads or writes 8 bytes at once at an address that is no multiple of them" in message


def test_device_manager_and_print_tensor(case):
    assert case("printed") == ["0 1 1472", "x: {[1,2]", " [3,4.5]}", "{3,4.5}"]


@pytest.mark.parametrize(("name", "kind", "parts"), REFUSED)
def test_refused(case, name, kind, parts):
    message = "\n".join(case(name))
    assert message.startswith(f"{kind}: "), message
    for part in parts.split("; "):
        assert part in message


def test_a_tile_over_its_memory(case):
    (message,) = case("memoryOver")
    assert message.startswith("graph_memory_allocation_error: tile 2 needs ")
    assert "has 638976" in message
    # The message lists the largest variables, largest first, and a remedy.
    assert message.index('"weights of layer 3" (float{140000}) with 560000 bytes') < message.index('"small"')
    assert "other tiles have room: map the largest variables over more tiles" in message
    assert case("memoryOver", "off") == ["0 2 960000"]


def test_workers_that_depend_on_their_order(case):
    assert case("lastWorker", "ascending") == ["5"]
    assert case("lastWorker", "descending") == ["0"]
    shuffled = {case("lastWorker", f"shuffled:{seed}")[0] for seed in range(8)}
    assert len(shuffled) > 2
    assert case("lastWorker", "shuffled:3") == case("lastWorker", "shuffled:3")
    (message,) = case("lastWorker", "check")
    assert message.startswith('runtime_error: element 0 of field "last" of LastWorker (vertex 0, tile 3)')
    assert "depend on the order" in message


def test_workers_that_share_a_word(case):
    """Two workers write neighbouring halves of a word: an error that no order of workers on the host shows."""
    assert case("inTurns", "2") == ["0 1 2 3 4 5 6"]
    for together in ("1", "3"):
        (message,) = case("inTurns", together)
        assert message.startswith("runtime_error: workers 0 and 1 of InTurns (vertex 0, tile 0)")
        assert 'write into one 32-bit word of field "to"' in message
        assert f"at element {together}" in message


def test_a_vertex_that_writes_outside_of_its_field(case):
    (message,) = case("guards")
    assert message.startswith("runtime_error: TooFar")
    assert 'outside of field "to", 3 elements, after it' in message
