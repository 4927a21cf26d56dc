"""Small loops, one for each rule of the compiler: what it takes becomes one call, what it refuses runs as written."""

import copy

import pytest
import torch
from support.versions import needs_backend
from torch import nn
from torch.nn import functional

import snnipu as snn
from snnipu.compiler import backend
from snnipu.neurons import multistep
from snnipu.ops import batch_norm

pytestmark = needs_backend
STEPS = 4


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A graph that cannot be rolled is an error here."""
    torch.manual_seed(0)
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()


def compiled(function):
    """The compiled function, and the list its reports come in."""
    reports = []

    def collect(module, inputs, **options):
        return backend.compile_graph(module, inputs, observer=reports.append, **options)

    backend.enable()
    return torch.compile(function, backend=collect), reports


def times(reports, name):
    """How often the loop calls an operator, and how often the rolled graph does."""
    found = [o for report in reports for o in report.operators if o.name == name]
    return sum(o.calls for o in found), sum(o.times for o in found)


def neurons(reports):
    return [(neuron.steps, neuron.rolled) for report in reports for neuron in report.neurons]


class Loop(nn.Module):
    """``Leaky`` over time; ``body(self, spk, mem, t)`` does something with each step."""

    def __init__(self, body, features=6):
        super().__init__()
        self.body = body
        self.features = features
        self.lif = snn.Leaky(beta=0.5, learn_beta=True)
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("rates", torch.zeros(STEPS, features))

    def forward(self, x):
        mem = self.lif.reset_mem()
        self.start(x)
        for t in range(STEPS):
            spk, mem = self.lif(x[t], mem)
            self.body(self, spk, mem, t)
        return self.out

    def start(self, x):
        self.out = torch.zeros_like(x[0])


def _same(net, x, calls=2, equal=True):
    """Results, buffers, gradients of the net as it is and compiled; returns the reports."""
    other = copy.deepcopy(net)
    run, reports = compiled(other)
    for _ in range(calls):
        found = []
        for function, module in ((net, net), (run, other)):
            torch.manual_seed(1)
            leaf = x.clone().requires_grad_()
            out = function(leaf)
            outs = out if isinstance(out, tuple) else (out,)
            kept = [one.detach().clone() for one in outs]
            module.zero_grad()
            loss = sum((one.double() * torch.linspace(-1, 2, one.numel()).view(one.shape)).sum() for one in outs)
            if loss.requires_grad:
                loss.backward()
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            gradients += [leaf.grad] if leaf.grad is not None else []
            for buffer in module.buffers():
                buffer.detach_()
            found.append((kept, [b.clone() for b in module.buffers()], gradients))
        for expected, made in zip(found[0][0], found[1][0]):
            assert expected.dtype == made.dtype
            assert torch.equal(expected, made) if equal else torch.allclose(expected, made, 1e-5, 1e-6)
        assert [len(part) for part in found[0]] == [len(part) for part in found[1]]
        for expected, made in zip(found[0][1] + found[0][2], found[1][1] + found[1][2]):
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    return reports


# ---- operations in place


def _add(self, spk, mem, t):
    self.out += spk


def _add_method(self, spk, mem, t):
    self.out.add_(spk, alpha=2)


def _detached(self, spk, mem, t):
    self.out += spk.sum().detach()


def _by_index(self, spk, mem, t):
    self.out[t] += spk.mean()


def _columns(self, spk, mem, t):
    self.out[:, t % 2] += spk[:, 0]


def _buffer(self, spk, mem, t):
    self.total += spk.sum()
    self.out = self.out + self.total


def _rows_of_a_buffer(self, spk, mem, t):
    self.rates[t] += spk.mean(0).detach()


def _read_between_changes(self, spk, mem, t):
    self.out = self.out + (spk + self.rates[0]).abs()
    self.rates[0] += spk.detach().mean(0)


def _scaled(self, spk, mem, t):
    self.out *= 0.5
    self.out += mem
    self.out.clamp_(max=1.0)


def _first_spikes(self, spk, mem, t):
    if t == 0:
        self.out = spk.clone()
    else:
        self.out += spk


def _spikes_themselves(self, spk, mem, t):
    spk += 1.0
    self.out = self.out + spk


def _activation(self, spk, mem, t):
    current = mem * 2 - 1
    current -= 0.5
    functional.relu(current, inplace=True)
    self.out = self.out + current


ACCUMULATORS = [
    _add, _add_method, _detached, _by_index, _columns, _buffer, _rows_of_a_buffer, _read_between_changes, _scaled,
    _first_spikes, _spikes_themselves, _activation,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("body", ACCUMULATORS)
def test_statistics_in_place_do_not_keep_neurons_from_rolling(body):
    reports = _same(Loop(body), torch.rand(STEPS, 5, 6) * 2)
    assert neurons(reports) == [(STEPS, True)]


@pytest.mark.parametrize("last", [True, False])
def test_a_state_that_is_set_in_part_is_that_of_the_record_too(last):
    def function(x):
        mem, out = lif.reset_mem(), []
        for t in range(STEPS):
            _, mem = lif(x[t], mem)
            out.append(mem)
            if t == STEPS - 1 or not last:
                mem[:, 0] = 0.25
        return torch.stack(out)

    lif = snn.Leaky(beta=0.5)
    run, reports = compiled(function)
    x = torch.rand(STEPS, 5, 6) * 2
    assert torch.equal(run(x), function(x))
    assert not any(rolled for _, rolled in neurons(reports))


def test_what_is_done_in_place_to_a_value_nobody_else_has_runs_once():
    reports = _same(Loop(_activation), torch.rand(STEPS, 5, 6) * 2)
    assert times(reports, "relu") == (STEPS, 1)
    assert times(reports, "mul") == (STEPS, 1)


def _older_name(self, spk, mem, t):
    current = mem * 2
    same = current
    view = current[:, :2]
    current += 1  # `view` sees it
    self.out = self.out + same * view.sum()


def _record_of_one_tensor(self, spk, mem, t):
    self.out += spk
    self.record.append(self.out)


def _promoted(self, spk, mem, t):
    self.out += spk.double()  # float32 stays float32


def _whole_numbers(self, spk, mem, t):
    self.count += (spk > 0).sum()
    self.out = self.out + self.count


class Records(Loop):
    def start(self, x):
        super().start(x)
        self.record = []
        self.count = torch.zeros((), dtype=torch.int64)

    def forward(self, x):
        out = super().forward(x)
        return (out, torch.stack(self.record)) if self.record else out


@pytest.mark.slow
@pytest.mark.parametrize("body", [_older_name, _record_of_one_tensor, _promoted, _whole_numbers])
def test_other_names_and_dtypes_of_what_is_changed_in_place(body):
    reports = _same(Records(body), torch.rand(STEPS, 5, 6) * 2)
    assert neurons(reports) == [(STEPS, True)]


def test_two_results_that_are_one_tensor_stay_one():
    def function(x):
        mem, total = lif.reset_mem(), torch.zeros_like(x[0])
        first = total
        for t in range(STEPS):
            spk, mem = lif(x[t], mem)
            total += spk
        return first, total

    lif = snn.Leaky(beta=0.5)
    run, _ = compiled(function)
    x = torch.rand(STEPS, 3, 4) * 2
    for call in (function, run):
        first, total = call(x)
        assert first.any()
        first.zero_()
        assert not total.any()


def test_the_dtype_of_an_accumulator_stays():
    def function(x, mem):
        out = torch.zeros(x.shape[1:], dtype=torch.float16)
        for t in range(STEPS):
            spk, mem = lif(x[t], mem)
            out += spk * 0.3
        return out

    lif = snn.Leaky(beta=0.5)
    x, mem = torch.rand(STEPS, 3, 4) * 2, torch.zeros(3, 4)
    run, reports = compiled(function)
    assert run(x, mem).dtype == torch.float16
    assert torch.equal(run(x, mem), function(x, mem))
    assert neurons(reports) == [(STEPS, True)]


def test_what_comes_from_outside_is_changed_in_place_though_it_may_be_another_input():
    def function(x, total, other):
        mem = lif.reset_mem()
        out = 0
        for t in range(STEPS):
            spk, mem = lif(x[t] * other, mem)
            total.add_(spk.sum(0))
            out = out + mem
        return out

    lif = snn.Leaky(beta=0.5)
    run, reports = compiled(function)
    x = torch.rand(STEPS, 3, 4) * 2
    for shared in (False, True, False):
        found = []
        for call in (function, run):
            memory = torch.arange(8.0)
            out = call(x, memory[:4], memory[2:6] if shared else torch.ones(4))
            found.append((out, memory))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])
    assert neurons(reports)[0] == (STEPS, True)


def test_two_that_are_written_may_share_memory():
    def function(x, total, part):
        mem = lif.reset_mem()
        for t in range(STEPS):
            spk, mem = lif(x[t], mem)
            total += spk.sum()
            part *= 0.5
        return mem

    lif = snn.Leaky(beta=0.5)
    run, reports = compiled(function)
    x = torch.rand(STEPS, 3, 4) * 2
    for kind in ("apart", "part", "same", "apart"):
        found = []
        for call in (function, run):
            total = torch.ones(4)
            part = {"apart": torch.ones(2), "part": total[:2], "same": total}[kind]
            found.append((call(x, total, part), total, part))
        assert all(torch.equal(*pair) for pair in zip(*found)), kind
    assert neurons(reports)[0] == (STEPS, True)


def test_in_place_without_gradient_keeps_the_gradient_there_was():
    def function(x):
        mem = lif.reset_mem()
        out = x[0] * 2
        for t in range(STEPS):
            spk, mem = lif(x[t], mem)
            with torch.no_grad():
                out += spk
        return out

    lif = snn.Leaky(beta=0.5)
    run, _ = compiled(function)
    found = []
    for call in (function, run):
        x = (torch.arange(24.0).view(STEPS, 2, 3) / 12).requires_grad_()
        out = call(x)
        out.sum().backward()
        found.append((out.detach(), x.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def _statistic(lif, x, mem, total):
    spk, mem = lif(x * 2, mem)
    with torch.no_grad():
        total += spk.mean() * mem
    return spk, mem


def _frozen_layer(lif, x, mem, total):
    with torch.no_grad():
        x = functional.linear(x, MATRIX) * lif.beta
    return lif(x + lif.beta, mem)


def _scaled_by_its_own_state(lif, x, mem, total):
    with torch.no_grad():
        scale = (x.abs() + mem.sum() / 30).amax()
    return lif(x * scale, mem)


def _without_and_with(lif, x, mem, total):
    with torch.no_grad():
        x = x * 2 + mem.sum() / 30
        x[:, 0] = 0.5
        with torch.enable_grad():
            spk, mem = lif(x * 2 + lif.beta, mem)
    return spk, mem


def _kept_gradient(lif, x, mem, total):
    spk, mem = lif(x * 2, mem)
    later = spk * 2
    with torch.no_grad():
        later.mul_(3)  # not seen by its gradient
    return later, mem


# Whether the neuron becomes one operator where there are gradients, and where there are none.
MODES = {
    _statistic: (True, True),
    _frozen_layer: (True, True),
    _scaled_by_its_own_state: (False, False),
    _without_and_with: (False, False),
    _kept_gradient: (False, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("body", MODES)
def test_parts_without_gradient(body, gradient):
    class Net(Loop):
        def forward(self, x):
            mem, total, out = self.lif.reset_mem(), torch.zeros_like(x[0]), 0
            for t in range(STEPS):
                spk, mem = self.body(self.lif, x[t], mem, total)
                out = out + spk * mem
            return out, total

    with torch.set_grad_enabled(gradient):
        reports = _same(Net(body), torch.rand(STEPS, 5, 6), equal=False)
    assert next(neuron.rolled for report in reports for neuron in report.neurons) is MODES[body][not gradient]


def test_a_barrier_is_none_where_only_use_of_an_interface_is_logged():
    def function(x):
        mem = lif.reset_mem()
        out = 0
        for t in range(STEPS):
            torch._C._log_api_usage_once("test")
            spk, mem = lif(x[t] * 2, mem)
            out = out + spk
        return out

    lif = snn.Leaky(beta=0.5)
    run, reports = compiled(function)
    x = torch.rand(STEPS, 3, 4)
    assert torch.equal(run(x), function(x))
    assert neurons(reports) == [(STEPS, True)]
    assert times(reports, "mul") == (STEPS, 1)


# ---- batch norm and dropout in training


class Normed(nn.Module):
    def __init__(self, norm, shape, constant=False, feedback=False):
        super().__init__()
        self.norm, self.constant, self.feedback = norm, constant, feedback
        self.lif = snn.Leaky(beta=0.5)
        self.map = nn.Linear(shape[-1], shape[-1])

    def forward(self, x):
        mem = self.lif.reset_mem()
        out = []
        spk = 0
        for t in range(STEPS):
            current = self.map(x[0] if self.constant else x[t])
            spk, mem = self.lif(self.norm(current + spk if self.feedback else current), mem)
            out.append(mem)
        return torch.stack(out)


NORMS = {
    "1d": (lambda: nn.BatchNorm1d(4), (5, 4)),
    "1d of sequences": (lambda: nn.BatchNorm1d(3), (5, 3, 4)),
    "2d": (lambda: nn.BatchNorm2d(3, momentum=0.3), (2, 3, 5, 4)),
    "3d": (lambda: nn.BatchNorm3d(2), (2, 2, 3, 2, 4)),
    "no parameters": (lambda: nn.BatchNorm1d(4, affine=False), (5, 4)),
    "no averages": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (5, 4)),
    "momentum 1": (lambda: nn.BatchNorm1d(4, momentum=1.0), (5, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("small", [2**13, 0])
@pytest.mark.parametrize("name", NORMS)
def test_batch_norms_in_training_are_one_over_time(name, small, monkeypatch):
    monkeypatch.setattr(batch_norm, "SMALL_STEP", small)
    make, shape = NORMS[name]
    reports = _same(Normed(make(), shape), torch.randn(STEPS, *shape) * 2 + 1, calls=3)
    assert neurons(reports) == [(STEPS, True)]
    assert times(reports, "batch_norm") == (STEPS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1d", "2d", "momentum 1", "no averages"])
def test_batch_norms_of_one_batch_are_one(name):
    make, shape = NORMS[name]
    reports = _same(Normed(make(), shape, constant=True), torch.randn(STEPS, *shape) * 2 + 1, calls=3)
    assert neurons(reports) == [(STEPS, True)]
    assert times(reports, "batch_norm") == (STEPS, 1)


COUNTS = {
    "by one": lambda self: self.steps.add_(1),
    "by three": lambda self: self.steps.add_(3),
    "twice": lambda self: self.steps.add_(1).add_(2),
    "alpha": lambda self: self.steps.add_(1, alpha=2),
    "a tensor": lambda self: self.steps.add_(self.by),
    "a truth": lambda self: self.steps.add_(True),
    "by name": lambda self: self.steps.add_(other=2),
    "downwards": lambda self: self.steps.sub_(1),
    "doubled": lambda self: self.steps.mul_(2),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_what_is_counted_at_each_step_is_counted_as_often(count, dtype):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5)
            self.register_buffer("steps", torch.tensor(5, dtype=dtype))
            self.register_buffer("by", torch.tensor(2, dtype=dtype))

        def forward(self, x):
            mem = self.lif.reset_mem()
            for t in range(STEPS):
                spk, mem = self.lif(x[t], mem)
                count(self)
            return spk

    _same(Counting(), torch.randn(STEPS, 5, 4) * 2)


def test_a_batch_norm_in_a_feedback_stays_in_the_loop():
    make, shape = NORMS["1d"]
    reports = _same(Normed(make(), shape, feedback=True), torch.randn(STEPS, *shape) * 2)
    assert neurons(reports) == [(STEPS, False)]


def test_running_averages_that_are_read_between_the_steps_are_those_of_the_loop():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.lif = nn.BatchNorm1d(4), snn.Leaky(beta=0.5)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), 0
            for t in range(STEPS):
                _, mem = self.lif(self.norm(x[t]), mem)
                out = out + self.norm.running_mean * mem
            return out

    _same(Read(), torch.randn(STEPS, 5, 4))


def test_a_norm_that_is_called_twice_in_a_step_averages_in_the_loops_order():
    class Twice(Normed):
        def forward(self, x):
            mem, out = self.lif.reset_mem(), 0
            for t in range(STEPS):
                spk, mem = self.lif(self.norm(x[t]), mem)
                out = out + self.norm(spk * 3 + x[t])
            return out

    _same(Twice(nn.BatchNorm1d(4, momentum=0.5), (4,)), torch.randn(STEPS, 5, 4), calls=3)


def test_norms_that_are_recorded_backwards_average_in_the_loops_order():
    class Backwards(Normed):
        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for t in range(STEPS):
                _, mem = self.lif(x[t], mem)
                out.append(self.norm(mem))
            return torch.stack(out[::-1])

    _same(Backwards(nn.BatchNorm1d(4, momentum=0.5), (4,)), torch.randn(STEPS, 5, 4), calls=2)


def test_a_batch_of_one_is_an_error_as_in_the_loop():
    net = Normed(nn.BatchNorm1d(4), (1, 4))
    run, _ = compiled(net)
    for call in (net, run):
        with pytest.raises(Exception, match="Expected more than 1 value per channel"):
            call(torch.randn(STEPS, 1, 4))


@pytest.mark.parametrize("name", NORMS)
def test_batch_norms_in_multistep_are_those_of_a_loop(name):
    make, shape = NORMS[name]
    norm = make()
    other = copy.deepcopy(norm)
    x = torch.randn(STEPS, *shape) * 2 + 1
    multi = snn.MultiStep(other)
    for training in (True, True, False):
        found = []
        for module, call in ((norm, lambda leaf: torch.stack([norm(step) for step in leaf])), (other, multi)):
            module.train(training)
            module.zero_grad()
            leaf = x.clone().requires_grad_()
            out = call(leaf)
            (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum().backward()
            found.append([out, *module.buffers(), leaf.grad, *(p.grad for p in module.parameters())])
        assert torch.equal(found[0][0], found[1][0]) or not training
        for expected, made in zip(*found):
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"expected .* input"):
        multi(torch.rand(STEPS, 2, 2, 2, 2, 2, 2))


# ---- one small loop for each rule


def _leaky_loop(function):
    """The loop ``function(spk, mem)`` over the steps of a neuron, its results stacked."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5)
            self.map = nn.Linear(6, 6)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for t in range(STEPS):
                spk, mem = self.lif(x[t], mem)
                out.append(function(spk, mem))
            return torch.stack(out)

    return Net()


