"""Count the instructions of the vertices as Clang compiles them, and of their inner loops, by class.

    python csrc/ipu_model/popc/counts.py            # -> csrc/ipu_model/counts.cpp, which the estimates read
    python csrc/ipu_model/popc/counts.py --check    # fail if counts differ from it by more than 20 %

popc is a Clang whose target no other Clang has. Another 32-bit machine with vectors of two floats takes its place: Arm
with NEON, which loads a 64-bit register at once. Their instructions correspond: a load, a store, an addition, a
comparison of two lanes; address and branch. Instructions that a tile lacks have a weight (``WEIGHTS``). The compiler is
the command in ``SNNIPU_CLANG``, which needs this target and a C++ library for it, or that of ``pip install ziglang``.

Loops are counted in probes (``probes.cpp``): vertices whose flags the compiler knows, as an estimate does.

Counting takes more than a minute of a processor. The table has a hash of the sources without comments and layout, and a
test fails if the sources have changed since.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent.parent
TABLE = HERE.parent / "counts.cpp"
TOLERANCE = 0.2
FLAGS = ["-std=c++17", "-O3", "-S", "-g0", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-fomit-frame-pointer"]
# Loops are neither unrolled nor vectorised: a tile's workers alternate and gain nothing from longer iterations.
FLAGS += ["-fno-unroll-loops", "-fno-vectorize", "-fno-slp-vectorize", "-fno-asynchronous-unwind-tables"]
# A probe is inlined to one function, so that its flags are known everywhere.
PROBE_FLAGS = ["-mllvm", "-inline-threshold=100000"]
FLAGS += ["-D__POPC__", "-D__IPU__", "-DSNNIPU_LANE_BYTES=8"]
INCLUDES = [HERE / "tile", CSRC, CSRC / "ipu_model" / "poplar" / "include"]
TARGET = ["-target", "arm-linux-musleabihf", "-mcpu=cortex_a55+fullfp16", "-fno-sanitize=all"]
# Instructions of a tile for one of Arm. A selection by a mask is and, andc, or. A division of two lanes takes 10 in
# PopLibs' estimates, and Arm divides one lane. A tile's loop counts down and branches in one instruction, where Arm has
# a subtraction or a comparison, and a branch.
WEIGHTS = [
    (re.compile(r"v(bsl|bit|bif)"), "select", 3),
    (re.compile(r"vdiv"), "division", 5),
    (re.compile(r"v(mla|mls|fma|fms)"), "arithmetic", 2),
    (re.compile(r"v(ld|ldr)"), "load", 1),
    (re.compile(r"v(st|str)"), "store", 1),
    (re.compile(r"v(cgt|cge|ceq|clt|cle|acgt|acge|cmp|mrs)"), "compare", 1),
    (re.compile(r"vcvt"), "convert", 1),
    (re.compile(r"v"), "arithmetic", 1),
    (re.compile(r"(ldr|ldm|ldrd|ldrh|ldrb|pop)"), "load", 1),
    (re.compile(r"(str|stm|strd|strh|strb|push)"), "store", 1),
    (re.compile(r"b(l|x|lx)?(eq|ne|lo|hs|hi|ls|lt|ge|gt|le|mi|pl|cc|cs|vs|vc)?$"), "branch", 1),
    (re.compile(r""), "integer", 1),
]


class CountError(RuntimeError):
    pass


def compiler():
    """Return the command of a compiler that has the target, or None."""
    if os.environ.get("SNNIPU_CLANG"):
        return shlex.split(os.environ["SNNIPU_CLANG"])
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    return None


def assembly(command, source, flags=(), more=()):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.s"
        includes = [f"-I{include}" for include in (*INCLUDES, *more)]
        environment = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder, **os.environ}
        done = subprocess.run(
            [*command, *TARGET, *FLAGS, *flags, *includes, str(source), "-o", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        if done.returncode or not out.is_file():
            raise CountError(f"{source}: {' '.join(command)} failed: {done.stdout.strip()[-2000:]}")
        return out.read_text()


def with_callees(bodies, symbol):
    """Return the number of instructions of a function and of its callees, each counted once."""
    seen, pending = set(), [symbol]
    while pending:
        name = pending.pop()
        if name in seen or name not in bodies:
            continue
        seen.add(name)
        pending += [item[1].strip() for item in bodies[name] if isinstance(item, tuple) and item[0].startswith("b")]
    return sum(1 for name in seen for item in bodies[name] if isinstance(item, tuple))


LABEL = re.compile(r"^([.\w$]+):")
INSTRUCTION = re.compile(r"^\t([a-z][\w.]*)(?:\t(.*))?$")


def functions(text):
    """Return name -> list of labels (str) and instructions (mnemonic, operands)."""
    bodies, current = {}, None
    for line in text.splitlines():
        line = line.split("@")[0].rstrip()
        label = LABEL.match(line)
        if label:
            name = label.group(1)
            if not name.startswith("."):
                current = bodies.setdefault(name, [])
            elif current is not None:
                current.append(name)
            continue
        if line.startswith("\t.fnend") or line.startswith("\t.size"):
            current = None
            continue
        instruction = INSTRUCTION.match(line)
        if instruction and current is not None:
            current.append((instruction.group(1), instruction.group(2) or ""))
    return {name: body for name, body in bodies.items() if any(isinstance(item, tuple) for item in body)}


def counted(items):
    """Return the instructions of a tile by class."""
    classes = {}
    for item in items:
        if isinstance(item, tuple):
            _, name, weight = next(rule for rule in WEIGHTS if rule[0].match(item[0]))
            classes[name] = classes.get(name, 0) + weight
    return classes


def loops(body):
    """Return the innermost loops: from a label to the last branch back to it, without such a loop inside."""
    where = {item: index for index, item in enumerate(body) if isinstance(item, str)}
    back = {}
    for index, item in enumerate(body):
        if isinstance(item, tuple) and item[0].startswith("b"):
            target = where.get(item[1].strip())
            if target is not None and target <= index:
                back[target] = max(index, back.get(target, 0))
    ranges = sorted(back.items())
    inner = [
        outer
        for outer in ranges
        if not any(outer[0] <= other[0] and other[1] <= outer[1] for other in ranges if other != outer)
    ]
    return [body[begin : end + 1] for begin, end in inner]


def hottest(body):
    """Return the probe's loop with the most instructions on 64-bit registers."""

    def vectors(loop):
        return sum(1 for item in loop if isinstance(item, tuple) and re.search(r"\bd\d+", item[1]))

    candidates = loops(body)
    if not candidates:
        raise CountError("a probe has no loop")
    return max(candidates, key=lambda loop: (vectors(loop), sum(counted(loop).values())))


