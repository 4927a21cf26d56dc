"""Mutation testing: plant faults of one word in a copy of the tree, and run the tests: ``make mutants``.

``python tests/support/mutants.py --seconds 600 --seed 0 --places snnipu/ops csrc`` draws faults and prints those that
no test noticed. ``--places snnipu/ops/_derivative.py --numbers 3 4`` plants these faults of one file. Only tests that
run the faulty line are run. A first pass over all tests, or over ``--tests``, records these lines in one and a half
times the tests' time. ``--folder`` keeps the record until sources or tests change. For a fault in C++ the library is
compiled again, and the tests that call it are run.
"""

import argparse
import ast
import hashlib
import itertools
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = ("compiler", "ops", "neurons", "backends", "poptorch", "training", "online", "functional", "datasets")
PLACES = (*(f"snnipu/{name}" for name in PLACES), ":(glob)snnipu/*.py", "csrc/host", "csrc/neuron")
# These start processes, in which no line is recorded, or take longest, or forbid writing, also coverage's.
LEFT_OUT = (
    "test_neon", "test_tutorials", "test_examples", "test_docs", "test_wheel", "test_wheels", "test_check_ipu",
    "test_release", "backends/test_memory", "datasets/test_disk_cache",
)  # fmt: skip
_PAIRS = (
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.And, ast.Or), (ast.Add, ast.Sub),
)  # fmt: skip
EXCHANGED = {ast.Mult: ast.Add, **dict(_PAIRS), **{other: one for one, other in _PAIRS}}
EXCHANGED_IN_CPP = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
    "*": "+", "/": "*", "+=": "-=", "-=": "+=", "*=": "+=", "true": "false", "false": "true",
}  # fmt: skip
# The modules that call the library, and the instruction set of a library with a fault.
_BACKENDS = "host host_pool host_sparse neurons neuron_step recurrent spiking_lstm sparse_call"
CALLERS = [f"snnipu/backends/{name}.py" for name in _BACKENDS.split()]
ISA = {"x86_64": "avx2", "AMD64": "avx2", "aarch64": "neon", "arm64": "neon"}.get(platform.machine(), "baseline")
# The limit of the tests of one fault, in seconds.
SECONDS_OF_TESTS = 120


def places(path, source):
    """Return all possible faults of a file: first and last byte, new text, and the lines of the statement."""
    return places_in_python(source) if path.endswith(".py") else places_in_cpp(source)


def places_in_python(source):
    """Return the faults outside of types, defaults, decorators and error messages."""
    faults, left = [], [(ast.parse(source), None)]
    begins = list(itertools.accumulate(map(len, source.encode().splitlines(keepends=True)), initial=0))
    while left:
        node, lines = left.pop()
        if isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.arguments)):
            continue
        if isinstance(node, ast.FunctionDef):
            left.extend((part, None) for part in node.body)
            continue
        if isinstance(node, ast.stmt):
            below = [part.lineno for part in getattr(node, "body", [])]
            lines = range(node.lineno, min(below) if below else node.end_lineno + 1)
        text = mutate(node)
        if text is not None:
            start, stop = begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset
            faults.append((start, stop, text, lines))
        if not isinstance(node, ast.Raise):
            left.extend((part, lines) for part in ast.iter_child_nodes(node))
    return sorted(faults, key=lambda place: place[:2])


def places_in_cpp(source):
    """Return the faults of operators, small numbers and booleans, outside of comments, strings, templates and
    directives.
    """
    code = re.sub(
        r'//[^\n]*|"[^"\n]*"|^[ \t]*#[^\n]*|template <[^{;(]*>', lambda m: " " * len(m[0]), source, flags=re.MULTILINE
    )
    return [
        (len(source[: token.start()].encode()), len(source[: token.end()].encode()), text, None)
        for token in re.finditer(
            r"(?<= )(<=?|>=?|==|!=|&&|\|\||[-+*]=?|/)(?= )|\b(?<![.\w])(\d{1,2}|true|false)\b(?!\.)", code
        )
        for text in [EXCHANGED_IN_CPP.get(token[0]) or str(int(token[0]) + 1)]
    ]


