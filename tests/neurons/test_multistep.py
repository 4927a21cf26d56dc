"""``snnipu.MultiStep`` against the loop that it replaces."""

import pytest
import snntorch
import snntorch.utils
import torch
from oracle import relative_error
from support.loops import with_gradients
from support.tables import assert_refused, each_row
from support.versions import needs_compile
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

import snnipu as snn
from snnipu._names.stock import stock


def loop(net, x, num_steps=None):
    """Run each step through all modules, and pass the states of neurons from step to step."""
    states = {}
    outs = []
    for t in range(x.shape[0] if num_steps is None else num_steps):
        value = x[t] if num_steps is None else x
        for index, module in enumerate(net):
            if isinstance(value, tuple):
                value = value[0]
            if isinstance(module, snntorch.SpikingNeuron) and not module.init_hidden:
                value = module(value, *states[index]) if index in states else first_step(module, value)
                recurrent = isinstance(module, (snntorch.RLeaky, snntorch.RSynaptic))
                states[index] = value if recurrent else value[1:]
            else:
                value = module(value)
        outs.append(value)
    if isinstance(outs[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*outs))
    return torch.stack(outs)


def first_step(module, value):
    if isinstance(module, stock("DeltaLeaky")):
        return module(value, module.reset_mem())
    if isinstance(module, snntorch.Leaky):
        return module(value, torch.zeros_like(value))
    module.reset_mem()
    return module(value)


def twins(make):
    nets = []
    for _ in range(2):
        torch.manual_seed(1)
        nets.append(make())
    return nets


def test_constant_input_runs_the_prefix_once():
    calls = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.addmm.default:
                calls.append(tuple(args[1].shape))
            return function(*args, **(kwargs or {}))

    net = snn.MultiStep(nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), snn.Leaky(beta=0.9), nn.Linear(6, 2))
    net(torch.rand(3, 5, 1), num_steps=11)  # records the shapes
    with Products():
        out = net(torch.rand(3, 5, 1), num_steps=11)
    assert calls == [(3, 5), (33, 6)]
    assert out.shape == (11, 3, 2)
    x = torch.rand(3, 5)
    assert torch.equal(snn.MultiStep(net[1])(x, num_steps=4)[3], net[1](x))


def test_what_may_keep_state_runs_step_by_step():
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    snn.MultiStep(Counting(5, 6))(torch.rand(3, 5), num_steps=4)
    assert len(calls) == 4
    calls.clear()
    linear = nn.Linear(5, 6)
    original = linear.forward
    linear.forward = lambda x: calls.append(x.shape) or original(x)
    snn.MultiStep(linear)(torch.rand(3, 5), num_steps=4)
    assert len(calls) == 4


@each_row("""
snn.Leaky(0.9)
snntorch.Leaky(0.9, learn_beta=True)
snn.Synaptic(0.8, 0.9)
snn.Synaptic(0.8, 0.9, reset_mechanism="zero")
snn.Alpha(0.9, 0.8)
snn.Lapicque(beta=0.9)
snn.RLeaky(0.9, linear_features=8)
snn.RLeaky(0.9, all_to_all=False, V=0.3)
snn.RSynaptic(0.8, 0.9, linear_features=8)
snn.RSynaptic(0.8, 0.9, all_to_all=False, V=0.3)
snn.SLSTM(8, 8, threshold=0.1)
snn.DeltaLeaky(0.2, beta=0.9)
stock("DeltaLeaky")(0.2, beta=0.9)
""")
def test_neurons_start_from_zeros_in_each_call(row, request):
    """Two training steps and a batch of another size equal the loop that resets the states before each call."""
    if "SLSTM" in row:  # it rounds in other places: errors grow over three training steps
        torch.set_default_dtype(torch.float64)
        request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    net, other = twins(lambda: snn.MultiStep(eval(row), nn.Identity()))
    for batch in (4, 4, 3):
        x = torch.randn(6, batch, 8) * 3
        results = []
        for module, run in ((net, lambda net, x: net(x)), (other, loop)):
            out, gradients = with_gradients(lambda net, x, run=run: [run(net, x)], module, x)
            results.append([*out, *gradients])
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), gradients[1:]):
                    parameter -= 0.1 * gradient
        for actual, expected in zip(*results):
            # A recurrent layer's weight gradient is one product over all steps, with its rounding.
            assert relative_error(actual, expected) <= (1e-5 if "linear_features" in row else 1e-6)
        assert results[0][0].any()


