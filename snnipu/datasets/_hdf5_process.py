"""A script, run as a process of its own by ``_hdf5.py``: writes the recordings of an HDF5 file to standard output.

HDF5 keeps no checksum of what it stores, and its library trusts what it reads: a damaged file can send it round for
ever, ask for all memory there is, or crash it, and Python cannot interrupt it. Another process can.

The output is an archive of ``numpy.savez``: labels, and times and units of all recordings with the length of each.
"""

import io
import os
import sys

import h5py
import numpy as np

# Memory that the library may ask for beyond what it has at its start: a fixed part, and so many times the file.
MEMORY_BYTES, MEMORY_FILES = 2**29, 8
KINDS = {"labels": "iu", "spikes/times": "iuf", "spikes/units": "iu"}


def limit_memory(file_bytes):
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
        most = present + MEMORY_BYTES + MEMORY_FILES * file_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        pass  # not on this system


def opened(file, name):
    """The data set and the type of its numbers, which HDF5 need not convert."""
    try:
        data = file[name]
        stored, kind = data.id.get_type(), data.dtype
        if name != "labels":
            stored, kind = stored.get_super(), h5py.check_vlen_dtype(kind)
        if kind.kind not in KINDS[name] or not stored.equal(h5py.h5t.py_create(kind)):
            raise ValueError(f"stored as no {kind}")
    except Exception as error:
        raise ValueError(f"{name} cannot be read ({error})") from error
    return data, kind


def read(path):
    file_bytes = os.path.getsize(path)
    limit_memory(file_bytes)
    with h5py.File(path, "r") as file:
        (labels, _), *columns = (opened(file, name) for name in KINDS)
        shapes = [labels.shape, *(data.shape for data, _ in columns)]
        if len(labels.shape) != 1 or len(set(shapes)) > 1:
            raise ValueError(
                f"labels of shape {shapes[0]}, spikes/times of shape {shapes[1]} and spikes/units of shape "
                f"{shapes[2]}: expected one of each per recording"
            )
        # A recording takes a label and two references of 16 bytes.
        if not 0 < labels.shape[0] * 16 <= file_bytes:
            raise ValueError(f"it holds {labels.shape[0] or 'no'} recordings in {file_bytes} bytes")
        found = {"labels": labels[()]}
        for name, (data, kind) in zip(("times", "units"), columns):
            recordings = [np.asarray(recording, kind) for recording in data[()]]
            found[f"{name}_lengths"] = np.array([len(recording) for recording in recordings])
            found[name] = np.concatenate(recordings)
    if found["times"].nbytes + found["units"].nbytes > file_bytes:
        raise ValueError("its recordings take more bytes than it has")
    return found


if __name__ == "__main__":
    try:
        archive = io.BytesIO()
        np.savez(archive, **read(sys.argv[1]))
    except Exception as error:
        sys.exit(f"{error or type(error).__name__}")
    sys.stdout.buffer.write(archive.getbuffer())
