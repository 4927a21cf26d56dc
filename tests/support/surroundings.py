"""Random scripts around a loop over time: the place of the loop, and events around and between its calls.

Each script runs without and with ``snn.auto()``, and both runs must agree. Compared are results, gradients, prints,
counts, errors and the state of random numbers. The networks are few and simple (:mod:`support.loop_programs` varies
networks). Their weights and inputs are binary fractions, so that sums are exact in every order.

``SNNIPU_SURROUNDINGS_EXAMPLES`` is the number of scripts that ``tests/compiler/test_surroundings.py`` runs.
"""

import contextlib
import gc
import importlib
import io
import os
import pickle
import re
import runpy
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from support.loop_programs import Draws
from support.tables import lines_of

AUTO = "SNNIPU_SURROUNDINGS_AUTO"  # the variable that makes a script call snn.auto()
TOLERANCE, TOLERANCE_OF_NORM, TOLERANCE_OF_BFLOAT16 = 1e-4, 2e-3, 3e-2


# ---- networks


class Network(NamedTuple):
    """A network: its constructor, statements before the loop, a step of input v, the shape of an input."""

    init: str
    start: str
    step: str
    shape: Tuple[int, ...] = (4,)


_READOUT = "self.fc2, self.lif2 = nn.Linear(6, 2), snn.Leaky(beta=0.5)"
_SECOND = "spk, mem = {n}.lif2({n}.fc2(spk1), mem)"
NETWORKS = {
    "leaky": Network(
        f"self.fc1, self.lif1 = nn.Linear(4, 6), snn.Leaky(beta=0.75)\n{_READOUT}",
        "mem1, mem = {n}.lif1.reset_mem(), {n}.lif2.reset_mem()",
        "spk1, mem1 = {n}.lif1({n}.fc1({v}), mem1)\n" + _SECOND,
    ),
    "learnt": Network(
        "self.fc1, self.lif1 = nn.Linear(4, 6), snn.Leaky(beta=0.75, learn_beta=True, learn_threshold=True)\n"
        "self.fc2, self.lif2 = nn.Linear(6, 2), snn.Leaky(beta=0.5, reset_mechanism='zero')",
        "mem1, mem = {n}.lif1.init_leaky(), {n}.lif2.init_leaky()",
        "spk1, mem1 = {n}.lif1({n}.fc1({v}), mem1)\n" + _SECOND,
    ),
    "recurrent": Network(
        f"self.fc1, self.lif1 = nn.Linear(4, 6), snn.RLeaky(beta=0.5, linear_features=6)\n{_READOUT}",
        "(spk1, mem1), mem = {n}.lif1.reset_mem(), {n}.lif2.reset_mem()",
        "spk1, mem1 = {n}.lif1({n}.fc1({v}), spk1, mem1)\n" + _SECOND,
    ),
    "synaptic": Network(
        f"self.fc1, self.lif1 = nn.Linear(4, 6), snn.Synaptic(alpha=0.5, beta=0.5)\n{_READOUT}",
        "(syn1, mem1), mem = {n}.lif1.reset_mem(), {n}.lif2.reset_mem()",
        "spk1, syn1, mem1 = {n}.lif1({n}.fc1({v}), syn1, mem1)\n" + _SECOND,
    ),
    "written": Network(
        "self.fc1, self.lif1, self.spike = nn.Linear(4, 6), nn.Identity(), surrogate.fast_sigmoid(slope=4)\n"
        + _READOUT,
        "mem1, mem = torch.zeros(()), {n}.lif2.reset_mem()",
        "mem1 = 0.5 * mem1 + {n}.lif1({n}.fc1({v}))\nspk1 = {n}.spike(mem1 - 1.0)\nmem1 = mem1 - spk1\n" + _SECOND,
    ),
    "convolution": Network(
        "self.fc1, self.lif1 = nn.Conv2d(1, 2, 3, padding=1), snn.Leaky(beta=0.5)\n"
        "self.fc2, self.lif2 = nn.Linear(8, 2), snn.Leaky(beta=0.5)",
        "mem1, mem = {n}.lif1.reset_mem(), {n}.lif2.reset_mem()",
        "spk1, mem1 = {n}.lif1({n}.fc1({v}), mem1)\n"
        "spk, mem = {n}.lif2({n}.fc2(F.max_pool2d(spk1, 2).flatten(1)), mem)",
        (1, 4, 4),
    ),
    "hidden": Network(
        "self.fc1, self.lif1 = nn.Linear(4, 6), snn.Leaky(beta=0.75, init_hidden=True)\n"
        "self.fc2, self.lif2 = nn.Linear(6, 2), snn.Leaky(beta=0.5, init_hidden=True, output=True)",
        "utils.reset({n})",
        "spk, mem = {n}.lif2({n}.fc2({n}.lif1({n}.fc1({v}))))",
    ),
    "dropout": Network(
        f"self.fc1, self.lif1, self.drop = nn.Linear(4, 6), snn.Leaky(beta=0.75), nn.Dropout(0.5)\n{_READOUT}",
        "mem1, mem = {n}.lif1.reset_mem(), {n}.lif2.reset_mem()",
        "spk1, mem1 = {n}.lif1({n}.fc1({v}), mem1)\nspk, mem = {n}.lif2({n}.fc2({n}.drop(spk1)), mem)",
    ),
    "norm": Network(
        "self.fc1, self.lif1 = nn.Linear(4, 6, bias=False), snn.Leaky(beta=0.75)\nself.norm = nn.BatchNorm1d(6)\n"
        + _READOUT,
        "mem1, mem = {n}.lif1.reset_mem(), {n}.lif2.reset_mem()",
        "spk1, mem1 = {n}.lif1({n}.norm({n}.fc1({v})), mem1)\n" + _SECOND,
    ),
}

# ---- the loop: its head and its statements. {n} is the network.

