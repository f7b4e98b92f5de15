# Everything a newcomer needs: `make run` and `make test` set up what they use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.bench-ready
export OMP_NUM_THREADS ?= 1

.PHONY: help setup run audit test bench lint gpu-bundle clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## make the virtual environment with pinned versions

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Sordino needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[learn,service,dev]'
	@touch $@

$(BENCH): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' && touch $@ \
	  || echo "The libraries to compare with could not be installed; only Sordino and numpy are measured."

run: $(READY) ## the main job on embedded data: three silos learn digits, each record protected
	$(BIN)/sordino run quickstart

audit: $(READY) ## measure what every mechanism really gives away, and catch the broken ones
	$(BIN)/sordino audit --all
	$(BIN)/sordino audit --broken

test: lint ## lint, types and all tests
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BENCH) ## values per second of each mechanism beside its rivals
	$(BIN)/python -m benchmarks.mechanisms

gpu-bundle: $(READY) ## one archive that runs on a GPU machine without installs (FOR=3.12 names its Python)
	$(BIN)/python tools/gpu_bundle.py --python $(or $(FOR),3.12)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
