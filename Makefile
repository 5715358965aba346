# Every target sets up what it needs: Python 3.11+, pip and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
REWRITTEN := $(VENV)/.rewritten

# Four for each of two cores: three quarters of the tests' time is waiting for leases and servers.
WORKERS ?= 8
SPREAD = -n $(WORKERS) --dist worksteal
# Python 3.12 and newer watch lines at next to no cost.
MONITOR = $(shell $(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')

# Compiled once, not by every process anew: the tests start hundreds.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-full check lint types layers format bench stress chaos verify clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "weakincentives needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev --editable '.[all]'
	@touch $(READY)

# Pytest rewrites each file of tests before its first use, which takes longer than to collect them:
# once for a clone, beside the checks, and not in every worker at the same time.
$(REWRITTEN): $(READY)
	-@$(BIN)/python -m pytest --collect-only -q -m "not full" tests > /dev/null 2>&1
	@touch $(REWRITTEN)

demo: $(READY) ## Run the main job on the embedded default: workers, a crash, a dead letter, a replay
	@$(BIN)/wink demo

test: $(READY) ## Lint, types, layers and the tests
	@$(MAKE) --no-print-directory --jobs=2 check $(REWRITTEN)
	$(BIN)/python -m pytest $(SPREAD) -m "not full" tests

coverage: $(READY) check ## The same, and fail if they cover less than 95 % of the lines
	COVERAGE_CORE=$(MONITOR) $(BIN)/python -m pytest $(SPREAD) -m "not full" --cov --cov-report= tests
	$(BIN)/python -m coverage report --fail-under=95

test-full: $(READY) ## The big matrices and long runs as well
	$(BIN)/python -m pytest $(SPREAD) -m full tests

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

chaos: $(READY) ## Try to break it for an hour, and write docs/reliability.md anew
	$(BIN)/python -m chaos --scale full --json chaos-results.json
	$(BIN)/python -m chaos.report

verify: $(READY) ## Check the formal model with TLC, and that it finds every planted bug (needs Java)
	$(BIN)/python formal/verify.py

clean: ## Remove what the other targets made
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* htmlcov dist
