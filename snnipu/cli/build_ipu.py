"""``python -m snnipu build-ipu``: build the PopART operators with the enabled Poplar SDK."""

import argparse
import os
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from snnipu._version import __version__
from snnipu.backends import popart_library
from snnipu.backends.popart_library import CODELETS, LIBRARY
from snnipu.cli._streams import called


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=called("build-ipu"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Build {LIBRARY} and {CODELETS}, by which layers of snnipu run on IPUs under a real\n"
        "PopTorch, with the Poplar SDK that is enabled in this shell. Files that are up to date are not built again.",
        epilog="Needs GNU make and a C++17 compiler (CXX, else g++, c++ or clang++), and the SDK's popc.\n\n"
        "Exit status: 0 built, or up to date; 1 not built; 2 wrong arguments.",
    )
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder to build in (default: one for this version and SDK in the cache, where layers look for it; for "
        "another folder set SNNIPU_POPART_LIBRARY)",
    )
    add("--dry-run", action="store_true", help="print the commands, run none")
    add("--force", action="store_true", help="also build files that are up to date")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Build as ``argv`` requests; return the exit status."""
    arguments = _parser().parse_args(argv)
    terminal = sys.stdout.isatty()
    clear = "\r\033[K" if terminal else ""
    started: List[str] = []

    def progress(line: str) -> None:
        if terminal:
            print(f"{clear}{line} ...", end="", flush=True)
        elif line.split(",")[0] not in started:  # not a terminal: print each line once
            started.append(line.split(",")[0])
            print(f"{line} ...", flush=True)

    try:
        plan = popart_library.plan(arguments.output, arguments.force)
        if arguments.dry_run:
            print(popart_library.dry_run(plan))
            return 0
        print(f"snnipu {__version__} for the Poplar SDK {plan.sdk}, in {plan.output}", flush=True)
        library = popart_library.build(plan, lambda line: print(f"{clear}{line}", flush=True), progress)
    except popart_library.BuildError as error:
        print(f"{clear}snnipu build-ipu: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{clear}stopped", file=sys.stderr)
        return 130
    if library == popart_library.library_path():
        print(f"ready: layers under PopTorch load {library}")
    else:
        print(f"ready: set SNNIPU_POPART_LIBRARY={library}")
        if os.environ.get("SNNIPU_POPART_LIBRARY"):
            print(f"now it is {popart_library.library_path()}")
    return 0
