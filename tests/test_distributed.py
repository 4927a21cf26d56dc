"""PyTorch's data-parallel engines: two processes with half of a batch each learn the weights of one process."""

import copy
import warnings

import pytest
import snntorch
import torch
from support.versions import needs_gloo
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import snnipu as snn

fsdp = pytest.importorskip("torch.distributed.fsdp", reason="this PyTorch has no torch.distributed")

pytestmark = needs_gloo
WORLD = 2
BATCH = 4
STEPS = 4
SIZES = [24, 30, 20, 5]


def sparse_network(learn=False):
    torch.manual_seed(0)
    return snn.SparseNetwork(
        SIZES,
        beta=torch.tensor([0.9]) if learn else 0.9,
        threshold=0.3,
        delay=0,
        learn_beta=learn,
        grad_threshold=0.1,
        max_spikes=[None, 8, 6, 5],
    ).double()


def unlimited_network():
    torch.manual_seed(0)
    return snn.SparseNetwork([24, 17, 5], beta=0.9, threshold=0.3, delay=0, learn_beta=True).double()


def network_of_maps():
    torch.manual_seed(0)
    return snn.SparseNetwork(
        [(1, 4, 6), "8C3P1-MP2", 5], beta=0.9, threshold=0.3, grad_threshold=0.1, delay=0, learn_beta=True, bias=True
    ).double()


def dense_network():
    torch.manual_seed(0)
    return snn.MultiStep(nn.Linear(24, 30), snn.Leaky(beta=0.9), nn.Linear(30, 5), snn.Leaky(beta=0.9)).double()


def blocks():
    """Return a network of blocks for FSDP2 to shard; each block runs all steps in one call."""
    torch.manual_seed(0)
    return snn.MultiStep(
        snn.MultiStep(nn.Linear(24, 30), snn.Leaky(beta=0.9)), snn.MultiStep(nn.Linear(30, 5), snn.Leaky(beta=0.9))
    ).double()


def inputs(step):
    torch.manual_seed(1 + step)
    return (torch.rand(6, BATCH, 24) < 0.4).double()


def sparse_inputs(step):
    return snn.SparseSpikes.from_dense(inputs(step))


def counts(out):
    return out.spike_count() if isinstance(out, snn.SparseSpikes) else out[0].sum(0)


def train(net, data, parts=1):
    """Return the spike counts of each step. The loss is a sum over samples; the engines average over processes."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    every = []
    for step in range(STEPS):
        optimizer.zero_grad()
        scores = counts(net(data(step)))
        (((scores - 3) ** 2).sum() / parts).backward()
        optimizer.step()
        every.append(scores.detach())
    return torch.stack(every)


def parameters(net):
    if isinstance(net, fsdp.FullyShardedDataParallel):
        with fsdp.FullyShardedDataParallel.summon_full_params(net):
            return [parameter.detach().clone() for parameter in net.module.parameters()]
    full = [
        parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter for parameter in net.parameters()
    ]
    return [parameter.detach().clone() for parameter in full]


def sharded(net, children, mesh):
    for child in children:
        fsdp.fully_shard(child, mesh=mesh)
    fsdp.fully_shard(net, mesh=mesh)
    assert all(type(parameter).__name__ == "DTensor" for parameter in net.parameters())
    return net


def ddp(**options):
    return lambda net, mesh: DistributedDataParallel(net, **options)


# Engine -> functions that make the network, its data, and the distributed network.
ENGINES = {
    "ddp-dense": (dense_network, inputs, ddp()),
    "ddp": (unlimited_network, sparse_inputs, ddp()),
    "ddp-maps": (network_of_maps, sparse_inputs, ddp()),
    "ddp-unused": (unlimited_network, sparse_inputs, ddp(find_unused_parameters=True)),
    "ddp-static": (sparse_network, sparse_inputs, ddp(static_graph=True)),
}
if hasattr(fsdp, "fully_shard"):

    def layers(net, mesh):
        return sharded(net, net.layers, mesh)

    ENGINES.update(
        {
            "fsdp2-root": (sparse_network, sparse_inputs, lambda net, mesh: sharded(net, (), mesh)),
            "fsdp2-layers": (sparse_network, sparse_inputs, layers),
            "fsdp2-learn": (lambda: sparse_network(True), sparse_inputs, layers),
            "fsdp2-dense": (blocks, inputs, lambda net, mesh: sharded(net, net, mesh)),
            "fsdp1": (
                sparse_network,
                sparse_inputs,
                lambda net, mesh: fsdp.FullyShardedDataParallel(net, device_id=torch.device("cpu")),
            ),
        }
    )


class Recurrent(nn.Module):
    """A user's module around a neuron with hidden state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(24, 5)
        self.lif = snn.Leaky(beta=0.9, threshold=0.2, init_hidden=True)

    def forward(self, x):
        return self.lif(self.linear(x))


