"""Small loops for each rule of the compiler: supported calls run once, and others run step by step."""

import contextlib
import copy
import itertools
import operator

import pytest
import torch
from support.loops import check, compared, network, outcome, rolled, times
from support.versions import needs_backend
from torch import nn
from torch.nn import functional as F

import snnipu as snn
from snnipu.compiler import nodes, rules
from snnipu.ops import batch_norm

pytestmark = [needs_backend, pytest.mark.usefixtures("found")]
STEPS = 4
SPIKE = "spk, mem = self.lif(x[t], mem)\n"


# ---- one call for each rule

MATRIX = torch.linspace(-1, 1, 36).view(6, 6)
PLACES = torch.tensor([[1, 0, 3, 3, 2, 0], [5, 1, 1, 0, 2, 4]]).repeat(3, 1)
# Operators in the report -> expressions of the spikes and the membrane of a step.
TAKEN = {
    "adaptive_avg_pool1d": "F.adaptive_avg_pool1d(mem[:, None], 3)",
    "adaptive_avg_pool2d": "F.adaptive_avg_pool2d(mem.view(-1, 1, 2, 3), 2)",
    "adaptive_avg_pool3d": "F.adaptive_avg_pool3d(mem.view(-1, 1, 1, 2, 3), 1)",
    "adaptive_max_pool1d": "F.adaptive_max_pool1d(mem[:, None], 3)",
    "adaptive_max_pool2d": "F.adaptive_max_pool2d(mem.view(-1, 1, 2, 3), 2)",
    "adaptive_max_pool3d": "F.adaptive_max_pool3d(mem.view(-1, 1, 1, 2, 3), 1)",
    "add": "torch.add(mem, mem.mean(0), alpha=2)",
    "alpha_dropout": "F.alpha_dropout(mem, 0.5, False)",
    "amax": "mem.amax(0)",
    "amin": "mem.amin()",
    "argmax": "mem.argmax(1)",
    "argmin": "torch.argmin(mem, dim=0)",
    "avg_pool1d": "F.avg_pool1d(mem[:, None], 2)",
    "avg_pool2d": "F.avg_pool2d(mem.view(-1, 1, 2, 3), 2)",
    "avg_pool3d": "F.avg_pool3d(mem.view(-1, 1, 2, 1, 3), 1)",
    "batch_norm": "F.batch_norm(mem, MATRIX[0], MATRIX[0] + 2)",
    "bfloat16": "mem.bfloat16()",
    "bmm": "torch.bmm(spk[None], mem[None].transpose(1, 2))",
    "bool": "spk.bool()",
    "cat": "torch.cat([mem, spk, MATRIX], 0)",
    "chunk": "torch.chunk(mem, 2)[0]",
    "concat": "torch.concat([mem, spk], axis=-1)",
    "contiguous": "mem.t().contiguous()",
    "conv1d": "F.conv1d(mem[:, None], MATRIX[:2, None, :3], padding=1)",
    "conv2d": "F.conv2d(mem.view(-1, 1, 2, 3), MATRIX[:2, :2].view(2, 1, 1, 2))",
    "conv3d": "F.conv3d(mem.view(-1, 1, 1, 2, 3), MATRIX[:2, :2].view(2, 1, 1, 1, 2))",
    "conv_transpose1d": "F.conv_transpose1d(mem[:, None], MATRIX[:1, None, :3])",
    "conv_transpose2d": "F.conv_transpose2d(mem.view(-1, 1, 2, 3), MATRIX[None, None])",
    "conv_transpose3d": "F.conv_transpose3d(mem.view(-1, 1, 1, 2, 3), MATRIX[None, None, None])",
    "cumsum": "mem.cumsum(0)",
    "double": "mem.double()",
    "dropout": "F.dropout(mem, 0.5, False)",
    "dropout1d": "F.dropout1d(mem[None], 0.5, False)",
    "dropout2d": "F.dropout2d(mem[None, None], 0.5, False)",
    "dropout3d": "F.dropout3d(mem[None, None, None], 0.5, False)",
    "embedding": "F.embedding(spk.long(), MATRIX)",
    "exp": "mem[1, 1:].exp()",
    "exp, of a tensor's places": "mem[PLACES[0, :3] % 3, 1].exp()",
    "exp, of a tensor's places behind": "mem[:, None, PLACES].exp()",
    "expand": "mem[:1].expand(3, -1)",
    "flatten": "mem.flatten()",
    "flip": "mem.flip(0)",
    "float": "(mem > 0.5).float()",
    "gather": "mem.gather(-1, PLACES[: len(mem)])",
    "group_norm": "F.group_norm(mem, 2)",
    "half": "mem.half()",
    "index_add": "torch.index_add(MATRIX, 1, PLACES[0], torch.cat([mem, spk])[:6])",
    "index_add, with a factor": "mem.index_add(-1, PLACES[1], spk, alpha=0.5)",
    "index_select": "mem.index_select(1, PLACES[0])",
    "instance_norm": "F.instance_norm(mem[:, None])",
    "int": "mem.int()",
    "interpolate": "F.interpolate(mem[:, None], scale_factor=2)",
    "layer_norm": "F.layer_norm(mem, (6,))",
    "linear": "F.linear(mem, MATRIX, MATRIX[0])",
    "linear, of a vector": "F.linear(mem[0], MATRIX)",
    "log_softmax": "F.log_softmax(mem, -1)",
    "long": "mem.long()",
    "lp_pool1d": "F.lp_pool1d(mem[:, None] + 1, 2, 2)",
    "lp_pool2d": "F.lp_pool2d(mem.view(-1, 1, 2, 3) + 1, 2, 2)",
    "matmul": "torch.matmul(spk, mem.t())",
    "matmul, of a matrix": "MATRIX[:4, : len(mem)] @ mem",
    "max": "mem.max(1)[0]",
    "max_pool1d": "F.max_pool1d(mem[:, None], 2)",
    "max_pool2d": "F.max_pool2d(mem.view(-1, 1, 2, 3), 2)",
    "max_pool3d": "F.max_pool3d(mem.view(-1, 1, 1, 2, 3), 1)",
    "mean": "mem.mean(dim=-1, keepdim=True)",
    "min": "torch.min(mem, dim=0).values",
    "mm": "torch.mm(spk.t(), mem)",
    "movedim": "mem.movedim(0, 1)",
    "mul": "mem * mem.sum()",
    "narrow": "mem.narrow(1, 2, 3)",
    "norm": "torch.norm(mem + 1, 2, 1)",
    "one_hot": "F.one_hot(spk.long(), 2)",
    "pad": "F.pad(mem, (1, 2))",
    "pad, reflecting with batch": "F.pad(mem[:, None], (1, 1), mode='reflect')",
    "permute": "mem.permute(1, 0)",
    "permute, sizes in a tuple": "mem.permute((1, 0))",
    "pixel_shuffle": "F.pixel_shuffle(mem[:1, :4].view(1, 4, 1, 1), 2)",
    "prelu": "F.prelu(mem - 1, MATRIX[0])",
    "repeat": "mem.repeat(2, 1)",
    "reshape": "mem.reshape(-1, 2)",
    "rms_norm": "F.rms_norm(mem, (6,))",
    "roll": "torch.roll(mem, 1, 1)",
    "scaled_dot_product_attention": "F.scaled_dot_product_attention(*(3 * [mem[None]]))",
    "scatter_add": "spk.scatter_add(1, PLACES[: len(mem)], mem)",
    "scatter_add, of a constant": "mem.scatter_add(0, PLACES[:1] % 3, MATRIX)",
    "softmax": "torch.softmax(mem, 1)",
    "split": "mem.split(2, 1)[1]",
    "squeeze": "mem[:1].squeeze(0)",
    "squeeze, of all": "mem[:1].squeeze()",
    "stack": "torch.stack([mem, spk], -1)",
    "std": "mem.std()",
    "sub": "mem.mean(0) - spk",
    "sum": "mem.sum(0)",
    "swapaxes": "mem.swapaxes(0, 1)",
    "t": "mem.t()",
    "tensor_split": "mem.tensor_split(3, dim=-1)[2]",
    "to": "mem.to(torch.float64)",
    "transpose": "mem.transpose(-1, 0)",
    "type": "mem.type(torch.float64)",
    "type_as": "mem.type_as(PLACES)",
    "unbind": "mem.unbind()[1]",
    "unflatten": "mem.unflatten(1, (2, 3))",
    "unsqueeze": "mem.unsqueeze(-1)",
    "var": "mem.var(dim=0, unbiased=False)",
    "view": "mem.view(-1, 3)",
    "where": "torch.where(spk > 0, mem.sum(0), mem)",
}
# Calls that a rule must refuse, or refuse at some sizes. Some of them run by torch.vmap.
REFUSED = {
    # A tensor without dimensions does not promote the dtype of others, but a sequence of such tensors would.
    "double of no dimension": "mem * mem.double().sum()",
    "half of one": "mem.half() * mem.sum()",
    # A parameter with more dimensions than the step.
    "wider constant": "mem.sum(0) + MATRIX",
    "constant of more dimensions": "mem.sum() * MATRIX",
    "vector": "mem @ MATRIX[0]",
    "vector in front": "MATRIX[0, : mem.shape[0]] @ mem",
    "matrices in front": "torch.stack([MATRIX] * STEPS)[:, :3, : len(mem)] @ mem",
    "convolution without batch": "F.conv1d(mem, MATRIX[:2, : len(mem)].unsqueeze(-1))",
    "vectors": "mem[0] @ mem[1]",
    "bilinear": "F.bilinear(spk, mem, MATRIX[None])",
    "roll of all": "torch.roll(mem, 1)",
    "flip of two": "torch.flip(mem, (0, -1))",
    "repeat with more": "mem.repeat(2, 1, 1)",
    "expand with more": "mem.expand(2, -1, -1)",
    "dim by another name": "torch.transpose(mem, 0, dim1=1)",
    "destination by name": "torch.movedim(mem, 0, destination=1)",
    "std of all": "torch.std(mem, False)",
    "norm of all": "torch.norm(mem + 1)",
    "pool without batch": "F.avg_pool2d(mem.unsqueeze(0), 2)",
    "map without batch": "F.max_pool1d(mem, 2)",
    "reflecting": "F.pad(mem, (1, 1), mode='reflect')",
    "reflecting, of samples": "F.pad(mem[None], (1, 1), mode='reflect')",
    "index by a tensor": "mem[torch.tensor([1, 0])]",
    "index by two tensors apart": "mem[None][PLACES[0, :2] * 0, :, PLACES[0, :2]]",
    "index that differs": "mem[spk[:, 0].long()]",
    "places that differ": "mem.index_add(0, spk[:, 0].long(), mem)",
    "places by name": "torch.gather(mem, dim=0, index=PLACES[: len(mem)] % 3)",
    "index of two": "mem[1:3, 2]",
    "max of all": "mem.max()",
    "dropout 1d without batch": "F.dropout1d(mem, 0.5, False)",
    "attention of a constant": "F.scaled_dot_product_attention(mem[None], MATRIX[None], MATRIX[None])",
    "attention with a mask of each sample": (
        "F.scaled_dot_product_attention(*(3 * [torch.stack([mem, spk])]), attn_mask=torch.stack([MATRIX, "
        "-MATRIX])[:, : len(mem), : len(mem)])"
    ),
    "batch norm of a vector": "F.batch_norm(mem, None, None, training=True)",
    "cumulative softmax": "torch.softmax(mem.flatten(), 0)",
    "two results, one of a step": "torch.cat(mem.split(2))",
    "pool, its input by name": "F.max_pool2d(input=mem.view(1, 1, -1, 2), kernel_size=2)",
    "matrix and its transpose": "mem.t() @ mem",
    "transposed maps": "mem.unsqueeze(0).transpose(0, 2)",
}


