"""``fixed_weights``: weights are packed once for a stream, and changes that PyTorch does not count are detected."""

import gc
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operators import needs_host_runtime
from torch import nn

import snnipu as snn
from snnipu.backends import host_sparse
from snnipu.ops import _fixed, sparse_input

pytestmark = needs_host_runtime


@pytest.fixture
def packed(monkeypatch):
    """Count how often a weight was packed, and how often all of its values were read."""
    calls = {"packed": 0, "looked at": 0}
    for name, function in (("packed", host_sparse._pack), ("looked at", host_sparse._fingerprint)):

        def counted(weight, name=name, function=function):
            calls[name] += 1
            return function(weight)

        monkeypatch.setattr(host_sparse, "_pack" if name == "packed" else "_fingerprint", counted)
    return calls


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return snn.SparseLinear(40, 30, bias=True)


X = (torch.rand(1, 2, 40, generator=torch.Generator().manual_seed(1)) < 0.2).float()
SPIKES = snn.SparseSpikes.from_dense(X)


def dense(layer):
    return X @ layer.weight.detach().T + layer.bias.detach()


@torch.no_grad()
def test_a_weight_is_packed_and_looked_at_once(layer, packed):
    with snn.fixed_weights():
        for _ in range(5):
            assert torch.allclose(layer(SPIKES), dense(layer), atol=1e-6)
        assert packed == {"packed": 1, "looked at": 1}
    assert packed == {"packed": 1, "looked at": 2}  # at the end of the block
    for _ in range(3):
        layer(SPIKES)
    assert packed["looked at"] == 4  # from the second call on


@torch.no_grad()
@pytest.mark.parametrize("change", ["in place", "copy_", "load_state_dict", "another parameter", "another memory"])
def test_a_change_that_pytorch_counts_is_seen(layer, change):
    other = torch.randn_like(layer.weight)
    with snn.fixed_weights():
        before = layer(SPIKES)
        if change == "in place":
            layer.weight.mul_(2)
        elif change == "copy_":
            layer.weight.copy_(other)
        elif change == "load_state_dict":
            layer.load_state_dict({**layer.state_dict(), "weight": other})
        elif change == "another parameter":
            layer.weight = nn.Parameter(other)
        else:
            layer.weight.data = other
        after = layer(SPIKES)
    assert not torch.equal(before, after)
    assert torch.allclose(after, dense(layer), atol=1e-6)


