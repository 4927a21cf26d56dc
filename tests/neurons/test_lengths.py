"""``MultiStep(x, lengths=...)`` and ``padded_loss``: a padded batch equals its samples, each alone without padding."""

import collections

import pytest
import torch
from support.exact import exact
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import functional

# A sample of one step alone is meant.
pytestmark = pytest.mark.filterwarnings("ignore:MultiStep got x of shape")
LENGTHS = [7, 1, 12, 7]
STEPS, CLASSES = 12, 3
LABELS = torch.tensor([0, 2, 1, 1])


def dense():
    return [
        nn.Linear(6, 9),
        snn.Leaky(beta=0.75, threshold=0.25),
        nn.Linear(9, CLASSES),
        snn.Leaky(beta=0.5, threshold=0.125),
    ]


NETWORKS = {
    "leaky": dense,
    "synaptic": lambda: [nn.Linear(6, CLASSES), snn.Synaptic(alpha=0.75, beta=0.5, threshold=0.25)],
    "recurrent": lambda: [
        nn.Linear(6, CLASSES),
        snn.RLeaky(beta=0.5, all_to_all=False, learn_recurrent=False, threshold=0.25),
        nn.BatchNorm1d(CLASSES).eval(),
        snn.Leaky(beta=0.5, threshold=0.1),
    ],
    "steps": lambda: [nn.Linear(6, CLASSES), snn.Leaky(beta=0.5, threshold=0.25, inhibition=True)],
    "rnn": lambda: [nn.Flatten(), nn.Linear(6, CLASSES), snn.LeakyParallel(CLASSES, CLASSES, beta=0.5)],
    "linear": lambda: [nn.Linear(6, CLASSES)],
}


def build(name):
    torch.manual_seed(3)
    return exact(snn.MultiStep(*NETWORKS[name]())).double()


def padded_input():
    """Return spikes with NaN in the padding, and the spikes of each sample alone."""
    torch.manual_seed(1)
    x = (torch.rand(STEPS, len(LENGTHS), 6) < 0.5).double()
    x[torch.arange(STEPS)[:, None] >= torch.tensor(LENGTHS)] = torch.nan
    return x, [x[:steps, sample : sample + 1] for sample, steps in enumerate(LENGTHS)]


def parts_of(out):
    return list(out) if isinstance(out, tuple) else [out]


def take_gradients(net):
    """Return the gradients of the parameters, and clear them."""
    gradients = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    return gradients


@pytest.mark.parametrize("chunk_bytes", [2**30, 100])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_those_of_each_sample_alone(name, chunk_bytes, monkeypatch):
    monkeypatch.setattr("snnipu.neurons.multistep.CHUNK_BYTES", chunk_bytes)
    net, (x, samples) = build(name), padded_input()
    out = parts_of(net(x, lengths=torch.tensor(LENGTHS, dtype=torch.int32)))
    weights = torch.rand(STEPS, 1, CLASSES)
    sum((part * weights).sum() for part in out).backward()
    gradients = take_gradients(net)
    assert out[0].any()
    for sample, alone in enumerate(samples):
        steps, expected = len(alone), parts_of(net(alone))
        for part, other in zip(out, expected):
            assert torch.equal(part[:steps, sample : sample + 1], other)
            assert not part[steps:, sample].any()
        sum((other * weights[:steps]).sum() for other in expected).backward()
    expected = take_gradients(net)
    assert len(gradients) == len(expected) > 0
    torch.testing.assert_close(gradients, expected)


def test_hidden_layers_and_constant_inputs():
    net, (x, samples) = build("leaky"), padded_input()
    lengths = torch.tensor(LENGTHS)
    hidden, _ = net(x, all_layers=True, lengths=lengths)
    for sample, alone in enumerate(samples):
        assert torch.equal(hidden[: len(alone), sample : sample + 1], net(alone, all_layers=True)[0])
        assert not hidden[len(alone) :, sample].any()
    _, mem = net(x[0], num_steps=STEPS, lengths=lengths)
    for sample, steps in enumerate(LENGTHS):
        assert torch.equal(mem[:steps, sample], net(x[0, sample : sample + 1], num_steps=steps)[1][:, 0])
        assert not mem[steps:, sample].any()
    last_steps = mem[lengths - 1, torch.arange(len(lengths))]
    assert torch.equal(last_steps[2], mem[-1, 2])


@pytest.mark.parametrize("slots", [None, 2])
def test_event_driven_network(slots):
    torch.manual_seed(0)
    sparse = exact(
        snn.SparseNetwork([6, 9, CLASSES], beta=0.75, input_scale=8.0, max_spikes=[6, 9, slots], delay=0)
    ).double()
    net, (x, samples) = snn.MultiStep(sparse), padded_input()
    out = net(snn.SparseSpikes.from_dense(x), lengths=torch.tensor(LENGTHS))
    out.spike_count().square().sum().backward()
    gradients = take_gradients(net)
    overflow = 0
    for sample, alone in enumerate(samples):
        expected = net(snn.SparseSpikes.from_dense(alone))
        assert torch.equal(out[: len(alone), sample : sample + 1].to_dense(), expected.to_dense())
        assert not out.counts[len(alone) :, sample].any()
        overflow += expected.overflow
        expected.spike_count().square().sum().backward()
    assert out.num_spikes > 0
    assert out.overflow == overflow
    expected = take_gradients(net)
    torch.testing.assert_close(gradients, expected)


