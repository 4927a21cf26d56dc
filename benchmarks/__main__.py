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
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import pandas as pd
import torch

from benchmarks import report
from benchmarks.case import Case, Settings, headline, several
from benchmarks.cases import CASES
from benchmarks.memory import tells_resident
from benchmarks.peers import PEERS
from benchmarks.runner import Record, passed, run_table
from snnipu.cli.info import collect
from snnipu.training import write_atomically

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
# What must be the same for times to stand side by side.
SAME = ("device_name", "processor", "threads", "dtype", "versions")
STOPPED = 130


def environment(device: torch.device, dtype: str) -> Dict[str, Any]:
    """Return what a reader needs to judge or repeat a measurement."""
    found = collect()
    for name in ("braintrace", "dcls"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["versions"][name] = metadata.version(name)
    on_gpu = device.type == "cuda"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else found["processor"],
        "tf32": bool(on_gpu and torch.backends.cuda.matmul.allow_tf32),
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        **found,
    }


def described(found: Dict[str, Any]) -> str:
    """Return a line on where the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    native = found["native"]["in_use"] or "no native library"
    return (
        f"{found['device_name']} (torch: {found['torch_instruction_set']}, snnipu: {native}), {found['threads']} "
        f"threads, {found['dtype']}{', TF32' if found['tf32'] else ''}; {versions}; {found['date']}"
    )


@contextlib.contextmanager
def on_device(device: torch.device, threads: Optional[int]) -> Iterator[None]:
    """Choose a GPU; its convolutions round factors to TF32 where matrix products do, as the record says."""
    threads_before, tf32_before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(threads or threads_before)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield
    finally:
        torch.set_num_threads(threads_before)
        torch.backends.cudnn.allow_tf32 = tf32_before


def chosen(text: str) -> Tuple[str, Any]:
    """Parse ``name=value`` or ``name=value,value`` of a setting."""
    name, _, values = text.partition("=")
    usual = getattr(Settings(), name, None)
    if not isinstance(usual, (int, float, str)):
        raise argparse.ArgumentTypeError(f"expected SETTING=VALUE[,VALUE], got {text!r}")
    try:
        parsed = tuple(type(usual)(value) for value in values.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: {name} is a {type(usual).__name__}") from None
    if not isinstance(usual, str) and min(parsed) <= 0 and name not in ("seed", "hidden_neurons"):
        raise argparse.ArgumentTypeError(f"{text}: {name} must be above 0")
    return name, parsed if len(parsed) > 1 else parsed[0]


def device(text: str) -> torch.device:
    try:
        found = torch.device(text)
    except RuntimeError:
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"unknown device {text!r}; known: cpu, cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text}: this PyTorch finds no CUDA device")
    return found


def peers(text: str) -> List[str]:
    names = [] if text == "none" else text.split(",")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}, or none")
    return names


def output(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: expected a file in a folder that exists")
    return path


def parse(argv: Optional[Sequence[str]]) -> Tuple[argparse.ArgumentParser, argparse.Namespace]:
    listing = "\n".join(
        f"  {name:<12}{case.summary}\n{'':14}{' '.join(f'{key}={value}' for key, value in case.sizes.items())}"
        for name, case in CASES.items()
    )
    known_peers = "\n".join(f"  {name:<13} {summary}" for name, summary in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Time snnipu beside its peers, interleaved, after checking what each contender computes.",
        epilog=f"cases and their settings:\n{listing}\n\npeers:\n{known_peers}\n\n"
        f"Exit status: 0 all checks passed, 1 a check is red (or snnipu failed), 2 wrong arguments, {STOPPED} stopped by "
        "Ctrl-C; what was measured before is kept.",
    )
    add = parser.add_argument
    add("case", nargs="?", default="all", choices=[*CASES, "all"], help="what to run; all: one table of each case")
    add("settings", nargs="*", type=chosen, default=[], metavar="SETTING=VALUE", help="of the case; several: a sweep")
    add("--json", type=output, metavar="FILE", help="write the records, after each measurement")
    add("--chart", type=output, metavar="FILE.png", help="draw the results")
    add("--merge", type=Path, nargs="+", metavar="FILE", help="run nothing: the records of earlier runs as one")
    add("--device", type=device, default=torch.device("cpu"), metavar="{cpu,cuda}", help="where to run (default: cpu)")
    add("--dtype", choices=list(DTYPES), help="element type (default: float32)")
    add("--peers", type=peers, default=list(PEERS), metavar="LIST", help="comma-separated; default: all; or none")
    add("--threads", type=int, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--repeats", type=int, metavar="N", help="rounds, at least (default: the case's)")
    add("--min-seconds", type=float, metavar="S", help="timing a table, at least (default: the case's)")
    add("--resident-memory", action="store_true", help="peak resident memory too, each in a process of its own (Linux)")
    add("--quick", action="store_true", help="small sizes, few rounds: does everything run? The times mean little")
    arguments = parser.parse_args(argv)
    if arguments.resident_memory and not tells_resident(arguments.device):
        parser.error("argument --resident-memory: only on Linux, and only with --device cpu")
    return parser, arguments


def why_left_out(case: Case, arguments: argparse.Namespace) -> str:
    """Return why the case does not run with these arguments, or an empty string."""
    if DTYPES[arguments.dtype or "float32"] not in case.dtypes:
        return f"it does not run in {arguments.dtype}"
    return "" if arguments.device.type in case.devices else f"it does not run on {arguments.device.type}"


def tables_of(name: str, case: Case, arguments: argparse.Namespace) -> List[Settings]:
    """Return the settings of each table; raise ValueError where the case cannot run so."""
    values = {**case.sizes, **(case.quick if arguments.quick else {})}
    asked = {key: value for key, value in arguments.settings if key in values or arguments.case == name}
    unknown = [key for key in asked if key not in values]
    if unknown:
        raise ValueError(f"{name} has no setting {unknown[0]}; it has {', '.join(values)}")
    for key, value in asked.items():
        wrong = [one for one in several(value) if one not in case.choices.get(key, several(value))]
        if wrong:
            raise ValueError(f"{key}: expected one of {', '.join(map(str, case.choices[key]))}, got {wrong[0]!r}")
    values.update(asked)
    if arguments.case == "all":
        values = headline(values)
    where = {"device": arguments.device, "dtype": DTYPES[arguments.dtype or "float32"]}
    as_it_comes = not (asked or arguments.quick or arguments.dtype)
    if as_it_comes and arguments.device.type == "cuda" and case.on_cuda:
        return [Settings(**{**values, **where, **table}) for table in case.on_cuda]
    return [Settings(**{**values, **where, **point}) for point in case.points(values)]


def merged(paths: Sequence[Path]) -> Tuple[List[Record], Dict[str, Any]]:
    """Return the records of earlier runs on one machine, and the first one's environment; the last of a table counts."""
    tables: Dict[Any, List[Record]] = {}
    first: Dict[str, Any] = {}
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            records, here = document["records"], document["environment"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no record: {error}") from None
        first = first or here
        other = [key for key in SAME if here.get(key) != first.get(key)]
        if other:
            raise ValueError(f"{path} has another {other[0]} than {paths[0]}")
        tables.update({record["title"]: [] for record in records})
        for record in records:
            tables[record["title"]].append(record)
    return [record for records in tables.values() for record in records], first


def tell(records: Sequence[Record]) -> pd.DataFrame:
    """Print tables; return the summary."""
    summary = report.summarise(report.frame_of(records))
    for name, rows in summary.groupby("case", sort=False):
        along = report.sweep_tables(CASES[name], rows)
        usual = rows
        for name_of_setting, value in headline(CASES[name].sizes).items():
            here = usual[usual[name_of_setting] == value] if along and name_of_setting in usual else usual
            usual = usual if here.empty else here
        shown = dict.fromkeys(usual.title)
        parts = [CASES[name].work, *along, *(report.table(rows[rows.title == title]) for title in shown)]
        print("\n\n".join([*parts, f"Check: {CASES[name].check}", *report.notes(rows)]) + "\n")
    print("\n".join(report.reasons(summary)))
    return summary


class Output:
    """The records of a run, and the file that has them after each measurement."""

    def __init__(self, path: Optional[Path], environment: Dict[str, Any], settings: Dict[str, Any]) -> None:
        self.path, self.environment, self.settings = path, environment, settings
        self.records: List[Record] = []
        self._written = 0.0

    def write(self, at_once: bool = True) -> None:
        """Write the records; unless ``at_once``, not more often than once a second."""
        if self.path is None or not (at_once or time.monotonic() - self._written > 1.0):
            return
        records = ",\n".join(json.dumps(record) for record in self.records)
        head = json.dumps({"environment": self.environment, "settings": self.settings})
        text = f'{head[:-1]},\n"records": [\n{records}\n]}}\n'
        write_atomically(self.path, lambda file: file.write(text.encode("utf-8")))
        self._written = time.monotonic()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the benchmarks that ``argv`` asks for; returns the exit status."""
    parser, arguments = parse(argv)
    asked = CASES if arguments.case == "all" else {arguments.case: CASES[arguments.case]}
    left_out = {name: why_left_out(case, arguments) for name, case in asked.items()}
    if left_out.get(arguments.case):
        parser.error(f"{arguments.case}: {left_out[arguments.case]}")
    stopped = False
    with on_device(arguments.device, arguments.threads):
        settings = {"case": arguments.case, "quick": arguments.quick, "asked": dict(arguments.settings)}
        written = Output(arguments.json, environment(arguments.device, arguments.dtype or "float32"), settings)
        try:
            if arguments.merge:
                written.records, written.environment = merged(arguments.merge)
                asked = {}
            tables = [
                (name, case, table)
                for name, case in asked.items()
                if not left_out[name]
                for table in tables_of(name, case, arguments)
            ]
        except ValueError as error:
            parser.error(str(error))
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for number, (name, case, table) in enumerate(tables, start=1):
                min_seconds = arguments.min_seconds
                if min_seconds is None:
                    min_seconds = 0.0 if arguments.quick else case.min_seconds
                run_table(
                    name,
                    case,
                    table,
                    written.records,
                    arguments.peers,
                    arguments.repeats or (2 if arguments.quick else case.repeats),
                    min_seconds,
                    resident=arguments.resident_memory,
                    memory_apart=case.memory_apart and not arguments.quick and tells_resident(arguments.device),
                    after_measurement=lambda: written.write(at_once=False),
                    tell=lambda stage, number=number: print(f"[{number}/{len(tables)}] {stage}", file=sys.stderr),
                )
        except KeyboardInterrupt:
            stopped = True
            print("stopped: what was measured is kept", file=sys.stderr)
        finally:
            signal.signal(signal.SIGTERM, before)
            written.write()
    where = described(written.environment)
    if written.records:
        summary = tell(written.records)
        if arguments.chart:
            report.draw(CASES, summary, where, arguments.chart)
    print("\n".join([*(f"{name} is left out: {why}" for name, why in left_out.items() if why), where]))
    if arguments.quick:
        print("Small sizes (--quick): the times say that it runs, not how fast it is.")
    return STOPPED if stopped else 0 if passed(written.records) else 1


if __name__ == "__main__":
    sys.exit(main())
