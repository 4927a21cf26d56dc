"""PopART's rules on the IPU model, which raises for mistakes that hardware would not report."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.operators import needs_model_and_host
from support.tables import each_row

from snnipu.ipu import model as ipu_model

ROOT = Path(__file__).resolve().parent.parent.parent
CSRC = ROOT / "csrc"
COMPILER = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("clang++") or ""]
pytestmark = [
    *needs_model_and_host,
    pytest.mark.skipif(not COMPILER[0] or not CSRC.is_dir(), reason="needs a C++ compiler and the sources"),
]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Return a function that runs a case of popart_cases.cpp with some faults and returns its output."""
    program = tmp_path_factory.mktemp("popart") / "cases"
    library = ipu_model.library_path()
    command = [*COMPILER, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-DSNNIPU_LANE_BYTES=8"]
    command += [f"-I{CSRC}", f"-I{CSRC / 'ipu_model/poplar/include'}", f"-I{CSRC / 'ipu_model/popart/include'}"]
    command += [str(Path(__file__).with_name("popart_cases.cpp")), str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*command, "-pthread", "-o", str(program)], check=True)

    def run(name, faults=""):
        done = subprocess.run([str(program), name, *faults.split()], stdout=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0
        return done.stdout.strip()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["", "writes declaresWrite", "aliases declaresAlias"])
def test_sound_operator(case, faults):
    assert case("run", faults) == "ran 2 6"


@pytest.mark.slow
@each_row(r"""
run integerOutput | test.Faulty:1 \(faulty\) has a gradient, and output 0 is INT32 .* an integer output
run writes | input 0 of test.Faulty:1 \(faulty\) has been written to, which modifies\(\) does not
run aliases | Output 0 of test.Faulty:1 \(faulty\) shares elements with its input 0
run forgetsAttribute | appendOutlineAttributes\(\) of test.Faulty:1 .* does not append the attribute scale
run gradForgetsAttribute | appendOutlineAttributes\(\) of the gradient of test.Faulty:1 .* scale
run forgetsInAttributes | appendAttributes\(\) of test.Faulty:1 .* does not append the attribute scale
run gradForgetsInAttributes | appendAttributes\(\) of the gradient of test.Faulty:1 .* scale
run wrongShape | Output 0 of test.Faulty:1 \(faulty\) has shape FLOAT \[2, 3\], and its Opx sets
run noOutput | The Opx of test.Faulty:1 \(faulty\) does not set its output 1
run insertsOther | x is not an output of test.Faulty:1 \(faulty\)
tooManyInputs | test.Faulty:1 \(faulty\) takes 1 to 2 inputs, got 3
unknownOperator | There is no operator ai.snnipu.Nothing:1
idsBehind noGradientForIds | Output 0 of ai.snnipu.SelectSpikes:1 is on the path to the loss and gets no gradient:
    test.Faulty:1 gives none for its input 0
oneGradient needsEveryGradient | test.FaultyGrad:1 .* needs the gradient of output 0 .* not on the path to the loss:
    override
""")
def test_refused(case, row):
    call, message = row.split(" | ")
    output = case(*call.split())
    assert re.search(message, output), output


@pytest.mark.parametrize("name", ["severalConsumers", "severalConsumersInHalf"])
def test_gradients_of_several_consumers_are_added_up(case, name):
    """Three operators and the loss read a tensor, whose element e gets gradients of 2 e, 4 e, 8 e and 16 e.

    The elements with even e are 0. There the surrogates multiply the gradients by 1/4, 1/2 and 2, and the surrogate of
    the operator before multiplies the sum by 1/2.
    """
    expected = [e * (0.5 * (2 + 4 / 4 + 8 / 2 + 16 * 2) if e % 2 == 0 else 2 + 4 + 8 + 16) for e in range(10)]
    assert [float(value) for value in case(name).split()] == expected


def test_a_consumer_without_gradient_is_refused(case):
    message = r"Output 0 of ai.snnipu.SurrogateSpike:1 is on the path to the loss and gets no gradient: test.Faulty:1"
    assert re.search(message, case("consumerWithoutGradient", "noGradientForIds"))


def test_carriers_let_the_gradient_through(case):
    assert case("idsBehind") == "gradients 1 1"


def test_optional_gradient(case):
    assert case("oneGradient") == "gradients 1"


def test_gradients_reach_every_weight(case):
    """A chain of the per-layer operators gives spikes and the gradients of three weights."""
    assert case("chain") == "nonzero nonzero nonzero nonzero"


def make(*arguments, **environment):
    return subprocess.run(
        ["make", "-C", str(ROOT / "custom_ops"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_makefile_for_the_sdk(tmp_path):
    """The command lines of both files have every source; without popc make prints an instruction."""
    dry = make("-n", f"OUT={tmp_path}")
    assert dry.returncode == 0, dry.stdout
    library, codelets = (line for line in dry.stdout.splitlines() if " -o " in line)
    for folder in ("custom_ops", "csrc/graph"):
        for source in (ROOT / folder).glob("*.cpp"):
            assert f" {source} " in library
    assert f"-o {tmp_path}/libsnnipu_popart.so -lpopart -lpoplar" in library.replace("  ", " ")
    for source in (CSRC / "vertices").glob("*.cpp"):
        assert f" {source} " in codelets
    assert codelets.startswith("popc ")
    assert codelets.endswith(f"-o {tmp_path}/snnipu.gp")
    done = make(f"OUT={tmp_path}", "POPC=no-such-popc")
    assert done.returncode != 0
    assert "source the Poplar SDK's enable.sh first" in done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_makefile_builds_both_files(tmp_path):
    """With fake compilers, make builds all files once."""
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    fake.chmod(0o755)
    out = tmp_path / "out"
    tools = [f"OUT={out}", f"POPC={fake}", f"CXX={fake}"]
    assert make(*tools).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "generated_neurons.hpp",
        "generated_surrogates.hpp",
        "libsnnipu_popart.so",
        "snnipu.gp",
    ]
    assert "Nothing to be done" in make(*tools, LC_ALL="C").stdout