ONES = torch.ones(())
MATRIX = torch.linspace(-1, 1, 36).view(6, 6)
PLACES = torch.tensor([[1, 0, 3, 3, 2, 0], [5, 1, 1, 0, 2, 4]]).repeat(3, 1)
# Name in the report -> the step; accepted: it runs once.
TAKEN = {
    "add": lambda spk, mem: torch.add(spk, mem.mean(1), alpha=2) if spk.shape[0] == spk.shape[1] else spk + mem,
    "sub": lambda spk, mem: mem.mean(0) - spk,
    "where": lambda spk, mem: torch.where(spk > 0, mem.sum(0), mem),
    "mul": lambda spk, mem: mem * mem.sum(),
    "matmul": lambda spk, mem: torch.matmul(spk, mem.t()),
    "mm": lambda spk, mem: torch.mm(spk.t(), mem),
    "bmm": lambda spk, mem: torch.bmm(spk.unsqueeze(0), mem.unsqueeze(0).transpose(1, 2)),
    "std": lambda spk, mem: mem.std(),
    "var": lambda spk, mem: mem.var(dim=0, unbiased=False),
    "norm": lambda spk, mem: torch.norm(mem + 1, 2, 1),
    "unflatten": lambda spk, mem: mem.unflatten(1, (2, 3)),
    "narrow": lambda spk, mem: mem.narrow(1, 2, 3),
    "movedim": lambda spk, mem: mem.movedim(0, 1),
    "transpose": lambda spk, mem: mem.transpose(-1, 0),
    "flip": lambda spk, mem: mem.flip(0),
    "roll": lambda spk, mem: torch.roll(mem, 1, 1),
    "split": lambda spk, mem: mem.split(2, 1)[1],
    "chunk": lambda spk, mem: torch.chunk(mem, 2)[0],
    "tensor_split": lambda spk, mem: mem.tensor_split(3, dim=-1)[2],
    "unbind": lambda spk, mem: mem.unbind()[1],
    "repeat": lambda spk, mem: mem.repeat(2, 1),
    "one_hot": lambda spk, mem: functional.one_hot(spk.long(), 2),
    "scaled_dot_product_attention": lambda spk, mem: functional.scaled_dot_product_attention(
        *(3 * [mem.view(1, *mem.shape)])
    ),
    "pad": lambda spk, mem: functional.pad(mem, (1, 2)),
    "softmax": lambda spk, mem: torch.softmax(mem, 1),
    "sum": lambda spk, mem: mem.sum(0),
    "mean": lambda spk, mem: mem.mean(dim=-1, keepdim=True),
    "argmax": lambda spk, mem: mem.argmax(1),
    "amax": lambda spk, mem: mem.amax(0),
    "max": lambda spk, mem: mem.max(1)[0],
    "cumsum": lambda spk, mem: mem.cumsum(0),
    "flatten": lambda spk, mem: mem.flatten(),
    "reshape": lambda spk, mem: mem.reshape(-1, 2),
    "permute": lambda spk, mem: mem.permute(1, 0),
    "t": lambda spk, mem: mem.t(),
    "unsqueeze": lambda spk, mem: mem.unsqueeze(-1),
    "squeeze": lambda spk, mem: mem[:1].squeeze(0),
    "expand": lambda spk, mem: mem[:1].expand(3, -1),
    "cat": lambda spk, mem: torch.cat([mem, spk], 1),
    "avg_pool2d": lambda spk, mem: functional.avg_pool2d(mem.view(1, 1, *mem.shape), 2),
    "avg_pool1d": lambda spk, mem: functional.avg_pool1d(mem.unsqueeze(1), 2),
    "layer_norm": lambda spk, mem: functional.layer_norm(mem, (6,)),
    "group_norm": lambda spk, mem: functional.group_norm(mem, 2),
    "interpolate": lambda spk, mem: functional.interpolate(mem.unsqueeze(1), scale_factor=2),
    "zeros_like": lambda spk, mem: torch.zeros_like(mem) + spk,
    "dropout": lambda spk, mem: functional.dropout(mem, 0.5, False),
    "gather": lambda spk, mem: mem.gather(-1, PLACES[: len(mem)]),
    "scatter_add": lambda spk, mem: spk.scatter_add(1, PLACES[: len(mem)], mem),
    "scatter_add, of a constant": lambda spk, mem: mem.scatter_add(0, PLACES[:1], MATRIX),
    "index_add": lambda spk, mem: torch.index_add(MATRIX, 1, PLACES[0], torch.cat([mem, spk])[:6]),
    "index_add, with a factor": lambda spk, mem: mem.index_add(-1, PLACES[1], spk, alpha=0.5),
    # An operator's name, and how it is called.
    "exp, of a tensor's places": lambda spk, mem: mem[PLACES[0, :3] % 4, 1].exp(),
    "exp, of a tensor's places behind": lambda spk, mem: mem[:, None, PLACES].exp(),
    "permute, sizes in a tuple": lambda spk, mem: mem.permute((1, 0)),
    "exp, of an index": lambda spk, mem: mem[1, 1:].exp(),
    "pad, reflecting with batch": lambda spk, mem: functional.pad(mem.unsqueeze(1), (1, 1), mode="reflect"),
}

