"""``train`` by several processes: they learn the weights of one process, and none waits for a process that has died."""

import multiprocessing
import os
import shlex
import signal
import socket
import sys
import time

import pytest
import torch
from support.commands import read_json, refusal, words
from support.versions import needs_gloo

from snnipu import datasets, training
from snnipu.cli import train

pytest.importorskip("sklearn")
pytestmark = needs_gloo
SMALL = "--hidden 16 --steps 5 --epochs 2 --batch-size 128 --device cpu"
LONG = f"{SMALL} --epochs 100000 --lr-decay 1"
# Generous: it guards against a hang.
LIMIT = 180
# Processes are forked from a server that has imported the modules.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["snnipu.cli.train", "sklearn.datasets"])


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def work(folder, environment, action, arguments):
    """Run ``action`` in this process, with its output in files."""
    os.chdir(folder)
    os.environ.update(environment)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}{environment['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    try:
        status = action(*arguments)
    except SystemExit as ended:
        status = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def start(folder, size, action, arguments=lambda rank: ()):
    port = free_port()
    processes = []
    for rank in range(size):
        place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        environment = {**{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1"}
        processes.append(CONTEXT.Process(target=work, args=(str(folder), environment, action, arguments(rank))))
        processes[-1].start()
    return processes


def statuses(processes):
    until = time.monotonic() + LIMIT
    for process in processes:
        process.join(max(0, until - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def command(*arguments):
    return lambda rank: (words(*arguments),)


def wait_for(path, text):
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"no {text!r} in {path}: {path.read_text() if path.exists() else 'absent'}")


def same_curves(first, second):
    for name in first["history"][0].keys() - {"seconds"}:
        assert [record[name] for record in first["history"]] == pytest.approx(
            [record[name] for record in second["history"]], rel=1e-4
        )


# ---- results


def images(accumulate, ranks):
    data = datasets.digits()
    # The last batch has one sample: most processes have no share of it.
    few = datasets.ImageData("few", *(part[:101] for part in (data.train_images, data.train_labels)),
                             *(part[:77] for part in (data.test_images, data.test_labels)), 10)  # fmt: skip
    config = training.TrainConfig(hidden=12, steps=5, epochs=2, batch_size=20)
    trainer = training.Trainer(config, few, ranks=ranks, accumulate=accumulate)
    trainer.network.double()
    trainer._train_x, trainer._test_x = trainer._train_x.double(), trainer._test_x.double()
    # Trainer would convert bfloat16 scores to float32: they stay float64.
    trainer._spikes = lambda x, spikes=trainer._spikes: _Double(spikes(x))
    return trainer


class _Double:
    def __init__(self, spikes):
        self.spikes = spikes

    def float(self):
        return self.spikes


def events(accumulate, ranks):
    data = datasets.randman(num_classes=3, samples_per_class=14, num_steps=20)
    config = training.EventConfig.for_dataset(
        "randman", steps=20, hidden=(20, 20), epochs=2, batch_size=8, max_spikes=(16, 3, 3, 3), initial_activity=0.1
    )
    trainer = training.EventTrainer(config, data, ranks=ranks, accumulate=accumulate)
    trainer.network.double()
    return trainer


KINDS = {"images": images, "events": events}


def learn(accumulate):
    """Train all kinds in this process; rank 0 saves the results."""
    torch.set_num_threads(1)
    with training.joined(timeout=LIMIT) as ranks:
        done = {}
        for kind, make in KINDS.items():
            trainer = make(accumulate, ranks)
            trainer.fit()
            done[kind] = (trainer.history, trainer.network.state_dict(), trainer.optimizer.state_dict())
        torch.save(done, f"learnt{ranks.rank}.pt")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learnt")
    assert statuses(start(folder, 3, learn, lambda rank: (2,))) == [0, 0, 0], (folder / "err0").read_text()
    return [torch.load(folder / f"learnt{rank}.pt") for rank in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_three_processes_are_one(kind, learnt):
    """Unequal and empty shares, and parts of batches: in float64 only the order of additions differs."""
    trainer = KINDS[kind](1, training.Ranks())
    trainer.fit()
    for rank in learnt:
        history, weights, _ = rank[kind]
        for record, alone in zip(history, trainer.history):
            assert record["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-6)  # a sum in float32
            for name in record.keys() - {"train_loss", "seconds"}:
                assert record[name] == alone[name], name
        for name, weight in trainer.network.state_dict().items():
            torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-12)
            assert torch.equal(weights[name], learnt[0][kind][1][name])
    if kind == "events":
        assert sum(trainer.history[-1]["train_overflow"]) > 0


def test_parts_of_a_batch_are_the_batch():
    whole, parts = images(1, None), images(3, None)
    whole.fit()
    parts.fit()
    for expected, other in zip(whole.network.parameters(), parts.network.parameters()):
        torch.testing.assert_close(expected, other, rtol=0, atol=1e-12)


def test_shares():
    for size in (1, 2, 3, 7):
        for count in (0, 1, 5, 12):
            parts = [training.Ranks(rank, size).share(count) for rank in range(size)]
            assert [index for part in parts for index in range(count)[part]] == list(range(count))
            lengths = {part.stop - part.start for part in parts}
            assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "two"}, "'two'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR expected, but not set"),
    ],
)
def test_bad_environments(monkeypatch, capsys, values, message):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message), training.joined():
        pass
    assert message in refusal(capsys, train.main, SMALL, "--no-checkpoint")


# ---- the command


@pytest.mark.slow
def test_the_first_speaks_and_writes_and_another_number_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main(words(SMALL, "--checkpoint one.pt --json one.json --epochs 3")) == 0
    two = start(tmp_path, 2, train.main, command(SMALL, "--checkpoint two.pt --json two.json"))
    assert statuses(two) == [0, 0]
    out = (tmp_path / "out0").read_text()
    assert "2 processes, 1 threads each\n" in out
    assert out.count("test accuracy: ") == 1
    assert (tmp_path / "out1").read_text() == ""
    assert read_json(tmp_path / "two.json")["processes"] == 2
    three = command(SMALL, "--resume --checkpoint two.pt --json three.json --epochs 3")
    assert statuses(start(tmp_path, 3, train.main, three)) == [0, 0, 0]
    assert "resumed after epoch 2 from " in (tmp_path / "out0").read_text()
    first, last = (read_json(tmp_path / name) for name in ("one.json", "three.json"))
    assert len(last["history"]) == 3
    same_curves(first, last)


@pytest.mark.slow
def test_sigterm_at_one_ends_all(tmp_path):
    processes = start(tmp_path, 2, train.main, command(LONG, "--checkpoint run.pt"))
    wait_for(tmp_path / "out0", "epoch 1/")
    os.kill(processes[1].pid, signal.SIGTERM)
    assert statuses(processes) == [143, 143]
    resume = (tmp_path / "out0").read_text().splitlines()[-1]
    assert shlex.split(resume)[:5] == ["python", "-m", "snnipu", "train", "--resume"]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
def test_none_waits_for_a_process_that_is_gone(end, tmp_path):
    processes = start(tmp_path, 3, train.main, command(LONG, "--no-checkpoint --timeout 4"))
    wait_for(tmp_path / "out0", "epoch 1/")
    os.kill(processes[2].pid, getattr(signal, end))
    assert statuses(processes[:2]) == [1, 1]
    processes[2].kill()
    for rank in range(2):
        assert "Traceback" in (tmp_path / f"err{rank}").read_text()


@pytest.mark.slow
def test_the_process_that_fails_says_why(tmp_path):
    processes = start(tmp_path, 2, train.main, lambda rank: (words(SMALL, "--lr", -1 if rank else 1),))
    assert statuses(processes) == [2, 2]
    assert "error: rank 1: argument --lr: expected a number above 0, got -1.0" in (tmp_path / "err1").read_text()
    assert "error" not in (tmp_path / "err0").read_text()


@pytest.mark.slow
def test_checkpoints_between_batches_are_refused(tmp_path):
    processes = start(tmp_path, 2, train.main, command(SMALL, "--save-every 2"))
    assert statuses(processes) == [2, 2]
    assert "argument --save-every: only for one process" in (tmp_path / "err0").read_text()


def test_rates_of_parts_are_refused():
    data = datasets.randman(num_classes=2, samples_per_class=10, num_steps=10)
    config = training.EventConfig.for_dataset("randman", steps=10, hidden=(8,), batch_size=4, rate_limit=0.1)
    with pytest.raises(ValueError, match="rate_limit: only for one process"):
        training.EventTrainer(config, data, accumulate=2)
