"""The first run raises for code that a compiled graph cannot hold; anchored tensors and constants of optimizers."""

import pytest
import torch
from support.operators import needs_host_runtime
from support.poptorch_models import evaluated, model_of, options, refused, squares, training
from support.tables import cells_of, each_row

import snnipu as snn
from snnipu import poptorch

pytestmark = needs_host_runtime
X = torch.tensor([[1.0, -2.0, 3.0]])


def run(expression):
    """Run an expression of the model and its input ``x`` as a forward pass."""
    function = evaluated(f"lambda model, x: {expression}", branch=branch, masked_assignment=masked_assignment)
    model = model_of(function, weight=torch.nn.Parameter(torch.ones(1)), scale=torch.tensor(2.0))
    return poptorch.inferenceModel(model)(X)


def branch(model, x):
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("function", "name"),
    cells_of(
        """
    x * x.max().item()                    | item
    branch(model, x)                      | __bool__
    x * float(model.weight)               | __float__
    x[:, : int(x.abs().min())]            | __int__
    torch.tensor(x.tolist())              | tolist
    torch.from_numpy(x.numpy() + 1)       | numpy
    x if torch.equal(x, x + 1) else 2 * x | equal
    """
    ),
)
def test_values_are_refused(function, name):
    with refused(rf"forward: {name}\(\) asks for a tensor's value"):
        run(function)


@pytest.mark.parametrize(
    ("function", "name"),
    cells_of(
        r"""
    x[x > 0]                      | indexing with a boolean mask
    x[0, (x > 0)[0]]              | indexing with a boolean mask
    torch.masked_select(x, x > 0) | masked_select\(\)
    x.nonzero()                   | nonzero\(\)
    torch.where(x > 0)[0]         | where\(\)
    torch.unique(x)               | unique\(\)
    """
    ),
)
def test_shapes_that_depend_on_values_are_refused(function, name):
    with refused(rf"forward: .*{name} gives a tensor whose shape depends on values"):
        run(function)


def masked_assignment(model, x):
    y = x.clone()
    y[y < 0] = 0.0
    return y


@each_row("""
masked_assignment(model, x) | X.clamp(min=0)
torch.where(x > 0, x, torch.zeros(())) | X.clamp(min=0)
x * model.scale.item() | 2 * X
x * int(torch.tensor([1, 2]).sum()) | 3 * X
x * (2 if x.shape[0] == 1 and x.dim() == 2 else 3) | 2 * X
x[:, torch.tensor([2, 0])] | X[:, [2, 0]]
x[..., None, 0:2] | X[..., None, 0:2]
CPU(lambda t: t * t.max().item(), 'host')(x) | 3 * X
dynamic_slice(x, 1, (x[0, :1] * 0).long() + 1, 2, 1) | X[:, 1:]
""")
def test_code_that_a_graph_can_hold_runs(row):
    expression, expected = row.split(" | ")
    assert torch.equal(run(expression), eval(expected))


def test_neurons_may_read_values():
    net = snn.MultiStep(snn.Leaky(beta=0.5), snn.SparseLeaky(3, 2, beta=0.9))
    assert poptorch.inferenceModel(net)(torch.ones(4, 2, 3)) is not None


def test_slices_at_values_of_dummy_inputs_compile():
    def forward(self, x, start):
        cut = poptorch.dynamic_slice(x, 0, start, 2, 1)
        return poptorch.dynamic_update(x, cut + 1, 0, start, 2)

    model = poptorch.inferenceModel(model_of(forward))
    x = torch.arange(4.0)
    model.compile(torch.zeros(4), torch.tensor([20]))
    assert torch.equal(model(x, torch.tensor([1])), torch.tensor([0.0, 2.0, 3.0, 3.0]))
    with refused("start 20 and size 2 leave dimension 0 of 4"):
        model(x, torch.tensor([20]))


# The optimizer's constants of the compiled model.


STRATEGY = poptorch.MeanReductionStrategy


@each_row("""
poptorch.optim.Adam(weights, accum_type=torch.float16) | Running
poptorch.optim.SGD(weights, lr=0.1, accum_type=torch.float16) | Running
poptorch.optim.SGD(weights, lr=0.1, accum_type=torch.float16, use_combined_accum=True) | Post
poptorch.optim.Adam(weights) | Post
torch.optim.Adam(weights) | Post
""")
def test_accumulators_in_half_use_the_running_mean(row):
    optimizer, strategy = row.split(" | ")
    model = squares(1)
    wrapped = poptorch.trainingModel(model, optimizer=eval(optimizer, globals(), {"weights": model.parameters()}))
    training_options = wrapped.options.Training
    assert training_options.meanAccumulationAndReplicationReductionStrategy == STRATEGY[strategy]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("accum_type", torch.float16, "MeanReductionStrategy.Running .* already compiled"),
        ("first_order_momentum_accum_type", torch.float16, "first_order_momentum_accum_type is a constant"),
        ("max_grad_norm", 1.0, "max_grad_norm is a constant of the compiled model: inf cannot become 1.0"),
    ],
)
def test_constants_of_the_optimizer_cannot_change(name, value, message):
    wrapped, optimizer = training(squares(1), "Adam")
    wrapped(X)
    setattr(optimizer, name, value)
    with refused(message):
        wrapped.setOptimizer(optimizer)


# Anchored tensors.


def anchored(mode=None, period=1, names=("Gradient___fc.weight",), **more):
    opts = options(4)
    for number, name in enumerate(names):
        opts.anchorTensor(str(number), name, mode, period)
    model = squares(1)
    return model, training(model, "SGD", opts, lr=0.1)[0]


def test_gradients_and_new_values_can_be_anchored():
    names = ["Gradient___fc.weight", "UpdatedVar___fc.weight", "input", "loss"]
    model, wrapped = anchored(poptorch.OutputMode.All, names=names)
    before = model.fc.weight.detach().clone()
    losses = wrapped(X.expand(4, 3))
    assert losses.dim() == 0  # training returns the last loss only
    gradients, updated, inputs, all_losses = (wrapped.getAnchoredTensor(str(number)) for number in range(4))
    assert gradients.shape == updated.shape == (4, 3)
    torch.testing.assert_close(updated[0], before[0] - 0.1 * gradients[0])
    torch.testing.assert_close(updated[3], model.fc.weight[0].detach())
    assert torch.equal(inputs, X.expand(4, 3))
    assert torch.equal(all_losses[3], losses)


@pytest.mark.parametrize(("mode", "period", "rows"), [("EveryN", 2, 2), ("Final", 1, 1), (None, 1, 1)])
def test_anchors_have_output_modes(mode, period, rows):
    _, wrapped = anchored(None if mode is None else poptorch.OutputMode[mode], period)
    wrapped(X.expand(4, 3))
    assert wrapped.getAnchoredTensor("0").shape == (rows, 3)


def test_names_of_tensors():
    _, wrapped = anchored()
    with refused("the model is not compiled"):
        wrapped.getTensorNames()
    wrapped(X.expand(4, 3))
    assert {"input", "loss", "fc.bias", "Gradient___fc.bias", "UpdatedVar___fc.weight"} <= set(wrapped.getTensorNames())
    with refused("no tensor with name other found"):
        wrapped.getAnchoredTensor("other")


def test_anchors_that_a_host_lacks_are_refused():
    _, wrapped = anchored(names=["relu:0"])
    with refused(r"'relu:0', which a host does not have; it has \['input'.*forward instead"):
        wrapped(X.expand(4, 3))
