"""A script, run as a process of its own by ``_hdf5.py``: copies the recordings of an HDF5 file to standard output.

HDF5 keeps no checksum of what it stores, and its library trusts what it finds: a damaged file can send it round for
ever, ask for all memory there is, or crash it, and Python cannot interrupt it. Another process can.

What is written: frames of a byte (``E`` an error, ``D`` data, ``.`` the end), 8 bytes with the length, little endian,
and the content. Data are: a JSON object with the number of recordings and the types of the rest, the labels, and for
every ``PART`` recordings the lengths of their times, of their units (int64), the times, and the units.
"""

import json
import math
import os
import struct
import sys
import time

FRAME = struct.Struct("<cQ")
PART = 256
COLUMNS = ("spikes/times", "spikes/units")
# What the library may ask for beyond what it has when it starts: a fixed part, and so many times the file.
MEMORY_BYTES, MEMORY_FILES = 2**29, 8


class Damaged(Exception):
    """The message says what is wrong."""


def send(kind, content=b""):
    stream = sys.stdout.buffer
    stream.write(FRAME.pack(kind, len(content)))
    stream.write(content)


def limit(processor_seconds, seconds, file_bytes):
    """End after so much of the processor's time, or of the clock's where nobody is left to end it, and fail where a
    damaged number asks for too much memory."""
    try:
        import resource
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds) + 5)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        most = math.ceil(time.process_time() + processor_seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        with open("/proc/self/statm", encoding="ascii") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
        most = present + MEMORY_BYTES + MEMORY_FILES * file_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, AttributeError, OSError, ValueError):
        pass  # not on this system


def columns(file, file_bytes):
    """Labels, and the two data sets of arrays of different lengths."""
    import h5py

    found = []
    for name in ("labels", *COLUMNS):
        try:
            found.append(file[name])
        except Exception as error:
            raise Damaged(f"{name} cannot be read ({error})") from error
        if not isinstance(found[-1], h5py.Dataset):
            raise Damaged(f"{name} cannot be read (it is no data set)")
    labels, *rest = found
    shapes = [part.shape for part in found]
    if len(labels.shape) != 1 or any(shape != labels.shape for shape in shapes):
        raise Damaged(
            f"labels of shape {shapes[0]}, spikes/times of shape {shapes[1]} and spikes/units of shape {shapes[2]}: "
            "expected one of each per recording"
        )
    if not labels.shape[0]:
        raise Damaged("it holds no recording")
    # A recording takes a label and two references of 16 bytes.
    if labels.shape[0] * 16 > file_bytes:
        raise Damaged(f"{labels.shape[0]} recordings in {file_bytes} bytes")
    if labels.dtype.kind not in "iu":
        raise Damaged(f"labels must be whole numbers, got {labels.dtype}")
    types = [h5py.check_vlen_dtype(part.dtype) for part in rest]
    for name, part, kind, kinds in zip(COLUMNS, rest, types, ("iuf", "iu")):
        if kind is None or kind.kind not in kinds:
            raise Damaged(f"{name} cannot be read (expected arrays of numbers, got {kind})")
        check_type(name, part.id.get_type().get_super(), kind)
    check_type("labels", labels.id.get_type(), labels.dtype)
    return labels, rest, types


def check_type(name, stored, kind):
    """The machine's own numbers, or in the other order of bytes: HDF5 would convert any other layout of bits."""
    import h5py

    if not stored.equal(h5py.h5t.py_create(kind)):
        raise Damaged(f"{name} cannot be read (stored as no {kind})")


def copy(path):
    import h5py
    import numpy as np

    file_bytes = os.path.getsize(path)
    with h5py.File(path, "r") as file:
        labels, data, types = columns(file, file_bytes)
        number, copied = labels.shape[0], 0
        header = {"recordings": number, "labels": labels.dtype.str, "types": [kind.str for kind in types]}
        send(b"D", json.dumps(header).encode())
        send(b"D", labels[()].tobytes())
        for start in range(0, number, PART):
            lengths, contents = [], []
            for name, part, kind in zip(COLUMNS, data, types):
                arrays = part[start : start + PART]
                if any(np.ndim(array) != 1 or array.dtype != kind for array in arrays):
                    raise Damaged(f"{name} cannot be read (expected arrays of {kind})")
                lengths.append(np.array([len(array) for array in arrays], dtype="<i8"))
                contents.append(b"".join(array.tobytes() for array in arrays))
            copied += sum(map(len, contents))
            if copied > file_bytes:
                raise Damaged("its recordings take more bytes than it has")
            for content in (*(length.tobytes() for length in lengths), *contents):
                send(b"D", content)
    send(b".")


def main(path, processor_seconds, seconds):
    try:
        # Before memory is limited.
        import h5py  # noqa: F401
        import numpy  # noqa: F401

        limit(processor_seconds, seconds, os.path.getsize(path))
        copy(path)
    except Exception as error:
        what = str(error) if isinstance(error, (Damaged, OSError)) else f"{type(error).__name__} {error}"
        send(b"E", what.encode("utf-8", "replace")[:2000])
    sys.stdout.buffer.flush()
    # The library has nothing to close that counts, and a damaged file may hang it even there.
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are not to be taken for others
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
