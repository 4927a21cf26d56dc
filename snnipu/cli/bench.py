"""``python -m snnipu bench``: snnipu beside its peers, in one run."""

import argparse
import contextlib
import functools
import json
import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from tqdm import tqdm

from snnipu._extras import MissingExtra, require
from snnipu._files import write_text
from snnipu.benchmarking import PEERS, CaseResult, Settings, SweepResult, cases, chart, report, run_case, sweep_chart
from snnipu.benchmarking.cases import sparse
from snnipu.benchmarking.environment import record
from snnipu.benchmarking.resident import resident_peak_bytes, supported
from snnipu.cli._streams import output_path

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
SIZES = ("steps", "batch_size", "neurons")
PROGRESS = "{desc}: {bar:30} round {n} of {total} [{elapsed}]"
SWEEP_PROGRESS = "{desc}: {bar:30} {n} of {total} points done [{elapsed}<{remaining}]"
FULL = {"steps": 25, "batch_size": 128, "neurons": 1000, "repeats": 20, "min_seconds": 5.0}
QUICK = {"steps": 5, "batch_size": 16, "neurons": 64, "repeats": 3, "min_seconds": 0.0}


def _positive_integer(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {value}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be finite and not negative, but is {text}")
    return value


def _list(text: str, kind: Callable[[str], Any], what: str) -> List[Any]:
    """Comma-separated values without repetition, in ascending order."""
    try:
        values = sorted({kind(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {what}, separated by commas, but is {text!r}") from None
    return values


def _activity(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, but is {text}")
    return value


def _activities(text: str) -> List[float]:
    return [_activity(str(value)) for value in _list(text, float, "numbers above 0 and below 1")]


def _depths(text: str) -> List[int]:
    values = _list(text, int, "whole numbers")
    unknown = [value for value in values if value not in sparse.DEPTHS]
    if unknown:
        raise argparse.ArgumentTypeError(f"published are 2, 3, 4 and 5 hidden layers, not {unknown[0]}")
    return values


def _peers(text: str) -> List[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return []
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown peer {', '.join(map(repr, unknown)) or repr(text)}; known: {', '.join(PEERS)}, or none"
        )
    return names


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"unknown device {text!r}; known: cpu, cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError(f"{text}: this PyTorch finds no CUDA device")
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise argparse.ArgumentTypeError(f"{text}: there are only {torch.cuda.device_count()} CUDA devices")
    return device


def _default(name: str) -> str:
    return f"default: {FULL[name]:g}; sparse: {sparse.FULL[name]:g}"


def _parser() -> argparse.ArgumentParser:
    modules = cases.available()
    listing = "\n".join(f"  {name:<10} {module.SUMMARY}" for name, module in modules.items())
    peers = "\n".join(f"  {name:<13} {summary}" for name, summary in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="snnipu bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Time snnipu beside its peers, interleaved in one run, after checking what each of them computes.",
        epilog=f"cases:\n{listing}\n\npeers:\n{peers}\n\n"
        "Exit status: 0 all checks passed, 1 a check is red (or snnipu failed), 2 wrong arguments.",
    )
    add = parser.add_argument
    add("case", nargs="?", default="all", choices=[*modules, "all"], help="what to run (default: all)")
    add("--json", type=output_path(), metavar="FILE", help="write the results as JSON")
    add("--chart", type=output_path(*chart.FORMATS), metavar="FILE.png", help="draw the results (.png, .svg or .pdf)")
    add("--markdown", action="store_true", help="print Markdown tables")
    add("--device", type=_device, default=torch.device("cpu"), metavar="{cpu,cuda}", help="where to run (default: cpu)")
    add("--dtype", choices=list(DTYPES), help="element type (default: float32)")
    add("--peers", type=_peers, default=list(PEERS), metavar="LIST", help="comma-separated; default: all; or none")
    add("--threads", type=_positive_integer, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--steps", type=_positive_integer, metavar="T", help=f"time steps ({_default('steps')})")
    add("--batch-size", type=_positive_integer, metavar="B", help=f"samples ({_default('batch_size')})")
    add(
        "--neurons", type=_positive_integer, metavar="N", help="of a hidden layer (default: 1000; sparse: as published)"
    )
    add("--repeats", type=_positive_integer, metavar="N", help=f"rounds, at least ({_default('repeats')})")
    add("--min-seconds", type=_seconds, metavar="S", help=f"timing a table, at least ({_default('min_seconds')})")
    add("--resident-memory", action="store_true", help="peak resident memory too, each in a process of its own (Linux)")
    add("--quick", action="store_true", help="small sizes, few rounds: does everything run? The times mean little")
    add = parser.add_argument_group("only for sparse").add_argument
    add("--input", choices=list(sparse.NETWORKS), help="whose published sizes to take (default: nmnist)")
    add("--activities", type=_activities, metavar="LIST", help=f"default: {','.join(map(str, sparse.ACTIVITIES))}")
    add("--depths", type=_depths, metavar="LIST", help=f"hidden layers; default: {','.join(map(str, sparse.DEPTHS))}")
    add("--depth-activity", type=_activity, metavar="A", help="activity of the sweep over the depths (default: 0.02)")
    return parser


def _values(arguments: argparse.Namespace, module: Optional[ModuleType]) -> Dict[str, Any]:
    """Sizes and rounds: what was asked for, else a case's own defaults, else the command's."""
    own = getattr(module, "QUICK" if arguments.quick else "FULL", {})
    asked = {name: getattr(arguments, name) for name in FULL if getattr(arguments, name) is not None}
    values = {**(QUICK if arguments.quick else FULL), **own, **asked}
    if module is sparse:
        values["hidden_neurons"] = values.pop("neurons") if arguments.neurons else own.get("hidden_neurons")
        values.pop("neurons", None)
        for name, value in (("input", arguments.input), ("activity", arguments.depth_activity)):
            values.update({} if value is None else {name: value})
    return values


def _settings(arguments: argparse.Namespace, module: ModuleType) -> Settings:
    values = _values(arguments, module)
    sizes = {name: value for name, value in values.items() if name not in ("repeats", "min_seconds")}
    return Settings(dtype=DTYPES[arguments.dtype], device=arguments.device, **sizes)


def _run_case(arguments: argparse.Namespace, name: str, settings: Settings, **more: Any) -> CaseResult:
    module = cases.available()[name]
    values = _values(arguments, module)
    rounds = values["repeats"], values["min_seconds"]
    return run_case(module.build(settings), arguments.peers, settings.device, *rounds, **more)


def _resident(arguments: argparse.Namespace, name: str, settings: Settings) -> Optional[Callable[[str], int]]:
    return functools.partial(resident_peak_bytes, name, settings=settings) if arguments.resident_memory else None


def _run_sweep(arguments: argparse.Namespace, name: str, module: ModuleType) -> SweepResult:
    sweep = module.sweep(
        _settings(arguments, module),
        arguments.activities or (sparse.QUICK_ACTIVITIES if arguments.quick else sparse.ACTIVITIES),
        arguments.depths or (sparse.QUICK_DEPTHS if arguments.quick else sparse.DEPTHS),
    )
    found = SweepResult(sweep, [])
    with tqdm(total=len(sweep.points), bar_format=SWEEP_PROGRESS, file=sys.stderr, leave=False) as progress:
        for point in sweep.points:
            where = f"{100 * point.activity:.3g} % active, {point.hidden_layers} hidden layers"
            headline = point.activity == sweep.headline["activity"] and (
                point.hidden_layers == sweep.headline["hidden_layers"]
            )
            found.results.append(
                _run_case(
                    arguments,
                    name,
                    point,
                    # A process for each contender takes long: the whole table of one point has this column.
                    resident=_resident(arguments, name, point) if headline else None,
                    on_stage=lambda stage, where=where: progress.set_description(f"{stage}, {where}"),
                )
            )
            progress.update()
    return found


def _left_out(arguments: argparse.Namespace, module: ModuleType) -> str:
    """Why a case does not run with these arguments: empty where it does."""
    if DTYPES[arguments.dtype] not in module.DTYPES:
        return f"it does not run in {arguments.dtype}"
    if arguments.device.type not in getattr(module, "DEVICES", (arguments.device.type,)):
        return f"it does not run on {arguments.device.type}"
    return ""


def _run(arguments: argparse.Namespace) -> Tuple[List[CaseResult], List[SweepResult]]:
    """All tables, and the sweeps that some of them are points of."""
    modules = cases.available()
    if hasattr(modules.get(arguments.case), "sweep"):
        sweep = _run_sweep(arguments, arguments.case, modules[arguments.case])
        return sweep.results, [sweep]
    results = []
    for name in modules if arguments.case == "all" else [arguments.case]:
        module = modules[name]
        why = _left_out(arguments, module)
        if why:
            print(f"{name} is left out: {why}\n")
            continue
        settings = _settings(arguments, module)
        tables = module.variants(settings) if arguments.any_variant and hasattr(module, "variants") else [settings]
        for table in tables:
            with tqdm(
                total=_values(arguments, module)["repeats"], bar_format=PROGRESS, file=sys.stderr, leave=False
            ) as progress:
                results.append(
                    _run_case(
                        arguments,
                        name,
                        table,
                        resident=_resident(arguments, name, table),
                        on_stage=progress.set_description,
                        on_round=progress.update,
                    )
                )
    return results, []


def _settings_record(arguments: argparse.Namespace) -> Dict[str, Any]:
    """What the run was asked for; in a run of all cases, what differs from it stands in a case's ``parameters``."""
    values = _values(arguments, cases.available().get(arguments.case))
    return {
        "case": arguments.case,
        "peers": arguments.peers,
        "steps": values["steps"],
        "batch_size": values["batch_size"],
        # Null: the published numbers.
        "neurons": values.get("neurons", values.get("hidden_neurons")),
        "beta": values.get("beta", Settings().beta),
        "repeats": values["repeats"],
        "min_seconds": values["min_seconds"],
        "quick": arguments.quick,
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the benchmarks that ``argv`` asks for; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    as_it_comes = arguments.dtype is None and not arguments.quick
    arguments.any_variant = as_it_comes and all(getattr(arguments, name) is None for name in SIZES)
    arguments.dtype = arguments.dtype or "float32"
    if arguments.chart:
        try:
            require("matplotlib.figure", "bench", "a chart")
        except MissingExtra as error:
            parser.error(f"argument --chart: {error}")
    if arguments.resident_memory and not supported(arguments.device):
        parser.error("argument --resident-memory: only on Linux, and only with --device cpu")
    module = cases.available().get(arguments.case)
    if module is not None and _left_out(arguments, module):
        option = "--dtype" if DTYPES[arguments.dtype] not in module.DTYPES else "--device"
        parser.error(f"argument {option}: {_left_out(arguments, module).replace('it', arguments.case, 1)}")
    for name in ("input", "activities", "depths", "depth_activity"):
        if module is not sparse and getattr(arguments, name) is not None:
            parser.error(f"argument --{name.replace('_', '-')}: only for the case sparse, not for {arguments.case}")
    threads_before = torch.get_num_threads()
    try:
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        with torch.cuda.device(arguments.device) if arguments.device.type == "cuda" else contextlib.nullcontext():
            environment = record(arguments.device, DTYPES[arguments.dtype])
            results, sweeps = _run(arguments)
    finally:
        torch.set_num_threads(threads_before)

    said = [(report.sweep_markdown if arguments.markdown else report.sweep_text)(sweep) for sweep in sweeps]
    if not sweeps:
        said = [(report.markdown if arguments.markdown else report.text)(result) for result in results]
    print("\n\n".join(said))
    print("\n" + report.environment_line(environment))
    if arguments.quick:
        print("Small sizes (--quick): the times say that it runs, not how fast it is.")
    if arguments.json:
        document = report.to_json(results, environment, _settings_record(arguments), sweeps)
        write_text(arguments.json, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if arguments.chart:
        if sweeps:
            sweep_chart.draw(sweeps[0], environment, arguments.chart)
        else:
            chart.draw(results, environment, arguments.chart)
    return 0 if all(result.passed for result in results) else 1
