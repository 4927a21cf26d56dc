"""An unmodified loop over time steps, and what compilers make of it: networks of snnTorch's tutorials in training."""

from dataclasses import replace
from typing import Any, Callable, Dict, List, Sequence, Tuple

import snntorch
import torch
from torch import nn

import snnipu
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, check_training
from benchmarks.loop_networks import NETWORKS, forward_pass
from benchmarks.options import Option, batch_sizes, names_of
from benchmarks.training_step import adam, check_rounding, training_workload

SUMMARY = "networks of snnTorch's tutorials as an unmodified loop, compiled and not"
# snnTorch's spikes are float32 whatever its input is.
DTYPES = (torch.float32,)
DEVICES = ("cpu", "cuda")
FULL = {"steps": 25, "batch_size": 128, "neurons": 1000, "repeats": 9, "min_seconds": 3.0}
BATCHES = (1, 16, 64, 128)
CONVOLUTIONAL = ("tutorial-6", "tutorial-7")
_SLOW_SECONDS = 0.25
_CAPTION = (
    "The work: forward over T steps, a loss on what was recorded, backward, one Adam step. The same initial weights, "
    "input and targets for all."
)


OPTIONS = (
    Option(
        "networks",
        f"which, comma-separated; default: all of {', '.join(NETWORKS)}",
        names_of(list(NETWORKS)),
        list(NETWORKS),
        ["tutorial-5", "tutorial-7"],
        metavar="LIST",
    ),
    Option(
        "batch_sizes",
        f"comma-separated; default: --batch-size, of convolutional networks {','.join(map(str, BATCHES))}",
        batch_sizes,
        quick=[2],
        metavar="LIST",
    ),
)


def sweep(settings: Settings, networks: Sequence[str], batch_sizes: Any) -> Sweep:
    """A table for each network and batch size."""
    several = {
        name: list(batch_sizes or (BATCHES if name in CONVOLUTIONAL else [settings.batch_size])) for name in networks
    }
    return gathered([replace(settings, network=name, batch_size=batch) for name in networks for batch in several[name]])


def gathered(points: Sequence[Settings]) -> Sweep:
    """The sweep of these tables."""
    order = list(NETWORKS)
    points = sorted(points, key=lambda point: (order.index(point.network), point.batch_size))
    several: Dict[str, List[int]] = {}
    for point in points:
        several.setdefault(point.network, []).append(point.batch_size)
    common = [batch for batch in points and several[points[0].network] if all(batch in of for of in several.values())]
    axes = [
        Axis(
            "network",
            "network",
            list(several),
            {"batch_size": common[-1]} if common else {},
            tables=("time", "memory", "faults"),
            panels=("time", "memory"),
        )
    ]
    for name, batches in several.items():
        if len(batches) > 1:
            axes.append(Axis("batch_size", "batch size", batches, {"network": name}, tables=("time", "memory")))
    return Sweep(
        name="compile",
        title=f"Loops over time steps, one training step: T={points[0].steps}",
        caption=_CAPTION,
        points=points,
        axes=axes,
        reference=None,
        headline=None,
    )


def build(settings: Settings) -> Case:
    """The table of one network, ``settings.network``, and batch size."""
    name, steps, batch, device = settings.network, settings.steps, settings.batch_size, settings.device
    generator = torch.Generator().manual_seed(settings.seed)
    kind = NETWORKS[name]
    in_function = name in CONVOLUTIONAL
    x = torch.rand(kind.shape(steps, batch), generator=generator)
    x = (x * (torch.rand(x.shape, generator=generator) < 0.2)).to(device)

    def network(snn: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            return kind.make(snn, settings).to(device)

    def record(out: Any) -> torch.Tensor:
        found: torch.Tensor = out[1] if isinstance(out, tuple) else out
        return found

    def loop(net: nn.Module) -> Callable[[], torch.Tensor]:
        if in_function:
            return lambda: record(forward_pass(net, steps, x, name == "tutorial-7"))
        return lambda: record(net(x))

    def loss_and_gradients(loss: Callable[[], torch.Tensor], net: nn.Module) -> Tuple[torch.Tensor, Sequence[Any]]:
        value = loss()
        return value.detach(), torch.autograd.grad(value, list(net.parameters()))

    def expected() -> Tuple[torch.Tensor, Sequence[Any]]:
        net = network(snntorch)
        return loss_and_gradients(lambda: kind.loss(loop(net)(), x), net)

    def workload(net: nn.Module, loss: Callable[[], torch.Tensor], compiles: bool = False) -> Workload:
        def check() -> Check:
            def compared(tolerance: float) -> Check:
                return check_training(*loss_and_gradients(loss, net), *expected(), tolerance, "snnTorch")

            return check_rounding(compared, kind.tolerance, kind.rounding(steps, batch), device)

        seconds = peers.compile_seconds(lambda: loss_and_gradients(loss, net)) if compiles else None
        return training_workload(adam(net), loss, check, device, seconds)

    def eager(snn: Any) -> Workload:
        net = network(snn)
        run = loop(net)
        return workload(net, lambda: kind.loss(run(), x))

    def multistep() -> Workload:
        net = network(snnipu)
        return workload(net, lambda: kind.batched(net.over_time(x), x))

    def inductor() -> Workload:
        net = network(snntorch)
        run = loop(net)
        return workload(net, peers.compiled(lambda: kind.loss(run(), x), device), compiles=True)

    def compiled() -> Workload:
        net = network(snnipu)
        run: Callable[..., Any] = snnipu.compile(forward_pass if in_function else net)
        given = (net, steps, x, name == "tutorial-7") if in_function else (x,)
        return workload(net, lambda: kind.batched(record(run(*given)), x), compiles=True)

    contenders = [
        Contender("snnipu-loop", "snnipu, the loop", lambda: eager(snnipu), ratio_label="loop"),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            multistep,
            ratio_label="MultiStep",
            note="the network rewritten, the loss in one call over all steps",
        ),
        Contender("snntorch", "snnTorch, the loop", lambda: eager(snntorch), peer="snntorch"),
        Contender("compile", "snnTorch loop, torch.compile", inductor, peer="compile"),
        # The last one: what compiles above starts TorchDynamo anew.
        Contender(
            "snnipu-compiled",
            "snnipu, the loop compiled",
            compiled,
            ratio_label="compiled",
            note="snnipu.compile of the unmodified loop; the loss in one call over all steps, as MultiStep's",
        ),
    ]
    return Case(
        name="compile",
        title=f"{name}: {kind.title}; one training step: T={steps} × B={batch} (N={settings.neurons})",
        caption=_CAPTION,
        contenders=contenders,
        parameters={"network": name, "steps": steps, "batch_size": batch, "neurons": settings.neurons},
        slow_seconds=_SLOW_SECONDS,
        show_faults=True,
    )