# Products and sums over time in another order.
ROUNDED = ("mean", "mm", "matmul", "bmm", "std", "var", "norm", "scaled_dot_product_attention")


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("rows", [6, 4])
def test_a_rule_takes_what_it_can_and_gives_the_loops_values(name, rows):
    reports = _same(_leaky_loop(TAKEN[name]), torch.rand(STEPS, rows, 6) * 3, calls=1, equal=name not in ROUNDED)
    calls, now = times(reports, name.split(",")[0])
    assert (calls, now) == (STEPS, 1)
    assert neurons(reports) == [(STEPS, True)]


# What a rule must not take: the values are the loop's.
REFUSED = {
    # A tensor without dimensions does not widen the dtype of others, a sequence of them would.
    "double of no dimension": lambda spk, mem: mem * mem.double().sum(),
    "half of one": lambda spk, mem: mem.half() * mem.sum(),
    # A parameter with more dimensions than the step.
    "wider constant": lambda spk, mem: mem.sum(0) + MATRIX,
    "constant of more dimensions": lambda spk, mem: mem.sum() * MATRIX,
    "matrix in front": lambda spk, mem: MATRIX[: mem.shape[0], : mem.shape[0]] @ mem,
    "vector": lambda spk, mem: mem @ MATRIX[0],
    "vector in front": lambda spk, mem: MATRIX[0, : mem.shape[0]] @ mem,
    "matrices in front": lambda spk, mem: torch.stack([MATRIX] * STEPS)[:, :3, : len(mem)] @ mem,
    "convolution without batch": lambda spk, mem: functional.conv1d(mem, MATRIX[:2, : len(mem)].unsqueeze(-1)),
    "vectors": lambda spk, mem: mem[0] @ mem[1],
    "linear of a vector": lambda spk, mem: functional.linear(mem[0], MATRIX),
    "roll of all": lambda spk, mem: torch.roll(mem, 1),
    "flip of two": lambda spk, mem: torch.flip(mem, (0, -1)),
    "repeat with more": lambda spk, mem: mem.repeat(2, 1, 1),
    "expand with more": lambda spk, mem: mem.expand(2, -1, -1),
    "dim by another name": lambda spk, mem: torch.transpose(mem, 0, dim1=1),
    "destination by name": lambda spk, mem: torch.movedim(mem, 0, destination=1),
    "std of all": lambda spk, mem: torch.std(mem, False),
    "norm of all": lambda spk, mem: torch.norm(mem + 1),
    "pool without batch": lambda spk, mem: functional.avg_pool2d(mem.unsqueeze(0), 2),
    "map without batch": lambda spk, mem: functional.max_pool1d(mem, 2),
    "reflecting": lambda spk, mem: functional.pad(mem, (1, 1), mode="reflect"),
    "reflecting, of samples": lambda spk, mem: functional.pad(mem[None], (1, 1), mode="reflect"),
    "index by a tensor": lambda spk, mem: mem[torch.tensor([1, 0])],
    "index by two tensors apart": lambda spk, mem: mem[None][PLACES[0, :2] * 0, :, PLACES[0, :2]],
    "index that differs": lambda spk, mem: mem[spk[:, 0].long()],
    "places that differ": lambda spk, mem: mem.index_add(0, spk[:, 0].long(), mem),
    "places by name": lambda spk, mem: torch.gather(mem, dim=0, index=PLACES[: len(mem)] % 4),
    "index of two": lambda spk, mem: mem[1:3, 2],
    "max of all": lambda spk, mem: mem.max(),
    "dropout 1d without batch": lambda spk, mem: functional.dropout1d(mem, 0.5, False),
    "attention of a constant": lambda spk, mem: functional.scaled_dot_product_attention(
        mem[None], MATRIX[None], MATRIX[None]
    ),
    "attention with a mask of each sample": lambda spk, mem: functional.scaled_dot_product_attention(
        *(3 * [torch.stack([mem, spk])]), attn_mask=torch.stack([MATRIX, -MATRIX])[:, : len(mem), : len(mem)]
    ),
    "batch norm of a vector": lambda spk, mem: functional.batch_norm(mem, None, None, training=True),
    "cumulative softmax": lambda spk, mem: torch.softmax(mem.flatten(), 0),
    "squeeze of all": lambda spk, mem: mem[:1].squeeze(),
    "two results, one of a step": lambda spk, mem: torch.cat(mem.split(2)),
    "pool, its input by name": lambda spk, mem: functional.max_pool2d(input=mem.view(1, 1, -1, 2), kernel_size=2),
    "matrix and its transpose": lambda spk, mem: mem.t() @ mem,
    "transposed maps": lambda spk, mem: mem.unsqueeze(0).transpose(0, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("rows", [6, 4])
def test_what_a_rule_leaves_or_takes_has_the_loops_values(name, rows):
    reports = _same(_leaky_loop(REFUSED[name]), torch.rand(STEPS, rows, 6) * 3, calls=1, equal=False)
    assert neurons(reports) == [(STEPS, True)]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 4), (2, 3, 2, 2, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_dropout_of_channels_draws_the_loops_masks(shape, transposed):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5)
            self.drop = getattr(nn, f"Dropout{len(shape) - 2}d")(0.4)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for t in range(STEPS):
                step = x[t].transpose(1, -1).contiguous().transpose(1, -1) if transposed else x[t]
                spk, mem = self.lif(self.drop(step), mem)
                out.append(self.drop(spk) + mem)
            return torch.stack(out)

    reports = _same(Net(), torch.rand(STEPS, *shape) * 2)
    assert neurons(reports) == [(STEPS, True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["self", "memory", "masked", "weights", "rows"])
def test_attention_of_all_steps_is_one_call(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=kind != "rows")
            self.register_buffer("keys", torch.randn(5, 7, 6))

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            mask = torch.ones(4, 4, dtype=torch.bool).triu(1) if kind == "masked" else None
            for t in range(STEPS):
                spk, mem = self.lif(x[t], mem)
                keys = self.keys if kind == "memory" else spk
                made, weights = self.attention(spk, keys, keys, attn_mask=mask, need_weights=kind == "weights")
                out.append(weights if kind == "weights" else made)
            return torch.stack(out)

    reports = _same(Net(), torch.rand(STEPS, 5, 4, 6) * 2, equal=False)
    assert times(reports, "multi_head_attention_forward") == (STEPS, 1)


def test_attention_with_a_mask_of_each_sample_stays():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif, self.attention = snn.Leaky(beta=0.5), nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x):
            mem, out, left_out = self.lif.reset_mem(), [], torch.zeros(5, 4, dtype=torch.bool)
            left_out[:, -1] = True
            for t in range(STEPS):
                spk, mem = self.lif(x[t], mem)
                out.append(self.attention(spk, spk, spk, key_padding_mask=left_out)[0])
            return torch.stack(out)

    reports = _same(Net(), torch.rand(STEPS, 5, 4, 6) * 2, equal=False)
    assert times(reports, "multi_head_attention_forward") == (STEPS, STEPS)


def test_a_graphs_constants_are_computed_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif, self.map = snn.Leaky(beta=0.5), nn.Linear(6, 6, bias=False)

        def forward(self, x, edges):
            mem, out = self.lif.reset_mem(), []
            for t in range(STEPS):
                loops = torch.arange(x.shape[1])
                row, col = torch.cat([edges[0], loops]), torch.cat([edges[1], loops])
                degree = torch.zeros(x.shape[1]).scatter_add_(0, col, torch.ones(col.numel()))
                scale = degree.pow(-0.5)[row]
                made = torch.zeros_like(x[t]).index_add_(0, col, self.map(x[t])[row] * scale.unsqueeze(1))
                spk, mem = self.lif(made, mem)
                out.append(spk)
            return torch.stack(out)

    net, x, edges = Net(), torch.rand(STEPS, 5, 6) * 3, torch.tensor([[0, 1, 2], [2, 3, 4]])
    run, reports = compiled(net)
    torch.testing.assert_close(run(x, edges), net(x, edges))
    assert neurons(reports) == [(STEPS, True)]
    for name in ("arange", "zeros", "scatter_add_", "pow", "index_add_", "linear"):
        calls, now = times(reports, name)
        assert calls == STEPS, name
        assert now <= 1, name


def test_constants_that_are_results_are_not_one_tensor():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5)

        def forward(self, x):
            mem, ones = self.lif.reset_mem(), []
            for t in range(STEPS):
                _, mem = self.lif(x[t] * torch.ones(6), mem)
                ones.append(torch.ones(6).view(2, 3))
            return (mem, *ones)

    net, x = Net(), torch.rand(STEPS, 5, 6)
    _, first, *others = compiled(net)[0](x)
    first.zero_()
    assert all(torch.equal(one, torch.ones(2, 3)) for one in others)


