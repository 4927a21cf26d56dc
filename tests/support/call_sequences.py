"""Compare each call of a sequence on one layer with the same call on a fresh layer: ``make fuzz-calls``.

``python tests/support/call_sequences.py --seconds 600 --seed 0 --kinds Leaky`` prints each sequence in which a call and
the fresh layer differ in numbers or errors, shortened as far as possible. Under the address sanitizer an access beyond
an array ends the run. ``--case Leaky:12`` runs one sequence. Kind and seed alone determine a sequence.
"""

import contextlib
import copy
import functools
import pathlib
import random
import sys
import warnings
from typing import Any, Callable, List, NamedTuple, Tuple

import torch
from torch import nn

import snnipu as snn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import seeds
from support.zeros import events_taken

OPERATIONS = 12  # per sequence
DTYPES = [torch.float32] * 6 + [torch.float64] * 3 + [torch.float16, torch.bfloat16]
FEATURES = 3  # for most layers; a shape that does not fit raises an error


class Kind(NamedTuple):
    """A layer, and the calls of it.

    Attributes:
        make: makes the layer, with options drawn from the generator of numbers.
        call: draws a call, with earlier results available; returns the operands that may learn, and a function without
            arguments that returns the results.
        changes: whether parameters are exchanged between calls.
        around: a context in which layers are called.
    """

    make: Callable[[random.Random], nn.Module]
    call: Callable[[random.Random, nn.Module, List[torch.Tensor]], Tuple[List[torch.Tensor], Callable[[], Any]]]
    changes: bool = True
    around: Callable[[], Any] = contextlib.nullcontext


class Refusal(NamedTuple):
    """An error, without the frames that keep its graph alive."""

    kind: type
    text: str


class Operation(NamedTuple):
    """A call, or a change of the layer between calls, drawn from its seed."""

    is_call: bool
    seed: int


# ---- operands


def dense(draw, shape, dtype, spikes=False):
    """Return a tensor of normal numbers, or of mostly zeros, in any layout."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    layout = draw.choice(LAYOUTS)
    x = torch.randn(shape, generator=generator) * 1.5
    if spikes:
        x = x * (torch.rand(shape, generator=generator) < 0.3)
    return with_layout(x.to(dtype), layout)


LAYOUTS = ["contiguous"] * 4 + ["transposed", "strided", "expanded", "channels last", "offset", "negative"]


def with_layout(x, layout):
    """Return a tensor of the same shape, and the same values except for ``expanded``."""
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and x.dim():
        return torch.stack([x, torch.full_like(x, 7)], -1)[..., 0]
    if layout == "expanded" and x.dim() and x.shape[0]:
        return x[:1].expand(x.shape)
    if layout == "channels last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if layout == "offset":
        return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)
    if layout == "negative":
        return torch._neg_view(-x)
    return x


def own_dtype(draw, layer):
    """Return in most cases the dtype of the layer's weights, if it has any."""
    weights = [p.dtype for p in layer.parameters() if p.dim() > 1]
    return weights[0] if weights and draw.random() < 0.8 else draw.choice(DTYPES)


def batches(draw, *behind):
    return (draw.choice([2, 2, 2, 3, 1, 5, 0]), *behind)


def rows(draw):
    """Draw the shape of a step: one kernel block or several, without a batch, or with more dimensions."""
    chance = draw.random()
    if chance < 0.8:
        return batches(draw, FEATURES)
    return draw.choice([(FEATURES,), batches(draw, 50, FEATURES), batches(draw, 2, 4, FEATURES), ()])


def states_of(draw, count, shape, dtype, earlier):
    """Draw all, some or no states: from an earlier call or new, in the input's dtype and shape or others."""
    number = draw.randrange(count + 1) if draw.random() < 0.2 else draw.choice([0, count])
    states = []
    for _ in range(number):
        choice = draw.random()
        # The same number of dimensions: otherwise PyTorch's LSTM cell ends the process.
        earlier = [tensor for tensor in earlier if tensor.dim() == len(shape)]
        fitting = [tensor for tensor in earlier if tensor.shape == shape]
        if choice < 0.1:
            states.append(None)
        elif choice < 0.5 and fitting:
            states.append(draw.choice(fitting))
        elif choice < 0.6 and earlier:
            states.append(draw.choice(earlier))
        else:
            state_dtype = draw.choice(DTYPES) if draw.random() < 0.2 else dtype
            states.append(dense(draw, shape if draw.random() < 0.9 else shape[::-1], state_dtype))
    return states


