"""Tools on a network have the same results with ``snn.auto()``, and the network runs compiled before and after."""

import contextlib
import copy
import pickle
import sys
import warnings

import pytest
import snntorch
import torch
from support.commands import python
from support.exact import exact, exact_numbers
from support.loops import as_written
from support.versions import needs_backend
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import snnipu as snn
from snnipu import utils

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
STEPS, BATCH, INPUTS = 5, 3, 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, 3), snn.Leaky(beta=0.5, threshold=0.25)

    def forward(self, x):
        mem, out = self.lif.init_leaky(), []
        for step in range(STEPS):
            _spk, mem = self.lif(self.fc(x[step]), mem)
            out.append(mem)
        return torch.stack(out)


class Tracer(torch.fx.Tracer):
    """A tracer of ``torch.fx`` whose graphs have neurons and layers as nodes."""

    def is_leaf_module(self, module, name):
        return isinstance(module, (nn.Linear, snntorch.SpikingNeuron))


def by_fx(net, x):
    graph = Tracer().trace(net)
    modules = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    return torch.fx.GraphModule(net, graph)(x), modules


def by_jit(net, x):
    return torch.jit.trace(net, x, check_trace=False)(x)


def by_make_fx(net, x):
    return make_fx(net)(x)(x)


def by_export(net, x):
    return torch.export.export(net, (x,), strict=False).module()(x)


def by_vmap(net, x):
    return torch.func.vmap(net, in_dims=1, out_dims=1)(x)


def by_jvp(net, x):
    return torch.func.jvp(net, (x,), (x,))[1]


def by_functional_call(net, x):
    return torch.func.functional_call(net, {name: p * 2 for name, p in net.named_parameters()}, (x,))


