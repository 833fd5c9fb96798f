# The front door. Everything here is a short way to say cmake, ctest or a script of tools/; nothing
# is done that could not be done by hand.
#
# JOBS    processes at once (default: the cores)      PREFIX  where `make install` puts things
# SECONDS of `make fuzz`, in all                      LAYOUTS, PAIRS, TEXTS of `make soak`
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
MODEL ?= build/models/all-MiniLM-L6-v2
SAMPLES ?= examples/data/samples.txt
SECONDS ?= 60
LAYOUTS ?= 100000
PAIRS ?= 100000
TEXTS ?= 100000
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help deps deps-build deps-venv deps-check build model wheel demo check cuda kernels check-gpu gpu bench-gpu asan asan-clang tsan fuzz soak valgrind analyze aarch64 warnings layers docs-check faults-check abi-check \
	bench bench-peers format format-check install clean venv

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  JOBS=N processes at once, PREFIX=DIR for install, MODEL=DIR for demo and bench, BENCH_FLAGS"

deps: ## install what is missing for building, the model and the tests (Debian, as root)
	@tools/install_deps.sh build venv test python
deps-build:
	@tools/install_deps.sh build
deps-venv: deps-build
	@tools/install_deps.sh venv
deps-check: deps-venv
	@tools/install_deps.sh test python

# Tests are configured when their library is there, so that build and check can share the folder.
build: deps-build ## build the library and the program: build/release/mstar
	@cmake --preset release -DMSTAR_TESTS=$$(pkg-config --exists cmocka && echo ON || echo OFF) >/dev/null
	@cmake --build --preset release -j $(JOBS) --target mstar mstar_shared mstar_static

model: deps-venv ## get all-MiniLM-L6-v2 into build/models (84 MB)
	@tools/get_model.sh

venv: deps-check
	@tools/make_venv.sh tests/requirements.txt

# Tags, contents and tests of the package are checked by `make check`: the test program.test_wheel.
wheel: deps-check venv ## the Python package: build/wheel/mstarc-*.whl
	@build/venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --no-index \
		-C build-dir=build/wheel-build -w build/wheel ./python
	@ls build/wheel

demo: build model ## embed the sample texts and print the closest pairs
	@build/release/mstar similar --model $(MODEL) --pairs --top 5 $(SAMPLES)

# The last output is the test runner's own summary.
check: build venv model ## build, run every test
	@cmake --preset release -DMSTAR_TESTS=ON >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset release -j $(JOBS) --no-tests=error

asan: venv model ## the tests under the address and undefined behaviour sanitizers
	@cmake --preset asan >/dev/null
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS) --no-tests=error

# clang's see what gcc's do not: offsets from null pointers, floats outside an integer's range.
asan-clang: deps-check ## the unit tests under clang's sanitizers
	@tools/install_deps.sh clang
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS)
	@ctest --preset fuzz -j $(JOBS) --no-tests=error -R '^unit'

fuzz: deps-check ## run the fuzz targets for SECONDS in all (60)
	@tools/install_deps.sh clang
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS) --target fuzz_targets
	@tests/fuzz/run_fuzz.py --seconds $(SECONDS)

soak: deps-check model ## random LAYOUTS, graphs (PAIRS) and mixed TEXTS (100000 each): no bit differs, memory flat
	@cmake --preset release -DMSTAR_TESTS=ON >/dev/null
	@cmake --build --preset release -j $(JOBS) --target soak_attention soak_graphs soak_texts
	@build/release/soak/soak_attention $(LAYOUTS)
	@build/release/soak/soak_graphs $(PAIRS)
	@build/release/soak/soak_texts build/models/all-MiniLM-L6-v2 $(TEXTS)

# Up to AVX2, which valgrind can run; the other levels are the same bodies. Left out: tests that take
# minutes there, and test_plan, which compares whole blocks, unused ends included.
VALGRIND_TESTS := test_(alloc|arena|desc|dtype|json|layout|safetensors|folder|modules|lowercase|tokenizer|encoder_calls|attention_api|attention_known|ops_api)$$
valgrind: deps-check ## unit tests of every layer under valgrind, on the scalar and AVX2 levels
	@tools/install_deps.sh valgrind
	@cmake --preset release -DMSTAR_TESTS=ON >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@tests/valgrind/run_valgrind.sh build/release '$(VALGRIND_TESTS)' $(JOBS)

# Without the kernels, whose intrinsics it does not know, and the program, where it does not see what
# holds between fields of a struct.
analyze: deps-check ## clang's static analyzer and likely faults over the library (.clang-tidy)
	@tools/install_deps.sh analyze
	@cmake --preset dev >/dev/null
	@git ls-files 'src/*.c' ':!src/cpu/body_*' | xargs -P $(JOBS) -n 4 clang-tidy -p build/dev --quiet

# In one process: the Python tests start the program or load the library, and find no more races. Left
# out: cases of numbers at full size, which take many minutes there, also over the mock of a GPU, whose
# kernels are one thread's.
tsan: venv model ## the unit tests and examples under the thread sanitizer
	@cmake --preset tsan >/dev/null
	@cmake --build --preset tsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS) --no-tests=error -R '^(unit|example)' \
		-E 'test_(faults_(bits|memory|overflow|plans|scores|shapes)(_mock)?|(attention|attention_bits|attention_poison|encoder_bits)_mock)$$'

