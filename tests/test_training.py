import copy
import hashlib
import pickle
import time
import zipfile

import pytest
import torch
from support.damage import variants
from support.tables import assert_refused, each_row
from support.trainers import config, equal, event_config, same_run

import snnipu as snn
from snnipu import datasets, training

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def few_digits():
    data = datasets.digits()
    return datasets.ImageData(
        "digits", data.train_images[:200], data.train_labels[:200], data.test_images, data.test_labels, 10
    )


@pytest.fixture
def on_digits(few_digits):
    """Return a function from settings to a trainer of digits."""
    return lambda **settings: training.Trainer(config(**settings), few_digits)


@pytest.fixture(scope="module")
def recordings():
    return datasets.randman(20, num_classes=3, samples_per_class=30, num_steps=20, seed=1)


# Settings of a kind of run, and the batches of its epochs.
KINDS = {
    "images": (config, {}, 7),
    "images by snnTorch": (config, {"engine": "snntorch"}, 7),
    "dense": (event_config, {"method": "dense"}, 5),
    "sparse_ops": (event_config, {"method": "sparse_ops"}, 5),
    "sparse_network": (event_config, {}, 5),
    "scaled": (event_config, {"initial_activity": 0.1}, 5),
    "online": (event_config, {"rule": "ottt", "chunk": 6, "method": "dense"}, 5),
}


def refused(message):
    """Expect an error that says why a checkpoint cannot be used."""
    return pytest.raises(training.CheckpointError, match=message)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make(kind, few_digits, recordings):
    """Return a function from settings to a trainer of this kind."""
    build, settings, _ = KINDS[kind]
    trainer, data = (training.Trainer, few_digits) if build is config else (training.EventTrainer, recordings)
    return lambda **more: trainer(build(**settings, **more), data)


@pytest.fixture
def batches(kind):
    return KINDS[kind][2]


@pytest.fixture
def whole(make):
    """Return the state of an undisturbed run."""
    trainer = make()
    assert trainer.fit()
    return trainer.state_dict()


@each_row(r"""
config(dataset="cifar") | ValueError: ^dataset: expected one of digits, mnist, got 'cifar'
config(steps=0) | ValueError: ^steps: expected a positive integer, got 0
config(batch_size=True) | ValueError: ^batch_size: expected a positive integer, got True
config(lr=0) | ValueError: ^lr: expected a number above 0, got 0
config(lr=float("inf")) | ValueError: ^lr: expected a number above 0, got inf
config(lr_decay=0) | ValueError: ^lr_decay: expected a number above 0 and up to 1, got 0
config(beta="0.9") | ValueError: ^beta: expected a number from 0 to 1, got '0\.9'
config(seed=-1) | ValueError: ^seed: expected an integer from 0
""")
def test_bad_settings(row):
    assert_refused(row, globals())


def test_engines_have_the_same_network():
    ours, snntorchs = (training.build_network(config(engine=engine), 64, 10) for engine in training.ENGINES)
    assert isinstance(ours, snn.MultiStep)
    assert equal(dict(ours.state_dict()), dict(snntorchs.state_dict()))
    x = torch.rand(8, 64)
    (spk, mem), (spk_snntorch, mem_snntorch) = ours(x, num_steps=5), snntorchs(x, num_steps=5)
    assert spk.shape == mem.shape == (5, 8, 10)
    assert torch.equal(spk, spk_snntorch)
    torch.testing.assert_close(mem, mem_snntorch)
    for (spk, mem), (spk_snntorch, mem_snntorch) in zip(
        training.layer_activity(ours, x, 5), training.layer_activity(snntorchs, x, 5)
    ):
        assert torch.equal(spk, spk_snntorch)
        torch.testing.assert_close(mem, mem_snntorch)


def test_equal_settings_give_equal_results(make, whole):
    torch.manual_seed(1)
    trainer = make()
    assert trainer.fit()
    assert same_run(trainer.state_dict(), whole)
    assert not equal(whole["model"], make(seed=1).state_dict()["model"])