def test_all_states_are_returned():
    x = torch.randn(5, 3, 8)
    assert [part.shape for part in snn.MultiStep(snn.RSynaptic(0.8, 0.9, linear_features=8))(x)] == [x.shape] * 3
    spk, (mem, before) = snn.MultiStep(snn.DeltaLeaky(0.2, beta=0.9))(x)
    assert spk.shape == mem.shape == x.shape
    assert torch.equal(before[1:], mem[:-1])


def test_neurons_inside_other_modules_start_from_zeros():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(4, 4), snn.Leaky(beta=0.9)
            self.hidden = snn.Synaptic(0.8, 0.9, init_hidden=True)

        def forward(self, x):
            return x + self.lif(self.fc(x))[0] + self.hidden(x)

    net = snn.MultiStep(Block(), nn.Linear(4, 2))
    x = torch.randn(5, 3, 4) * 2
    first = net(x)
    snn.utils.reset(net[0])
    assert torch.equal(net(x).detach(), first.detach())
    # Hidden states continue.
    assert not torch.equal(net(x).detach(), first.detach())


def test_own_initial_state_is_honoured():
    class Charged(snn.Leaky):
        def reset_mem(self):
            self.mem = torch.full((2, 3), 0.75)
            return self.mem

    x = torch.rand(4, 2, 3)
    spk, mem = snn.MultiStep(Charged(beta=0.5))(x)
    expected = snn.Leaky(beta=0.5).sequence(x, torch.full((2, 3), 0.75))
    assert torch.equal(mem, expected[1])
    assert torch.equal(spk, expected[0])


@each_row("""
snn.StateLeaky(beta=0.9, channels=6)
snn.StateLeaky(beta=0.9, channels=6, output=False)
snn.LinearLeaky(beta=0.9, in_features=6, out_features=4)
snn.LeakyParallel(6, 5, beta=0.8)
snn.AssociativeLeaky.from_num_spiking_neurons(6, 16)
nn.LSTM(6, 5)
nn.GRU(6, 5, bidirectional=True)
nn.RNN(6, 5, num_layers=2)
""")
def test_what_takes_whole_sequences(row):
    if "Associative" in row and not hasattr(snntorch, "AssociativeLeaky"):
        pytest.skip("AssociativeLeaky came with snnTorch 1.0")
    torch.manual_seed(2)
    module = eval(row)
    x = torch.randn(7, 3, 6)

    def first(out):
        return out[0] if isinstance(out, tuple) else out

    expected = first(module(x))
    for net in (snn.MultiStep(module), snn.MultiStep(nn.Sequential(nn.Identity(), module))):
        assert torch.equal(first(net(x)), expected)
        assert torch.equal(first(net(x)), expected)
    constant = first(snn.MultiStep(module)(x[0], num_steps=7))
    assert torch.equal(constant, first(module(x[:1].expand(7, 3, 6))))
    readout = nn.Linear(expected.shape[-1], 2)
    out = snn.MultiStep(nn.Identity(), module, readout)(x)
    assert torch.allclose(out, readout(expected), atol=1e-6)


def test_a_module_may_say_that_it_takes_whole_sequences():
    class Delay(nn.Module):
        takes_whole_sequences = True

        def forward(self, x):
            return torch.cat([torch.zeros_like(x[:1]), x[:-1]])

    x = torch.rand(5, 2, 3)
    assert torch.equal(snn.MultiStep(Delay())(x)[1:], x[:-1])


