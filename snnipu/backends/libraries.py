"""Find the folder of the native libraries: in the package, or in an installed snnipu.

``python -m snnipu`` in a clone imports the clone's package, which has no libraries until they are built in place. The
clone then uses the libraries of an installed snnipu, if these were built from the same sources. Environment:
``SNNIPU_NATIVE_DIR``, a folder to use instead, without a comparison of sources.
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
REBUILD = "`SNNIPU_REQUIRE_NATIVE=1 python setup.py build_ext --inplace` there builds it again"


class NativeFolder(NamedTuple):
    """A folder of native libraries; ``problem`` is the reason why they must not be used, or None."""

    folder: Path
    problem: Optional[str]


def _has_libraries(folder: Path) -> bool:
    return any(folder.glob(_native_sources.HERE.library("*")))


def header_folder() -> Path:
    """Return the folder of the C headers: the copy in the package, or ``csrc`` of its checkout."""
    for folder in (PACKAGE / "_ipu_sources" / "csrc", PACKAGE.parent / "csrc"):
        if (folder / "host" / "neuron.hpp").is_file():
            return folder
    raise FileNotFoundError(f"the headers of neurons are neither in {PACKAGE / '_ipu_sources'} nor in a checkout")


def package_folder() -> Path:
    """Return the folder for native libraries in this package, which may be empty."""
    return PACKAGE / "_native"


def _installed_folders() -> Iterator[Path]:
    """Yield the library folders of other snnipu packages of this version on ``sys.path``, including editable ones."""
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
            if folder != package_folder() and _has_libraries(folder):
                yield folder


def _other_sources(folder: Path, sources: str) -> Optional[str]:
    """Return the reason if the libraries in ``folder`` were not built from ``sources`` (a fingerprint), else None."""
    record = _native_sources.record(folder)
    if record is None:
        return f"the native library in {folder} has no record of what it was built from"
    if record.get("sources") != sources:
        return f"the native library in {folder} was built from other sources than those in {PACKAGE.parent}"
    return None


@lru_cache(maxsize=1)
def _find() -> NativeFolder:
    package = package_folder()
    sources = _native_sources.fingerprint(PACKAGE.parent)
    if sources is None:
        # An installed package has no sources to compare: its libraries were installed with it.
        return NativeFolder(package, None if _has_libraries(package) else _not_built(package))
    problems: List[str] = []
    for folder in [*([package] if _has_libraries(package) else []), *_installed_folders()]:
        problem = _other_sources(folder, sources)
        if problem is None:
            return NativeFolder(folder, None)
        problems.append(problem)
    return NativeFolder(package, f"{'; '.join(problems)}: {REBUILD}" if problems else _not_built(package))


def _not_built(folder: Path) -> str:
    reason = folder / "build_failed.txt"
    why = f" ({reason.read_text().strip()})" if reason.is_file() else ""
    return f"the native library was not built{why}: {BUILD_HINT}"


def find() -> NativeFolder:
    """Return the folder of the native libraries, with the reason if they cannot be used.

    It is ``SNNIPU_NATIVE_DIR``, the folder of this package, or that of an installed snnipu.
    """
    override = os.environ.get("SNNIPU_NATIVE_DIR")
    if override:
        folder = Path(override)
        return NativeFolder(folder, None if _has_libraries(folder) else _not_built(folder))
    return _find()


def native_folder() -> Path:
    """Return the folder of the native libraries; see :func:`find`."""
    return find().folder
