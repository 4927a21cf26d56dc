"""Run the tests with other versions of Python, PyTorch, NumPy and snnTorch, in one environment each: ``make matrix``.

A row runs if its Python is on this machine; otherwise it names the missing version. If pip only finds PyTorch with
CUDA, empty libraries replace CUDA's gigabytes (``cuda_stubs.py``). A snnTorch of ``1.0.0+next`` is a copy of 1.0.0 that
behaves as its next release (``next_snntorch.py``). ``--installed`` makes one row of the Python that runs this script
and its installed PyTorch, which tests a system's own packages.
"""

import argparse
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

import cuda_stubs
import next_snntorch

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ["tests/ops", "tests/neurons", "tests/functional", "tests/compiler", "tests/test_passthrough.py"]
TESTS += ["tests/test_surrogate.py", "tests/test_generator.py", "tests/test_native.py"]
TESTS += ["tests/test_installed.py"]
# The packages left out of an environment (by prefixes of their names), and the folder of the libraries instead.
OF_CUDA, STUBS = ("nvidia-", "cuda-", "triton"), "cuda_stubs"
# The environment's folder for the copy of snnTorch's next release, and the suffix of its version.
COPY, NEXT = "next_snntorch", "+next"
NEEDS = ["pytest", "pytest-xdist", "hypothesis", "expecttest"]


class Row(NamedTuple):
    """The versions of a row; an empty version is chosen by pip."""

    python: str
    torch: str
    numpy: str
    snntorch: str


ROWS = [
    "3.8:2.0.1:1:0.9.1",
    "3.8:2.4.1:1:0.9.1",
    "3.9:2.6.0:2:0.9.4",
    "3.10:2.9.1:1:1.0.0",
    "3.11:2.0.1:1:1.0.0",
    "3.11:2.13.0:1:0.9.1",
    "3.11:2.13.0:1:0.9.4",
    "3.11:2.13.0:2:1.0.0",
    "3.11:2.13.0:2:1.0.0+next",
    "3.12:2.9.1:2:1.0.0",
    "3.13:2.13.0:2:1.0.0",
    "3.14:2.14.1:2:1.0.0",
    "3.14::2:1.0.0",
]


class Missing(Exception):
    """The reason why a row cannot run on this machine."""


