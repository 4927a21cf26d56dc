"""What the native libraries are built from, as one number; and by what: the compiler and its flags.

The number is kept beside them, and compared where sources are at hand. ``setup.py`` runs this file by itself: it needs
the standard library alone.
"""

import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

# Contraction of multiply and add would break the equality, bit by bit, with PyTorch.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
X86_FLAGS: Dict[str, List[str]] = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
}

# GCC for Windows does not align the stack as AVX needs it, and Microsoft's compiler lacks vectors as a type.
_COMPILERS = () if sys.platform == "win32" else ("c++", "g++", "clang++")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# The oldest systems that PyTorch 2 is for, as ziglang names its targets. Untold it compiles for this very processor.
_ZIG_TARGETS = {"linux": "{}-linux-gnu.2.17", "darwin": "{}-macos.11.0", "windows": "{}-windows-gnu"}

# Beside the libraries, written when all of them have been built.
RECORD = "built_from.json"
_FOLDERS = ("csrc", "custom_ops")
_SUFFIXES = (".cpp", ".hpp", ".h")


class Target(NamedTuple):
    """What libraries are for: ``linux``, ``darwin`` or ``windows``, and ``x86_64``, ``aarch64`` or another machine."""

    system: str
    machine: str

    def library(self, name: str) -> str:
        """File name of the library ``name``. Python's own convention on a Mac is .so, too."""
        return f"libsnnipu-{name}{'.dll' if self.system == 'windows' else '.so'}"

    def link_flags(self, name: str) -> List[str]:
        """What the linker is told for the library ``name``, behind its objects."""
        if self.system == "darwin":
            return [f"-Wl,-install_name,@rpath/{self.library(name)}"]
        return ["-ldl"] if self.system == "linux" else []


def _machine(name: str) -> str:
    return _MACHINES.get(name.lower(), name.lower())


HERE = Target(platform.system().lower(), _machine(platform.machine()))


def target_of(compiler: Sequence[str]) -> Target:
    """What ``compiler`` compiles for."""
    if "-target" in compiler:
        triple = compiler[compiler.index("-target") + 1].lower()
    else:
        triple = said_by([*compiler, "-dumpmachine"]).lower()
    names = {"linux": "linux", "darwin": "darwin", "macos": "darwin", "windows": "windows", "mingw": "windows"}
    system = next((system for name, system in names.items() if name in triple), "unknown")
    return Target(system, _machine(triple.split("-")[0]))


def find_compiler() -> List[str]:
    """The words that call the C++ compiler: ``CXX``, else the first of the usual names on the ``PATH`` that answers,
    else the Clang of the package ziglang, where it is installed."""
    if os.environ.get("CXX"):
        # A backslash in a path of Windows is no escape.
        words = shlex.split(os.environ["CXX"].replace("\\", "/") if sys.platform == "win32" else os.environ["CXX"])
        zig = Path(words[0]).stem == "zig" or "ziglang" in words
        return [*words, "-target", _zig_target()] if zig and "-target" not in words else words
    for name in _COMPILERS:
        # A Mac has a c++ that only says what to install.
        if shutil.which(name) and _answers(name):
            return [name]
    found = _ziglang()
    if found is not None:
        return [str(found), "c++", "-target", _zig_target()]
    raise RuntimeError(
        f"no C++ compiler found (looked for {', '.join(['$CXX', *_COMPILERS])}, and for ziglang, "
        "which `pip install ziglang` installs)"
    )


def _answers(name: str) -> bool:
    try:
        return bool(said_by([name, "--version"]))
    except (RuntimeError, OSError):
        return False


def _ziglang() -> Optional[Path]:
    """The program of the package ziglang; pip hides the environment's packages from a build, but not their folder."""
    spec = importlib.util.find_spec("ziglang")
    folders = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    folders += [Path(sysconfig.get_path(name)) / "ziglang" for name in ("purelib", "platlib")]
    programs = (folder / ("zig.exe" if sys.platform == "win32" else "zig") for folder in folders)
    return next((program for program in programs if program.is_file()), None)


def _zig_target() -> str:
    if HERE.system not in _ZIG_TARGETS:
        raise RuntimeError(f"ziglang: no target is known for {platform.system()}; name one in CXX by -target")
    return _ZIG_TARGETS[HERE.system].format(HERE.machine)


def said_by(command: Sequence[str]) -> str:
    """The first line of what a compiler says."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout.strip()[:200] or 'no message'}")
    return done.stdout.splitlines()[0].strip()


def fingerprint(root: Path) -> Optional[str]:
    """SHA-256 of the sources in ``root``, those of the flags among them; None where ``root`` has none."""
    if not ((root / "setup.py").is_file() and (root / "csrc" / "host").is_dir()):
        return None
    files = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES]
    files += [*(root / "snnipu").glob("equations.py"), *(root / "snnipu").glob("_native_sources.py")]
    files += (root / "snnipu" / "_generator").glob("*.py")
    digest = hashlib.sha256()
    for path in [root / "setup.py", *sorted(files)]:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def record(folder: Path) -> Optional[Dict[str, Any]]:
    """What the libraries in ``folder`` were built from; None where that is not known."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