# ---- names


def demangle(symbols):
    """Return symbol -> demangled name, by the C++ runtime of this machine, which has Clang's ABI."""
    runtime = ctypes.CDLL("libstdc++.so.6" if sys.platform.startswith("linux") else "libc++abi.dylib")
    free = ctypes.CDLL(None).free
    runtime.__cxa_demangle.restype, runtime.__cxa_demangle.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_char_p] + [ctypes.c_void_p] * 3,
    )
    free.argtypes = [ctypes.c_void_p]
    names = {}
    for symbol in symbols:
        status = ctypes.c_int()
        # Some runtimes do not know the name of _Float16.
        text = runtime.__cxa_demangle(symbol.replace("DF16_", "Dh").encode(), None, None, ctypes.byref(status))
        names[symbol] = ctypes.string_at(text).decode() if text and status.value == 0 else ""
        free(text)
    return names


def codelet_of(demangled, enumerators):
    """Return the codelet that has this compute(), as Graph::addVertex takes it, or None for another function."""
    match = re.match(r"(.*)::compute\(unsigned int\)$", demangled)
    if not match:
        return None
    name = match.group(1).replace("_Float16", "half")
    # Symbols have enumerators as numbers.
    name = re.sub(r"\(([\w:]+)\)(\d+)u?", lambda match: enumerators[match.group(1)][int(match.group(2))], name)
    return name.replace(" ", "").replace("unsignedshort", "unsigned short").replace("unsignedint", "unsigned int")


def enumerators_of(text):
    """Return qualified name -> enumerators of the enums in a header."""
    enums = {}
    for name, body in re.findall(r"enum class (\w+) : unsigned \{([^}]*)\}", text):
        enums[f"snnipu::{name}"] = [f"snnipu::{name}::{part.split('=')[0].strip()}" for part in body.split(",")]
    return enums


def vertices():
    """Return the sources that popc compiles, which have a table of codelets; others are for the host only."""
    paths = sorted((CSRC / "vertices").glob("*.cpp"))
    return [path for path in paths if (CSRC / "ipu_model" / f"codelets_{path.stem}.cpp").is_file()]


def generate(folder):
    """Write the headers of all neurons and surrogates to ``folder``."""
    subprocess.run([sys.executable, "-m", "_generator", folder], cwd=CSRC.parent / "snnipu", check=True)


def fingerprint():
    """Return the SHA-256 of all that is counted, without comments and layout."""
    with tempfile.TemporaryDirectory() as folder:
        generate(folder)
        headers = [*(CSRC / "vertices").glob("*.hpp"), *(CSRC / "neuron").glob("*.hpp"), *Path(folder).glob("*.hpp")]
        digest = hashlib.sha256(repr((FLAGS, PROBE_FLAGS, TARGET, WEIGHTS)).encode())
        for path in [*vertices(), *sorted(headers, key=lambda path: path.name), HERE / "probes.cpp"]:
            code = re.sub(r"//[^\n]*", "", path.read_text())
            digest.update(f"{path.name} {' '.join(code.split())}\n".encode())
    return digest.hexdigest()


def counted_sources():
    """Return the fingerprint of the sources that the table was counted for."""
    match = re.search(r"^// Sources: (\w+)$", TABLE.read_text(), re.MULTILINE)
    return match.group(1) if match else None


