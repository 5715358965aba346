# Every target sets up what it needs: Python 3.11+, pip and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# More than one for each of two cores: many tests wait for leases and servers rather than compute.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check lint types layers format bench stress chaos verify clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "weakincentives needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev --editable '.[all]'
	@touch $(READY)

demo: $(READY) ## Run the main job on the embedded default: workers, a crash, a dead letter, a replay
	@$(BIN)/wink demo

test: $(READY) check ## Lint, types, layers and the tests, in under ten minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m "not full" --cov --cov-report= tests
	$(BIN)/python -m coverage report --fail-under=95

test-full: $(READY) ## The big matrices and long runs as well
	$(BIN)/python -m pytest -n $(WORKERS) -m full tests

check: lint types layers ## Lint, types and layers

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure the budgets, each beside its reference in the same run
	$(BIN)/python -m benchmarks

stress: $(READY) ## A million messages through eight threads, nothing lost, nothing twice
	$(BIN)/python -m benchmarks.stress

chaos: $(READY) ## Try to break it for half an hour, and write docs/reliability.md anew
	$(BIN)/python -m chaos --scale full --json chaos-results.json
	$(BIN)/python -m chaos.report

verify: $(READY) ## Check the formal model with TLC, and that it finds every planted bug (needs Java)
	$(BIN)/python formal/verify.py

clean: ## Remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .coverage* htmlcov dist
