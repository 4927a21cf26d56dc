"""A script that ``_hdf5.py`` runs as a process: it writes the recordings of an HDF5 file to standard output.

HDF5 stores no checksums, and its library trusts what it reads. A damaged file can make it loop forever, allocate all
memory or crash. Python cannot interrupt it; a parent process can.

The output is an archive of ``numpy.savez``: labels, and times and units of all recordings with the length of each.
"""

import io
import os
import sys

import h5py
import numpy as np

# Limit of the memory beyond that of the process at its start: a constant, plus a multiple of the file's size.
MEMORY_BYTES, MEMORY_FILES = 2**29, 8
KINDS = {"labels": "iu", "spikes/times": "iuf", "spikes/units": "iu"}


def limit_memory(file_bytes):
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
        limit = present + MEMORY_BYTES + MEMORY_FILES * file_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        pass  # this system has no such limit


def opened(file, name):
    """Return the data set and the type of its numbers, which HDF5 must not need to convert."""
    try:
        data = file[name]
        stored_type, dtype = data.id.get_type(), data.dtype
        if name != "labels":
            stored_type, dtype = stored_type.get_super(), h5py.check_vlen_dtype(dtype)
        if dtype.kind not in KINDS[name] or not stored_type.equal(h5py.h5t.py_create(dtype)):
            raise ValueError(f"stored as no {dtype}")
    except Exception as error:
        raise ValueError(f"{name} cannot be read ({error})") from error
    return data, dtype


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
        # A recording needs a label and two references of 16 bytes in all.
        if not 0 < labels.shape[0] * 16 <= file_bytes:
            raise ValueError(f"it holds {labels.shape[0] or 'no'} recordings in {file_bytes} bytes")
        arrays = {"labels": labels[()]}
        for name, (data, dtype) in zip(("times", "units"), columns):
            recordings = [np.asarray(recording, dtype) for recording in data[()]]
            arrays[f"{name}_lengths"] = np.array([len(recording) for recording in recordings])
            arrays[name] = np.concatenate(recordings)
    if arrays["times"].nbytes + arrays["units"].nbytes > file_bytes:
        raise ValueError("its recordings take more bytes than it has")
    return arrays


if __name__ == "__main__":
    try:
        archive = io.BytesIO()
        np.savez(archive, **read(sys.argv[1]))
    except Exception as error:
        sys.exit(f"{error or type(error).__name__}")
    sys.stdout.buffer.write(archive.getbuffer())
