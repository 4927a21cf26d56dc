"""A chunk as one graph: the same results and gradients in Python, on PopTorch's host runtime and the IPU model."""

import json

import pytest
import torch
from online.test_rules import TIGHT
from oracle import relative_error
from support.operators import needs_host_runtime, needs_library
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import poptorch
from snnipu.cli import main as command_line

LAYERS = {
    "linear": lambda: [
        nn.Linear(20, 16),
        snn.Leaky(beta=0.9, threshold=0.5),
        nn.Linear(16, 12, bias=False),
        snn.Leaky(beta=0.8, threshold=0.4),
        nn.Linear(12, 5),
        snn.Leaky(beta=0.7, reset_mechanism="none"),
    ],
    "maps": lambda: [
        nn.Unflatten(1, (5, 2, 2)),
        nn.Dropout(0.0),
        nn.Conv2d(5, 4, 3, padding=1),
        nn.AvgPool2d(2),
        snn.Leaky(beta=0.9, threshold=0.1),
        nn.Flatten(),
        nn.Linear(4, 6),
    ],
}
LEARNT = {
    "learnt": lambda: [
        nn.Linear(20, 16),
        snn.Leaky(beta=torch.linspace(0.5, 0.9, 16), threshold=0.5, learn_beta=True, reset_mechanism="zero"),
        nn.Linear(16, 5),
        snn.Leaky(beta=0.7, learn_threshold=True),
    ]
}
CASES = [
    *((rule, LAYERS[name]) for rule in ("sltt", "ottt") for name in LAYERS),
    ("sltt", LEARNT["learnt"]),
]


def network(make):
    torch.manual_seed(0)
    net = snn.MultiStep(*make()).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2 if parameter.dim() > 1 else 1)
    return net


def inputs(steps=12):
    torch.manual_seed(1)
    return (torch.rand(steps, 3, 20, dtype=torch.float64) < 0.4).double()


def weighted_sum(out):
    spk, *states = out if isinstance(out, tuple) else (out,)
    weights = torch.arange(1.0, 1 + spk.shape[-1], dtype=spk.dtype)
    return (spk * weights).sum() + sum(state.pow(2).sum() for state in states)