# ---- neurons


STEPS_AND_SEQUENCES = ("step", "step", "step", "sequence", "spikes", "constant", "reset")


def neuron_call(
    count,
    shape=rows,
    kinds=STEPS_AND_SEQUENCES,
):
    """Return a function that draws steps, sequences and spikes of sequences of a neuron with ``count`` states."""

    def call(draw, layer, earlier):
        dtype, size, kind = own_dtype(draw, layer), shape(draw), draw.choice(kinds)
        steps = () if kind in ("step", "constant") else (draw.choice([1, 2, 4, 0]),)
        x = dense(draw, (*steps, *size), dtype)
        takes = kind != "spikes" and (not layer.init_hidden or draw.random() < 0.1)
        states = states_of(draw, count, size, dtype, earlier) if takes else []
        operands = [x, *(state for state in states if state is not None)]
        if kind == "reset":
            return operands, lambda: [layer.reset_mem(), layer(x[0] if len(x) else x)]
        if kind == "step":
            return operands, lambda: layer(x, *states)
        if kind == "constant":
            return operands, lambda: layer.sequence(x, *states, num_steps=3)
        return operands, lambda: layer.spikes(x) if kind == "spikes" else layer.sequence(x, *states)

    return call


def delta_call(draw, layer, earlier):
    """Its two states are one argument."""
    x = dense(draw, batches(draw, FEATURES), draw.choice(DTYPES))
    state = states_of(draw, 2, tuple(x.shape), x.dtype, earlier)
    if len(state) < 2 or None in state:
        return [x], lambda: layer(x, layer.reset_mem())
    return [x, *state], lambda: layer(x, tuple(state))


def parameter(draw):
    """Draw a number, or a tensor with a value per neuron."""
    value = draw.choice([0.9, 0.5, 1.0])
    kind = draw.randrange(4)
    if kind == 0:
        return torch.full((FEATURES,), value) - torch.arange(FEATURES) / 10
    return torch.tensor(value, dtype=torch.float64) if kind == 1 else value


def of(kind, *arguments, **options):
    """Return a function that draws a layer: an element of each list, and the value of each function."""

    def drawn_value(draw, value):
        return value(draw) if callable(value) else draw.choice(value) if isinstance(value, list) else value

    return lambda draw: kind(
        *(drawn_value(draw, value) for value in arguments),
        **{name: drawn_value(draw, value) for name, value in options.items()},
    )


EITHER, MECHANISMS = [True, False], ["subtract", "zero", "none"]
OPTIONS = {
    "reset_mechanism": MECHANISMS,
    "init_hidden": [True, False, False],
    "output": EITHER,
    "threshold": [1.0, 0.5],
}
leaky = of(snn.Leaky, parameter, learn_beta=EITHER, learn_threshold=EITHER, reset_delay=[True, True, False], **OPTIONS)
synaptic = of(snn.Synaptic, parameter, parameter, learn_alpha=EITHER, learn_beta=EITHER, **OPTIONS)


def lapicque(draw):
    # For a learnt beta snnTorch derives others, whose graph serves only one backward pass.
    constants = draw.choice([{"R": 5.1, "C": 5e-3}, {"beta": 0.9}])
    return of(snn.Lapicque, **constants, time_step=1e-3, **OPTIONS)(draw)


def recurrent(kind, *decays, **options):
    """Return a function that draws a neuron with a weight of each neuron, or of each pair."""

    def make(draw):
        weights = {"all_to_all": False, "V": parameter, "learn_recurrent": EITHER}
        weights = draw.choice([weights, {"all_to_all": True, "linear_features": FEATURES}])
        return of(kind, *decays, **weights, **options, **OPTIONS)(draw)

    return make


rleaky = recurrent(snn.RLeaky, 0.9, learn_beta=EITHER)


@snn.neuron(states=("spk", "mem", "adapt"), parameters={"beta": 0.9, "rho": 0.8})
def Adaptive(x, spk, mem, adapt, *, beta, rho, spike):
    mem = beta * mem + x - spk.detach()
    adapt = rho * adapt + spk
    return spike(mem - 1.0 - 0.1 * adapt), mem, adapt


# ---- layers that take whole sequences


