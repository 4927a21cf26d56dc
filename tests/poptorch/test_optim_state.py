"""Optimizer states by PopART's names: the host and IPUs can load each other's states."""

import copy

import pytest
import torch
from support.operators import needs_host_runtime
from support.poptorch_models import options, refused, squares, training
from support.tables import cells_of, each_row
from torch.testing import assert_close

from snnipu import poptorch

pytestmark = needs_host_runtime
X = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
optim = poptorch.optim


def net():
    torch.manual_seed(0)
    return squares(2)


def step(model, optimizer, times=1):
    wrapped = poptorch.trainingModel(model, optimizer=optimizer)
    for number in range(times):
        wrapped(X[number : number + 1])
    wrapped.destroy()


def stepped(name, times=1, **settings):
    """Return a network after training steps, and its optimizer; SGD has momentum and a loss scaling."""
    model = net()
    if name == "SGD":
        optimizer = optimizer_of(name, model)
    else:
        optimizer = getattr(optim, name)(model.parameters(), lr=0.1, **settings)
    step(model, optimizer, times)
    return model, optimizer


def as_from_an_ipu(state):
    """Return the state as PopTorch on an IPU writes it: PyTorch's part is empty."""
    return {**copy.deepcopy(state), "state": {}}


# The optimizer, its arguments, and the accumulators in its state.
KINDS = {
    kind: (name, eval(f"dict({settings})"), set(accumulators.split()))
    for kind, name, settings, accumulators in cells_of(
        """
    SGD                      | SGD     | momentum=0.9, weight_decay=0.01, dampening=0.0, loss_scaling=8.0 | Accl1
    combined | SGD | momentum=0.9, weight_decay=0.01, use_combined_accum=True, velocity_scaling=4.0 | Accl
    plain SGD                | SGD     |                                |
    Adam                     | Adam    | weight_decay=0.01              | Accl1 Accl2 Step
    AdamW                    | AdamW   |                                | Accl1 Accl2 Step
    AdamW without correction | AdamW   | bias_correction=False          | Accl1 Accl2
    LAMB                     | LAMB    |                                | Accl1 Accl2 Step
    RMSprop                  | RMSprop |                                | Accl1
    centered RMSprop         | RMSprop | centered=True, momentum=0.5    | Accl1 Accl2 Accl3
    RMSprop of TensorFlow    | RMSprop | use_tf_variant=True            | Accl1
    """
    )
}


