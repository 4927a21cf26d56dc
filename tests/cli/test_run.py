"""``python -m snnipu run``: PopTorch scripts on this machine, with and without replacing snnTorch."""

import functools
import signal
import textwrap
import time

import pytest
from support.commands import refusal

from snnipu.cli import run

# A typical PopTorch script, which does not import snnipu.
DIGITS = """
    import argparse
    import popart
    import torch
    import torch.nn as nn
    import poptorch
    import poptorch.optim
    import snntorch as snn
    from sklearn.datasets import load_digits
    from snntorch import surrogate
    from snntorch.functional import loss as SF

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))
    opts = poptorch.Options()
    opts.deviceIterations(2)
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    opts.outputMode(poptorch.OutputMode.All)
    loader = poptorch.DataLoader(options=opts, dataset=dataset, batch_size=64, shuffle=True, num_workers=2)


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            grad = surrogate.fast_sigmoid()
            self.fc1 = nn.Linear(64, 64)
            self.lif1 = snn.Leaky(beta=0.9, spike_grad=grad)
            self.fc2 = nn.Linear(64, 10)
            self.lif2 = snn.Leaky(beta=0.9, spike_grad=grad)
            self.loss_fn = SF.ce_count_loss()

        def forward(self, x, labels=None):
            mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
            spikes, membranes = [], []
            for _ in range(5):
                spk, mem1 = self.lif1(self.fc1(x), mem1)
                spk, mem2 = self.lif2(self.fc2(spk), mem2)
                spikes.append(spk)
                membranes.append(mem2)
            spikes = torch.stack(spikes).sum(0)
            if self.training:
                return spikes, poptorch.identity_loss(self.loss_fn(torch.stack(membranes), labels), "none")
            return spikes


    if __name__ == "__main__":
        net = Model()
        optimizer = poptorch.optim.Adam(net.parameters(), lr=0.01)
        model = poptorch.trainingModel(net, options=opts, optimizer=optimizer)
        for epoch in range(args.epochs):
            correct = total = 0
            for data, labels in loader:
                output, loss = model(data.half(), labels)
                assert output.shape == (128, 10) and loss.shape == (2,)
                correct += (output.argmax(1) == labels).sum().item()
                total += len(labels)
        print(type(net.lif1).__module__.split(".")[0], "accuracy", correct / total)
"""


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write


