"""Sparse layers on maps in a user's training loop: the IPU model gives the host's results."""

import pytest
import torch
from support.ipu_training import check_training, classified, keep_operators, on_model, operators
from support.operators import needs_host_runtime, needs_model_and_host
from torch import nn

import snnipu as snn
from snnipu import poptorch
from snnipu.ipu.model import IpuModelError

pytestmark = [needs_host_runtime, *needs_model_and_host]
T, B, SHAPE = 6, 4, (2, 9, 10)


def layer(*sizes, **options):
    more = {"beta": 0.9, "grad_threshold": 0.3, "threshold": 0.6, **options}
    return snn.SparseConvLeaky(*sizes, **more)


def leaky(inputs):
    return snn.SparseLeaky(inputs, 5, beta=0.9, threshold=0.3, grad_threshold=0.1, input_scale=2.0)


PER_CHANNEL = {"beta": torch.linspace(0.7, 0.9, 8), "threshold": torch.linspace(0.3, 0.6, 8)}
KINDS = {
    "layers": lambda: [layer(2, 6, 3, max_spikes=60, bias=True, learn_beta=True), leaky(6 * 7 * 8)],
    "pools": lambda: [
        layer(2, 6, 3, padding=1, max_spikes=90),
        snn.SparsePool2d(3, 2, 1),
        layer(6, 8, 3, input_scale=2.0, learn_threshold=True, max_spikes=40, **PER_CHANNEL),
        snn.SparsePool2d(2, mode="average"),
        leaky(8),
    ],
    "without caps": lambda: [layer(2, 3, 3, 2, reset_mechanism="subtract", grad_threshold=None), leaky(3 * 4 * 4)],
    "groups": lambda: [
        layer(2, 4, (2, 3), (1, 2), (1, 0), groups=2, overflow="rotate", max_spikes=30),
        leaky(4 * 10 * 4),
    ],
    "sum of the input": lambda: [snn.SparsePool2d(2, mode="sum"), layer(2, 3, 2, dilation=2), leaky(3 * 2 * 3)],
    "network": lambda: [
        snn.SparseNetwork(
            [SHAPE, "6C3", "MP2", "8C2", 5],
            beta=0.9,
            threshold=0.4,
            grad_threshold=0.2,
            max_spikes=[40, 60, 40, 5],
            bias=True,
            input_scale=1.5,
        )
    ],
}


class Net(nn.Module):
    """A network that counts the spikes of its last layer."""

    def __init__(self, kind="pools", slots=50, weights=None):
        super().__init__()
        torch.manual_seed(0)
        self.slots, self.layers = slots, nn.Sequential(*KINDS[kind]())
        for name, weight in self.named_parameters():
            if weights is not None and name.endswith("weight"):
                weight.data = weights(weight.data)

    def forward(self, x, labels=None):
        spikes = snn.ops.dense_to_sparse(x.flatten(2), self.slots).with_maps(SHAPE) if self.slots else x
        return classified(self.layers(spikes).spike_count(), labels)


def data():
    torch.manual_seed(3)
    return (torch.rand(T, B, *SHAPE) < 0.25).float(), torch.arange(B) % 5


def check_same(make=Net, steps=3, host=None, **more):
    """Check that outputs and trained weights equal the host's; return the wrapped model."""
    close = {"rtol": 1e-5, "atol": 1e-5}
    on_host = None if host is None else lambda: make(**{**more, **host})
    return check_training(lambda: make(**more), [data()] * steps, host=on_host, close=close, lr=0.3).model


@pytest.mark.parametrize("target", ["mk2:1", "mk2:4", "mk2", "mk2:3:2"])
def test_training_on_machines(target, ipu_target):
    ipu_target(target)
    ran = set(operators(check_same()))
    assert {"SparseConv2d", "SparseConv2d (gradient)", "SparsePool2d", "SparsePool2d (gradient)"} <= ran


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pools"])
def test_training(kind, ipu_target):
    ipu_target("mk2:6")
    check_same(kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_inference_equals_the_host(kind, ipu_target):
    ipu_target("mk2:6")
    net = Net(kind).eval()
    x, _ = data()
    expected = net(x).detach()
    assert torch.equal(poptorch.inferenceModel(net, on_model())(x), expected)
    assert expected.any()


@pytest.mark.parametrize("kind", ["layers", "pools"])
def test_weights_in_half(kind, ipu_target):
    """Sums are in float32, so results equal those of rounded float32 weights.

    The host's dense convolution of float16 weights would round its sums.
    """
    ipu_target("mk2:6")
    rounded = {"weights": lambda weight: weight.half().float()}
    check_same(host=rounded, kind=kind, weights=torch.Tensor.half, steps=1)


class Dense(nn.Module):
    """A network with a dense input whose convolutions take a path; the sums of the last are the outputs."""

    def __init__(self, path="auto"):
        super().__init__()
        torch.manual_seed(0)
        self.first = layer(2, 4, 3, path=path, max_spikes=60, input_size=SHAPE[1:])
        self.last = snn.SparseConv2d(4, 5, 3, bias=True, path=path)

    def forward(self, x, labels):
        y = self.last(self.first(x)).sum((0, 3, 4))
        return 1 + y.detach().round(), poptorch.identity_loss(nn.functional.cross_entropy(y, labels), "mean")


@pytest.mark.parametrize(("path", "convolutions"), [("auto", 1), ("sparse", 2), ("dense", 0)])
def test_paths(path, convolutions, ipu_target):
    """A graph cannot choose a path by its data: with ``auto`` dense tensors stay dense, and spikes stay sparse."""
    ipu_target("mk2:4")
    model = check_same(lambda: Dense(path))
    assert operators(model).count("SparseConv2d") == convolutions


def test_the_first_layer_computes_no_gradient_of_its_input(ipu_target):
    ipu_target("mk2:4")
    model = check_same(steps=1)
    entries = [entry for entry in model.ipuModelReport() if entry["operator"] == "SparseConv2d (gradient)"]
    steps = [{step["name"].rsplit("/", 1)[-1] for step in entry["report"]["steps"]} for entry in entries]
    assert sorted("sum" in names for names in steps) == [False, True]


def test_what_does_not_fit_is_refused(ipu_target):
    """A single tile is too small for the maps of all steps."""
    ipu_target("mk2:1")
    net = snn.SparseConv2d(1, 64, 3, padding=1, input_size=(40, 40))

    class Maps(nn.Module):
        def forward(self, x):
            return net(snn.ops.dense_to_sparse(x, 20).with_maps((1, 40, 40))).sum()

    with pytest.raises(IpuModelError, match=r"SparseConv2d.* In the model: fewer time steps") as refused:
        poptorch.inferenceModel(Maps(), on_model())((torch.rand(4, 2, 1600) < 0.01).float())
    assert refused.value.kind == "graph_memory_allocation_error"


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("SparseConv2d", "event-driven layers on maps cannot run on the IPU model"),
        ("SparsePool2d", "sparse_pool2d cannot run on the IPU model"),
    ],
)
def test_without_an_operator_they_are_refused_by_name(monkeypatch, operator, call):
    keep_operators(monkeypatch, lambda name: name != operator)
    with pytest.raises(RuntimeError, match=call):
        poptorch.inferenceModel(Net(), on_model())(data()[0])