def sequence_call(*behind, spikes=True):
    """Return a function that draws dense tensors ``[T, B, ...]``, mostly zeros."""

    def call(draw, layer, earlier):
        steps = () if getattr(layer, "step_mode", False) else (draw.choice([1, 2, 4, 7]),)
        x = dense(draw, (*steps, *batches(draw, *behind)), own_dtype(draw, layer), spikes)
        forgets = draw.random() < 0.5

        def run():
            if forgets and hasattr(layer, "reset_delay"):
                layer.reset_delay()
            return layer(x)

        return [x], run

    return call


def events_call(*behind, spikes=0.6):
    """Return a function that draws dense tensors and spikes, sometimes within ``fixed_weights()``."""

    def call(draw, layer, earlier):
        shape = (draw.choice([1, 2, 4]), *batches(draw, *behind))
        x = dense(draw, shape, own_dtype(draw, layer), spikes=True)
        operands, forgets = [x], draw.random() < 0.5
        if draw.random() < spikes:
            flattened = x.reshape(*shape[:2], -1)
            x = snn.SparseSpikes.from_dense(flattened, draw.choice([None, 2]))
            x = x.with_maps(behind) if len(behind) == 3 else x
        context = snn.fixed_weights if draw.random() < 0.2 else contextlib.nullcontext
        calls = draw.choice([1, 1, 2])

        def run():
            if forgets and hasattr(layer, "reset_delay"):
                layer.reset_delay()
            with context():
                return [layer(x) for _ in range(calls)]

        return operands, run

    return call


SPARSE = {
    "threshold": [1.0, 0.3],
    "bias": EITHER,
    "learn_threshold": EITHER,
    "reset_mechanism": MECHANISMS,
    "grad_threshold": [None, 0.2],
    "max_spikes": [None, 2],
}
LEAKY = {"beta": 0.9, "learn_beta": EITHER, **SPARSE}


def sparse_maps(draw):
    options = {**LEAKY, "max_spikes": None, "path": ["auto", "sparse", "dense"]}
    sizes = [(2, 5, 6), "3C3P1", draw.choice(["MP2", "AP2"]), "3C2", 4]
    return of(functools.partial(snn.SparseNetwork, sizes), delay=0, **options)(draw)


def multistep(draw):
    neuron = draw.choice([leaky, synaptic, lapicque, rleaky])
    norm = [nn.BatchNorm1d(FEATURES)] if draw.random() < 0.3 else []
    return snn.MultiStep(nn.Linear(FEATURES, FEATURES, bias=draw.random() < 0.7), *norm, neuron(draw))


def multistep_of_maps(draw):
    norm = [nn.BatchNorm2d(3)] if draw.random() < 0.3 else []
    pool = draw.choice([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Identity()])
    convolution = nn.Conv2d(2, 3, 3, padding=draw.choice([0, "same"]), bias=draw.random() < 0.7)
    return snn.MultiStep(convolution, *norm, snn.Leaky(beta=0.9), pool, nn.Flatten(), snn.Leaky(beta=0.8))


def multistep_of_lines(draw):
    return snn.MultiStep(nn.Conv1d(2, 3, 3, bias=draw.random() < 0.7), snn.Leaky(beta=0.9))


def online(draw):
    rule = draw.choice(["ottt", "sltt", "eprop", "decolle", "snap1"])
    net = snn.MultiStep(nn.Linear(FEATURES, 4), snn.Leaky(beta=0.9), nn.Linear(4, FEATURES), snn.Leaky(beta=0.8))
    return snn.Online(net, rule=rule, **({"readouts": 2} if rule == "decolle" else {}))


def online_call(draw, layer, earlier):
    shape = (draw.choice([1, 2, 4]), *batches(draw, FEATURES))
    dtype = own_dtype(draw, layer)
    chunks = [dense(draw, shape, dtype, spikes=True) for _ in range(draw.choice([1, 2]))]

    def run():
        layer.reset()
        for p in layer.parameters():
            p.grad = None
        outputs = []
        for chunk in chunks:
            out = flat(layer(chunk))
            if torch.is_grad_enabled():
                sum(part.sum() for part in out if part.requires_grad).backward()
            outputs += [part.detach() for part in out]
        return [*outputs, *(p.grad for p in layer.parameters())]

    return [], run


class Loop(nn.Module):
    """A loop over time that is compiled at its first call."""

    def __init__(self, neuron, feeds_back):
        super().__init__()
        self.fc, self.neuron, self.feeds_back = nn.Linear(FEATURES, FEATURES), neuron, feeds_back
        object.__setattr__(self, "run", snn.compile(self.loop))

    def loop(self, x):
        mem, spk, rows = self.neuron.reset_mem(), torch.zeros_like(x[0]), []
        for step in x:
            current = self.fc(step)
            spk, mem = self.neuron(current + spk if self.feeds_back else current, mem)
            rows.append(spk)
        return torch.stack(rows)

    def forward(self, x):
        return self.run(x)


