"""Binned recordings on the disk: kept from run to run, in files of SQLite, one for each data set and set of options.

Environment: ``SNNIPU_EVENT_CACHE``, the folder, or 0 for none; ``SNNIPU_EVENT_CACHE_SIZE``, what it may hold.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from snnipu._files import cache_folder
from snnipu._version import __version__
from snnipu.backends.memory import bytes_of

try:
    import sqlite3
except ImportError:  # a Python built without it
    sqlite3 = None  # type: ignore[assignment]

VARIABLE, SIZE_VARIABLE = "SNNIPU_EVENT_CACHE", "SNNIPU_EVENT_CACHE_SIZE"
SIZE = "20G"
# Of what an entry's bytes mean: another number makes other files.
_FORMAT = 1
# A file that changed less long ago may change again without another time stamp.
_SETTLED_SECONDS = 2.0
# How long another process may keep the file locked before it is gone on without it.
_WAIT_SECONDS = 10.0
# Writes of a process from one look at the size of the folder to the next.
_WRITES_PER_LOOK = 100

_told: Set[str] = set()


def folder() -> Optional[Path]:
    """Where the files are, which need not exist; None: nothing is to be kept."""
    given = os.environ.get("SNNIPU_EVENT_CACHE", "")
    if given == "0":
        return None
    return Path(given).expanduser().absolute() if given else cache_folder("events")


def size_limit() -> int:
    """Bytes that all files may have together.

    Raises:
        ValueError: the environment variable is no size.
    """
    text = os.environ.get("SNNIPU_EVENT_CACHE_SIZE", SIZE)
    size = bytes_of(text)
    if size is None:
        raise ValueError(f"{SIZE_VARIABLE} must be a size such as 512M or 4G, got {text!r}")
    return size


class Place(NamedTuple):
    """A recording: a file, and which of the file's recordings."""

    path: str
    number: int = 0


class Found(NamedTuple):
    """What the cache knows of a recording: its bytes, or None; and how its file looked before it was read."""

    content: Optional[bytes]
    stamp: Optional[bytes]


class Usage(NamedTuple):
    recordings: int
    bytes: int


