"""``python -m snnipu``: one sub-command a module, imported only when its command runs."""

import argparse
import importlib
import sys
from typing import List, Optional

from snnipu.cli._streams import called, guarded

COMMANDS = {
    "info": "versions, instruction set, threads, and on which backend each op runs here",
    "train": "train a spiking network on real digits",
    "run": "run an unmodified PopTorch (or snnTorch) script on this machine",
    "bench": "time snnipu beside its peers, in one run",
    "profile": "plan a network on IPU tiles; predict memory and speed by a model",
    "build-ipu": "build the operators for IPUs with the Poplar SDK that is enabled",
}


def main(argv: Optional[List[str]] = None) -> int:
    """Run the sub-command that ``argv`` (default: ``sys.argv[1:]``) names; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv and argv[0] in COMMANDS else ""
    return guarded(called(command), lambda: _run(argv))


def _run(argv: List[str]) -> int:
    from snnipu._version import __version__

    if argv and argv[0] in COMMANDS:
        status: int = importlib.import_module(f"snnipu.cli.{argv[0].replace('-', '_')}").main(argv[1:])
        return status
    parser = argparse.ArgumentParser(prog=called(), description="Fast training of spiking neural networks.")
    parser.add_argument("--version", action="version", version=f"snnipu {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
    parser.parse_args(argv)
    parser.print_help()
    return 2
