"""Build the native library, which does not link PyTorch: a shared library per instruction set, chosen at load time.

Environment:
  SNNIPU_REQUIRE_NATIVE=1  a failed native build is an error (default: install without it; the slow reference runs)
  SNNIPU_BUILD_ISA=all     build libraries for every instruction set of the machine's kind, as in wheels (default: only
                           for the best one of this processor)
  CXX, CXXFLAGS, LDFLAGS   the compiler and further flags; libraries are built for the compiler's target
"""

import ast
import hashlib
import importlib.util
import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
# Files of a list are compiled as one unit: otherwise most of the time would be spent on reading the same headers.
SOURCES = [
    ["host/neurons.cpp"],
    ["host/sparse_lif.cpp", "host/sparse_linear.cpp", "host/select_spikes.cpp", "host/eventprop.cpp"],
]
SOURCES[1] += [
    "host/sparse_conv.cpp",
    "host/sparse_pool.cpp",
    "host/delay_linear.cpp",
    "host/recurrent.cpp",
    "host/spiking_lstm.cpp",
    "host/dense_pool.cpp",
    "host/parallel.cpp",
    "host/library.cpp",
]
native_sources = runpy.run_path(str(ROOT / "snnipu" / "_native_sources.py"))
FLAGS, X86_FLAGS = native_sources["FLAGS"], native_sources["X86_FLAGS"]
find_compiler, first_output_line = native_sources["find_compiler"], native_sources["first_output_line"]
target_of, HERE = native_sources["target_of"], native_sources["HERE"]
# Sources of the IPU model, libsnnipu-ipu-model.so, which is built on Linux only, as the SDK is.
MODEL_SOURCES = ["csrc/ipu_model/*.cpp", "csrc/ipu_model/*/src/*.cpp", "csrc/graph/*.cpp", "custom_ops/*.cpp"]
# Files that match a list are compiled as one unit. The first list that matches counts.
MODEL_UNITS = [["csrc/graph/*.cpp"], ["custom_ops/*.cpp"], ["csrc/ipu_model/codelets_neuron.cpp"]]
MODEL_UNITS += [["csrc/ipu_model/codelets_*.cpp", "csrc/ipu_model/popart/src/sum_table.cpp"]]
MODEL_UNITS += [["csrc/ipu_model/poplar/src/*.cpp", "csrc/ipu_model/perf_estimates.cpp", "csrc/ipu_model/counts.cpp"]]
MODEL_UNITS += [["csrc/ipu_model/popart/src/[!s]*.cpp", "csrc/ipu_model/popart/src/sum.cpp", "csrc/ipu_model/api.cpp"]]
MODEL_INCLUDES = ["csrc", ".", "csrc/ipu_model/poplar/include", "csrc/ipu_model/popart/include"]
# -O1 is fast enough, and higher levels are slow to compile. A lane has 8 bytes, a float2 as on a tile.
MODEL_FLAGS = ["-O1", "-DSNNIPU_LANE_BYTES=8", "-DSNNIPU_COMPACT_CODE", "-DONNX_NAMESPACE=onnx"]
# Check that every vector that a vertex reads or writes is aligned as on a tile.
MODEL_FLAGS += ["-DSNNIPU_CHECK_ALIGNMENT"]
# The model's Poplar symbols are visible, because programs may use them. -Bsymbolic makes the model call its own symbols
# even if a real Poplar is loaded.
NOT_OF_MODEL = ("-O3", "-fvisibility=hidden")
MODEL_LINK = ["-Wl,-Bsymbolic"]
MODEL = "ipu-model"
# Sources that `python -m snnipu build-ipu` compiles with a Poplar SDK. snnipu/_ipu_sources has the same folders.
IPU_FOLDERS = ["custom_ops", "csrc/graph", "csrc/neuron", "csrc/vertices"]
IPU_SOURCES = [f"{folder}/{name}" for folder in IPU_FOLDERS for name in ("*.cpp", "*.hpp", "Makefile")]
IPU_SOURCES += ["snnipu/_version.py", "snnipu/equations.py", "snnipu/_generator/*.py"]
# Sources that are compiled with a user's neuron (snnipu/backends/compiled.py), besides csrc/neuron.
IPU_SOURCES += ["csrc/host/*.h", "csrc/host/*.hpp", "csrc/host/parallel.cpp"]


