"""Binned recordings on the disk, kept from run to run: a file each, in a folder for each choice of settings.

Environment: ``SNNIPU_EVENT_CACHE``, the folder of these folders, or 0 for none.
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
# Number of folders that are kept; the folder with the oldest last entry is removed first.
KEPT = 50
# To be increased when the layout of an entry changes.
_FORMAT = 2
# A file that changed less long ago may change again without another time stamp.
_SETTLED_SECONDS = 2.0
# The cache removes folders with this suffix alone: SNNIPU_EVENT_CACHE may hold other folders.
_SUFFIX = ".events"
_DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> Optional[Path]:
    """Return the folder of all caches, which need not exist; None: nothing is to be kept."""
    given = os.environ.get(VARIABLE, "")
    if given == "0":
        return None
    try:
        return Path(given).expanduser().absolute() if given else cache_folder("events")
    except RuntimeError:  # the user has no home
        return None


class DiskCache:
    """Bytes for recordings; a method warns, and raises nothing, where the disk fails.

    An entry is used as long as its checksum is right and its recording's file has the size and the times that it had
    before it was read. Any number of processes and threads may use a cache at once.

    Args:
        settings: what the entries depend on besides the recordings' files: numbers, words, None, lists and dicts.
        files: the file of each recording.

    Attributes:
        path: the folder; None: nothing is to be kept.
    """

    def __init__(self, settings: Dict[str, Any], files: Sequence[str]) -> None:
        text = json.dumps([_FORMAT, __version__, sys.byteorder, settings], sort_keys=True)
        self._files = files
        where = folder()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path: Optional[Path] = None if where is None else where / f"{digest}{_SUFFIX}"

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
        """Keep ``content``; ``stamp`` is the state of the file that :meth:`get` gave before the recording was read."""
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
        """The recording, and size and times of its file; None where there is no file."""
        try:
            status = os.stat(self._files[index])
        except OSError:  # an error of whoever reads it
            return None
        times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        return f"{times} {self._file_name(index)}".encode()


def _remove_oldest(root: Path) -> None:
    for path in sorted(root.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _is_settled(stamp: bytes) -> bool:
    changed = max(map(int, stamp.split()[1:3])) / 1e9
    return not abs(time.time() - changed) < _SETTLED_SECONDS
