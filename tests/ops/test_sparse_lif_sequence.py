"""The contract of ``snnipu.ops.sparse_lif_sequence``."""

import itertools

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
    reference_of,
    relative_error,
    snntorch_loop,
    soft,
    with_threads,
    with_workers,
)
from support.versions import needs_compile

from snnipu import SparseSpikes, ops, surrogate
from snnipu.backends import memory
from snnipu.ops._slots import AS_NEEDED

SIZES = [1, 5, 63, 64, 65, 200]
PARAMETERS = ("weight", "bias", "recurrent_weight", "beta", "threshold")

needs_native = needs_kernel("sparse_lif_sequence_fwd")


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


@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("max_spikes", [None, 0, 1, 20, 64, 1000])
@pytest.mark.parametrize("neurons", SIZES)
def test_sizes_and_caps(neurons, max_spikes, overflow, poisoned):
    spikes = random_spikes(5, 2, 30, 0.2, 0.1)
    for recurrent in (False, True):
        names = ("bias", "recurrent_weight") if recurrent else ("bias",)
        options = {"grad_threshold": 0.3, "max_spikes": max_spikes, "overflow": overflow, "threshold": 0.7}
        assert_same(both(spikes, some(30, neurons, *names), **options))


@pytest.mark.parametrize("inputs", SIZES)
def test_sizes_of_the_input(inputs, poisoned):
    spikes = random_spikes(5, 2, inputs, 0.3, 0.2, graded=True)
    assert_same(both(spikes, some(inputs, 65), threshold=0.4, grad_threshold=0.1, max_spikes=30))


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


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0, 3])
def test_input_scale(scale, poisoned):
    """Scales the weights of input and recurrence, not the bias."""
    spikes = random_spikes(6, 3, 20, graded=True)
    tensors = some(20, 65, "bias", "recurrent_weight", "beta")
    assert_same(both(spikes, tensors, input_scale=scale, grad_threshold=0.2, max_spikes=20))


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


@pytest.mark.parametrize("shape", [(), (1,), (70,), (1, 70), (1, 1)])
def test_shapes_of_beta_and_threshold(shape, poisoned):
    spikes = random_spikes(6, 3, 40)
    tensors = {**some(40, 70), "beta": torch.rand(shape), "threshold": torch.rand(shape) + 0.3}
    assert_same(both(spikes, tensors, grad_threshold=0.2, max_spikes=20))


def test_numbers_as_parameters():
    spikes = random_spikes(6, 3, 40)
    weight = some(40, 70)["weight"]
    out = ops.sparse_lif_sequence(spikes, weight, beta=1, threshold=2)
    again = ops.sparse_lif_sequence(spikes, weight, beta=torch.tensor(1.0), threshold=torch.tensor([2.0]))
    assert torch.equal(out.to_dense(), again.to_dense())
    assert out.num_spikes > 0


# ---- what comes in


@pytest.mark.parametrize("max_spikes", [None, 0, 3])
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0), (0, 0), (1, 1), (1, 3)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_empty_and_single(steps, batch, max_spikes, recurrent, poisoned):
    spikes = random_spikes(steps, batch, 20, 0.3)
    tensors = some(20, 65, "bias", "beta", "threshold", *(["recurrent_weight"] if recurrent else []))
    for overflow, delay in itertools.product(("lowest", "rotate"), (0, 1)):
        results = both(spikes, tensors, max_spikes=max_spikes, overflow=overflow, delay=delay)
        assert_same(results)
        assert results[1][0].shape == (steps, batch, 65)


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