def test_training_goes_on(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with snn.fixed_weights():
        for _ in range(3):
            optimizer.zero_grad()
            out = layer(SPIKES)
            assert torch.allclose(out, dense(layer), atol=1e-6)
            out.square().sum().backward()
            assert torch.allclose(layer.weight.grad, (2 * out).detach()[0].T @ X[0], atol=1e-5)
            optimizer.step()


def run_and(change, *layers):
    """Run steps of the layers with a change between two of them."""
    with snn.fixed_weights():
        for layer in layers:
            layer(SPIKES)
        change()


@torch.no_grad()
@pytest.mark.parametrize("way", ["data", "numpy"])
def test_a_change_that_pytorch_does_not_count_is_an_error(layer, way):
    def change():
        values = layer.weight.data if way == "data" else layer.weight.numpy()
        values[3, 4] += 1

    with pytest.raises(RuntimeError, match=r"a weight of shape \[30, 40\] was changed within fixed_weights\(\)"):
        run_and(change, layer)
    assert _fixed.current_fixed_weights() is None
    assert torch.allclose(layer(SPIKES), dense(layer), atol=1e-6)


@torch.no_grad()
def test_of_two_layers_the_one_that_was_changed_is_named(layer):
    other = snn.SparseLinear(40, 20)
    with pytest.raises(RuntimeError, match=r"\[20, 40\]"):
        run_and(lambda: other.weight.data.neg_(), layer, other)


@torch.no_grad()
def test_an_error_within_is_the_one_that_is_raised(layer):
    def change():
        layer.weight.data.neg_()
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        run_and(change, layer)
    assert _fixed.current_fixed_weights() is None


@torch.no_grad()
def test_one_within_another_ends_with_the_outer_one(layer, packed):
    with snn.fixed_weights():
        with snn.fixed_weights():
            layer(SPIKES)
        layer(SPIKES)
        assert packed == {"packed": 1, "looked at": 1}
    assert _fixed.current_fixed_weights() is None


@torch.no_grad()
def test_other_threads_are_left_alone(layer):
    results = []
    with snn.fixed_weights():
        thread = threading.Thread(target=lambda: results.append(_fixed.current_fixed_weights()))
        thread.start()
        thread.join()
    assert results == [None]


@torch.inference_mode()
def test_weights_made_in_inference_mode(packed):
    layer = snn.SparseLinear(40, 30, bias=True)
    assert layer.weight.is_inference()
    with snn.fixed_weights():
        for _ in range(3):
            assert torch.allclose(layer(SPIKES), X @ layer.weight.T + layer.bias, atol=1e-6)
    assert packed == {"packed": 1, "looked at": 2}


@torch.no_grad()
def test_a_layer_that_goes_takes_its_copy_along():
    layer = snn.SparseLinear(40, 30)
    with snn.fixed_weights():
        layer(SPIKES)
        packed_weights = _fixed.current_fixed_weights()._entries
        assert len(packed_weights) == 1
        del layer
        gc.collect()
        assert not packed_weights


@torch.no_grad()
def test_recurrent_layers_and_networks():
    net = nn.Sequential(
        snn.SparseLeaky(40, 60, beta=0.9, threshold=0.3, recurrent=True),
        snn.SparseLeaky(60, 20, beta=0.9, threshold=0.2),
    )
    x = snn.SparseSpikes.from_dense((torch.rand(12, 3, 40) < 0.3).float())
    expected = net(x).to_dense()
    assert expected.any()
    with snn.fixed_weights():
        for _ in range(2):
            assert torch.equal(net(x).to_dense(), expected)


def stream():
    torch.manual_seed(0)
    net = snn.MultiStep(
        nn.Linear(2000, 2000),
        snn.Leaky(beta=0.9, init_hidden=True),
        nn.Linear(2000, 5),
        snn.Leaky(0.9, init_hidden=True),
    )
    return net, 10 * (torch.rand(6, 1, 2000) < 0.05).float()


@torch.no_grad()
def test_single_steps_of_an_ordinary_network_go_by_events():
    net, x = stream()
    assert [path.limit for path in net.paths(x[:1]) if path.kind == "Linear"] == [0, 0]
    snn.utils.reset(net)
    expected = [net(step[None]) for step in x]
    snn.utils.reset(net)
    with snn.fixed_weights():
        outputs = [net(step[None]) for step in x]
        paths = [path for path in net.paths(x[:1]) if path.kind == "Linear"]
    assert "events" in paths[0].runs_as
    assert "dense" in paths[1].runs_as
    for (spk, mem), (other, expected_mem) in zip(outputs, expected):
        assert torch.equal(spk, other)
        assert torch.allclose(mem, expected_mem, atol=1e-4)
    assert any(spk.any() for spk, _ in outputs)


def test_what_is_differentiated_is_as_elsewhere():
    net, x = stream()
    with snn.fixed_weights():
        assert sparse_input.linear_events(x[0], net[0].weight) is None
        with torch.no_grad():
            assert sparse_input.linear_events(x[0], net[0].weight) is not None
            # A computed weight may differ in every call.
            assert sparse_input.linear_events(x[0], net[0].weight * 1) is None


# A weight ``w`` with other values.
CHANGES = {
    "all signs": "-w",
    "two signs": "torch.where((torch.arange(w.numel()) % max(1, w.numel() - 1) == 0).view_as(w), -w, w)",
    "doubled": "2 * w",
    "one bit": "torch.cat([w.flatten()[:-1], torch.nextafter(w.flatten()[-1:], w.new_tensor([9.0]))]).view_as(w)",
    "rows in another order": "w.flip(0)",
    "columns in another order": "w.roll(1, 1)",
    "transposed": "w.T.contiguous().view_as(w)",
}


@given(st.integers(2, 70), st.integers(2, 70), st.sampled_from(list(CHANGES)), st.integers(0, 2**31), st.booleans())
@settings(deadline=None, max_examples=300)
def test_other_values_have_another_fingerprint(outputs, inputs, change, seed, double):
    """The cases include classes of changes that other fingerprints miss, such as an even number of signs."""
    torch.manual_seed(seed)
    weight = torch.randn(outputs, inputs, dtype=torch.float64 if double else torch.float32)
    other = eval(CHANGES[change], {"torch": torch, "w": weight})
    assert not torch.equal(weight, other)
    assert host_sparse._fingerprint(weight) == host_sparse._fingerprint(weight.clone())
    assert host_sparse._fingerprint(weight) != host_sparse._fingerprint(other)
