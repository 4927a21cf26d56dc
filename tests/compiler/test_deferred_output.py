"""The parts of a loop's output that follow after the loop; ``test_loops`` has programs that print and keep arrays."""

import ast

import numpy as np
import pytest
import torch
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu.compiler import deferred_output

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
STEPS, BATCH, INPUTS, NEURONS = 7, 3, 4, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, NEURONS), snn.Leaky(beta=0.5, threshold=0.25)


def shows_what_is_not_there(net, x, seen):
    mem = net.lif.reset_mem()
    for t in range(len(x)):
        _spk, mem = net.lif(net.fc(x[t]), mem)
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
