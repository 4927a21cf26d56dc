"""What the native libraries are built from, as one number; and by what: the compiler and its flags.

The number is kept beside them, and compared where sources are at hand. ``setup.py`` runs this file by itself: it needs
the standard library alone.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

# Contraction of multiply and add would break the equality, bit by bit, with PyTorch.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
X86_FLAGS: Dict[str, List[str]] = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
}

# Beside the libraries, written when all of them have been built.
RECORD = "built_from.json"
_FOLDERS = ("csrc", "custom_ops")
_SUFFIXES = (".cpp", ".hpp", ".h")


def find_compiler() -> List[str]:
    """The words that call the C++ compiler: ``CXX``, else the first of the usual names on the ``PATH``."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("no C++ compiler found (looked for $CXX, c++, g++, clang++)")


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
