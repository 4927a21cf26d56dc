"""The PopART operators for a real PopTorch: where their library is, and how it is built with a Poplar SDK.

``libsnnipu_popart.so`` has the operators, ``snnipu.gp`` beside it their vertices. ``custom_ops/Makefile`` knows the
commands; the sources are part of an installed package. Nothing is built but by ``python -m snnipu build-ipu``.

Environment: ``SNNIPU_POPART_LIBRARY``, the library to load; ``XDG_CACHE_HOME``, where built ones are kept (default:
``~/.cache``); ``POPLAR_SDK_ENABLED`` and ``PATH``, as the SDK's ``enable`` script sets them; ``CXX`` the C++ compiler.
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
from snnipu.backends.libraries import native_folder, own_folder

LIBRARY, CODELETS, LOG = "libsnnipu_popart.so", "snnipu.gp", "build.log"
COMMAND = "python -m snnipu build-ipu"
# The SDK's scripts, for messages: those of 3.x have one for all its parts.
ENABLE = (
    "`source <sdk>/enable`, or `source <sdk>/poplar-<version>/enable.sh` and `source <sdk>/popart-<version>/enable.sh`"
)
_COMPILERS = ("g++", "c++", "clang++")
_PACKAGE = Path(__file__).resolve().parent.parent
# The first line of a log that matches tells most; earlier patterns before later ones.
_ERRORS = (r"\berror: ", r"undefined reference|cannot find -l", r"Error \d+$|not found|No such file")
# What a log has in it where a part of the SDK is not enabled.
_MISSING = r"{0}/\S+' file not found|{0}/\S+: No such file|cannot find -l{0}|library not found for -l{0}"
_HINTS = {
    _MISSING.format("popart"): "PopART is not enabled: source its enable.sh, too",
    _MISSING.format("poplar"): "Poplar is not enabled: source its enable.sh",
}


class BuildError(RuntimeError):
    """The operators cannot be built, or cannot be loaded once built; the message says what to do."""


def sources() -> Path:
    """The folder that holds ``custom_ops`` and ``csrc``: the package's copy, or the checkout of an editable install.

    Raises:
        BuildError: neither is there.
    """
    for folder in (_PACKAGE / "_ipu_sources", _PACKAGE.parent):
        if (folder / "custom_ops" / "Makefile").is_file():
            return folder
    raise BuildError(f"the sources of the operators are neither in {_PACKAGE / '_ipu_sources'} nor in a checkout")


# ---- where libraries are kept


def cache_folder() -> Path:
    """The folder that has a folder for each version of package and SDK."""
    return _files.cache_folder("ipu")


def sdk_version() -> str:
    """Version of the SDK whose ``popc`` is on the PATH, such as ``3.3.0-de1f8de2a7``.

    Raises:
        BuildError: no SDK is enabled, or its popc does not tell.
    """
    popc = shutil.which("popc")
    enabled = os.environ.get("POPLAR_SDK_ENABLED")
    if popc is None:
        found = (
            f"POPLAR_SDK_ENABLED is {enabled}, but popc is not on the PATH"
            if enabled
            else "POPLAR_SDK_ENABLED is not set and popc is not on the PATH"
        )
        raise BuildError(f"no Poplar SDK is enabled: {found}. Enable it in this shell with {ENABLE}")
    try:
        done = subprocess.run(
            [popc, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{popc} does not run: {error}") from None
    match = re.search(r"version\s+v?(\d+\.\d+(?:\.\d+)?)(?:\s*\(([0-9A-Za-z]+)\))?", done.stdout)
    if match is None:
        said = done.stdout.strip().splitlines()[:1] or ["nothing"]
        raise BuildError(f"{popc} --version does not tell a version ({said[0]}): choose a folder with --output")
    return "-".join(part for part in match.groups() if part)


def cached_library() -> Optional[Path]:
    """The library in the cache for this package and the SDK that is enabled; without popc, the only one there is."""
    found = sorted(cache_folder().glob(f"{__version__}-*/{LIBRARY}"))
    if not found:
        return None
    try:
        wanted = f"{__version__}-{sdk_version()}"
    except BuildError:
        return found[0] if len(found) == 1 else None
    return next((path for path in found if path.parent.name == wanted), None)


def library_path() -> Path:
    """The library for a real PopTorch: that of ``SNNIPU_POPART_LIBRARY``, else the first that is there of the folder of
    the native libraries, the package's own, and the cache; where none is, the first of these places."""
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    if override:
        return Path(override)
    beside = native_folder() / LIBRARY
    # `make -C custom_ops` puts it into the checkout, also where the native libraries are an installed snnipu's.
    found = (path for path in (beside, own_folder() / LIBRARY) if path.is_file())
    return next(found, None) or cached_library() or beside