def mutate(node):
    """Return the text of the node with a fault, or None if the node gets none."""
    if isinstance(node, ast.Raise):
        return "pass"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in EXCHANGED:
        mutated = ast.Compare(node.left, [EXCHANGED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        mutated = ast.BoolOp(EXCHANGED[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        mutated = node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in EXCHANGED:
        mutated = ast.BinOp(node.left, EXCHANGED[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        mutated = ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        mutated = ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        mutated = ast.Constant(node.value + 1)
    else:
        return None
    return f"({ast.unparse(mutated)})" if not isinstance(mutated, ast.Constant) else ast.unparse(mutated)


def plant(path, source, number):
    """Return the source with fault ``number``, the fault in words, and the lines of its statement."""
    start, stop, text, statement = places(path, source)[number]
    whole = source.encode()
    line = whole[:start].count(b"\n") + 1
    words = f"line {line}: {whole[start:stop].decode()} -> {text}"
    if statement is None:
        words += f" in {whole.splitlines()[line - 1].decode().strip()}"
    return (whole[:start] + text.encode() + whole[stop:]).decode(), words, statement


def tracked(*folders):
    """Return the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\n")[:-1] if (ROOT / name).exists()]


def copy_tree(folder):
    """Copy the tree and the compiled libraries, and return the copy's folder."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "snnipu" / "_native", folder / "snnipu" / "_native")
    return folder


def run_tests(copy, options, seconds=None, **variables):
    """Run pytest on the package in ``copy``; return the finished process, or None after a timeout."""
    data = os.path.abspath(os.environ.get("SNNIPU_DATA", str(ROOT.parent / "shared" / "data")))
    settings = {"SNNIPU_HYPOTHESIS_EXAMPLES": "10", "PYTHONPATH": str(copy), "SNNIPU_DATA": data, **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    try:
        return subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def record_lines(folder, jobs, tests):
    """Return the tests that run each line of each file, and the seconds of each test that passes."""
    digest = hashlib.sha256(" ".join(tests).encode())
    for name in tracked("snnipu", "tests", "csrc"):
        digest.update((ROOT / name).read_bytes())
    record_file = folder / f"{digest.hexdigest()[:16]}.json"
    if record_file.exists():
        return json.loads(record_file.read_text(encoding="utf-8"))
    print(f"running {' '.join(tests)} under coverage, to record the lines of each test", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = copy_tree(Path(scratch) / "copy")
        # pytest-xdist would wait for a worker that ended.
        options = ["-n", str(jobs), "--dist", "loadfile", "--max-worker-restart", "0"]
        options += ["--cov=snnipu", "--cov-context=test", "--cov-report="]
        options += [f"--junitxml={scratch}/tests.xml", "-o", "junit_family=xunit1"]
        options += [part for name in LEFT_OUT for part in ("--ignore", f"tests/{name}.py")]
        done = run_tests(copy, [*options, *tests], COVERAGE_FILE=f"{scratch}/coverage")
        print(done.stdout.strip().split("\n")[-1], flush=True)
        record = read_record(copy, Path(scratch) / "coverage", Path(scratch) / "tests.xml")
    folder.mkdir(parents=True, exist_ok=True)
    record_file.write_text(json.dumps(record), encoding="utf-8")
    return record


def read_record(copy, coverage_file, results):
    """Read the record of the tests that passed."""
    import coverage

    seconds = {}
    for case in ElementTree.parse(results).iter("testcase"):
        if len(case) == 0:
            file = case.get("file")
            within = case.get("classname").split(".")[file.count("/") + 1 :]
            seconds["::".join([file, *within, case.get("name")])] = float(case.get("time"))
    numbers = {name: number for number, name in enumerate(seconds)}
    data = coverage.CoverageData(str(coverage_file))
    data.read()
    lines = {}
    for path in data.measured_files():
        lines[os.path.relpath(path, copy)] = {
            str(line): sorted({numbers[name] for name in (test.rsplit("|", 1)[0] for test in tests) if name in numbers})
            for line, tests in data.contexts_by_lineno(path).items()
        }
    return {"tests": list(seconds.items()), "lines": lines}


def tests_of(record, path, statement):
    """Return the tests of a statement up to SECONDS_OF_TESTS, and whether one of them runs it.

    The list begins with a quick test of each file. If no test runs the statement, the tests of its file are returned.
    """
    of_file = record["lines"].get(path, {})
    if path.startswith("csrc/"):
        of_callers = [tests for caller in CALLERS for tests in record["lines"].get(caller, {}).values()]
        of_file = {str(number): tests for number, tests in enumerate(of_callers)}
        statement = range(len(of_callers))
    numbers = {number for line in statement for number in of_file.get(str(line), ())}
    is_run = bool(numbers)
    if not numbers:
        numbers = set().union(*of_file.values())
    tests = sorted((record["tests"][number] for number in numbers), key=lambda test: (test[0].split("::")[0], test[1]))
    of_files = [list(group) for _, group in itertools.groupby(tests, key=lambda test: test[0].split("::")[0])]
    chosen, seconds = [], 0.0
    for name, took in (test for row in itertools.zip_longest(*of_files) for test in row if test is not None):
        seconds += took
        if seconds > SECONDS_OF_TESTS and chosen:
            break
        chosen.append(name)
    return chosen, is_run


class Planter:
    """A runner that plants faults in a copy of the tree, and runs their tests."""

    def __init__(self, folder, record):
        self.folder, self.record = folder, record
        copy_tree(folder)

    def built(self):
        """Compile the copy's library for one instruction set; return the variables that name its folder, or None."""
        folder = self.folder / "out"
        command = [sys.executable, "setup.py", "-q", "build_ext", "--isa", ISA, "--build-lib", str(folder)]
        flags = {"CXXFLAGS": "-O1 -w", "SNNIPU_REQUIRE_NATIVE": "1"}
        done = subprocess.run(command, cwd=self.folder, env={**os.environ, **flags}, capture_output=True, check=False)
        return {"SNNIPU_NATIVE_DIR": str(folder / "snnipu" / "_native")} if done.returncode == 0 else None

    def is_noticed(self, path, number):
        """Return (noticed, fault in words, is_run); noticed is True, False, or None if undecided."""
        source = (ROOT / path).read_text(encoding="utf-8")
        text, words, statement = plant(path, source, number)
        tests, is_run = tests_of(self.record, path, statement)
        if not tests:
            return False, words, False
        (self.folder / path).write_text(text, encoding="utf-8")
        variables = self.built() if path.startswith("csrc/") else {}
        list_of_tests = self.folder.with_suffix(".txt")
        list_of_tests.write_text("\n".join(tests), encoding="utf-8")
        options = ["-x", f"@{list_of_tests}"]
        done = None if variables is None else run_tests(self.folder, options, 10 * SECONDS_OF_TESTS, **variables)
        (self.folder / path).write_text(source, encoding="utf-8")
        if variables is None:
            return None, words, is_run
        if done is not None and done.returncode == 0:
            return False, words, is_run
        failures = [line for line in done.stdout.split("\n") if line.startswith("FAILED ")] if done else []
        failed = [test for test in tests if any(line.startswith(f"FAILED {test}") for line in failures)]
        if failed:  # check that the fault is the reason
            alone = run_tests(self.folder, [max(failed, key=len)])
            if alone.returncode != 0:
                tqdm.write(f"without a fault, this test fails alone: {failed}")
                return None, words, is_run
        return True, words, is_run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes of the first pass")
    parser.add_argument("--places", nargs="*", default=PLACES, help="patterns for git ls-files")
    parser.add_argument("--numbers", nargs="*", type=int, help="plant only these faults of each file")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="run only these, with a shorter first pass")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "out" / "mutants", help="folder for the record of the first pass"
    )
    arguments = parser.parse_args()
    files = [
        path for path in tracked(*arguments.places) if path.endswith((".py", ".cpp", ".hpp")) and "/triton/" not in path
    ]
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in files}
    faults = [(path, number) for path, source in sources.items() for number in range(len(places(path, source)))]
    random.Random(arguments.seed).shuffle(faults)
    if arguments.numbers is not None:
        faults = [fault for fault in faults if fault[1] in arguments.numbers]
    record = record_lines(arguments.folder, arguments.jobs, arguments.tests)
    counts = {True: 0, False: 0, None: 0}
    with tempfile.TemporaryDirectory() as folder:
        planter, end = Planter(Path(folder) / "copy", record), time.monotonic() + arguments.seconds
        for path, number in tqdm(faults, unit="fault", disable=None):
            if time.monotonic() > end:
                break
            is_noticed, words, is_run = planter.is_noticed(path, number)
            counts[is_noticed] += 1
            if is_noticed is False:
                why = "no test noticed" if is_run else "no test runs the line of"
                tqdm.write(f"{why} fault {number} of {path}, {words}")
    print(f"{counts[True]} of {counts[True] + counts[False]} faults were noticed, of {len(faults)} in all;")
    print(f"{counts[None]} more did not compile, or their test fails without a fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
