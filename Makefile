# Every target sets up what it needs in $(VENV). Overridable: PYTHON, VENV, TORCH, TORCHVISION, JOBS, PYTEST_ARGS,
# CASE, BENCH_ARGS, SANITIZE_ISA, SANITIZE_FLAGS, SANITIZE_TESTS, FUZZ_SECONDS, FUZZ_SEED, FUZZ_ARGS, SOAK_SECONDS,
# MUTANTS_SECONDS, MUTANTS_ARGS, CLANGXX, OUT, WHEEL_VENV, MANYLINUX, AARCH64_CXX, WHEEL_TARGETS, MATRIX_ARGS.
# The first target downloads PyTorch and compiles the native libraries for this processor, with a line for each: about
# three minutes on one processor. They are compiled again when their sources have changed.
#   make demo      train on scikit-learn's digits, with pictures
#   make test      all tests except those marked slow; PYTEST_ARGS has options such as "-k leaky -x"
#   make test-all  all tests
#   make wheel     wheels for Linux (x86-64, aarch64), macOS (arm64) and Windows (x86-64), in dist, checked
#   make reproducible  check that two builds of a wheel give equal bytes
#   make test-emulated  test the libraries of wheels for Windows and aarch64 by Wine and qemu, if these are installed
#   make test-wheel  install a wheel in a virtual environment, and test it as users call it, in a clone and elsewhere; also
#                  test Lightning on IPUs, with the host runtime in place of IPUs
#   make matrix    the tests with other versions of Python, PyTorch, NumPy and snnTorch, if they can be installed here
#   make sanitize  the kernels' tests under GCC's address and undefined-behaviour sanitizers
#   make fuzz      fuzz the kernels and the readers of files with libFuzzer and atheris for FUZZ_SECONDS; needs CLANGXX
#   make fuzz-calls  compare sequences of calls of every layer with fresh layers, for FUZZ_SECONDS from FUZZ_SEED on, under
#                  these sanitizers; FUZZ_CALLS has options of tests/support/call_sequences.py
#   make fuzz-numbers  compare random networks with snnTorch's loop, for FUZZ_SECONDS from FUZZ_SEED on; print differences
#   make soak      run training loops of every kind for SOAK_SECONDS with disturbances; check memory, files, threads, speed
#   make mutants   plant faults in a copy of the package for MUTANTS_SECONDS; print those that no test notices
#   make bench     compare snnipu with other libraries in all cases, or in one (CASE=sparse); BENCH_ARGS has options such
#                  as "activity=0.02 --peers none"
#   make format    lay out Python and C++ sources, and apply ruff's fixes
#   make lint      ruff, mypy, layers of imports, clang-format, C++ warnings
#   make lint-tools  update the versions and hashes of these tools in .ci/lint-tools.txt, from which lint and CI install
#   make check-ipu compile the sources for popc and the SDK by Clang: vertices, graphs, PopART operators
#   make docs      the documentation as HTML
#   make notebooks run the tutorials, and store their outputs
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
PYTEST_ARGS ?=
JOBS ?= 2
CASE ?= all
BENCH_ARGS ?=
OUT ?= out
MACHINE := $(shell uname -m)
SANITIZE_ISA ?= $(if $(filter x86_64 amd64,$(MACHINE)),avx2,$(if $(filter aarch64 arm64,$(MACHINE)),neon,baseline))
# At -O0 no memory access is optimised away, and compiling takes half the time. The tests take as long as with optimisation.
SANITIZE_FLAGS ?= -O0 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined

SANITIZE_TESTS ?= tests/ops tests/test_call_sequences.py
FUZZ_SECONDS ?= 600
FUZZ_SEED ?= 0
# For example --only layers nir; see --help.
FUZZ_ARGS ?=
# For example --kinds Leaky SLSTM.
FUZZ_CALLS ?=
SOAK_SECONDS ?= 3600
FUZZ_FLAGS := -fno-sanitize-recover=undefined -fsanitize=address,undefined
FUZZ_KERNELS := -std=c++17 -Wall -Wextra -Icsrc tests/support/fuzz_kernels.cpp -l:libsnnipu-$(SANITIZE_ISA).so
# Cases for each family of calls in make sanitize.
SANITIZE_CASES ?= 1500
MUTANTS_SECONDS ?= 3600
# For example --places snnipu/compiler; see --help.
MUTANTS_ARGS ?=

# The first clang++ on the PATH, with or without a version in its name.
CLANGXX ?= $(firstword $(wildcard $(addsuffix /clang++,$(subst :, ,$(PATH))) $(addsuffix /clang++-[0-9]*,$(subst :, ,$(PATH)))))

