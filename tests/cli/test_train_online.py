"""``python -m snnipu train --rule``: online learning, and the options that exclude it."""

import os
import signal
from pathlib import Path

import pytest
import torch
from support.commands import refusal, resume_command, words
from support.tables import each_row

from snnipu import datasets, training
from snnipu.cli import train

RANDMAN = "--dataset randman --samples-per-class 8 --classes 4 --hidden 24 --batch-size 16 --initial-activity none"
EVENTS = f"{RANDMAN} --method sparse_network"
pytestmark = pytest.mark.usefixtures("own_folder")
DATA = {"digits": "--dataset digits --hidden 16", "randman": RANDMAN, "events": EVENTS}


def run(arguments, name):
    assert train.main(words(arguments, f"--device cpu --checkpoint {name}.pt")) == 0
    return training.load_checkpoint(Path(f"{name}.pt"))


def weights(state):
    return torch.cat([value.flatten() for value in state["model"].values()])


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
def test_of_one_step_it_is_backpropagation(data):
    """For one step the rule equals backpropagation, also with parts of a batch. For more steps it differs."""
    more = {"digits": "", "randman": " --method dense --delay 0", "events": " --delay 0"}[data]
    through_time = f"{DATA[data]} --epochs 1{more}"
    expected = run(f"{through_time} --steps 1", "bptt")
    for more in ("", "--accumulate 2"):
        online = run(f"{DATA[data]} --epochs 1 --steps 1 --rule ottt {more}", "online")
        # Adam's steps are at least 1e-3: a gradient of pure rounding error moves a weight by a fraction of that.
        torch.testing.assert_close(weights(online), weights(expected), rtol=1e-4, atol=1e-5)
        assert online["history"][0]["train_loss"] == pytest.approx(expected["history"][0]["train_loss"], rel=1e-5)
    longer = run(f"{through_time} --steps 8", "longer")
    online = run(f"{DATA[data]} --epochs 1 --steps 8 --rule sltt --chunk 8", "online")
    assert not torch.allclose(weights(online), weights(longer), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", training.RULES)
@pytest.mark.parametrize("data", DATA)
def test_resume_gives_what_an_uninterrupted_run_gives(data, rule, capsys):
    if data == "events" and rule not in training.SPIKE_RULES:
        with pytest.raises(SystemExit):
            run(f"{DATA[data]} --rule {rule}", "run")
        assert "argument --method: expected dense with the rule" in capsys.readouterr().err
        return
    settings = f"{DATA[data]} --steps 7 --rule {rule} --chunk 3"
    straight = run(f"{settings} --epochs 2", "straight")
    run(f"{settings} --epochs 1", "parts")
    assert f"online by {rule}, chunks of 3 steps" in capsys.readouterr().out
    parts = run("--resume --epochs 2", "parts")
    assert "MiB" in capsys.readouterr().out
    assert parts["config"] == straight["config"]
    assert torch.equal(weights(parts), weights(straight))


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
def test_a_run_that_is_stopped_goes_on_with_the_next_batch(data, monkeypatch, capsys):
    """Ctrl-C in the second epoch, one batch after the last checkpoint: the resumed run has that batch."""
    settings = f"{DATA[data]} --steps 7 --rule ottt --chunk 3 --epochs 2 --batch-size {256 if data == 'digits' else 4}"
    straight = run(settings, "straight")

    def save(path, state):
        save_checkpoint(path, state)
        if len(state["history"]) == 1 and state["running"].get("batches") == 3:
            os.kill(os.getpid(), signal.SIGINT)

    save_checkpoint = training.save_checkpoint
    with monkeypatch.context() as patched:
        patched.setattr(training, "save_checkpoint", save)
        assert train.main(words(settings, "--device cpu --checkpoint parts.pt --save-every 3")) == 130
    output = capsys.readouterr().out
    assert "stopped after 1 of 2 epochs; the checkpoint is of epoch 1 and 4 batches" in output
    resume = resume_command(output)
    assert resume[-2:] == ["--save-every", "3"]
    assert train.main(resume[4:]) == 0
    assert "resumed after epoch 1 and 4 batches from " in capsys.readouterr().out
    assert torch.equal(weights(training.load_checkpoint(Path("parts.pt"))), weights(straight))


def test_spikes_that_are_dropped_in_chunks_are_counted():
    settings = f"{EVENTS} --steps 9 --epochs 1 --max-spikes 3,2,4 --delay 0 --lr 1e-12"
    online = run(f"{settings} --rule sltt --chunk 4", "online")["history"][0]
    whole = run(settings, "whole")["history"][0]
    assert online["train_overflow"] == whole["train_overflow"]
    assert min(whole["train_overflow"][:2]) > 0


@each_row("""
--chunk 5 | argument --chunk: only with a rule
--rule decolle | argument --rule: decolle trains local readouts
--rule ottt --engine snntorch | argument --rule: only for the engine snnipu
--rule ottt --bptt-steps 5 | argument --bptt-steps: a rule of online learning
--rule ottt --checkpoint-steps 5 | argument --checkpoint-steps: a rule of online learning
--rule ottt --precision bf16 | argument --precision: expected float32 with a rule
--rule ottt --dataset randman --method sparse_ops | argument --method: expected dense with the rule ottt
--rule ottt EVENTS --overflow-order rotate --max-spikes 4 | argument --rule: module SparseNetwork: with
    overflow="rotate"
--rule ottt --dataset randman --delay 1 | argument --delay: expected 0 with a rule
--rule ottt --dataset randman --rate-limit 0.1 | argument --rate-limit: expected none
--rule ottt --chunk 0 | argument --chunk: expected a positive integer
--rule bptt | argument --rule: invalid choice
""")
def test_what_does_not_go_with_a_rule(row, capsys):
    arguments, message = row.replace("EVENTS", EVENTS).split(" | ")
    assert message in refusal(capsys, train.main, arguments, "--device cpu --no-checkpoint")


def test_several_processes_are_refused():
    config = training.TrainConfig(rule="ottt")
    with pytest.raises(ValueError, match="rule: only for one process"):
        training.Trainer(config, datasets.digits(), ranks=training.Ranks(0, 2, 0, 2))


def test_a_checkpoint_of_another_rule_is_refused(capsys):
    run(f"{DATA['digits']} --steps 3 --epochs 1 --rule sltt", "run")
    capsys.readouterr()
    again = "--resume --checkpoint run.pt --rule ottt --device cpu"
    assert "rule is 'sltt' there and 'ottt' here" in refusal(capsys, train.main, again)