@pytest.mark.parametrize("question", [1, 10])
def test_a_stop_takes_the_running_epoch_back(make, whole, question):
    """The stop is in the first epoch (5 or 7 batches and 2 evaluations) or in the second."""
    trainer = make()
    answers = iter([False] * question + [True])
    assert not trainer.fit(should_stop=answers.__next__)
    assert len(trainer.history) == (question > 1)
    assert trainer.fit()
    assert same_run(trainer.state_dict(), whole)


def test_an_error_takes_the_running_epoch_back(on_digits):
    trainer = on_digits()
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    answers = iter([False, False])
    with pytest.raises(StopIteration):
        trainer.fit(should_stop=lambda: next(answers))
    assert equal(before, dict(trainer.network.state_dict()))
    assert trainer.history == []
    assert trainer.samples_per_second() is None


def loaded(make, state, path, **settings):
    """Return a new trainer with a state that was saved and loaded."""
    training.save_checkpoint(path, state)
    trainer = make(**settings)
    trainer.load_state_dict(training.load_checkpoint(path))
    return trainer


def test_resumed_run_equals_the_uninterrupted_one(make, whole, tmp_path):
    first = make(epochs=1)
    first.fit()
    second = loaded(make, first.state_dict(), tmp_path / "run.pt")
    assert second.history == first.history
    second.fit()
    assert same_run(second.state_dict(), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def between_batches(make, every, **stop):
    """Return the states of a run between batches."""
    states, trainer = [], make()
    finished = trainer.fit(on_batches=lambda t: states.append(copy.deepcopy(t.state_dict())), every=every, **stop)
    assert finished != bool(stop)
    return states


@pytest.mark.slow
def test_a_run_goes_on_in_the_middle_of_an_epoch(make, batches, whole, tmp_path):
    """Counts of dropped spikes and the moving second threshold continue; the evaluation may be interrupted last."""
    states = between_batches(make, 2)
    assert [(len(state["history"]), state["running"]["batches"]) for state in states] == [
        (epoch, batch) for epoch in (0, 1) for batch in range(2, batches, 2)
    ]
    states += between_batches(make, 100, should_stop=iter([False] * batches + [True]).__next__)
    assert (states[-1]["running"]["batches"], states[-1]["history"]) == (batches, [])
    for state in states:
        begun = time.perf_counter()
        second = loaded(make, state, tmp_path / "run.pt")
        assert second.batches == state["running"]["batches"]
        # A stop returns to the loaded state.
        assert not second.fit(should_stop=lambda: True)
        assert equal(second.state_dict(), state)
        assert second.fit()
        assert same_run(second.state_dict(), whole)
        # The time before the stop and after it; the time between does not count.
        before = state["running"]["seconds"] + sum(record["seconds"] for record in state["history"])
        seconds = sum(record["seconds"] for record in second.history)
        assert before < seconds < before + time.perf_counter() - begun


def test_a_stop_between_batches_is_told_of(monkeypatch, on_digits):
    trainer, states = on_digits(), []
    stops = iter([False] * 4 + [True])
    assert not trainer.fit(should_stop=stops.__next__, on_batches=lambda t: states.append(t.batches), every=3)
    assert states == [3, 4]
    assert (trainer.batches, trainer.history) == (0, [])
    # No batch ran since the last call.
    assert not trainer.fit(should_stop=lambda: True, on_batches=lambda t: states.append(t.batches))
    assert states == [3, 4]
    for every in (0, True, 1.5):
        with pytest.raises(ValueError, match="every: expected a positive integer"):
            trainer.fit(on_batches=print, every=every)
    with monkeypatch.context() as patched:
        patched.setattr(trainer.ranks, "size", 2)
        with pytest.raises(ValueError, match="on_batches: only for one process"):
            trainer.fit(on_batches=print)
    with torch.no_grad():
        trainer.network[0].weight.fill_(float("nan"))
    with pytest.raises(training.DivergedError, match="not finite in epoch 1"):
        trainer.fit(on_batches=lambda t: states.append(t.batches))
    assert states == [3, 4]


def test_an_epoch_under_way_that_does_not_fit(monkeypatch, on_digits):
    state = between_batches(lambda: on_digits(epochs=1), 3)[0]
    trainer = on_digits(epochs=1)
    before = copy.deepcopy(trainer.state_dict())
    with refused("the checkpoint is damaged: KeyError: 'loss'"):
        trainer.load_state_dict({**state, "running": {"batches": 3}})
    assert equal(trainer.state_dict(), before)
    monkeypatch.setattr(trainer.ranks, "size", 2)
    with refused("is of an epoch under way, which goes on in one process"):
        trainer.load_state_dict(state)


def test_learning_rate_decays_by_epoch(on_digits):
    trainer = on_digits(lr=0.01, lr_decay=0.5, epochs=3)
    rates = []
    trainer.fit(on_epoch=lambda trainer: rates.append(trainer.optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.01, 0.005, 0.0025])


def test_diverging_training_is_an_error(on_digits):
    trainer = on_digits()
    with torch.no_grad():
        trainer.network[0].weight.fill_(float("nan"))
    trainer._loss = lambda spk, labels: trainer.network[0].weight.sum()
    with pytest.raises(training.DivergedError, match="the loss is nan in epoch 1; a smaller lr"):
        trainer.fit()


def test_batch_larger_than_the_training_set(on_digits):
    on_digits(batch_size=200)
    with pytest.raises(ValueError, match="batch_size: 201 is larger than the training set of digits, 200 images"):
        on_digits(batch_size=201)


class Hostile:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_checkpoint_runs_no_code(tmp_path):
    def pickled(path, content):
        path.write_bytes(pickle.dumps(content, protocol=2))

    for write in (training.save_checkpoint, lambda path, content: torch.save(content, path), pickled):
        write(tmp_path / "hostile.pt", {"config": Hostile(tmp_path / "owned")})
        with refused("damaged or no checkpoint"):
            training.load_checkpoint(tmp_path / "hostile.pt")
        assert not (tmp_path / "owned").exists()


def test_unreadable_checkpoints(tmp_path, on_digits):
    path = tmp_path / "run.pt"
    with refused("there is no checkpoint at"):
        training.load_checkpoint(path)
    training.save_checkpoint(path, on_digits().state_dict())
    path.write_bytes(b"")
    with refused("is damaged or no checkpoint"):
        training.load_checkpoint(path)
    for other in ([1, 2], {"weight": torch.zeros(2)}):
        torch.save(other, path)
        with refused("is damaged or no checkpoint: it has no checksum"):
            training.load_checkpoint(path)
    training.save_checkpoint(path, {"config": 3})
    with refused("is not a checkpoint of this version"):
        training.load_checkpoint(path)


def test_checkpoints_of_other_versions(tmp_path, monkeypatch, on_digits):
    path, trainer = tmp_path / "run.pt", on_digits()
    state = trainer.state_dict()
    # A setting that is newer than the checkpoint has its default; an unknown setting raises.
    older = {name: value for name, value in state["config"].items() if name not in ("precision", "rule", "chunk")}
    trainer.load_state_dict({**state, "config": older})
    with refused(r"the checkpoint is damaged: TypeError: .*'new_setting'"):
        trainer.load_state_dict({**state, "config": {**state["config"], "new_setting": 1}})
    training.save_checkpoint(path, state)
    monkeypatch.setattr("snnipu.training.checkpoint.FORMAT", "snnipu-train-4")
    with refused(r"is not a checkpoint of this version .* \(snnipu-train-4\)"):
        training.load_checkpoint(path)


DAMAGED = [
    ("model", {}),
    ("optimizer", {"state": {}, "param_groups": []}),
    ("optimizer", {}),
    ("optimizer", {"state": {}, "param_groups": [{"params": [0]}]}),
    ("rng", {}),
    ("rng", {"batch_order": torch.zeros(3)}),
    ("history", 3),
]
OF_EVENTS = [("schedule", None), ("schedule", {}), ("scaling", [(1.0,)]), ("scaling", None)]


@pytest.mark.parametrize(
    ("kind", "entry", "value"),
    [*(("images", *each) for each in DAMAGED), *(("sparse_network", *each) for each in DAMAGED + OF_EVENTS)],
    indirect=["kind"],
)
def test_damaged_entries(make, entry, value):
    trainer, other = make(), make(epochs=1)
    before = copy.deepcopy(trainer.state_dict())
    other.fit()
    with refused("the checkpoint is damaged"):
        trainer.load_state_dict({**other.state_dict(), entry: value})
    assert equal(trainer.state_dict(), before)


def test_checkpoint_of_another_run(on_digits):
    state = on_digits().state_dict()
    with refused("steps is 5 there and 6 here, hidden is 16 there and 8 here"):
        on_digits(hidden=8, steps=6).load_state_dict(state)
    with refused("train_samples is 200 there and 1442 here"):
        training.Trainer(config(), datasets.digits()).load_state_dict(state)
    ahead = {**state, "history": [dict.fromkeys(("train_loss", "train_accuracy", "test_accuracy", "seconds"), 1.0)] * 3}
    with refused("has 3 finished epochs, more than epochs=2"):
        on_digits().load_state_dict(ahead)


def test_spike_rates_and_speed(few_digits, on_digits):
    trainer = on_digits(epochs=1)
    trainer.fit()
    rates = trainer.spike_rates()
    assert set(rates) == {"hidden", "output"}
    assert 0 < rates["hidden"] < 1
    x = few_digits.test_images.flatten(1)
    spk, _ = trainer.network(x, num_steps=5)
    spk = spk.detach()
    assert rates["output"] == pytest.approx(float(spk.mean()), abs=1e-6)
    assert trainer.samples_per_second() == pytest.approx(200 / trainer.history[0]["seconds"])


# ---- files under faults


@pytest.fixture(scope="module")
def trained(few_digits):
    trainer = training.Trainer(config(hidden=8, epochs=1), few_digits)
    trainer.fit()
    return trainer.state_dict()


def test_600_damaged_checkpoints(trained, tmp_path):
    """A damaged checkpoint is never used; an unchanged copy loads."""
    path = tmp_path / "run.pt"
    training.save_checkpoint(path, trained)
    whole = path.read_bytes()
    assert equal(training.load_checkpoint(path), {**trained, "format": "snnipu-train-3"})
    changed = 0
    for _, data in variants(whole, 600, seed=0, often=[(len(whole) - 400, len(whole))]):
        path.write_bytes(data)
        if data == whole:
            training.load_checkpoint(path)
            continue
        changed += 1
        with refused(r"run.pt is damaged or no checkpoint: (its|it has no) checksum"):
            training.load_checkpoint(path)
    assert changed > 500


def test_other_programs_read_a_checkpoint(trained, tmp_path):
    path = tmp_path / "run.pt"
    training.save_checkpoint(path, trained)
    assert equal(dict(torch.load(path, weights_only=True)["model"]), dict(trained["model"]))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment == b"snnipu sha256 " + hashlib.sha256(path.read_bytes()[:-64]).hexdigest().encode()


def test_weights_that_overflow_in_the_last_step_are_no_epoch(on_digits):
    trainer = on_digits()
    before = copy.deepcopy(trainer.state_dict())

    def overflow():
        with torch.no_grad():
            trainer.network[0].bias[0] = float("inf")

    trainer._after_step = overflow
    trainer._forward = lambda x, labels: (trainer.network[2].weight.sum() * 0 + 1, torch.zeros(len(x), 10))
    with pytest.raises(training.DivergedError, match="weights or moments of Adam are not finite in epoch 1"):
        trainer.fit()
    assert equal(before, trainer.state_dict())