def instruction_sets(machine):
    """Return the instruction sets of a machine: name -> compiler flags."""
    if machine == "x86_64":
        return X86_FLAGS
    if machine == "aarch64":
        return {"neon": []}
    return {"baseline": []}


def best_isa(compiler):
    """Return the best instruction set of this processor, by compiling and running the library's test of it."""
    version = ['-DSNNIPU_VERSION=""', '-DSNNIPU_ISA="baseline"', f"-I{CSRC}"]
    version.append(f"-I{CSRC / 'ipu_model' / 'poplar' / 'include'}")
    with tempfile.TemporaryDirectory() as folder:
        program, main = Path(folder) / "best_isa", Path(folder) / "main.cpp"
        main.write_text(
            '#include <cstdio>\n#include "host/library.cpp"\nint main() { std::puts(snnipu_best_isa()); }\n'
        )
        parallel = str(CSRC / "host" / "parallel.cpp")
        command = [*compiler, "-std=c++17", "-pthread", "-w", *version, str(main), parallel, "-o", str(program)]
        if HERE.system == "linux":
            command.append("-ldl")
        built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if built.returncode != 0:
            raise RuntimeError(f"{compiler[0]} failed for a program that tests the instruction set: {built.stdout}")
        return subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def package_version():
    tree = ast.parse((ROOT / "snnipu" / "_version.py").read_text())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def load(name, path):
    """Import a module of the package from its file. Importing the package would import PyTorch."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_generated(folder):
    """Write the headers with all neurons and surrogates to ``folder``."""
    equations = runpy.run_path(str(ROOT / "snnipu" / "equations.py"))
    generator = load("_snnipu_generator", ROOT / "snnipu" / "_generator" / "__init__.py")
    for name, text in generator.headers(equations).items():
        (folder / name).write_text(text)


def model_units():
    """Return the files of the IPU model, in lists that are compiled as one unit."""
    remaining = sorted(path for pattern in MODEL_SOURCES for path in ROOT.glob(pattern))
    units = []
    for patterns in MODEL_UNITS:
        unit = [path for path in remaining if any(path in ROOT.glob(pattern) for pattern in patterns)]
        remaining = [path for path in remaining if path not in unit]
        units.append(unit)
    units += [[path] for path in remaining]
    return [[str(path.relative_to(ROOT)) for path in unit] for unit in units if unit]


class BuildNative(build_ext):
    """Compile csrc into snnipu/_native. If that fails, write the error to a file there for `python -m snnipu info`."""

    user_options: ClassVar = [*build_ext.user_options, ("isa=", None, "build for this instruction set only")]

    def initialize_options(self):
        super().initialize_options()
        self.isa = None

    def native_folder(self):
        return (ROOT if self.inplace else Path(self.build_lib)) / "snnipu" / "_native"

    def run(self):
        folder = self.native_folder()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.build(folder)
        except (RuntimeError, OSError) as error:
            if os.environ.get("SNNIPU_REQUIRE_NATIVE") == "1":
                raise
            for partial in folder.iterdir():
                partial.unlink()
            (folder / "build_failed.txt").write_text(f"{error}\n")
            print(f"warning: snnipu's native library was not built: {error}", file=sys.stderr)

    def say(self, text):
        # Flush, because pip and make read the output through a pipe.
        if self.verbose:
            print(text, flush=True)

    def build(self, folder):
        compiler = find_compiler()
        target = target_of(compiler)
        isas = instruction_sets(target.machine)
        if self.isa is not None:
            if self.isa not in isas:
                raise RuntimeError(f"--isa must be one of {list(isas)}, got {self.isa!r}")
            isas = {self.isa: isas[self.isa]}
        elif os.environ.get("SNNIPU_BUILD_ISA") != "all" and len(isas) > 1 and target == HERE:
            best = best_isa(compiler)
            isas = {best: isas[best]}
        extra, link = shlex.split(os.environ.get("CXXFLAGS", "")), shlex.split(os.environ.get("LDFLAGS", ""))
        record = {
            "sources": native_sources["fingerprint"](ROOT),
            "version": package_version(),
            "compiler": first_output_line([*compiler, "--version"]),
            "flags": [*compiler[1:], *extra, *link],
            "system": target.system,
            "machine": target.machine,
            "libraries": [*isas, *([MODEL] if self.isa is None and target.system == "linux" else [])],
        }
        for place in [folder, ROOT / "snnipu" / "_native"]:
            if native_sources["record"](place) == record and not self.force:
                self.say(f"native libraries: {place} is up to date with sources, compiler and flags")
                if place != folder:
                    shutil.rmtree(folder)
                    shutil.copytree(place, folder)
                return
        shutil.rmtree(folder)
        folder.mkdir()
        self.compile_all(folder, compiler, target, record["libraries"], extra, link)
        (folder / native_sources["RECORD"]).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def compile_all(self, folder, compiler, target, names, extra, link):
        """Compile the parts of all libraries, one for each processor at a time. Link a library after its last part."""
        version = [f'-DSNNIPU_VERSION="{package_version()}"']
        if target.system == "linux":
            version += ["-include", str(CSRC / "host" / "old_runtimes.hpp")]
        host = [*FLAGS, f"-I{CSRC}", f"-I{CSRC / 'ipu_model' / 'poplar' / 'include'}", *version]
        model = [*(flag for flag in FLAGS if flag not in NOT_OF_MODEL), *MODEL_FLAGS, *version]
        model += [f"-I{ROOT / include}" for include in MODEL_INCLUDES]
        units = [[f"csrc/{file}" for file in unit] for unit in SOURCES]
        isas = instruction_sets(target.machine)
        libraries = {isa: ([*host, *isas[isa], f'-DSNNIPU_ISA="{isa}"'], units) for isa in names if isa in isas}
        if MODEL in names:
            libraries[MODEL] = (model, model_units())
        parts = [(name, files) for name, (_, units) in libraries.items() for files in units]
        # Start with the largest part, so that all processors finish at about the same time.
        parts.sort(key=lambda part: -sum((ROOT / file).stat().st_size for file in part[1]))
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = f"{len(parts)} parts on {processors} processors"
        self.say(f"native libraries, by {compiler[0]}: {', '.join(libraries)}, in {count}")

        def run(name, command):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.stdout:
                print(done.stdout, flush=True)
            if done.returncode != 0:
                print(" ".join(shlex.quote(word) for word in command), flush=True)
                lines = [line for line in done.stdout.splitlines() if "error" in line] or done.stdout.splitlines()
                raise RuntimeError(f"{compiler[0]} failed for {name}: {lines[0] if lines else 'no message'}")

        def compile_part(name, files):
            started = time.monotonic()
            part = str(Path(objects) / (f"{name}-" + "-".join(Path(files[-1]).with_suffix(".o").parts)))
            # -ffile-prefix-map makes the result independent of the folder.
            command = [*compiler, *libraries[name][0], *extra, f"-I{objects}", f"-ffile-prefix-map={ROOT}/="]
            for file in files[:-1]:
                command += ["-include", str(ROOT / file)]
            run(f"{name}, {files[-1]}", [*command, "-c", str(ROOT / files[-1]), "-o", part])
            return name, part, time.monotonic() - started

        waiting = {name: len(units) for name, (_, units) in libraries.items()}
        objects_of = {name: [] for name in libraries}
        spent = dict.fromkeys(libraries, 0.0)
        with tempfile.TemporaryDirectory() as objects, ThreadPoolExecutor(max_workers=processors) as pool:
            write_generated(Path(objects))
            futures = [pool.submit(compile_part, *part) for part in parts]
            try:
                for future in as_completed(futures):
                    name, part, seconds = future.result()
                    objects_of[name].append(part)
                    spent[name] += seconds
                    waiting[name] -= 1
                    if waiting[name]:
                        continue
                    # Link in the temporary folder, because a linker for Windows writes further files there.
                    linked, library = Path(objects) / target.library(name), folder / target.library(name)
                    flags = MODEL_LINK if name == MODEL else []
                    command = [*compiler, "-shared", "-pthread", *flags, *extra, *sorted(objects_of[name])]
                    run(name, [*command, "-o", str(linked), *link, *target.link_flags(name)])
                    shutil.move(str(linked), str(library))
                    size = library.stat().st_size / 1e6
                    self.say(f"  {library.name}: {size:.1f} MB, compiled in {spent[name]:.0f} s")
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def get_outputs(self):
        return [str(path) for path in sorted(self.native_folder().glob("*"))]

    def get_output_mapping(self):
        return {}


class BuildWithSources(build_py):
    """Build the package with the sources of the PopART operators; an editable install has them in its checkout."""

    def sources(self):
        """Return the sources to copy: path in the checkout -> path in the package."""
        folder = Path(self.build_lib) / "snnipu" / "_ipu_sources"
        paths = sorted(path for pattern in IPU_SOURCES for path in ROOT.glob(pattern))
        return {str(path): str(folder / path.relative_to(ROOT)) for path in paths}

    def run(self):
        super().run()
        if not self.editable_mode:
            for source, target in self.sources().items():
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self.sources().values())]


def cross_platform():
    """Return the platform of the wheel, such as linux_aarch64, if the compiler targets another machine; else None."""
    try:
        target = target_of(find_compiler())
    except (RuntimeError, OSError):
        return None
    if target == HERE:
        return None
    if target.system == "darwin":
        return f"macosx_11_0_{'arm64' if target.machine == 'aarch64' else target.machine}"
    if target.system == "windows":
        return {"x86_64": "win_amd64", "aarch64": "win_arm64"}[target.machine]
    return f"linux_{target.machine}"


def bill_of_materials(requirements, libraries):
    """Return the bill of materials of a wheel, in the format CycloneDX 1.6: requirements, and hashes of libraries.

    It has no dates, so that builds are reproducible.
    """
    files = [
        {
            "type": "file",
            "name": f"snnipu/_native/{library.name}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(library.read_bytes()).hexdigest()}],
        }
        for library in libraries
    ]
    packages = [{"type": "library", "name": requirement, "scope": "required"} for requirement in sorted(requirements)]
    purl = f"pkg:pypi/snnipu@{package_version()}"
    this = {"type": "library", "bom-ref": purl, "name": "snnipu", "version": package_version(), "purl": purl}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": this}}
    return json.dumps({**bill, "components": [*files, *packages]}, indent=2) + "\n"


class PlatformWheel(bdist_wheel):
    """Build a wheel for any Python 3, because the library is loaded with ctypes."""

    def write_wheelfile(self, wheelfile_base, *arguments, **options):
        super().write_wheelfile(wheelfile_base, *arguments, **options)
        native = Path(self.bdist_dir or "") / "snnipu" / "_native"
        if not native.is_dir():
            return  # the wheel of an editable installation has no libraries
        folder = Path(wheelfile_base) / "sboms"
        folder.mkdir()
        bill = bill_of_materials(self.distribution.install_requires, sorted(native.glob("libsnnipu*")))
        (folder / "snnipu.cdx.json").write_text(bill, encoding="utf-8")

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return ("py3", "none", cross_platform() or super().get_tag()[2])


setup(
    ext_modules=[Extension("snnipu._native", sources=[])],
    cmdclass={"build_ext": BuildNative, "build_py": BuildWithSources, "bdist_wheel": PlatformWheel},
)