@pytest.fixture
def snnipu(command, tmp_path):
    """Return a function that runs ``python -m snnipu run`` in a new process, from another folder."""
    return functools.partial(
        command,
        "run",
        cwd=tmp_path,
        env={"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
        # A background job of a shell ignores Ctrl-C, and so do its child processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize("drop_in", [True, False])
def test_a_script_runs_unmodified_and_learns(script, snnipu, drop_in):
    status, out, err = finish(snnipu("--drop-in" if drop_in else "", script(DIGITS), "--epochs 4"))
    assert status == 0, err
    package, _, accuracy = out.split()
    assert package == ("snnipu" if drop_in else "snntorch")
    assert float(accuracy) > 0.85


@pytest.mark.slow
def test_every_way_to_import_poptorch_gives_one_module(script, snnipu):
    status, out, err = finish(
        snnipu(
            script(
                """
                import poptorch, sys
                import poptorch.optim as optim
                import poptorch.enums
                from poptorch import OutputMode, trainingModel
                from poptorch.options import Options
                from poptorch.poptorch_core import Error
                from snnipu import poptorch as ours
                assert poptorch is ours is sys.modules["poptorch"]
                assert optim is poptorch.optim is ours.optim
                assert OutputMode is ours.enums.OutputMode and Options is ours.Options and Error is ours.Error
                try:
                    import poptorch.nothing
                except ModuleNotFoundError as error:
                    print(error)
                import popart
                for attempt in (lambda: popart.Session, lambda: poptorch.autocast):
                    try:
                        attempt()
                    except poptorch.Error as error:
                        print(error)
                """
            )
        )
    )
    assert status == 0, err
    lines = out.splitlines()
    assert "poptorch.nothing" in lines[0]
    assert "popart.Session is not available" in lines[1]
    assert "poptorch.autocast is not available" in lines[2]


@pytest.mark.slow
def test_drop_in_resolves_every_name_of_snntorch(script, snnipu):
    status, out, err = finish(
        snnipu(
            "--drop-in",
            script(
                """
                import importlib.metadata
                import importlib.util
                import sys
                import snnipu
                import snntorch
                import snntorch as snn
                import snntorch.functional
                import snntorch.functional.loss
                import snntorch.spikegen
                import snntorch.spikeplot as splt
                import snntorch.utils
                from snntorch import backprop, spikegen, surrogate
                from snntorch import functional as SF
                from snntorch.functional import loss, reg
                from snntorch.surrogate import atan
                import snntorch._neurons
                import snntorch._neurons.leaky as leaky_module
                from snntorch._neurons import Leaky, SpikingNeuron
                from snntorch._neurons.leaky import Leaky as DeepLeaky
                assert snn.MultiStep is snnipu.MultiStep
                assert Leaky is DeepLeaky is leaky_module.Leaky is snntorch._neurons.Leaky is snn.Leaky
                assert snntorch._neurons.leaky is leaky_module and SpikingNeuron in Leaky.__mro__
                assert issubclass(snn.Leaky, sys.modules["snntorch._neurons.lapicque"].LIF)
                assert snnipu.__version__ != snntorch.__version__ == importlib.metadata.version("snntorch")
                assert snntorch.__name__ == "snntorch" == importlib.util.find_spec("snntorch").name
                names = {}
                exec("from snntorch import *", names)
                assert names["Leaky"] is snn.Leaky and names["Synaptic"] is snn.Synaptic
                assert {"Leaky", "MultiStep", "Synaptic"} <= set(dir(snntorch))
                assert snn.Leaky is snnipu.Leaky
                assert SF is snnipu.functional is snntorch.functional
                assert surrogate is snnipu.surrogate
                assert spikegen is snnipu.spikegen
                assert SF.ce_rate_loss and loss.ce_rate_loss and splt.raster and snntorch.utils.reset
                assert snn.LeakyParallel.__module__.startswith("snntorch")
                assert isinstance(snn.Leaky(beta=0.5), snn.Leaky)
                for name in ("backprop", "export_nir", "import_nir"):
                    print(name, importlib.util.find_spec("snntorch." + name) is not None)
                try:
                    import snntorch.nothing
                except ModuleNotFoundError as error:
                    print(error)
                """
            ),
        )
    )
    assert status == 0, err
    assert out.splitlines()[0] == "backprop True"
    assert "No module named 'snntorch.nothing'" in out


def test_arguments_path_and_name_are_the_scripts(script, snnipu, tmp_path):
    script("value = 41", name="folder/neighbour.py")
    file = script(
        """
        import sys
        from neighbour import value
        print(__name__, sys.argv[1:], value + 1, __file__ == sys.argv[0])
        """,
        name="folder/main.py",
    )
    status, out, err = finish(snnipu(file, "--drop-in -x 1"))
    assert (status, err) == (0, "")
    assert out == "__main__ ['--drop-in', '-x', '1'] 42 True\n"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "status"), [("3", 3), ("", 0), ("'stopped'", 1)])
def test_exit_codes_pass_through(script, snnipu, code, status):
    assert finish(snnipu(script(f"import sys; sys.exit({code})")))[0] == status


@pytest.mark.slow
def test_exceptions_show_the_scripts_own_traceback(script, snnipu):
    status, _, err = finish(
        snnipu(
            script(
                """
                def inner():
                    raise KeyError("mine")
                inner()
                """
            )
        )
    )
    assert status == 1
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "script.py" in lines[1]
    assert lines[-1] == "KeyError: 'mine'"
    assert "snnipu" not in err


@pytest.mark.slow
def test_an_interrupt_gives_130(script, snnipu):
    process = snnipu(script("import time; print('ready', flush=True); time.sleep(60)"))
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


def test_a_missing_script_is_an_error_of_usage(capsys, tmp_path):
    missing = str(tmp_path / "nothing.py")
    assert run.main([missing]) == 2
    assert f"there is no script {missing!r}" in capsys.readouterr().err
    assert run.main([str(tmp_path)]) == 2
    assert "usage" in refusal(capsys, run.main)


@pytest.mark.slow
def test_spawned_workers_find_the_same_modules(script, snnipu, tmp_path):
    path = script(
        """
        import poptorch
        import popdist.poptorch
        import torch

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                import poptorch.optim
                return torch.tensor([index, int(poptorch.is_host_runtime)])

        if __name__ == "__main__":
            loader = poptorch.DataLoader(
                poptorch.Options(), Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn"
            )
            print(next(iter(loader)).tolist(), popdist.getNumTotalReplicas())
        """
    )
    status, out, err = finish(snnipu(path))
    assert (status, out) == (0, "[[0, 1], [1, 1], [2, 1], [3, 1]] 1\n"), err


def test_ipus_that_the_host_stands_for(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text("import poptorch; print(poptorch.ipuHardwareIsAvailable(2), poptorch.ipuHardwareIsAvailable(3))")
    monkeypatch.setenv("SNNIPU_IPUS", "0")  # restored, as the command sets it
    assert run.main(["--ipus", "2", str(script)]) == 0
    assert capsys.readouterr().out == "True False\n"
