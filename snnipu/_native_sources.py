"""The compiler and the flags of the native libraries, and a fingerprint of their sources.

The build stores the fingerprint in the folder of the libraries. It is compared if the sources are available.
``setup.py`` runs this file alone, so it may import only the standard library.
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

# With contraction of multiply and add, results would not be bitwise equal to PyTorch's.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
X86_FLAGS: Dict[str, List[str]] = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
}

# On Windows only ziglang is used: GCC does not align the stack as AVX needs it, and MSVC has no vector types.
_COMPILERS = () if sys.platform == "win32" else ("c++", "g++", "clang++")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# ziglang's names of the oldest systems that PyTorch 2 supports. Without a target, ziglang compiles for this processor.
_ZIG_TARGETS = {"linux": "{}-linux-gnu.2.17", "darwin": "{}-macos.11.0", "windows": "{}-windows-gnu"}

# Name of a file in the folder of the libraries, which is written when all of them have been built.
RECORD = "built_from.json"
_FOLDERS = ("csrc", "custom_ops")
_SUFFIXES = (".cpp", ".hpp", ".h")


class BuildTarget(NamedTuple):
    """The system and the machine for which libraries are built.

    Attributes:
        system: ``linux``, ``darwin``, ``windows`` or ``unknown``.
        machine: ``x86_64``, ``aarch64`` or another one.
    """

    system: str
    machine: str

    def library(self, name: str) -> str:
        """Return the file name of the library ``name``. It ends in .so on a Mac too, as Python's extensions do."""
        return f"libsnnipu-{name}{'.dll' if self.system == 'windows' else '.so'}"

    def link_flags(self, name: str) -> List[str]:
        """Return the linker's flags for the library ``name``, which follow its objects."""
        if self.system == "darwin":
            return [f"-Wl,-install_name,@rpath/{self.library(name)}"]
        return ["-ldl"] if self.system == "linux" else []


def _machine(name: str) -> str:
    return _MACHINES.get(name.lower(), name.lower())


HERE = BuildTarget(platform.system().lower(), _machine(platform.machine()))


def target_of(compiler: Sequence[str]) -> BuildTarget:
    """Return the target of ``compiler``."""
    if "-target" in compiler:
        triple = compiler[compiler.index("-target") + 1].lower()
    else:
        triple = first_output_line([*compiler, "-dumpmachine"]).lower()
    names = {"linux": "linux", "darwin": "darwin", "macos": "darwin", "windows": "windows", "mingw": "windows"}
    system = next((system for name, system in names.items() if name in triple), "unknown")
    return BuildTarget(system, _machine(triple.split("-")[0]))


def find_compiler() -> List[str]:
    """Return the command of the C++ compiler as words.

    It is that of ``CXX``. Else it is the first of the usual names on the ``PATH`` that works, or else the Clang of the
    package ziglang.

    Raises:
        RuntimeError: there is no compiler.
    """
    if os.environ.get("CXX"):
        # In a Windows path, a backslash is not an escape character.
        words = shlex.split(os.environ["CXX"].replace("\\", "/") if sys.platform == "win32" else os.environ["CXX"])
        is_zig = Path(words[0]).stem == "zig" or "ziglang" in words
        return [*words, "-target", _zig_target()] if is_zig and "-target" not in words else words
    for name in _COMPILERS:
        # A Mac without a compiler has a c++ that only prints how to install one.
        if shutil.which(name) and _works(name):
            return [name]
    zig = _ziglang()
    if zig is not None:
        return [str(zig), "c++", "-target", _zig_target()]
    raise RuntimeError(
        f"no C++ compiler found (looked for {', '.join(['$CXX', *_COMPILERS])}, and for ziglang, "
        "which `pip install ziglang` installs)"
    )


def _works(name: str) -> bool:
    try:
        return bool(first_output_line([name, "--version"]))
    except (RuntimeError, OSError):
        return False


def _ziglang() -> Optional[Path]:
    """Return the program of the package ziglang, or None.

    During a build, pip hides the packages of the environment from imports, but their folder can be searched.
    """
    spec = importlib.util.find_spec("ziglang")
    folders = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    folders += [Path(sysconfig.get_path(name)) / "ziglang" for name in ("purelib", "platlib")]
    programs = (folder / ("zig.exe" if sys.platform == "win32" else "zig") for folder in folders)
    return next((program for program in programs if program.is_file()), None)


def _zig_target() -> str:
    if HERE.system not in _ZIG_TARGETS:
        raise RuntimeError(f"ziglang: no target is known for {platform.system()}; name one in CXX by -target")
    return _ZIG_TARGETS[HERE.system].format(HERE.machine)


def first_output_line(command: Sequence[str]) -> str:
    """Run a compiler, and return the first line that it prints. Raise RuntimeError if it fails or prints nothing."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout.strip()[:200] or 'no message'}")
    return done.stdout.splitlines()[0].strip()


def fingerprint(root: Path) -> Optional[str]:
    """Return the SHA-256 of the native sources in ``root``, this file and setup.py included; None if there are none."""
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
    """Return the record of the build that made the libraries in ``folder``; None if there is none."""
    try:
        contents = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return contents if isinstance(contents, dict) else None