HEADS = lines_of(
    r"""
    for step in range(len(x)):\n    current = x[step]
    for step in range(len(x)):\n    current = x[step]
    for step, current in enumerate(x):
    step = -1\nfor current in x:\n    step += 1
    step = -1\nwhile step + 1 < len(x):\n    step += 1\n    current = x[step]
    for step in range(STEPS):\n    current = x[step]
    for step, current in zip(range(len(x)), x):
    """
)
# Before the neurons.
FIRST = lines_of(
    r"""
    current = current + 0.25 * torch.rand_like(current).round()
    current = current * (1 + (random.random() < 0.5))
    current = current * float(np.random.randint(1, 3))
    if FAIL['at'] == step:\n    raise Stop(f'at {step}')
    if {n}.fails and step == 2:\n    raise Stop('asked to')
    COUNT['first'] += 1
    assert current.shape[0] > 0, 'no samples'
    if step == 1:\n    continue
    """
)
# After them.
LAST = lines_of(
    r"""
    {n}.calls += 1
    {n}.trace.append(mem.detach())
    {n}.trace.append(mem)
    {n}.seen.append(step)
    {n}.rates[step] = spk.detach().mean()
    {n}.total += spk.detach().sum()
    {n}.last = mem.detach()
    COUNT['steps'] += 1
    SEEN.append(float(mem.detach().sum()))
    SEEN.append(step)
    if step == 3:\n    break
    if step == 2:\n    mem = mem.detach()
    mem = mem * 1.0 if {n}.training else mem * 0.5
    if torch.is_grad_enabled():\n    COUNT['with gradient'] += 1
    clock = time.perf_counter()
    with torch.no_grad():\n    COUNT['spikes'] += spk.sum().item()
    def inside(value=mem):\n    return value.detach().sum()\n\nCOUNT['inside'] += inside()
    spk[0] = 0
    mem += 0.25
    if (size := len(record)) > 4:\n    COUNT['size'] = size
    """
)
# Statements that may end a graph, some under an `if`: in some calls, in none, or in one step. Then output that is
# deferred until after the loop, and weights that are computed in each step.
OBSTACLES = lines_of(
    r"""
    print('step', step)
    print(f'{{spk.sum().item():.0f}}', end=' ')
    if spk.sum().item() > 2:\n    break
    if mem.max() > 2:\n    break
    if mem.requires_grad:\n    mem.register_hook(lambda grad: SEEN.append(round(float(grad.sum()), 2)))
    warnings.warn('a step', stacklevel=1)
    logging.getLogger('surroundings').info('step %d', step)
    assert torch.isfinite(mem).all()
    largest = max(float(one) for one in mem.detach().flatten())
    if not torch.is_grad_enabled():\n    print('no gradient', step)
    if COUNT['asked'] % 3 == 1 and step == 1:\n    print(float(mem.detach().sum()))\nCOUNT['asked'] += 1
    if step > 99:\n    SEEN.append(spk.detach().numpy().copy())
    if {n}.training and step == 2:\n    print('training', float(spk.detach().sum()))
    SEEN.append(spk.detach().numpy().sum().item() if len(SEEN) == 3 else -1)
    print(step, {n}.training, tuple(mem.shape), f'{{float(mem.detach().mean()):.2f}}', len(record))
    if step % 2:\n    print('odd', spk.detach().sum().item())\nelse:\n    print('even')
    BAR.set_description(f'{{step}} {{spk.sum().item():.0f}}')\nBAR.update(1)
    ROWS.append(spk.detach().cpu().numpy())\nTABLE[step] = round(float(spk.detach().mean().numpy()), 3)
    sys.stdout.write(f'{{step}};')
    {n}.rounded = Rounded.apply({n}.fc1.weight * 4) / 4
    """
)
# Around the neurons: NEURONS is their place.
WRAPPED = lines_of(
    r"""
    try:\n    NEURONS\nfinally:\n    COUNT['finally'] += 1
    try:\n    NEURONS\nexcept RuntimeError:\n    COUNT['except'] += 1\n    raise
    try:\n    NEURONS\nexcept (RuntimeError, ValueError) as error:\n    raise Stop('told otherwise') from error
    with contextlib.nullcontext():\n    NEURONS
    with counted('block'):\n    NEURONS
    with torch.set_grad_enabled(step > 0 and torch.is_grad_enabled()):\n    NEURONS
    with torch.autocast('cpu', torch.bfloat16, enabled=False):\n    NEURONS
    """
)
# After the loop: statements that end a graph, and others.
ENDS = lines_of(
    r"""
    print('ran', len(record))
    COUNT['sum'] += float(mem.detach().sum())
    {n}.zero_grad()
    {n}.calls += 1
    spk.sum().item()
    SEEN.append(len(record))
    """
)
# State for the next call, and its use.
CARRIED = ("{n}.kept = mem.detach()", "{n}.kept = mem", "{n}.kept = mem.detach().clone()")
RESULTS = lines_of(
    r"""
    torch.stack(record)
    torch.stack(record)
    torch.stack(record, 1)
    record
    sum(record)
    record[-1]
    """
)

# ---- the place of the loop. LOOP n stands for the loop, with the network n. NET stands for a network that has the
# loop. The name is followed by other ways to call it.

