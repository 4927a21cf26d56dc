"""PopDist: one instance, and two instances that train one model."""

import textwrap

import pytest
import torch
from support.commands import python, words
from support.operators import needs_host_runtime
from support.poptorch_models import refused

from snnipu import popdist
from snnipu.popdist import poptorch as popdist_poptorch

pytestmark = needs_host_runtime


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_NUM_IPUS_PER_REPLICA"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_instance():
    popdist.init()
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (1, 0)
    assert (popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()) == (1, 1, 0)
    popdist.synchronize()


def test_a_launcher_sets_the_number_of_instances(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3"), ("POPDIST_NUM_LOCAL_REPLICAS", "4")):
        monkeypatch.setenv(name, value)
    assert popdist.isPopdistEnvSet()
    assert (popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()) == (12, 4)
    options = popdist_poptorch.Options()
    assert (options.replication_factor, options.Distributed.processId, options.Distributed.numProcesses) == (4, 1, 3)
    popdist.checkNumIpusPerReplica(1)
    with refused("the launcher gives 1 IPUs a replica"):
        popdist_poptorch.Options(ipus_per_replica=2)
    ran = [popdist.execute_on_instances(chosen)(lambda: 1)() for chosen in ({0}, {1, 2})]
    assert ran == [None, 1]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "3", "RANK and WORLD_SIZE must be numbers, RANK below WORLD_SIZE"),
        ("RANK", "one", "RANK and WORLD_SIZE must be numbers"),
        ("POPDIST_NUM_LOCAL_REPLICAS", "0", "POPDIST_NUM_LOCAL_REPLICAS must be a number of at least 1, got '0'"),
    ],
)
def test_invalid_variables_are_refused(monkeypatch, name, value, message):
    for variable, text in {"RANK": "0", "WORLD_SIZE": "2", name: value}.items():
        monkeypatch.setenv(variable, text)
    with refused(message):
        popdist_poptorch.Options()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda options: options.useIpuId(1), "useIpuId"),
        (lambda options: options.replicationFactor(1), "replicationFactor"),
        (lambda options: options.Distributed.disable(), "Distributed.disable"),
        (lambda options: options.Distributed.setEnvVarNames("A", "B"), "Distributed.setEnvVarNames"),
        (lambda options: options.Distributed.configureProcessId(1), "Distributed.configureProcessId"),
    ],
)
def test_settings_of_the_launcher_cannot_be_changed(change, name):
    for options in (popdist_poptorch.Options(), popdist_poptorch.Options().clone()):
        with pytest.raises(RuntimeError, match=rf"Cannot call `{name}` with popdist\.poptorch\.Options"):
            change(options)


def test_missing_parts_of_poptorch_are_refused():
    with refused("getDeviceId is not available"):
        popdist.getDeviceId()


SCRIPT = """
    import atexit, os
    import poptorch
    import popdist, popdist.poptorch
    import torch

    # Runs after the function that init() registers: threads of a group that outlive the interpreter may abort.
    atexit.register(lambda: os._exit(3) if torch.distributed.is_initialized() else None)
    popdist.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    weights = [p.detach().clone() for p in model.parameters()]

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = model

        def forward(self, x):
            return poptorch.identity_loss(self.fc(x).square().mean(), "mean")

    options = popdist.poptorch.Options().randomSeed(1)
    options.Training.gradientAccumulation(2)
    data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(8, 3) / 24)
    loader = poptorch.DataLoader(options, data, batch_size=1)
    net = Loss()
    wrapped = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    seen = 0
    for (x,) in loader:
        wrapped(x)
        seen += len(x)

    @popdist.execute_on_instances({0})
    def show():
        print(seen, [round(float(w), 5) for p in model.parameters() for w in p.flatten()])

    show()
"""


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    launcher = words("-m torch.distributed.run --standalone --nproc-per-node 2 -m snnipu run", script)
    done = python(*launcher, timeout=300)
    # A single process trains on the same batches: the first instance reads the first half of the data.
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.arange(24.0).reshape(8, 3) / 24
    for step in (0, 2):
        optimizer.zero_grad()
        model(torch.cat([data[step : step + 2], data[4 + step : 6 + step]])).square().mean().backward()
        optimizer.step()
    seen, _, weights = done.stdout.strip().partition(" ")
    assert seen == "4"
    trained = torch.tensor([float(text) for text in weights.strip("[]").split(",")])
    torch.testing.assert_close(
        trained, torch.cat([p.detach().flatten() for p in model.parameters()]), rtol=0, atol=2e-5
    )
