"""What is particular to ``snnipu.ops.sparse_lif_sequence``: the contract of all is in test_sparse_contract.py."""

import itertools
import sys

import pytest
import snntorch
import torch
from oracle import (
    FUSED,
    RESETS,
    SURROGATES,
    assert_all_equal,
    assert_slots,
    at_slots,
    dense_layer,
    densified,
    needs_kernel,
    on_grid,
    poison_new_tensors,
    random_spikes,
    relative_error,
    snntorch_loop,
)

from snnipu import SparseSpikes, ops, surrogate
from snnipu.backends import memory, sparse_call

SIZES = [1, 5, 63, 64, 65, 200]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


def leaves(tensors):
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}


def both(spikes, tensors, spike_grad=(None, None), **options):
    """Slots and gradients: those of the dense oracle, then ours. All of ``tensors`` are leaves, as is the input."""
    theirs = leaves(tensors)
    dtype = tensors["weight"].dtype
    x = densified(spikes.values, spikes).to(dtype).requires_grad_()
    spk, slots, _ = dense_layer(x, spike_grad=spike_grad[1], **{"beta": 0.9, **options, **theirs})
    upstream = torch.randn_like(spk)
    ((spk * upstream).sum() + 0 * sum(leaf.sum() for leaf in theirs.values())).backward()
    ours = leaves(tensors)
    values = spikes.values.detach().clone().requires_grad_()
    start = SparseSpikes(spikes.ids, values, spikes.counts, spikes.num_neurons)
    out = ops.sparse_lif_sequence(start, spike_grad=spike_grad[0], **{"beta": 0.9, **options, **ours})
    # What is upstream of padding goes nowhere.
    (out.values * at_slots(upstream, out, padding=1e6)).sum().backward()
    expected = {name: leaf.grad for name, leaf in theirs.items()}
    # The oracle's graph does not reach the input where nothing depends on it.
    expected["values"] = at_slots(torch.zeros_like(x) if x.grad is None else x.grad, spikes)
    actual = {**{name: leaf.grad for name, leaf in ours.items()}, "values": values.grad}
    return (slots, expected), (out, actual)


def assert_same(results, tolerance=1e-5):
    (slots, expected), (out, actual) = results
    assert_slots(out, slots)
    for name, grad in expected.items():
        assert actual[name].shape == grad.shape, name
        if name != "values":
            assert actual[name].dtype == grad.dtype, name
        if grad.numel() and grad.any():
            # A number's gradient is a sum over all neurons that may cancel.
            terms = expected["weight"] if grad.numel() == 1 else None
            assert relative_error(actual[name], grad, terms) <= tolerance, name
        else:
            assert not actual[name].any(), name


def some(inputs, outputs, *names, dtype=torch.float32):
    """Parameters of a layer; sums of the weights are exact, in whatever order, and neurons spike now and then."""
    made = {"weight": on_grid(outputs, inputs, dtype=dtype) + 1 / 8}
    makers = {
        "bias": lambda: on_grid(outputs, most=0.25, dtype=dtype),
        "recurrent_weight": lambda: on_grid(outputs, outputs, most=0.25, dtype=dtype),
        "beta": lambda: torch.tensor(0.85, dtype=dtype),
        "threshold": lambda: torch.tensor(0.7, dtype=dtype),
        "betas": lambda: torch.rand(outputs, dtype=dtype) * 1.4 - 0.2,  # some outside [0, 1]: clamped, no gradient
        "thresholds": lambda: torch.rand(outputs, dtype=dtype) + 0.3,
    }
    made.update({name.rstrip("s") if name in ("betas", "thresholds") else name: makers[name]() for name in names})
    return made


