"""poptorch.optim compared with torch.optim and with formulas; setOptimizer."""

import copy
import pickle

import pytest
import torch
from support.poptorch_models import model_of, options, refused, training, warnings_in
from support.tables import assert_refused, cells_of, each_row
from torch import nn

from snnipu import poptorch
from snnipu.poptorch import trainingModel

STEPS = 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.a = nn.Linear(5, 4)
        self.b = nn.Linear(4, 2)

    def forward(self, x, y):
        out = self.b(torch.tanh(self.a(x)))
        return out, nn.functional.mse_loss(out, y)


GENERATOR = torch.Generator().manual_seed(6)
X, Y = torch.randn(STEPS, 3, 5, generator=GENERATOR), torch.randn(STEPS, 3, 2, generator=GENERATOR)


def made(module, name, **arguments):
    """Return a function from parameters to an optimizer of a module."""
    return lambda parameters: getattr(module, name)(parameters, **arguments)


def by_torch(make, clip=None):
    model = Net()
    optimizer = make(model.parameters())
    for x, y in zip(X, Y):
        optimizer.zero_grad()
        model(x, y)[1].backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.state_dict()


def by_poptorch(make):
    model = Net()
    wrapped = trainingModel(model, optimizer=make(model.parameters()))
    for x, y in zip(X, Y):
        wrapped(x, y)
    return model.state_dict()


def check(got, expected, rtol=1e-6, atol=1e-7):
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=rtol, atol=atol)


OPTIMIZERS = [
    (name, eval(f"dict({arguments})"))
    for name, arguments in cells_of(
        """
    SGD     | lr=0.1
    SGD     | lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01
    SGD     | lr=0.1, momentum=0.9, nesterov=True
    Adam    |
    Adam    | lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1
    AdamW   | lr=0.1, weight_decay=0.1
    RMSprop | lr=0.01, alpha=0.9, momentum=0.5, weight_decay=0.01
    RMSprop | lr=0.01, centered=True
    """
    )
]


@pytest.mark.parametrize(("name", "arguments"), OPTIMIZERS)
def test_trajectories_are_those_of_torch(name, arguments):
    expected = by_torch(made(torch.optim, name, **arguments))
    for module, more in ((torch.optim, {}), (poptorch.optim, {}), (poptorch.optim, {"loss_scaling": 64.0})):
        check(by_poptorch(made(module, name, **arguments, **more)), expected)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_gradients_of_sparse_embeddings_are_dense(name):
    def trained(sparse):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(10, 3, sparse=sparse), nn.Linear(3, 1))
        model = model_of(lambda self, ids: poptorch.identity_loss(self.net(ids).square().mean(), "mean"), net=net)
        wrapped, _ = training(model, name, options(accumulation=2), lr=0.1)
        for _ in range(2):
            wrapped(torch.arange(8) % 5)
        return model.state_dict()

    check(trained(True), trained(False), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "arguments"), [entry for entry in OPTIMIZERS if entry[0] != "RMSprop"])
def test_gradients_are_clipped_to_a_common_norm(name, arguments):
    expected = by_torch(made(torch.optim, name, **arguments), clip=0.05)
    got = by_poptorch(made(poptorch.optim, name, max_grad_norm=0.05, loss_scaling=8.0, **arguments))
    check(got, expected, rtol=1e-4, atol=1e-5)


def check_formula(formula, gradients, start, optimizer, **arguments):
    """Check that an optimizer's steps equal a formula of weights and gradient, in float64."""
    weights = nn.Parameter(start.double().clone())
    stepped, expected = optimizer([weights], **arguments), weights.detach().clone()
    for gradient in gradients.double():
        weights.grad = gradient
        stepped.step()
        expected = formula(expected, gradient)
    torch.testing.assert_close(weights.detach(), expected, rtol=2e-5, atol=1e-6)


GRADIENTS, START = torch.randn(STEPS, 7, generator=GENERATOR), torch.randn(7, generator=GENERATOR)


@pytest.mark.parametrize("bias", [None, True, False])
@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("start", [1.0, 0.0])
def test_lamb_against_the_paper(bias, cap, start):
    m, v, t = torch.zeros(7).double(), torch.zeros(7).double(), 0

    def step(w, g):
        nonlocal m, v, t
        m, v, t = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g, t + 1
        of_bias = (1, 1) if bias is False else (1 - 0.8**t, 1 - 0.95**t)
        u = m / of_bias[0] / ((v / of_bias[1]).sqrt() + 1e-6) + 0.02 * w
        norms = w.norm().clamp(max=cap or 65500.0), u.norm()
        return w - 0.05 * (norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0) * u

    options = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.02, "bias_correction": bias}
    check_formula(step, GRADIENTS, start * START, poptorch.optim.LAMB, max_weight_norm=cap, **options)


