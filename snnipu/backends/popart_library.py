"""Find the library of the PopART operators for a real PopTorch, and build it with a Poplar SDK.

``libsnnipu_popart.so`` has the operators; ``snnipu.gp`` in the same folder has their vertices. ``custom_ops/Makefile``
builds both. The sources are part of an installed package. Only ``python -m snnipu build-ipu`` builds them.

Environment: ``SNNIPU_POPART_LIBRARY``, the library to load; ``XDG_CACHE_HOME``, the folder of the cache for built
libraries (default: ``~/.cache``); ``POPLAR_SDK_ENABLED`` and ``PATH``, set by the SDK's ``enable`` script; ``CXX``, the
C++ compiler.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional

from snnipu import _files
from snnipu._version import __version__
from snnipu.backends.libraries import native_folder, package_folder

LIBRARY, CODELETS, LOG = "libsnnipu_popart.so", "snnipu.gp", "build.log"
COMMAND = "python -m snnipu build-ipu"
# The SDK's scripts, for messages. An SDK 3.x has one script for all parts.
ENABLE = (
    "`source <sdk>/enable`, or `source <sdk>/poplar-<version>/enable.sh` and `source <sdk>/popart-<version>/enable.sh`"
)
_COMPILERS = ("g++", "c++", "clang++")
_PACKAGE = Path(__file__).resolve().parent.parent
# The error to report is the first line of the log that matches the first of these patterns that occurs.
_ERRORS = (r"\berror: ", r"undefined reference|cannot find -l", r"Error \d+$|not found|No such file")
# Errors in the log if a part of the SDK is not enabled.
_MISSING = r"{0}/\S+' file not found|{0}/\S+: No such file|cannot find -l{0}|library not found for -l{0}"
_HINTS = {
    _MISSING.format("popart"): "PopART is not enabled: source its enable.sh, too",
    _MISSING.format("poplar"): "Poplar is not enabled: source its enable.sh",
}


class BuildError(RuntimeError):
    """The operators cannot be built, or cannot be loaded once built; the message says what to do."""


def sources() -> Path:
    """Return the folder with ``custom_ops`` and ``csrc``: a copy in the package, or the checkout.

    Raises:
        BuildError: neither exists.
    """
    for folder in (_PACKAGE / "_ipu_sources", _PACKAGE.parent):
        if (folder / "custom_ops" / "Makefile").is_file():
            return folder
    raise BuildError(f"the sources of the operators are neither in {_PACKAGE / '_ipu_sources'} nor in a checkout")


# ---- the cache of built libraries


def cache_folder() -> Path:
    """Return the folder of the cache, which has a folder for each version of package and SDK."""
    return _files.cache_folder("ipu")


def sdk_version() -> str:
    """Return the version of the SDK whose ``popc`` is on the PATH, such as ``3.3.0-de1f8de2a7``.

    Raises:
        BuildError: no SDK is enabled, or ``popc --version`` does not print a version.
    """
    popc = shutil.which("popc")
    enabled = os.environ.get("POPLAR_SDK_ENABLED")
    if popc is None:
        state = (
            f"POPLAR_SDK_ENABLED is {enabled}, but popc is not on the PATH"
            if enabled
            else "POPLAR_SDK_ENABLED is not set and popc is not on the PATH"
        )
        raise BuildError(f"no Poplar SDK is enabled: {state}. Enable it in this shell with {ENABLE}")
    try:
        done = subprocess.run(
            [popc, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{popc} does not run: {error}") from None
    match = re.search(r"version\s+v?(\d+\.\d+(?:\.\d+)?)(?:\s*\(([0-9A-Za-z]+)\))?", done.stdout)
    if match is None:
        output = done.stdout.strip().splitlines()[:1] or ["nothing"]
        raise BuildError(f"{popc} --version does not print a version ({output[0]}): choose a folder with --output")
    return "-".join(part for part in match.groups() if part)


def cached_library() -> Optional[Path]:
    """Return the library in the cache for this package and the enabled SDK, or None.

    Without popc, return the only library for this package if there is just one.
    """
    libraries = sorted(cache_folder().glob(f"{__version__}-*/{LIBRARY}"))
    if not libraries:
        return None
    try:
        versions = f"{__version__}-{sdk_version()}"
    except BuildError:
        return libraries[0] if len(libraries) == 1 else None
    return next((path for path in libraries if path.parent.name == versions), None)


def library_path() -> Path:
    """Return the path of the library for a real PopTorch.

    It is that of ``SNNIPU_POPART_LIBRARY``. Else it is the first file that exists in the folder of the native
    libraries, the package and the cache. If none exists, it is the path in the folder of the native libraries.
    """
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    if override:
        return Path(override)
    beside = native_folder() / LIBRARY
    # `make -C custom_ops` writes it into the checkout, even if an installed snnipu provides the native libraries.
    existing = (path for path in (beside, package_folder() / LIBRARY) if path.is_file())
    return next(existing, None) or cached_library() or beside


def searched() -> str:
    """Return the places that :func:`library_path` searches, for an error message."""
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    return f"{override}" if override else f"{native_folder()}, nor for this version and SDK in {cache_folder()}"


# ---- building


class BuildPlan(NamedTuple):
    """The plan of a build.

    Attributes:
        sources: folder with ``custom_ops`` and ``csrc``.
        output: folder for both files.
        sdk: version of the SDK.
        compiler: the C++ compiler.
        command: the make command, without a target.
    """

    sources: Path
    output: Path
    sdk: str
    compiler: str
    command: List[str]

    def command_for(self, target: str) -> List[str]:
        """Return the command that builds one of the two files."""
        return [*self.command, str(self.output / target)]


def _compiler() -> str:
    """Return the command of the C++ compiler."""
    command = os.environ.get("CXX", "")
    if command:
        if shutil.which((shlex.split(command) or [""])[0]) is None:
            raise BuildError(f"there is no C++ compiler {command!r}, which CXX names")
        return command
    for name in _COMPILERS:
        if shutil.which(name):
            return name
    raise BuildError(f"there is no C++ compiler: install g++, or name one in CXX (looked for {', '.join(_COMPILERS)})")


def plan(output: Optional[Path] = None, force: bool = False) -> BuildPlan:
    """Plan a build in the current environment.

    Args:
        output: folder for both files; None: the folder for this package and SDK in :func:`cache_folder`.
        force: build files that are up to date, too.

    Raises:
        BuildError: the SDK, make, the compiler or the sources are missing.
    """
    folder = sources()
    try:
        sdk = sdk_version()
    except BuildError:
        if output is None or shutil.which("popc") is None:
            raise
        sdk = "of unknown version"
    output = (cache_folder() / f"{__version__}-{sdk}" if output is None else output).absolute()
    if " " in str(output) or " " in str(folder):
        raise BuildError(f"make cannot handle blanks in paths: choose another folder than {output} with --output")
    make = shutil.which("make") or shutil.which("gmake")
    if make is None:
        raise BuildError("there is no make: install GNU make")
    compiler = _compiler()
    command = [make, *(["-B"] if force else []), "-C", str(folder / "custom_ops"), f"OUT={output}", f"CXX={compiler}"]
    command.append(f"PYTHON={sys.executable}")
    return BuildPlan(folder, output, sdk, compiler, command)


def dry_run(plan: BuildPlan) -> str:
    """Return the commands of :func:`build`, as ``make -n`` prints them, without running them."""
    done = subprocess.run([*plan.command, "-n", "all"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise BuildError(f"make failed: {_first_error(done.stdout)}")
    return f"{shlex.join(plan.command)}\n{done.stdout}".rstrip()


def _first_error(text: str) -> str:
    """Return the line of a log with the error and, if a cause is known, a hint."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for pattern in _ERRORS for line in lines if re.search(pattern, line)), "")
    hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, text)), "")
    return "\n  ".join(part for part in (first or (lines or ["no message"])[-1], hint) if part)


