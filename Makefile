# Needs python3 (>= 3.10) with venv and headers, g++ (>= 12), make. Nothing else.
#
#   make demo     four processes train a model by averaging with their neighbors
#   make test     all tests           make native-test   the C++ tests alone
#   make test-gpu what needs a GPU, with the packages of PYTHON; not part of make test
#   make fakegpu  all tests over the fake GPU, with SEEDS seeds each
#   make check    lint, types, commits, C++ warnings     make lint, make format
#   make bench    speed of the operations on this machine
#   make bench-all    all operations and the start of jobs, to build/bench; takes long
#   make survive      all faults with all algorithms, to build/survive; takes long
#   make churn        an hour of faults and restarts on four hosts, to build/churn
#   make clean    remove everything that was built
#
# Set PYTHON to choose an interpreter, VENV to use an environment that exists, JOBS for
# the number of parallel compilers, BENCH_RANKS for the ranks that are measured;
# BENCH_SIZES, BENCH_ROUNDS and BENCH_LAUNCH make bench-all shorter, and CHURN_S is the
# length of make churn in seconds.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BENCH_RANKS ?= 4
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))

BIN := $(VENV)/bin
# A plain or ranged `torch` may bring gigabytes of CUDA libraries.
TORCH := torch==2.13.0
SHELL := /bin/bash

# Without caches, each of the tests' processes compiles the Python sources anew, which
# takes four times as long as importing them. Images of containers often forbid caches.
unexport PYTHONDONTWRITEBYTECODE

# Without make's own rules, which would make a source of any file that is included here.
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := build
.PHONY: build demo test test-unit test-ranks test-hosts test-torch test-faults test-gpu fakegpu \
    survive churn check check-types check-stubs check-commits check-collection clang-check \
    lint format bench bench-all native-build native-test native-fuzz clean
.DELETE_ON_ERROR:

# --- Python environment: one stamp per step, kept inside the environment ------------

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build-tools: pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q "setuptools>=70.1" "pybind11>=3.0"
	touch $@

$(VENV)/.torch: | $(VENV)/.build-tools
	@$(BIN)/python -c "import torch" 2>/dev/null || \
	    echo "downloading $(TORCH): 190 MB without CUDA, several GB with it"
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q "$(TORCH)"
	touch $@

compile = BUILD_BLUECOMM_JOBS=$(JOBS) $(BIN)/python setup.py -q build_ext --inplace

# Editable, so that Python sources need no second install. $(1) is a list of extras.
install = $(BIN)/pip install -q --no-build-isolation -e ".[$(1)]"

PACKAGING := setup.cfg setup.py pyproject.toml

$(VENV)/.examples: $(PACKAGING) | $(VENV)/.torch $(VENV)/.objects
	$(call install,examples)
	touch $@

$(VENV)/.dev: $(PACKAGING) | $(VENV)/.torch $(VENV)/.objects
	$(call install,dev)
	touch $@ $(VENV)/.examples

# --- Extension ------------------------------------------------------------------------

NATIVE := $(shell find native -name '*.cpp' -o -name '*.h')
EXTENSION_INPUTS := $(filter-out native/tests/% native/fuzz/%,$(NATIVE))

# Only what changed is compiled again. pip shows no output of a build, so this compiles
# first, and pip finds the objects.
$(VENV)/.objects: $(EXTENSION_INPUTS) setup.py | $(VENV)/.build-tools
	@echo "compiling the native libraries, which takes minutes the first time"
	$(compile)
	touch $@

$(VENV)/.extension: $(VENV)/.objects | $(VENV)/.examples
	touch $@

build: $(VENV)/.extension

demo: build
	$(BIN)/bfrun -np 4 $(BIN)/python examples/pytorch_digits.py \
	    --dist-optimizer neighbor_allreduce

bench: build
	$(BIN)/bfrun -np $(BENCH_RANKS) $(BIN)/python -m bluecomm.bench