def test_event_driven_layers():
    torch.manual_seed(3)
    layer, readout = snn.SparseLeaky(6, 8, beta=0.9), snn.SparseLinear(8, 3)
    net = snn.MultiStep(layer, readout, snn.Leaky(beta=0.9))
    x = (torch.rand(5, 4, 6) < 0.3).float()
    expected = snn.Leaky(beta=0.9).sequence(readout(layer(x)))
    for form in (x, snn.SparseSpikes.from_dense(x)):
        assert torch.equal(net(form)[0], expected[0])
    dense = snn.MultiStep(layer, nn.Linear(8, 3))
    assert torch.equal(dense(x), dense[1](layer(x).to_dense().flatten(0, 1)).unflatten(0, (5, 4)))
    assert isinstance(snn.MultiStep(layer)(x[0], num_steps=3), snn.SparseSpikes)
    with pytest.raises(TypeError, match=r"x must be a torch.Tensor where num_steps is given"):
        net(snn.SparseSpikes.from_dense(x), num_steps=3)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_keep_their_states(cell):
    module = cell(4, 5)
    x = torch.randn(6, 3, 4)
    state, expected = None, []
    for current in x:
        state = module(current, state)
        expected.append(state[0] if isinstance(state, tuple) else state)
    for _ in range(2):
        out = snn.MultiStep(module)(x)
        assert torch.equal(out[0] if isinstance(out, tuple) else out, torch.stack(expected))


# Modules, and steps of their inputs; the last ones have no batch.
@each_row("""
nn.Softmax(0) | 4, 6
nn.Softmax(1) | 4, 6
nn.LogSoftmax(dim=-2) | 4, 6
nn.Flatten(start_dim=0) | 4, 6
nn.Unflatten(0, (2, 2)) | 4, 6
nn.LayerNorm([4, 6]) | 4, 6
nn.LayerNorm(6) | 4, 6
nn.PReLU(6) | 4, 6
nn.GroupNorm(2, 6) | 4, 6
nn.InstanceNorm1d(4) | 4, 6
nn.Linear(6, 2) | 6,
nn.Conv2d(3, 4, 3) | 3, 8, 8
nn.MaxPool1d(2) | 4, 8
nn.PixelShuffle(2) | 4, 3, 3
nn.Embedding(9, 2) | 4,
""")
def test_dimensions_mean_what_they_mean_in_the_loop(row):
    module, shape = map(eval, row.split(" | "))
    x = torch.randint(9, (5, *shape)) if isinstance(module, nn.Embedding) else torch.randn(5, *shape)
    assert torch.allclose(snn.MultiStep(module)(x), torch.stack([module(step) for step in x]), atol=1e-6)


def test_batch_norm_uses_each_steps_statistics_in_training():
    net, other = twins(lambda: snn.MultiStep(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), snn.Leaky(beta=0.9)))
    x = torch.rand(5, 8, 4)
    (out, gradients), (expected, others) = (
        with_gradients(run, module, x) for run, module in ((lambda net, x: net(x), net), (loop, other))
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert max(map(relative_error, gradients, others)) <= 1e-4
    torch.testing.assert_close(net[1].running_mean, other[1].running_mean, rtol=1e-6, atol=1e-7)  # a sum over all steps
    assert net[1].num_batches_tracked == 5
    # A constant input is normalised in every step as well.
    net(x[0], num_steps=3)
    assert net[1].num_batches_tracked == 8


def test_dropout_masks_differ_between_steps():
    net = snn.MultiStep(nn.Dropout(0.5))
    out = net(torch.ones(3, 50), num_steps=4)
    assert not torch.equal(out[0], out[1])


def test_hooked_modules_are_called_as_modules():
    """Hooks of each kind get the loop's arguments in the same number of calls."""

    def forward_hook(calls, module):
        module.register_forward_hook(lambda module, inputs, output: calls.append(type(module).__name__))

    def pre_hook(calls, module):
        module.register_forward_pre_hook(lambda module, inputs: calls.append(inputs[0].detach().clone()))

    def backward_hook(calls, module):
        module.register_full_backward_hook(lambda module, inputs, outputs: calls.append(outputs[0].clone()))

    x = (torch.randn(5, 2, 3) * 2).requires_grad_()
    for register in (forward_hook, pre_hook, backward_hook):
        for index in (0, 1):
            seen = []
            for run, net in zip((lambda net, x: net(x), loop), twins(make_hooked)):
                calls = []
                register(calls, net[index])
                for _ in range(2):  # the second call starts from zeros, too
                    run(net, x)[0].sum().backward()
                seen.append(calls)
            assert len(seen[0]) == len(seen[1]) == 10
            for actual, expected in zip(*seen):
                assert (
                    torch.allclose(actual, expected, atol=1e-6)
                    if isinstance(actual, torch.Tensor)
                    else actual == expected
                )


def make_hooked():
    return snn.MultiStep(nn.Linear(3, 4), snn.Leaky(beta=0.9))


def test_global_hooks_see_every_step():
    net, other = twins(make_hooked)
    x = torch.randn(5, 2, 3) * 2
    kinds = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: kinds.append(type(module).__name__)
    )
    try:
        spk, mem = net(x)
    finally:
        handle.remove()
    assert kinds == ["Linear"] * 5 + ["Leaky"] * 5 + ["MultiStep"]
    expected = loop(other, x)
    assert torch.equal(spk, expected[0])
    assert torch.allclose(mem, expected[1], atol=1e-6)


