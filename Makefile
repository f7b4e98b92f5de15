# Everything a newcomer needs: `make run` and `make test` set up what they use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.bench-ready
MORE   := .venv-more
PAGE   := src/sordino/web/page/build.json
NODE   := web/node_modules/.package-lock.json
export OMP_NUM_THREADS ?= 1
# Each process gets its tests in one piece, so that what a file shares is made once; whoever is done takes from the others.
SPREAD := --dist worksteal
# Processes of `make test`, each with a gigabyte: twice as many as a small machine has processors, since many tests wait.
WORKERS ?= 3
# Where Python may write no bytecode, each of the hundreds of processes of the tests compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run serve audit check test test-more nightly test-page test-firefox browser nginx page bench lint docs pictures wheel image size gpu-bundle clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## make the virtual environment with pinned versions

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Sordino needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV): once, and it takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[learn,service,flower,dev]'
	@touch $@

$(BENCH): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' && touch $@ \
	  || echo "The libraries to compare with could not be installed; only Sordino and numpy are measured."

run: $(READY) ## the main job on embedded data: three silos learn digits at epsilon 1, proven for each record
	$(BIN)/sordino run proven-digits

serve: $(READY) page ## a federation for two pages or more: open the link that is printed
	$(BIN)/sordino serve

page: ## build the web page, where Node.js is found and its sources have changed
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(PAGE); else \
	  echo "Without Node.js (20.19 or newer) and npm the web page is not built: 'sordino serve' says what to do."; fi

$(NODE): web/package-lock.json web/package.json
	npm --prefix web install --no-audit --no-fund --loglevel=error
	@touch $@

$(PAGE): $(NODE) web/vite.config.ts $(wildcard web/*.html) $(shell find web/src web/styles web/public -type f 2>/dev/null)
	npm --prefix web run --silent build -- --logLevel warn

browser: ## install Chromium for the tests in a browser, where this is a Debian machine and we may
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  command -v apt-get >/dev/null && [ `id -u` = 0 ] && apt-get update -qq >/dev/null 2>&1 \
	  && apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; } \
	  || echo "No Chromium here, and it could not be installed: the tests in a browser are left out. Install it and try again."

nginx: ## install nginx for the tests of the door before Flower's server, where this is a Debian machine and we may
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { \
	  command -v apt-get >/dev/null && [ `id -u` = 0 ] && apt-get update -qq >/dev/null 2>&1 \
	  && apt-get install -y -qq --no-install-recommends nginx >/dev/null 2>&1; } \
	  || echo "No nginx here, and it could not be installed: its tests are left out. Install it and try again."

test-firefox: $(READY) page ## one journey through the page in Firefox, which is installed if need be
	@command -v firefox-esr >/dev/null || command -v firefox >/dev/null || { \
	  command -v apt-get >/dev/null && [ `id -u` = 0 ] && apt-get update -qq >/dev/null 2>&1 \
	  && apt-get install -y -qq --no-install-recommends firefox-esr >/dev/null 2>&1; } \
	  || { echo "No Firefox here, and it could not be installed: install it and try again."; exit 1; }
	SORDINO_FIREFOX=`command -v firefox-esr || command -v firefox` $(BIN)/python -m pytest tests/browser/test_journey.py -k firefox

audit: $(READY) ## measure what every mechanism really gives away, and catch the broken ones
	$(BIN)/sordino audit --all
	$(BIN)/sordino audit --broken

check: lint ## lint, types and unit tests: a minute and a half
	$(BIN)/python -m pytest -n 2 $(SPREAD) -m 'unit and not nightly'

test: $(READY) page browser ## lint, types and the tests of all layers
	@$(MAKE) --no-print-directory -j 2 --output-sync lint test-page
	@if command -v chromium >/dev/null && command -v npm >/dev/null; then export SORDINO_NEEDS_BROWSER=1; fi; \
	if [ -n "$$CI" ] && [ `id -u` = 0 ]; then export SORDINO_NEEDS_ACCOUNTS=1; fi; \
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD)

nightly: $(READY) ## compute recorded experiments again, and run every method over real machines: many minutes
	$(BIN)/python -m pytest -n 2 $(SPREAD) -m nightly

test-more: $(MORE)/.ready nginx ## the tests that need another environment: Ray, ONNX, pandas, matplotlib, Opacus, nginx and others
	$(MORE)/bin/python -m pytest tests/ray tests/test_cli_model.py tests/ecosystem tests/flower/test_door.py \
	  tests/engine/test_run_figures.py tests/report/test_comparison_files.py tests/flower/test_mod_page.py
	@# the newest Flower that is allowed, over the same dependencies: it asks for a certifi that indexes may not have
	PYTHONPATH=$(CURDIR)/$(MORE)/newest-flower $(MORE)/bin/python -m pytest tests/flower/test_mod.py \
	  tests/flower/test_mod_page.py tests/flower/test_record_privacy.py tests/flower/test_ledger_place.py tests/flower/test_relay.py \
	  tests/flower/test_deploy_page.py

$(MORE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MORE)
	$(MORE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[learn,service,flower,ray,export,notebook,dev]' 'flwr[simulation]' opacus datasets seaborn
	@# the bounds of flwr-datasets do not fit constraints.txt; it works with these versions
	$(MORE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps flwr-datasets
	$(MORE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $(MORE)/newest-flower flwr==1.42.0
	@touch $@

test-page: page
	@if command -v npm >/dev/null; then npm --prefix web run --silent typecheck && npm --prefix web run --silent test; fi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BENCH) ## values per second of each mechanism beside its rivals
	$(BIN)/python -m benchmarks.mechanisms

docs: $(READY) ## build the documentation as a site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(READY) page ## take the pictures of the documentation again, with Node.js and Chromium: two minutes
	$(BIN)/python website/pictures.py

wheel: $(READY) page ## build the wheel into dist/, with the page where it is built
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

image: page ## build the container image, with an engine such as Docker (docs/containers.md)
	docker build --tag sordino .

size: ## code lines by room, without blanks, comments and docstrings
	@$(PYTHON) tools/size.py

gpu-bundle: $(READY) ## one archive that runs on a GPU machine without installs (FOR=3.12 names its Python)
	$(BIN)/python tools/gpu_bundle.py --python $(or $(FOR),3.12)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(MORE) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist web/node_modules src/sordino/web/page
