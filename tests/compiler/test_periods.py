"""Loops whose steps repeat: the graph is the one that TorchDynamo makes when it looks into every step."""

import copy
import inspect
from typing import Any, List

import pytest
import torch
from support.versions import needs_dynamo_of_2_12
from torch import nn
from torch._dynamo import output_graph

import snnipu as snn
from snnipu.compiler import backend, periods

pytestmark = pytest.mark.skipif(backend.version() < backend.OLDEST, reason="the compiler needs a newer PyTorch")
STEPS = 14


class _Net(nn.Module):
    """A layer, a neuron and a loop over time; what a step does is a method that is replaced."""

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.fc, self.lif = nn.Linear(6, 5), snn.Leaky(beta=0.9, threshold=0.3)
        self.alpha = snn.Alpha(alpha=0.9, beta=0.8, threshold=0.3)
        self.loop, self.steps, self.count, self.kept = loop, STEPS, 0, [0.0]
        self.start = torch.zeros(3, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.loop(self, x)


def _plain(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes = []
    for _ in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]), mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _underscores(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for _ in range(net.steps):
        _, mem = net.lif(net.fc(x[0]), mem)
    return _, mem


def _indexed(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes, membranes = [], []
    for step in range(net.steps):
        spk, mem = net.lif(net.fc(x[step]), mem)
        spikes.append(spk)
        membranes.append(mem)
    return torch.stack(spikes), torch.stack(membranes)


def _variables_with_names_of_attributes(net: Any, x: torch.Tensor) -> Any:
    mem, fc = net.lif.init_leaky(), []
    for lif in range(net.steps):
        spk, mem = net.lif(net.fc(x[lif]), mem)
        fc.append(spk)
    return torch.stack(fc), mem


def _indexed_behind(net: Any, x: torch.Tensor) -> Any:
    mem, y = net.lif.init_leaky(), x.transpose(0, 1)
    spikes = []
    for step in range(1, net.steps, 1):
        spk, mem = net.lif(net.fc(y[:, step]), mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _recorded(net: Any, x: torch.Tensor) -> Any:
    mem, record = net.lif.init_leaky(), torch.zeros(STEPS, 3, 5)
    for step in range(net.steps):
        spk, mem = net.lif(net.fc(x[step]), mem)
        record[step] = spk
    return record, mem


def _carried(net: Any, x: torch.Tensor) -> Any:
    mem, before, total = net.lif.init_leaky(), torch.zeros(3, 5), torch.zeros(3, 5)
    for _ in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) + before, mem)
        before = 0.5 * spk
        total = total + mem
    return total, before


def _no_gradient(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes = []
    for step in range(net.steps):
        with torch.no_grad():
            scale = x[step].mean()
        spk, mem = net.lif(net.fc(x[step]) * scale, mem)
        spikes.append(spk)
    spikes[3].unsqueeze_(0)
    return torch.cat([spikes[3][0], spikes[4]]), mem


def _reads_step(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes = []
    for step in range(net.steps):
        current = net.fc(x[0])
        if step > 9:
            current = -current
        spk, mem = net.lif(current, mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _reads_table(net: Any, x: torch.Tensor) -> Any:
    mem, flags = net.lif.init_leaky(), [1.0] * 9 + [-1.0] * 5
    spikes = []
    for step in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) * flags[step], mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _reads_length(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes: List[torch.Tensor] = []
    for _ in range(net.steps):
        current = net.fc(x[0])
        if len(spikes) > 9:
            current = -current
        spk, mem = net.lif(current, mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _reads_length_by_another_name(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes: List[torch.Tensor] = []
    same = {"spikes": spikes}
    for _ in range(net.steps):
        current = net.fc(x[0])
        if len(same["spikes"]) > 9:
            current = -current
        spk, mem = net.lif(current, mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _reads_length_by_two_names(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes: List[torch.Tensor] = []
    same = spikes
    for _ in range(net.steps):
        current = net.fc(x[0])
        if len(same) > 9:
            current = -current
        spk, mem = net.lif(current, mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _reads_older(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    one = two = three = torch.zeros(3, 5)
    for _ in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) + three, mem)
        one, two, three = spk, one, two
    return three, mem


def _swaps(net: Any, x: torch.Tensor) -> Any:
    mem, (one, two) = net.lif.init_leaky(), x[:2].unbind()  # tensors that differ in nothing but the node
    for _step in range(net.steps):
        _, mem = net.lif(net.fc(x[0]), mem)
        one, two = two, one
    return one, mem


def _swaps_shorter(net: Any, x: torch.Tensor) -> Any:
    mem, (one, two) = net.lif.init_leaky(), x[:2].unbind()  # tensors that differ in nothing but the node
    for _step in range(net.steps - 1):
        _, mem = net.lif(net.fc(x[0]), mem)
        one, two = two, one
    return one, mem


def _counts(net: Any, x: torch.Tensor) -> Any:
    mem, count = net.lif.init_leaky(), 0
    for _ in range(net.steps):
        current = net.fc(x[0])
        if count > 9:
            current = -current
        _, mem = net.lif(current, mem)
        count = 1 + count
    return current, mem


def _counts_on_self(net: Any, x: torch.Tensor) -> Any:
    mem, net.count = net.lif.init_leaky(), 0
    for _ in range(net.steps):
        current = net.fc(x[0])
        if net.count > 9:
            current = -current
        _, mem = net.lif(current, mem)
        net.count += 1
    return current, mem


def _iterates(net: Any, x: torch.Tensor) -> Any:
    mem, signs = net.lif.init_leaky(), iter([1.0] * 9 + [-1.0] * 5)
    for _ in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) * next(signs), mem)
    return spk, mem


def _reads_two_before(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    one = two = torch.zeros(3, 5)
    for _ in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) + 0.5 * two, mem)
        one, two = spk, one
    return two, mem


def _halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def _hooks(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for _ in range(net.steps):
        net.fc.weight.register_hook(_halved)
        spk, mem = net.lif(net.fc(x[0]), mem)
    return spk, mem


def _catches(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for step in range(net.steps):
        try:
            current = net.fc(x[step])
        except IndexError:
            current = net.fc(-x[0])
        spk, mem = net.lif(current, mem)
    return spk, mem


def _reads_length_by_locals(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes: List[torch.Tensor] = []
    for _ in range(net.steps):
        current = net.fc(x[0])
        if len(locals()["spikes"]) > 9:
            current = -current
        spk, mem = net.lif(current, mem)
        spikes.append(spk)
    return torch.stack(spikes), mem


def _goes_through(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    spikes = []
    for current in x:
        spk, mem = net.lif(net.fc(current), mem)
        spikes.append(spk)
    return torch.stack(spikes), mem + current.sum()


def _goes_through_parts(net: Any, x: torch.Tensor) -> Any:
    mem, before = net.lif.init_leaky(), x[0]
    for current in x.transpose(0, 1).unbind(1):
        _, mem = net.lif(net.fc(current + before), mem)
        before = 0.5 * current
    return mem, before


def _goes_through_what_stays(net: Any, x: torch.Tensor) -> Any:
    mem, parts = net.lif.init_leaky(), x.unbind()
    for current in parts:
        spk, mem = net.lif(net.fc(current) + parts[1].mean(), mem)
    return spk, mem


def _goes_through_one_twice(net: Any, x: torch.Tensor) -> Any:
    mem, parts = net.lif.init_leaky(), list(x.unbind())
    for current in [*parts[:12], parts[3], parts[2]]:
        spk, mem = net.lif(net.fc(current), mem)
    return spk, mem


def _goes_through_shapes(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for current in [*x[:9].unbind(), *x[9:, :2].unbind()]:
        spk, mem = net.lif(net.fc(x[0]) * len(current), mem)
    return spk, mem


def _enumerates(net: Any, x: torch.Tensor) -> Any:
    mem, record = net.lif.init_leaky(), torch.zeros(STEPS + 1, 3, 5)
    spikes = []
    for step, current in enumerate(x, 1):
        spk, mem = net.lif(net.fc(current), mem)
        record[step] = spk
        spikes.append(spk)
    return torch.stack(spikes) + record[1:], mem + current.sum() + step


def _zips(net: Any, x: torch.Tensor) -> Any:
    mem, last = net.lif.init_leaky(), torch.zeros(3, 5)
    for current, scale in zip(x, x[:12].mean(-1, keepdim=True)):
        last, mem = net.lif(net.fc(current) * scale + 0.5 * last, mem)
    return last, mem + scale


def _enumerates_pairs(net: Any, x: torch.Tensor) -> Any:
    mem, record, y = net.lif.init_leaky(), torch.zeros(STEPS, 3, 5), x.repeat_interleave(2, 0)
    for step, (current, (number, scale)) in enumerate(zip(x, zip(range(0, 2 * STEPS, 2), x.flip(0).mean(-1)))):
        spk, mem = net.lif(net.fc(current) * scale[:, None] + y[number, :, :5], mem)
        record[step] = spk
    return record, mem


def _enumerates_and_counts(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for step, current in enumerate(x):
        spk, mem = net.lif(net.fc(current) * (1 if step < 9 else -1), mem)
    return spk, mem


def _zips_numbers(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for current, sign in zip(x, [1.0] * 9 + [-1.0] * 5):
        spk, mem = net.lif(net.fc(current) * sign, mem)
    return spk, mem


def _zips_pairs(net: Any, x: torch.Tensor) -> Any:
    mem, total = net.lif.init_leaky(), torch.zeros(3, 6)
    for pair in zip(x, x.flip(0)):
        total = total + pair[1]
        spk, mem = net.lif(net.fc(pair[0]), mem)
    return spk, mem + total.sum()


def _zips_one_twice(net: Any, x: torch.Tensor) -> Any:
    mem, parts = net.lif.init_leaky(), x.unbind()
    for current, after in zip(parts, parts[1:]):
        spk, mem = net.lif(net.fc(current - after), mem)
    return spk, mem


def _zips_what_it_makes(net: Any, x: torch.Tensor) -> Any:
    mem, made = net.lif.init_leaky(), list(x[:6, :, :5].unbind())
    for current, before in zip(x, made):
        spk, mem = net.lif(net.fc(current) + before, mem)
        made.append(spk)
    return torch.stack(made), mem


def _counts_down(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for step in range(net.steps - 1, -1, -1):
        spk, mem = net.lif(net.fc(x[step]), mem)
    return spk, mem


def _counts_from_the_end(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for step in range(-2, net.steps - 2):
        spk, mem = net.lif(net.fc(x[step]), mem)
    return spk, mem


def _shows_the_step_before(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    one = two = torch.zeros(3, 5)
    for step in range(net.steps):
        _, mem = net.lif(net.fc(x[step]), mem)
        one, two = mem, one
    return one, two


def _appends_the_step_before(net: Any, x: torch.Tensor) -> Any:
    mem, before = net.lif.init_leaky(), x[0, :, :5]
    record = []
    for step in range(net.steps):
        _, mem = net.lif(net.fc(x[step]), mem)
        record.append(before)
        before = mem
    return torch.stack(record), mem


def _swaps_lists(net: Any, x: torch.Tensor) -> Any:
    mem, one, two = net.lif.init_leaky(), [0.0], [0.0]
    kept = one
    for _step in range(net.steps - 1):
        _, mem = net.lif(net.fc(x[0]), mem)
        one, two = two, one
    one[0] = 1.0
    return mem + kept[0], mem


def _indexes_a_table_by_a_tensors_name(net: Any, x: torch.Tensor) -> Any:
    mem, places = net.lif.init_leaky(), [*range(9), *[0] * 5]
    y = x
    for step in range(net.steps):
        y = places
        _, mem = net.lif(net.fc(x[y[step]]), mem)
        y = x
    return y.sum() * mem, mem


def _scales_by_the_step(net: Any, x: torch.Tensor) -> Any:
    mem, shift = net.lif.init_leaky(), x[1, :, :5]
    for step in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) + shift * step, mem)
    return spk, mem


def _names_its_numbers(net: Any, x: torch.Tensor) -> Any:
    mem, numbers = net.lif.init_leaky(), iter(range(net.steps))
    for _step in numbers:
        spk, mem = net.lif(net.fc(x[0]), mem)
    return spk, mem


def _other_cells(net: Any, x: torch.Tensor) -> Any:
    exc, inh, mem = net.alpha.reset_mem()
    total = torch.zeros(3, 5)
    for step in range(net.steps):
        spk, exc, inh, mem = net.alpha(net.fc(x[step]), exc, inh, mem)
        total += spk
    return total, mem


def _indexed_between(net: Any, x: torch.Tensor) -> Any:
    mem, y, z = net.lif.init_leaky(), x.transpose(0, 1), torch.zeros(3, STEPS, 2, 5)
    for step in range(net.steps):
        spk, mem = net.lif(net.fc(y[:, step, :]), mem)
        z[:, step, 1, 0:5:1] = spk
    return z, mem


def _begins_with_the_loop(net: Any, x: torch.Tensor) -> Any:
    mem = net.start
    for _ in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]), mem)
    return spk, mem


def _makes_a_module_in_each_step(net: Any, x: torch.Tensor) -> Any:
    mem = net.lif.init_leaky()
    for step in range(net.steps):
        net.dropout = nn.Dropout(p=0.5)
        spk, mem = net.lif(net.fc(x[step]), mem)
    return spk, mem * net.dropout.p


def _makes_other_modules(net: Any, x: torch.Tensor) -> Any:
    mem, rate, other = net.lif.init_leaky(), nn.Dropout(p=0.5), nn.Dropout(p=0.25)
    for step in range(net.steps):
        rate, other = nn.Dropout(p=other.p), nn.Dropout(p=rate.p)
        spk, mem = net.lif(net.fc(x[step]) * rate.p, mem)
    return spk, mem


def _indexes_by_what_stands_before(net: Any, x: torch.Tensor) -> Any:
    mem, table = net.lif.init_leaky(), {(0.5, 0, step): step % 3 for step in range(net.steps)}
    half = 0.5
    for step in range(net.steps):
        spk, mem = net.lif(net.fc(x[0]) * table[half, 0, step], mem)
    return spk, mem


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, slope: float) -> torch.Tensor:
        ctx.save_for_backward(u)
        ctx.slope = slope
        return (u > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return grad / (1 + (ctx.slope * u) ** 2), None


def _written_out(net: Any, x: torch.Tensor) -> Any:
    mem = torch.zeros(3, 5)
    spikes = []
    for step in range(net.steps):
        mem = 0.9 * mem + net.fc(x[step])
        spk = _Spike.apply(mem - 0.3, 2.0)
        mem = mem - 0.3 * spk
        spikes.append(spk)
    return torch.stack(spikes), mem


def _written_out_with_a_surrogate(net: Any, x: torch.Tensor) -> Any:
    mem, fire = torch.zeros(3, 5), snn.surrogate.atan()
    for step in range(net.steps):
        mem = 0.9 * mem + net.fc(x[step])
        spk = fire(mem - 0.3)
        mem = mem * (1 - spk)
    return spk, mem


def _swaps_slopes(net: Any, x: torch.Tensor) -> Any:
    mem, slope, other = torch.zeros(3, 5), 2.0, 20.0
    spikes = []
    for step in range(net.steps):
        mem = 0.9 * mem + net.fc(x[step])
        spk = _Spike.apply(mem - 0.3, slope)
        slope, other = other, slope
        spikes.append(spk)
    return torch.stack(spikes), mem


COPIED = [
    pytest.param(_written_out, marks=needs_dynamo_of_2_12),
    _written_out_with_a_surrogate,
    _indexed_between,
    _begins_with_the_loop,
    _makes_a_module_in_each_step,
    _plain,
    _underscores,
    _indexed,
    _indexed_behind,
    _variables_with_names_of_attributes,
    _recorded,
    _carried,
    _no_gradient,
    _goes_through,
    _goes_through_parts,
    _enumerates,
    _enumerates_pairs,
    _zips,
    _other_cells,
    _counts_down,
    _counts_from_the_end,
    _shows_the_step_before,
]
WHOLE = [
    _swaps_slopes,
    _makes_other_modules,
    _indexes_by_what_stands_before,
    _reads_step,
    _reads_table,
    _reads_length,
    _reads_length_by_another_name,
    _reads_length_by_two_names,
    _reads_older,
    _swaps,
    _swaps_shorter,
    _counts,
    _counts_on_self,
    _iterates,
    _reads_two_before,
    _hooks,
    _catches,
    pytest.param(_reads_length_by_locals, marks=needs_dynamo_of_2_12),
    _goes_through_what_stays,
    _goes_through_one_twice,
    _goes_through_shapes,
    _enumerates_and_counts,
    _zips_numbers,
    _zips_one_twice,
    _zips_pairs,
    _zips_what_it_makes,
    _appends_the_step_before,
    _swaps_lists,
    _indexes_a_table_by_a_tensors_name,
    _names_its_numbers,
    _scales_by_the_step,
]


def _copied(loop: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many loops were copied; the results compared with the loop as it is."""
    copied = []
    own = periods._copy
    monkeypatch.setattr(periods, "_copy", lambda *given: (copied.append(1), own(*given))[1])
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = _Net(loop)
    other = copy.deepcopy(net)
    x = torch.rand(STEPS, 3, 6)
    wanted = net(x)
    made = snn.compile(other, fullgraph=True)(x)
    for a, b in zip(wanted, made):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
        assert a.count_nonzero()
    sum(a.square().sum() for a in wanted).backward()
    sum(b.square().sum() for b in made).backward()
    for p, q in zip(net.parameters(), other.parameters()):
        assert p.grad is not None
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.lif.mem, net.lif.mem, rtol=1e-6, atol=1e-6)
    return len(copied)


@pytest.mark.slow
@pytest.mark.parametrize("loop", COPIED)
def test_steps_that_repeat_are_copied(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _copied(loop, monkeypatch) == 1


@pytest.mark.slow
@pytest.mark.parametrize("loop", WHOLE)
def test_steps_that_may_differ_are_traced(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _copied(loop, monkeypatch) == 0


def _fills(net: Any, x: torch.Tensor, record: List[Any], other: List[Any]) -> Any:
    mem = net.start
    for step in range(STEPS):
        spk, mem = net.lif(net.fc(x[step]), mem)
        record.append(spk)
        other.append(mem)
    return mem


def _fills_what_an_object_has(net: Any, x: torch.Tensor, record: List[Any], other: List[Any]) -> Any:
    mem = net.start
    for step in range(STEPS):
        spk, mem = net.lif(net.fc(x[step]), mem)
        record.append(spk)
        mem = mem * (-1 if len(net.grown) > 9 else 1)
    return mem


def _fills_its_attribute(net: Any, x: torch.Tensor, record: List[Any], other: List[Any]) -> Any:
    mem, record = net.start, net.grown
    for step in range(STEPS):
        spk, mem = net.lif(net.fc(x[step]) * (-1 if len(net.grown) > 9 else 1), mem)
        record.append(spk)
    return mem


def _fills_one_under_two_names(net: Any, x: torch.Tensor, record: List[Any], other: List[Any]) -> Any:
    mem = net.start
    for step in range(STEPS):
        spk, mem = net.lif(net.fc(x[step]) * (-1 if len(other) > 9 else 1), mem)
        record.append(spk)
    return mem


@pytest.mark.slow
@pytest.mark.skipif(
    "traced_sources" not in inspect.getsource(output_graph), reason="this TorchDynamo does not tell what it reached"
)
@pytest.mark.parametrize(
    ("loop", "shared", "copied"),
    [
        (_fills, False, 1),
        (_fills_what_an_object_has, False, 0),
        (_fills_its_attribute, False, 0),
        (_fills_one_under_two_names, True, 0),
    ],
)
def test_lists_that_a_loop_is_given(loop: Any, shared: bool, copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loop is that was taken out of its function."""
    copies = []
    own = periods._copy
    monkeypatch.setattr(periods, "_copy", lambda *given: (copies.append(1), own(*given))[1])
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, x = _Net(loop), torch.rand(STEPS, 3, 6)
    found = []
    for run in (loop, snn.compile(loop, fullgraph=True)):
        before = torch.zeros(3, 5)
        net.grown = record = [before]
        other = record if shared else [before]
        mem = run(net, x, record, other)
        assert record[0] is before
        found.append([mem, *record, *other])
    for a, b in zip(*found):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
    assert len(found[0]) == len(found[1]) > STEPS
    assert len(copies) == copied


@pytest.mark.slow
@pytest.mark.parametrize("at_end", [False, True])
def test_an_error_while_copying_traces_the_loop_whole(monkeypatch: pytest.MonkeyPatch, at_end: bool) -> None:
    own, tried = periods._copy, []

    def fails(*arguments: Any) -> None:
        tried.append(True)
        if at_end:
            own(*arguments)
        raise AssertionError("another TorchDynamo")

    monkeypatch.setattr(periods, "_copy", fails)
    monkeypatch.setattr(periods, "_whole", set())
    assert _copied(_indexed, monkeypatch) == 1  # which compares the results
    assert tried == [True]


@pytest.mark.parametrize(("factor", "equal"), [(2.0, True), (3.0, False)])
def test_the_passes_of_two_steps_functions_are_compared(factor: float, equal: bool) -> None:
    """They are modules with names of their own."""

    def passes(slope: float) -> torch.fx.GraphModule:
        return torch.fx.symbolic_trace(lambda u: (u * slope).relu())

    graph = torch.fx.Graph()
    like: Any = object.__new__(periods._Likeness)
    like.modules = {"fwd_body_0": passes(2.0), "fwd_body_1": passes(factor)}
    one, two, unknown = (graph.create_node("get_attr", f"fwd_body_{place}") for place in range(3))
    assert like._parts_are_equal(one, two) is equal
    assert not like._parts_are_equal(one, unknown)
    assert not like._parts_are_equal(unknown, unknown)