class DiskCache:
    """Bytes for recordings, in one file; no method raises where the disk or the file fails.

    An entry is of use as long as its recording's file has the size and the times that it had before it was read, and
    the entry's checksum is right. Every call opens the file anew: a cache may be pickled, and used after a fork, by any
    number of processes and threads at once.

    Args:
        name: first part of the file's name.
        settings: all that the entries depend on besides the recordings' files: numbers, words, None, lists and dicts.
    """

    def __init__(self, name: str, settings: Dict[str, Any]) -> None:
        text = json.dumps([_FORMAT, __version__, sys.byteorder, settings], sort_keys=True)
        self._file = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.sqlite"
        self._settings = text
        self._used = False
        self._writes = 0

    @property
    def path(self) -> Optional[Path]:
        """The file; None where nothing is to be kept."""
        if sqlite3 is None:
            _tell(f"this Python has no sqlite3: binned recordings are not kept on the disk ({VARIABLE}=0: on purpose)")
            return None
        try:
            where = folder()
        except RuntimeError as error:  # a user without a home
            _tell(f"binned recordings are not kept on the disk: {error}; {VARIABLE} names a folder for them")
            return None
        return None if where is None else where / self._file

    def get(self, places: Sequence[Place]) -> List[Found]:
        """What is known of each recording."""
        path = self.path
        if path is None:
            return [Found(None, None)] * len(places)
        stamps = [_stamp(place.path) for place in places]
        contents: List[Optional[bytes]] = [None] * len(places)

        def read(database: Any) -> None:
            query = "SELECT stamp, content, checksum FROM recordings WHERE path = ? AND number = ?"
            for at, (place, stamp) in enumerate(zip(places, stamps)):
                row = None if stamp is None else database.execute(query, place).fetchone()
                if row is not None and row[0] == stamp and isinstance(row[1], bytes):
                    contents[at] = row[1] if row[2] == _checksum(place, row[0], row[1]) else None

        if path.is_file():
            if not self._used:
                with contextlib.suppress(OSError):
                    os.utime(path)  # the file that was not asked for longest goes first
                self._used = True
            self._run(path, read)
        return [Found(content, stamp) for content, stamp in zip(contents, stamps)]

    def put(self, entries: Sequence[Tuple[Place, Optional[bytes], bytes]]) -> None:
        """Keep contents, with the stamps that :meth:`get` gave before the recordings were read."""
        path = self.path
        rows = [
            (place.path, place.number, stamp, content, _checksum(place, stamp, content))
            for place, stamp, content in entries
            if stamp is not None and _is_settled(stamp)
        ]
        if path is None or not rows or not self._has_room(path):
            return

        def write(database: Any) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.execute("CREATE TABLE IF NOT EXISTS settings (text TEXT PRIMARY KEY)")
            database.execute("INSERT OR IGNORE INTO settings VALUES (?)", (self._settings,))
            database.execute(
                "CREATE TABLE IF NOT EXISTS recordings "
                "(path TEXT, number INTEGER, stamp BLOB, content BLOB, checksum INTEGER, PRIMARY KEY (path, number))"
            )
            database.executemany("INSERT OR REPLACE INTO recordings VALUES (?, ?, ?, ?, ?)", rows)
            database.execute("COMMIT")

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _tell(_not_kept(path, error))
        else:
            self._run(path, write)

    def usage(self) -> Usage:
        """Recordings in the file, of which some may be out of date, and the file's bytes."""
        path = self.path
        found = [0]

        def count(database: Any) -> None:
            found[:] = database.execute("SELECT COUNT(*) FROM recordings").fetchone()

        if path is None or not path.is_file():
            return Usage(0, 0)
        self._run(path, count)
        return Usage(found[0], path.stat().st_size if path.is_file() else 0)

    def _run(self, path: Path, action: Callable[[Any], object]) -> None:
        """``action`` of the database; what goes wrong with it ends it, no more. A damaged file is removed."""
        database = None
        try:
            database = sqlite3.connect(str(path), timeout=_WAIT_SECONDS, isolation_level=None)
            # What is lost in a crash of the machine is binned again.
            database.execute("PRAGMA synchronous = OFF")
            action(database)
        except sqlite3.OperationalError as error:
            text = str(error)
            if "no such table" not in text and "locked" not in text:  # new, or busy
                _tell(_not_kept(path, error))
        except sqlite3.DatabaseError as error:
            _tell(f"the cache of binned recordings {path} is damaged ({error}): it is made anew")
            if database is not None:
                database.close()
            for name in (path, path.with_name(path.name + "-journal")):
                with contextlib.suppress(OSError):
                    name.unlink()
        finally:
            if database is not None:
                database.close()

    def _has_room(self, path: Path) -> bool:
        """Whether the file may grow; others make room, the one first that was not used longest."""
        self._writes += 1
        limit = size_limit()
        try:
            own = path.stat().st_size if path.is_file() else 0
            if self._writes % _WRITES_PER_LOOK == 1:
                others = [(other.stat(), other) for other in path.parent.glob("*.sqlite") if other.name != path.name]
                total = own + sum(stat.st_size for stat, _ in others)
                for stat, other in sorted(others, key=lambda entry: entry[0].st_mtime):
                    if total <= limit:
                        break
                    other.unlink()
                    total -= stat.st_size
        except OSError:  # another process was faster
            return True
        if own >= limit:
            _tell(
                f"the cache of binned recordings {path} has grown to {SIZE_VARIABLE}="
                f"{os.environ.get(SIZE_VARIABLE, SIZE)}: no more are kept on the disk"
            )
        return own < limit


def _stamp(path: str) -> Optional[bytes]:
    try:
        found = os.stat(path)
    except OSError:  # whoever reads it says so
        return None
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}".encode()


def _is_settled(stamp: bytes) -> bool:
    changed = max(map(int, stamp.split()[1:])) / 1e9
    return not abs(time.time() - changed) < _SETTLED_SECONDS


def _checksum(place: Place, stamp: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(repr((*place, stamp)).encode("utf-8", "surrogateescape")))


def _not_kept(path: Path, error: Exception) -> str:
    what = getattr(error, "strerror", None) or error
    return f"binned recordings are not kept on the disk, {path}: {what} ({VARIABLE} names another folder; 0: none)"


def _tell(message: str) -> None:
    """Once in a process."""
    if message not in _told:
        _told.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


__all__ = ["DiskCache", "Found", "Place", "Usage", "folder", "size_limit"]