def optimizer_of(kind, model):
    name, settings, _ = KINDS[kind]
    return getattr(optim, name)(model.parameters(), lr=0.1, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_from_the_names_alone(kind):
    straight, model = net(), net()
    step(straight, optimizer_of(kind, straight), 4)
    first = optimizer_of(kind, model)
    step(model, first, 2)
    state = as_from_an_ipu(first.state_dict())
    assert set(state["ipu_state"]) == {f"{name}___fc.{w}" for name in KINDS[kind][2] for w in ("weight", "bias")}
    again = optimizer_of(kind, model)
    again.load_state_dict(state)
    assert again.has_state() == bool(state["ipu_state"]) or kind == "plain SGD"
    wrapped = poptorch.trainingModel(model, optimizer=again)
    for number in (2, 3):
        wrapped(X[number : number + 1])
    assert_close(dict(model.named_parameters()), dict(straight.named_parameters()), rtol=1e-4, atol=1e-6)


def test_adams_entries_are_its_moments():
    model, optimizer = stepped("Adam", 2)
    saved = optimizer.state_dict()["ipu_state"]
    for name, weight in model.named_parameters():
        entry = optimizer.state[weight]
        assert torch.equal(saved[f"Accl1___{name}"], entry["exp_avg"])
        assert torch.equal(saved[f"Accl2___{name}"], entry["exp_avg_sq"])
        assert saved[f"Step___{name}"] == 2


def test_the_velocity_has_the_loss_scaling_in_it():
    model, optimizer = stepped("SGD", 2)
    saved = optimizer.state_dict()["ipu_state"]["Accl1___fc.weight"]
    assert_close(saved, 8 * optimizer.state[model.fc.weight]["momentum_buffer"])


def test_hyperparameters_that_may_change_are_in_the_state():
    wrapped, adam = training(net(), "Adam", lr=0.1, weight_decay=0.02, loss_scaling=4.0)
    assert adam.state_dict()["ipu_param"] is None
    wrapped.compile(X)
    hyperparameters = adam.state_dict()["ipu_param"]
    assert {name: round(float(value), 6) for name, value in hyperparameters.items()} == {
        "lossScaling_FLOAT": 4.0,
        **{f"learningRate___specific___fc.{w}": 0.1 for w in ("weight", "bias")},
        **{f"weightDecay___specific___fc.{w}": 0.02 for w in ("weight", "bias")},
    }
    assert not adam.state_dict()["ipu_state"]["Accl1___fc.bias"].any()


def test_hyperparameters_of_sgd_are_scaled():
    wrapped, sgd = training(net(), "SGD", options(1, 3, 2), lr=0.1, weight_decay=0.5, loss_scaling=4.0)
    wrapped.compile(X)
    hyperparameters = sgd.state_dict()["ipu_param"]
    assert float(hyperparameters["scaledLearningRate0___specific___fc.weight"]) == pytest.approx(0.1 / (4 * 2 * 3))
    assert float(hyperparameters["weightDecayScaleFactor0___specific___fc.weight"]) == pytest.approx(1 - 0.1 * 0.5)
    assert "lossScaling_FLOAT" not in hyperparameters  # the rate includes it, and the divisors of the mean


def test_a_constant_loss_scaling_is_not_in_the_state():
    wrapped, adam = training(net(), "Adam", lr=0.1)
    wrapped.compile(X)
    assert sorted(adam.state_dict()["ipu_param"]) == [f"learningRate___specific___fc.{w}" for w in ("bias", "weight")]


def test_accumulators_in_half_are_saved_in_half():
    _, adam = stepped("Adam", first_order_momentum_accum_type=torch.float16)
    saved = adam.state_dict()["ipu_state"]
    assert saved["Accl1___fc.weight"].dtype == torch.float16
    assert saved["Accl2___fc.weight"].dtype == torch.float32


@each_row(r"""
exp_avg___0 | torch.zeros(2, 3) | unknown entry 'exp_avg___0' of 'ipu_state', expected Accl1___<weight>
Accl1___fc.weight | 3.0 | expected a torch.Tensor
Accl1___fc.wait | torch.zeros(2, 3) | \['Accl1___fc.wait'\] of 'ipu_state' fit no weight
Accl3___fc.weight | torch.zeros(2, 3) | \['Accl3___fc.weight'\] of 'ipu_state' fit no weight
Accl1___fc.weight | torch.zeros(3) | Accl1___fc.weight must have shape \(2, 3\), got \(3,\)
""")
def test_what_does_not_fit_is_refused(row):
    entry, value, message = row.split(" | ")
    model, saved = stepped("Adam")
    state = as_from_an_ipu(saved.state_dict())
    state["ipu_state"][entry] = eval(value)
    loaded = optim.Adam(model.parameters(), lr=0.1)

    def load():
        loaded.load_state_dict(state)
        poptorch.trainingModel(model, optimizer=loaded)

    with refused(message):
        load()


def test_unknown_hyperparameters_are_refused():
    model = net()
    optimizer = optim.Adam(model.parameters())
    state = {**optimizer.state_dict(), "ipu_state": {}, "ipu_param": {"lerningRate___specific___fc.weight": 1}}
    with refused(r"unknown entry 'lerningRate___specific___fc.weight' of 'ipu_param'"):
        optimizer.load_state_dict(state)


def test_a_missing_entry_keeps_the_previous_value():
    wrapped, adam = training(net(), "Adam", lr=0.1)
    wrapped(X[:1])
    state = as_from_an_ipu(adam.state_dict())
    before = state["ipu_state"].pop("Accl2___fc.weight")
    state["ipu_state"]["Accl1___fc.weight"].fill_(3.0)
    adam.load_state_dict(state)
    assert "Accl2___fc.weight" not in adam.state_dict()["ipu_state"]
    wrapped.setOptimizer(adam)
    assert torch.equal(adam.state_dict()["ipu_state"]["Accl2___fc.weight"], before)
    assert (adam.state_dict()["ipu_state"]["Accl1___fc.weight"] == 3).all()


def test_checkpoints_in_files(tmp_path):
    model, adam = stepped("Adam")
    torch.save(adam.state_dict(), tmp_path / "adam.pt")
    loaded = optim.Adam(model.parameters(), lr=0.1)
    loaded.load_state_dict(torch.load(tmp_path / "adam.pt"))
    assert_close(loaded.state_dict()["ipu_state"], adam.state_dict()["ipu_state"])