def searched() -> str:
    """Where :func:`library_path` looks, for a message."""
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    return f"{override}" if override else f"{native_folder()}, nor for this version and SDK in {cache_folder()}"


# ---- building


class Plan(NamedTuple):
    """What :func:`build` does."""

    sources: Path
    output: Path
    sdk: str
    compiler: str
    command: List[str]

    def of(self, target: str) -> List[str]:
        """The command for one of the two files."""
        return [*self.command, str(self.output / target)]


def _compiler() -> str:
    """The C++ compiler, as make is to call it."""
    given = os.environ.get("CXX", "")
    if given:
        if shutil.which((shlex.split(given) or [""])[0]) is None:
            raise BuildError(f"there is no C++ compiler {given!r}, which CXX names")
        return given
    for name in _COMPILERS:
        if shutil.which(name):
            return name
    raise BuildError(f"there is no C++ compiler: install g++, or name one in CXX (looked for {', '.join(_COMPILERS)})")


def plan(output: Optional[Path] = None, force: bool = False) -> Plan:
    """What would be run, from the environment as it is.

    Args:
        output: folder for both files; None: one of :func:`cache_folder` for this package and SDK.
        force: build what is there, too.

    Raises:
        BuildError: SDK, make, compiler or sources are missing.
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
    return Plan(folder, output, sdk, compiler, command)


def dry_run(made: Plan) -> str:
    """The commands of :func:`build`, as make tells them; none is run."""
    done = subprocess.run([*made.command, "-n", "all"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise BuildError(f"make failed: {_first_error(done.stdout)}")
    return f"{shlex.join(made.command)}\n{done.stdout}".rstrip()


def _first_error(text: str) -> str:
    """The line of a log that tells why it failed, and what helps where that is known."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for pattern in _ERRORS for line in lines if re.search(pattern, line)), "")
    hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, text)), "")
    return "\n  ".join(part for part in (first or (lines or ["no message"])[-1], hint) if part)


def _run(command: List[str], log: Path, tick: Callable[[float], None]) -> int:
    """Run ``command`` with all that it says added to ``log``; ``tick`` is called each second. Returns its status."""
    ended = threading.Event()
    started = time.monotonic()

    def beat() -> None:
        while not ended.wait(1):
            tick(time.monotonic() - started)

    # Lines of errors are looked for in English.
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
    """Raises BuildError where a Python with this environment cannot load the library, or takes it for another's."""
    code = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); lib.snnipu_popart_version.restype = ctypes.c_char_p; "
        "print(lib.snnipu_popart_version().decode())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise BuildError(f"{library} was built, but cannot be loaded: {said[0]}")
    if done.stdout.strip() != __version__:
        raise BuildError(f"{library} is of version {done.stdout.strip()}, the package of {__version__}: use --force")


def build(made: Plan, say: Callable[[str], None] = print, progress: Callable[[str], None] = lambda text: None) -> Path:
    """Build what is out of date of the two files.

    Args:
        made: what :func:`plan` returned.
        say: gets a line for each thing done.
        progress: gets the line of what is going on, again and again.

    Returns:
        The library, which has been loaded once, in a process of its own.

    Raises:
        BuildError: with the first error that was found; all that was said is in ``build.log`` beside the library.
    """
    log = made.output / LOG
    try:
        made.output.mkdir(parents=True, exist_ok=True)
        log.write_text("", encoding="utf-8")
    except OSError as error:
        raise BuildError(f"cannot write to {made.output}: {error.strerror}; choose a folder with --output") from None
    steps: Dict[str, str] = {LIBRARY: "operators, compiled by " + made.compiler, CODELETS: "vertices, compiled by popc"}
    for number, (target, what) in enumerate(steps.items(), start=1):
        line = f"[{number}/{len(steps)}] {target}: {what}"
        before = _stamp(made.output / target)
        started = time.monotonic()
        progress(line)
        status = _run(made.of(target), log, partial(_tick, progress, line))
        if status:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise BuildError(f"{target} was not built:\n  {_first_error(text)}\n  the whole log: {log}")
        same = before is not None and _stamp(made.output / target) == before
        say(f"{line}: " + ("up to date" if same else f"{time.monotonic() - started:.0f} s"))
    _check_loads(made.output / LIBRARY)
    return made.output / LIBRARY


def _tick(progress: Callable[[str], None], line: str, seconds: float) -> None:
    progress(f"{line}, {seconds:.0f} s")


def _stamp(path: Path) -> Optional[int]:
    return path.stat().st_mtime_ns if path.is_file() else None