def test_adamw_without_bias_correction():
    m, v = torch.zeros(7).double(), torch.zeros(7).double()

    def step(w, g):
        nonlocal m, v
        m, v = 0.5 * m + 0.5 * g, 0.8 * v + 0.2 * g**2
        return w * (1 - 0.1 * 0.3) - 0.1 * m / (v.sqrt() + 1e-8)

    options = {"lr": 0.1, "betas": (0.5, 0.8), "weight_decay": 0.3, "bias_correction": False}
    check_formula(step, GRADIENTS, START, poptorch.optim.AdamW, **options)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_of_tensorflow(centered):
    square, mean, momentum = torch.ones(7).double(), torch.zeros(7).double(), torch.zeros(7).double()

    def step(w, g):
        nonlocal square, mean, momentum
        square, mean = 0.7 * square + 0.3 * g**2, 0.7 * mean + 0.3 * g
        momentum = 0.6 * momentum + 0.1 * g / (square - centered * mean**2 + 1e-2).sqrt()
        return w - momentum

    options = {"lr": 0.1, "alpha": 0.7, "eps": 1e-2, "momentum": 0.6, "centered": centered, "use_tf_variant": True}
    check_formula(step, GRADIENTS, START, poptorch.optim.RMSprop, **options)


def test_the_default_optimizer_is_sgd_with_a_learning_rate_of_a_hundredth():
    check(by_poptorch(lambda parameters: None), by_torch(lambda parameters: torch.optim.SGD(parameters, lr=0.01)))


def test_groups_and_parameters_left_out():
    model = Net()
    before = copy.deepcopy(model.state_dict())
    optimizer = poptorch.optim.SGD([{"params": [model.a.weight], "lr": 0.0}, {"params": [model.b.bias]}], lr=0.5)
    wrapped = trainingModel(model, optimizer=optimizer)
    wrapped(X[0], Y[0])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"b.bias"}


def test_gradients_set_by_the_user_are_unchanged():
    model = Net()
    model(X[0], Y[0])[1].backward()
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    wrapped = trainingModel(model)
    wrapped(X[1], Y[1])
    assert all(torch.equal(parameter.grad, before[name]) for name, parameter in model.named_parameters())


@each_row("""
SGD(weights, lr=0.1, loss_scaling=0) | poptorch.Error: loss_scaling: expected a number above 0, got 0
Adam(weights, accum_type=torch.float64) | poptorch.Error: accum_type: expected torch.float32 or torch.float16
AdamW(weights, first_order_momentum_accum_type="half") | poptorch.Error: first_order_momentum_accum_type: expected
Adam(weights, max_grad_norm=-1.0) | poptorch.Error: max_grad_norm: expected a number above 0
AdamW(weights, bias_correction=1) | poptorch.Error: bias_correction: expected True or False
LAMB(weights, lr=-1.0) | poptorch.Error: lr: expected a number of at least 0
LAMB(weights, betas=(0.9, 1.0)) | poptorch.Error: betas: expected two numbers
LAMB(weights, max_weight_norm=0.0) | poptorch.Error: max_weight_norm: expected a number above 0
""")
def test_wrong_arguments_are_named(row):
    assert_refused(f"poptorch.optim.{row}", globals(), weights=Net().parameters())


def test_extra_arguments_are_stored():
    model = Net()
    sgd = poptorch.optim.SGD(
        model.parameters(),
        lr=0.1,
        use_combined_accum=True,
        velocity_scaling=4.0,
        accum_type=torch.float16,
        velocity_accum_type=torch.half,
    )
    assert sgd.param_groups[0]["velocity_scaling"] == 4.0
    assert (sgd.use_combined_accum, sgd.accum_type, sgd.velocity_accum_type) == (True, torch.float16, torch.float16)
    trainingModel(model, optimizer=sgd)(X[0], Y[0])
    adam = poptorch.optim.Adam(Net().parameters(), loss_scaling=2.0, first_order_momentum_accum_type=torch.float16)
    again = pickle.loads(pickle.dumps(adam))
    assert (again.loss_scaling, again.first_order_momentum_accum_type) == (2.0, torch.float16)
    assert again.variable_attrs.isConstant("lr")


# setOptimizer.


def weights_after(model, wrapped, number):
    before = model.b.bias.detach().clone()
    wrapped(X[number], Y[number])
    return before - model.b.bias.detach()


def test_a_learning_rate_has_no_effect_until_set_optimizer(caplog):
    model = Net()
    wrapped, optimizer = training(model, "SGD", lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.0)
    wrapped(X[0], Y[0])
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.0
    with warnings_in(caplog):
        assert weights_after(model, wrapped, 1).any()
        assert weights_after(model, wrapped, 2).any()
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 1
    assert "lr is now 0.0 but training continues with 0.1: call setOptimizer" in warnings[0]
    assert optimizer.param_groups[0]["lr"] == 0.0
    wrapped.setOptimizer(optimizer)
    assert not weights_after(model, wrapped, 3).any()


