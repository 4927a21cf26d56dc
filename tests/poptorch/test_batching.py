"""Micro-batches, device iterations, accumulation, replicas and output modes, with inputs that encode their position."""

import pytest
import torch
from support.poptorch_models import model_of, options, refused
from torch import nn

from snnipu import poptorch
from snnipu.poptorch import OutputMode, inferenceModel, trainingModel

D, A, R = 2, 3, 2


def echo():
    """Return a model whose outputs are its micro-batch, the sum of it and a loss that trains a dummy weight."""
    return model_of(
        lambda self, x: (x, x.sum(), poptorch.identity_loss((self.w * x).sum(), "none")),
        w=nn.Parameter(torch.zeros(1)),
    )


def with_outputs(mode=None, period=None, accumulation=A):
    opts = options(D, R, accumulation)
    return opts if mode is None else opts.outputMode(mode, period)


def micro(*positions, size=2):
    """Return the elements of some micro-batches of the input 0, 1, 2, ..."""
    return torch.cat([torch.arange(p * size, (p + 1) * size, dtype=torch.float32) for p in positions])


# Micro-batch p = (iteration * A + accumulation) * R + replica.
@pytest.mark.parametrize(
    ("mode", "period", "positions"),
    [
        (None, None, [10, 11]),
        (OutputMode.Final, None, [10, 11]),
        (OutputMode.All, None, list(range(12))),
        (OutputMode.EveryN, 1, list(range(12))),
        (OutputMode.EveryN, 2, [6, 7, 8, 9, 10, 11]),
    ],
)
def test_training_outputs_in_order(mode, period, positions):
    model = trainingModel(echo(), with_outputs(mode, period))
    x, total, _ = model(torch.arange(24.0))
    assert torch.equal(x, micro(*positions))
    assert torch.equal(total, torch.stack([micro(p).sum() for p in positions]))


def test_training_outputs_summed_per_replica():
    model = trainingModel(echo(), with_outputs(OutputMode.Sum))
    x, total, _ = model(torch.arange(24.0))
    of_replica = [[micro(p) for p in range(r, 12, R)] for r in range(R)]
    assert torch.equal(x, torch.cat([torch.stack(pieces).sum(0) for pieces in of_replica]))
    assert torch.equal(total, torch.stack([torch.stack(pieces).sum() for pieces in of_replica]))


@pytest.mark.parametrize(
    ("mode", "period", "positions"),
    [
        (None, None, [0, 1, 2, 3]),
        (OutputMode.Default, None, [0, 1, 2, 3]),
        (OutputMode.All, None, [0, 1, 2, 3]),
        (OutputMode.Final, None, [2, 3]),
        (OutputMode.EveryN, 2, [2, 3]),
    ],
)
def test_inference_outputs_in_order(mode, period, positions):
    model = inferenceModel(echo(), with_outputs(mode, period, accumulation=1))
    assert torch.equal(model(torch.arange(8.0))[0], micro(*positions))


def test_a_single_scalar_output_stays_a_scalar():
    assert inferenceModel(echo())(torch.arange(4.0))[1].shape == ()
    one_replica = trainingModel(echo(), options(2))
    assert one_replica(torch.arange(4.0))[1].shape == ()
    two_replicas = trainingModel(echo(), options(replicas=2))
    assert two_replicas(torch.arange(4.0))[1].shape == (2,)


def test_structure_of_outputs_is_kept():
    nested = model_of(lambda self, x, y: {"b": x, "a": [y, (x + y, "text", None)]})
    opts = options(2)
    out = inferenceModel(nested, opts)(torch.arange(4.0), torch.ones(4))
    assert list(out) == ["b", "a"]
    assert torch.equal(out["b"], torch.arange(4.0))
    assert torch.equal(out["a"][1][0], torch.arange(4.0) + 1)
    assert out["a"][1][1:] == ("text", None)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.fc = nn.Linear(4, 3)

    def forward(self, x, y):
        out = self.fc(x)
        return out, nn.functional.mse_loss(out, y)


def data(n):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 4, generator=generator), torch.randn(n, 3, generator=generator)


def by_hand(x, y, steps, lr):
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for xs, ys in zip(x.chunk(steps), y.chunk(steps)):
        optimizer.zero_grad()
        model(xs, ys)[1].backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(("iterations", "accumulation", "replicas"), [(1, 4, 1), (2, 3, 2), (3, 1, 4), (2, 1, 1)])
@pytest.mark.parametrize("reduction", [poptorch.ReductionType.Mean, poptorch.ReductionType.Sum])
def test_accumulated_training_equals_big_batches(iterations, accumulation, replicas, reduction):
    opts = options(iterations, replicas, accumulation)
    opts.Training.accumulationAndReplicationReductionType(reduction)
    x, y = data(5 * iterations * accumulation * replicas)
    model = Regression()
    trained = trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    trained(x, y)
    # The loss is a mean over the batch, so the mean of gradients equals the gradient of the big batch.
    factor = 1 if reduction == poptorch.ReductionType.Mean else accumulation * replicas
    expected = by_hand(x, y, iterations, 0.1 * factor)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("grouping", "first_of_replica"),
    [(poptorch.CommGroupType.Consecutive, [0, 0, 1, 1]), (poptorch.CommGroupType.Orthogonal, [0, 1, 0, 1])],
)
def test_replicas_of_a_group_read_the_same_input(grouping, first_of_replica):
    opts = options(replicas=4).inputReplicaGrouping(2, grouping)
    out, _, _ = inferenceModel(echo(), opts)(torch.arange(4.0))
    assert torch.equal(out, micro(*first_of_replica))


@pytest.mark.parametrize("size", [23, 1])
def test_a_batch_that_does_not_divide_names_the_input(size):
    model = trainingModel(echo(), options(D, R, A))
    with refused(r"input x of shape \(\d+,\).*deviceIterations \(2\).* = 12"):
        model(torch.arange(float(size)))
    with pytest.raises(AssertionError):  # the class that PopTorch raises
        model(torch.arange(float(size)))


def test_a_scalar_input_divides_into_one_micro_batch_only():
    def square():
        return model_of(lambda self, x: x * x)

    assert inferenceModel(square())(torch.tensor(3.0)) == 9
    with refused("input x of shape"):
        inferenceModel(square(), options(2))(torch.tensor(3.0))


def test_a_period_that_does_not_divide_the_iterations_is_refused():
    opts = options(4).outputMode(OutputMode.EveryN, 3)
    with refused("output_return_period that divides deviceIterations"):
        inferenceModel(echo(), opts)


def test_accumulation_in_inference_is_refused():
    with refused(r"Training\.gradientAccumulation is 2"):
        inferenceModel(echo(), options(accumulation=2))


def test_performance_counters_time_the_last_call():
    model = inferenceModel(echo(), options(3))
    assert model.getPerfCounters()["input"] == [[]]
    assert model.getLatency() == (0.0, 0.0, 0.0)
    model(torch.arange(6.0))
    counters = model.getPerfCounters()
    assert len(counters["input"][0]) == len(counters["output_complete"][0]) == 3
    low, high, mean = model.getLatency()
    assert 0 < low <= mean <= high
