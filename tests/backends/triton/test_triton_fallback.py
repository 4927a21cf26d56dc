"""A GPU without Triton, and the messages of the backend's helpers about wrong use; no GPU is needed."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from oracle import reference_of
from support.leaky_operator import backward_arguments, flat, forward_arguments

from snnipu import backends
from snnipu.backends import triton as backend
from snnipu.cli import main
from snnipu.ops import _library

OPERATORS = ["neuron_sequence_fwd", "neuron_sequence_bwd"]
ARGUMENTS = forward_arguments(torch.randn(4, 3), None, [torch.tensor(v) for v in (0.9, 1.0, 1.0)])


@pytest.fixture
def missing(monkeypatch):
    """Pretend that Triton cannot be imported."""
    monkeypatch.setattr(backend, "_import_error", lambda: "Triton cannot be imported (a reason)")
    backend._warn.cache_clear()
    yield
    backend._warn.cache_clear()


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("operator", OPERATORS)
def test_registered_for_cuda(operator):
    assert _library.REGISTERED[operator]["CUDA"].__name__ == operator


@pytest.mark.slow
def test_import_leaves_triton_alone():
    """An import of Triton would take time, and a broken Triton must not break the CPU."""
    script = "import sys, snnipu, torch; "
    alone = run_python("import sys, torch, snntorch; print([n for n in sys.modules if n.split('.')[0] == 'triton'])")
    assert run_python(script + "print([n for n in sys.modules if n.split('.')[0] == 'triton'])") == alone


def test_warns_once_and_runs_the_reference(missing):
    kernel = _library.REGISTERED["neuron_sequence_fwd"]["CUDA"]
    with pytest.warns(RuntimeWarning, match=r"slow PyTorch reference on the GPU: Triton cannot be .* \(a reason\)"):
        actual = kernel(*ARGUMENTS)
    for result, other in zip(flat(actual), flat(reference_of("neuron_sequence_fwd")(*ARGUMENTS))):
        assert torch.equal(result, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(*ARGUMENTS)
        backward = backward_arguments(ARGUMENTS, (actual[0], None), (3, 2.0, 0.0), states=actual[1][0])
        assert len(flat(_library.REGISTERED["neuron_sequence_bwd"]["CUDA"](*backward))) == 5


def test_what_runs_is_told(missing, monkeypatch, capsys):
    cuda = torch.device("cuda")
    assert backends.backend_for("lif_sequence", cuda) == backends.backend_for("lif_step", cuda) == "reference"
    assert "a reason" in backends.why_reference(cuda)
    assert main(["info", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)["backends"]["cuda"]
    assert not report["available"]
    assert "a reason" in report["reason"]


@pytest.mark.slow
def test_triton_that_cannot_be_imported():
    """The reason contains the original error."""
    output = run_python(
        "import sys; sys.modules['triton'] = None\n"
        "from snnipu.backends import triton\n"
        "print(triton.unavailable_reason())"
    )
    assert "Triton cannot be imported (ModuleNotFoundError" in output
    assert "pip install triton" in output


def test_gpu_that_is_too_old(monkeypatch):
    if backend.unavailable_reason() is not None:
        pytest.skip(backend.unavailable_reason())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla P100")
    monkeypatch.setattr(torch.version, "hip", None)
    for capability, expected in (((6, 0), "reference"), ((9, 0), "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index, result=capability: result)
        backend._too_old.cache_clear()
        assert backends.backend_for("lif_sequence", torch.device("cuda")) == expected
        why = backends.why_reference(torch.device("cuda", 0))
        assert (why is None) == (expected == "triton")
        assert why is None or why == "Triton needs a GPU of compute capability 7.0, Tesla P100 has 6.0"
    backend._too_old.cache_clear()


def test_launch_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="tensors must be on a CUDA device, got cpu"):
        backend.check_launch(x, None)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend.check_launch(x, None) == x.device
    with pytest.raises(ValueError, match="tensors must be on one device, got"):
        backend.check_launch(x, torch.zeros(3, device="meta"))


@pytest.mark.parametrize("number", [0.1, 1e30, -25.0, 0.0, float("inf"), -float("inf"), 3.141592653589793])
def test_split(number):
    high, low = backend.split(number)
    assert torch.tensor(high, dtype=torch.float32).item() == high
    total = high + torch.tensor(low, dtype=torch.float32).item()
    assert total == number or abs(total / number - 1) < 2**-47