_PLACES = """
#### forward: net.forward(x)
class Net(Parts):
    def forward(self, x):
        LOOP self

#### method: net.simulate(x=x)
NET self.simulate(x)

    def simulate(self, x):
        LOOP self

#### private method: net(x)
NET self.__simulate(x)

    def __simulate(self, x):
        LOOP self

#### function: simulate(net, x)
def simulate(net, x):
    LOOP net
NET simulate(self, x)

#### keywords: simulate(x, **{'net': net})
def simulate(x, *, net, **more):
    LOOP net
NET simulate(x, net=self, more=1)

#### a closure for each call: simulate(net, x)
def simulate(net, x):
    def inside():
        LOOP net

    return inside()
NET simulate(self, x)

#### a function made by another: HELD.setdefault(id(net), made(net))(x)
def made(net):
    def simulate(x):
        LOOP net

    return simulate
NET made(self)(x)

#### a closure that changes: HELD.setdefault(id(net), made(net))(x)
def made(net):
    called = 0

    def simulate(x):
        nonlocal called
        called += 1
        SEEN.append(called)
        LOOP net

    return simulate
NET made(self)(x)

#### lambda: (lambda x: simulate(net, x))(x)
def simulate(net, x):
    LOOP net

simulated = lambda net, x: simulate(net, x)
NET simulated(self, x)

#### static method: Net.simulate(net, x)
NET self.simulate(self, x)

    @staticmethod
    def simulate(net, x):
        LOOP net

#### class method: type(net).simulate(net, x)
NET self.simulate(self, x)

    @classmethod
    def simulate(cls, net, x):
        LOOP net

#### base class: Base.forward(net, x)
class Base(Parts):
    def forward(self, x):
        LOOP self

class Net(Base):
    def forward(self, x):
        COUNT['super'] += 1
        return super().forward(x)

#### two classes of one base: (net if len(SEEN) % 3 else other)(x)
class Base(Parts):
    def forward(self, x):
        LOOP self

class Other(Base):
    pass

class Net(Base):
    pass

other = Other()

#### mixin: net.simulate(x)
class Simulates:
    def simulate(self, x):
        LOOP self

class Net(Simulates, Parts):
    def forward(self, x):
        return self.simulate(x)

#### data class: HELD.setdefault(id(net), Run(net))(x)
@dataclasses.dataclass
class Run:
    net: nn.Module
    runs: int = 0

    def __call__(self, x):
        self.runs += 1
        LOOP self.net
NET Run(self)(x)

#### decorated: simulate(net, x)
@noticed
def simulate(net, x):
    LOOP net
NET simulate(self, x)

#### decorated method: net(x)
class Net(Parts):
    @noticed
    def forward(self, x):
        LOOP self

#### no gradients: (evaluated if len(SEEN) % 2 else net.__call__)(*([net, x] if len(SEEN) % 2 else [x]))
class Net(Parts):
    def forward(self, x):
        LOOP self

@torch.no_grad()
def evaluated(net, x):
    return net(x)

#### context manager as decorator: simulate(net, x)
@counted('decorated')
def simulate(net, x):
    LOOP net
NET simulate(self, x)

#### partial: functools.partial(simulate, 0.5, net)(x)
def simulate(scale, net, x):
    x = [one * scale for one in x]
    LOOP net

doubled = functools.partial(simulate, 2.0)
NET doubled(self, x)

#### generator: list(simulated(net, [x, x]))[1]
def simulated(net, xs):
    for x in xs:
        yield simulate(net, x)

def simulate(net, x):
    LOOP net
NET next(simulated(self, [x]))

#### inside a generator: [*simulated(net, x)][0]
def simulated(net, x):
    def run():
        LOOP net

    yield run()
NET next(simulated(self, x))

#### coroutine: asyncio.run(simulate(net, x))
async def simulate(net, x):
    await asyncio.sleep(0)
    LOOP net
NET asyncio.run(simulate(self, x))

#### in a coroutine's function: asyncio.run(wait(net, x))
def simulate(net, x):
    LOOP net

async def wait(net, x):
    await asyncio.sleep(0)
    return simulate(net, x)
NET asyncio.run(wait(self, x))

#### training step: HELD.setdefault(id(net), Trained(net)).training_step((x,), 1)
class Trained(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, number):
        x, = batch
        LOOP self.net
NET Trained(self).training_step((x,), 0)

#### wrapper: Wrapper(net).simulate(x)
class Wrapper:
    def __init__(self, net):
        self.__dict__['net'] = net

    def __getattr__(self, name):
        return getattr(self.net, name)

    def __setattr__(self, name, value):
        setattr(self.net, name, value)

    def simulate(self, x):
        LOOP self
NET Wrapper(self).simulate(x)

#### late module: importlib.import_module(LATE).simulate(net, x)
NET importlib.import_module(LATE).simulate(self, x)

FILE
def simulate(net, x):
    LOOP net

#### cell: simulate(net, x)
CELL
def simulate(net, x):
    LOOP net
END
NET simulate(self, x)

#### class in a cell: net(x)
CELL
class Net(Parts):
    def forward(self, x):
        LOOP self
END

#### class in a function: net(x)
def make():
    class Net(Parts):
        def forward(self, x):
            LOOP self

    return Net

Net = make()

#### recursion: simulate(net, x)
def simulate(net, x, depth=1):
    if depth:
        simulate(net, x, depth - 1)
    LOOP net
NET simulate(self, x)

#### several in one: simulate(net, x)
def simulate(net, x):
    def run(x):
        LOOP net

    run(x)
    return run(x)
NET simulate(self, x)

#### property: net(x)
class Net(Parts):
    @property
    def result(self):
        x = self.given
        LOOP self

    def forward(self, x):
        self.given = x
        return self.result

#### over batches: simulate(net, [x])
def simulate(net, xs):
    made = []
    for x in xs:
        made.append(one(net, x))
    return made[-1]

def one(net, x):
    LOOP net
NET simulate(self, [x, x])

#### a block before it: simulate(net, x)
def simulate(net, x):
    if COUNT['never']:
        return None
    with counted('all of it'):
        LOOP net
NET simulate(self, x)

#### in try: simulate(net, x)
def simulate(net, x):
    try:
        LOOP net
    except Stop:
        COUNT['stopped'] += 1
        raise
    finally:
        COUNT['left'] += 1
NET simulate(self, x)
"""
PLACES = dict(re.findall(r"^#### (.*)\n((?:.*\n)*?)(?=####|\Z)", _PLACES, re.MULTILINE))

# ---- events


class Event(NamedTuple):
    """Statements before a call, around it, in place of it, before its backward pass, and before a later call."""

    before: str = ""
    around: str = ""
    call: str = ""
    after: str = ""
    later: str = ""


def events(place: str, text: str) -> Tuple[Event, ...]:
    """Return an event for each statement of a table, at this place of the call."""
    return tuple(Event(**{place: statement}) for statement in lines_of(text))


def _hooked(register: str) -> Event:
    return Event(f"HANDLES.append({register})", later="while HANDLES:\n    HANDLES.pop().remove()")