def test_graded_input(poisoned):
    spikes = random_spikes(6, 3, 40, 0.3, 0.2, graded=True)
    assert_same(both(spikes, some(40, 65, "bias"), threshold=0.4, grad_threshold=0.1, max_spikes=30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inputs", [192, 193, 400])
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


def test_non_contiguous(poisoned):
    spikes = random_spikes(6, 4, 30, graded=True)
    across = SparseSpikes(*(part.transpose(0, 1) for part in (spikes.ids, spikes.values, spikes.counts)), 30)
    tensors = {
        "weight": on_grid(30, 65).t(),
        "bias": on_grid(130)[::2],
        "recurrent_weight": on_grid(130, 65)[::2],
        "beta": torch.rand(130)[::2],
        "threshold": torch.rand(130)[1::2],
    }
    with_strides = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    packed = {name: tensor.detach().contiguous().requires_grad_() for name, tensor in tensors.items()}
    results = []
    straight = SparseSpikes(across.ids.contiguous(), across.values.contiguous(), across.counts.contiguous(), 30)
    for start, own in ((across, with_strides), (straight, packed)):
        assert start.ids.is_contiguous() == (start is straight)
        out = ops.sparse_lif_sequence(start, **own, grad_threshold=0.1, max_spikes=30)
        out.values.sum().backward()  # an expanded upstream gradient
        results.append(
            (out.ids, out.values.detach(), out.counts, out.dropped, *(own[name].grad for name in PARAMETERS))
        )
    assert_all_equal(results)
    assert_same(both(across, tensors, grad_threshold=0.1, max_spikes=30))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_weights_are_computed_in_float32(dtype):
    spikes = random_spikes(6, 3, 40)
    low = {name: tensor.to(dtype) for name, tensor in some(40, 65, "bias", "recurrent_weight").items()}
    results = []
    for own in (leaves(low), leaves({name: tensor.float() for name, tensor in low.items()})):
        out = ops.sparse_lif_sequence(spikes, beta=0.9, threshold=0.7, max_spikes=30, **own)
        assert out.dtype == torch.float32
        out.values.cumsum(-1).sum().backward()
        assert {leaf.grad.dtype for leaf in own.values()} == {leaf.dtype for leaf in own.values()}
        results.append((out.ids, out.counts, out.dropped, *(leaf.grad.to(dtype) for leaf in own.values())))
    assert_all_equal(results)


def test_the_weight_decides_the_dtype():
    for spikes_dtype, weight_dtype in itertools.product((torch.float32, torch.float64), repeat=2):
        spikes = random_spikes(6, 3, 40, graded=True, dtype=spikes_dtype)
        results = both(spikes, some(40, 65, "bias", "beta", dtype=weight_dtype), threshold=0.5, grad_threshold=0.1)
        assert results[1][0].dtype == weight_dtype
        assert_same(results)


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


@pytest.mark.parametrize("need", [*PARAMETERS, "values", None])
def test_each_gradient_alone(need, poisoned):
    spikes = random_spikes(5, 3, 20, graded=True)
    tensors = some(20, 65, "bias", "recurrent_weight", "betas", "thresholds")
    tensors["values"] = spikes.values.clone()

    def gradients(names):
        own = {name: tensor.clone().requires_grad_(name in names) for name, tensor in tensors.items()}
        start = SparseSpikes(spikes.ids, own["values"], spikes.counts, 20)
        parameters = {name: own[name] for name in PARAMETERS}
        out = ops.sparse_lif_sequence(start, **parameters, grad_threshold=0.2, max_spikes=30)
        assert out.requires_grad == bool(names)
        if names:
            out.values.backward(torch.linspace(-1, 1, out.values.numel()).reshape(out.values.shape))
        return {name: tensor.grad for name, tensor in own.items()}

    everything = gradients([*PARAMETERS, "values"])
    for name, own in gradients([need] if need else []).items():
        assert (own is not None) == (name == need)
        assert own is None or torch.equal(own, everything[name])


def test_weights_changed_in_place_are_seen():
    """By every way there is: nothing that was derived from the old weights may be used."""
    spikes = random_spikes(5, 3, 20).requires_grad_()
    tensors = some(20, 65, "recurrent_weight")
    weight, recurrent = (torch.nn.Parameter(tensors[name]) for name in ("weight", "recurrent_weight"))

    def set_by_data():
        weight.data[2, 3] += 2.0
        recurrent.data[5, 2] += 2.0

    def swap_rows_by_data():
        weight.data[[1, 2]] = weight.data[[2, 1]]
        recurrent.data[[1, 64]] = recurrent.data[[64, 1]]

    def set_without_gradient():
        with torch.no_grad():
            weight.add_(0.125)
            recurrent.sub_(0.125)

    def set_through_numpy():
        weight.detach().numpy()[64] = 3.0
        recurrent.detach().numpy()[:, 64] = 3.0

    def run():
        return ops.sparse_lif_sequence(
            spikes, weight, beta=0.9, threshold=0.7, grad_threshold=0.2, recurrent_weight=recurrent
        )

    for change in (set_by_data, swap_rows_by_data, set_without_gradient, set_through_numpy):
        for _ in range(3):  # whatever is kept of the weights is kept by now
            run().values.sum().backward()
        change()
        own = {"weight": weight.detach().clone(), "recurrent_weight": recurrent.detach().clone()}
        results = both(spikes, own, threshold=0.7, grad_threshold=0.2)
        assert_same(results)
        out = run()
        assert_slots(out, results[0][0])
        spikes.values.grad = None
        out.values.sum().backward()
        fresh = SparseSpikes(spikes.ids, spikes.values.detach().clone().requires_grad_(), spikes.counts, 20)
        ops.sparse_lif_sequence(
            fresh,
            own["weight"],
            beta=0.9,
            threshold=0.7,
            grad_threshold=0.2,
            recurrent_weight=own["recurrent_weight"],
        ).values.sum().backward()
        assert torch.equal(spikes.values.grad, fresh.values.grad), change.__name__


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


def test_second_derivative_is_refused():
    spikes = random_spikes(3, 2, 9)
    weight = torch.randn(4, 9, requires_grad=True)
    values = ops.sparse_lif_sequence(spikes, weight, beta=0.9).values
    (gradient,) = torch.autograd.grad((values**2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through snnipu's sparse_lif_sequence"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spikes: spikes.ids[1, 0].fill_(9), "ids must be from 0 to 8, got 9 at step 1, sample 0, slot 0"),
        (lambda spikes: spikes.ids[1, 0].fill_(-1), "ids must be from 0 to 8, got -1"),
        (lambda spikes: spikes.counts[2, 1].fill_(99), "counts must satisfy .* at step 2, sample 1"),
        (lambda spikes: spikes.counts[2, 1, 0].fill_(-1), "counts must satisfy"),
        (lambda spikes: spikes.counts[2, 1, 1].fill_(0), "counts must satisfy"),
    ],
)
def test_tensors_changed_after_construction_are_noticed(change, message):
    spikes = random_spikes(3, 2, 9, 0.9, 0.0)
    change(spikes)
    with pytest.raises(ValueError, match=message):
        ops.sparse_lif_sequence(spikes, torch.randn(4, 9), beta=0.9)


# ---- kernels


def forward_arguments(spikes, tensors, grad_threshold, scale, capacity, rotate, reset, delay, store):
    parts = [tensors.get(name) for name in ("weight", "bias", "recurrent_weight", "beta", "threshold")]
    rest = (grad_threshold, scale, capacity, rotate, reset, delay, store)
    return (spikes.ids, spikes.values, spikes.counts, *parts, *rest)


def backward_arguments(grad, forward, out, kernel, need):
    ids, values, counts, weight, _, recurrent, beta, threshold, _, scale, _, _, reset, delay, _ = forward
    ids_out, _, counts_out, _, slot_mem, fired, mem = out
    start = (grad, ids, values, counts, weight, recurrent, beta, threshold, scale, reset, delay)
    return (*start, ids_out, counts_out, slot_mem, fired, mem, *kernel, *need)


def compare(spikes, tensors, kernel, tolerance, need=(True,) * 6, **options):
    """Forward and backward of the kernels against the reference's."""
    defaults = {"grad_threshold": 0.2, "scale": 1.0, "capacity": AS_NEEDED, "rotate": False, "reset": 1, "delay": 0}
    neurons = tensors["weight"].shape[0]
    options = {**defaults, "store": True, **options}
    options["capacity"] = min(options["capacity"], neurons)
    need = tuple(wanted and (i != 3 or "recurrent_weight" in tensors) for i, wanted in enumerate(need))
    forward = forward_arguments(spikes, tensors, **options)
    out = torch.ops.snnipu.sparse_lif_sequence_fwd(*forward)
    expected = reference_of("sparse_lif_sequence_fwd")(*forward)
    names = ("ids", "values", "counts", "dropped", "slot_mem", "fired", "mem")
    for name, own, other in zip(names, out, expected):
        assert own.dtype == other.dtype, name
        assert own.shape == other.shape, name
        if name in ("slot_mem", "mem"):
            assert not own.numel() or relative_error(own, other, terms=tensors["weight"]) <= tolerance, name
        else:
            assert torch.equal(own, other), name
    grad = torch.randn_like(out[1])
    backward = backward_arguments(grad, forward, expected, kernel, need)
    results = torch.ops.snnipu.sparse_lif_sequence_bwd(*backward)
    others = reference_of("sparse_lif_sequence_bwd")(*backward)
    for name, own, other in zip(("values", *PARAMETERS), results, others):
        assert own.dtype == other.dtype, name
        assert own.shape == other.shape, name
        if own.numel() and grad.numel():
            assert relative_error(own, other, terms=grad) <= 5 * tolerance, name
        else:
            assert not own.any(), name


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("neurons", SIZES)
def test_kernels_equal_the_reference(neurons, recurrent, dtype, poisoned):
    names = ("bias", "recurrent_weight", "betas", "thresholds") if recurrent else ("bias", "betas", "thresholds")
    kernels = itertools.cycle(ours.kernel for ours, _ in FUSED.values())
    for reset, capacity, rotate in itertools.product(range(3), (AS_NEEDED, 0, 1, 20, 64), (False, True)):
        spikes = random_spikes(6, 3, 40, 0.2, 0.1, graded=True, dtype=dtype)
        tensors = some(40, neurons, *names, dtype=dtype)
        tolerance = 2e-6 if dtype == torch.float32 else 1e-14
        options = {"reset": reset, "capacity": capacity, "rotate": rotate}
        compare(spikes, tensors, next(kernels), tolerance, **options)


@needs_native
@pytest.mark.parametrize("delay", [0, 1, 3, 6, 9])
@pytest.mark.parametrize("grad_threshold", [None, 0.2, float("-inf"), 2.0])
def test_kernels_equal_the_reference_with_every_option(grad_threshold, delay, poisoned):
    for reset, recurrent, bias in itertools.product(range(3), (False, True), (False, True)):
        spikes = random_spikes(6, 3, 40, 0.2, 0.1)
        names = [*(["recurrent_weight"] if recurrent else []), *(["bias"] if bias else []), "beta", "threshold"]
        options = {"grad_threshold": grad_threshold, "delay": delay, "reset": reset, "scale": 0.5, "capacity": 30}
        compare(spikes, some(40, 70, *names), surrogate.atan().kernel, 2e-6, **options)


@needs_native
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("rows", [(0, 2), (3, 0), (0, 0), (1, 1), (1, 5), (50, 1), (2, 40)])
def test_kernels_equal_the_reference_for_every_number_of_rows(rows, store, poisoned):
    need = (True, True, True, True, store, True)
    for recurrent in (False, True):
        names = ("bias", "betas", "thresholds", *(["recurrent_weight"] if recurrent else []))
        for rate, carried in ((0.0, 0.0), (0.2, 0.1), (1.0, 0.0)):
            spikes = random_spikes(*rows, 30, rate, carried)
            compare(spikes, some(30, 70, *names), surrogate.atan().kernel, 5e-6, need=need, store=store)


@pytest.mark.parametrize("run", [torch.ops.snnipu.sparse_lif_sequence_bwd, reference_of("sparse_lif_sequence_bwd")])
def test_membranes_that_were_not_stored_are_refused(run):
    spikes, tensors = random_spikes(6, 3, 40), some(40, 70, "beta", "threshold")
    forward = forward_arguments(spikes, tensors, 0.2, 1.0, AS_NEEDED, False, 1, 0, store=False)
    out = torch.ops.snnipu.sparse_lif_sequence_fwd(*forward)
    kernel, need = surrogate.atan().kernel, (False, False, False, False, True, False)
    for mem in (out[-1], torch.zeros(6, 3, 69)):
        backward = backward_arguments(out[1], forward, (*out[:-1], mem), kernel, need)
        with pytest.raises(ValueError, match=r"mem must be the 6 x 3 x 70 membranes .* store_mem"):
            run(*backward)


@needs_native
@pytest.mark.parametrize("left_out", range(6))
def test_kernels_equal_the_reference_where_a_gradient_is_not_needed(left_out, poisoned):
    spikes = random_spikes(6, 3, 40, graded=True)
    tensors = some(40, 70, "bias", "recurrent_weight", "betas", "threshold")
    for need in (tuple(i == left_out for i in range(6)), tuple(i != left_out for i in range(6)), (False,) * 6):
        compare(spikes, tensors, surrogate.sigmoid(3.0).kernel, 2e-6, need=need)


@needs_native
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("neurons", [10, 149, 300])
def test_workers_and_threads_do_not_change_a_bit(neurons, recurrent):
    spikes = random_spikes(30, 12, 101, 0.1, 0.1, graded=True)
    names = ("bias", "betas", "thresholds", *(["recurrent_weight"] if recurrent else []))
    tensors = {
        name: torch.randn_like(t) * 0.3 if "weight" in name else t for name, t in some(101, neurons, *names).items()
    }

    def run():
        forward = forward_arguments(spikes, tensors, 0.2, 0.7, min(40, neurons), True, 0, 1, True)
        out = torch.ops.snnipu.sparse_lif_sequence_fwd(*forward)
        grad = torch.linspace(-1, 1, out[1].numel()).reshape(out[1].shape)
        need = (True, True, True, recurrent, True, True)
        backward = backward_arguments(grad, forward, out, surrogate.atan().kernel, need)
        return (*out, *torch.ops.snnipu.sparse_lif_sequence_bwd(*backward))

    assert_all_equal(with_workers(run) + with_threads(run))


@pytest.mark.parametrize("recurrent", [False, True])
def test_opcheck(recurrent):
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    forward = torch.ops.snnipu.sparse_lif_sequence_fwd.default
    backward = torch.ops.snnipu.sparse_lif_sequence_bwd.default
    cases = [
        (torch.float32, (3, 2), 4),
        (torch.float64, (3, 2), 0),
        (torch.float32, (0, 2), 9),
        (torch.float32, (3, 0), 9),
    ]
    for (dtype, rows, capacity), store in itertools.product(cases, (True, False)):
        spikes = random_spikes(*rows, 9, graded=True, dtype=dtype)
        names = ("betas", "threshold", "recurrent_weight", "bias") if recurrent else ("beta", "thresholds")
        tensors = some(9, 9, *names, dtype=dtype)
        arguments = forward_arguments(spikes, tensors, 0.2, 0.5, capacity, True, 0, 1, store)
        torch.library.opcheck(forward, arguments, test_utils=tests)
        out = forward(*arguments)
        for wanted in (True, False):
            need = (wanted, wanted, True, wanted and recurrent, wanted and store, wanted)
            grad = torch.randn_like(out[1])
            rest = backward_arguments(grad, arguments, out, surrogate.atan().kernel, need)
            torch.library.opcheck(backward, rest, test_utils=tests)


@needs_compile
def test_compiles_into_one_graph():
    spikes = random_spikes(4, 3, 20, graded=True, slack=0)

    def loss(values, weight, bias, beta):
        start = SparseSpikes._trusted(spikes.ids, values, spikes.counts, 20)
        out = ops.sparse_lif_sequence(
            start, weight, bias, beta=beta, max_spikes=9, grad_threshold=0.1, delay=1, overflow="rotate"
        )
        return (out.values * torch.arange(9.0)).sum() + out.counts.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        torch.manual_seed(1)
        own = leaves({**some(20, 33, "bias", "beta"), "values": at_slots(densified(spikes.values, spikes), spikes)})
        out = function(own["values"], own["weight"], own["bias"], own["beta"])
        out.backward()
        results.append((out.detach(), *(leaf.grad for leaf in own.values())))
    assert_all_equal(results)


SPIKES = SparseSpikes.from_dense(torch.eye(4)[None])


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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spikes": torch.zeros(1, 4, 4)}, TypeError, "spikes must be a snnipu.SparseSpikes, got Tensor"),
        ({"weight": [[1.0]]}, TypeError, "weight must be a torch.Tensor, got list"),
        ({"weight": torch.zeros(3, 4, dtype=torch.int64)}, TypeError, "weight must be float32, .* got torch.int64"),
        ({"weight": torch.zeros(3, 5)}, ValueError, r"weight must have shape \[out, 4\].* got \(3, 5\)"),
        ({"weight": torch.zeros(0, 4)}, ValueError, r"weight must have shape \[out, 4\].* got \(0, 4\)"),
        ({"weight": torch.zeros(3, 4, device="meta")}, ValueError, "weight must be on the device of the spikes, cpu"),
        ({"bias": torch.zeros(4)}, ValueError, r"bias must have shape \(3,\).* got \(4,\)"),
        ({"bias": 1.0}, TypeError, "bias must be a floating torch.Tensor or None"),
        ({"beta": "0.9"}, TypeError, "beta must be a number or a torch.Tensor"),
        ({"beta": torch.rand(4)}, ValueError, r"beta must broadcast .* \(3,\), got .* \(4,\)"),
        ({"beta": torch.rand(3, device="meta")}, ValueError, "beta must be on"),
        ({"threshold": torch.rand(2)}, ValueError, "threshold must broadcast"),
        ({"grad_threshold": "0.5"}, TypeError, "grad_threshold must be a number or None"),
        ({"grad_threshold": float("nan")}, ValueError, "grad_threshold must not be NaN"),
        ({"max_spikes": 2.0}, TypeError, "max_spikes must be an int or None, got 2.0"),
        ({"max_spikes": -1}, ValueError, "max_spikes must be 0 or more, got -1"),
        ({"reset_mechanism": "substract"}, ValueError, "reset_mechanism must be 'subtract', 'zero' or 'none'"),
        ({"overflow": "highest"}, ValueError, "overflow must be 'lowest' or 'rotate', got 'highest'"),
        ({"spike_grad": 25}, TypeError, "spike_grad must be callable or None, got 25"),
        ({"delay": -1}, ValueError, "delay must be 0 or more, got -1"),
        ({"delay": 1.0}, TypeError, "delay must be an int, got 1.0"),
        ({"delay": True}, TypeError, "delay must be an int"),
        ({"input_scale": "1"}, TypeError, "input_scale must be a number, got '1'"),
        ({"recurrent_weight": [[1.0]]}, TypeError, "recurrent_weight must be a torch.Tensor or None, got list"),
        (
            {"recurrent_weight": torch.zeros(3, 4)},
            ValueError,
            r"recurrent_weight must have shape \(3, 3\), got \(3, 4\)",
        ),
        ({"recurrent_weight": torch.zeros(3, 3, device="meta")}, ValueError, "recurrent_weight must be on the device"),
        ({"recurrent_weight": torch.zeros(3, 3, dtype=torch.int64)}, TypeError, "recurrent_weight must be floating"),
        (
            {"recurrent_weight": torch.zeros(3, 3), "spike_grad": soft},
            ValueError,
            "spike_grad must be a fused surrogate",
        ),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.sparse_lif_sequence(**{"spikes": SPIKES, "weight": torch.zeros(3, 4), "beta": 0.9, **arguments})