def _run(command: List[str], log: Path, tick: Callable[[float], None]) -> int:
    """Run ``command`` and return its exit status.

    Args:
        command: the command.
        log: file to which its output is appended.
        tick: called each second with the seconds since the start.
    """
    ended = threading.Event()
    started = time.monotonic()

    def beat() -> None:
        while not ended.wait(1):
            tick(time.monotonic() - started)

    # _ERRORS and _HINTS are English.
    environment = {**os.environ, "LC_ALL": "C"}
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment).returncode
        finally:
            ended.set()
            thread.join()


def _check_loads(library: Path) -> None:
    """Raise BuildError if a new Python process cannot load the library, or if the library is of another version."""
    code = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); lib.snnipu_popart_version.restype = ctypes.c_char_p; "
        "print(lib.snnipu_popart_version().decode())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True)
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise BuildError(f"{library} was built, but cannot be loaded: {error[0]}")
    if done.stdout.strip() != __version__:
        raise BuildError(f"{library} is of version {done.stdout.strip()}, the package of {__version__}: use --force")


def build(
    plan: BuildPlan, say: Callable[[str], None] = print, progress: Callable[[str], None] = lambda text: None
) -> Path:
    """Build the library and the vertices, if they are out of date.

    Args:
        plan: the result of :func:`plan`.
        say: called with a line of text for each file that is done.
        progress: called with a line of text about the current file, each second.

    Returns:
        The path of the library. Another process has loaded it once, as a check.

    Raises:
        BuildError: a command failed. The message has the first error; ``build.log`` in the same folder has the whole
            output.
    """
    log = plan.output / LOG
    try:
        plan.output.mkdir(parents=True, exist_ok=True)
        log.write_text("", encoding="utf-8")
    except OSError as error:
        raise BuildError(f"cannot write to {plan.output}: {error.strerror}; choose a folder with --output") from None
    steps: Dict[str, str] = {LIBRARY: "operators, compiled by " + plan.compiler, CODELETS: "vertices, compiled by popc"}
    for number, (target, description) in enumerate(steps.items(), start=1):
        line = f"[{number}/{len(steps)}] {target}: {description}"
        before = _stamp(plan.output / target)
        started = time.monotonic()
        progress(line)
        status = _run(plan.command_for(target), log, partial(_tick, progress, line))
        if status:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise BuildError(f"{target} was not built:\n  {_first_error(text)}\n  the whole log: {log}")
        same = before is not None and _stamp(plan.output / target) == before
        say(f"{line}: " + ("up to date" if same else f"{time.monotonic() - started:.0f} s"))
    _check_loads(plan.output / LIBRARY)
    return plan.output / LIBRARY


def _tick(progress: Callable[[str], None], line: str, seconds: float) -> None:
    progress(f"{line}, {seconds:.0f} s")


def _stamp(path: Path) -> Optional[int]:
    return path.stat().st_mtime_ns if path.is_file() else None
