"""Prints, logs and NumPy arrays of a compiled loop, which follow after the loop with the values of each step."""

import ast
import io
import logging

import numpy as np
import pytest
import torch
from support.exact import exact, exact_numbers
from support.loops import as_written
from support.versions import needs_backend
from torch import nn
from tqdm import tqdm, trange

import snnipu as snn
from snnipu.compiler import deferred_output

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
STEPS, BATCH, INPUTS, NEURONS = 7, 3, 4, 5
LOG = logging.getLogger("a_program")
FOUND = {"calls": 0}  # the program reads this global variable


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, NEURONS), snn.Leaky(beta=0.5, threshold=0.25)
        self.rates = []

    def step(self, x, mem):
        return self.lif(self.fc(x), mem)

    def calls(self):
        return 1 + len(self.rates) / 4


class Learner:
    """An object whose ``update`` method is not output."""

    def __init__(self, net):
        self.net = net

    def update(self, spk):
        self.net.fc.bias.data += spk.mean() / 4


def prints(net, x, seen):
    mem, spk = net.lif.reset_mem(), None
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        print(f"step {t} of {len(x)}: {spk.sum().item():.1f}", spk.shape, float(mem.max()), sep="|")
    return mem


def prints_now_and_then(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        if t % 3 == 0:
            print("at", t, tuple(spk.shape), round(spk.mean().item(), 3))
        elif t == 4:
            print("four")
    return mem


def a_sum_in_place(net, x, seen):
    mem, total = net.lif.reset_mem(), torch.zeros(NEURONS)
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        other = total
        total += spk.sum(0)
        print(total.sum().item(), other[0].item())
        total *= 0.5
    return mem


def a_number(net, x, seen):
    mem, count = net.lif.reset_mem(), 0
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        count += spk.sum().item()
        print(t, count)
    return mem


def keeps_arrays(net, x, seen):
    mem, rows, table = net.lif.reset_mem(), [], np.zeros((len(x), NEURONS))
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        rows.append(spk.detach().cpu().numpy())
        table[t] = mem.detach().numpy()[0]
        net.rates.append(spk.mean(0).tolist())
    seen += [np.stack(rows).tolist(), table.tolist(), list(net.rates)]
    return mem


def shows_a_bar(net, x, seen):
    mem, bar = net.lif.reset_mem(), tqdm(total=len(x), file=io.StringIO())
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        bar.set_description(f"step {t}: {spk.sum().item()}")
        bar.update(1)
    seen += [bar.n, bar.desc]
    return mem


def goes_through_a_bar(net, x, seen):
    mem, out = net.lif.reset_mem(), io.StringIO()
    for t in tqdm(range(len(x)), desc="time", file=out, ncols=60):
        _spk, mem = net.step(x[t], mem)
    seen.append("time: 100%|" in out.getvalue() and f"{STEPS}/{STEPS}" in out.getvalue())
    return mem


def goes_through_a_short_one(net, x, seen):
    mem = net.lif.reset_mem()
    for t in trange(1, len(x), disable=True):
        _spk, mem = net.step(x[t], mem)
    return mem


def counts_its_calls(net, x, seen):
    mem, call = net.lif.reset_mem(), len(net.rates)
    name = f"call {call}"
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        print(call, name, f"{call}: {spk.sum().item()}", FOUND["calls"])
    net.rates.append(call)
    FOUND["calls"] += 1
    return mem


def logs(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        LOG.info("step %d: %s", t, spk.sum().item())
    return mem


def ends_early(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        print("before", t)
        if t == 4:
            break
        print("after", spk.sum().item())
    else:
        print("never")
    return mem


def tick():
    FOUND["calls"] += 1


def prints_what_a_function_sets(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        tick()
        print(FOUND["calls"], spk.sum().item())
    return mem


COMPILED = [
    *(prints, a_sum_in_place, a_number, shows_a_bar, goes_through_a_bar),
    *(goes_through_a_short_one, counts_its_calls, prints_what_a_function_sets, logs),
]


def learns(net, x, seen):
    mem, learner = net.lif.reset_mem(), Learner(net)
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        learner.update(spk.detach())
    return mem


def reads_what_it_keeps(net, x, seen):
    mem, rows = net.lif.reset_mem(), []
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        rows.append(spk.detach().numpy())
        print(len(rows))
    return mem


def prints_a_list(net, x, seen):
    mem, rows = net.lif.reset_mem(), []
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        rows.append(spk.sum().item())
        print(rows)
    return mem


def calls_a_function(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        print(shape_of(spk), seen.append(t))
    return mem


def shape_of(tensor):
    return tuple(tensor.shape)


def prints_an_argument(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        _spk, mem = net.step(x[t], mem)
        print(seen, t)
    return mem


def reads_it_elsewhere(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        spk, mem = net.step(x[t] * net.calls(), mem)
        net.rates.append(spk.mean(0).tolist())
    return mem


def keeps_what_changes(net, x, seen):
    """Append arrays that share memory, so that all of them end as the last sum."""
    mem, total, rows = net.lif.reset_mem(), torch.zeros(NEURONS), []
    for t in range(len(x)):
        spk, mem = net.step(x[t], mem)
        total += spk.detach().sum(0)
        rows.append(total.numpy())
    seen.append([row.tolist() for row in rows])
    return mem


OTHERS = [
    prints_now_and_then,
    keeps_arrays,
    ends_early,
    keeps_what_changes,
    reads_it_elsewhere,
    prints_an_argument,
    learns,
    reads_what_it_keeps,
    prints_a_list,
    calls_a_function,
]


def of_three_calls(run, capsys, caplog):
    """Return the results, gradients and output of three calls."""
    torch.manual_seed(3)
    FOUND["calls"] = 0
    net, data = exact(Net()), exact_numbers(STEPS, BATCH, INPUTS, generator=torch.Generator().manual_seed(0))
    calls = []
    for _ in range(3):
        seen = []
        net.zero_grad()
        out = run(net, data, seen)
        out.sum().backward()
        shown_now = (
            capsys.readouterr().out,
            [record.getMessage() for record in caplog.records if record.name == LOG.name],
        )
        caplog.clear()
        calls.append((out.detach(), [p.grad.clone() for p in net.parameters()], seen, *shown_now))
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("run", [*COMPILED, *OTHERS], ids=lambda run: run.__name__)
def test_what_is_shown_is_what_the_loop_shows(run, auto, capsys, caplog):
    caplog.set_level(logging.INFO, logger=LOG.name)
    with as_written(auto):
        expected = of_three_calls(run, capsys, caplog)
    for actual, other in zip(of_three_calls(run, capsys, caplog), expected):
        torch.testing.assert_close(actual[0], other[0])
        for a, b in zip(actual[1], other[1]):
            torch.testing.assert_close(a, b)
        assert actual[2:] == other[2:]
    assert run in OTHERS or any(loop.runs for loop in auto.loops), str(auto)


def shows_what_is_not_there(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        _spk, mem = net.step(x[t], mem)
        seen.append(mem.numpy())
    return mem


def test_an_error_of_what_is_shown_is_the_programs_own(auto):
    """A membrane with a gradient cannot become an array: the error occurs in Python and after a compiled loop."""
    net, x = Net(), torch.rand(STEPS, BATCH, INPUTS)
    for _ in range(3):
        with torch.no_grad():
            shows_what_is_not_there(net, x, [])
        seen = []
        with pytest.raises(RuntimeError, match="requires grad"):
            shows_what_is_not_there(net, x, seen)
        assert not seen


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("print(t, a.b.c[0].sum().item())", "(0, (K(t), K(a.b.c[0])))"),
        ("print('x')", "(0, ())"),
        ("print(epoch, f'{epoch}', epoch.n, a)", "(0, (K(epoch.n), K(a)))"),
        ("log.info(f'{a:.2f}', extra=b)", "(0, (K(a), K(b)))"),
        ("rows.append(np.mean(a.numpy()))", "(0, (K(a),))"),
        ("print(len(a), a)", "(0, (K(len(a)), K(a)))"),
        ("x.y.append(a.tolist())", "(0, (K(a),))"),
        ("y[t, :] = a.numpy()", "(0, (K(a), K(t)))"),
        ("if t % 2 and a.n:\n  print(a.n)\n else:\n  print(b)", "(0, (K(a.n), K(b), K(t)))"),
    ],
)
def test_what_is_kept_for_later(body, kept):
    loop = ast.parse(f"for t in range(3):\n a = f(t)\n {body}").body[0]
    parts = deferred_output.split(loop, "S", "K", {"epoch", "a"})
    assert ast.unparse(parts.loop.body[1]) == f"S.append({kept})"
    assert parts.late == (["epoch"] if "epoch" in body else [])


@pytest.mark.parametrize(
    "body",
    [
        "rows.append(a)",  # tensors may be part of the graph
        "rows.append(rows[-1].numpy())",
        "a.append(a.numpy())",
        "print([b for b in a])",
        "print(lambda: a)",
        "print(torch.rand(2))",
        "print((b := a))",
        "print(g(a))",
        "y = a.numpy()",
        "rows.append(a.numpy())\n a += 1",
        "rows.append(a.numpy())\n a[0] = 1",
        "rows.append(a.numpy())\n a.add_(1)",
        "try:\n  print(a)\n except ValueError:\n  pass",
        "if t:\n  print(g(a))",
        "g().append(a.numpy())",
    ],
)
def test_what_is_not_taken_out(body):
    loop = ast.parse(f"for t in range(3):\n a = f(t)\n {body}").body[0]
    assert deferred_output.split(loop, "S", "K") is None


def test_what_may_change_is_not_kept():
    for value in (None, True, 2, 0.5, "a", torch.Size([2]), (1, ("b", None))):
        assert deferred_output.kept(value) == value
    tensor = torch.ones(2)
    copied = deferred_output.kept((tensor,))[0]
    tensor.zero_()
    assert copied.sum() == 2
    for value in ([1], {}, np.ones(2), nn.Linear(1, 1), (1, [2])):
        with pytest.raises(TypeError, match="may have changed after the loop"):
            deferred_output.kept(value)
