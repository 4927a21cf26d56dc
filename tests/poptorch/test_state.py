"""State between runs of ``forward``: buffers keep their values, per replica; plain attributes do not."""

import pytest
import torch
from support.operators import needs_host_runtime
from support.poptorch_models import model_of, options, refused, training, warnings_in
from support.tables import cells_of
from torch import nn

import snnipu as snn
from snnipu import poptorch
from snnipu.poptorch import inferenceModel

pytestmark = needs_host_runtime


@pytest.fixture
def warnings(caplog):
    with warnings_in(caplog):
        yield caplog


class Integrator(nn.Module):
    """``mem = mem / 2 + x``, where ``kind`` chooses how ``mem`` is stored."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.mem = torch.zeros(1, 2) if kind in ("replaced", "in place") else None
        self.mems = [torch.zeros(1, 2)]
        if kind == "buffer":
            del self.mem
            self.register_buffer("mem", torch.zeros(1, 2))

    def forward(self, x):
        if self.kind == "replaced":
            self.mem = self.mem / 2 + x
        elif self.kind == "in place":
            self.mem.div_(2).add_(x)
        elif self.kind == "made":
            self.mem = x if self.mem is None else self.mem / 2 + x
        elif self.kind == "new":
            self.fresh = x if not hasattr(self, "fresh") else self.fresh / 2 + x
            return self.fresh
        elif self.kind == "list":
            self.mems[0] = self.mems[0] / 2 + x
            return self.mems[0]
        else:
            self.mem.copy_(self.mem / 2 + x)
        return self.mem


def nested(kind):
    return model_of(lambda self, x: self.layer(x) + 0, layer=Integrator(kind))


X = torch.ones(3, 2)


@pytest.mark.parametrize("model", [Integrator, nested])
@pytest.mark.parametrize(
    ("kind", "name"),
    cells_of(
        """
    replaced | mem
    in place | mem
    made     | mem
    new      | fresh
    list     | mems
    """
    ),
)
def test_a_plain_attribute_is_a_constant(model, kind, name, warnings):
    module = model(kind)
    wrapped = inferenceModel(module, options(3))
    for _ in range(2):
        assert torch.equal(wrapped(X), X)
    path = name if model is Integrator else f"layer.{name}"
    assert [record.args[0] for record in warnings.records] == [path]
    assert f"register_buffer('{name}'" in warnings.text


def test_a_buffer_keeps_its_value(warnings):
    wrapped = inferenceModel(Integrator("buffer"), options(3))
    assert torch.equal(wrapped(X)[:, 0], torch.tensor([1.0, 1.5, 1.75]))
    assert torch.equal(wrapped(X)[0], torch.full((2,), 1.875))
    assert not warnings.records


def test_a_plain_state_does_not_reach_the_next_step_of_training():
    model = model_of(
        lambda self, x: poptorch.identity_loss(self.layer(self.weight * x).sum(), "sum"),
        layer=Integrator("replaced"),
        weight=nn.Parameter(torch.ones(2)),
    )
    wrapped, _ = training(model, "SGD", lr=0.0)
    assert [float(wrapped(X)) for _ in range(3)] == [6.0] * 3


def test_a_tensor_changed_by_the_user_is_used():
    wrapped = inferenceModel(nested("replaced"))
    wrapped(X)
    wrapped.model.layer.mem = torch.full((2,), 4.0)
    assert torch.equal(wrapped(X), X + 2)
    assert torch.equal(wrapped(X), X + 2)


def test_attributes_without_tensors_are_not_restored():
    def forward(self, x):
        self.seen.append(poptorch.isRunningOnIpu())
        return x

    model = model_of(forward, seen=[])
    wrapped = inferenceModel(model)
    for _ in range(3):
        wrapped(X)
    assert model.seen == [True] * 3


def test_hidden_states_of_neurons_start_from_their_compiled_values(warnings):
    net = nn.Sequential(snn.Leaky(beta=0.5, threshold=100.0, init_hidden=True, output=True))
    wrapped = inferenceModel(net)
    for _ in range(3):
        assert torch.equal(wrapped(X)[1], X)
    assert [record.args[0] for record in warnings.records] == ["0"]
    assert "init_hidden=True" in warnings.text


@pytest.mark.parametrize(
    ("change", "message"), [("replace", "Buffer y is reassigned"), ("remove", "Buffer y is removed")]
)
def test_buffers_are_neither_replaced_nor_removed(change, message):
    def forward(self, x):
        if change == "replace":
            self.y = self.y + 1
        else:
            del self.y
        return x

    model = model_of(forward)
    model.register_buffer("y", torch.zeros(1))
    with refused(message):
        inferenceModel(model)(X)


# Replicas.


def summing():
    def forward(self, x):
        self.total.copy_(self.total + x)
        return poptorch.identity_loss(self.total, "none")

    model = model_of(forward)
    model.register_buffer("total", torch.zeros(1))
    return model


def test_each_replica_has_its_own_buffers():
    opts = options(2, 3, broadcastBuffers=False)
    model = summing()
    wrapped = inferenceModel(model, opts)
    x = torch.tensor([1.0, 10.0, 100.0] * 2)
    for call in range(1, 4):
        assert wrapped(x).tolist() == [(2 * call - 1 + i) * step for i in (0, 1) for step in (1, 10, 100)]
    assert model.total.tolist() == [6.0]  # the buffer of the first replica
    wrapped.copyWeightsToDevice()
    assert wrapped(x)[:3].tolist() == [7.0, 16.0, 106.0]
    model.total.zero_()
    assert wrapped(x)[:3].tolist() == [1.0, 10.0, 100.0]


def test_a_replicas_statistics_follow_its_batches():
    opts = options(replicas=2, broadcastBuffers=False)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    norm, alone = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    wrapped = inferenceModel(norm, opts)
    for _ in range(2):
        wrapped(x)
        alone(x[:4])
    assert int(norm.num_batches_tracked) == 2
    torch.testing.assert_close(norm.running_mean, alone.running_mean)


@pytest.mark.parametrize(("model", "x"), [(summing, torch.rand(2)), (lambda: nn.BatchNorm1d(1), torch.rand(4, 1))])
def test_changed_buffers_cannot_be_shared(model, x):
    with refused(r"does not support broadcasting buffers.*broadcastBuffers\(False\)"):
        inferenceModel(model(), options(replicas=2))(x)


def test_constant_buffers_can_be_shared():
    norm = nn.BatchNorm1d(1).eval()
    x = torch.rand(4, 1)
    torch.testing.assert_close(inferenceModel(norm, options(replicas=2))(x), norm(x))
