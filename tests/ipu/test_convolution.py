"""Plans of convolutions on tiles: memory, predicted cycles, and the IPU model's counts of both."""

from dataclasses import replace

import pytest
import torch
from support.operators import needs_library

from snnipu.ipu import TARGETS
from snnipu.ipu.model import IpuModel, IpuModelTarget, TensorType
from snnipu.ops._maps import conv_geometry
from snnipu.planning.convolution import plan_convolution


def geometry(in_channels, size, out, kernel, padding=0, groups=1):
    weight = torch.empty(out, in_channels // groups, kernel, kernel)
    return conv_geometry(weight, (size, size), (1, 1), (padding, padding), (1, 1), groups)


# Layers of networks for event cameras: sizes, slots of a row, rows (time, sample).
LAYERS = {
    "12C5": (geometry(2, 34, 12, 5), 64, 1600),
    "32C5": (geometry(12, 15, 32, 5), 128, 1600),
    "32C3": (geometry(16, 32, 32, 3, 1), 400, 480),
    "64C3": (geometry(32, 16, 64, 3, 1), 200, 480),
    "few rows": (geometry(8, 20, 16, 3), 100, 4),
    "groups": (geometry(16, 12, 32, 3, 1, groups=4), 100, 300),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("target", ["mk1", "mk2"])
def test_work_covers_all_channels_lines_and_rows(name, target):
    sizes, slots, rows = LAYERS[name]
    plan = plan_convolution(sizes, slots, rows, target=TARGETS[target])
    assert plan.fits
    channels = sizes.groups * (sizes.out_channels // sizes.groups)
    assert channels <= plan.blocks * plan.channels < channels + plan.blocks * plan.channels
    assert (plan.bands - 1) * plan.lines < sizes.out_height <= plan.bands * plan.lines
    assert (plan.shares - 1) * plan.share < rows <= plan.shares * plan.share
    assert plan.attribute == (plan.channels, plan.lines, plan.share)
    # Most tiles have work. For few rows, sending the weights to more tiles would take longer.
    assert plan.tiles_used > (0.15 if name == "few rows" else 0.6) * TARGETS[target].tiles_per_ipu
    assert f"on {plan.tiles_used} tiles" in str(plan)


def test_few_rows_are_divided_by_channels_and_lines():
    plan = plan_convolution(*LAYERS["few rows"])
    assert plan.shares == 4
    assert plan.blocks > 1
    assert plan.bands > 1


def test_more_ipus_leave_less_to_a_tile():
    sizes, slots, rows = LAYERS["32C3"]
    one_ipu, two_ipus = (plan_convolution(sizes, slots, rows, ipus=ipus) for ipus in (1, 2))
    assert two_ipus.tiles_used > one_ipu.tiles_used
    assert two_ipus.predicted_cycles() < 0.7 * one_ipu.predicted_cycles()


def test_a_network_that_does_not_fit_has_a_remedy():
    tiny = replace(TARGETS["mk2"], tiles_per_ipu=4)
    maps = plan_convolution(*LAYERS["32C3"], target=tiny)
    assert not maps.fits
    assert maps.remedy().startswith("fewer time steps or samples")
    weights = plan_convolution(geometry(4096, 3, 64, 3), 10, 4, target=tiny)
    assert not weights.fits
    assert "fewer channels before" in weights.remedy()


def model_of(plan, ipus=1):
    return IpuModel(IpuModelTarget("mk2", 0, ipus, (("tileMemory", "off"),)))


def programs(model, plan):
    """Return the operator and its gradient, compiled with the plan."""
    sizes, kind = plan.geometry, {"float32": "FLOAT", "float16": "FLOAT16"}[plan.dtype]
    weight = (sizes.out_channels, sizes.in_channels // sizes.groups, sizes.kernel_height, sizes.kernel_width)
    slots = TensorType("FLOAT", (plan.rows, 1, plan.slots))
    inputs = [slots, slots, TensorType("FLOAT", (plan.rows, 1, 2)), TensorType(kind, weight)]
    attributes = {"geometry": list(sizes), "plan": list(plan.attribute), "input_gradient": 1}
    return [model.compile("SparseConv2d", inputs, attributes, gradient=outputs) for outputs in (None, [0])]


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_figures_are_those_of_the_ipu_model(name, dtype):
    """Predictions agree with the counts: memory within -5 % and 30 %, cycles within 35 %.

    A plan that fits must fit on the machine, so the memory is rarely below the counts. For groups, the model counts the
    spikes of other groups as well.
    """
    plan = plan_convolution(*LAYERS[name], dtype)
    counts = [program.estimate() for program in programs(model_of(plan), plan)]
    memory = max(figures["tile_memory_max_bytes"] for figures in counts)
    assert 0.95 * memory < plan.memory_bytes < 1.3 * memory + 16 * 1024
    cycles = sum(figures["cycles"] for figures in counts)
    assert 0.65 * cycles < plan.predicted_cycles() < 1.35 * cycles


@pytest.mark.slow
@needs_library
def test_other_plans_are_slower():
    """The plan is within 5 % of the fastest of several plans, by the counts of the IPU model."""
    plan = plan_convolution(*LAYERS["64C3"])
    attributes = [(64, 16, 1), (8, 16, 8), (2, 16, 16), (16, 2, 16), (64, 1, 16)]
    model = model_of(plan)

    def cycles_of(channels, lines, share):
        other = replace(plan, channels=channels, lines=lines, share=share)
        return sum(program.estimate()["cycles"] for program in programs(model, other))

    assert cycles_of(*plan.attribute) < 1.05 * min(cycles_of(*attribute) for attribute in attributes)