def first_result(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("length", [1, 4, 12])
@pytest.mark.parametrize(("rule", "make"), CASES)
def test_results_and_gradients_are_those_of_chunks_that_are_not_held(rule, make, length):
    x = inputs()
    results = []
    for held in (False, True):
        net = network(make)
        online = snn.Online(net, rule=rule)
        if held:
            online.prepare(x[:length])
        outputs = []
        for chunk in x.split(length):
            out = online(chunk, single=False)
            weighted_sum(out).backward()
            outputs.append(first_result(out).detach())
        results.append((torch.cat(outputs), [p.grad for p in net.parameters()]))
    (out, grads), (expected, others) = results
    assert expected.any()
    assert torch.equal(out, expected)
    for actual, other in zip(grads, others):
        assert other.any()
        assert relative_error(actual, other) < TIGHT


@pytest.mark.parametrize("rule", ["sltt", "ottt"])
def test_each_sample_begins_when_it_is_told(rule):
    x = inputs()
    net = network(LAYERS["linear"])
    online = snn.Online(net, rule=rule)
    online.prepare(x[:4])
    for number, chunk in enumerate(x.split(4)):
        weighted_sum(online(chunk, begins=torch.tensor([number == 0, number == 1, True]))).backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    other = snn.Online(net, rule=rule)
    for sample, starts in enumerate([(0,), (0, 1), (0, 1, 2)]):
        for number, chunk in enumerate(x[:, sample : sample + 1].split(4)):
            if number in starts:
                other.reset()
            weighted_sum(other(chunk)).backward()
    for grad, parameter in zip(gradients, net.parameters()):
        assert relative_error(grad, parameter.grad) < TIGHT
    # A single value of begins is for all samples, and equals reset().
    online.reset()
    whole = online(x[:4])
    online(x[4:8])
    assert torch.equal(first_result(online(x[:4], begins=torch.ones(1))), first_result(whole))


def test_a_stream_is_in_the_state_dict():
    x = inputs()
    net = network(LAYERS["linear"])
    online = snn.Online(net, rule="ottt")
    online.prepare(x[:4])
    online(x[:4])
    saved = {name: value.clone() for name, value in online.state_dict().items()}
    weighted_sum(online(x[4:8])).backward()
    expected = [p.grad.clone() for p in net.parameters()]
    other = snn.Online(network(LAYERS["linear"]), rule="ottt")
    other.prepare(x[:4])
    other.load_state_dict(saved)
    weighted_sum(other(x[4:8])).backward()
    for parameter, grad in zip(other.parameters(), expected):
        assert torch.equal(parameter.grad, grad)
    with pytest.raises(RuntimeError, match=r"stream_state: after prepare\(\)"):
        online.stream_state()
    with pytest.raises(RuntimeError, match=r"load_stream_state: after prepare\(\)"):
        online.load_stream_state({})


class Model(nn.Module):
    def __init__(self, net, rule, chunk):
        super().__init__()
        self.online = snn.Online(net, rule=rule)
        if chunk is not None:
            self.online.prepare(chunk)

    def forward(self, x, labels, begins):
        out = self.online(x, begins=begins)
        return first_result(out), nn.functional.cross_entropy(out[1].mean(0), labels)


@needs_host_runtime
@pytest.mark.parametrize("rule", ["sltt", "ottt"])
@pytest.mark.parametrize("on_model", [False, pytest.param(True, marks=needs_library)])
def test_poptorch_trains_as_eager_loops_do(rule, on_model, monkeypatch):
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:16")
    torch.manual_seed(2)
    x, labels = (torch.rand(6, 5, 4, 20) < 0.4).float(), torch.randint(5, (6, 4))
    begins = torch.tensor([1.0, 0, 0, 1, 0, 0])
    losses, weights = [], []
    for how in ("eager", "poptorch"):
        net = network(LAYERS["linear"]).float()
        eager = []
        if how == "eager":
            online, optimizer = snn.Online(net, rule=rule), torch.optim.SGD(net.parameters(), 0.1)
            for chunk, label, begin in zip(x, labels, begins):
                if begin:
                    online.reset()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(online(chunk)[1].mean(0), label)
                loss.backward()
                optimizer.step()
                eager.append(loss.detach())
        else:
            options = poptorch.Options()
            options.useIpuModel(on_model)
            model = Model(net, rule, x[0])
            optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, use_combined_accum=False)
            training = poptorch.trainingModel(model, options, optimizer=optimizer)
            for chunk, label, begin in zip(x, labels, begins):
                eager.append(training(chunk, label, begin.reshape(1))[1])
            if on_model:
                names = [operator["operator"] for operator in training.ipuModelReport()]
                assert names
                assert all(name.startswith("NeuronSequence") for name in names)
        losses.append(torch.stack(eager))
        weights.append([p.detach().clone() for p in net.parameters()])
    assert len(set(losses[0].tolist())) == 6
    assert torch.allclose(*losses, rtol=1e-5)
    for eager, other in zip(*weights):
        assert relative_error(eager, other) < 1e-5


@needs_host_runtime
def test_poptorch_is_refused_without_buffers():
    x = inputs()
    model = Model(network(LAYERS["linear"]), "ottt", None)
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(Exception, match=r"call prepare\(chunk\)"):
        training(x, torch.zeros(3, dtype=torch.long), None)


