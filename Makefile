# The front door. `make` alone lists what there is.

PYTHON ?= python3
VENV ?= .venv
# What pip is asked for as PyTorch. A CPU-only build, a fraction of the size on Linux:
#   make setup TORCH="torch==2.13.0 --index-url URL" (with the URL of the CPU wheels PyTorch names)
TORCH ?= torch==2.13.0
# Seeds that `make seeds` runs, and further arguments for `make test`, `up`, `demo` and `bench`.
N ?= 2000
ARGS ?=
# The image of `make image`, what it is built on, and what is installed beside the services (`train`
# for agents whose jobs need PyTorch).
IMAGE ?= skep:local
BASE_IMAGE ?= python:3.11-slim-bookworm
EXTRAS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all test-nightly test-gpu check bench chaos clean distclean \
	format lint types imports tidy format-check proto proto-check bless seeds cells-histories \
	planted sharing up down cov wheel image compose-up compose-down compose-test corpus \
	adr adr-check docs reference reference-check spelling web web-check

help: ## List the targets
	@echo "make TARGET [ARGS=...] [PYTHON=python3] [TORCH=torch==2.13.0]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with everything; every target does it when needed
	@echo "$(VENV) is ready"

# Made again when the dependencies change; `pip` then installs only the difference.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: Skep needs Python 3.11 or later; '$(PYTHON)' is" \
	    "$$($(PYTHON) --version 2>/dev/null | grep '^Python' || echo 'not there')." \
	    "Choose another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) tools/setup_venv.py "$(VENV)" --torch "$(TORCH)"
	@touch $@

demo: $(READY) ## Start a cluster on this machine, train real jobs, kill a service, show the result
	@$(BIN)/python scripts/demo/run.py $(ARGS)

# A file is one worker's. By itself xdist would begin with the files of most tests and leave those
# of few long ones to the end, for one worker; in the order of their names the cheap ones come last.
# Tests with real processes wait half of their time: four workers keep two processors busy. Slow
# tests have jobs with PyTorch, and wait less: three do.
PYTEST_ALL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: WORKERS := 4
test-all test-nightly: WORKERS := 3
# Tests start hundreds of Python processes: modules are compiled once, not by each of them.
test test-all test-nightly: export PYTHONDONTWRITEBYTECODE =

test: $(READY) ## Run the quick tests (one of them: make test ARGS="tests/unit -k name")
	@$(BIN)/python -m pytest -q $(if $(ARGS),$(ARGS),$(PYTEST_ALL) -m "not slow and not nightly")

test-all: export HYPOTHESIS_PROFILE ?= $(if $(CI),ci,all)
test-all: $(READY) ## Run the slow tests and more random examples too: what CI runs
	@$(BIN)/python -m pytest -q $(PYTEST_ALL) -m "not nightly" $(ARGS)

test-nightly: export HYPOTHESIS_PROFILE ?= all
test-nightly: $(READY) ## Run all tests there are
	@$(BIN)/python -m pytest -q $(PYTEST_ALL) $(ARGS)

# What reads the GPUs is installed only here: other machines have no use for it.
test-gpu: $(READY) ## Run real jobs on the GPU of this machine; each test prints what it measured
	@$(BIN)/python -m pip install -q --disable-pip-version-check "nvidia-ml-py>=12.535"
	@$(BIN)/python -m pytest -q -m gpu $(if $(ARGS),$(ARGS),tests/gpu)

CHECKS := format-check lint types imports tidy spelling proto-check adr-check reference-check \
	web-check
check: $(CHECKS) ## All but the tests, as CI does
	@echo "check: all good"

bench: $(READY) ## Measure latency, throughput, recovery and memory; prints JSON
	@$(BIN)/python -m benchmarks overview $(ARGS)

chaos: $(READY) ## Attack a cluster with random faults, check every promise (ARGS="--seed 2")
	@$(BIN)/python -m tests.system.chaos $(ARGS)

format: $(READY) ## Format the code and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

format-check: $(READY)
	@echo "ruff format"; $(BIN)/ruff format --check --quiet --output-format concise . || \
	  { echo "make format puts this right" >&2; exit 1; }

lint: $(READY) ## Check with ruff
	@echo "ruff check"; $(BIN)/ruff check --quiet .

types: $(READY) ## Check types with mypy
	@echo "mypy"; $(BIN)/mypy --no-error-summary

