"""``python -m snnipu bench``: snnipu beside its peers, in one run."""

import argparse
import contextlib
import functools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from tqdm import tqdm

from snnipu._extras import MissingExtra, require
from snnipu._files import write_text
from benchmarks import (
    PEERS,
    Case,
    CaseResult,
    Settings,
    Sweep,
    SweepResult,
    cases,
    chart,
    report,
    run_case,
    scale,
    stored,
    sweep_chart,
)
from benchmarks.environment import record
from benchmarks.options import Option
from benchmarks.resident import resident_peak_bytes, supported
from snnipu.cli._streams import output_path
from snnipu.ops._break_even import tf32_allowed

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
SIZES = ("steps", "batch_size", "neurons")
SCALE = "scale"
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


def _process_numbers(text: str) -> List[int]:
    return [_positive_integer(part) for part in text.split(",")]


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


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """On that GPU; convolutions round their factors to TF32 where matrix products do, as the record tells."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32_allowed()
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _default(name: str) -> str:
    """A size or number of rounds that each case has by itself."""
    said = [f"default: {FULL[name]:g}"]
    for case, module in cases.available().items():
        if name == "neurons" and hasattr(module, "NEURONS"):
            said.append(f"{case}: as published")
        elif getattr(module, "FULL", FULL)[name] != FULL[name]:
            said.append(f"{case}: {module.FULL[name]:g}")
    return "; ".join(said)


def _options() -> Dict[str, Sequence[Option]]:
    """Of each case, those that it alone has."""
    return {name: getattr(module, "OPTIONS", ()) for name, module in cases.available().items()}


def _type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """What argparse calls; it passes on what this error says, and not what a ValueError does."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _paths(text: str) -> List[Path]:
    return [Path(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    modules = cases.available()
    listing = "\n".join(f"  {name:<10} {module.SUMMARY}" for name, module in modules.items())
    listing += f"\n  {SCALE:<10} training by several processes: strong and weak scaling; not part of all"
    peers = "\n".join(f"  {name:<13} {summary}" for name, summary in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Time snnipu beside its peers, interleaved in one run, after checking what each of them computes.",
        epilog=f"cases:\n{listing}\n\npeers:\n{peers}\n\n"
        "Exit status: 0 all checks passed, 1 a check is red (or snnipu failed), 2 wrong arguments.",
    )
    add = parser.add_argument
    add("case", nargs="?", default="all", choices=[*modules, SCALE, "all"], help="what to run (default: all)")
    add("--json", type=output_path(), metavar="FILE", help="write the results as JSON")
    add(
        "--merge",
        type=_paths,
        metavar="LIST",
        help="JSON files of earlier runs, comma-separated: tell, write and draw as one (only for compile and programs)",
    )
    add("--chart", type=output_path(*chart.FORMATS), metavar="FILE.png", help="draw the results (.png, .svg or .pdf)")
    add("--markdown", action="store_true", help="print Markdown tables")
    add("--device", type=_device, default=torch.device("cpu"), metavar="{cpu,cuda}", help="where to run (default: cpu)")
    add("--dtype", choices=list(DTYPES), help="element type (default: float32)")
    add("--peers", type=_peers, default=list(PEERS), metavar="LIST", help="comma-separated; default: all; or none")
    add("--threads", type=_positive_integer, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--steps", type=_positive_integer, metavar="T", help=f"time steps ({_default('steps')})")
    add("--batch-size", type=_positive_integer, metavar="B", help=f"samples ({_default('batch_size')})")
    add("--neurons", type=_positive_integer, metavar="N", help=f"of a hidden layer ({_default('neurons')})")
    add("--repeats", type=_positive_integer, metavar="N", help=f"rounds, at least ({_default('repeats')})")
    add("--min-seconds", type=_seconds, metavar="S", help=f"timing a table, at least ({_default('min_seconds')})")
    add("--resident-memory", action="store_true", help="peak resident memory too, each in a process of its own (Linux)")
    add("--quick", action="store_true", help="small sizes, few rounds: does everything run? The times mean little")
    group = parser.add_argument_group(f"only for {SCALE}")
    group.add_argument(
        "--processes",
        type=_process_numbers,
        metavar="LIST",
        help="numbers of processes, comma-separated (default: 1,2; their threads share --threads)",
    )
    for name, options in _options().items():
        group = parser.add_argument_group(f"only for {name}")  # an empty group is not printed
        for option in options:
            group.add_argument(
                option.flag,
                type=_type(option.parse),
                choices=option.choices,
                metavar=option.metavar,
                help=option.help,
            )
    return parser


def _values(arguments: argparse.Namespace, module: Optional[ModuleType]) -> Dict[str, Any]:
    """Sizes and rounds: what was asked for, else a case's own defaults, else the command's."""
    own = getattr(module, "QUICK" if arguments.quick else "FULL", {})
    asked = {name: getattr(arguments, name) for name in FULL if getattr(arguments, name) is not None}
    values = {**(QUICK if arguments.quick else FULL), **own, **asked}
    neurons = getattr(module, "NEURONS", "neurons")
    if neurons != "neurons":
        values.pop("neurons")
        values[neurons] = arguments.neurons or own.get(neurons)
    for option in getattr(module, "OPTIONS", ()):
        value = getattr(arguments, option.name)
        if option.setting and value is not None:
            values[option.setting] = value
    return values


def _settings(arguments: argparse.Namespace, module: ModuleType) -> Settings:
    values = _values(arguments, module)
    sizes = {name: value for name, value in values.items() if name not in ("repeats", "min_seconds")}
    return Settings(dtype=DTYPES[arguments.dtype], device=arguments.device, **sizes)


def _run_case(arguments: argparse.Namespace, case: Case, settings: Settings, **more: Any) -> CaseResult:
    values = _values(arguments, cases.available()[case.name])
    rounds = values["repeats"], values["min_seconds"]
    return run_case(case, arguments.peers, settings.device, *rounds, **more)


def _resident(asked: bool, name: str, settings: Settings) -> Optional[Callable[[str], Optional[int]]]:
    return functools.partial(resident_peak_bytes, name, settings=settings) if asked else None


def _sweep(arguments: argparse.Namespace, module: Optional[ModuleType]) -> Optional[Sweep]:
    """What a case that has a sweep runs when it is asked for alone.

    Raises:
        ValueError: it cannot run so; begins with the name of the option.
    """
    if module is None or not hasattr(module, "sweep"):
        return None
    chosen = {}
    for option in getattr(module, "OPTIONS", ()):
        if not option.setting:
            given = getattr(arguments, option.name)
            chosen[option.name] = (option.quick if arguments.quick else option.full) if given is None else given
    return module.sweep(_settings(arguments, module), **chosen)


def _run_sweep(arguments: argparse.Namespace, module: ModuleType, sweep: Sweep) -> SweepResult:
    found = SweepResult(sweep, [])
    apart = sweep.memory_apart and not arguments.quick and supported(arguments.device)
    with tqdm(total=len(sweep.points), bar_format=SWEEP_PROGRESS, file=sys.stderr, leave=False) as progress:
        for point in sweep.points:
            case = module.build(point)
            where, whole = sweep.place(case.parameters), sweep.shown_whole(case.parameters)
            found.results.append(
                _run_case(
                    arguments,
                    case,
                    point,
                    # A process for each contender takes long: the tables that are shown whole have this column.
                    resident=_resident(apart or (arguments.resident_memory and whole), case.name, point),
                    memory_apart=apart,
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


def _run(arguments: argparse.Namespace, sweep: Optional[Sweep]) -> Tuple[List[CaseResult], List[SweepResult]]:
    """All tables, and the sweeps that some of them are points of."""
    modules = cases.available()
    if sweep is not None:
        found = _run_sweep(arguments, modules[arguments.case], sweep)
        return found.results, [found]
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
                        module.build(table),
                        table,
                        resident=_resident(arguments.resident_memory, name, table),
                        on_stage=progress.set_description,
                        on_round=progress.update,
                    )
                )
    return results, []


def _settings_record(arguments: argparse.Namespace) -> Dict[str, Any]:
    """What the run was asked for; in a run of all cases, what differs from it stands in a case's ``parameters``."""
    module = cases.available().get(arguments.case)
    values = _values(arguments, module)
    # Null: the published numbers, or each point of the sweep has its own.
    values.update({size: None for option in getattr(module, "OPTIONS", ()) for size in option.replaces})
    return {
        "case": arguments.case,
        "peers": arguments.peers,
        "steps": values["steps"],
        "batch_size": values["batch_size"],
        "neurons": values[getattr(module, "NEURONS", "neurons")],
        "beta": values.get("beta", Settings().beta),
        "repeats": values["repeats"],
        "min_seconds": values["min_seconds"],
        "quick": arguments.quick,
    }


def _check_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Options that the case does not have are errors."""
    for case, options in _options().items():
        for option in options:
            if arguments.case != case and getattr(arguments, option.name) is not None:
                parser.error(f"argument {option.flag}: only for the case {case}, not for {arguments.case}")
            for size in option.replaces if arguments.case == case else ():
                if getattr(arguments, size) is not None:
                    flag = f"--{size.replace('_', '-')}"
                    parser.error(f"argument {flag}: not for the case {case}, which has its sizes from {option.flag}")


def _scale(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    given = {"--device": arguments.device.type != "cpu", "--resident-memory": arguments.resident_memory}
    given["--dtype"] = arguments.dtype != "float32"
    for option in (option for option, asked in given.items() if asked):
        parser.error(f"argument {option}: not for {SCALE}, which runs in float32 on the CPU")
    sizes = {name: int(getattr(arguments, name) or (QUICK if arguments.quick else FULL)[name]) for name in SIZES}
    repeats = arguments.repeats or (QUICK if arguments.quick else FULL)["repeats"]
    threads = arguments.threads or torch.get_num_threads()
    try:
        points = scale.measure(arguments.processes or [1, 2], repeats=int(repeats), threads=threads, **sizes)
    except scale.ScaleError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    environment = record(arguments.device, torch.float32)
    print(scale.table(points, arguments.markdown))
    print(f"\n784-{sizes['neurons']}-10, T={sizes['steps']}; {report.environment_line(environment)}")
    if arguments.json:
        document = {"case": SCALE, **sizes, "environment": environment, "points": [p._asdict() for p in points]}
        write_text(arguments.json, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if arguments.chart:
        scale.draw(points, arguments.chart)
    return 0


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
    if arguments.case == SCALE:
        return _scale(parser, arguments)
    if arguments.processes:
        parser.error(f"argument --processes: only for {SCALE}")
    if arguments.resident_memory and not supported(arguments.device):
        parser.error("argument --resident-memory: only on Linux, and only with --device cpu")
    module = cases.available().get(arguments.case)
    if module is not None and _left_out(arguments, module):
        option = "--dtype" if DTYPES[arguments.dtype] not in module.DTYPES else "--device"
        parser.error(f"argument {option}: {_left_out(arguments, module).replace('it', arguments.case, 1)}")
    _check_options(parser, arguments)
    if arguments.merge:
        return _merge(parser, arguments, module)
    threads_before = torch.get_num_threads()
    try:
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        with _on(arguments.device):
            environment = record(arguments.device, DTYPES[arguments.dtype])
            try:
                sweep = _sweep(arguments, module)
            except ValueError as error:
                parser.error(f"argument --{error}")
            results, sweeps = _run(arguments, sweep)
    finally:
        torch.set_num_threads(threads_before)

    return _tell(arguments, results, sweeps, environment)


def _merge(parser: argparse.ArgumentParser, arguments: argparse.Namespace, module: Optional[ModuleType]) -> int:
    """Earlier runs as one."""
    if module is None or not hasattr(module, "gathered"):
        parser.error(f"argument --merge: not for {arguments.case}")
    try:
        points, results, environment = stored.read(
            arguments.merge, arguments.case, module.build, _settings(arguments, module)
        )
    except ValueError as error:
        parser.error(f"argument --merge: {error}")
    sweep = module.gathered(points)
    results = [results[points.index(point)] for point in sweep.points]
    return _tell(arguments, results, [SweepResult(sweep, results)], environment)


def _tell(
    arguments: argparse.Namespace,
    results: List[CaseResult],
    sweeps: List[SweepResult],
    environment: Dict[str, Any],
) -> int:
    """Print, write and draw; returns the exit status."""
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


if __name__ == "__main__":
    sys.exit(main())