def compiled(draw):
    return Loop(of(snn.Leaky, parameter, learn_beta=EITHER)(draw), draw.choice(EITHER))


KINDS = {
    "Leaky": Kind(leaky, neuron_call(1)),
    "Lapicque": Kind(lapicque, neuron_call(1)),
    "Synaptic": Kind(synaptic, neuron_call(2)),
    "Alpha": Kind(of(snn.Alpha, 0.9, 0.8, learn_beta=EITHER, **OPTIONS), neuron_call(3)),
    "RLeaky": Kind(rleaky, neuron_call(2)),
    "RSynaptic": Kind(recurrent(snn.RSynaptic, 0.9, 0.8, learn_alpha=EITHER), neuron_call(3)),
    "DeltaLeaky": Kind(of(snn.DeltaLeaky, beta=0.9, delta_threshold=0.1), delta_call),
    "own neuron": Kind(of(Adaptive, learn=EITHER, init_hidden=[True, False, False]), neuron_call(3)),
    "SLSTM": Kind(
        of(snn.SLSTM, FEATURES, [FEATURES] * 4 + [FEATURES + 1], learn_threshold=EITHER, **OPTIONS),
        neuron_call(2, lambda draw: batches(draw, FEATURES), STEPS_AND_SEQUENCES[:4]),
    ),
    "SConv2dLSTM": Kind(
        of(snn.SConv2dLSTM, 2, 2, 3, learn_threshold=EITHER, **OPTIONS),
        neuron_call(2, lambda draw: batches(draw, 2, 4, 5), STEPS_AND_SEQUENCES[:4]),
    ),
    "StateLeaky": Kind(of(snn.StateLeaky, beta=0.9, channels=FEATURES, learn_beta=EITHER), sequence_call(FEATURES)),
    "SparseLinear": Kind(of(snn.SparseLinear, FEATURES, [70, 4], bias=EITHER), events_call(FEATURES)),
    "SparseLeaky": Kind(of(snn.SparseLeaky, FEATURES, 4, **LEAKY), events_call(FEATURES)),
    "SparseSynaptic": Kind(of(snn.SparseSynaptic, FEATURES, 4, alpha=0.8, beta=0.9, **SPARSE), events_call(FEATURES)),
    "SparseSynaptic, recurrent": Kind(
        of(
            snn.SparseSynaptic,
            FEATURES,
            4,
            alpha=0.8,
            beta=0.9,
            recurrent=True,
            bias=EITHER,
            learn_threshold=EITHER,
            reset_mechanism=MECHANISMS,
        ),
        events_call(FEATURES),
    ),
    "SparseNetwork": Kind(
        of(functools.partial(snn.SparseNetwork, [FEATURES, 4, 5]), delay=[0, 1], **LEAKY), events_call(FEATURES)
    ),
    "SparseConv2d": Kind(
        of(snn.SparseConv2d, 2, 3, 3, input_size=(5, 6), padding=[0, 1], bias=EITHER), events_call(2, 5, 6)
    ),
    "SparseConvLeaky": Kind(of(snn.SparseConvLeaky, 2, 3, 3, input_size=(5, 6), **LEAKY), events_call(2, 5, 6)),
    "SparseConvSynaptic": Kind(
        of(snn.SparseConvSynaptic, 2, 3, 3, input_size=(5, 6), alpha=0.8, beta=0.9, **SPARSE), events_call(2, 5, 6)
    ),
    "SparsePool2d": Kind(
        of(snn.SparsePool2d, 2, input_size=(2, 5, 6), mode=["max", "average", "sum"]), events_call(2, 5, 6)
    ),
    "SparseNetwork of maps": Kind(sparse_maps, events_call(2, 5, 6)),
    "DelayLinear": Kind(
        of(snn.DelayLinear, FEATURES, 4, 3, kernel=["linear", "gaussian"], bias=EITHER, init_hidden=EITHER),
        events_call(FEATURES),
    ),
    "SynapticDelay": Kind(
        of(snn.SynapticDelay, 3, channels=FEATURES, learn_delay=EITHER, step_mode=EITHER), sequence_call(FEATURES)
    ),
    "MultiStep": Kind(multistep, events_call(FEATURES), around=events_taken),
    "MultiStep of maps": Kind(multistep_of_maps, events_call(2, 5, 6, spikes=0), around=events_taken),
    "MultiStep of lines": Kind(multistep_of_lines, events_call(2, 9, spikes=0), around=events_taken),
    "Online": Kind(online, online_call, around=events_taken),
    "compiled": Kind(compiled, sequence_call(FEATURES)),
}
SLOW = ("compiled",)  # seconds per call: only on request


