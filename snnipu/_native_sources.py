"""What the native libraries are built from, as one number.

It is kept beside them, and compared where sources are at hand. ``setup.py`` runs this file by itself: it needs the
standard library alone.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Optional

# Beside the libraries, written when all of them have been built.
RECORD = "built_from.json"
_FOLDERS = ("csrc", "custom_ops")
_SUFFIXES = (".cpp", ".hpp", ".h")


def fingerprint(root: Path) -> Optional[str]:
    """SHA-256 of the sources in ``root``, ``setup.py`` with its flags among them; None where ``root`` has none."""
    if not ((root / "setup.py").is_file() and (root / "csrc" / "host").is_dir()):
        return None
    files = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES]
    files += [*(root / "snnipu").glob("equations.py"), *(root / "snnipu" / "_generator").glob("*.py")]
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