def with_other_states():
    torch.manual_seed(0)
    return snn.MultiStep(
        nn.Linear(24, 20),
        snn.Leaky(beta=0.9, threshold=0.2, init_hidden=True),
        nn.Linear(20, 5),
        snntorch.Synaptic(alpha=0.8, beta=0.9, threshold=0.2, init_hidden=True, output=True),
    )


def samples(rank):
    """Return unequal parts of the batch."""
    return slice(0, 1) if rank == 0 else slice(1, BATCH)


def own_states(wrap, rank=None):
    part = slice(None) if rank is None else samples(rank)
    net = wrap(Recurrent())
    steps = torch.stack([net(x) for x in inputs(0)[:, part].float()])
    chunked = wrap(with_other_states())
    chunks = torch.cat([chunked(x)[0] for x in inputs(0)[:, part].float().split(2)])
    assert steps.any()
    assert chunks.any()
    return {"steps": steps.detach(), "chunks": chunks.detach()}


def work(rank, folder):
    """Run all engines in this process, and save the results in a file."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (WORLD,))
    per_rank = BATCH // WORLD
    part = slice(per_rank * rank, per_rank * (rank + 1))
    done = {}
    for name, (make, data, wrap) in ENGINES.items():
        net = wrap(make(), mesh)
        spikes = train(net, lambda step, data=data: data(step)[:, part])
        done[name] = (spikes, parameters(net))
    done["states"] = own_states(DistributedDataParallel, rank)
    torch.save(done, f"{folder}/{rank}.pt")
    del net  # deleted before its group: see the fixture process_group
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_are_one(engine, ranks):
    """The modules return SparseSpikes, in which the engines must find the tensors with a graph."""
    make, data, _ = ENGINES[engine]
    net = make()
    before = copy.deepcopy(net)
    spikes = train(net, data, parts=WORLD)
    assert spikes[-1].any()
    assert torch.equal(spikes, torch.cat([rank[engine][0] for rank in ranks], 1))
    for rank in ranks:
        for actual, expected, initial in zip(rank[engine][1], net.parameters(), before.parameters()):
            assert not torch.equal(expected, initial)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steps", "chunks"])
def test_each_process_keeps_its_own_states(kind, ranks):
    expected = own_states(lambda net: net)[kind]
    for index, rank in enumerate(ranks):
        assert torch.equal(rank["states"][kind], expected[:, samples(index)])


def test_the_states_move_with_the_module():
    net = Recurrent()
    net(inputs(0)[0].float())
    assert net.lif.mem.any()
    assert net.double().lif.mem.dtype == torch.float64
    assert net.to("meta").lif.mem.device.type == "meta"
    assert "lif.mem" not in dict(net.named_buffers())


@pytest.mark.parametrize(
    "make",
    [lambda beta: snn.Leaky(beta, learn_beta=True), lambda beta: snn.SparseLeaky(3, 4, beta=beta, learn_beta=True)],
)
def test_a_learnt_number_loads_with_and_without_a_dimension(make):
    """fully_shard refuses parameters without a dimension, which snnTorch has."""
    scalar, vector = make(0.7), make(torch.tensor([0.3]))
    assert (scalar.beta.shape, vector.beta.shape) == ((), (1,))
    saved = scalar.state_dict()
    vector.load_state_dict(saved)
    assert vector.beta.tolist() == [pytest.approx(0.7)]
    assert saved["beta"].shape == ()
    with torch.no_grad():
        vector.beta.fill_(0.2)
    scalar.load_state_dict(vector.state_dict())
    assert scalar.beta.item() == pytest.approx(0.2)


def test_names_to_ignore_of_the_users_own_stay():
    net = with_other_states()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.weight"])
    assert set(net._ddp_params_and_buffers_to_ignore) == {"0.weight", "3.syn", "3.mem"}


def test_an_exported_program_and_a_checkpoint_see_the_spikes():
    from torch.utils.checkpoint import checkpoint

    net, x = sparse_network(), sparse_inputs(0)
    net(x).spike_count().sum().backward()
    gradient = net.layers[0].weight.grad.clone()
    net.zero_grad()
    checkpoint(net, x, use_reentrant=False).spike_count().sum().backward()
    assert gradient.any()
    assert torch.equal(net.layers[0].weight.grad, gradient)
    if not hasattr(torch.utils._pytree, "GetAttrKey"):
        pytest.skip("this PyTorch cannot export custom classes")
    program = torch.export.export(net, (x,))
    assert torch.equal(program.module()(x).to_dense(), net(x).to_dense())