BENCH_SIZES ?= 4 256 4K 16K 64K 256K 1M 8M 64M 256M
BENCH_ROUNDS ?= 7
BENCH_LAUNCH ?= 1 4 16 64
bench-all: build
	mkdir -p build/bench
	for ranks in 2 4; do $(BIN)/bfrun -np $$ranks --oversubscribe \
	    $(BIN)/python -m bluecomm.bench ops --operations all --sizes $(BENCH_SIZES) \
	    --rounds $(BENCH_ROUNDS) --round-s 0.03 --json build/bench/ops-$$ranks.json \
	    --plot build/bench/ops-$$ranks.png \
	    --plot-bandwidth build/bench/bandwidth-$$ranks.png || exit 1; done
	$(BIN)/python -m bluecomm.bench launch --ranks $(BENCH_LAUNCH) --rounds 1 \
	    --json build/bench/launch.json

# --- Native tests: one binary per mode --------------------------------------------------

# Sources that need no Python, which *_py.cpp do.
LIBRARY_SOURCES := $(filter-out native/bindings/% native/tests/% native/fuzz/% %_py.cpp, \
    $(filter %.cpp,$(NATIVE)))
TEST_SOURCES := $(filter-out %_bench.cpp,$(filter native/tests/%.cpp,$(NATIVE)))

# Most of the time of a compilation goes into headers. So the files of a folder are
# compiled together: build/batches/FOLDER.cpp includes them. Kernels are compiled one by
# one, since their own code takes longest. $(1) is a list of sources.
folders_of = $(patsubst native/%/,%,$(sort $(dir $(filter-out native/kernels/%,$(1)))))
units_of = $(addprefix batches/,$(call folders_of,$(1))) \
    $(patsubst native/%.cpp,%,$(filter native/kernels/%,$(1)))
objects_of = $(patsubst %,build/$(1)/obj/%.o,$(call units_of,$(2)))

