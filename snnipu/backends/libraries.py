"""Where the native libraries are: beside the package, or, for a source tree that has none, in an installed snnipu.

``python -m snnipu`` in a clone imports the clone's package, which has no libraries until they are built in place. Those
of an installed snnipu serve it as well, if they were built from the very sources that the clone has. Environment:
``SNNIPU_NATIVE_DIR``, the folder to use instead, whatever it was built from.
"""

import json
import os
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional
from urllib.parse import unquote, urlparse

from snnipu import _native_sources
from snnipu._version import __version__

PACKAGE = Path(__file__).resolve().parent.parent
BUILD_HINT = (
    "build it with a C++17 compiler (GCC or Clang) installed, in a source tree of snnipu: "
    "`SNNIPU_REQUIRE_NATIVE=1 pip install .`"
)
REBUILD = "`SNNIPU_REQUIRE_NATIVE=1 python setup.py build_ext --inplace` there builds it anew"


class Found(NamedTuple):
    """A folder, and why its libraries must not be used (None: they may be)."""

    folder: Path
    problem: Optional[str]


def _has_libraries(folder: Path) -> bool:
    return any(folder.glob(_native_sources.HERE.library("*")))


def header_folder() -> Path:
    """Return the folder of the C headers: the package's copy, or that of its checkout."""
    for folder in (PACKAGE / "_ipu_sources" / "csrc", PACKAGE.parent / "csrc"):
        if (folder / "host" / "neuron.hpp").is_file():
            return folder
    raise FileNotFoundError(f"the headers of neurons are neither in {PACKAGE / '_ipu_sources'} nor in a checkout")


def own_folder() -> Path:
    """The folder of the package itself."""
    return PACKAGE / "_native"


def _installed() -> Iterator[Path]:
    """Folders of the other snnipus of this version on ``sys.path``: installed ones, and checkouts of editable ones."""
    for distribution in metadata.distributions(name="snnipu"):
        if distribution.version != __version__:
            continue
        packages = [Path(str(distribution.locate_file("snnipu")))]
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        except ValueError:
            origin = {}
        if origin.get("dir_info", {}).get("editable"):
            packages.append(Path(unquote(urlparse(origin.get("url", "")).path)) / "snnipu")
        for package in packages:
            folder = package.resolve() / "_native"
            if folder != own_folder() and _has_libraries(folder):
                yield folder


def _other_sources(folder: Path, sources: str) -> Optional[str]:
    """Why the libraries in ``folder`` are not those of ``sources``."""
    record = _native_sources.record(folder)
    if record is None:
        return f"the native library in {folder} does not tell what it was built from"
    if record.get("sources") != sources:
        return f"the native library in {folder} was built from other sources than those in {PACKAGE.parent}"
    return None


@lru_cache(maxsize=1)
def _find() -> Found:
    own = own_folder()
    sources = _native_sources.fingerprint(PACKAGE.parent)
    if sources is None:
        # An installed package: its libraries came with it.
        return Found(own, None if _has_libraries(own) else _not_built(own))
    problems: List[str] = []
    for folder in [*([own] if _has_libraries(own) else []), *_installed()]:
        problem = _other_sources(folder, sources)
        if problem is None:
            return Found(folder, None)
        problems.append(problem)
    return Found(own, f"{'; '.join(problems)}: {REBUILD}" if problems else _not_built(own))


def _not_built(folder: Path) -> str:
    reason = folder / "build_failed.txt"
    why = f" ({reason.read_text().strip()})" if reason.is_file() else ""
    return f"the native library was not built{why}: {BUILD_HINT}"


def find() -> Found:
    """Where the native libraries are, and why they cannot be used."""
    override = os.environ.get("SNNIPU_NATIVE_DIR")
    if override:
        folder = Path(override)
        return Found(folder, None if _has_libraries(folder) else _not_built(folder))
    return _find()


def native_folder() -> Path:
    """``SNNIPU_NATIVE_DIR``, the folder of the package, or that of an installed snnipu."""
    return find().folder
