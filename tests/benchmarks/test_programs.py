import json

import pytest
import snntorch
import torch
from support.versions import needs_backend, needs_compile

import snnipu
from benchmarks import Settings, run_case
from benchmarks.cases import programs
from benchmarks.checks import check_training
from benchmarks.programs import PROGRAMS, make
from snnipu.cli import main

SMALL = {"steps": 8, "batch_size": 3, "neurons": 64}


def contender(program, name):
    case = programs.build(Settings(program=program, **SMALL))
    return next(c for c in case.contenders if c.name == name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_import_alone_is_the_same_training(name):
    check = contender(name, "snnipu-import").build().check()
    assert check.passed, check.detail


@needs_backend
@pytest.mark.parametrize("name", ["training", "lists", "subclass", "rsynaptic", "rate"])
def test_automatic_is_the_same_training(name):
    torch._dynamo.reset()
    check = contender(name, "snnipu-automatic").build().check()
    assert check.passed, check.detail


@pytest.mark.parametrize("name", [name for name in PROGRAMS if PROGRAMS[name].has_rewrite(torch.device("cpu"))])
def test_rewrite_is_the_same_training(name):
    check = contender(name, "snnipu-multistep").build().check()
    assert check.passed, check.detail


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_spikes(name):
    """A check of silent programs would compare nothing."""
    settings = Settings(program=name, **{**SMALL, "steps": 25})
    net = make(name, snntorch, settings)
    net.optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    spikes = []
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron):
            module.register_forward_hook(
                lambda module, given, out: spikes.append(float((out[0] if isinstance(out, tuple) else out).sum()))
            )
    torch.manual_seed(0)
    loss = net.step(PROGRAMS[name].data(settings, torch.Generator().manual_seed(0)), torch.arange(3))
    if not net.trains:
        loss.backward()
    assert sum(spikes) > 0
    moved = [parameter for parameter in net.parameters() if parameter.grad is not None and parameter.grad.any()]
    assert len(moved) >= len(list(net.parameters())) - 1


def test_gradients_on_one_side_alone_and_of_the_network():
    one, small = torch.ones(3), torch.full((2,), 1e-9)
    assert not check_training(one[0], [one, None], one[0], [one, small], 1e-5, "it").passed
    assert check_training(one[0], [one, None], one[0], [one, None], 1e-5, "it").passed
    assert not check_training(one[0], [one, small], one[0], [one, 2 * small], 1e-5, "it").passed
    assert check_training(one[0], [one, small], one[0], [one, 2 * small], 1e-5, "it", of_network=True).passed
    assert not check_training(one[0], [one], one[0], [1.1 * one], 1e-5, "it", of_network=True).passed


def test_wrong_contender_is_red_and_not_timed(monkeypatch):
    right = snnipu.Leaky.forward
    monkeypatch.setattr(snnipu.Leaky, "forward", lambda self, x, mem=None: right(self, 1.01 * x, mem))
    monkeypatch.setattr(programs, "automatic", lambda function: function)
    case = programs.build(Settings(program="counters", **SMALL))
    rows = {r.contender.name: r for r in run_case(case, ["snntorch"], torch.device("cpu"), 1, 0.0).results}
    assert rows["snnipu-import"].status == rows["snnipu-automatic"].status == "red"
    assert rows["snnipu-import"].timing is None
    assert rows["snntorch"].timing is not None


@needs_compile
def test_command(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    arguments = ["--quick", "--programs", "counters,forward", "--program-batches", "1,2", "--peers", "snntorch"]
    assert main(["bench", "programs", *arguments, "--json", str(out), "--chart", str(picture)]) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    where = [(case["parameters"]["program"], case["parameters"]["batch_size"]) for case in document["cases"]]
    assert where == [("forward", 1), ("counters", 1), ("forward", 2), ("counters", 2)]
    (sweep,) = document["sweeps"]
    assert sweep["break_even"] is None
    rows = [{row["name"]: row["time"]["median_s"] for row in case["results"]} for case in document["cases"]]
    ratios = [row["snntorch"] / row["snnipu-import"] for row in rows]
    found = sweep["speedups"]["snnipu-import"]["all"]
    assert found["mean"] == pytest.approx(torch.tensor(ratios).log().mean().exp().item(), rel=1e-4)
    assert found["programs"] == 4
    assert found["slower"] == sum(ratio < 0.97 for ratio in ratios)
    assert sweep["speedups"]["snnipu-multistep"]["B = 1"]["programs"] == 1
    assert "geometric mean; slower" in printed
    assert picture.stat().st_size > 5000