MODES = events(
    "around",
    r"""
    torch.no_grad()
    torch.no_grad()
    torch.inference_mode()
    torch.set_grad_enabled(False)
    torch.set_grad_enabled(True)
    torch.autocast('cpu', torch.bfloat16)
    torch.autocast('cpu', torch.bfloat16)
    torch.profiler.profile()
    warnings.catch_warnings(record=True)
    torch.random.fork_rng(devices=[])
    torch.autograd.graph.save_on_cpu()
    torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)
    torch.autograd.set_detect_anomaly(True)
    torch.device('cpu')
    torch.backends.mkldnn.flags(enabled=False)
    torch.nn.utils.parametrize.cached()
    torch.autograd.graph.allow_mutation_on_saved_tensors()
    Mode()
    DispatchMode()
    traced()
    counted('around')
    deterministic()
    default_dtype(torch.float64)
    contextlib.redirect_stdout(sys.stdout)
    torch.compiler.set_stance('force_eager')
    """,
)
CALLS = events(
    "call",
    r"""
    checkpoint(run, net, x, use_reentrant=True)
    checkpoint(run, net, x, use_reentrant=False)
    checkpoint(net, x, use_reentrant=False)
    in_thread(run, net, x)
    in_pool(run, net, x)
    torch.func.functional_call(net, {n: p * 0.5 for n, p in net.named_parameters()}, (x,))
    torch.func.functional_call(net, dict(net.named_parameters()), (x,))
    torch.compile(run, backend='eager')(net, x)
    contextvars.copy_context().run(run, net, x)
    nn.DataParallel(net)(x)
    net.forward(x)
    type(net).forward(net, x)
    run(net=net, x=x)
    run(net, [*x])
    run(net, tuple(x.unbind()))
    [run(net, x), run(net, x)][1]
    [run(net, x), run(net, x * 0.5)][0]
    nn.Sequential(net)(x)
    map(run, [net], [x]).__next__()
    """,
)
INPUTS = events(
    "before",
    r"""
    x.requires_grad_()
    x.requires_grad_()
    x = x.transpose(0, 1).contiguous().transpose(0, 1)
    x = torch.cat([x, x], -1)[..., ::2]
    x = x[:1].expand_as(x)
    x = x[:, :1].expand_as(x)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.flip(0)
    x = (x + net.fc1.weight.flatten()[0]) * 1.0
    x = net.fc1.weight.flatten()[:1].view([1] * x.dim()).expand_as(x)
    x = x.as_subclass(Kind)
    x = nn.Parameter(x)
    x = x.double()
    x = x.round().long()
    x = x[..., :3]
    x = x[:, :0]
    x = x[:, :1]
    x = x[:2]
    x = x[:1]
    x = torch.utils.data.default_collate([*x])
    x = next(iter(DataLoader(TensorDataset(x.transpose(0, 1)), batch_size=x.shape[1])))[0].transpose(0, 1)
    x = torch.as_strided(x.clone(), x.shape, x.stride())
    x = torch.stack([*x]).detach()
    x = torch.from_numpy(x.numpy().copy())
    x = torch.cat([x, x])
    x = torch.cat([x, x], 1)
    """,
)
CHANGES = (
    *events(
        "before",
        r"""
    net = copy.deepcopy(net)
    net = copy.copy(net)
    net = pickle.loads(pickle.dumps(net))
    net.load_state_dict({n: t.clone() for n, t in net.state_dict().items()})
    net.load_state_dict({n: t.clone() for n, t in net.state_dict().items()}, assign=True)
    net.eval()
    net.train()
    net.double()
    net.float()
    net.bfloat16()
    net.fc2.weight = nn.Parameter(net.fc2.weight.detach() * 0.5)
    net.fc2.bias = None
    with torch.no_grad():\n    net.fc2.weight.mul_(0.5)
    net.fc1.weight.data = net.fc1.weight.data * 2
    net.lif2.beta = 0.25
    net.lif2.beta = torch.tensor(0.25)
    net.lif2.beta.fill_(0.25)
    net.lif2.threshold = torch.tensor(0.5)
    net.lif2.threshold.fill_(0.5)
    net.lif2.reset_mechanism = 'zero'
    net.lif2.reset_mechanism = 'none'
    net.lif2.spike_grad = surrogate.sigmoid(slope=2)
    net.lif2.spike_grad = Boxcar.apply
    net.lif2.spike_grad = lambda u: Boxcar.apply(u)
    net.lif2.spike_grad = surrogate.custom_surrogate(lambda u, grad, out: grad / (1 + u.abs()))
    net.fc2 = on_grid(nn.Linear(net.fc2.in_features, 2))
    net.fc2 = nn.Sequential(net.fc2, nn.ReLU())
    net.lif2 = type(net.lif2)(beta=0.5, init_hidden=net.lif2.init_hidden, output=net.lif2.output)
    net.extra = nn.Linear(2, 2)
    net.extra = len(SEEN)
    del net.extra
    net.fc2.requires_grad_(False)
    net.fc1.weight.requires_grad_(False)
    net.requires_grad_(False)
    net.requires_grad_(True)
    nn.utils.parametrizations.weight_norm(net.fc2)
    nn.utils.parametrizations.spectral_norm(net.fc2)
    nn.utils.weight_norm(net.fc2)
    nn.utils.parametrize.register_parametrization(net.fc2, 'weight', Halved())
    nn.utils.parametrize.remove_parametrizations(net.fc2, 'weight')
    nn.utils.prune.random_unstructured(net.fc2, 'weight', 0.5)
    utils.reset(net)
    net.fc2 = torch.jit.trace(net.fc2, torch.ones(2, net.fc2.in_features))
    net.fc2.forward = lambda value: F.linear(value, net.fc2.weight) * 0.5
    net.calls = 0
    net.trace = []
    net.trace.clear()
    net.seen = collections.deque()
    net.kept = None
    if AUTO:\n    snn.auto()
    gc.collect()
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    COUNT.clear()
    SEEN.clear()
    net.fc2.weight.grad = None
    for one in net.parameters():\n    one.grad = torch.ones_like(one)
    torch.compile(lambda value: value * 2, backend='eager')(torch.ones(2))
    torch.compile(net.fc2, backend='eager')(torch.ones(2, net.fc2.in_features))
    net.fc2.compile(backend='eager')
    net.half = net.float
    net.lif1, net.lif2 = copy.deepcopy(net.lif1), copy.deepcopy(net.lif2)
    net.share_memory()
    other, net = net, Net()\nnet.load_state_dict(other.state_dict(), strict=False)
    torch.set_grad_enabled(True)
    """,
    ),
    Event("FAIL['at'] = 2", later="FAIL['at'] = None"),
    Event("FAIL['at'] = 0", later="FAIL['at'] = None"),
    Event("net.fails = True", later="net.fails = False"),
    Event("net.forward = noticed(net.forward)", later="vars(net).pop('forward', None)"),
    Event(
        "net.forward = types.MethodType(lambda self, x: run_class(self, x * 0.5), net)\nrun_class = type(net).forward"
    ),
    Event(
        "plain_forward = Net.forward\nNet.forward = noticed(Net.forward)",
        later="Net.forward = plain_forward",
    ),
    Event(
        "plain_forward_of_linear = nn.Linear.forward\nnn.Linear.forward = halved(nn.Linear.forward)",
        later="nn.Linear.forward = plain_forward_of_linear",
    ),
    Event("plain_linear = F.linear\nF.linear = halved(F.linear)", later="F.linear = plain_linear"),
    Event(
        "plain_call = snn.Leaky.forward\nsnn.Leaky.forward = noticed(snn.Leaky.forward)",
        later="snn.Leaky.forward = plain_call",
    ),
)
HOOKS = tuple(
    _hooked(line)
    for line in lines_of(
        r"""
    net.register_forward_hook(lambda module, given, made: SEEN.append('hook'))
    net.register_forward_hook(lambda module, given, made: (made[0], made[1] * 2))
    net.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    net.register_full_backward_hook(lambda module, before, after: SEEN.append(after[1] is None))
    net.fc2.register_forward_hook(lambda module, given, made: SEEN.append('fc2'))
    net.fc2.register_forward_hook(lambda module, given, made: made * 0.5)
    net.fc2.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    net.fc2.register_full_backward_hook(lambda module, before, after: SEEN.append(told(after)))
    net.lif1.register_forward_hook(lambda module, given, made: SEEN.append('lif1'))
    net.lif2.register_forward_pre_hook(lambda module, given: SEEN.append('lif2'))
    net.lif2.register_full_backward_hook(lambda module, before, after: SEEN.append('back'))
    net.fc1.weight.register_hook(lambda grad: SEEN.append(told(grad)))
    net.fc1.weight.register_hook(lambda grad: grad * 0.5)
    net.fc2.weight.register_post_accumulate_grad_hook(lambda one: SEEN.append(told(one.grad)))
    nn.modules.module.register_module_forward_hook(lambda *given: COUNT.update([type(given[0]).__name__]))
    nn.modules.module.register_module_forward_pre_hook(lambda module, given: COUNT.update(['before']))
    nn.modules.module.register_module_full_backward_hook(lambda *given: COUNT.update(['back']))
    """
    )
)
AFTER = events(
    "after",
    r"""
    mem.register_hook(lambda grad: SEEN.append(told(grad)))
    first(out).register_hook(lambda grad: grad * 2)
    mem.retain_grad()
    first(out).mul_(2)
    first(out).zero_()
    first(out)[0] = 1
    mem.add_(1)
    mem.detach().zero_()
    first(out).detach().fill_(3)
    first(out).data.fill_(2)
    x.detach().mul_(2)
    x.data = x.data * 2
    with torch.no_grad():\n    net.fc1.weight.mul_(2)
    with torch.no_grad():\n    net.fc2.weight.mul_(2)
    net.fc2.weight.data.mul_(2)
    net.fc2.weight.data = net.fc2.weight.data * 2
    net.lif2.threshold.fill_(0.75)
    out = first(out).detach().requires_grad_()
    gc.collect()
    out, mem = copy.copy((out, mem))
    torch.manual_seed(6)
    REFERENCES.append(weakref.ref(net))
    del x
    """,
)
# Parts of texts with a known difference, which are left out.
KNOWN = {
    "F.linear = halved": "what runs compiled asks for torch's functions again, and finds these",
    "x.as_subclass(Kind)": "results are plain tensors",
    "torch.set_grad_enabled(step > 0": "each step's results have gradients",
    "mem.detach().zero_()": "what shares a result's memory in the loop has its own",
    "torch.autograd.grad(loss, mem": "a gradient of the last membrane is without what comes by the stacked ones",
    "mem.register_hook(lambda grad: SEEN.append(told": "the same",
}
# Gradients before a norm are pure rounding, which Adam turns into steps.
KNOWN_OF_NORM = ("torch.optim.Adam", "lbfgs(")
KINDS = ((MODES, 4), (CALLS, 3), (INPUTS, 3), (CHANGES, 6), (HOOKS, 3), (AFTER, 3))
LOSSES = (
    "loss = loss_of(out, mem)",
    "loss = loss_of(out, mem)",
    "loss = first(out).float().sum()",
    "loss = mem.float().pow(2).sum()",
)
PASSES = (
    *lines_of(
        r"""
    loss.backward()
    loss.backward()
    loss.backward()
    loss.backward()
    loss.backward()
    loss.backward()
    loss.backward(retain_graph=True)\nloss.backward()
    loss.backward()\nloss.backward()
    show('gradients', torch.autograd.grad(loss, [*net.parameters()], allow_unused=True))
    """
    ),
    "grads = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad], create_graph=True, "
    "allow_unused=True)\nsum(one.pow(2).sum() for one in grads if one is not None).backward()",
    *lines_of(
        r"""
    in_thread(loss.backward)
    del out, mem\nloss.backward()
    loss.backward()\noptimizer.step()\noptimizer.zero_grad()
    loss.backward()\noptimizer.step()\noptimizer.zero_grad(set_to_none=False)
    loss.backward()\nnn.utils.clip_grad_norm_(net.parameters(), 1.0)\noptimizer.step()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)\nloss.backward()\noptimizer.step()
    lbfgs(net, lambda: loss_of(*run(net, x)))
    torch.autograd.backward([first(out), mem], [torch.ones_like(first(out)), torch.ones_like(mem)])
    show('of mem', torch.autograd.grad(loss, mem, retain_graph=True, allow_unused=True))\nloss.backward()
    show('of x', torch.autograd.grad(loss, [x], allow_unused=True))
    show('no pass', loss)
    """
    ),
)