# Tests without a sanitizer run the objects of the extension, which setup.py compiles.
# Only native/bench is compiled again, because the extension's object of it needs Python.
BENCH_SOURCES := $(filter native/bench/%,$(LIBRARY_SOURCES))
extension_folder = build/extension-$(shell \
    $(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')
extension_objects = $(patsubst kernels/%,$(extension_folder)/native/kernels/%.o, \
    $(patsubst batches/%,$(extension_folder)/build/extension-batches/%.o, \
    $(call units_of,$(filter-out $(BENCH_SOURCES),$(LIBRARY_SOURCES)))))

# TSan finds races, and the tests of these folders have one thread.
OF_ONE_THREAD := $(foreach folder,collectives kernels membership, \
    native/tests/$(folder)/%)
SOURCES_native := $(TEST_SOURCES) $(BENCH_SOURCES)
SOURCES_native-asan := $(TEST_SOURCES) $(LIBRARY_SOURCES)
SOURCES_native-tsan := $(filter-out $(OF_ONE_THREAD),$(SOURCES_native-asan))

# Written again only if the list of files has changed. A program of its own is in no
# batch, and neither are files that need Python. Several makes may run at once, so each
# writes to a file of its own first.
.PHONY: always
always:
.PRECIOUS: build/batches/%.cpp
build/batches/%.cpp: always
	@mkdir -p $(@D)
	@new=$@.$$$$; \
	printf '#include "%s"\n' $(patsubst native/%,%,$(filter-out %_bench.cpp %_py.cpp, \
	    $(sort $(wildcard native/$*/*.cpp)))) > $$new && \
	if cmp -s $$new $@; then rm $$new; else mv $$new $@; fi

# The plugin for NCCL, a library of its own beside the tests.
PLUGIN := libnccl-net-bluecomm.so
PLUGIN_SOURCES := $(filter native/nccl_net/% native/stream/% native/common/%, \
    $(filter %.cpp,$(NATIVE)))
NET_BENCH_SOURCES := $(addprefix native/tests/nccl_net/, bench_channel.cpp \
    plugin_client.cpp socket_strategy.cpp)
PLUGIN_LDFLAGS := -shared -Wl,-soname,$(PLUGIN) -Wl,-z,nodelete \
    -Wl,--version-script=native/nccl_net/exports.map

CXXFLAGS_ALL := -std=c++20 -Wall -Wextra -Werror -ffp-contract=off -pthread -fPIC \
    -MMD -MP -Inative
# -g1: line numbers for stack traces. Full debug information doubles the time of the
# ASan build.
# The code of the tests need not be fast. That of the benchmarks, which are compiled one
# by one, must be. At -O3, g++ 12 warns of overlapping copies in assignments of literals
# to std::string (GCC bug 105329).
CXXFLAGS_native = -g1 $(if $(findstring /batches/,$@),-O1,-O3 -Wno-restrict)
CXXFLAGS_native-asan := -O1 -g1 -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all
CXXFLAGS_native-tsan := -O1 -g1 -fsanitize=thread
MODES := native native-asan native-tsan

define mode_rules
build/$(1)/obj/%.o: native/%.cpp
	@mkdir -p $$(@D)
	@echo "compile $$@"
	@$$(CXX) $$(CXXFLAGS_ALL) $$(CXXFLAGS_$(1)) -c $$< -o $$@
build/$(1)/obj/batches/%.o: build/batches/%.cpp
	@mkdir -p $$(@D)
	@echo "compile $$@"
	@$$(CXX) $$(CXXFLAGS_ALL) $$(CXXFLAGS_$(1)) -c $$< -o $$@
build/$(1)/tests: $$(call objects_of,$(1),$$(SOURCES_$(1))) | build/$(1)/$(PLUGIN)
	@echo "link $$@"
	@$$(CXX) $$(CXXFLAGS_$(1)) -pthread $$(filter %.o,$$^) $$(SHIPPED_$(1)) -o $$@ -ldl
-include $$(shell find build/$(1)/obj -name '*.d' 2>/dev/null)
endef
SHIPPED_native = $(extension_objects)
$(foreach mode,$(MODES),$(eval $(call mode_rules,$(mode))))

build/native/tests: $(VENV)/.objects
build/native/$(PLUGIN): $(VENV)/.objects
	@mkdir -p $(@D)
	@cp bluecomm/nccl_net/$(PLUGIN) $@
build/native-%/$(PLUGIN): native/nccl_net/exports.map
	@echo "link $@"
	@$(CXX) $(CXXFLAGS_native-$*) -pthread $(filter %.o,$^) -o $@ $(PLUGIN_LDFLAGS)
$(foreach mode,native-asan native-tsan,$(eval \
    build/$(mode)/$(PLUGIN): $(call objects_of,$(mode),$(PLUGIN_SOURCES))))

# Benchmarks, with the objects of the extension, too.
build/native/nccl_net/net_bench: $(NET_BENCH_SOURCES:native/%.cpp=build/native/obj/%.o) \
    | build/native/$(PLUGIN)
build/native/%_bench: build/native/obj/tests/%_bench.o \
    $(call objects_of,native,$(BENCH_SOURCES)) $(VENV)/.objects
	@mkdir -p $(@D)
	@echo "link $@"
	@$(CXX) -pthread $(filter %.o,$^) $(extension_objects) -o $@ -ldl

# TSan's run takes as long as the others together, so two processes share it. Each run
# begins as soon as its tests are compiled. Runs wait most of the time, so one job more
# than usual goes on.
BESIDE_RUNS := -j$(shell expr $(JOBS) + 1) --output-sync=target
TSAN_RUNS := run-native-tsan-1 run-native-tsan-2
RUNS := run-native-asan $(TSAN_RUNS) run-native
.PHONY: $(RUNS)
native-build: $(MODES:%=build/%/tests)
native-test:
	$(MAKE) --no-print-directory $(BESIDE_RUNS) $(RUNS)

run-native run-native-asan: run-%: build/%/tests
	ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 build/$*/tests
$(TSAN_RUNS): run-native-tsan-%: build/native-tsan/tests
	TSAN_OPTIONS=halt_on_error=1 build/native-tsan/tests --part $*/2

# --- The fake GPU: libcuda, libnccl and NVML for tests ------------------------------------

# Each library is compiled as one file. Symbols of libcuda serve libnccl, too.
FAKEGPU := tests/support/fakegpu
build/fakegpu/libcuda.so.1: $(addprefix $(FAKEGPU)/, \
    report.cpp memory.cpp world.cpp cuda.cpp cuda_memory.cpp cuda_ipc.cpp \
    extras.cpp)
build/fakegpu/libnccl.so.2: $(addprefix $(FAKEGPU)/, \
    exchange.cpp mesh.cpp reduce.cpp one_sided.cpp operation.cpp group.cpp comm_checks.cpp \
    nccl_operations.cpp nccl_windows.cpp nccl.cpp) \
    | build/fakegpu/libcuda.so.1
build/fakegpu/libnvidia-ml.so.1: $(FAKEGPU)/nvml.cpp
build/fakegpu/%: $(wildcard $(FAKEGPU)/*.h)
	@mkdir -p $(@D)
	@echo "compile $@"
	@printf '#include "$(CURDIR)/%s"\n' $(filter %.cpp,$^) | $(CXX) \
	    $(filter-out -MMD -MP,$(CXXFLAGS_ALL)) $(CXXFLAGS_native) -x c++ - -x none \
	    -shared -Wl,-soname,$(@F) -Wl,-z,defs -Wl,-rpath,'$$ORIGIN' -o $@ $| -ldl

# The tests of the fake, each with many seeds, and then tests of tests/mp over the fake,
# through NCCL and staged.
SEEDS ?= 10
MP_SEEDS ?= 1
fakegpu: $(VENV)/.dev $(VENV)/.extension build/fakegpu/libnccl.so.2
	FAKEGPU_SEEDS=$(SEEDS) $(BIN)/pytest tests/fakegpu
	for seed in $$(seq $(MP_SEEDS)); do for path in nccl staged; do \
	    $(BIN)/pytest tests/mp --over-fakegpu $$path --fakegpu-seed $$seed || exit 1; \
	done; done

# --- Fuzzing: parsers of bytes from strangers, FUZZ_SECONDS in all ------------------------

FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst native/fuzz/%.cpp,%,$(wildcard native/fuzz/fuzz_*.cpp))
build/native-asan/fuzz_%: build/native-asan/obj/fuzz/fuzz_%.o \
    build/native-asan/obj/fuzz/driver.o \
    $(call objects_of,native-asan,$(LIBRARY_SOURCES))
	@echo "link $@"
	@$(CXX) $(CXXFLAGS_native-asan) -pthread $^ -o $@ -ldl

FUZZ_RUNS := $(FUZZERS:%=run-%)
.PHONY: $(FUZZ_RUNS)
$(FUZZ_RUNS): run-%: build/native-asan/%
	cd build && native-asan/$* ../native/fuzz/corpus/$(*:fuzz_%=%) \
	    --seconds $$(( $(FUZZ_SECONDS) / $(words $(FUZZERS)) ))
native-fuzz:
	$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target $(FUZZ_RUNS)

# --- Tests and checks -------------------------------------------------------------------

# Unit tests run beside the native tests and their compilation.
test: $(VENV)/.dev $(VENV)/.extension
	$(MAKE) --no-print-directory $(BESIDE_RUNS) test-unit $(RUNS)
	$(BIN)/pytest tests/mp -m many_ranks
	$(MAKE) --no-print-directory -k -j2 --output-sync=target test-faults test-ranks \
	    test-hosts test-torch

test-unit: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/pytest tests/unit

# Two at a time: they wait a lot, for processes, hosts, or things to be noticed. Faults
# have the processor when they are.
test-ranks: $(VENV)/.dev $(VENV)/.extension
	nice $(BIN)/pytest -m "not many_ranks" tests/mp tests/fakegpu

test-hosts: $(VENV)/.dev $(VENV)/.extension
	nice $(BIN)/pytest tests/cluster tests/examples

# torch's own tests of a backend, on bluecomm.
test-torch: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/python -W ignore -m tests.torch_conformance

test-faults: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/pytest tests/faults; faults=$$?; \
	    nice $(BIN)/pytest tests/launchers tests/slurm tests/mpi && exit $$faults

# On a machine with a GPU. Uses the packages that PYTHON has, and installs none. Without
# pybind11 or a compiler there, the libraries must have been compiled before.
GPU_PARTS ?=
GPU_OUTPUT ?= build/gpu.jsonl
test-gpu:
	@if $(PYTHON) -c "import pybind11, setuptools" && command -v $(CXX); then \
	    BUILD_BLUECOMM_JOBS=$(JOBS) $(PYTHON) setup.py -q build_ext --inplace; \
	else $(PYTHON) -c "import bluecomm._native"; fi
	$(PYTHON) -m tests.gpu $(GPU_PARTS) --output $(GPU_OUTPUT)

# Each fault with each algorithm, over shm, over tcp, and on two hosts: each on its own, or
# SURVIVE_TOGETHER of them in each job.
SURVIVE_TOGETHER ?= 1
survive: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/python -m tests.tools.fault_matrix build/survive --together $(SURVIVE_TOGETHER)

# As root: the hosts are network namespaces.
CHURN_S ?= 3600
churn: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/python -m tests.churn build/churn --seconds $(CHURN_S)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE) $(wildcard $(FAKEGPU)/*.cpp $(FAKEGPU)/*.h)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE) $(wildcard $(FAKEGPU)/*.cpp $(FAKEGPU)/*.h)

# Several checks use one processor each.
check: $(VENV)/.dev $(VENV)/.extension
	$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target lint check-types \
	    check-stubs check-commits check-collection clang-check

check-types: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/mypy

check-stubs: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/python -m mypy.stubtest bluecomm._native bluecomm.bench._raw_memory \
	    --allowlist tests/typing/stubtest_allowlist.txt --ignore-unused-allowlist

check-commits: $(VENV)/.dev
	$(BIN)/python -m tests.tools.commit_messages

check-collection: $(VENV)/.dev $(VENV)/.extension
	$(BIN)/pytest --collect-only -qqq tests

# A second compiler's opinion: other warnings, and the thread annotations.
CLANG := $(firstword $(foreach name,clang++ clang++-19 clang++-16,$(shell command -v $(name))))
CLANG_CHECKED := $(patsubst %,build/clang/%.checked, \
    $(call units_of,$(LIBRARY_SOURCES) $(TEST_SOURCES)) \
    $(patsubst native/%.cpp,%,$(filter %_bench.cpp,$(NATIVE))))

define clang
@mkdir -p $(@D)
@echo "clang $<"
@$(CLANG) $(CXXFLAGS_ALL) -MF $(@:.checked=.d) -MT $@ -Wthread-safety -fsyntax-only $<
@touch $@
endef
build/clang/batches/%.checked: build/batches/%.cpp
	$(clang)
build/clang/%.checked: native/%.cpp
	$(clang)

ifeq ($(CLANG),)
clang-check:
	@echo "clang-check skipped: no clang++ here"
else
clang-check: $(CLANG_CHECKED)
-include $(CLANG_CHECKED:.checked=.d)
endif

clean:
	rm -rf .venv build dist bluecomm.egg-info bluecomm/_native*.so \
	    bluecomm/bench/*.so bluecomm/nccl_net/*.so
