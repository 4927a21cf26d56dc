"""``python -m snnipu bench``: snnipu beside its peers, in one run."""

import argparse
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from tqdm import tqdm

from snnipu._extras import MissingExtra, require
from snnipu.benchmarking import PEERS, CaseResult, Settings, cases, chart, report, run_case
from snnipu.benchmarking.environment import record
from snnipu.benchmarking.resident import resident_peak_bytes, supported

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
PROGRESS = "{desc}: {bar:30} round {n} of {total} [{elapsed}]"
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


def _output_path(*suffixes: str) -> Callable[[str], Path]:
    """A file that can be written: found out before the run, not after it."""

    def parse(text: str) -> Path:
        path = Path(text)
        if suffixes and path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{text}: the name must end in {', '.join(suffixes)}")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text} is a directory")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text} cannot be written")
        return path

    return parse


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
    add("--json", type=_output_path(), metavar="FILE", help="write the results as JSON")
    add("--chart", type=_output_path(*chart.FORMATS), metavar="FILE.png", help="draw the results (.png, .svg or .pdf)")
    add("--markdown", action="store_true", help="print Markdown tables")
    add("--device", type=_device, default=torch.device("cpu"), metavar="{cpu,cuda}", help="where to run (default: cpu)")
    add("--dtype", choices=list(DTYPES), default="float32", help="element type (default: float32)")
    add("--peers", type=_peers, default=list(PEERS), metavar="LIST", help="comma-separated; default: all; or none")
    add("--threads", type=_positive_integer, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--steps", type=_positive_integer, metavar="T", help=f"time steps (default: {FULL['steps']})")
    add("--batch-size", type=_positive_integer, metavar="B", help=f"samples (default: {FULL['batch_size']})")
    add("--neurons", type=_positive_integer, metavar="N", help=f"neurons of the layer (default: {FULL['neurons']})")
    add("--repeats", type=_positive_integer, metavar="N", help=f"rounds, at least (default: {FULL['repeats']})")
    add("--min-seconds", type=_seconds, metavar="S", help=f"timing a case, at least (default: {FULL['min_seconds']:g})")
    add("--resident-memory", action="store_true", help="peak resident memory too, each in a process of its own (Linux)")
    add("--quick", action="store_true", help="small sizes, few rounds: does everything run? The times mean little")
    return parser


def _run(arguments: argparse.Namespace, settings: Settings) -> List[CaseResult]:
    modules = cases.available()
    names = list(modules) if arguments.case == "all" else [arguments.case]
    results = []
    for name in names:
        if settings.dtype not in modules[name].DTYPES:
            print(f"{name} is left out: it does not run in {arguments.dtype}\n")
            continue
        resident = (
            functools.partial(resident_peak_bytes, name, settings=settings) if arguments.resident_memory else None
        )
        with tqdm(total=arguments.repeats, bar_format=PROGRESS, file=sys.stderr, leave=False) as progress:
            results.append(
                run_case(
                    modules[name].build(settings),
                    arguments.peers,
                    settings.device,
                    arguments.repeats,
                    arguments.min_seconds,
                    resident,
                    on_stage=progress.set_description,
                    on_round=progress.update,
                )
            )
    return results


def _settings_record(arguments: argparse.Namespace, settings: Settings) -> Dict[str, Any]:
    return {
        "case": arguments.case,
        "peers": arguments.peers,
        "steps": settings.steps,
        "batch_size": settings.batch_size,
        "neurons": settings.neurons,
        "beta": settings.beta,
        "repeats": arguments.repeats,
        "min_seconds": arguments.min_seconds,
        "quick": arguments.quick,
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the benchmarks that ``argv`` asks for; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for name, value in (QUICK if arguments.quick else FULL).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.chart:
        try:
            require("matplotlib.figure", "bench", "a chart")
        except MissingExtra as error:
            parser.error(f"argument --chart: {error}")
    if arguments.resident_memory and not supported(arguments.device):
        parser.error("argument --resident-memory: only on Linux, and only with --device cpu")
    module = cases.available().get(arguments.case)
    if module is not None and DTYPES[arguments.dtype] not in module.DTYPES:
        parser.error(f"argument --dtype: {arguments.case} does not run in {arguments.dtype}")
    settings = Settings(
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        neurons=arguments.neurons,
        dtype=DTYPES[arguments.dtype],
        device=arguments.device,
    )
    threads_before = torch.get_num_threads()
    try:
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        environment = record(settings.device, settings.dtype)
        results = _run(arguments, settings)
    finally:
        torch.set_num_threads(threads_before)

    render = report.markdown if arguments.markdown else report.text
    print("\n\n".join(render(result) for result in results))
    print("\n" + report.environment_line(environment))
    if arguments.quick:
        print("Small sizes (--quick): the times say that it runs, not how fast it is.")
    if arguments.json:
        document = report.to_json(results, environment, _settings_record(arguments, settings))
        arguments.json.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if arguments.chart:
        chart.draw(results, environment, arguments.chart)
    return 0 if all(result.passed for result in results) else 1