class ReturnsDict(nn.Module):
    def forward(self, x):
        return {"x": x}


@pytest.mark.slow
@needs_compile
def test_numbers_of_steps_are_compiled_once():
    """PyTorch compiles the first number as a constant, and the second for any number."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    net = snn.MultiStep(nn.Linear(6, 8), snn.Leaky(beta=0.9), nn.Linear(8, 3), snn.Leaky(beta=0.9))
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend=aot_autograd(fw_compiler=count))
    x = torch.rand(2, 6)
    for steps in (5, 6, 7, 12, 3, 2):
        spk, mem = compiled(x, num_steps=steps)
        expected = net(x, num_steps=steps)
        assert torch.equal(spk, expected[0])
        gradients = [torch.autograd.grad((out[0] + out[1]).sum(), net[0].weight)[0] for out in ((spk, mem), expected)]
        torch.testing.assert_close(*gradients)
    assert len(graphs) <= 4  # forward and backward, twice


@each_row(r"""
snn.MultiStep()(x) | ValueError: no modules
identity([1.0]) | TypeError: x must be a torch.Tensor
identity(x[0]) | ValueError: x must have shape \[T, B, ...\], got \(3,\)
identity(x[0, 0], num_steps=2) | ValueError: x must have shape \[B, ...\]
identity(x[:0]) | ValueError: at least one time step
identity(x, num_steps=0) | ValueError: num_steps must be at least 1
identity(x, num_steps="3") | TypeError: num_steps must be an int
snn.MultiStep(nn.MaxPool1d(2), nn.ModuleDict())(x[None]) | TypeError: module 1 .* has no forward
snn.MultiStep(nn.GRU(3, 4, batch_first=True))(x[None]) | ValueError: module 0 .* batch_first=True
snn.MultiStep(nn.Sequential(nn.Identity(), lstm))(x[None]) | ValueError: module 0.1 .* batch_first=True
snn.MultiStep(nn.Identity()).append(lstm)(x[None]) | ValueError: module 1 .*batch_first
snn.MultiStep(ReturnsDict())(x) | TypeError: module 0 of MultiStep \(ReturnsDict\) must return
snn.MultiStep(nn.LSTM(5, 4))(maps[:, :, 0], num_steps=3)
    | ValueError: where num_steps is given, got \(3, 8, .*leave num_steps out
snn.MultiStep(nn.Conv1d(1, 2, 3))(maps, num_steps=3)
    | ValueError: where num_steps is given, got \(3, 8, .*leave num_steps out
snn.MultiStep(nn.MaxPool2d(2))(maps[..., None], num_steps=3)
    | ValueError: where num_steps is given, got \(3, 8, .*leave num_steps out
""")
def test_bad_input(row):
    lstm, identity = nn.LSTM(3, 4, batch_first=True), snn.MultiStep(nn.Identity())
    assert_refused(row, globals(), x=torch.rand(2, 3), maps=torch.rand(3, 8, 1, 5), lstm=lstm, identity=identity)


def test_all_layers_are_returned(monkeypatch):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.8, threshold=0.1)

        def forward(self, x):
            return self.lif(x)

    torch.manual_seed(0)
    net = snn.MultiStep(
        nn.Linear(6, 8),
        snn.Leaky(beta=0.9, threshold=0.2),
        nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 7), snntorch.Synaptic(0.8, 0.9, threshold=0.1)),
        snn.LeakyParallel(7, 7, beta=0.8),
        Block(),
        snn.SparseLeaky(7, 5, beta=0.9),
        nn.Linear(5, 4),
        snn.Leaky(beta=0.9),
    )
    x = torch.rand(9, 3, 6)
    layers = net(x, all_layers=True)
    assert [tuple(part.shape) for part in layers[:-1]] == [(9, 3, size) for size in (8, 7, 7, 7, 5)]
    assert isinstance(layers[4], snn.SparseSpikes)
    spk, mem = layers[-1]
    assert torch.equal(spk, net(x)[0])
    assert torch.equal(mem, net(x)[1])
    assert torch.equal(layers[0], net[:2](x)[0])
    assert torch.equal(layers[1], net[:3](x)[0])
    assert torch.equal(layers[3], net[:5](x)[0])
    # The hidden spikes have gradients, and chunks of time give the same spikes.
    for step_bytes in (2**30, 100):
        monkeypatch.setattr("snnipu.neurons.multistep.CHUNK_BYTES", step_bytes)
        net.zero_grad()
        layers = net(x, all_layers=True)
        assert torch.allclose(layers[0], net[:2](x)[0], atol=1e-6)
        (layers[0].sum() + layers[1].sum()).backward()
        assert net[0].weight.grad.any()
    # An output layer without a neuron is the last entry, also with a constant input.
    readout = snn.MultiStep(*net[:2], nn.Linear(8, 3))
    hidden, out = readout(x[0], num_steps=4, all_layers=True)
    assert hidden.shape == (4, 3, 8)
    assert torch.equal(out, readout(x[0], num_steps=4))
    (only,) = snn.MultiStep(nn.Linear(6, 2))(x[0], num_steps=4, all_layers=True)
    assert only.shape == (4, 3, 2)
    sparse = snn.SparseNetwork([6, 8, 4], beta=0.9, input_scale=4.0, delay=0)
    dense, events = sparse.to_dense()(x, all_layers=True), sparse(x, all_layers=True)
    assert torch.equal(dense[0], events[0].to_dense())


def _rows():
    return snn.MultiStep(nn.Linear(6, 4), snn.Leaky(beta=0.9))


def _maps():
    return snn.MultiStep(nn.Conv2d(1, 2, 3), snn.Leaky(beta=0.9))


@each_row(r"""
_rows() | 8, 6 | None | \(8, 6\): its first dimension is time, and module 0 \(Linear\) .* Pass num_steps
snn.MultiStep(_rows()) | 8, 6 | None | module 0\.0 \(Linear\)
_maps() | 8, 1, 5, 5 | None | module 0 \(Conv2d\) gets steps without a batch
_maps() | 1, 5, 5 | 3 | module 0 \(Conv2d\) gets no batch. Pass x.unsqueeze\(0\)
_rows() | 1, 8, 6 | None | it has one time step. Pass num_steps
_rows() | 3, 8, 6 | 3 | its first dimension has num_steps values. Leave num_steps out
""")
def test_doubtful_shapes_warn_once_for_each_network(row, recwarn):
    *parts, message = row.split(" | ")
    for _ in range(2):
        net, shape, num_steps = map(eval, parts)
        with pytest.warns(UserWarning, match=message) as seen:
            net(torch.rand(shape), num_steps=num_steps)
        assert [warning.filename for warning in seen] == [__file__]
        recwarn.clear()
        net(torch.rand(shape), num_steps=num_steps)
        assert not recwarn.list


def _hidden():
    return snn.MultiStep(nn.Linear(6, 4), snn.Leaky(beta=0.9, init_hidden=True))


@each_row("""
_rows()(torch.rand(3, 8, 6))
_rows()(torch.rand(3, 1, 6))
_rows()(torch.rand(8, 6), num_steps=3)
_rows()(torch.rand(3, 6), num_steps=3)
_rows()(torch.rand(1, 6), num_steps=3)
_rows()(torch.rand(8, 6), num_steps=1)
_rows()(torch.rand(2, 9, 6), num_steps=3)
_rows()(torch.rand(4, 2, 9, 6))
_maps()(torch.rand(3, 8, 1, 5, 5))
_maps()(torch.rand(3, 1, 5, 5), num_steps=3)
_hidden()(torch.rand(1, 8, 6))
snn.MultiStep(snn.Leaky(beta=0.9))(torch.rand(3), num_steps=3)
_hidden()(torch.rand(1, 6))
snn.MultiStep(nn.Linear(6, 4))(torch.rand(1, 6))
snn.run_segments(_rows(), torch.rand(3, 8, 6), 1)
""")
@pytest.mark.filterwarnings("error")
def test_usual_shapes_do_not_warn(row):
    eval(row)
