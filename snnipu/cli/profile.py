"""``python -m snnipu profile``: predict the memory and speed of a network on IPUs, by a model of the machine."""

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

from torch import nn

from snnipu._files import write_text
from snnipu._names import is_installed
from snnipu._version import __version__
from snnipu.cli._streams import called, output_path, positive_integer
from snnipu.ipu import report
from snnipu.ipu.model import IpuModelError
from snnipu.ipu.network import NetworkSpec
from snnipu.ipu.operators import OperatorsProfile, runs_by_operators
from snnipu.planning.network import DTYPES, OPTIMIZERS
from snnipu.planning.performance import estimate
from snnipu.planning.search import plan
from snnipu.planning.targets import TARGETS

DEFAULT_ACTIVITY = 0.02


def _activity(text: str) -> List[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or one for each size, but is {text!r}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=called("profile"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Plan an event-driven network on the tiles of IPUs, and predict memory and speed.",
        epilog="Every figure is a model's, none is measured: no IPU is needed.\n\n"
        'Exit status: 0 also where the network does not fit (the JSON has "fits"), 2 wrong arguments.',
    )
    add = parser.add_argument
    add(
        "--model",
        required=True,
        metavar="MODEL",
        help="sizes, input first, such as 2312,1466,1466,10; or a Python file that defines `model`, a module or a "
        "function that returns one; FILE.py:NAME for another name",
    )
    add("--ipus", type=positive_integer, default=1, metavar="N", help="IPUs to spread the layers over (default: 1)")
    add("--target", choices=list(TARGETS), default="mk2", help="kind of IPU (default: mk2)")
    add(
        "--activity",
        type=_activity,
        default=[DEFAULT_ACTIVITY],
        metavar="A",
        help="share of the neurons that spike in a step: one number, or one for each size, input first "
        f"(default: {DEFAULT_ACTIVITY})",
    )
    add("--input-slots", type=positive_integer, metavar="S", help="slots of the input (default: by its activity)")
    add("--batch-size", type=positive_integer, default=48, metavar="B", help="samples at once (default: 48)")
    add("--steps", type=positive_integer, default=100, metavar="T", help="time steps (default: 100)")
    add("--dtype", choices=list(DTYPES), default="float32", help="type of the weights (default: float32)")
    add("--optimizer", choices=OPTIMIZERS, default="adam", help="its state is stored on the tiles (default: adam)")
    add("--inference", action="store_true", help="no backward pass")
    add("--neurons-per-tile", type=positive_integer, metavar="N", help="minimum (default: chosen by the planner)")
    add("--json", type=output_path(), metavar="FILE", help="write figures and plan as JSON")
    add("--html", type=output_path(".html", ".htm"), metavar="FILE", help="write a report with maps of the tiles")
    return parser


class ModelError(ValueError):
    """``--model`` does not name a network that can be planned."""


def _load(path: Path, name: str) -> nn.Module:
    """Return the module that a Python file defines as ``name``."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    # Like a script, the file can import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        namespace = runpy.run_path(str(path), run_name="snnipu_profiled_model")
        module: Any = namespace.get(name)
        if not isinstance(module, nn.Module) and callable(module):
            module = module()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{path} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if name not in namespace:
        raise ModelError(f"{path} defines no {name!r}")
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name} of {path} must be a torch.nn.Module, or return one, but is {type(module).__name__}")
    return module


def _network(arguments: argparse.Namespace) -> Union[NetworkSpec, OperatorsProfile]:
    """Return the network to plan, or an operator profile for a network that runs operator by operator.

    The latter are networks with layers on maps, with delays, or with online learning.
    """
    common = {
        "batch_size": arguments.batch_size,
        "steps": arguments.steps,
        "dtype": arguments.dtype,
        "training": not arguments.inference,
    }
    more = {**common, "optimizer": arguments.optimizer}
    activity = arguments.activity[0] if len(arguments.activity) == 1 else arguments.activity
    text: str = arguments.model
    if text.replace(",", "").replace(" ", "").replace("-", "").isdigit():
        sizes = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
        if min(sizes) < 1:
            raise ModelError(f"sizes are positive whole numbers, separated by commas, but is {text!r}")
        return NetworkSpec.from_sizes(sizes, activity, arguments.input_slots, **more)
    file, _, name = text.rpartition(":") if text.rpartition(":")[0].endswith(".py") else (text, "", "model")
    if not file.endswith(".py"):
        raise ModelError(f"expected sizes such as 784,1000,10, or a Python file (.py), but is {text!r}")
    if arguments.input_slots is not None:
        raise ModelError("--input-slots is for sizes; a model has max_spikes")
    module = _load(Path(file), name or "model")
    if runs_by_operators(module):
        return _operators(module, arguments, common)
    return NetworkSpec.from_module(module, activity, **more)


def _operators(module: nn.Module, arguments: argparse.Namespace, common: Dict[str, Any]) -> OperatorsProfile:
    for option, value in (("--html", arguments.html), ("--neurons-per-tile", arguments.neurons_per_tile)):
        if value:
            raise ModelError(f"{option} is for fully connected networks, and this one runs operator by operator")
    if len(arguments.activity) > 1:
        raise ModelError(
            "a network that runs operator by operator takes one --activity, that of the input: its layers' slots are "
            "their max_spikes"
        )
    if is_installed("poptorch"):
        raise ModelError("operators are counted by snnipu's host runtime, and PopTorch is installed here")
    from snnipu.poptorch._operators_profile import profile_operators

    machine = {"target": arguments.target, "ipus": arguments.ipus}
    try:
        return profile_operators(module, arguments.activity[0], **common, **machine)
    except (IpuModelError, TypeError, ValueError):
        raise
    except Exception as error:
        raise ModelError(f"the model raised {type(error).__name__} for spikes of its first layer: {error}") from error


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Plan and predict as ``argv`` requests; return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    tile_plan = None
    try:
        network = _network(arguments)
        if isinstance(network, NetworkSpec):
            tile_plan = plan(network, arguments.target, arguments.ipus, neurons_per_tile=arguments.neurons_per_tile)
    except (ModelError, TypeError, ValueError, IpuModelError) as error:
        parser.error(f"argument --model: {error}")
    if tile_plan is None:
        print(network)
        if arguments.json:
            document = {"format": report.FORMAT, "snnipu": __version__, **network.to_dict()}
            write_text(arguments.json, json.dumps(document, indent=2, allow_nan=False) + "\n")
        return 0
    performance = estimate(tile_plan) if tile_plan.layers else None
    print(report.text(performance) if performance is not None else report.plan_only_text(tile_plan))
    if arguments.json:
        document = report.to_json(tile_plan, performance)
        write_text(arguments.json, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if arguments.html:
        title = f"{arguments.model} on {arguments.ipus} x {arguments.target}"
        write_text(arguments.html, report.to_html(tile_plan, performance, title))
    return 0
