"""Stand-ins for CUDA's libraries: with them, CUDA builds of PyTorch run on the CPU of a machine without CUDA.

``python tests/support/cuda_stubs.py SITE_PACKAGES FOLDER`` lists the libraries and functions that the PyTorch in
``SITE_PACKAGES`` needs and that neither PyTorch nor the system provides. It makes libraries in ``FOLDER`` with these
functions, which return 0. PyTorch then finds no device. Set ``LD_LIBRARY_PATH=FOLDER`` to load them. They take
kilobytes, and CUDA's take gigabytes. The script needs Linux, a C compiler and binutils.
"""

import glob
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

SYSTEM = ("libc.", "libm.", "libdl.", "librt.", "libutil.", "libpthread.", "libgcc_s.", "libstdc++.", "ld-linux-")
PREFIXES = ("cu", "nv", "nccl", "__cuda")  # functions without a library's version
NO_DEVICE = 100  # cudaErrorNoDevice
FUNCTIONS = {
    "cudaGetDeviceCount": f"int cudaGetDeviceCount(int *n) {{ *n = 0; return {NO_DEVICE}; }}",
    "cudaGetDevice": f"int cudaGetDevice(int *n) {{ *n = 0; return {NO_DEVICE}; }}",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *n) { *n = 0; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *n) { *n = 0; return 0; }",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int e) { return "no device"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { return "no device"; }',
}


def _output_of(*command: str) -> List[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def _symbols(library: str) -> Iterator[Tuple[bool, str, str]]:
    """Yield each symbol of a library: True if the library defines it, its name and its version."""
    for line in _output_of("nm", "-D", library):
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        yield kind not in "Uvw", name, version.lstrip("@")


def _versions(library: str) -> Iterator[Tuple[str, str]]:
    """Yield each version that the library needs, and the library that has it."""
    other = ""
    for line in _output_of("objdump", "-p", library):
        words = line.split()
        if words[:2] == ["required", "from"]:
            other = words[2].rstrip(":")
        elif other and len(words) == 4 and words[0].startswith("0x"):
            yield words[3], other
        else:
            other = ""


def needed_functions(torch_libraries: List[str]) -> Dict[str, Dict[str, Set[str]]]:
    """Return {library: {version or "": functions}}; functions of an unknown library count as the CUDA runtime's."""
    needed, of, defined, missing = set(), {}, set(), set()
    for library in torch_libraries:
        needed |= {line.split("[")[1][:-1] for line in _output_of("readelf", "-d", library) if "(NEEDED)" in line}
        of.update(_versions(library))
        for is_own, name, version in _symbols(library):
            (defined if is_own else missing).add((name, version))
    needed -= {os.path.basename(library) for library in torch_libraries}
    libraries: Dict[str, Dict[str, Set[str]]] = {name: {} for name in needed if not name.startswith(SYSTEM)}
    runtime = next((name for name in libraries if name.startswith("libcudart.")), None)
    owned = {name for name, _ in defined}
    for name, version in missing:
        library = of.get(version)
        if not version and name not in owned and name.startswith(PREFIXES):
            library = runtime
        if library in libraries:
            libraries[library].setdefault(version, set()).add(name)
    return libraries


def make(site_packages: Path, folder: Path) -> None:
    """Compile the libraries into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = folder / "versions"
    libraries = needed_functions(sorted(glob.glob(str(site_packages / "torch" / "lib" / "*.so*"))))
    for library, functions in libraries.items():
        names = sorted(set().union(*functions.values()))
        source = "\n".join(FUNCTIONS.get(name, f"long {name}(void) {{ return 0; }}") for name in names)
        nodes = [f"{node} {{ global: {'; '.join(sorted(its))}; }};" for node, its in functions.items() if node]
        versions.write_text("\n".join(nodes))
        command = ["cc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-x", "c", "-"]
        command += [f"-Wl,--version-script={versions}"] if nodes else []
        subprocess.run([*command, "-o", str(folder / library)], input=source, text=True, check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