def test_a_new_optimizer_takes_over_the_state():
    def run(replace):
        model = Net()
        wrapped, _ = training(model, "Adam", lr=0.1)
        for number in range(4):
            if replace and number == 2:
                wrapped.setOptimizer(poptorch.optim.Adam(model.parameters(), lr=0.1))
            wrapped(X[number], Y[number])
        return model.state_dict()

    check(run(replace=True), run(replace=False), rtol=0, atol=0)


def test_optimizer_states_load_into_a_new_optimizer():
    model, other = Net(), Net()
    wrapped, optimizer = training(model, "Adam", lr=0.1)
    assert optimizer.state_dict()["ipu_state"] is None
    assert not optimizer.has_state()
    for number in range(3):
        wrapped(X[number], Y[number])
    state = optimizer.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state["ipu_state"].values())
    other.load_state_dict(model.state_dict())
    loaded = poptorch.optim.Adam(other.parameters(), lr=0.1)
    loaded.load_state_dict(copy.deepcopy(state))
    assert loaded.has_state()
    again = trainingModel(other, optimizer=loaded)
    wrapped(X[3], Y[3])
    again(X[3], Y[3])
    check(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    with refused("because it is empty"):
        loaded.load_state_dict({})
    with refused("it has no 'ipu_state' and 'ipu_param'"):
        loaded.load_state_dict(torch.optim.Adam(other.parameters()).state_dict())


@each_row(r"""
torch.optim.Adagrad(model.parameters()) | Adagrad is not one that PopTorch supports
"SGD" | expected a torch.optim.Optimizer, got 'SGD' of type str
torch.optim.Adam(model.parameters(), amsgrad=True) | amsgrad=True is not supported
torch.optim.SGD(Net().parameters(), lr=0.1) | a parameter of shape \(4, 5\) that is not
""")
def test_optimizers_that_cannot_be_used_are_refused(row):
    optimizer, message = row.split(" | ")
    model = Net()
    with refused(message):
        trainingModel(model, optimizer=eval(optimizer))


def test_constants_of_a_compiled_model_cannot_change():
    wrapped, optimizer = training(Net(), "Adam", lr=0.1, weight_decay=0.1)
    optimizer.param_groups[0]["eps"] = 1e-3
    wrapped.setOptimizer(optimizer)  # not compiled yet
    wrapped(X[0], Y[0])
    optimizer.param_groups[0].update(lr=0.2, weight_decay=0.2)
    wrapped.setOptimizer(optimizer)
    optimizer.param_groups[0]["betas"] = (0.5, 0.5)
    with refused("betas of group 0 is a constant of the compiled model"):
        wrapped.setOptimizer(optimizer)


def test_constants_marked_as_variable_can_change():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.variable_attrs.markAsVariable("betas")
    optimizer.variable_attrs.markAsConstant("lr")
    with refused("unknown attribute 'beta'"):
        optimizer.variable_attrs.markAsVariable("beta")
    wrapped = trainingModel(model, optimizer=optimizer)
    wrapped(X[0], Y[0])
    optimizer.param_groups[0]["betas"] = (0.5, 0.5)
    wrapped.setOptimizer(optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    with refused("lr of group 0 is a constant"):
        wrapped.setOptimizer(optimizer)


def test_the_kind_of_optimizer_cannot_change_once_compiled():
    model = Net()
    wrapped, _ = training(model, "SGD", lr=0.1)
    wrapped.setOptimizer(torch.optim.Adam(model.parameters()))
    wrapped(X[0], Y[0])
    with refused("compiled for Adam and cannot change to SGD"):
        wrapped.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    with refused("compiled for 1 groups, got 4"):
        wrapped.setOptimizer(torch.optim.Adam(groups))


def test_an_inference_model_has_no_optimizer():
    model = Net()
    with refused("an inferenceModel has no optimizer"):
        poptorch.inferenceModel(model).setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def test_subclasses_of_optimizers_warn(caplog):
    class Mine(torch.optim.SGD):
        pass

    model = Net()
    with warnings_in(caplog):
        trainingModel(model, optimizer=Mine(model.parameters(), lr=0.1))
    assert "The code of the optimizer subclass Mine runs on the host only" in caplog.text


@pytest.mark.parametrize("relax", [False, True])
def test_new_attributes_of_a_group_warn(caplog, relax):
    wrapped, optimizer = training(Net(), "SGD", options(relaxOptimizerAttributesChecks=relax), lr=0.1)
    wrapped(X[0], Y[0])
    optimizer.param_groups[0]["initial_lr"] = 0.1
    with warnings_in(caplog):
        wrapped.setOptimizer(optimizer)
    assert ("attributes that PopTorch ignores: ['initial_lr']" in caplog.text) is not relax