# ---- no cap, no second threshold: the dense network


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("name", FUSED)
def test_equals_snntorch_on_linear(name, reset, delay, poisoned):
    spikes = random_spikes(9, 3, 40, 0.2, 0.0)
    ours, theirs = FUSED[name]
    linear = torch.nn.Linear(40, 37)
    with torch.no_grad():
        linear.weight.copy_(on_grid(37, 40) + 1 / 8)
        linear.bias.copy_(on_grid(37, most=0.25))
    parameters = {"beta": torch.tensor(0.85), "threshold": torch.tensor(0.7)}
    x = densified(spikes.values, spikes)
    x = torch.cat([torch.zeros(delay, 3, 40), x[: 9 - delay]])
    keywords = {"spike_grad": theirs, "reset_mechanism": reset, "learn_beta": True, "learn_threshold": True}
    spk, _, layer = snntorch_loop(linear(x), **parameters, **keywords)
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    expected = {"weight": linear.weight.grad, "bias": linear.bias.grad}
    expected.update(beta=layer.beta.grad, threshold=layer.threshold.grad)
    assert 0.05 < spk.mean() < 0.95

    own = leaves({"weight": linear.weight, "bias": linear.bias, **parameters})
    out = ops.sparse_lif_sequence(spikes, **own, spike_grad=ours, reset_mechanism=reset, delay=delay)
    assert torch.equal(out.to_dense(), spk)
    assert out.overflow == 0
    assert out.capacity == 37
    (out.to_dense() * upstream).sum().backward()
    for parameter, grad in expected.items():
        assert relative_error(own[parameter].grad, grad, terms=expected["weight"]) <= 1e-5, parameter
    assert expected["weight"].any()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("name", [*FUSED, "default"])
def test_recurrent_equals_the_dense_network(name, reset, delay, poisoned):
    spikes = random_spikes(8, 2, 30, 0.2, 0.1, graded=True)
    tensors = some(30, 33, "bias", "recurrent_weight", "betas", "thresholds")
    results = both(spikes, tensors, SURROGATES[name], reset_mechanism=reset, delay=delay)
    assert_same(results)
    assert 0.05 < results[1][0].activity < 0.8
    assert results[0][1]["recurrent_weight"].any()


# ---- with caps and second thresholds: the same selection as a mask


@pytest.mark.slow
@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("max_spikes", [None, 0, 1, 20, 64, 1000])
@pytest.mark.parametrize("neurons", SIZES)
def test_sizes_and_caps(neurons, max_spikes, overflow, poisoned):
    spikes = random_spikes(5, 2, 30, 0.2, 0.1)
    for recurrent in (False, True):
        names = ("bias", "recurrent_weight") if recurrent else ("bias",)
        options = {"grad_threshold": 0.3, "max_spikes": max_spikes, "overflow": overflow, "threshold": 0.7}
        assert_same(both(spikes, some(30, neurons, *names), **options))