# ---- changes between calls


def tensor_places(layer):
    """Return the places of parameters and buffers, in the same order for equal layers."""
    return [
        (module, name)
        for module in layer.modules()
        for name in [*module._parameters, *module._buffers]
        if isinstance(module._parameters.get(name, module._buffers.get(name)), torch.Tensor)
    ]


def change(draw, layer):
    """Change a layer between two calls in a way that programs do."""
    kind, places = draw.choice(CHANGES), tensor_places(layer)
    if kind in ("double", "float", "half", "bfloat16", "train", "eval", "zero_grad"):
        getattr(layer, kind)()
    elif kind == "to":
        layer.to(draw.choice(DTYPES))
    elif kind == "load":
        layer.load_state_dict({name: value.clone() * 0.5 for name, value in layer.state_dict().items()})
    elif places:
        module, name = draw.choice(places)
        value = getattr(module, name)
        if kind == "assign":
            setattr(module, name, draw.choice([torch.detach, nn.Parameter])(value.detach() * 0.75))
        elif kind == "grad":
            value.requires_grad_(not value.requires_grad)
        elif kind == "in place":
            with torch.no_grad():
                value.mul_(0.5)
        else:
            value.data = other_data(draw, value.data)


CHANGES = ["double", "float", "float", "half", "bfloat16", "to", "load", "assign", "grad", "in place", "train", "eval"]
CHANGES += ["data"] * 4


def other_data(draw, data):
    """Return other values, another dtype or layout, or a shape that no longer fits."""
    kind = draw.choice(["values", "written", "dtype", "layout", "shape", "spread", "transposed"])
    if kind == "values":
        return data * 0.5
    if kind == "written":
        data.mul_(0.5)
        return data
    if kind == "dtype":
        return data.to(draw.choice(DTYPES))
    if kind == "layout":
        return with_layout(data, draw.choice(LAYOUTS))
    if kind == "spread":
        return data.reshape(-1)[:1].expand(FEATURES).clone() if data.numel() else data
    if kind == "transposed":
        return data.transpose(0, -1) if data.dim() > 1 else data
    return data.flatten()[: max(1, data.numel() - 1)]


# ---- running


def flat(results):
    """Return the tensors of results; spikes as dense tensors and counts, as their padding does not matter."""
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, snn.SparseSpikes):
        return [results.to_dense(), results.counts]
    if isinstance(results, (list, tuple)):
        return [tensor for part in results for tensor in flat(part)]
    return []


def outcome(kind, seed, layer, earlier):
    """Return the results of a call and its gradients, or its error."""
    draw = random.Random(seed)
    mode = draw.choice(["grad", "grad", "grad", "no grad", "inference"])
    learns, upstream = [draw.random() < 0.7 for _ in range(4)], draw.randrange(2**31)
    try:
        operands, run = kind.call(draw, layer, earlier)
        if mode != "grad":
            with torch.inference_mode() if mode == "inference" else torch.no_grad(), kind.around():
                return [result.clone() for result in flat(run())], []
        operands = [tensor for tensor in operands if not tensor.is_inference()]
        learning = [tensor for tensor, learn in zip(operands, learns) if learn and tensor.is_floating_point()]
        leaves = [tensor.requires_grad_() for tensor in learning if tensor.is_leaf]
        try:
            with kind.around():
                results = flat(run())
                parameters = [p for p in layer.parameters() if p.requires_grad]
                return [result.detach().clone() for result in results], gradients(
                    results, [*leaves, *parameters], upstream
                )
        finally:
            for leaf in leaves:
                leaf.requires_grad_(False)
    except Exception as error:
        return Refusal(type(error), str(error))


def gradients(results, inputs, seed):
    generator, terms = torch.Generator().manual_seed(seed), []
    for result in results:
        weights = torch.randn(result.shape, generator=generator).to(result.dtype)
        if result.requires_grad:
            terms.append((result * weights).sum())
    if not terms or not inputs:
        return []
    return list(torch.autograd.grad(sum(term.double() for term in terms), inputs, allow_unused=True))


