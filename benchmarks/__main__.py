"""``python -m benchmarks CASE``: time snnipu and its peers, in one run that can be stopped at any time."""

import argparse
import contextlib
import datetime
import json
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.case import Settings, headline, several
from benchmarks.cases import CASES
from benchmarks.memory import reports_resident
from benchmarks.peers import PEERS
from benchmarks.runner import passed, run_table
from snnipu.cli.info import collect
from snnipu.training import write_atomically

# Entries of the environment that must be equal for records to be merged.
MUST_EQUAL = ("device_name", "processor", "threads", "dtype", "versions")
STOPPED = 130


def environment(arguments):
    """Return the machine, software and options that a reader needs to judge or repeat a measurement."""
    report = collect()
    for name in ("braintrace", "dcls"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            report["versions"][name] = metadata.version(name)
    on_gpu = arguments.device.type == "cuda"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device_name": torch.cuda.get_device_name(arguments.device) if on_gpu else report["processor"],
        "tf32": bool(on_gpu and torch.backends.cuda.matmul.allow_tf32),
        "threads": torch.get_num_threads(),
        "dtype": arguments.dtype or "float32",
        "case": arguments.case,
        "settings": dict(arguments.settings),
        "quick": arguments.quick,
        **report,
    }


def environment_text(report):
    """Return the environment as one line."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    native = report["native"]["in_use"] or "no native library"
    return (
        f"{report['device_name']} (torch: {report['torch_instruction_set']}, snnipu: {native}), {report['threads']} "
        f"threads, {report['dtype']}{', TF32' if report['tf32'] else ''}; {versions}; {report['date']}"
    )


@contextlib.contextmanager
def surroundings(arguments):
    """Set threads and GPU, and let SIGTERM stop the run like Ctrl-C.

    Convolutions on a GPU use TF32 if matrix products do, as the record states.
    """
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(arguments.threads or threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    try:
        with torch.cuda.device(arguments.device) if arguments.device.type == "cuda" else contextlib.nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = tf32
        signal.signal(signal.SIGTERM, handler)


def setting(text):
    """Parse ``name=value`` or ``name=value,value``."""
    name, _, values = text.partition("=")
    kind = type(getattr(Settings(), name, None))
    if kind not in (int, float, str):
        raise argparse.ArgumentTypeError(f"expected SETTING=VALUE[,VALUE], got {text!r}")
    try:
        parsed = tuple(map(kind, values.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: {name} is of type {kind.__name__}") from None
    if kind is not str and not (min(parsed) > 0 or name in ("seed", "hidden_neurons")):
        raise argparse.ArgumentTypeError(f"{text}: {name} must be above 0")
    if name in ("activity", "beta") and not max(parsed) < 1:
        raise argparse.ArgumentTypeError(f"{text}: {name} must be below 1")
    return name, parsed if len(parsed) > 1 else parsed[0]


def peers(text):
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"unknown peer {name!r}; known: {', '.join(PEERS)}, or none")
    return names


def arguments_parser():
    listing = "\n".join(
        f"  {name:<12}{case.summary}\n{'':14}{' '.join(f'{key}={value}' for key, value in case.sizes.items())}"
        for name, case in CASES.items()
    )
    peer_list = "\n".join(f"  {name:<13} {summary}" for name, summary in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Time snnipu and its peers, interleaved, after checking the results of each contender.",
        epilog=f"cases and their settings:\n{listing}\n\npeers:\n{peer_list}\n\n"
        "Exit status: 0 all checks passed, 1 a check is red (or snnipu failed), 2 wrong arguments, 130 stopped by "
        "Ctrl-C; finished measurements are saved.",
    )
    add = parser.add_argument
    add("case", nargs="?", default="all", choices=[*CASES, "all"], help="the case; all: one table of each case")
    add(
        "settings",
        nargs="*",
        type=setting,
        default=[],
        metavar="SETTING=VALUE",
        help="setting of the case; several values: a sweep",
    )
    add("--json", type=Path, metavar="FILE", help="write the records, after each measurement")
    add("--chart", type=Path, metavar="FILE.png", help="draw the results")
    add("--merge", type=Path, nargs="+", metavar="FILE", help="run nothing: merge the records of earlier runs")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="where to run (default: cpu)")
    add("--dtype", choices=["float32", "float64", "float16", "bfloat16"], help="element type (default: float32)")
    add("--peers", type=peers, default=list(PEERS), metavar="LIST", help="comma-separated; default: all; or none")
    add("--threads", type=int, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--repeats", type=int, metavar="N", help="minimum number of rounds (default: the case's)")
    add("--min-seconds", type=float, metavar="S", help="minimum time for timing a table (default: the case's)")
    add("--resident-memory", action="store_true", help="also peak resident memory, in separate processes (Linux)")
    add("--quick", action="store_true", help="small sizes and few rounds: a test that all cases run, not a measurement")
    return parser


def tables_of(name, case, arguments):
    """Return the settings of each table.

    Raises:
        ValueError: the case does not support the device, the dtype or a setting.
    """
    dtype = arguments.dtype or "float32"
    device_and_dtype = {"device": arguments.device, "dtype": getattr(torch, dtype)}
    if device_and_dtype["dtype"] not in case.dtypes or arguments.device.type not in case.devices:
        raise ValueError(f"{name} does not run in {dtype} on {arguments.device.type}")
    values = case.values(arguments.quick)
    chosen = {key: value for key, value in arguments.settings if key in values or arguments.case == name}
    for key, value in chosen.items():
        if key not in values:
            raise ValueError(f"{name} has no setting {key}; it has {', '.join(values)}")
        choices = case.choices.get(key, several(value))
        wrong = [entry for entry in several(value) if entry not in choices]
        if wrong:
            raise ValueError(f"{key}: expected one of {', '.join(map(str, choices))}, got {wrong[0]!r}")
    values.update(chosen)
    if arguments.case == "all":
        values = headline(values)
    is_default = not (chosen or arguments.quick or arguments.dtype)
    on_cuda = case.on_cuda if is_default and arguments.device.type == "cuda" else ()
    return [Settings(**{**values, **device_and_dtype, **point}) for point in on_cuda or case.points(values)]


def merged(paths):
    """Return the environment and the records of earlier runs on one machine; for each table those of the last run."""
    tables = {}
    documents = []
    for path in paths:
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
            tables.update({record["title"]: [] for record in documents[-1]["records"]})
            differing = [
                key for key in MUST_EQUAL if documents[-1]["environment"][key] != documents[0]["environment"][key]
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no record: {error}") from None
        if differing:
            raise ValueError(f"{path} has another {differing[0]} than {paths[0]}")
        for record in documents[-1]["records"]:
            tables[record["title"]].append(record)
    return documents[0]["environment"], [record for records in tables.values() for record in records]


def print_tables(records):
    """Print tables; return the summary."""
    summary = report.summarise(records)
    for name, rows in summary.groupby("case", sort=False):
        case, headline_rows = CASES[name], rows
        sweeps = report.sweep_tables(case, rows)
        for key, value in headline(case.sizes).items() if sweeps else ():
            rows_at_value = headline_rows[headline_rows[key] == value] if key in headline_rows else headline_rows
            headline_rows = headline_rows if rows_at_value.empty else rows_at_value
        tables = [report.table(table) for _, table in headline_rows.groupby("title", sort=False)]
        print("\n\n".join([case.work, *sweeps, *tables, f"Check: {case.check}", report.remarks(rows)]) + "\n")
    return summary


def write(path, report, records):
    """Write the records, one on each line."""
    lines = ",\n".join(map(json.dumps, records))
    text = f'{{"environment": {json.dumps(report)},\n"records": [\n{lines}\n]}}\n'
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def run(tables, arguments, records, save):
    """Run the tables; return True if the run was stopped."""
    try:
        for number, (name, case, settings) in enumerate(tables, start=1):
            min_seconds = 0.0 if arguments.quick else case.min_seconds
            run_table(
                name,
                case,
                settings,
                records,
                arguments.peers,
                arguments.repeats or (2 if arguments.quick else case.repeats),
                min_seconds if arguments.min_seconds is None else arguments.min_seconds,
                resident=arguments.resident_memory,
                memory_apart=case.memory_apart and not arguments.quick and reports_resident(arguments.device),
                after_measurement=save,
                tell=lambda stage, number=number: print(f"[{number}/{len(tables)}] {stage}", file=sys.stderr),
            )
    except KeyboardInterrupt:
        print("stopped: finished measurements are saved", file=sys.stderr)
        return True
    return False


def main(argv=None):
    """Run the benchmarks that ``argv`` selects; return the exit status."""
    parser = arguments_parser()
    arguments = parser.parse_args(argv)
    arguments.device = torch.device(arguments.device)
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: this PyTorch finds no CUDA device")
    if arguments.resident_memory and not reports_resident(arguments.device):
        parser.error("argument --resident-memory: only on Linux, and only with --device cpu")
    tables, left_out, written = [], [], time.monotonic()
    with surroundings(arguments):
        try:
            run_environment, records = merged(arguments.merge) if arguments.merge else (environment(arguments), [])
        except ValueError as error:
            parser.error(str(error))
        for name in () if arguments.merge else CASES if arguments.case == "all" else (arguments.case,):
            try:
                tables += [(name, CASES[name], settings) for settings in tables_of(name, CASES[name], arguments)]
            except ValueError as error:
                if arguments.case != "all":
                    parser.error(str(error))
                left_out.append(f"{error}: left out")

        def save():
            """Write the records, at most once a second."""
            nonlocal written
            if arguments.json and time.monotonic() - written > 1.0:
                write(arguments.json, run_environment, records)
                written = time.monotonic()

        if arguments.json:  # raises before the run if the file cannot be written
            write(arguments.json, run_environment, records)
        stopped = run(tables, arguments, records, save)
    if arguments.json:
        write(arguments.json, run_environment, records)
    if records:
        summary = print_tables(records)
        if arguments.chart:
            report.draw(CASES, summary, environment_text(run_environment), arguments.chart)
    print("\n".join([*left_out, environment_text(run_environment)]))
    if arguments.quick:
        print("Small sizes (--quick): a test that all cases run, not a measurement.")
    return STOPPED if stopped else 0 if passed(records) else 1


if __name__ == "__main__":
    sys.exit(main())