@pytest.mark.slow
@pytest.mark.parametrize("grad_threshold", [None, 0.3, -1e30, float("-inf"), 0.7, 2.0])
@pytest.mark.parametrize("reset", RESETS)
def test_second_threshold(grad_threshold, reset, poisoned):
    spikes = random_spikes(7, 3, 40)
    for max_spikes in (None, 25):
        options = {"reset_mechanism": reset, "grad_threshold": grad_threshold, "max_spikes": max_spikes}
        for names in (("beta", "threshold"), ("betas", "thresholds", "bias")):
            results = both(spikes, some(40, 70, *names), **options)
            assert_same(results)
        everyone = grad_threshold is None or grad_threshold < -1e20
        if max_spikes is None:
            assert (results[1][0].counts[..., 1] == 70).all() == everyone
        if grad_threshold == 2.0:  # above every threshold: of no effect
            assert torch.equal(results[1][0].counts[..., 0], results[1][0].counts[..., 1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("reset", RESETS)
def test_surrogates(name, reset, poisoned):
    for dtype in (torch.float32, torch.float64):
        spikes = random_spikes(7, 3, 40, dtype=dtype)
        options = {"reset_mechanism": reset, "grad_threshold": 0.2, "max_spikes": 20, "spike_grad": SURROGATES[name]}
        results = both(spikes, some(40, 65, "bias", "beta", "thresholds", dtype=dtype), **options)
        assert results[1][0].overflow > 0
        assert results[0][1]["weight"].any()
        # A function evaluated in PyTorch gets the gradient in the float32 of snnTorch's spikes.
        double = 5e-7 if name == "custom_surrogate" else 1e-12
        assert_same(results, 1e-5 if dtype == torch.float32 else double)


@pytest.mark.parametrize("source", [surrogate, snntorch.surrogate], ids=["snnipu", "snntorch"])
def test_stochastic_surrogate(source):
    """At the last step, where nothing else comes in, every gradient is 1 or one drawn from the interval."""
    spikes = random_spikes(1, 3, 40)
    bias = on_grid(70, most=2.0).requires_grad_()
    out = ops.sparse_lif_sequence(
        spikes, torch.zeros(70, 40), bias, beta=0.9, threshold=0.5, spike_grad=source.SSO(0.1, 0.3)
    )
    out.values.sum().backward()
    above = bias.detach() > 0.5
    assert (bias.grad[above] == 3).all()
    assert (bias.grad[~above].abs() <= 3 * 0.6 * 0.3).all()
    assert bias.grad[~above].unique().numel() > 10


@pytest.mark.parametrize("delay", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("recurrent", [False, True])
def test_delays(delay, recurrent, poisoned):
    """Up to and beyond the number of steps; the bias is there from the start."""
    spikes = random_spikes(4, 3, 20, 0.3, 0.1)
    names = ("bias", "recurrent_weight") if recurrent else ("bias",)
    options = {"delay": delay, "grad_threshold": 0.01, "max_spikes": 9, "threshold": 0.03}
    results = both(spikes, some(20, 17, *names), **options)
    assert_same(results)
    expected = results[0][1]
    assert expected["bias"].any()
    assert expected["weight"].any() == (delay < 4)


def test_the_benchmarks_update_rule(poisoned):
    spikes = random_spikes(20, 3, 60, 0.1, 0.0)
    scale = 10 * (1 - 0.95)
    tensors = {**some(60, 70), "beta": torch.tensor(0.95)}
    results = both(spikes, tensors, input_scale=scale, grad_threshold=0.85, max_spikes=15, overflow="rotate")
    assert_same(results)
    assert results[1][0].overflow > 0


@pytest.mark.parametrize("reset", RESETS)
def test_negative_thresholds(reset, poisoned):
    """The membrane of 0 before the first step is above them: the first step begins with a reset."""
    spikes = random_spikes(3, 2, 20)
    for threshold in (torch.tensor(-0.25), torch.rand(70) - 0.6):
        tensors = {**some(20, 70, "bias", "recurrent_weight", "beta"), "threshold": threshold}
        assert_same(both(spikes, tensors, reset_mechanism=reset, grad_threshold=-0.5))


def test_numbers_as_parameters():
    spikes = random_spikes(6, 3, 40)
    weight = some(40, 70)["weight"]
    out = ops.sparse_lif_sequence(spikes, weight, beta=1, threshold=2)
    again = ops.sparse_lif_sequence(spikes, weight, beta=torch.tensor(1.0), threshold=torch.tensor([2.0]))
    assert torch.equal(out.to_dense(), again.to_dense())
    assert out.num_spikes > 0


# ---- what comes in


def test_no_slots_at_all(poisoned):
    none = torch.zeros(4, 3, 0)
    spikes = SparseSpikes(none.int(), none, torch.zeros(4, 3, 2, dtype=torch.int32), 20)
    results = both(spikes, some(20, 65, "bias"), threshold=0.2)
    assert_same(results)
    assert results[1][0].num_spikes > 0  # of the bias


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("bias", [-5.0, 5.0])
def test_nobody_and_everybody_spikes(reset, bias, poisoned):
    spikes = random_spikes(5, 3, 20, 0.0, 0.0)
    for neurons, max_spikes in itertools.product(SIZES, (None, 7)):
        tensors = {**some(20, neurons), "bias": torch.full((neurons,), bias)}
        results = both(spikes, tensors, threshold=0.5, max_spikes=max_spikes, reset_mechanism=reset)
        assert_same(results)
        most = neurons if max_spikes is None else min(max_spikes, neurons)
        assert results[1][0].num_spikes == (15 * most if bias > 0 else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "dtype"), [(192, torch.float64), (193, torch.float32), (400, torch.float32)])
@pytest.mark.parametrize(("graded", "shuffled"), [(False, False), (True, False), (False, True)])
def test_many_spikes_of_many_inputs(inputs, dtype, graded, shuffled, poisoned):
    """Enough of them for tiles of inputs, of 192 or 96; and rows for several chunks of time."""
    spikes = random_spikes(11, 50, inputs, 0.3, 0.1, graded=graded, shuffled=shuffled, dtype=dtype)
    for delay in (0, 2):
        assert_same(both(spikes, some(inputs, 70, "bias", dtype=dtype), threshold=4.0, grad_threshold=3.0, delay=delay))


def test_gradient_only_slots_of_the_input_add_nothing_but_get_their_gradient():
    ids = torch.tensor([[[1, 0, 9]]], dtype=torch.int32)
    values = torch.tensor([[[1.0, 50.0, 50.0]]], requires_grad=True)
    spikes = SparseSpikes(ids, values, torch.tensor([[[1, 2]]], dtype=torch.int32), 2)
    weight = torch.tensor([[4.0, 0.5], [2.0, 3.0]], requires_grad=True)
    ste = surrogate.straight_through_estimator()
    out = ops.sparse_lif_sequence(spikes, weight, beta=0.5, spike_grad=ste, input_scale=2.0)
    assert out.ids[0, 0].tolist() == [1, 0]
    assert out.counts.tolist() == [[[1, 2]]]
    out.values.backward(torch.tensor([[[10.0, 1.0]]]))
    assert values.grad.tolist() == [[[2 * (0.5 + 30.0), 2 * (4.0 + 20.0), 0.0]]]
    assert weight.grad.tolist() == [[0.0, 2.0], [0.0, 20.0]]


@pytest.mark.parametrize("reset", RESETS)
def test_nan_never_spikes(reset, poisoned):
    spikes = random_spikes(6, 3, 40, 0.3, 0.0).requires_grad_()
    tensors = some(40, 65, "bias", "recurrent_weight")
    tensors["weight"][[3, 64]] = float("nan")
    tensors["bias"][7] = float("inf")
    for recurrent, grad_threshold in itertools.product((True, False), (None, 0.1)):
        own = leaves(tensors)
        if not recurrent:
            del own["recurrent_weight"]
        out = ops.sparse_lif_sequence(
            spikes, **own, beta=0.9, threshold=0.7, reset_mechanism=reset, grad_threshold=grad_threshold
        )
        read = (densified(spikes.values, spikes) != 0).any(-1).cumsum(0) > 0
        dense = out.to_dense().detach()
        assert not dense[..., [3, 64]][read].any()
        assert dense[0, :, 7].all()
        assert dense[..., 8:60].any()
        taken = densified(torch.ones_like(out.values), out)[..., [3, 64]][read]
        assert (taken == (1 if grad_threshold is None else 0)).all()
        out.values.sum().backward()


def test_dropped_spikes_reset_all_the_same(poisoned):
    """Neurons whose spike did not fit are where those are whose spike did."""
    none = torch.zeros(6, 1, 0)
    spikes = SparseSpikes(none.int(), none, torch.zeros(6, 1, 2, dtype=torch.int32), 3)
    weight, bias = torch.zeros(10, 3), torch.full((10,), 0.75)
    for reset, every in (("zero", [0, 1, 0, 1, 0, 1]), ("subtract", [0, 1, 1, 1, 0, 1])):
        out = ops.sparse_lif_sequence(spikes, weight, bias, beta=1.0, max_spikes=4, reset_mechanism=reset)
        # Subtract, from 0: 0.75, 1.5, 1.25, 1, 1.75, ... at exactly 1 there is no spike.
        expected = every if reset == "zero" else [0, 1, 1, 0, 1, 1]
        assert out.counts[:, 0, 0].tolist() == [4 * spike for spike in expected]
        assert out.dropped[:, 0, 0].tolist() == [6 * spike for spike in expected]


def test_the_layer_sees_its_own_spikes_that_fitted():
    """Neuron 1 has no slot, so that neuron 2, which it would excite, stays silent."""
    none = torch.zeros(3, 1, 0)
    spikes = SparseSpikes(none.int(), none, torch.zeros(3, 1, 2, dtype=torch.int32), 1)
    recurrent = torch.zeros(3, 3)
    recurrent[2, 1] = 5.0
    options = {"beta": 0.0, "recurrent_weight": recurrent}
    bias = torch.tensor([2.0, 2.0, 0.0])
    capped = ops.sparse_lif_sequence(spikes, torch.zeros(3, 1), bias, max_spikes=1, **options)
    assert capped.to_dense()[:, 0].tolist() == [[1, 0, 0]] * 3
    free = ops.sparse_lif_sequence(spikes, torch.zeros(3, 1), bias, max_spikes=3, **options)
    assert free.to_dense()[:, 0].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
def test_rotation_starts_at_the_time_step(overflow):
    none = torch.zeros(5, 2, 0)
    spikes = SparseSpikes(none.int(), none, torch.zeros(5, 2, 2, dtype=torch.int32), 1)
    for recurrent in (None, torch.zeros(7, 7)):
        out = ops.sparse_lif_sequence(
            spikes,
            torch.zeros(7, 1),
            torch.full((7,), 2.0),
            beta=0.5,
            max_spikes=3,
            overflow=overflow,
            recurrent_weight=recurrent,
        )
        expected = [[0, 1, 2], [3, 4, 5], [0, 1, 6], [2, 3, 4], [0, 5, 6]] if overflow == "rotate" else [[0, 1, 2]] * 5
        assert out.ids[:, 0].tolist() == out.ids[:, 1].tolist() == expected
        assert out.overflow == 5 * 2 * 4


def test_a_longer_cap_than_neurons_is_the_number_of_neurons():
    spikes = random_spikes(5, 2, 30)
    weight = some(30, 65)["weight"]
    assert ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=1000).capacity == 65
    needed = ops.sparse_lif_sequence(spikes, weight, beta=0.9, grad_threshold=0.5)
    assert needed.capacity == int(needed.counts[..., 1].max())


def test_two_layers_by_autograd(poisoned):
    """The gradient between layers flows through the slots' values."""
    spikes = random_spikes(7, 3, 30)
    first, second = some(30, 66)["weight"], some(66, 20)["weight"]
    options = {"beta": 0.8, "threshold": 0.7, "grad_threshold": 0.2}
    theirs = [w.clone().requires_grad_() for w in (first, second)]
    hidden, _, _ = dense_layer(densified(spikes.values, spikes), theirs[0], **options, max_spikes=25)
    spk, slots, _ = dense_layer(hidden, theirs[1], **options, delay=1)
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    ours = [w.clone().requires_grad_() for w in (first, second)]
    out = ops.sparse_lif_sequence(spikes, ours[0], **options, max_spikes=25)
    out = ops.sparse_lif_sequence(out, ours[1], **options, delay=1)
    assert_slots(out, slots)
    (out.to_dense() * upstream).sum().backward()
    for own, expected in zip(ours, theirs):
        assert expected.grad.any()
        assert relative_error(own.grad, expected.grad) <= 1e-5


# ---- kernels


@needs_kernel("sparse_lif_sequence_fwd")
@pytest.mark.parametrize("cap", [None, 5])
def test_errors_pass_through_the_library(cap, monkeypatch):
    """The library asks for room when the slots are known: an error there is the caller's."""
    spikes, weight = random_spikes(4, 3, 20), torch.rand(30, 20)
    expected = ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)

    def failing(*_):
        raise MemoryError("no memory for slots")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "varying", failing)
        with pytest.raises(MemoryError, match="no memory for slots"):
            ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)
    again = ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)
    assert_all_equal([(again.ids, again.values, again.counts), (expected.ids, expected.values, expected.counts)])
    # Ids out of range are found before there is anything to make room for.
    spikes.ids[0, 0, 0], spikes.counts[0, 0] = 20, 1
    with pytest.raises(ValueError, match="ids must be from 0 to 19"):
        ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)


@needs_kernel("sparse_lif_sequence_fwd")
def test_a_signal_that_comes_as_the_library_asks_for_room_is_no_silence(monkeypatch):
    """It ends the function that makes room before its first line; ctypes prints that error, and goes on."""
    spikes, weight = random_spikes(4, 3, 20), torch.rand(30, 20)
    expected = ops.sparse_lif_sequence(spikes, weight, beta=0.9)
    kind = sparse_call._ROOM

    def ended(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sparse_call, "_ROOM", lambda _: kind(ended))
        patched.setattr(sys, "unraisablehook", lambda _: None)
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                ops.sparse_lif_sequence(spikes, weight, beta=0.9)
    again = ops.sparse_lif_sequence(spikes, weight, beta=0.9)
    assert_all_equal([(again.ids, again.values, again.counts), (expected.ids, expected.values, expected.counts)])
