"""A pytest plugin: an emulator runs a native library of another machine in place of the host's.

    SNNIPU_EMULATE="qemu-aarch64 -L /usr/aarch64-linux-gnu RUNNER LIBRARY" pytest -p support.emulated_library tests/ops

Every call of a C function goes to a process that runs ``kernel_runner.cpp``. Tensors are sent to it and received from
it. The tests do not change.
"""

import ctypes
import os
import shlex
import struct
import subprocess

import torch

from snnipu.backends import host, host_sparse, neurons, sparse_call


class Address(int):
    """A tensor's address."""


_data_ptr = torch.Tensor.data_ptr
# Address -> bytes of the tensors whose address was read: pointers in a structure carry no size.
_asked = {}


def _address(tensor):
    address = Address(_data_ptr(tensor))
    _asked[address] = tensor.numel() * tensor.element_size()
    return address


# Functions whose argument is the address of a call, an array of words.
_CALLS = {"snnipu_neuron_forward": neurons.Call, "snnipu_neuron_backward": neurons.Call}
_CALLS.update({f"snnipu_{name}": sparse_call.Call for name in sparse_call.SIGNATURES})


def _pointers(structure):
    """Return offset and value of each pointer in a structure that is not null."""
    pairs = []
    for name, kind in structure._fields_:
        offset, value = getattr(type(structure), name).offset, getattr(structure, name)
        if kind is ctypes.c_void_p:
            pairs.append((offset, value))
        elif issubclass(kind, ctypes.Array) and kind._type_ is ctypes.c_void_p:
            pairs += [(offset + place * ctypes.sizeof(kind._type_), pointer) for place, pointer in enumerate(value)]
    return [pair for pair in pairs if pair[1]]


def _buffer(address, buffers):
    """Add the tensor at an address to ``buffers``, and return its size and bytes as a message."""
    buffers.append((address, _asked[address]))
    return struct.pack("=Q", _asked[address]) + ctypes.string_at(address, _asked[address])


def _packed_pointers(pairs, buffers):
    """Return the number of pointers, and each as its offset and its buffer, as a message."""
    messages = [struct.pack("=Q", offset) + _buffer(pointer, buffers) for offset, pointer in pairs]
    return struct.pack("=Q", len(pairs)) + b"".join(messages)


def _take_numbers(structure, sent):
    """Copy the integers of the received structure; its pointers belong to the other process."""
    for name, kind in structure._fields_:
        if kind is ctypes.c_int64:
            setattr(structure, name, getattr(type(structure).from_buffer_copy(sent), name))


class EmulatedLibrary:
    """A replacement of ``host.library`` for a library that this processor cannot run."""

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.calls = 0
        self._isa, self._thread_runtime, self._best_isa = self._process.stdout.readline().split()

    def snnipu_isa(self):
        return self._isa

    def snnipu_best_isa(self):
        return self._best_isa

    def snnipu_thread_runtime(self):
        return self._thread_runtime

    def __getattr__(self, name):
        if not name.startswith("snnipu_"):
            raise AttributeError(name)
        if name.endswith("_call_size"):
            return getattr(host_library, name)
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name, arguments):
        buffers = []
        if name in _CALLS:
            call = _CALLS[name].from_address(arguments[0])
            values = [
                struct.pack("=cQ", b"s", ctypes.sizeof(call)),
                bytes(call),
                _packed_pointers(_pointers(call), buffers),
            ]
        else:
            values = [
                b"b" + _buffer(value, buffers) if isinstance(value, Address) else struct.pack("=cq", b"i", value)
                for value in arguments
            ]
        head = struct.pack("=Q", len(name)) + name.encode() + struct.pack("=Q", len(arguments))
        self._send(head + b"".join(values))
        while self._receive(1, name) == b"r":
            self._make_room(name, call, buffers)
        result = struct.unpack("=q", self._receive(8, name))[0]
        if name in _CALLS:
            _take_numbers(call, self._receive(ctypes.sizeof(call), name))
        for address, size in buffers:
            ctypes.memmove(address, self._receive(size, name), size)
        self.calls += 1
        return result & (2**64 - 1) if name == "snnipu_fingerprint" else result

    def _make_room(self, name, call, buffers):
        """Run the callback that makes room, and send its new pointers to the process."""
        call.output_slots = struct.unpack("=q", self._receive(8, name))[0]
        before = _pointers(call)
        call.most = 0
        call.room(ctypes.addressof(call))
        new_pointers = [pair for pair in _pointers(call) if pair not in before]
        self._send(struct.pack("=q", call.most) + _packed_pointers(new_pointers, buffers))

    def _send(self, message):
        self._process.stdin.write(message)
        self._process.stdin.flush()

    def _receive(self, size, name):
        received = self._process.stdout.read(size)
        assert len(received) == size, f"{name}: the emulated process ended with {self._process.wait()}"
        return received

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


host_library = host.library


def pytest_configure(config):
    assert host_library is not None, f"the types of the functions are the host's: {host.unavailable_reason}"
    host.library = EmulatedLibrary(shlex.split(os.environ["SNNIPU_EMULATE"]))
    torch.Tensor.data_ptr = _address


def pytest_terminal_summary(terminalreporter):
    best = host.library.snnipu_best_isa().decode()
    of = f"{host.isa()}, the best is {best}, threads by {host.thread_runtime()}"
    terminalreporter.write_line(f"{host.library.calls} calls of the emulated library ({of})")


def pytest_unconfigure(config):
    torch.Tensor.data_ptr = _data_ptr
    library, host.library = host.library, host_library
    host_sparse._cache.clear()
    neurons.built_in_kernels.cache_clear()
    library.close()
