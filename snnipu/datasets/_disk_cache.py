"""A cache of binned recordings on the disk: one file each, in a folder for each choice of settings.

The environment variable ``SNNIPU_EVENT_CACHE`` names the parent of these folders; 0 disables the cache.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

from snnipu._files import cache_folder
from snnipu._version import __version__

VARIABLE = "SNNIPU_EVENT_CACHE"
# Maximum number of folders; the folder with the oldest last entry is removed first.
MAX_FOLDERS = 50
# Increase this number when the layout of an entry changes.
_FORMAT = 2
# A file that changed more recently may change again with the same time stamp.
_SETTLED_SECONDS = 2.0
# The cache only removes folders with this suffix: SNNIPU_EVENT_CACHE may hold other folders.
_SUFFIX = ".events"
_DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> Optional[Path]:
    """Return the parent folder of all caches, which need not exist; None if the cache is disabled."""
    setting = os.environ.get(VARIABLE, "")
    if setting == "0":
        return None
    try:
        return Path(setting).expanduser().absolute() if setting else cache_folder("events")
    except RuntimeError:  # the user has no home folder
        return None


class DiskCache:
    """A cache of bytes for recordings; its methods warn instead of raising if the disk fails.

    An entry is valid while its checksum is right and its recording's file has the size and the times that it had before
    it was read. Any number of processes and threads may use a cache at the same time.

    Args:
        settings: the settings on which the entries depend, besides the files: numbers, words, None, lists and dicts.
        files: the file of each recording.

    Attributes:
        path: the folder; None if the cache is disabled.
    """

    def __init__(self, settings: Dict[str, Any], files: Sequence[str]) -> None:
        text = json.dumps([_FORMAT, __version__, sys.byteorder, settings], sort_keys=True)
        self._files = files
        parent = folder()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path: Optional[Path] = None if parent is None else parent / f"{digest}{_SUFFIX}"

    def get(self, index: int) -> Tuple[Optional[bytes], Optional[bytes]]:
        """Return the bytes of a recording, or None, and the state of the recording's file."""
        stamp = self._stamp(index)
        if self.path is None or stamp is None:
            return None, stamp
        try:
            content = (self.path / self._file_name(index)).read_bytes()
        except OSError:
            return None, stamp
        digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return content if digest == hashlib.sha256(stamp + content).digest() else None, stamp

    def put(self, index: int, stamp: Optional[bytes], content: bytes) -> None:
        """Store ``content``; ``stamp`` is the state of the file that :meth:`get` returned before reading it."""
        if self.path is None or stamp is None or not _is_settled(stamp):
            return
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                _remove_oldest(self.path.parent)
            (self.path / self._file_name(index)).write_bytes(hashlib.sha256(stamp + content).digest() + content)
        except OSError as error:
            warnings.warn(
                f"binned recordings are not kept on the disk, {self.path}: {error.strerror or error} "
                f"({VARIABLE} names another folder; 0: none)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _file_name(self, index: int) -> str:
        return hashlib.sha256(f"{index} {self._files[index]}".encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def _stamp(self, index: int) -> Optional[bytes]:
        """Return size, times and name of the recording's file; None if there is no file."""
        try:
            status = os.stat(self._files[index])
        except OSError:  # the reader of the file reports the error
            return None
        times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        return f"{times} {self._file_name(index)}".encode()


def _remove_oldest(root: Path) -> None:
    for path in sorted(root.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)[:-MAX_FOLDERS]:
        shutil.rmtree(path, ignore_errors=True)


def _is_settled(stamp: bytes) -> bool:
    changed = max(map(int, stamp.split()[1:3])) / 1e9
    return not abs(time.time() - changed) < _SETTLED_SECONDS