warnings: deps-check ## everything with warnings as errors, by gcc without optimisation and by clang
	@tools/install_deps.sh clang
	@cmake --preset dev >/dev/null
	@cmake --build --preset dev -j $(JOBS)
	@CC=clang cmake --preset dev -B build/clang -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	@cmake --build build/clang -j $(JOBS)
	@ctest --test-dir build/clang -R '^example' --no-tests=error --output-on-failure

# Left out: the fork tests, since the emulator does not carry other threads' locks over a fork, and
# the longest runs over random layouts, which the emulator makes many times longer.
aarch64: deps-check ## cross build and most of its tests under qemu-user
	@tools/install_deps.sh cross
	@tools/get_arm64.sh
	@cmake --preset aarch64 >/dev/null
	@cmake --build --preset aarch64 -j $(JOBS)
	@ctest --preset aarch64 -j $(JOBS) --no-tests=error \
		-E 'test_(parallel|attention|attention_bits|attention_graph|attention_poison|captured_layouts|ops_linear|ops_linear_bits|faults_.*|graph_runner|replay_pools|cuda_attention|cuda_attention_values|.*_mock)$$|^soak.(graphs|texts)'

layers: ## check the layer order and the rules of the tree
	@python3 tools/check_layers.py

docs-check: ## compile the C of the docs, check their paths and tables
	@python3 tools/check_docs.py

abi-check: ## compare the public headers with the recorded binary interface
	@python3 tools/check_abi.py

faults-check: ## check that every known fault, and every line of the checklist, has a test or a reason
	@python3 tools/check_faults.py
	@python3 tools/check_checklist.py

# On a quiet machine: both take every core and measure nothing but time.
bench: build model ## measure attention, products and embedding: bench/results/<cpu>.csv and a picture
	@python3 bench/run_bench.py --model $(MODEL) $(BENCH_FLAGS)

bench-peers: build model deps-venv ## ours against other engines, strings to vectors: bench/results (7 GB of packages)
	@bench/install_peers.sh
	@build/bench-venv/bin/python bench/compare_embed.py --model $(MODEL) $(BENCH_FLAGS)

cuda: deps-check ## build with the kernels for NVIDIA GPUs: build/cuda (needs no card)
	@tools/get_cuda.sh
	@cmake --preset cuda >/dev/null
	@cmake --build --preset cuda -j $(JOBS)

# Machine code of one compute capability and PTX: that shows that every instance compiles and that the
# library links with them, in half the time of all.
kernels: deps-check ## compile every GPU kernel for one card, and a program with them (needs no card)
	@tools/get_cuda.sh
	@cmake --preset cuda -B build/kernels -DMSTAR_CUDA_ARCHS=80 -DMSTAR_TESTS=OFF >/dev/null
	@cmake --build build/kernels -j $(JOBS) --target mstar
	@build/kernels/mstar version | grep 'backends:.* cuda'

# Each of these programs takes the card as its argument; without one those of the first line run over the
# mock, the others on processors (`mock` is then the argument that says so).
GPU_TESTS := cuda_attention cuda_attention_values cuda_plans cuda_rows cuda_norms cuda_linear cuda_sharings cuda_encoder cuda_runner graph_runner region_runner ops_rows ops_tokens ops_linear ops_linear_bits \
	attention attention_bits attention_graph attention_known attention_packs attention_poison captured_layouts \
	faults_bits faults_capture faults_empty faults_graph faults_memory faults_overflow faults_plans faults_scores faults_shapes faults_workspace \
	encoder_bits encoder_calls encoder_graphs faults_encoder
GPU_SOAKS ?= attention:10000 graphs:2000
# Those that compute-sanitizer gets through in a minute or so.
GPU_TOOL_TESTS := cuda_attention cuda_attention_values cuda_rows cuda_norms cuda_linear cuda_sharings cuda_encoder cuda_runner graph_runner region_runner attention_bits captured_layouts faults_capture encoder_graphs
# GPU_PYTHON has torch, pytest, numpy and hypothesis. Without torch the last line says NOT RUN (77);
# anything else that keeps the Python tests from running is a failure.
GPU_PYTHON ?= python3
check-gpu: cuda ## the tests of attention, operations, encoders, runners and the Python package on cuda:0
	@PARTS=tests GPU_PYTHON="$(GPU_PYTHON)" SOAKS="$(GPU_SOAKS)" tools/check_gpu.sh $(GPU_TESTS)

gpu: cuda ## everything on cuda:0: tests, soaks, compute-sanitizer (TOOLS), benches and their goals
	@GPU_PYTHON="$(GPU_PYTHON)" SOAKS="$(GPU_SOAKS)" TOOL_TESTS="$(GPU_TOOL_TESTS)" tools/check_gpu.sh $(GPU_TESTS)

bench-gpu: cuda ## measure attention, towers, plans and replays on cuda:0: bench/results/<card>.csv and a picture
	@python3 bench/run_gpu.py $(BENCH_FLAGS)

format: ## run clang-format over the C sources
	@git ls-files '*.c' '*.h' | xargs clang-format -i

format-check:
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror

install: build ## install into PREFIX (headers, libraries, program, man page, pkg-config, CMake)
	@cmake --build --preset release --target manpage
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove what was built; the model and the Python environment stay
	@rm -rf build/release build/dev build/asan build/tsan build/aarch64 build/clang build/fuzz build/cuda build/kernels
