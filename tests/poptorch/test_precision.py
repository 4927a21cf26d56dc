"""Number formats: half and float together, and 64-bit types at the border."""

import logging

import pytest
import torch
from support.versions import NO_HALF_LOSS

from snnipu import poptorch


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.fc = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


X = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(2))


def test_half_inputs_with_float_weights_give_half():
    opts = poptorch.Options()
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    model = Layers()
    out = poptorch.inferenceModel(model, opts)(X.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), model(X.half().float()), rtol=2e-2, atol=2e-2)


def test_float_inputs_with_half_weights_compute_in_float():
    model = Layers().half()
    out = poptorch.inferenceModel(model)(X)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, model.float()(X), rtol=0, atol=0)


def test_half_throughout_gives_half():
    model = Layers().half()
    out = poptorch.inferenceModel(model)(X.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), model.float()(X), rtol=2e-2, atol=2e-2)


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
    class Product(torch.nn.Module):
        def forward(self, a, b):
            return product(a, b)

    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(9.0).reshape(3, 3)
    inputs = (a.half(), b) if half == "left" else (a, b.half())
    out = poptorch.inferenceModel(Product())(*inputs)
    assert out.dtype == torch.float32
    assert torch.equal(out, a @ b)


def test_other_operations_that_refuse_to_mix_compute_in_float():
    class Scatter(torch.nn.Module):
        def forward(self, x, index):
            return torch.scatter(torch.zeros(4, 3), 0, index, x)

    x, index = torch.arange(3.0)[None], torch.tensor([[2, 0, 1]], dtype=torch.int32)
    out = poptorch.inferenceModel(Scatter())(x.half(), index)
    assert out.dtype == torch.float32
    assert torch.equal(out, torch.scatter(torch.zeros(4, 3), 0, index.long(), x))


def test_what_is_wrong_for_another_reason_stays_the_original_error():
    class Wrong(torch.nn.Module):
        def forward(self, a, b):
            return a @ b + a.add_(b.long()[0])

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        poptorch.inferenceModel(Wrong())(torch.ones(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize("labels", [torch.int64, torch.int32])
def test_losses_and_indices_take_both_integer_types(labels):
    class Classify(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5, 4)

        def forward(self, ids, y):
            out = self.table(ids)
            picked = torch.gather(out, 1, y[:, None])
            return out, torch.nn.functional.cross_entropy(out, y), picked, y, ids

    ids, y = torch.arange(4).to(labels), torch.tensor([0, 1, 2, 3]).to(labels)
    model = Classify()
    out, loss, picked, y_out, ids_out = poptorch.trainingModel(model)(ids, y)
    assert y_out.dtype == ids_out.dtype == torch.int32
    assert torch.equal(picked[:, 0], out[torch.arange(4), y.long()])
    assert loss.dtype == torch.float32


def test_64_bits_become_32_at_the_border():
    class Types(torch.nn.Module):
        def forward(self, x, n):
            assert x.dtype == torch.float32
            return x + 1, n + 1, x.double(), n.bool(), x.half(), n.to(torch.int8), x.bfloat16()

    outs = poptorch.inferenceModel(Types())(torch.ones(2, dtype=torch.float64), torch.arange(2))
    assert [out.dtype for out in outs] == [
        torch.float32,
        torch.int32,
        torch.float32,
        torch.bool,
        torch.float16,
        torch.int8,
        torch.float32,
    ]


def test_a_double_model_runs():
    model = torch.nn.Linear(3, 2).double()
    x = torch.randn(4, 3)
    out = poptorch.inferenceModel(model)(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, model(x.double()).float())


@pytest.mark.skipif(NO_HALF_LOSS is not None, reason=str(NO_HALF_LOSS))
def test_training_with_half_inputs_and_float_weights_learns():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = torch.nn.Linear(10, 10)

        def forward(self, x, y):
            out = self.fc(x)
            return out, torch.nn.functional.mse_loss(out, y)

    model = Net()
    trained = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    x, y = torch.randn(10, 10).half(), torch.randn(10, 10).half()
    first = trained(x, y)[1]
    for _ in range(300):
        last = trained(x, y)[1]
    assert model.fc.weight.dtype == torch.float32
    assert last < 0.1 * first


@pytest.mark.parametrize("make", [poptorch.optim.Adam, torch.optim.SGD, poptorch.optim.LAMB])
def test_half_weights_are_updated_in_float(make):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = torch.nn.Linear(4, 2)

        def forward(self, x):
            out = self.fc(x)
            return poptorch.identity_loss((out - 1) ** 2, "mean")

    model = Net().half()
    optimizer = make(model.parameters(), lr=0.05)
    trained = poptorch.trainingModel(model, optimizer=optimizer)
    x = torch.randn(8, 4).half()
    losses = [float(trained(x)) for _ in range(60)]
    assert model.fc.weight.dtype == torch.float16
    assert losses[-1] < 0.5 * losses[0]
    for state in optimizer.state.values():
        assert all(value.dtype == torch.float32 for value in state.values() if isinstance(value, torch.Tensor))


def test_loss_scaling_keeps_small_half_gradients():
    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1).half())

        def forward(self, x):
            return poptorch.identity_loss(self.w * x * x, "sum")

    def trained(scaling):
        model = Tiny()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=2.0**26, loss_scaling=scaling)
        poptorch.trainingModel(model, optimizer=optimizer)(torch.full((1,), 2.0**-13).half())
        return model.w.item()

    assert trained(1.0) == 1.0  # the gradient of 2^-26 is nothing in half
    assert trained(1024.0) == 0.0


def test_the_device_ipu_is_this_host():
    class Placed(torch.nn.Module):
        def forward(self, x):
            ones = torch.ones(2, device="ipu")
            return x.to("ipu:0") + ones + torch.zeros(2, device=torch.device("ipu"))

    assert torch.equal(poptorch.inferenceModel(Placed())(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(("scaling", "finite"), [(2.0**10, True), (2.0**22, False)])
def test_a_loss_scaling_that_half_cannot_hold_overflows_and_is_warned_of(caplog, scaling, finite):
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(2, 1)

        def forward(self, x):
            return poptorch.identity_loss(self.fc(x).float().square().sum(), "sum")

    model = Loss()
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=scaling, accum_type=torch.float16)
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        poptorch.trainingModel(model, options, optimizer)(torch.ones(2, 2))
    assert bool(model.fc.weight.isfinite().all()) == finite
    assert ("float16 holds at most 65504" in caplog.text) == (not finite)
