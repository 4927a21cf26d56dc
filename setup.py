"""Build of the torch-free native library: one shared library for each instruction set, chosen when it is loaded.

Environment:
  SNNIPU_REQUIRE_NATIVE=1  a failed native build is an error (default: install without it; the slow reference runs)
  CXX, CXXFLAGS, LDFLAGS   compiler and further flags
"""

import ast
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
SOURCES = ["host/lif.cpp", "host/select_spikes.cpp", "host/sparse_lif.cpp", "host/sparse_linear.cpp"]
SOURCES += ["host/library.cpp", "host/parallel.cpp"]
# Contraction of multiply and add would break the equality, bit by bit, with PyTorch.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
# The IPU model, libsnnipu-ipu-model.so: every file of these patterns.
MODEL_SOURCES = ["csrc/ipu_model/*.cpp", "csrc/ipu_model/*/src/*.cpp", "csrc/graph/*.cpp", "custom_ops/*.cpp"]
MODEL_INCLUDES = ["csrc", ".", "csrc/ipu_model/poplar/include", "csrc/ipu_model/popart/include"]
# It is slow to compile, and fast enough without more. Lanes of a float2, as on a tile.
MODEL_FLAGS = ["-O1", "-DSNNIPU_LANE_BYTES=8", "-DONNX_NAMESPACE=onnx"]
# Programs may use its Poplar: it is visible, but stays with itself where a real one is loaded too.
NOT_OF_MODEL = ("-O3", "-shared", "-fvisibility=hidden")
MODEL_LINK = ["-Wl,-Bsymbolic"] if sys.platform.startswith("linux") else []
# What `python -m snnipu build-ipu` builds with a Poplar SDK, laid out in snnipu/_ipu_sources as it is here.
IPU_FOLDERS = ["custom_ops", "csrc/graph", "csrc/neuron", "csrc/vertices"]
IPU_SOURCES = [f"{folder}/{name}" for folder in IPU_FOLDERS for name in ("*.cpp", "*.hpp", "Makefile")]
IPU_SOURCES += ["snnipu/_version.py"]
X86_FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mpopcnt", "-mbmi"],
}


def instruction_sets():
    """Name -> compiler flags, for the machine that is built for."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return X86_FLAGS
    if machine in ("aarch64", "arm64"):
        return {"neon": []}
    return {"baseline": []}


def package_version():
    tree = ast.parse((ROOT / "snnipu" / "_version.py").read_text())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def find_compiler():
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("no C++ compiler found (looked for $CXX, c++, g++, clang++)")


class BuildNative(build_ext):
    """Compiles csrc into snnipu/_native; what went wrong is left there for `python -m snnipu info`."""

    user_options: ClassVar = [*build_ext.user_options, ("isa=", None, "build for this instruction set only")]

    def initialize_options(self):
        super().initialize_options()
        self.isa = None

    def native_folder(self):
        return (ROOT if self.inplace else Path(self.build_lib)) / "snnipu" / "_native"

    def run(self):
        folder = self.native_folder()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            self.compile_all(folder)
        except (RuntimeError, OSError) as error:
            if os.environ.get("SNNIPU_REQUIRE_NATIVE") == "1":
                raise
            for partial in folder.iterdir():
                partial.unlink()
            (folder / "build_failed.txt").write_text(f"{error}\n")
            print(f"warning: snnipu's native library was not built: {error}", file=sys.stderr)

    def compile_all(self, folder):
        if sys.platform == "win32":
            raise RuntimeError("the native library needs GCC or Clang; Windows is not supported yet")
        wanted = instruction_sets()
        if self.isa is not None:
            if self.isa not in wanted:
                raise RuntimeError(f"--isa must be one of {list(wanted)}, got {self.isa!r}")
            wanted = {self.isa: wanted[self.isa]}
        compiler = find_compiler()
        version = package_version()

        extra, link = shlex.split(os.environ.get("CXXFLAGS", "")), shlex.split(os.environ.get("LDFLAGS", ""))
        link += ["-ldl"] if sys.platform.startswith("linux") else []

        def compile_to(name, command):
            print(" ".join(shlex.quote(word) for word in command), flush=True)
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.stdout:
                print(done.stdout, flush=True)
            if done.returncode != 0:
                lines = [line for line in done.stdout.splitlines() if "error" in line] or done.stdout.splitlines()
                raise RuntimeError(f"{compiler[0]} failed for {name}: {lines[0] if lines else 'no message'}")

        def compile_isa(item):
            isa, isa_flags = item
            command = [*compiler, *FLAGS, *isa_flags, *extra]
            command += [f"-I{CSRC}", f"-I{CSRC / 'ipu_model' / 'poplar' / 'include'}"]
            command += [f'-DSNNIPU_VERSION="{version}"', f'-DSNNIPU_ISA="{isa}"']
            command += [str(CSRC / source) for source in SOURCES]
            compile_to(isa, [*command, "-o", str(folder / f"libsnnipu-{isa}.so"), *link])

        sources = sorted(path for pattern in MODEL_SOURCES for path in ROOT.glob(pattern))
        if self.isa is not None:
            sources = []
        # The largest first: two cores are then done at the same time.
        sources.sort(key=lambda path: not path.name.startswith("codelets_lif"))
        with tempfile.TemporaryDirectory() as objects, ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:

            def compile_object(path):
                target = str(Path(objects) / "-".join(path.relative_to(ROOT).with_suffix(".o").parts))
                command = [*compiler, *(flag for flag in FLAGS if flag not in NOT_OF_MODEL), *MODEL_FLAGS, *extra]
                command += [f"-I{ROOT / include}" for include in MODEL_INCLUDES]
                command += [f'-DSNNIPU_VERSION="{version}"', "-c", str(path), "-o", target]
                compile_to(path.name, command)
                return target

            objects_of_model = [pool.submit(compile_object, path) for path in sources]
            list(pool.map(compile_isa, wanted.items()))
            if sources:
                library = str(folder / "libsnnipu-ipu-model.so")
                parts = [future.result() for future in objects_of_model]
                compile_to(
                    "ipu-model", [*compiler, "-shared", "-pthread", *MODEL_LINK, *extra, *parts, "-o", library, *link]
                )

    def get_outputs(self):
        return [str(path) for path in sorted(self.native_folder().glob("*"))]

    def get_output_mapping(self):
        return {}


class BuildWithSources(build_py):
    """The package, and the sources of the PopART operators; an editable install has them in its checkout."""

    def sources(self):
        """Path in the checkout -> path in the package that is built."""
        folder = Path(self.build_lib) / "snnipu" / "_ipu_sources"
        found = sorted(path for pattern in IPU_SOURCES for path in ROOT.glob(pattern))
        return {str(path): str(folder / path.relative_to(ROOT)) for path in found}

    def run(self):
        super().run()
        if not self.editable_mode:
            for source, target in self.sources().items():
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self.sources().values())]


class PlatformWheel(bdist_wheel):
    """The library is loaded with ctypes: one wheel serves every Python 3."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[Extension("snnipu._native", sources=[])],
    cmdclass={"build_ext": BuildNative, "build_py": BuildWithSources, "bdist_wheel": PlatformWheel},
)
