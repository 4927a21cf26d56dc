"""DistributedDataParallel: two processes with half of a batch each learn what one process learns of all of it."""

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import snnipu as snn

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)
OPTIONS = {"default": {}, "unused parameters": {"find_unused_parameters": True}, "static": {"static_graph": True}}


def network():
    torch.manual_seed(0)
    return snn.SparseNetwork([8, 7, 5], beta=0.9, threshold=0.3, delay=0, learn_beta=True)


def spikes():
    torch.manual_seed(1)
    return snn.SparseSpikes.from_dense((torch.rand(6, 4, 8) < 0.4).float())


def loss(out):
    """A sum over samples; DistributedDataParallel takes the mean over processes."""
    return (out.spike_count() ** 2).sum()


def work(rank, folder, options):
    """One of two processes: the gradients of its second step are saved."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    net = DistributedDataParallel(network(), **options)
    for _ in range(2):
        net.zero_grad()
        loss(net(spikes()[:, 2 * rank : 2 * rank + 2])).backward()
    torch.save([parameter.grad for parameter in net.parameters()], f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_two_processes_are_one(options, tmp_path):
    """The module returns SparseSpikes, in which the tensors with a graph must be found."""
    torch.multiprocessing.spawn(work, (str(tmp_path), options), nprocs=2)
    net = network()
    loss(net(spikes())).backward()
    for rank in range(2):
        gradients = torch.load(tmp_path / f"{rank}.pt")
        for own, expected in zip(gradients, net.parameters()):
            assert expected.grad.any()
            torch.testing.assert_close(own, expected.grad / 2, rtol=1e-5, atol=1e-6)