HEADER = '''"""{title}"""

import asyncio
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import importlib
import io
import linecache
import logging
import os
import pickle
import random
import sys
import threading
import time
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import tqdm
from snntorch import utils
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import snnipu as snn
from snnipu import surrogate

AUTO = bool(os.environ.get({variable!r}))
LATE = __name__ + "_late"
STEPS, BATCH, SHAPE = {steps}, {batch}, {shape}
COUNT, SEEN, HANDLES, HELD, REFERENCES = collections.Counter(), [], [], {{}}, []
FAIL = {{"at": None}}
ROWS, TABLE, BAR = [], np.zeros(4 * STEPS + 8), tqdm.tqdm(disable=False, file=io.StringIO(), mininterval=1e9)
torch.manual_seed(0)
random.seed(1)
np.random.seed(2)
RECORD = []  # of what can be observed: pairs of a name and a value


class Stop(Exception):
    """The program's own."""


class Kind(torch.Tensor):
    """A tensor of another class."""


class Boxcar(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad * (u.abs() < 0.5).float()


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Halved(nn.Module):
    def forward(self, weight):
        return weight * 0.5


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {{}}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {{}}))


@contextlib.contextmanager
def counted(name):
    COUNT[name + ": in"] += 1
    try:
        yield
    finally:
        COUNT[name + ": out"] += 1


@contextlib.contextmanager
def traced():
    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: None)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def noticed(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        SEEN.append(function.__name__)
        return function(*args, **kwargs)

    return wrapped


def halved(function):
    return lambda *args: function(*args) * 0.5


def in_thread(function, *args):
    made = []

    def run():
        try:
            made.append(function(*args))
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def in_pool(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return [one.result() for one in [pool.submit(function, *args) for _ in range(2)]][1]


def first(out):
    return out[0] if isinstance(out, list) else out


def weights(like):
    generator = torch.Generator().manual_seed(like.numel())
    return torch.randint(-3, 4, like.shape, generator=generator).to(like.dtype) / 4


def loss_of(out, mem):
    ones = [*(out if isinstance(out, list) else [out]), mem]
    return sum((one * weights(one)).float().sum() for one in ones)


def on_grid(module):
    """Round parameters to binary fractions."""
    with torch.no_grad():
        for one in module.parameters():
            one.copy_((one * 16).round() / 8)
    return module


def lbfgs(net, loss_of_it):
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.125, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = loss_of_it()
        loss.backward()
        return loss

    optimizer.step(closure)


def told(value):
    """Return the size of a gradient, for a comparison up to rounding."""
    if isinstance(value, tuple):
        return [told(one) for one in value]
    return None if value is None else torch.tensor(float(value.detach().double().abs().sum()))


def kept(value):
    """Return the facts of a value that both runs must share."""
    if isinstance(value, torch.Tensor):
        facts = type(value).__name__, value.requires_grad, value.is_inference(), value.is_leaf
        return facts, value.detach().as_subclass(torch.Tensor).clone()
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, [kept(one) for one in value]
    if isinstance(value, dict):
        return sorted((str(name), kept(one)) for name, one in value.items())
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def show(name, value):
    RECORD.append((name, kept(value)))


def keep(path):
    with open(path, "wb") as file:
        pickle.dump(RECORD, file)


def show_all(number, net):
    """Return the state that a call leaves behind."""
    for name, one in net.named_parameters():
        show(f"{{number}}: parameter {{name}}", one)
        show(f"{{number}}: gradient of {{name}}", one.grad)
    for name, module in net.named_modules():
        for key, value in {{**vars(module), **module._buffers}}.items():
            # A step as one operator has no signal of its reset.
            if isinstance(value, (torch.Tensor, int, float, str, list, collections.deque)) and key != "reset":
                show(f"{{number}}: {{name}}.{{key}}", value)
    show(f"{{number}}: counters", {{name: value for name, value in COUNT.items()}})
    show(f"{{number}}: seen", SEEN)
    show(f"{{number}}: arrays", [one.tolist() for one in (TABLE, *ROWS)])
    show(f"{{number}}: bar", [BAR.n, BAR.desc])
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
    show(f"{{number}}: modes", str(modes))
    show(f"{{number}}: random numbers", str((torch.rand(1), random.random(), np.random.rand())))


def batch(number, steps, size):
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 9, (steps, size, *SHAPE), generator=generator).float() / 4


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
{init}
        self.calls, self.fails, self.kept, self.last = 0, False, None, None
        self.trace, self.seen = [], []
        self.rates, self.total = torch.zeros(64), torch.zeros(())
        on_grid(self)

'''