def recording(expressions):
    """Make a network that records these expressions of each step."""
    step = "\n".join([SPIKE, *(f"rows[{place}].append({text})" for place, text in enumerate(expressions))])
    start, names = f"rows = [[] for _ in range({len(expressions)})]", {"MATRIX": MATRIX, "PLACES": PLACES}
    return network(
        step, start=start, result="[torch.stack(row) for row in rows]", STEPS=STEPS, operator=operator, **names
    )


# Reports leave out how a step reads and joins tensors.
UNREPORTED = {"narrow", "stack"}


def called_once(report, names):
    """Check that these operators run once over all steps."""
    assert rolled(report) == [(3, True)], report
    for name in {*names} - UNREPORTED:
        calls, now = times(report, name)
        assert 0 < 3 * now == calls, name


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_rule_takes_what_it_can_and_gives_the_loops_values(part):
    names = list(TAKEN)[part::4]
    called_once(
        compared(recording([TAKEN[name] for name in names]), 3 * torch.rand(STEPS, 6, 6)),
        [n.split(",")[0] for n in names],
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_what_a_rule_leaves_or_takes_has_the_loops_values(part):
    report = compared(recording(list(REFUSED.values())[part::2]), 3 * torch.rand(STEPS, 6, 6))
    assert rolled(report) == [(3, True)], report


ARGUMENTS = (
    "mem",
    "mem, spk + 1",
    "mem, 0.5",
    "mem > 0.5, spk > 0",
    "mem > 0.5",
    "mem, spk > 0, 0.5",
    "mem, spk, mem + 1",
    "mem, 0.3, 0.4",
    "mem > 0.5, mem, spk",
)


def elementwise(name):
    """Return a call of the elementwise function ``name`` with suitable arguments."""
    x, spaces = torch.rand(2, 3), ("torch", "F", "operator", "torch._C._nn")
    for space, arguments in itertools.product(spaces, ARGUMENTS):
        call = f"{space}.{name}({arguments})"
        with contextlib.suppress(AttributeError, TypeError, RuntimeError):
            result = eval(call, {"torch": torch, "F": F, "operator": operator, "spk": x, "mem": x})
            if isinstance(result, torch.Tensor) and result.shape == x.shape:
                return call
    raise AssertionError(f"{name} is no function of tensors")


@pytest.mark.slow
def test_elementwise_functions_are_called_once():
    names = sorted(nodes.ELEMENTWISE - {"spike_of", "rsub"})  # the surrogate, and 1 - x
    called_once(compared(recording([*map(elementwise, names)]), torch.rand(STEPS, 6, 6), learns=False), names)


def test_every_rule_has_a_row():
    """The table only has calls with results of the neuron. Separate tests below cover the other rules."""
    others = {"getitem", *nodes.ELEMENTWISE}
    assert rules.RULES.keys() - others <= {name.split(",")[0] for name in TAKEN}


# ---- statements

BUFFERS = """
self.register_buffer("total", torch.zeros(()))
self.register_buffer("rates", torch.zeros(9, 6))
self.register_buffer("gate", torch.ones(6))
self.register_buffer("count", torch.tensor(5))
self.register_buffer("counts", torch.tensor(5.0))
self.register_buffer("by", torch.tensor(2))
self.norm, self.drop = nn.BatchNorm1d(6, momentum=0.5), nn.Dropout(0.4)
"""
START = "half, before = torch.zeros(x.shape[1:], dtype=torch.float16), x[0] * 0"
# Code of a step, and True if the neuron is one operator.
STATEMENTS = {
    "out += spk": True,
    "out.add_(spk, alpha=2)": True,
    "out += spk.sum().detach()": True,
    "out[t] += spk.mean()": True,
    "self.total += spk.sum()\nout = out + self.total": True,
    "self.rates[t] += spk.mean(0).detach()": True,
    "out = out + (spk + self.rates[0]).abs()\nself.rates[0] += spk.detach().mean(0)": True,
    "if t == 0:\n    out = spk.clone()\nelse:\n    out += spk": True,
    "spk += 1.0\nout = out + spk": True,
    "now = mem * 2 - 1\nnow -= 0.5\nF.relu(now, inplace=True)\nout = out + now": True,
    "now = mem * 2\nsame, view = now, now[:, :2]\nnow += 1\nout = out + same * view.sum()": True,
    "out += spk.double()": True,
    "self.count += (spk > 0).sum()\nout = out + self.count": True,
    "half += spk * 0.3\nout = half.float()": True,
    "self.gate.mul_(0.9)\nout = out + self.gate.clone() * spk": True,
    "with torch.no_grad():\n    out += spk": True,
    "with torch.no_grad():\n    out += spk.mean() * mem": True,
    "with torch.no_grad():\n    now = self.map(mem) * self.lif.beta\nout = out + now + spk": True,
    "torch._C._log_api_usage_once('test')\nout = out + spk": True,
    "self.count.add_(3)": True,
    "self.count.add_(1).add_(2)": True,
    "self.count.add_(1, alpha=2)": True,
    "self.count.add_(self.by)": True,
    "self.count.add_(True)": True,
    "self.count.add_(other=2)": True,
    "self.count.mul_(2)": True,
    "self.counts.sub_(1)": True,
    "self.counts.add_(True)": True,
    "out = out + self.norm(mem) * self.norm.running_mean": True,
    "out = out + torch.rand_like(mem) + torch.randn_like(mem.t()).t()": True,
    "out = out + self.map((torch.rand_like(mem) < mem).float())": True,
    "out = out + self.drop(F.dropout1d(mem[:, None], 0.4)[:, 0])": True,
    "out = out + F.dropout2d(mem.view(-1, 2, 3, 1).transpose(1, 3), 0.4).sum()": True,
    "out = out + F.dropout3d(mem.view(-1, 2, 3, 1, 1), 0.4).sum()": True,
    "out = out + (spk * 2).split(2)[0].sum() + (spk * 2).max(1)[1].sum()": True,
    "before, out = spk * 3, out + before": True,
    "if t % 2:\n    out = out + self.map(spk)": None,
    "out[:, t % 2] += spk[:, 0]": None,
    "out *= 0.5\nout += mem\nout.clamp_(max=1.0)": None,
    "mem = mem * 1.0\nmem[:, 0] = 0.25": None,
    "mem[:, 0] = 0.25": None,
    "mem.mul_(0.5)": None,
    "out = out + self.norm(spk * 3 + self.norm(x[t]))": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("step", STATEMENTS)
def test_statements(step):
    learns = "mem.mul_" not in step and "mem[" not in step
    report = compared(network(SPIKE + step, BUFFERS, START), 2 * torch.rand(STEPS + 1, 6, 6), learns=learns)
    assert rolled(report)[:1] == [(STEPS, True)] or STATEMENTS[step] is None, report


# ---- inputs of the neuron, norms, attention

# The input of the neuron, and True if the neuron is one operator.
INPUTS = {
    "self.norm(x[t])": True,
    "self.norm(self.map(x[0]))": True,
    "self.norm(x[t] + before)": None,
    "self.drop(self.map(x[t]))": True,
    "x[t] * (x[t].abs() + mem.sum() / 30).amax().detach()": None,
    "self.map(x[t] * 2) + torch.randn(6)": True,
    "x[-1 - t]": True,
    "x[t, :]": True,
    "x[t, ...]": True,
    "y[:, t]": True,
    "y[..., t, :]": True,
    "y.select(-2, t)": True,
    "y.unbind(1)[t]": None,
    "y[:, t : t + 1].squeeze(1)": True,
    "z[2 * t : 2 * t + 2].sum(0)": True,
    "z[1 + 2 * t]": True,
    "z[t : t + 2].sum(0)": True,
    "z[3 * t // 2]": None,
    "z[[0, 2, 3, 7, 6][t]]": None,
    "z[[t]][0]": None,
    "z[t : t + 2 : 2][0]": None,
    "y[places, t]": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("current", INPUTS)
def test_inputs(current):
    start = f"{START}\ny, z, places = x.transpose(0, 1), x.repeat_interleave(2, 0), torch.arange(x.shape[1])"
    step = f"spk, mem = self.lif({current}, mem)\nbefore = spk"
    report = compared(network(step, BUFFERS, start), 2 * torch.rand(STEPS + 1, 4, 6))
    assert rolled(report) == [(STEPS, True)] or INPUTS[current] is None, report


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
    norm, shape = NORMS[name][0](), NORMS[name][1]
    net = network("spk, mem = self.lif(self.norm(x[t]), mem)", "self.norm = norm", result="torch.stack(rec)", norm=norm)
    x = torch.randn(STEPS, *shape) * 2 + 1
    report = compared(net, x, x, x + 1)
    assert rolled(report) == [(STEPS, True)]
    assert times(report, "batch_norm") == (STEPS, 1)


def test_a_batch_of_one_is_an_error_as_in_the_loop():
    net = network("spk, mem = self.lif(self.norm(x[t]), mem)", BUFFERS)
    for call in (net, snn.compile(net)):
        with pytest.raises(Exception, match="Expected more than 1 value per channel"):
            call(torch.randn(STEPS, 1, 6))


@pytest.mark.parametrize("name", NORMS)
def test_batch_norms_in_multistep_are_those_of_a_loop(name):
    norm, shape = NORMS[name][0](), NORMS[name][1]
    x = torch.randn(STEPS, *shape) * 2 + 1
    multi = snn.MultiStep(copy.deepcopy(norm))
    for training in (True, True, False):
        norm.train(training), multi.train(training)
        expected = outcome(lambda leaf: torch.stack([norm(step) for step in leaf]), norm, x)
        actual = outcome(multi, multi[0], x)
        check(actual, expected, rtol=1e-4)
        assert torch.equal(actual["result 0"], expected["result 0"]) or not training
    with pytest.raises(ValueError, match=r"expected .* input"):
        multi(torch.rand(STEPS, 2, 2, 2, 2, 2, 2))


ATTENTION = (
    ("spk[None]", None, 0),
    ("self.rates[None]", None, 0),
    ("spk[None]", "torch.ones(9, 9, dtype=torch.bool).triu(1)[: len(spk), : len(spk)]", 0),
    ("spk[None]", None, 1),
)


@pytest.mark.slow
def test_attention_with_weights_is_one_call():
    """torch.vmap has no rule for PyTorch's attention without weights."""
    call = "out = out + self.attention(spk[None], {0}, {0}, attn_mask={1}, need_weights={2} == 1)[{2}].sum()"
    step = "\n".join([SPIKE, *(call.format(*row) for row in ATTENTION)])
    init = BUFFERS + "self.attention = nn.MultiheadAttention(6, 2, batch_first=True)"
    report = compared(network(step, init), 2 * torch.rand(STEPS + 1, 6, 6))
    assert times(report, "multi_head_attention_forward") == (STEPS * len(ATTENTION), STEPS * (len(ATTENTION) - 1) + 1)


@pytest.mark.slow
def test_a_graphs_constants_are_computed_once():
    step = """
nodes = torch.arange(x.shape[1])
row, col = torch.cat([edges[0], nodes]), torch.cat([edges[1], nodes])
degree = torch.zeros(x.shape[1]).scatter_add_(0, col, torch.ones(col.numel()))
scale = degree.pow(-0.5)[row]
now = torch.zeros_like(x[t]).index_add_(0, col, self.map(x[t])[row] * scale.unsqueeze(1))
spk, mem = self.lif(now, mem)
"""
    start = "edges = torch.tensor([[0, 1, 2], [2, 3, 1]])"
    report = compared(network(step, start=start), 3 * torch.rand(STEPS + 1, 5, 6))
    assert rolled(report) == [(STEPS, True)]
    for name in ("arange", "scatter_add", "pow", "index_add", "linear"):
        assert times(report, name) == (STEPS, 1), name


# ---- memory

SHARED = {
    "apart": "whole = x[0, 0].detach().clone()\none, other = whole[:2], torch.ones(2)",
    "in part": "whole = x[0, 0].detach().clone()\none, other = whole[:4], whole[2:]",
    "the same": "whole = x[0, 0].detach().clone()\none = other = whole",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["one.add_(spk.detach().sum())", "one.mul_(0.5)", "one += 1\nother *= 0.5"])
@pytest.mark.parametrize("start", SHARED)
def test_tensors_that_a_step_changes_may_share_memory(start, change):
    step = f"{SPIKE}{change}\nout = out + other.sum()"
    compared(network(step, start=SHARED[start], result="out, whole, one, other"), 2 * torch.rand(STEPS, 6, 6))


@pytest.mark.slow
def test_results_that_are_one_tensor_stay_one_and_others_are_apart():
    step = f"{SPIKE}out += spk.detach()\nones.append(torch.ones(6).view(2, 3))"
    net = network(step, start="first, ones = out, []", result="first, out, *ones")
    compiled, x = snn.compile(net), torch.rand(STEPS, 3, 6) * 2
    for call in (net, compiled, compiled):
        first, total, one, *others = call(x)
        assert first.any()
        assert total is first or torch.equal(first.zero_(), total)
        one.zero_()
        assert all(map(torch.all, others))