def test_noise_like_what_lies_turned_is_drawn_as_it_lies():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for t in range(STEPS):
                spk, mem = self.lif(x[t] + torch.randn_like(x[t].t()).t(), mem)
                out.append(spk + torch.rand_like(mem))
            return torch.stack(out)

    reports = _same(Net(), torch.rand(STEPS, 5, 6))
    assert neurons(reports) == [(STEPS, True)]


def test_rate_coding_draws_in_the_loops_order_and_compares_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif, self.map = snn.Leaky(beta=0.5), nn.Linear(6, 6)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for _ in range(STEPS):
                _, mem = self.lif(self.map((torch.rand_like(x[0]) < x[0]).float()), mem)
                out.append(mem)
            return torch.stack(out)

    reports = _same(Net(), torch.rand(STEPS, 5, 6), equal=False)
    assert neurons(reports) == [(STEPS, True)]
    assert times(reports, "linear") == (STEPS, 1)
    assert times(reports, "lt") == (STEPS, 1)


# ---- the plan and what is written


class Planned(nn.Module):
    """A loop whose inputs, records or connections ``kind`` names."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.map, self.lif, self.lif2 = nn.Linear(6, 6), snn.Leaky(beta=0.5), snn.Leaky(beta=0.75)

    def forward(self, x):
        mem, mem2 = self.lif.reset_mem(), self.lif2.reset_mem()
        places = {"reversed": range(STEPS - 1, -1, -1), "middle": range(1, 3), "end": range(-2, 0)}.get(
            self.kind, range(STEPS)
        )
        before, records, shapes = x[0] * 0, [], []
        for t in places:
            spk, mem = self.lif(self.map(x[t]), mem)
            spk2, mem2 = self.lif2(before if self.kind == "before" else spk * 2, mem2)
            before = spk * 3
            records.append(mem2 + spk2)
            shapes.append(mem[: t + 1] * 2)
        if self.kind == "shapes":
            return torch.cat(shapes)
        return torch.stack(records, dim=1 if self.kind == "along" else 0)


INDEXED = {
    "x[t]": lambda x, t: x[t],
    "x[t, :]": lambda x, t: x[t, :],
    "x[t, ...]": lambda x, t: x[t, ...],
    "x[:, t, :, :]": lambda x, t: x[:, t, :, :],
    "x[..., t]": lambda x, t: x[..., t],
    "x[..., t, 1]": lambda x, t: x[..., t, 1],
    "x[1, t]": lambda x, t: x[1, t],
    "x[None, ..., t, 1:]": lambda x, t: x[None, ..., t, 1:],
    "x[:, t, None]": lambda x, t: x[:, t, None],
    "x.select(-2, t)": lambda x, t: x.select(-2, t),
    "x.unbind(1)[t]": lambda x, t: x.unbind(1)[t],
    "x[:, 1 + 2 * t]": lambda x, t: x[:, 1 + 2 * t],
    "x[:, -1 - t]": lambda x, t: x[:, -1 - t],
    "x[:, 8 - 2 * t]": lambda x, t: x[:, 8 - 2 * t],
    "x[:, t : t + 1]": lambda x, t: x[:, t : t + 1],
    "x[:, t : t + 1].squeeze(1)": lambda x, t: x[:, t : t + 1].squeeze(1),
    "x[:, :, 1 + 2 * t : 3 + 2 * t]": lambda x, t: x[:, :, 1 + 2 * t : 3 + 2 * t],
}
# Right, and each step's own call: windows that overlap or end early, places at no one distance, a tensor's numbers.
NOT_INDEXED = {
    "x[t : t + 2]": lambda x, t: x[t : t + 2],
    "x[3 * t : 3 * t + 2]": lambda x, t: x[3 * t : 3 * t + 2],
    "x[places[t]]": lambda x, t: x[[0, 2, 3, 7][t]],
    "x[t, t]": lambda x, t: x[t, t],
    "x[[t]]": lambda x, t: x[[t]],
    "x[t : t + 2 : 2]": lambda x, t: x[t : t + 2 : 2],
    "x[places, t]": lambda x, t: x[PLACES[:2, :3], t],
    "x[2 * t : 2 * t + 2 : 2]": lambda x, t: x[2 * t : 2 * t + 2 : 2],
}


@pytest.mark.slow
@pytest.mark.parametrize("form", [*INDEXED, *NOT_INDEXED])
def test_indices_of_all_steps_are_one(form):
    index = {**INDEXED, **NOT_INDEXED}[form]

    class Indexed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.5, init_hidden=True)

        def forward(self, x):
            self.lif.reset_mem()
            return torch.stack([self.lif(index(x, t)) for t in range(STEPS)])

    (report,) = _same(Indexed(), 2 * torch.randn(11, 11, 12, 13))
    assert [(one.steps, one.rolled) for one in report.neurons] == [(STEPS, True)]
    assert report.code.count("= l_x_[") == (STEPS if form in NOT_INDEXED else 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reversed", "middle", "end", "before", "along", "shapes"])
def test_plans_of_inputs_records_and_connections(kind):
    net, x = Planned(kind), torch.randn(STEPS, 4, 6) * 2
    reports = _same(net, x, equal=False)
    steps = 2 if kind in ("middle", "end") else STEPS
    assert (steps, True) in neurons(reports)
    assert times(reports, "linear") == (steps, 1)


@pytest.mark.parametrize("split", [True, False])
def test_one_of_several_results_of_a_single_step_among_loose_tuples(split):
    def function(x):
        mem, out = lif.reset_mem(), []
        for t in range(STEPS):
            spk, mem = lif(x[t], mem)
            parts = (spk * 2).split(2) if split else (spk * 2).max(1)
            out.append(parts[0])
        return torch.stack(out) + parts[1].sum()

    lif = snn.Leaky(beta=0.5)
    run, reports = compiled(function)
    x = torch.rand(STEPS, 4, 6) * 2
    assert torch.equal(run(x), function(x))
    assert neurons(reports) == [(STEPS, True)]


def test_a_step_of_what_becomes_a_sequence_later_among_the_pieces_of_another(monkeypatch):
    monkeypatch.setattr(multistep, "PART_BYTES", 1)

    def function(x):
        mem, spikes, mixed = lif.reset_mem(), [], []
        for t in range(STEPS):
            spk, mem = lif(x[STEPS - 1 - t], mem)
            joined = wide(torch.cat([spk, spk], dim=1))
            mixed.append((narrow(spk) if t % 2 else narrow(joined)).clamp(-2, 2))
            spikes.append(spk)
        return torch.cat(spikes), torch.stack(mixed)

    lif, wide, narrow = snn.Leaky(beta=0.5), nn.Linear(12, 6), nn.Linear(6, 6)
    run, reports = compiled(function)
    x = torch.rand(STEPS, 3, 6) * 2
    for made, expected in zip(run(x), function(x)):
        torch.testing.assert_close(made, expected)
    assert neurons(reports) == [(STEPS, True)]