@needs_host_runtime
@needs_library
def test_its_tile_memory_does_not_depend_on_the_stream(tmp_path, capsys):
    source = """
import torch
import snnipu as snn
from torch import nn

def made(dtype):
    net = snn.MultiStep(nn.Linear(20, 16), snn.Leaky(beta=0.9), nn.Linear(16, 5), snn.Leaky(beta=0.9)).to(dtype)
    online = snn.Online(net, rule="ottt")
    online.prepare(torch.zeros(10, 4, 20, dtype=dtype))
    return online

model = made(torch.float32)
half = made(torch.float16)
bare = snn.Online(snn.MultiStep(nn.Linear(20, 16), snn.Leaky(beta=0.9)))
"""
    (tmp_path / "net.py").write_text(source)

    def profile(name, *options):
        out = tmp_path / "out.json"
        arguments = ["--model", tmp_path / f"net.py:{name}", "--target", "mk1", "--json", out, *options]
        assert command_line(["profile", *map(str, arguments)]) == 0
        return json.loads(out.read_text())

    short, long = profile("model", "--steps", 100), profile("model", "--steps", 10_000)
    output = capsys.readouterr().out
    assert "batch 4, 10,000 steps, float32" in output
    assert "one graph for every chunk of 10 steps" in output
    assert short["tile_memory_max_bytes"] == long["tile_memory_max_bytes"]
    assert long["cycles_per_batch"] == pytest.approx(100 * short["cycles_per_batch"])
    assert (long["batch_size"], long["chunk"]) == (4, 10)
    # A membrane and a trace per neuron and input, and a number for each sample.
    assert long["kept_bytes"] == 4 * 4 * ((16 + 20 + 1) + (5 + 16 + 1))
    assert {operator["name"] for operator in long["operators"]} == {"NeuronSequence", "NeuronSequence (gradient)"}
    assert profile("half")["dtype"] == "float16"
    for name, options, message in (
        ("bare", [], "must be prepared"),
        ("model", ["--dtype", "float16"], "its chunks are float32"),
        ("model", ["--html", "page.html"], "runs operator by operator"),
    ):
        with pytest.raises(SystemExit):
            profile(name, *options)
        assert message in capsys.readouterr().err


class Own(snn.Leaky):
    pass


@each_row(r"""
online(leaky(), rule="snap1") | ValueError: 'sltt' or 'ottt'
online(leaky(), bias_trace=False) | ValueError: default options
online(snn.Synaptic(alpha=0.8, beta=0.9)) | TypeError: module 1 \(Synaptic\)
online(Own(beta=0.9)) | TypeError: module 1 \(Own\)
online(leaky(reset_mechanism="zero")) | TypeError: its reset_mechanism is "zero"
online(leaky(reset_delay=False)) | TypeError: reset_delay=False
online(snn.Leaky(beta=torch.rand(5))) | TypeError: one for each neuron
online(leaky(learn_beta=True)) | TypeError: it learns beta
online(nn.Dropout(0.5), leaky(), rule="sltt") | TypeError: module 1 \(Dropout\)
online(nn.BatchNorm1d(5).eval(), leaky()) | TypeError: module 1 \(BatchNorm1d\)
online(leaky(), snn.SparseLeaky(5, 5, beta=0.9)) | TypeError: event-driven
""")
def test_what_cannot_be_held_in_one_graph(row):
    def leaky(**options):
        return snn.Leaky(beta=0.9, **options)

    def online(*behind, **options):
        snn.Online(snn.MultiStep(nn.Linear(20, 5), *behind), **options).prepare(torch.zeros(4, 3, 20))

    assert_refused(row, globals(), online=online, leaky=leaky)


@each_row(r"""
snn.Online(online.net)(x, begins=torch.ones(1)) | ValueError: begins is for networks whose states prepare\(\) holds
online.prepare(None) | ValueError: x must be a chunk
online.prepare(x[0, 0]) | ValueError: x must be a chunk
online.prepare(x[:0]) | ValueError: x must be a chunk
online(x[:3]) | ValueError: x must be of \(4, 3, 20\)
online(x[:4].float()) | ValueError: as in prepare\(\)
online(x[:4], begins=torch.ones(2)) | ValueError: begins must have one element
online(snn.SparseSpikes.from_dense(x[:4])) | TypeError: after prepare
""")
def test_wrong_chunks(row):
    online, x = snn.Online(network(LAYERS["linear"])), inputs()
    online.prepare(x[:4])
    assert online.chunk_shape == (4, 3, 20)
    assert_refused(row, globals(), online=online, x=x)


def test_changes_after_prepare():
    online, x = snn.Online(network(LAYERS["linear"])), inputs()
    online.prepare(x[:4])
    online.net[1].reset_mechanism = "zero"
    with pytest.raises(TypeError, match='its reset_mechanism is "zero"'):
        online(x[:4])
    online.net[1].reset_mechanism = "subtract"
    online.prepare(x[:2])  # for another size
    assert online(x[:2])[0].shape == (2, 3, 5)
