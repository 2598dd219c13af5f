# The two commands: `make propose OP=moe_shared` and `make test`. Both set up what they need in $(VENV) first.
#
#   OP=...           the op to propose kernels for                 ARGS=...         more arguments of `kgen propose`
#   PYTHON=...       the Python to use (>= 3.11)                   PYTEST_ARGS=...  more arguments of pytest
#   VENV=...         the environment to make or to use             JOBS=...         test processes at a time

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help propose collect test deep mutation fuzz bench-agent exploits-gpu runner-faults-gpu ptx-truth-gpu lint wheel clean
.DELETE_ON_ERROR:

PYTHON ?=
VENV ?= .venv
OP ?= moe_shared
ARGS ?=
PYTEST_ARGS ?=
MUTATION_ARGS ?=
JOBS ?= 2
FUZZ_SECONDS ?= 60
BENCH_ARGS ?=
GPU_ARGS ?=

BIN := $(VENV)/bin
export PYTHON

help:
	@echo "make propose OP=moe_shared   set up, then propose kernels for an op"
	@echo "make test                    set up, then run the tests (PYTEST_ARGS='tests/test_store_runs.py')"
	@echo "make deep                    the long sweeps as well"
	@echo "make mutation                mutate the judging code and see that tests notice (MUTATION_ARGS='--again')"
	@echo "make fuzz                    fuzz every parser for FUZZ_SECONDS each, and write the record"
	@echo "make bench-agent             run the loop's benchmark, and put the rows of these prompts into its record"
	@echo "make exploits-gpu            on a GPU: run what candidates may try there again, and write the record"
	@echo "make runner-faults-gpu       on a GPU: the same for kernels that fault or hang"
	@echo "make ptx-truth-gpu           on a GPU: the same for the interpreter's kernels"
	@echo "make lint                    ruff and mypy"
	@echo "make wheel                   build a wheel into dist/"
	@echo "make clean                   remove $(VENV) and what builds leave"

$(VENV)/.run: pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(VENV) run
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(VENV) dev
	@touch $@ $(VENV)/.run

propose: $(VENV)/.run
	@$(BIN)/kgen propose --op $(OP) $(ARGS)
	@command -v kgen >/dev/null || echo "(kgen is in $(BIN): \`. $(BIN)/activate\` puts it on the PATH)" >&2

$(VENV)/nosync.so: tests/support/nosync.c $(VENV)/.dev
	@$${CC:-cc} -shared -fPIC -O1 $< -o $@

# What a test process compiles on its way to the first test, for the next one to find
collect: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq >/dev/null || true

# `pytest`, not `python -m pytest`: the latter puts the checkout on sys.path, where `import gates` would work. Byte code
# is kept whatever the environment says: hundreds of processes start here.
test: $(VENV)/nosync.so
	@PYTHONDONTWRITEBYTECODE= LD_PRELOAD=$(abspath $(VENV)/nosync.so) $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

deep: $(VENV)/.dev
	@$(BIN)/pytest -m deep $(PYTEST_ARGS)

mutation: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -W ignore -m mutation $(MUTATION_ARGS)

# Atheris guides by coverage; where it has no package for this Python, changed copies are tried without guidance
fuzz: $(VENV)/.dev
	@$(BIN)/python -m pip install -q --only-binary :all: --target $(VENV)/fuzz atheris || echo "(without atheris)"
	@PYTHONPATH=tests:$(VENV)/fuzz OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m fuzz.run --seconds $(FUZZ_SECONDS)

bench-agent: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/kgen bench-agent --record benchmarks/agent.json $(BENCH_ARGS)

# Elsewhere: GPU_ARGS='pack FILE.pyz' makes what a GPU host runs, GPU_ARGS='take RESULT' takes in what it wrote
exploits-gpu: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -W ignore -m support.again exploits $(GPU_ARGS)

runner-faults-gpu: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -W ignore -m support.again runner-faults $(GPU_ARGS)

ptx-truth-gpu: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -W ignore -m support.again ptx-truth $(GPU_ARGS)

# mypy cannot follow an editable install, so it gets an installed copy; `build/` would leak deleted modules into it
lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@rm -rf build $(VENV)/typed
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation --target $(VENV)/typed .
	@rm -rf build
	@MYPYPATH=$(VENV)/typed $(BIN)/mypy -p kgen

wheel: $(VENV)/.dev
	@rm -rf build
	@$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	@rm -rf build
	@ls -l dist

clean:
	rm -rf $(VENV) build dist kgen.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