# The first statements of a module that the script imports late: they copy the script's names.
LATE = """import sys

for _module in list(sys.modules.values()):
    if getattr(_module, "LATE", None) == __name__:
        globals().update({name: value for name, value in vars(_module).items() if name[:2] != "__"})
"""


class Writer(Draws):
    """A writer of one script.

    Attributes:
        source: the source of the script.
        late: the source of the module that the script imports later, or empty.
        in_place: whether the loop is written at its call, in the middle of a loop over epochs.
        command: whether it runs as the main module, as ``python -m snnipu run --compile`` runs a script.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self.late = ""
        self.network_name = self.pick(*NETWORKS, "leaky", "leaky")
        self.network = NETWORKS[self.network_name]
        place, self.place = self.pick(*PLACES.items())
        self.place_name, _, self.called = place.partition(": ")
        self.steps, self.batch = self.pick(4, 5, 6), self.pick(2, 3)
        self.in_place, self.command = self.chance(0.15), self.chance(0.15)
        self.source = self._script()

    def _is_known(self, *texts: str) -> bool:
        """Return True if a known difference belongs to one of these texts."""
        known = [*KNOWN, *(KNOWN_OF_NORM if self.network_name == "norm" else ())]
        return any(part in text for part in known for text in texts)

    def _script(self) -> str:
        title = f"Seed {self.seed}: {self.network_name}, {self.place_name}."
        init = textwrap.indent(self.network.init, " " * 8)
        fields = {"variable": AUTO, "steps": self.steps, "batch": self.batch, "shape": self.network.shape}
        header = HEADER.format(title=title, init=init, **fields)
        search, begin = "if AUTO:\n    snn.auto()\n", self.random.random()
        definitions = self._definitions()
        begun, body, ended = self._calls()
        function = self.chance(0.3 if self.command else 0.5)
        if self.in_place and function:
            body = f"def epoch(net, optimizer):\n{textwrap.indent(body, '    ')}\n    return net, optimizer\n\n"
            body = f"{begun}\n{body}\nfor _ in range(4):\n    net, optimizer = epoch(net, optimizer)\n{ended}"
        elif self.in_place:
            body = f"{begun}\nfor epoch in range(3):\n{textwrap.indent(body, '    ')}\n{ended}"
        else:
            body = f"{begun}\n{body}\n{ended}"
            body = f"def main():\n{textwrap.indent(body, '    ')}\n\nmain()\n" if function else body
        parts = [header, definitions, body, "if __name__ == '__main__':\n    keep(sys.argv[1])\n"]
        parts.insert(1 if begin < 0.7 else 2, search)
        return "\n\n".join(parts)

    # ---- the place of the loop

    def _definitions(self) -> str:
        lines: List[str] = []
        self.loop = self._loop()
        for line in self.place.splitlines():
            match = re.match(r"( *)LOOP (\S+)$", line)
            if line.startswith("NET "):
                lines += ["class Net(Parts):", "    def forward(self, x):", f"        return {line[4:]}", ""]
            elif match is None:
                lines.append(line)
            else:
                lines += textwrap.indent(self.loop.replace("{n}", match[2]), match[1]).splitlines()
        source = "\n".join(lines)
        if "FILE" in lines:
            source, _, self.late = source.partition("FILE\n")
            self.late = f"{LATE}\n\n{self.late}\n"
        if "CELL" in lines:
            cell, after = source.partition("CELL\n")[2].split("END\n" if "END\n" in source else "END")
            source = (
                f"CELL = '''\n{cell}'''\nname = f'<cell {{__name__}}>'\n"
                "linecache.cache[name] = len(CELL), None, CELL.splitlines(True), name\n"
                f"exec(compile(CELL, name, 'exec'), globals())\n{after}"
            )
        called = self.pick("net(x)", self.called)
        return f"{source}\n\n\ndef run(net, x):\n    return {called}\n"

    def _loop(self) -> str:
        """Return the statements of the loop, from its start to the return of its results."""
        start = self.network.start.splitlines()
        end = [self.pick(*ENDS)] * self.chance(0.4)
        if self.network_name != "hidden" and self.chance(0.15):
            start.append("mem = mem if {n}.kept is None else {n}.kept")
            end.append(self.pick(*CARRIED))
        neurons = self.network.step.format(n="{n}", v="current")
        if self.chance(0.2):
            kind = self.pick(*(wrapper for wrapper in WRAPPED if not self._is_known(wrapper)))
            neurons = kind.replace("    NEURONS", textwrap.indent(neurons, "    "))
        first = [self.pick(*FIRST)] if self.chance(0.35) else []
        last = [self.pick(*LAST) for _ in range(self.pick(0, 0, 1, 1, 1, 2))]
        last += [self.pick(*OBSTACLES)] * self.chance(0.12)
        recorded = self.pick("record.append(spk)", "record.append(spk)", "record.append(mem)")
        last.insert(self.pick(0, len(last)) if not any("break" in wrapper for wrapper in last) else 0, recorded)
        head = self.pick(*HEADS)
        body = "\n".join([*first, neurons, *last])
        lines = ["record = []", *start, head + "\n" + textwrap.indent(body, "    "), *end]
        return "\n".join([*lines, f"return {self.pick(*RESULTS)}, mem"]).replace("{{", "{").replace("}}", "}")

    # ---- calls

    def _calls(self) -> Tuple[str, str, str]:
        """Return the statements before the calls, the calls, and the statements after them."""
        lines: List[str] = []
        pending: List[str] = []
        for number in range(self.pick(2, 3) if self.in_place else self.pick(4, 5, 6, 7, 8)):
            events: List[Event] = []
            kinds = [kind for kind, _ in KINDS]
            # In most cases the first two calls find the loop and compile it.
            often = self.pick(0, 1) if number < 2 else self.pick(0, 1, 1, 2)
            for kind in self.random.choices(kinds, [weight for _, weight in KINDS], k=often):
                event = self.pick(*(candidate for candidate in kind if not self._is_known(*candidate)))
                if not (event.call and any(other.call for other in events)):
                    events.append(event)
            for undo in [*pending]:
                if self.chance(0.5):
                    pending.remove(undo)
                    lines.append(undo)
            lines.append(f"# call {number}\ntry:\n{textwrap.indent(self._call(number, events), '    ')}")
            caught = "(Exception, Stop)" if self.chance(0.1) else "Exception"
            # After a failed backward pass, the gradients depend on the order in which it ran.
            lines += [
                f"except {caught} as error:\n    net.zero_grad()",
                f"    show('{number}: error', type(error).__name__)",
                "    print(type(error).__name__, str(error)[:300], file=sys.stderr)",
                f"show_all({number}, net)",
            ]
            pending += [event.later for event in events if event.later]
        begun = "net = Net()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.03)"
        ended = "show('references', len([one for one in REFERENCES if one() is net]))\n"
        return begun, "\n".join([*lines, *pending]), ended

    def _call(self, number: int, events: Sequence[Event]) -> str:
        steps = self.steps if self.chance(0.85) else self.pick(3, 7)
        size = self.batch if self.chance(0.8) else self.pick(1, 2, 4)
        lines = [f"x = batch({number}, {steps if self.chance(0.9) else 2}, {size})"]
        lines += [event.before for event in events if event.before]
        call = next((event.call for event in events if event.call), "run(net, x)")
        if self.in_place and call == "run(net, x)":
            # Only a generator or a function may return.
            call = self.loop.replace("{n}", "net").replace("\nreturn ", "\nout, mem = ")
        else:
            call = f"out, mem = {call}"
        for event in events:
            if event.around:
                call = f"with {event.around}:\n{textwrap.indent(call, '    ')}"
        lines += [call, f"show('{number}: out', out)", f"show('{number}: mem', mem)"]
        lines += [event.after for event in events if event.after]
        lines += [self.pick(*LOSSES), f"show('{number}: loss', loss)"]
        # After snn.auto() another compiler's graph contains the neurons' kernels, which have no second derivative.
        passes = [
            candidate for candidate in PASSES if not ("create_graph" in candidate and "torch.compile(run" in call)
        ]
        backward = (
            self.pick(*(candidate for candidate in passes if not self._is_known(candidate)))
            if self.chance(0.85)
            else "show('no pass', loss)"
        )
        lines += [f"if loss.requires_grad:\n{textwrap.indent(backward, '    ')}"]
        if "del x" not in "\n".join(lines):
            lines += [f"show('{number}: x', x)", f"show('{number}: gradient of x', x.grad)"]
        if self.chance(0.4):
            lines.append("net.zero_grad()")
        return "\n".join(lines)


# ---- running


def name_of(seed: int) -> str:
    return f"surroundings_{seed}"


def write(seed: int, folder: Path) -> Path:
    """Write a script and its late module into a folder."""
    writer = Writer(seed)
    path = folder / f"{name_of(seed)}.py"
    path.write_text(writer.source)
    for name in (name_of(seed), "__main__") if writer.late else ():
        (folder / f"{name}_late.py").write_text(writer.late)
    return path


def play(seed: int, folder: Path) -> List[Tuple[str, Any]]:
    """Run a script in this process and return everything observable. The variable AUTO makes it call ``snn.auto()``."""
    from snnipu.compiler import automatic

    path, record_file, out = write(seed, folder), folder / f"record_{seed}", io.StringIO()
    record_file.unlink(missing_ok=True)
    importlib.invalidate_caches()
    with _restored(folder, [path.name, str(record_file)]), contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not Writer(seed).command:
                importlib.import_module(name_of(seed)).keep(record_file)
            elif os.environ.get(AUTO):
                automatic.run_script(str(path))
            else:
                runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            return [("the script's error", repr(error)[:300]), ("printed", out.getvalue())]
    with open(record_file, "rb") as file:
        return [*pickle.load(file), ("printed", out.getvalue())]


@contextlib.contextmanager
def _restored(folder: Path, arguments: List[str]) -> Iterator[None]:
    """Restore everything that a script may change in the process, and search for loops again."""
    import snntorch
    from torch import nn

    import snnipu as snn
    from snnipu.compiler import automatic

    plain, before, modules = snntorch.SpikingNeuron.__init__, os.getcwd(), set(sys.modules)
    originals = [(nn.Linear, "forward"), (nn.functional, "linear"), (snn.Leaky, "forward")]
    values = [(owner, key, vars(owner).get(key)) for owner, key in originals]
    automatic._discovery = None
    torch._dynamo.reset()
    argv, sys.argv = sys.argv, arguments
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if automatic._discovery is not None:
            automatic._discovery.stop()
            automatic._discovery = None
        snntorch.SpikingNeuron.__init__ = plain  # type: ignore[method-assign]
        sys.path.remove(str(folder))
        sys.argv = argv
        os.chdir(before)
        for owner, key, value in values:
            setattr(owner, key, value)
            if value is None:
                delattr(owner, key)  # the base class has it
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        for hooks in (
            nn.modules.module._global_forward_hooks,
            nn.modules.module._global_forward_pre_hooks,
            nn.modules.module._global_backward_hooks,
        ):
            hooks.clear()
        for name in set(sys.modules) - modules:
            if name.startswith(("surroundings_", "__main__")):
                del sys.modules[name]
        snntorch.SpikingNeuron.instances.clear()
        gc.collect()
        torch._dynamo.reset()


def differences(seed: int, plain: Sequence[Tuple[str, Any]], other: Sequence[Tuple[str, Any]]) -> List[str]:
    """Return the differences of two records as lines of text."""
    lines: List[str] = []
    writer = Writer(seed)
    # A norm's results are no binary fractions.
    tolerance = TOLERANCE_OF_NORM if writer.network_name == "norm" else TOLERANCE
    if "bfloat16" in writer.source.partition("RECORD = ")[2]:
        tolerance = TOLERANCE_OF_BFLOAT16
    gradients = [value[1] for name, value in plain if "gradient of" in name and isinstance(value, tuple)]
    # Some gradients are pure rounding, for example of a bias before a norm.
    largest = max(
        (float(gradient.abs().max()) for gradient in gradients if gradient.numel() and gradient.isfinite().all()),
        default=0.0,
    )
    for (name, expected), (also, value) in zip(plain, other):
        if name != also:
            # The rest belongs to another call.
            return [*lines, f"{name} is missing, there is {also}: {_short(value)}"]
        if not _is_close(value, expected, tolerance, largest if "gradient" in name else 0.0):
            lines.append(f"{name}: {_short(value)}, expected {_short(expected)}")
    if len(plain) != len(other):
        lines.append(f"{len(other)} records, expected {len(plain)}")
    return lines


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 500 else text[:250] + " ... " + text[-250:]


def _is_close(value: Any, expected: Any, tolerance: float, least: float) -> bool:
    if isinstance(expected, torch.Tensor):
        same = isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype == expected.dtype
        if not same or not expected.numel():
            return same
        value, expected = value.double(), expected.double()
        largest = max(1e-3, least, float(expected.abs().max()))
        return torch.allclose(value, expected, rtol=0, atol=tolerance * largest, equal_nan=True)
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(expected)
            and all(_is_close(left, other, tolerance, least) for left, other in zip(value, expected))
        )
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return abs(value - expected) <= tolerance * max(1.0, abs(expected)) or (value != value and expected != expected)
    return bool(value == expected)