def python_of(version: str) -> str:
    """Return a Python of this version from the PATH, pyenv or uv."""
    homes = [os.environ.get("PYENV_ROOT", "~/.pyenv") + "/versions/", "~/.local/share/uv/python/cpython-"]
    candidates = [shutil.which(f"python{version}")]
    for home in homes:
        candidates += sorted(glob.glob(f"{os.path.expanduser(home)}{version}.*/bin/python{version}"))
    for path in candidates:
        # pyenv's shims of versions that are not active only print a message.
        if path and subprocess.run([path, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            return path
    raise Missing(f"no python{version}")


def requirements(row: Row) -> Dict[str, str]:
    """Return pip's requirements by name."""
    numpy = {"": "numpy", "1": "numpy<2", "2": "numpy>=2"}[row.numpy]
    return {
        "torch": f"torch=={row.torch}" if row.torch else "torch",
        "numpy": numpy,
        "snntorch": f"snntorch=={row.snntorch.replace(NEXT, '')}" if row.snntorch else "snntorch",
    }


def environment(row: Row, python: str, folder: Path, installed: bool) -> Path:
    """Set up the environment in ``folder``, and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", *(["--system-site-packages"] if installed else []), str(folder)], check=True)
    interpreter = folder / "bin" / "python"
    pip = [str(interpreter), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--upgrade", "pip", "setuptools", "wheel"], check=True)
    packages = requirements(row)
    if installed:
        # The system provides its dependencies, PyTorch possibly under another name.
        subprocess.run([*pip, "install", "--no-deps", packages["snntorch"]], check=True)
        subprocess.run([*pip, "install", "tqdm", *NEEDS], check=True)
        return interpreter
    plan = subprocess.run(
        [*pip, "install", "--dry-run", "--report", "-", packages["torch"], packages["numpy"]],
        capture_output=True,
        text=True,
    )
    if plan.returncode != 0:
        lines = [line for line in plan.stderr.splitlines() if line.startswith("ERROR")]
        raise Missing(lines[-1][len("ERROR: ") :] if lines else "pip failed")
    resolved = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(plan.stdout)["install"]}
    ours = [f"{name}=={version}" for name, version in resolved.items() if not name.startswith(OF_CUDA)]
    with_cuda = len(ours) < len(resolved)
    if with_cuda and not (sys.platform == "linux" and all(map(shutil.which, ("cc", "nm", "objdump", "readelf")))):
        raise Missing(f"{packages['torch']} for Python {row.python} brings CUDA's libraries here")
    subprocess.run([*pip, "install", "--no-deps", *ours], check=True)
    if with_cuda:
        (site,) = folder.glob("lib/python*/site-packages")
        cuda_stubs.make(site, folder / STUBS)
        (metadata,) = site.glob("torch-*.dist-info/METADATA")
        lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
        needed = tuple(f"Requires-Dist: {name}" for name in OF_CUDA)
        metadata.write_text("".join(line for line in lines if not line.startswith(needed)), encoding="utf-8")
    subprocess.run([*pip, "install", packages["snntorch"], packages["numpy"], "tqdm", *NEEDS], check=True)
    if row.snntorch.endswith(NEXT):
        subprocess.run(
            [str(interpreter), next_snntorch.__file__, str(folder / COPY)], stdout=subprocess.DEVNULL, check=True
        )
    return interpreter


def variables(python: Path) -> Dict[str, str]:
    """Return the environment variables for processes of an environment."""
    folder = python.parent.parent.absolute()
    stubs, copies = folder / STUBS, [str(folder / COPY)] if (folder / COPY).is_dir() else []
    path = os.pathsep.join([*copies, str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, **({"LD_LIBRARY_PATH": str(stubs)} if stubs.is_dir() else {})}


def versions(python: Path) -> Row:
    """Return the installed versions."""
    code = "import platform, torch, numpy, snntorch as s; print(platform.python_version(), torch.__version__, "
    code += "numpy.__version__, s.__version__)"
    command = [str(python), "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=variables(python), stdout=subprocess.PIPE, text=True, check=True)
    return Row(*done.stdout.split())


def run_tests(python: Path, tests: List[str], jobs: int, log: Path) -> str:
    """Run pytest and return its last line."""
    command = [str(python), "-m", "pytest", "-q", "--show-capture=no", "--dist", "loadfile", "-n", str(jobs), *tests]
    named = {"SNNIPU_HYPOTHESIS_EXAMPLES": os.environ.get("SNNIPU_HYPOTHESIS_EXAMPLES", "5")}
    with log.open("w") as file:
        subprocess.run(
            command, cwd=str(ROOT), env={**variables(python), **named}, stdout=file, stderr=subprocess.STDOUT
        )
    lines = log.read_text().splitlines()
    summaries = [match.group(1) for match in (re.search(r"(\d+ \w+.*) in [\d.]+s", line) for line in lines) if match]
    return summaries[-1] if summaries else f"no result: {lines[-1] if lines else 'nothing was printed'}"


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="matrix.py", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "matrix", help="for environments and logs")
    parser.add_argument("--row", action="append", metavar="PYTHON:TORCH:NUMPY:SNNTORCH", help="only these rows")
    parser.add_argument("--installed", action="store_true", help="this Python with its installed PyTorch")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files and folders of tests")
    args = parser.parse_args(argv)
    rows = [Row(*text.split(":")) for text in args.row or ROWS]
    if args.installed:
        rows = [Row(".".join(map(str, sys.version_info[:2])), "", "", "")]
    args.folder.mkdir(parents=True, exist_ok=True)
    table = ["| date | Python | PyTorch | NumPy | snnTorch | tests |", "| --- | --- | --- | --- | --- | --- |"]
    print(*table, sep="\n", flush=True)
    failed = False
    for row in rows:
        folder = args.folder / "-".join(["installed"] if args.installed else [each or "newest" for each in row])
        shown = row
        try:
            path = sys.executable if args.installed else python_of(row.python)
            python = environment(row, path, folder, args.installed)
            shown = versions(python)
            result = run_tests(python, args.tests, args.jobs, Path(f"{folder}.log"))
            failed = failed or " failed" in result or " error" in result or result.startswith("no result")
        except Missing as error:
            result = f"not run: {error}"
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"| {datetime.date.today()} | {' | '.join(each or 'newest' for each in shown)} | {result} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
