"""Our losses against snnTorch's: the same values, gradients and errors."""

import copy
import inspect
import pickle
from typing import NamedTuple

import pytest
import snntorch.functional as theirs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snnipu import functional as ours

TEMPORAL = {
    "mse": ("mse_temporal_loss", {}),
    "mse, times of classes": ("mse_temporal_loss", {"on_target": 1, "off_target": -2}),
    "mse, tolerance": ("mse_temporal_loss", {"on_target": 2, "off_target": 5, "tolerance": 2}),
    "mse, sum": ("mse_temporal_loss", {"reduction": "sum"}),
    "mse, none": ("mse_temporal_loss", {"reduction": "none"}),
    "ce": ("ce_temporal_loss", {}),
    "ce, reciprocal": ("ce_temporal_loss", {"inverse": "reciprocal"}),
    "ce, none": ("ce_temporal_loss", {"inverse": "reciprocal", "reduction": "none"}),
}


def spikes(shape, share, seed, dtype=torch.float32, values=(1.0,)):
    generator = torch.Generator().manual_seed(seed)
    fired = torch.rand(shape, generator=generator) < share
    chosen = torch.tensor(values)[torch.randint(len(values), shape, generator=generator)]
    return (fired * chosen).to(dtype).requires_grad_()


def results(loss, x, targets, upstream=1.0):
    """Return the value and the gradient."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    value = loss(x, copy.deepcopy(targets))
    (value * upstream).sum().backward()
    return value.detach(), x.grad


def assert_equal(name, keywords, x, targets):
    pairs = []
    for module in (ours, theirs):
        torch.manual_seed(0)
        pairs.append(results(getattr(module, name)(**copy.deepcopy(keywords)), x, targets, 0.7))
    for actual, expected in zip(*pairs):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)


class Case(NamedTuple):
    """Spikes and targets of random sizes. snnTorch has no targets for zero samples."""

    steps: int
    batch: int
    size: int
    share: float
    seed: int

    def spikes(self, *how):
        return spikes((self.steps, self.batch, self.size), self.share, self.seed, *how)

    def classes(self):
        return torch.randint(self.size, (self.batch,), generator=torch.Generator().manual_seed(self.seed))

    def times(self, first, *count):
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(first, self.steps, (*count, self.batch, self.size), generator=generator).float()


sizes = [st.integers(1, most) for most in (9, 4, 5)]
cases = st.builds(Case, *sizes, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 9))


@pytest.mark.parametrize("name", TEMPORAL)
@settings(max_examples=30, deadline=None)
@given(case=cases)
def test_spike_times_of_classes(name, case):
    assert_equal(*TEMPORAL[name], case.spikes(), case.classes())


@pytest.mark.parametrize("tolerance", [0, 1, 3])
@settings(max_examples=30, deadline=None)
@given(case=cases)
def test_given_spike_times(tolerance, case):
    """Negative targets count from the end."""
    keywords = {"target_is_time": True, "tolerance": tolerance}
    assert_equal("mse_temporal_loss", keywords, case.spikes(), case.times(-case.steps))


@pytest.mark.parametrize("tolerance", [0, 2])
@pytest.mark.parametrize("given_times", [False, True])
@settings(max_examples=30, deadline=None)
@given(case=cases, count=st.integers(1, 4))
def test_several_spikes(given_times, tolerance, case, count):
    classes = {"on_target": torch.arange(count), "off_target": torch.arange(count) + 2}
    keywords = {"multi_spike": True, "tolerance": tolerance, **({"target_is_time": True} if given_times else classes)}
    targets = case.times(0, count) if given_times else case.classes()
    assert_equal("mse_temporal_loss", keywords, case.spikes(), targets)


RATES = [
    ("ce_rate_loss", {}),
    ("ce_rate_loss", {"reduction": "sum"}),
    ("ce_rate_loss", {"reduction": "none"}),
    ("mse_membrane_loss", {}),
    ("mse_membrane_loss", {"on_target": 2.5, "off_target": -1, "reduction": "sum"}),
    ("mse_membrane_loss", {"reduction": "none"}),
]


@pytest.mark.parametrize(("name", "keywords"), RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=20, deadline=None)
@given(case=cases)
def test_losses_of_each_step(name, keywords, dtype, case):
    x = case.spikes(dtype, (1.0, 0.3, -2.7))
    if name == "mse_membrane_loss" and dtype == torch.float64 and keywords.get("reduction") != "none":
        # snnTorch's targets are float32, and so is its loss.
        x = x.detach().float().requires_grad_()
    assert_equal(name, keywords, x, case.classes())


MSE_WEIGHT = torch.tensor([[0.1], [2.0], [0.5], [1.5]])  # a factor per class, equal for all outputs
SEVERAL = {"multi_spike": True, "on_target": [0, 2], "off_target": [3, 4]}
OF_ONE_KIND = [
    ("mse_membrane_loss", {"time_var_targets": True}),  # snnTorch uses the target of sample t for all samples at step t
    ("mse_membrane_loss", {"time_var_targets": True, "reduction": "none"}),
    *(
        (name, {"weight": MSE_WEIGHT if name.startswith("mse") else MSE_WEIGHT[:, 0], "reduction": reduction})
        for name in ("ce_rate_loss", "ce_temporal_loss", "mse_temporal_loss", "mse_membrane_loss")
        for reduction in ("mean", "none")
    ),
    ("ce_rate_loss", {"population_code": True, "num_classes": 2, "weight": torch.tensor([0.5, 2.0])}),
]


@pytest.mark.parametrize(("name", "keywords"), OF_ONE_KIND)
def test_options(name, keywords):
    known = inspect.signature(getattr(theirs, name)).parameters
    if not keywords.keys() <= known.keys():
        pytest.skip(f"this snnTorch's {name} has no {keywords.keys() - known.keys()}")
    targets = torch.tensor([0, 3, 1, 1]) % keywords.get("num_classes", 4)
    values = (1.0,) if name.endswith("temporal_loss") else (0.3, 1.0, -1.2)
    assert_equal(name, keywords, spikes((4, 4, 4), 0.5, 1, values=values), targets)


@pytest.mark.parametrize("keywords", [{}, SEVERAL])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_dtypes_layouts_and_graded_spikes(dtype, keywords):
    x, targets = spikes((6, 4, 3), 0.3, 2, dtype), torch.tensor([0, 2, 1, 1])
    if dtype == torch.float32:
        x = spikes((4, 3, 6), 0.3, 2, values=(1.0, 0.5)).detach().permute(2, 1, 0).requires_grad_()
        assert not x.is_contiguous()
    assert_equal("mse_temporal_loss", keywords, x, targets[: x.shape[1]])


def test_infinite_and_missing_numbers():
    x = spikes((5, 2, 3), 0.4, 3).detach()
    x[3, 0, 0], x[1, 1, 1], x[4, 1, 1] = float("nan"), float("inf"), float("nan")
    for count in (None, 2):
        times = []
        for module in (ours, theirs):
            function = module.loss.SpikeTime(multi_spike=count is not None).first_spike_fn
            times.append(function(x) if count is None else function(x.nan_to_num(0, 0), count))
        assert torch.equal(times[0].nan_to_num(-7), times[1].nan_to_num(-7))


@pytest.mark.parametrize("multi", [False, True])
def test_times_beyond_the_steps(multi):
    x, targets = spikes((5, 2, 3), 1.0, 3, values=(9.0,)), torch.tensor([0, 2])
    keywords = {"multi_spike": True, "on_target": [0], "off_target": [1]} if multi else {}
    for module, message in (
        (theirs, "out of bounds"),
        (ours, "out of bounds for the 5 steps of spk_out: its spikes must"),
    ):
        with pytest.raises(IndexError, match=message):
            results(module.mse_temporal_loss(**keywords), x, targets)


def test_other_numbers_of_dimensions_are_snntorchs():
    x = spikes((5, 2, 3, 2), 0.4, 3)
    gradients = []
    for module in (ours, theirs):
        given_x = x.detach().requires_grad_()
        times = module.loss.SpikeTime().first_spike_fn(given_x)
        times.pow(2).sum().backward()
        gradients.append((times.detach(), given_x.grad))
    assert all(torch.equal(actual, expected) for actual, expected in zip(*gradients))
    empty = torch.zeros(0, 2, 3)
    for module in (ours, theirs):
        with pytest.raises(IndexError):
            module.mse_temporal_loss()(empty, torch.tensor([0, 1]))


def test_second_derivatives_are_snntorchs():
    x, targets = spikes((5, 2, 3), 0.4, 3), torch.tensor([0, 2])
    derivatives = []
    for module in (ours, theirs):
        for keywords in ({}, {"multi_spike": True, "on_target": [0, 2], "off_target": [1, 3]}):
            given_x = x.detach().requires_grad_()
            (first,) = torch.autograd.grad(
                module.mse_temporal_loss(**keywords)(given_x, targets), given_x, create_graph=True
            )
            (second,) = torch.autograd.grad(first.pow(2).sum(), given_x)
            derivatives.append(second)
    assert derivatives[0].any()
    assert torch.equal(derivatives[0], derivatives[2])
    assert torch.equal(derivatives[1], derivatives[3])


@pytest.mark.parametrize("name", ["mse_temporal_loss", "ce_temporal_loss", "ce_rate_loss", "mse_membrane_loss"])
def test_classes_are_snntorchs(name):
    loss = getattr(ours, name)()
    assert isinstance(loss, getattr(theirs, name))
    assert loss.__name__ == name  # snntorch.backprop recognises a loss by this name
    assert inspect.signature(getattr(ours, name)) == inspect.signature(getattr(theirs, name))
    x, targets = spikes((4, 2, 3), 0.4, 0), torch.tensor([0, 2])
    assert torch.equal(pickle.loads(pickle.dumps(loss))(x, targets), loss(x, targets))
    assert not hasattr(loss, "spk_time_fn") or isinstance(loss.spk_time_fn, theirs.loss.SpikeTime)


def test_snntorchs_errors():
    with pytest.raises(ValueError, match="inverse"):
        ours.ce_temporal_loss(inverse="other")
    x, targets = spikes((4, 2, 3), 0.4, 0), torch.tensor([0, 2])
    with pytest.raises(IndexError, match="same length"):
        ours.mse_temporal_loss(multi_spike=True, on_target=[0], off_target=[1, 2])(x, targets)
