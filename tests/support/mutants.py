"""Faults of one word, planted one at a time in a copy of the package, and whether its tests notice: ``make mutants``.

``python tests/support/mutants.py --seconds 600 --seed 0 --packages compiler ops`` draws faults and prints those that no
test noticed; ``--only snnipu/ops/_derivative.py --numbers 3 4`` plants these of one file.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent.parent
# Of each package, where its tests are.
TESTS = {
    "compiler": ["tests/compiler", "tests/test_compiler.py"],
    "ops": ["tests/ops", "tests/test_op_parts.py"],
    "neurons": ["tests/neurons"],
    "backends": ["tests/backends", "tests/ops"],
    "poptorch": ["tests/poptorch"],
    "training": ["tests/test_training.py", "tests/test_training_events.py", "tests/test_training_low_activity.py"],
    "online": ["tests/online"],
}
EXCHANGED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip
SECONDS_OF_TESTS = 600


def places(tree):
    """The nodes that a fault may be in: not types, defaults of the command line, decorators, or what an error says."""
    found, left = [], [tree]
    while left:
        node = left.pop()
        if isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.arguments)):
            continue
        if isinstance(node, ast.Raise):
            found.append(node)
            continue
        if isinstance(node, ast.FunctionDef):
            left.extend(node.body)
            continue
        if faulty(node) is not None:
            found.append(node)
        left.extend(ast.iter_child_nodes(node))
    return sorted(found, key=lambda node: (node.lineno, node.col_offset, type(node).__name__))


def faulty(node):
    """The text of the node with a fault; None: it gets none."""
    if isinstance(node, ast.Raise):
        return "pass"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in EXCHANGED:
        made = ast.Compare(node.left, [EXCHANGED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        made = ast.BoolOp(EXCHANGED[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        made = node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in EXCHANGED:
        made = ast.BinOp(node.left, EXCHANGED[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        made = ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        made = ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        made = ast.Constant(node.value + 1)
    else:
        return None
    return f"({ast.unparse(made)})"


def planted(source, number):
    """The source with fault ``number``, and that fault in words."""
    node = places(ast.parse(source))[number]
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    stop = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole, text = source.encode(), faulty(node)
    return (
        whole[:start] + text.encode() + whole[stop:]
    ).decode(), f"line {node.lineno}: {whole[start:stop].decode()} -> {text}"


def is_noticed(copy, tests):
    """Whether a test fails, or hangs."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "SNNIPU_HYPOTHESIS_EXAMPLES": "10", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(copy)
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS_OF_TESTS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)  # 5: it found no test


def tests_of(path):
    """Those that are named after the file, then those of its package."""
    package = path.split("/")[1]
    stem = Path(path).stem.strip("_")
    named = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob(f"test_{stem}*.py"))
    return [tests for tests in (named, TESTS[package]) if tests]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="*", choices=list(TESTS), default=list(TESTS))
    parser.add_argument("--only", help="one file, snnipu/ops/_derivative.py")
    parser.add_argument("--numbers", nargs="*", type=int, help="faults of that file")
    arguments = parser.parse_args()
    folders = [ROOT / "snnipu" / name for name in arguments.packages]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files = [arguments.only] if arguments.only else [str(path.relative_to(ROOT)) for path in paths]
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in files if "/triton/" not in path}
    faults = [(path, number) for path, source in sources.items() for number in range(len(places(ast.parse(source))))]
    random.Random(arguments.seed).shuffle(faults)
    if arguments.numbers is not None:
        faults = [fault for fault in faults if fault[1] in arguments.numbers]
    right = set()
    end, noticed, missed = time.monotonic() + arguments.seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in kept.split("\n")[:-1]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        (copy / "snnipu" / "_native").symlink_to(ROOT / "snnipu" / "_native")
        for path, number in tqdm(faults, unit="fault"):
            if time.monotonic() > end:
                break
            text, words = planted(sources[path], number)
            for tests in map(tuple, tests_of(path)):
                if tests not in right and is_noticed(copy, tests):
                    parser.error(f"without a fault, these tests fail: {' '.join(tests)}")
                right.add(tests)
            (copy / path).write_text(text, encoding="utf-8")
            if any(is_noticed(copy, tests) for tests in tests_of(path)):
                noticed += 1
            else:
                missed += 1
                tqdm.write(f"no test noticed fault {number} of {path}, {words}")
            (copy / path).write_text(sources[path], encoding="utf-8")
    print(f"{noticed} of {noticed + missed} faults were noticed, out of {len(faults)} that there are")
    return 0


if __name__ == "__main__":
    sys.exit(main())