imports: $(READY) ## Check the import contracts, and that no modules import one another in a circle
	@echo "lint-imports"; $(BIN)/lint-imports > $(VENV)/imports.log 2>&1 || \
	  { cat $(VENV)/imports.log >&2; exit 1; }
	@echo "import cycles"; $(BIN)/python -m tools.import_cycles

tidy: $(READY) ## Check the house rules that no other tool knows
	@echo "tidy"; $(BIN)/python -m tools.tidy

spelling: $(READY) $(BIN)/codespell
	@echo "codespell"; $(BIN)/codespell

proto: $(READY) ## Generate proto/ from the code
	@$(BIN)/python -m tools.generate_proto

proto-check: $(READY)
	@echo "proto"; $(BIN)/python -m tools.generate_proto --check

adr: $(READY) ## Write the index of the decision records
	@$(BIN)/python -m tools.adr_index

adr-check: $(READY)
	@echo "adr"; $(BIN)/python -m tools.adr_index --check

reference: $(READY) ## Write docs/reference from the code
	@$(BIN)/python -m tools.reference

reference-check: $(READY)
	@echo "reference"; $(BIN)/python -m tools.reference --check

web: $(READY) ## Build the web page (needs Node 20 and npm)
	@$(BIN)/python -m tools.web

web-check: $(READY)
	@echo "web"; $(BIN)/python -m tools.web --check

docs: $(READY) $(BIN)/mkdocs ## Build the documentation site in out/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	@echo "docs: $$(find out/site -name '*.html' | wc -l) pages, from out/site/index.html"

# Only those who build the site need what builds it. An environment may be older than a check.
$(BIN)/codespell: EXTRA := dev
$(BIN)/mkdocs: EXTRA := docs
$(BIN)/codespell $(BIN)/mkdocs: | $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRA)]"

bless: $(READY) ## Rewrite the transcripts in tests/scenarios; then read the difference
	@SKEP_BLESS=1 $(BIN)/python -m pytest -q tests/scenarios $(ARGS)

seeds: $(READY) ## Run the protocol simulator over N seeds (make seeds N=20000)
	@$(BIN)/python -m skep.sim.run --seeds $(N) $(ARGS)

corpus: $(READY) ## Compare what the code decides with what is stored (ARGS="--seeds 100")
	@$(BIN)/python -m tests.corpus $(ARGS)

cells-histories: $(READY) ## Run N random histories of cells, all invariants checked; prints JSON
	@$(BIN)/python -m tests.property.run_histories --seeds $(N) $(ARGS)

sharing: $(READY) ## Simulate random tenants: is sharing ever worse than a cluster of one's own?
	@$(BIN)/python -m skep_lab.studies.sharing $(ARGS)

planted: $(READY) ## Plant bugs in the machines: the simulator must find each
	@$(BIN)/python -m skep.sim.planted $(ARGS)

up: $(READY) ## Start a cluster on this machine (ARGS="--nodes 2 --gpus 4")
	@$(BIN)/skep up $(ARGS)

down: $(READY) ## Stop it
	@$(BIN)/skep down $(ARGS)

image: $(READY) ## Build the container image, without a network but for the wheels (BASE_IMAGE=...)
	@$(BIN)/python -m tools.image --base "$(BASE_IMAGE)" --tag "$(IMAGE)" --extras "$(EXTRAS)"

compose-up: image ## Start a cluster of containers: three bus servers, standbys, two agents
	@$(BIN)/python -m tools.compose up --image "$(IMAGE)" $(ARGS)

compose-down: $(READY) ## Stop it; volumes stay (ARGS=--wipe removes them, and every job)
	@$(BIN)/python -m tools.compose down --image "$(IMAGE)" $(ARGS)

compose-test: image ## Deploy, submit from outside, kill containers, account for every job
	@$(BIN)/python -m tests.system.compose --image "$(IMAGE)" $(ARGS)

cov: $(READY) ## Run the tests with coverage: at least 90 % overall, 98 % of the pure library
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --fail-under=90
	@$(BIN)/coverage report --include='libs/skep/*' --fail-under=98

wheel: $(READY) ## Build the wheel into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

clean: ## Remove caches and build results; .venv stays
	@rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## The same, and .venv
	@rm -rf "$(VENV)"