LOSSES = {
    "ce_rate_loss": {},
    "ce_count_loss": {},
    "mse_count_loss": {"correct_rate": 0.8, "incorrect_rate": 0.1},
    "ce_temporal_loss": {},
    "mse_temporal_loss": {"on_target": 1, "off_target": -1},
    "ce_max_membrane_loss": {},
    "mse_membrane_loss": {},
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_the_mean_of_each_sample_alone(name):
    net, (x, samples) = build("leaky"), padded_input()
    place = int("membrane" in name)

    def loss_function():
        return getattr(functional, name)(**LOSSES[name])

    out = net(x, lengths=torch.tensor(LENGTHS))[place]
    loss = functional.padded_loss(loss_function(), out, LABELS, torch.tensor(LENGTHS))
    loss.sum().backward()
    gradients = take_gradients(net)
    alone = [loss_function()(net(sample)[place], LABELS[[b]]) for b, sample in enumerate(samples)]
    expected = torch.stack(alone).mean(0)
    expected.sum().backward()
    torch.testing.assert_close(loss, expected)
    others = take_gradients(net)
    assert any(other.any() for other in others)
    torch.testing.assert_close(gradients, others)


def test_without_padding_the_loss_is_the_loss():
    spk = (torch.rand(5, 4, CLASSES) < 0.5).float()
    loss_function = functional.ce_rate_loss()
    expected = loss_function(spk, LABELS)
    torch.testing.assert_close(functional.padded_loss(loss_function, spk, LABELS, torch.tensor([5] * 4)), expected)


@each_row(r"""
run([7, 1, 12, 7]) | TypeError: lengths must be an int32 or int64 tensor, got \[7, 1, 12, 7\]
run(torch.tensor([7.0, 1, 12, 7])) | TypeError: got torch.float32
run(torch.tensor([7, 1, 12])) | ValueError: shape \[B\] = \(4,\) .* got \(3,\)
run(torch.tensor([[7, 1, 12, 7]])) | ValueError: got \(1, 4\)
run(torch.tensor([7, 0, 12, 7])) | ValueError: from 1 to the 12 steps
run(torch.tensor([7, 1, 13, 7])) | ValueError: got \[7, 1, 13, 7\]
run(torch.tensor([7, 1, 12, 7], device="meta")) | ValueError: on the input's device cpu, got .* on meta
""")
def test_wrong_lengths(row):
    out, loss = torch.zeros(STEPS, 4, CLASSES), functional.ce_rate_loss()
    assert_refused(row, globals(), run=lambda lengths: build("leaky")(padded_input()[0], lengths=lengths))
    assert_refused(row, globals(), run=lambda lengths: functional.padded_loss(loss, out, LABELS, lengths))


@each_row(r"""
run(nn.Linear(6, 3), snn.Leaky(beta=0.9, init_hidden=True)) | ValueError: module 1 \(Leaky\) reads the padding
run(nn.GRU(6, 3, bidirectional=True), nn.Linear(6, 3)) | ValueError: module 0 \(GRU\)
run(nn.Linear(6, 3), nn.LSTM(3, 3)) | ValueError: module 1 \(LSTM\)
run(nn.Sequential(nn.BatchNorm1d(6)), nn.Linear(6, 3)) | ValueError: module 0.0 \(BatchNorm1d\)
run(Whole(lambda x: x[-1])) | ValueError: a result that is not \[T, B, ...\], got shape \(4, 6\)
run(Whole(lambda x: (x, None))) | ValueError: a result that is not \[T, B, ...\], got None
loss(functional.ce_rate_loss(reduction="none")) | ValueError: must return one number, the mean over samples
loss(functional.ce_count_loss(weight=torch.ones(CLASSES))) | ValueError: and have weight=None
loss(lambda out, targets: out.sum(0)) | ValueError: must return one number
""")
def test_modules_that_read_the_padding_and_losses_without_a_mean(row):
    lengths, out = torch.tensor(LENGTHS), torch.zeros(STEPS, 4, CLASSES)

    def run(*modules):
        snn.MultiStep(*modules).double()(padded_input()[0], lengths=lengths)

    assert_refused(row, globals(), run=run, loss=lambda call: functional.padded_loss(call, out, LABELS, lengths))


class Whole(nn.Module):
    """A module that takes all steps at once and returns the result of ``function``."""

    takes_whole_sequences = True

    def __init__(self, function):
        super().__init__()
        self.forward = function


Doubled = collections.namedtuple("Doubled", ["x", "twice"])


def test_a_named_tuple_stays_one():
    x, _ = padded_input()
    out = snn.MultiStep(Whole(lambda x: Doubled(x, twice=2 * x)))(x, lengths=torch.tensor(LENGTHS))
    assert type(out) is Doubled
    assert torch.equal(out.x, x.nan_to_num(0))
    assert torch.equal(out.twice, 2 * out.x)
