"""Some sequences of ``make fuzz-calls``, and checks that it finds state left over from an earlier call."""

import pytest
from support.call_sequences import KINDS, SLOW, drawn, failure, shorten
from support.versions import needs_backend, needs_native

import snnipu as snn
from snnipu.backends import host_sparse
from snnipu.ops import _fixed

SEQUENCES = 5
# Compiled at their first calls, by PyTorch or the machine's C++ compiler.
COMPILED = {**dict.fromkeys(SLOW, 1), "own neuron": SEQUENCES}


def wrong(name, sequences):
    return {seed: error for seed in range(sequences) if (error := failure(name, seed, drawn(KINDS[name], seed)))}


@pytest.mark.parametrize("name", [name for name in KINDS if name not in COMPILED])
def test_calls_are_those_of_fresh_layers(name):
    assert not wrong(name, SEQUENCES)


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_calls_are_those_of_fresh_layers(name):
    assert not wrong(name, COMPILED[name])


def first_failure(name, seeds=40):
    """Return the first failing sequence in its shortest form."""
    seed = next(seed for seed in range(seeds) if failure(name, seed, drawn(KINDS[name], seed)))
    return shorten(name, seed, drawn(KINDS[name], seed))


def test_a_number_that_depends_on_earlier_calls_is_seen(monkeypatch):
    sequence = snn.Leaky.sequence

    def again(self, x, *states, **how):
        self.calls = self.__dict__.get("calls", 0) + 1
        result = sequence(self, x, *states, **how)
        return result if self.calls == 1 else (result[0], result[1] * (1 + 1e-6))

    monkeypatch.setattr(snn.Leaky, "sequence", again)
    assert [operation.is_call for operation in first_failure("Leaky")] == [True, True]


@needs_native
def test_a_weight_that_was_packed_before_is_seen(monkeypatch):
    """A change by way of .data keeps the weight's memory and version."""
    monkeypatch.setattr(_fixed, "identity", lambda weight: id(weight))
    monkeypatch.setattr(host_sparse, "_fingerprint", lambda weight: 0)
    assert len(first_failure("SparseLinear")) <= 4


def test_an_error_of_earlier_calls_is_seen(monkeypatch):
    forward = snn.SynapticDelay.sequence

    def refused(self, x):
        result = forward(self, x)
        self.shape = self.__dict__.get("shape", x.shape)
        if self.shape != x.shape:
            raise ValueError("x must have the shape of the first call")
        return result

    monkeypatch.setattr(snn.SynapticDelay, "sequence", refused)
    assert [operation.is_call for operation in first_failure("SynapticDelay")] == [True, True]