def registered():
    """Return the names of the codelets in the tables."""
    names = []
    for table in sorted((CSRC / "ipu_model").glob("codelets_*.cpp")):
        names += re.findall(r"SNNIPU_CODELET\(\w+, (.*)\),$", table.read_text(), re.MULTILINE)
    return {name.replace(", ", ",") for name in names}


def measured(command):
    """Return (instructions of each codelet, classes of each probe's loop); raise CountError if names differ."""
    with tempfile.TemporaryDirectory() as folder:
        generate(folder)
        sources = []
        for path in vertices():
            # popc compiles every codelet. Other Clangs compile an inline function only if its address is taken.
            classes = re.findall(r"(.*)\n(?:.*> )?class (\w+) : public poplar::MultiVertex", path.read_text())
            templates = re.findall(r"template <.*>\s+class (\w+) : public poplar::MultiVertex", path.read_text())
            plain = [name for _, name in classes if name not in templates]
            references = [
                f"void (snnipu::{name}::*const ask{name})(unsigned) = &snnipu::{name}::compute;" for name in plain
            ]
            source = Path(folder) / path.name
            source.write_text(
                "\n".join([f'#include "vertices/{path.name}"', *(f"extern {line}" for line in references)]) + "\n"
            )
            sources.append(source)
        sources.append(HERE / "probes.cpp")
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            texts = list(
                pool.map(
                    lambda source: assembly(command, source, PROBE_FLAGS if source.parent == HERE else (), [folder]),
                    sources,
                )
            )
        headers = [path.read_text() for path in (CSRC / "neuron" / "leaky.hpp", *Path(folder).glob("*.hpp"))]
    bodies = {}
    for text in texts[:-1]:
        bodies.update(functions(text))
    enumerators = enumerators_of("\n".join(headers))
    symbols = [name for name in bodies if name.startswith("_Z")]
    sizes = {}
    for symbol, demangled in demangle(symbols).items():
        name = codelet_of(demangled, enumerators)
        if name is not None:
            sizes[name] = with_callees(bodies, symbol)
    if set(sizes) != registered():
        only = sorted(set(sizes) ^ registered())
        raise CountError(f"names that only the tables or only Clang's symbols have: {only[:4]}, {len(only)} in all")
    probes = {
        name[len("probe_") :]: counted(hottest(body))
        for name, body in functions(texts[-1]).items()
        if name.startswith("probe_")
    }
    return sizes, probes


def table(sizes, probes):
    lines = [
        "// Written by csrc/ipu_model/popc/counts.py from Clang's code of csrc/vertices; not to be edited.",
        f"// Sources: {fingerprint()}",
        "// clang-format off",
        '#include "ipu_model/counts.hpp"',
        "",
        "namespace snnipu {",
        "namespace ipu_model {",
        "",
        "const std::map<std::string, unsigned> instructionsOfCodelet = {",
    ]
    lines += [f'    {{"{name}", {count}}},' for name, count in sorted(sizes.items())]
    lines += ["};", "", "const std::map<std::string, unsigned> instructionsOfLoop = {"]
    for name, classes in sorted(probes.items()):
        by_class = ", ".join(f"{kind} {count}" for kind, count in sorted(classes.items()))
        lines.append(f'    {{"{name}", {sum(classes.values())}}}, // {by_class}')
    lines += ["};", "", "} // namespace ipu_model", "} // namespace snnipu", ""]
    return "\n".join(lines)


def written():
    """Return the table's two maps."""
    maps = []
    for block in re.findall(r"= \{\n(.*?)\n\};", TABLE.read_text(), re.DOTALL):
        maps.append({name: int(count) for name, count in re.findall(r'\{"(.*?)", (\d+)\}', block)})
    return maps


def differences(sizes, probes, tolerance=TOLERANCE):
    """Return a message for each difference between table and sources that is larger than ``tolerance``."""
    known_sizes, known_loops = written()
    now = {name: sum(classes.values()) for name, classes in probes.items()}
    messages = []
    for kind, known, counted_now in (("codelet", known_sizes, sizes), ("loop", known_loops, now)):
        messages += [f"{kind} {name} is in one of them only" for name in sorted(set(known) ^ set(counted_now))]
        messages += [
            f"{kind} {name}: {known[name]} instructions in {TABLE.name}, {counted_now[name]} now"
            for name in sorted(set(known) & set(counted_now))
            if abs(known[name] - counted_now[name]) > tolerance * counted_now[name]
        ]
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the table differs by more than 20 %%"
    )
    options = parser.parse_args()
    command = compiler()
    if command is None:
        sys.exit("counts.py: no compiler for the target: pip install ziglang, or set SNNIPU_CLANG")
    sizes, probes = measured(command)
    if options.check:
        messages = differences(sizes, probes)
        for line in messages:
            print(line, file=sys.stderr)
        print(f"{len(sizes)} codelets have Clang's names; {len(sizes)} sizes and {len(probes)} loops compared")
        return 1 if messages else 0
    TABLE.write_text(table(sizes, probes))
    print(TABLE)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CountError as error:
        sys.exit(f"counts.py: {error}")
