"""``python -m benchmarks CASE``: snnipu beside its peers, in one run that can be stopped at any time."""

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
from benchmarks.memory import tells_resident
from benchmarks.peers import PEERS
from benchmarks.runner import passed, run_table
from snnipu.cli.info import collect
from snnipu.training import write_atomically

# What must be the same for times to stand side by side.
SAME = ("device_name", "processor", "threads", "dtype", "versions")
STOPPED = 130


def environment(arguments):
    """Return what a reader needs to judge or repeat a measurement."""
    found = collect()
    for name in ("braintrace", "dcls"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["versions"][name] = metadata.version(name)
    on_gpu = arguments.device.type == "cuda"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device_name": torch.cuda.get_device_name(arguments.device) if on_gpu else found["processor"],
        "tf32": bool(on_gpu and torch.backends.cuda.matmul.allow_tf32),
        "threads": torch.get_num_threads(),
        "dtype": arguments.dtype or "float32",
        "case": arguments.case,
        "settings": dict(arguments.settings),
        "quick": arguments.quick,
        **found,
    }


def described(found):
    """Return a line on where the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    native = found["native"]["in_use"] or "no native library"
    return (
        f"{found['device_name']} (torch: {found['torch_instruction_set']}, snnipu: {native}), {found['threads']} "
        f"threads, {found['dtype']}{', TF32' if found['tf32'] else ''}; {versions}; {found['date']}"
    )


@contextlib.contextmanager
def surroundings(arguments):
    """Set threads and GPU, and let SIGTERM stop as Ctrl-C does.

    Convolutions on a GPU round factors to TF32 where matrix products do, as the record says.
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
    known = "\n".join(f"  {name:<13} {summary}" for name, summary in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Time snnipu beside its peers, interleaved, after checking what each contender computes.",
        epilog=f"cases and their settings:\n{listing}\n\npeers:\n{known}\n\n"
        "Exit status: 0 all checks passed, 1 a check is red (or snnipu failed), 2 wrong arguments, 130 stopped by "
        "Ctrl-C; what was measured before is kept.",
    )
    add = parser.add_argument
    add("case", nargs="?", default="all", choices=[*CASES, "all"], help="what to run; all: one table of each case")
    add("settings", nargs="*", type=setting, default=[], metavar="SETTING=VALUE", help="of the case; several: a sweep")
    add("--json", type=Path, metavar="FILE", help="write the records, after each measurement")
    add("--chart", type=Path, metavar="FILE.png", help="draw the results")
    add("--merge", type=Path, nargs="+", metavar="FILE", help="run nothing: the records of earlier runs as one")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="where to run (default: cpu)")
    add("--dtype", choices=["float32", "float64", "float16", "bfloat16"], help="element type (default: float32)")
    add("--peers", type=peers, default=list(PEERS), metavar="LIST", help="comma-separated; default: all; or none")
    add("--threads", type=int, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--repeats", type=int, metavar="N", help="rounds, at least (default: the case's)")
    add("--min-seconds", type=float, metavar="S", help="timing a table, at least (default: the case's)")
    add("--resident-memory", action="store_true", help="peak resident memory too, each in a process of its own (Linux)")
    add("--quick", action="store_true", help="small sizes, few rounds: does everything run? The times mean little")
    return parser


def tables_of(name, case, arguments):
    """Return the settings of each table; raise ValueError where the case cannot run so."""
    dtype = arguments.dtype or "float32"
    where = {"device": arguments.device, "dtype": getattr(torch, dtype)}
    if where["dtype"] not in case.dtypes or arguments.device.type not in case.devices:
        raise ValueError(f"{name} does not run in {dtype} on {arguments.device.type}")
    values = {**case.sizes, **(case.quick if arguments.quick else {})}
    asked = {key: value for key, value in arguments.settings if key in values or arguments.case == name}
    for key, value in asked.items():
        if key not in values:
            raise ValueError(f"{name} has no setting {key}; it has {', '.join(values)}")
        choices = case.choices.get(key, several(value))
        wrong = [one for one in several(value) if one not in choices]
        if wrong:
            raise ValueError(f"{key}: expected one of {', '.join(map(str, choices))}, got {wrong[0]!r}")
    values.update(asked)
    if arguments.case == "all":
        values = headline(values)
    as_it_comes = not (asked or arguments.quick or arguments.dtype)
    on_cuda = case.on_cuda if as_it_comes and arguments.device.type == "cuda" else ()
    return [Settings(**{**values, **where, **point}) for point in on_cuda or case.points(values)]


def merged(paths):
    """Return the environment and the records of earlier runs on one machine; of a table the last run counts."""
    tables = {}
    documents = []
    for path in paths:
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
            tables.update({record["title"]: [] for record in documents[-1]["records"]})
            other = [key for key in SAME if documents[-1]["environment"][key] != documents[0]["environment"][key]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no record: {error}") from None
        if other:
            raise ValueError(f"{path} has another {other[0]} than {paths[0]}")
        for record in documents[-1]["records"]:
            tables[record["title"]].append(record)
    return documents[0]["environment"], [record for records in tables.values() for record in records]


def tell(records):
    """Print tables; return the summary."""
    summary = report.summarise(records)
    for name, rows in summary.groupby("case", sort=False):
        case, usual = CASES[name], rows
        along = report.sweep_tables(case, rows)
        for key, value in headline(case.sizes).items() if along else ():
            here = usual[usual[key] == value] if key in usual else usual
            usual = usual if here.empty else here
        whole = [report.table(table) for _, table in usual.groupby("title", sort=False)]
        print("\n\n".join([case.work, *along, *whole, f"Check: {case.check}", report.remarks(rows)]) + "\n")
    return summary


def write(path, found, records):
    """Write the records, a line each."""
    lines = ",\n".join(map(json.dumps, records))
    text = f'{{"environment": {json.dumps(found)},\n"records": [\n{lines}\n]}}\n'
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def run(tables, arguments, records, save):
    """Run the tables, as far as they come; return True if they were stopped."""
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
                memory_apart=case.memory_apart and not arguments.quick and tells_resident(arguments.device),
                after_measurement=save,
                tell=lambda stage, number=number: print(f"[{number}/{len(tables)}] {stage}", file=sys.stderr),
            )
    except KeyboardInterrupt:
        print("stopped: what was measured is kept", file=sys.stderr)
        return True
    return False


def main(argv=None):
    """Run the benchmarks that ``argv`` asks for; returns the exit status."""
    parser = arguments_parser()
    arguments = parser.parse_args(argv)
    arguments.device = torch.device(arguments.device)
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: this PyTorch finds no CUDA device")
    if arguments.resident_memory and not tells_resident(arguments.device):
        parser.error("argument --resident-memory: only on Linux, and only with --device cpu")
    tables, left_out, written = [], [], time.monotonic()
    with surroundings(arguments):
        try:
            found, records = merged(arguments.merge) if arguments.merge else (environment(arguments), [])
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
            """Not more often than once a second."""
            nonlocal written
            if arguments.json and time.monotonic() - written > 1.0:
                write(arguments.json, found, records)
                written = time.monotonic()

        if arguments.json:  # what cannot be written is known before the run
            write(arguments.json, found, records)
        stopped = run(tables, arguments, records, save)
    if arguments.json:
        write(arguments.json, found, records)
    if records:
        summary = tell(records)
        if arguments.chart:
            report.draw(CASES, summary, described(found), arguments.chart)
    print("\n".join([*left_out, described(found)]))
    if arguments.quick:
        print("Small sizes (--quick): the times say that it runs, not how fast it is.")
    return STOPPED if stopped else 0 if passed(records) else 1


if __name__ == "__main__":
    sys.exit(main())
