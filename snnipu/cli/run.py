"""``python -m snnipu run SCRIPT [ARGS]``: run an unmodified PopTorch (or snnTorch) script on this machine."""

import argparse
import os
import runpy
import sys
from types import TracebackType
from typing import List, Optional

from snnipu import _dropin
from snnipu.cli._streams import called, is_output_closed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=called("run"),
        description="Run a Python script. 'import poptorch' imports PopTorch if it is installed, else snnipu's host "
        "runtime of it.",
    )
    parser.add_argument(
        "--drop-in", action="store_true", help="'import snntorch' imports snnipu, in the script and in its imports"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="like --drop-in; loops over time steps in the forward passes of networks run as sequences",
    )
    parser.add_argument(
        "--device",
        choices=("host", "ipu-model"),
        default="host",
        help="ipu-model: custom operators of snnipu run on the IPU model (default: host)",
    )
    parser.add_argument(
        "--ipus",
        type=int,
        metavar="N",
        help="poptorch.ipuHardwareIsAvailable reports N IPUs, which the device stands for (default: none)",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _can_run(script: str) -> bool:
    return os.path.isfile(script) or os.path.isfile(os.path.join(script, "__main__.py"))


def _script_traceback(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return the traceback from the script's first frame on; all of it if the script never ran."""
    launcher_files = {__file__, runpy.__file__, "<frozen runpy>"}
    automatic = sys.modules.get("snnipu.compiler.automatic")
    if automatic is not None:
        launcher_files.add(str(automatic.__file__))
    current = traceback
    while current is not None and current.tb_frame.f_code.co_filename in launcher_files:
        current = current.tb_next
    return current or traceback


def _log_compiled_loops() -> None:
    """Print the compiler's messages on stderr, and compile loops automatically."""
    import logging

    from snnipu.compiler import auto

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("snnipu run: %(message)s"))
    logger = logging.getLogger("snnipu.compiler")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    auto()


def main(argv: List[str]) -> int:
    """Run the script that ``argv`` names as ``__main__``; return the exit status.

    An exception of the script is printed like Python does, from the script's first frame on, and gives status 1.
    ``sys.exit`` and a closed pipe propagate. An interrupt gives status 130, a missing script status 2.
    """
    arguments = _parser().parse_args(argv)
    script: str = arguments.script
    if not _can_run(script):
        print(f"snnipu run: there is no script {script!r}", file=sys.stderr)
        return 2
    _dropin.provide_poptorch()
    if arguments.device == "ipu-model":
        os.environ["POPTORCH_IPU_MODEL"] = "1"
    if arguments.ipus is not None:
        os.environ["SNNIPU_IPUS"] = str(arguments.ipus)
    if arguments.drop_in or arguments.compile:
        _dropin.provide_snntorch()
    if arguments.compile:
        _log_compiled_loops()
    before = sys.argv, sys.path
    folder = script if os.path.isdir(script) else os.path.dirname(os.path.abspath(script))
    sys.argv, sys.path = [script, *arguments.args], [folder, *sys.path[1:]]
    try:
        if arguments.compile and not os.path.isdir(script):
            from snnipu.compiler.automatic import run_script

            run_script(script)
        else:
            runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        print("snnipu run: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if is_output_closed(error):
            raise
        traceback = _script_traceback(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 1
    finally:
        sys.argv, sys.path = before
    return 0