def by_forward_mode(net, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(net(forward_ad.make_dual(x, x))).tangent


def by_function_mode(net, x):
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with Mode():
        out = net(x)
    return out, seen.count("linear"), seen.count("stack")


def by_hooks(net, x):
    """Record the modules by hooks, as summaries of networks do."""
    seen = []
    handles = [
        module.register_forward_hook(lambda module, given, made: seen.append(type(module).__name__))
        for module in net.modules()
    ]
    out = net(x)
    for handle in handles:
        handle.remove()
    return out, seen


def by_another_call(net, x):
    """A tool that replaces ``Module.__call__``."""
    seen, plain = [], nn.Module.__call__

    def call(self, *args, **kwargs):
        seen.append(type(self).__name__)
        return plain(self, *args, **kwargs)

    nn.Module.__call__ = call
    try:
        return net(x), seen
    finally:
        nn.Module.__call__ = plain


def by_trace(net, x):
    lines = set()

    def see(frame, event, argument):
        if frame.f_code is not None and frame.f_code.co_name == "forward" and frame.f_code.co_filename == __file__:
            lines.add(frame.f_lineno - frame.f_code.co_firstlineno)
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        out = net(x)
    finally:
        sys.settrace(before)
    return out, sorted(lines)


TOOLS = [
    *(by_fx, by_jit, by_make_fx, by_export, by_vmap, by_jvp, by_functional_call, by_forward_mode, by_function_mode),
    *(by_hooks, by_another_call, by_trace),
]


def outcome(tool, net, x):
    try:
        return tool(net, x)
    except (RuntimeError, NotImplementedError) as error:
        return type(error), str(error).splitlines()[0]


def assert_equal(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(actual, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            assert_equal(one, other)
    elif isinstance(actual, torch.Tensor):
        assert_close(actual, expected)
    else:
        assert actual == expected


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_a_tool_finds_what_it_finds_without(tool, before, auto):
    """The tool runs before the loop is found, and after it is compiled. Later calls run compiled in both cases."""
    net, x = exact(Net()), exact_numbers(STEPS, BATCH, INPUTS)
    with as_written(auto):
        expected, plain = outcome(tool, net, x), net(x)
    for _ in range(before):
        net(x)
    assert_equal(outcome(tool, net, x), expected)
    for _ in range(3):
        assert_close(net(x), plain)
    assert any(loop.runs for loop in auto.loops), str(auto)


class Hidden(nn.Module):
    """A network that calls ``utils.reset`` in ``forward``; ``way`` is the way to copy it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(INPUTS, 3)
        self.lif = snn.Leaky(beta=0.5, threshold=0.25, init_hidden=True, output=True)
        self.syn = snn.Synaptic(alpha=0.5, beta=0.5, init_hidden=True, output=True)

    def forward(self, x):
        utils.reset(self)
        out = []
        for step in range(STEPS):
            spk, _ = self.lif(self.fc(x[step]))
            out.append(self.syn(spk)[-1])
        return torch.stack(out)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda net: pickle.loads(pickle.dumps(net)), "copy": copy.copy}


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("way", COPIES)
def test_copies_go_on_as_they_do_by_import(way, first, auto):
    """snnTorch's reset leaves out the neurons of a copy, also if the copy is compiled first."""
    x, results = exact_numbers(STEPS, BATCH, INPUTS), []
    for looks in (False, True):
        torch.manual_seed(0)
        with torch.no_grad(), contextlib.nullcontext() if looks else as_written(auto):
            net = exact(Hidden())
            net(x)
            nets = [net, COPIES[way](net)]
            results.append([run(x) for _ in range(3) for run in (nets[::-1] if first else nets) for _ in range(2)])
    for actual, expected in zip(*results):
        assert_close(actual, expected)
    assert any(loop.runs for loop in auto.loops)


PICKLED = """
import sys

import cloudpickle
import torch
from torch import nn

import snnipu as snn

found = snn.auto()


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Base(nn.Module):
    def step(self, x, mem):
        return self.lif(self.fc(x), mem)


class Net(Base):
    def __init__(self, scale):
        super().__init__()
        self.fc, self.lif, self.spike, self.scale = nn.Linear(4, 3), snn.Leaky(beta=0.5), Spike.apply, scale

    def forward(self, x):
        mem, out = self.lif.init_leaky(), []
        for step in range(5):
            spk, mem = super().step(x[step] * self.scale, mem)
            out.append(self.spike(mem - 0.25))
        return torch.stack(out)


def made(net):
    def run(x):
        total = 0
        for part in x.split(2, dim=1):
            mem = net.lif.init_leaky()
            for step in range(5):
                spk, mem = net.lif(net.fc(part[step]), mem)
            total = total + mem.sum().item()
        return total

    return run


torch.manual_seed(0)
net, x = Net(2.0), torch.rand(5, 6, 4)
run = made(net)
for calls in range(4):
    with torch.no_grad():
        results = net(x), run(x)
    with open(f"{sys.argv[1]}/{calls}", "wb") as file:
        cloudpickle.dump((net, run, x, results), file)
print(found)
assert sum(loop.runs > 0 for loop in found.loops) == 1  # the other one calls super()
"""
UNPICKLES = """
import pickle
import sys

import torch

for calls in range(4):
    with open(f"{sys.argv[1]}/{calls}", "rb") as file:
        net, run, x, (out, total) = pickle.load(file)
    with torch.no_grad():
        torch.testing.assert_close(net(x), out)
        assert abs(run(x) - total) < 1e-4
"""


@pytest.mark.slow
def test_cloudpickle(tmp_path):
    """Functions pickled before and after their loops are compiled run in a process without the compiler."""
    pytest.importorskip("cloudpickle")
    for name, text in (("writes.py", PICKLED), ("reads.py", UNPICKLES)):
        script = tmp_path / name
        script.write_text(text)
        python(script, tmp_path)


OTHER = """
def fit(step, data, epochs):
    for _ in range(epochs):
        for batch in data:
            step(batch)


def summary(net, x):
    shapes = []
    for module in net.modules():
        if not list(module.children()):
            shapes.append(type(module).__name__)
    for _ in range(3):
        net(x)
    return shapes


class Wrapper:
    def __init__(self, net):
        self.net = net

    def run(self, x):
        mem, total = self.net.lif.init_leaky(), 0
        for step in range(len(x)):
            spk, mem = self.net.lif(self.net.fc(x[step]), mem)
            total = total + mem
        return total
"""


def test_loops_of_other_packages_are_theirs(auto, tmp_path, monkeypatch, caplog):
    """Loops of other packages are neither listed nor compiled."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "a_trainer.py").write_text(OTHER)
    monkeypatch.syspath_prepend(folder)
    import a_trainer

    net, x = Net(), torch.rand(STEPS, BATCH, INPUTS)
    code = a_trainer.Wrapper.run.__code__
    for _ in range(4):
        a_trainer.fit(lambda x: net(x).sum().backward(), [x] * 3, 2)
        a_trainer.summary(net, x)
        a_trainer.Wrapper(net).run(x)
    assert a_trainer.Wrapper.run.__code__ is code
    assert {line.split(":")[0] for line in str(auto).splitlines() if line[:1].strip()} == {"test_tools.py"}
    assert any(loop.runs for loop in auto.loops)
    assert "a_trainer" not in caplog.text


def test_lightning(auto, tmp_path, torchvision):
    """The loop is in the network that Lightning trains."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Trained(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, number):
            return self.net(batch[0].transpose(0, 1)).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.rand(12, STEPS, INPUTS))
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=2, default_root_dir=tmp_path, **options)
    trainer.fit(Trained(), torch.utils.data.DataLoader(data, batch_size=3))
    assert {line.split(":")[0] for line in str(auto).splitlines() if line[:1].strip()} == {"test_tools.py"}
    assert any(loop.runs for loop in auto.loops)


def test_a_warning_is_told_of_the_line_that_called(auto):
    """The warning names the calling line, in Python and compiled."""

    def warns(net, x):
        warnings.warn("old", DeprecationWarning, stacklevel=2)
        mem = net.lif.init_leaky()
        for step in range(STEPS):
            _spk, mem = net.lif(net.fc(x[step]), mem)
        return mem

    net, x = Net(), torch.rand(STEPS, BATCH, INPUTS)
    lines = []
    for _ in range(5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warns(net, x)
        lines += [(one.filename, one.lineno) for one in caught]
    assert len(lines) == 5
    assert len(set(lines)) == 1
    assert lines[0][0] == __file__