BIN := $(VENV)/bin
# The tests of a file run in one process, because they share fixtures. A test that hangs or crashes ends its process;
# without a limit, pytest would restart it forever.
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --max-worker-restart 1
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CPP := $(shell find csrc custom_ops -name '*.[ch]pp' -o -name '*.h')
NATIVE := snnipu/_native_sources.py snnipu/equations.py $(wildcard snnipu/_generator/*.py) $(CPP)
PIP_WHEEL := $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps
WHEEL_VENV ?= $(OUT)/wheel-venv
# Versions of Lightning with a strategy for IPUs. They need an older setuptools than PyTorch does.
LIGHTNING_VENV ?= $(WHEEL_VENV)-lightning
LIGHTNING_PYTHON = $(abspath $(LIGHTNING_VENV))/bin/python
LIGHTNING := "pytorch-lightning==2.0.9" "lightning-graphcore==0.1.0"
# For example manylinux_2_34; by default the oldest possible one.
MANYLINUX ?=
AARCH64_CXX ?= aarch64-linux-gnu-g++
# Other machines and systems, by ziglang's names.
WHEEL_TARGETS ?= $(patsubst %,%-linux-gnu.2.17,$(filter-out $(MACHINE),x86_64 aarch64)) aarch64-macos.11.0 x86_64-windows-gnu
# A failed native build is an error in all targets.
export SNNIPU_REQUIRE_NATIVE ?= 1

.PHONY: demo test test-all test-wheel wheel reproducible test-emulated bench format lint lint-text lint-tools check-ipu check-counts docs notebooks sanitize fuzz fuzz-calls fuzz-numbers soak mutants matrix clean

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools wheel
	$(PIP) "$(TORCH)"
	touch $@

# setup.py builds the libraries first, because pip would hide its output. pip then finds them up to date.
$(VENV)/.snnipu: $(VENV)/.torch pyproject.toml setup.py snnipu/_version.py $(NATIVE)
	$(BIN)/python setup.py build_ext --inplace
	$(PIP) --editable .
	echo "$(CURDIR)" > $@

# An editable installation leads to one folder. It is made again after the clone was moved, or for another clone.
ifeq ($(shell grep -sxF "$(CURDIR)" $(VENV)/.snnipu),)
.PHONY: $(VENV)/.snnipu
endif

# This installs the extras of the installed package, without building it again.
$(VENV)/.data: $(VENV)/.snnipu
	$(PIP) "snnipu[data]"
	touch $@

$(VENV)/.test: $(VENV)/.data
	$(PIP) "$(TORCHVISION)" "snnipu[test,docs]"
	# The modules of neurobench that the tests import do not need its dependencies, such as torchaudio.
	$(PIP) --no-deps neurobench
	touch $@

$(VENV)/.bench: $(VENV)/.snnipu
	$(PIP) "$(TORCHVISION)" "snnipu[bench]"
	touch $@

# The tools of the extra lint, with fixed versions and hashes.
$(VENV)/.lint: $(VENV)/.snnipu .ci/lint-tools.txt
	$(PIP) --require-hashes --no-deps -r .ci/lint-tools.txt
	touch $@

lint-tools: $(VENV)/.torch
	$(PIP) uv
	$(BIN)/python -c "import re; print(*re.findall('\"(.*?)\"', re.search('\nlint = (.*)', open('pyproject.toml').read())[1]), sep='\n')" | \
		$(BIN)/uv pip compile - --upgrade --generate-hashes --universal --python-version 3.10 --no-annotate --quiet \
		--custom-compile-command "make lint-tools" --output-file .ci/lint-tools.txt

$(VENV)/.docs: $(VENV)/.snnipu
	$(PIP) "snnipu[docs]"
	touch $@

demo: $(VENV)/.data
	mkdir -p $(OUT)/demo
	$(BIN)/python -m snnipu train --plot-dir $(OUT)/demo --json $(OUT)/demo/train.json
	@echo "pictures and results: $(abspath $(OUT)/demo)"

# Bytecode is written even if the environment forbids it: the tests start hundreds of processes that import the package.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.test
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.test
	$(PYTEST) $(PYTEST_ARGS)

# The wheel gets the libraries of the editable installation, without compiling them again.
test-wheel: $(VENV)/.test
	rm -rf build $(OUT)/wheel $(WHEEL_VENV) $(LIGHTNING_VENV)
	$(PIP_WHEEL) --wheel-dir $(OUT)/wheel .
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" \
		"$$(ls $(OUT)/wheel/snnipu-*.whl)[data]"
	$(PYTHON) -m venv $(LIGHTNING_VENV)
	$(WHEEL_VENV)/bin/python -c "import site; print(site.getsitepackages()[0])" > \
		"$$($(LIGHTNING_PYTHON) -c 'import site; print(site.getsitepackages()[0])')/wheel.pth"
	$(LIGHTNING_PYTHON) -m pip install --quiet --disable-pip-version-check $(LIGHTNING) && \
		$(LIGHTNING_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps "setuptools<70" || \
		{ echo "no Lightning for IPUs could be installed: it is not tested"; rm -rf $(LIGHTNING_VENV); }
	SNNIPU_WHEEL_PYTHON="$(abspath $(WHEEL_VENV))/bin/python" SNNIPU_LIGHTNING_PYTHON="$$(ls $(LIGHTNING_PYTHON))" \
		$(BIN)/python -m pytest $(PYTEST_ARGS) tests/test_wheel.py tests/poptorch/test_lightning.py

$(VENV)/.wheel: $(VENV)/.snnipu
	$(PIP) "snnipu[wheels]"
	touch $@

# A wheel is for the target of its compiler. The system's compiler builds for this machine. A cross compiler builds for
# another machine, or else ziglang's Clang, which has the headers of all systems. auditwheel checks which symbols of the C
# and C++ runtimes are needed, and puts the oldest systems that have them into the name of a wheel for Linux.
wheel: export SNNIPU_BUILD_ISA := all
wheel: $(VENV)/.wheel
	rm -rf build $(OUT)/plain dist/snnipu-*.whl
	$(PIP_WHEEL) --wheel-dir $(OUT)/plain .
	zig="$$($(BIN)/python -c 'import ziglang; print(ziglang.__path__[0])')/zig c++ -target"; \
	for target in $(WHEEL_TARGETS); do \
		cxx="$$zig $$target" link=-s; \
		case $$target in aarch64-linux*) if command -v $(AARCH64_CXX) >/dev/null; then cxx=$(AARCH64_CXX) link=; fi;; esac; \
		echo "compiling everything for $$target; pip prints nothing for a minute or two"; \
		CXX="$$cxx" LDFLAGS="$(LDFLAGS) $$link" $(PIP_WHEEL) --wheel-dir $(OUT)/plain . || exit 1; \
	done
	mkdir -p dist
	for wheel in $(OUT)/plain/snnipu-*.whl; do \
		case $$wheel in *-linux_*) ;; *) cp $$wheel dist && continue;; esac; \
		PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist \
			$(if $(MANYLINUX),--plat $(MANYLINUX)_$$(echo $$wheel | sed 's/.*-linux_\(.*\)\.whl/\1/')) $$wheel || exit 1; \
	done
	SNNIPU_WHEELS=dist $(BIN)/python -m pytest $(PYTEST_ARGS) tests/test_wheels.py -k "not emulated"

# Two copies of the commit in different folders must give the same bytes, in the libraries and in the wheel.
reproducible: export SNNIPU_BUILD_ISA := all
reproducible: $(VENV)/.torch
	rm -rf $(OUT)/reproducible
	commit=$$(git rev-parse HEAD); \
	for copy in one another/two; do \
		mkdir -p $(OUT)/reproducible/$$copy && git archive $$commit | tar -x -C $(OUT)/reproducible/$$copy && \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct $$commit) $(PIP_WHEEL) --wheel-dir $(OUT)/reproducible/$$copy/dist \
			$(OUT)/reproducible/$$copy || exit 1; \
	done
	cmp $(OUT)/reproducible/one/dist/snnipu-*.whl $(OUT)/reproducible/another/two/dist/snnipu-*.whl
	sha256sum $(OUT)/reproducible/one/dist/snnipu-*.whl

test-emulated: $(VENV)/.wheel $(VENV)/.test
	SNNIPU_WHEELS=dist $(BIN)/python -m pytest $(PYTEST_ARGS) tests/test_wheels.py -k emulated

# MATRIX_ARGS selects rows and tests; see --help.
matrix:
	$(PYTHON) tests/support/matrix.py $(MATRIX_ARGS)

bench: $(VENV)/.bench
	mkdir -p $(OUT)/bench
	$(BIN)/python -m benchmarks $(CASE) $(BENCH_ARGS) --json $(OUT)/bench/$(CASE).json --chart $(OUT)/bench/$(CASE).png
	@echo "chart and results: $(abspath $(OUT)/bench)"

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

lint: lint-text
	CXXFLAGS="$(CXXFLAGS) -O0 -Werror" $(BIN)/python setup.py build_ext --build-lib $(OUT)/lint

# All checks of lint except the compiler's warnings.
lint-text: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CPP)

# popc is a Clang. The check uses libclang, which PyPI has for every machine, and a clang++ if there is one.
IPU_CHECK := $(MAKE) --silent --jobs $(JOBS) -C custom_ops check
IPU_CHECK += OUT="$(abspath $(OUT))/ipu" PYTHON="$(abspath $(BIN))/python"
IPU_CHECK += INCLUDES="-I$(CURDIR)/csrc/ipu_model/poplar/include -I$(CURDIR)/csrc/ipu_model/popart/include"

check-ipu: $(VENV)/.test
	$(IPU_CHECK) CXX="$(abspath $(BIN))/python $(CURDIR)/csrc/ipu_model/popc/check.py"
	$(if $(CLANGXX),$(IPU_CHECK) CXX=$(CLANGXX),@echo "no clang++: checked by libclang alone")

# The vertices' instructions are counted with a Clang for a 32-bit target, that of the extra compiler.
$(VENV)/.check: $(VENV)/.test
	$(PIP) "snnipu[compiler]"
	touch $@

check-counts: $(VENV)/.check
	$(BIN)/python csrc/ipu_model/popc/counts.py --check

docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs $(OUT)/docs
	@echo "documentation: $(abspath $(OUT)/docs)/index.html"

# The tutorials read data sets below SNNIPU_DATA. NOTEBOOKS selects tutorials.
notebooks: $(VENV)/.test
	$(BIN)/python docs/notebooks.py $(NOTEBOOKS)

# Python is not built with sanitizers, so their runtime is preloaded, and leaks are not reported. Tests of torch.compile
# are left out, because its code has no kernels of snnipu. --capture=sys lets reports reach stderr.
SANITIZED = cxx="$${CXX:-c++}" && env SNNIPU_NATIVE_DIR="$(abspath $(OUT))/sanitize/snnipu/_native" \
	LD_PRELOAD="$$($$cxx -print-file-name=libasan.so) $$($$cxx -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
BUILD_SANITIZED = CXXFLAGS="$(CXXFLAGS) $(SANITIZE_FLAGS)" $(BIN)/python setup.py build_ext --isa $(SANITIZE_ISA) \
	--build-lib $(OUT)/sanitize

sanitize: $(VENV)/.test
	$(BUILD_SANITIZED)
	$(SANITIZED) SNNIPU_HYPOTHESIS_EXAMPLES=10 \
		$(PYTEST) --capture=sys -k "not compile and not opcheck" $(PYTEST_ARGS) \
		$(SANITIZE_TESTS) \
		tests/test_native.py::test_every_instruction_set tests/test_native.py::test_the_sanitizers_see_an_overrun
	$${CXX:-c++} $(FUZZ_KERNELS) $(SANITIZE_FLAGS) -DSNNIPU_FUZZ_ALONE -L$(OUT)/sanitize/snnipu/_native \
		-Wl,-rpath,$(abspath $(OUT))/sanitize/snnipu/_native -o $(OUT)/sanitize/fuzz_kernels
	$(OUT)/sanitize/fuzz_kernels $(SANITIZE_CASES) $(FUZZ_SEED)

# libFuzzer calls instrumented libraries; atheris fuzzes Python code.
fuzz: $(VENV)/.test
	$(PIP) "snnipu[fuzz]"
	CXX="$(CLANGXX)" CXXFLAGS="-O1 -g1 -w $(FUZZ_FLAGS),fuzzer-no-link" $(BIN)/python setup.py build_ext \
		--isa $(SANITIZE_ISA) --build-lib $(OUT)/fuzz
	$(CLANGXX) $(FUZZ_KERNELS) -O1 -g1 $(FUZZ_FLAGS),fuzzer -L$(OUT)/fuzz/snnipu/_native \
		-Wl,-rpath,$(abspath $(OUT))/fuzz/snnipu/_native -o $(OUT)/fuzz/fuzz_kernels
	$(BIN)/python tests/support/fuzz.py --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) --jobs $(JOBS) --kernels $(OUT)/fuzz/fuzz_kernels \
		--folder $(OUT)/fuzz $(FUZZ_ARGS)

fuzz-calls: $(VENV)/.test
	$(BUILD_SANITIZED)
	$(SANITIZED) $(BIN)/python tests/support/call_sequences.py --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) $(FUZZ_CALLS)

fuzz-numbers: $(VENV)/.test
	$(BIN)/python tests/support/differential.py --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

soak: $(VENV)/.test
	$(BIN)/python tests/support/soak.py --seconds $(SOAK_SECONDS)

# Run nothing else at the same time: a test that hangs counts as a test that notices the fault.
mutants: $(VENV)/.test
	$(PIP) "snnipu[mutants]"
	$(BIN)/python tests/support/mutants.py --seconds $(MUTANTS_SECONDS) --seed $(FUZZ_SEED) $(MUTANTS_ARGS)

clean:
	rm -rf $(OUT) build snnipu/_native snnipu.egg-info