def check(actual, expected):
    if isinstance(actual, Refusal) or isinstance(expected, Refusal):
        errors = [
            f"{each.kind.__name__}: {each.text}" if isinstance(each, Refusal) else "" for each in (actual, expected)
        ]
        if not all(errors) or actual.kind is not expected.kind:
            raise AssertionError(f"{errors[0] or 'no error'}, but a fresh layer: {errors[1] or 'no error'}")
        return
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def without_graph(value):
    """Return a copy of a state without its graph."""
    if isinstance(value, torch.Tensor):
        with torch.inference_mode(value.is_inference()):
            return value.detach().clone()
    if isinstance(value, dict):
        return dict(value)
    return type(value)(without_graph(each) for each in value)


def is_state(value):
    if isinstance(value, dict):
        return bool(value) and all(isinstance(each, float) for each in value.values())  # measured activity
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(each, torch.Tensor) for each in value)
    return isinstance(value, torch.Tensor)


def give_states(used, fresh):
    """Cut the graphs of the states that the layer keeps between calls, and copy these states to the fresh layer."""
    for used_module, other in zip(used.modules(), fresh.modules()):
        for name in {*vars(used_module), *vars(other)}:
            mine, theirs = vars(used_module).get(name), vars(other).get(name)
            if is_state(mine):
                vars(used_module)[name], vars(other)[name] = without_graph(mine), without_graph(mine)
            elif is_state(theirs) and name in vars(used_module):
                vars(other)[name] = copy.copy(mine)
        for name, buffer in used_module._buffers.items():
            if isinstance(buffer, torch.Tensor) and name in other._buffers:
                value = without_graph(buffer)
                other._buffers[name] = value.requires_grad_() if buffer.requires_grad else value


def build(kind, seed):
    torch.manual_seed(seed)
    return kind.make(random.Random(seed))


def drawn(kind, seed, count=OPERATIONS):
    draw = random.Random(seed + 1)
    return [
        Operation(not kind.changes or number in (0, count - 1) or draw.random() < 0.65, draw.randrange(2**31))
        for number in range(count)
    ]


def altered_layer(kind, seed, operations):
    """Return a new layer after all changes and without the calls."""
    layer = build(kind, seed)
    for operation in operations:
        if not operation.is_call:
            with contextlib.suppress(Exception):
                change(random.Random(operation.seed), layer)
    return layer


def run(name, seed, operations):
    """Run a sequence; a call that differs from a fresh layer's raises an AssertionError."""
    kind, earlier = KINDS[name], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        used = build(kind, seed)
        for place, operation in enumerate(operations):
            if not operation.is_call:
                with contextlib.suppress(Exception):
                    change(random.Random(operation.seed), used)
                continue
            fresh = altered_layer(kind, seed, operations[:place])
            give_states(used, fresh)
            expected = outcome(kind, operation.seed, fresh, earlier)
            actual = outcome(kind, operation.seed, used, earlier)
            check(actual, expected)
            if not isinstance(actual, Refusal):
                earlier = [*earlier, *actual[0]][-8:]


def failure(name, seed, operations):
    """Return the error message of a sequence; empty if all calls agree."""
    try:
        run(name, seed, operations)
    except AssertionError as error:
        return str(error)
    return ""


def shorten(name, seed, operations):
    """Return the shortest part of a failing sequence from which no operation can be removed."""
    place = 0
    while place < len(operations):
        fewer = [*operations[:place], *operations[place + 1 :]]
        if failure(name, seed, fewer):
            operations = fewer
        else:
            place += 1
    return operations


def describe(name, seed, operations):
    """Describe each operation of a sequence in a line."""
    lines = [repr(build(KINDS[name], seed)).replace("\n", " ")]
    for operation in operations:
        draw = random.Random(operation.seed)
        if operation.is_call:
            mode = draw.choice(["grad", "grad", "grad", "no grad", "inference"])
            lines.append(f"call of seed {operation.seed}, {mode}")
        else:
            lines.append(f"change of seed {operation.seed}: {draw.choice(CHANGES)}")
    return lines


def report(name, seed):
    """Return the error and the shortest form of a failing sequence; empty if all calls agree."""
    operations = drawn(KINDS[name], seed)
    if not failure(name, seed, operations):
        return ""
    operations = shorten(name, seed, operations)
    return "\n  ".join([failure(name, seed, operations), *describe(name, seed, operations)])


if __name__ == "__main__":
    sys.exit(seeds.main(__doc__.splitlines()[0], KINDS, report, left_out=SLOW))
