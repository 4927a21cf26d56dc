"""Number formats: operations on half and float, and the conversion of 64-bit types."""

import pytest
import torch
from support.poptorch_models import model_of, options, training, warnings_in
from support.versions import NO_HALF_LOSS
from torch import nn

from snnipu import poptorch
from snnipu.poptorch import inferenceModel


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


X = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("inputs", "weights", "outputs", "tolerance"),
    [
        (torch.float16, torch.float32, torch.float16, 2e-2),
        (torch.float32, torch.float16, torch.float32, 0),
        (torch.float16, torch.float16, torch.float16, 2e-2),
        (torch.float64, torch.float64, torch.float32, 1e-6),
    ],
)
def test_types_of_outputs(inputs, weights, outputs, tolerance):
    """Outputs have the type of the inputs, for half and float weights."""
    opts = poptorch.Options()
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    model, x = Layers().to(weights), X.to(inputs)
    out = inferenceModel(model, opts)(x)
    assert out.dtype == outputs
    torch.testing.assert_close(out.float(), model.float()(x.float()), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b,
        torch.matmul,
        torch.mm,
        lambda a, b: torch.addmm(torch.zeros(3), a, b),
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        lambda a, b: torch.bmm(a[None], b[None])[0],
    ],
)
@pytest.mark.parametrize("half", ["left", "right"])
def test_products_of_half_and_float(product, half):
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(9.0).reshape(3, 3)
    inputs = (a.half(), b) if half == "left" else (a, b.half())
    out = inferenceModel(model_of(lambda self, a, b: product(a, b)))(*inputs)
    assert out.dtype == torch.float32
    assert torch.equal(out, a @ b)


def test_other_operations_of_mixed_types_compute_in_float():
    scatter = model_of(lambda self, x, index: torch.scatter(torch.zeros(4, 3), 0, index, x))
    x, index = torch.arange(3.0)[None], torch.tensor([[2, 0, 1]], dtype=torch.int32)
    out = inferenceModel(scatter)(x.half(), index)
    assert out.dtype == torch.float32
    assert torch.equal(out, torch.scatter(torch.zeros(4, 3), 0, index.long(), x))


def test_other_errors_are_unchanged():
    wrong = model_of(lambda self, a, b: a @ b + a.add_(b.long()[0]))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        inferenceModel(wrong)(torch.ones(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize("labels", [torch.int64, torch.int32])
def test_losses_and_indices_take_both_integer_types(labels):
    def forward(self, ids, y):
        out = self.table(ids)
        picked = torch.gather(out, 1, y[:, None])
        return out, nn.functional.cross_entropy(out, y), picked, y, ids

    ids, y = torch.arange(4).to(labels), torch.tensor([0, 1, 2, 3]).to(labels)
    model = model_of(forward, table=nn.Embedding(5, 4))
    out, loss, picked, y_out, ids_out = poptorch.trainingModel(model)(ids, y)
    assert y_out.dtype == ids_out.dtype == torch.int32
    assert torch.equal(picked[:, 0], out[torch.arange(4), y.long()])
    assert loss.dtype == torch.float32


def test_64_bit_types_are_converted_to_32_bits():
    def forward(self, x, n):
        assert x.dtype == torch.float32
        return x + 1, n + 1, x.double(), n.bool(), x.half(), n.to(torch.int8), x.bfloat16()

    outs = inferenceModel(model_of(forward))(torch.ones(2, dtype=torch.float64), torch.arange(2))
    assert [out.dtype for out in outs] == [
        torch.float32,
        torch.int32,
        torch.float32,
        torch.bool,
        torch.float16,
        torch.int8,
        torch.float32,
    ]


@pytest.mark.skipif(NO_HALF_LOSS is not None, reason=str(NO_HALF_LOSS))
def test_training_with_half_inputs_and_float_weights_learns():
    torch.manual_seed(0)
    model = model_of(lambda self, x, y: nn.functional.mse_loss(self.fc(x), y), fc=nn.Linear(10, 10))
    trained, _ = training(model, "SGD", lr=0.5)
    x, y = torch.randn(10, 10).half(), torch.randn(10, 10).half()
    first = trained(x, y)
    for _ in range(300):
        last = trained(x, y)
    assert model.fc.weight.dtype == torch.float32
    assert last < 0.1 * first


@pytest.mark.parametrize("make", [poptorch.optim.Adam, torch.optim.SGD, poptorch.optim.LAMB])
def test_half_weights_are_updated_in_float(make):
    torch.manual_seed(0)
    squares = model_of(lambda self, x: poptorch.identity_loss((self.fc(x) - 1) ** 2, "mean"), fc=nn.Linear(4, 2))
    model = squares.half()
    optimizer = make(model.parameters(), lr=0.05)
    trained = poptorch.trainingModel(model, optimizer=optimizer)
    x = torch.randn(8, 4).half()
    losses = [float(trained(x)) for _ in range(60)]
    assert model.fc.weight.dtype == torch.float16
    assert losses[-1] < 0.5 * losses[0]
    for state in optimizer.state.values():
        assert all(value.dtype == torch.float32 for value in state.values() if isinstance(value, torch.Tensor))


def test_loss_scaling_keeps_small_half_gradients():
    def trained(scaling):
        weight = nn.Parameter(torch.ones(1).half())
        model = model_of(lambda self, x: poptorch.identity_loss(self.w * x * x, "sum"), w=weight)
        training(model, "SGD", lr=2.0**26, loss_scaling=scaling)[0](torch.full((1,), 2.0**-13).half())
        return model.w.item()

    assert trained(1.0) == 1.0  # the gradient of 2^-26 rounds to zero in half
    assert trained(1024.0) == 0.0


def test_the_device_ipu_is_this_host():
    def forward(self, x):
        ones = torch.ones(2, device="ipu")
        return x.to("ipu:0") + ones + torch.zeros(2, device=torch.device("ipu"))

    assert torch.equal(inferenceModel(model_of(forward))(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(("scaling", "finite"), [(2.0**10, True), (2.0**22, False)])
def test_a_loss_scaling_that_overflows_half_warns(caplog, scaling, finite):
    model = model_of(
        lambda self, x: poptorch.identity_loss(self.fc(x).float().square().sum(), "sum"), fc=nn.Linear(2, 1)
    )
    how = {"lr": 0.1, "loss_scaling": scaling, "accum_type": torch.float16}
    with warnings_in(caplog):
        training(model, "SGD", options(accumulation=2), **how)[0](torch.ones(2, 2))
    assert bool(model.fc.weight.isfinite().all()) == finite
    assert ("float16 holds at most 65504" in caplog.text) == (not finite)
