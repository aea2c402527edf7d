# Everything one does with a checkout. `make` alone lists the targets.
#
#   make check PYTHON=python3.12    with another Python (a .venv made by a different one is replaced)
#   make test WORKERS=8 ARGS='-k ifca'
#   make demo PIP_FLAGS='...'       further options for pip, such as where to find a torch for this machine

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev,report,tables,tracking,privacy
WORKERS ?= 2
PIP_FLAGS ?=
ARGS ?=
TABLES ?= build/tables
PEERS ?=
SMALL ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
BESIDE := types contracts browser federation

export PIP_DISABLE_PIP_VERSION_CHECK = 1

# Packages are installed without bytecode (see INSTALL). Where the environment says that none is to be written, every process
# that imports torch would compile it again; here it is kept with the virtual environment, and not beside the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(abspath $(VENV))/bytecode

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help docs dist wheel blocks gallery demo test check bench tables browser federation flower ray long soak stress faults attacks theory evidence lint types \
	contracts format clean

help: ## List the targets
	@awk 'BEGIN {FS = ":[^#]*## "} /^[a-z]+:[^#]*## / {printf "  %-10s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## Find planted clusters with IFCA, in a minute on a laptop
	$(BIN)/python -m corymb.cli.demo $(ARGS)

test: $(READY) ## Run the tests and the doctests
	$(PYTEST) --doctest-modules src tests $(ARGS)

# The suite keeps the cores busy, the rest one at a time or none: it runs beside the suite, and is printed when it is done.
check: EXTRAS := $(EXTRAS),flower
check: $(VENV)/.with-flower lint ## All that a change must pass
	@mkdir -p build; { $(MAKE) --no-print-directory $(BESIDE) > build/beside.log 2>&1; code=$$?; echo; cat build/beside.log; exit $$code; } & beside=$$!; \
	trap 'kill $$beside' INT TERM; \
	$(MAKE) --no-print-directory test; tested=$$?; \
	wait $$beside || { echo 'Failed beside the tests ($(BESIDE)): see build/beside.log'; exit 1; }; \
	exit $$tested

docs: $(VENV)/.with-docs ## Build the site in docs/_build/html, with warnings as errors
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

blocks: $(READY) ## Run every block of README and docs as it stands, the longer ones too, and the examples (Flower, Ray: their targets)
	$(PYTEST) -m docs_slow tests/test_docs_pages.py $(ARGS)

gallery: $(READY) ## Draw the pictures of the gallery and the schematic figures of the docs
	for script in examples/*.py; do $(BIN)/python $$script docs/gallery/pictures/$$(basename $$script .py).png; done
	$(BIN)/python docs/figures.py

dist: $(VENV)/.with-dist ## Build wheel and sdist in dist/
	$(BIN)/python -m build --no-isolation

wheel: $(VENV)/.with-dist ## Build the wheel, install it into a fresh environment and use it there (minutes: it installs torch)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m wheel tests/test_package.py $(ARGS)

bench: $(READY) ## Time start-up, rounds, how they grow, GPU steps and checkpoints (20 minutes; SMALL=1 shows that all of it runs) into build/; beside other libraries with PEERS=1 (installs them)
	mkdir -p build
	PYTHONPATH=. $(BIN)/python -m benchmarks.startup $(if $(SMALL),--repeats 1) --write build/startup.md
	$(BIN)/python benchmarks/rounds.py --json build/rounds.json $(if $(SMALL),--small) $(ARGS)
	$(BIN)/python benchmarks/rounds.py --fedavg --json build/rounds-fedavg.json $(if $(SMALL),--small) $(ARGS)
	$(BIN)/python benchmarks/rounds.py --cnn --json build/rounds-cnn.json $(if $(SMALL),--small) $(ARGS)
	PYTHONPATH=. $(BIN)/python -m benchmarks.zoo $(if $(SMALL),--clients 4 --repeats 1) --write build/zoo.md
	PYTHONPATH=. $(BIN)/python -m benchmarks.growth $(if $(SMALL),--most 1000) --write build/growth.md
	PYTHONPATH=. $(BIN)/python -m benchmarks.gpu --json build/gpu.json $(if $(SMALL),--small)
	$(BIN)/python benchmarks/checkpoints.py $(if $(SMALL),--demo --repeat 1)
	$(if $(PEERS),PYTHONPATH=. PIP_FLAGS='$(PIP_FLAGS)' $(BIN)/python -m benchmarks.peers --write build/peers.md)

tables: $(READY) ## Default settings on real tables, beside scikit-learn (packages with data: benchmarks/table_sources.py)
	test -d $(TABLES) || PYTHONPATH=$(TABLES)-packages $(BIN)/python benchmarks/table_sources.py $(TABLES)
	PYTHONPATH=. $(BIN)/python -m benchmarks.tables $(TABLES) --workers $(WORKERS) $(ARGS)
	PYTHONPATH=. $(BIN)/python -m benchmarks.tables $(TABLES) --show $(ARGS)

browser: $(READY) ## Open a report in Chromium (installs Debian's where it is missing)
	@(command -v chromium && command -v chromedriver) >/dev/null || (apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser $(ARGS)

federation: $(VENV)/.with-flower ## IFCA and CFL on a Flower federation of three nodes on this machine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'flower and not flower_all' tests/federation $(ARGS)

flower: $(VENV)/.with-flower ## The same for every algorithm, with TLS and its refusals, and with kills (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'flower or flower_all' tests/federation tests/test_docs_pages.py $(ARGS)

ray: $(VENV)/.with-ray ## Algorithms on a Ray cluster on this machine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/engines tests/test_docs_pages.py $(ARGS)

long: $(READY) ## Run the longer ones of the tests (tests/long.txt)
	$(PYTEST) -m long tests $(ARGS)

soak: $(READY) ## Crash and kill runs at every point, for every algorithm; a million fuzzed examples (hours of a core)
	$(PYTEST) -m soak tests $(ARGS)

faults: $(READY) ## Run every fault in every algorithm on every engine, and print the matrix (half an hour of a core)
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python -m benchmarks.faults --workers $(WORKERS) $(ARGS)

attacks: $(READY) ## Attacks on rotated digits against every reduction: print the table (half an hour of a core)
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python -m benchmarks.attacks --workers $(WORKERS) $(ARGS)

stress: $(READY) ## Moment descent under stress and on tables in raw units: what the kept results lack (half an hour of a core)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/moment_descent.py $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/moment_descent.py --tables $(ARGS)

evidence: $(READY) ## Run the stress matrix of rules that find clusters (hours on 2 cores; goes on where it was)
	$(BIN)/python -m corymb.recipes.evidence_matrix --seeds 20 21 22 --more_seeds 23 24 25 26 27 $(ARGS)

theory: $(READY) ## Check the rates and bounds that the papers prove (slow)
	$(PYTEST) -m theory tests $(ARGS)

lint: $(READY) ## Check style and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(READY) ## Check the types
	$(BIN)/mypy

contracts: $(READY) ## Check who may import whom
	PYTHONPATH=src $(BIN)/lint-imports

format: $(READY) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## Remove caches and build products; the virtual environment and runs/ stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks docs/_build
	find . -path './.venv*' -prune -o -path ./.git -prune -o -name __pycache__ -type d -print | xargs rm -rf

# Only a Python that was asked for by name replaces the one in the virtual environment.
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(BIN)/python),)
version = $(shell $(1) -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)
ifneq ($(call version,$(PYTHON)),$(call version,$(BIN)/python))
CLEAR := --clear
.PHONY: $(READY)
endif
endif
endif

# With a pip of its own: Python 3.11's takes minutes to choose what the constraints leave no choice of.
# Modules are compiled when they are first imported: most of what is installed never is.
INSTALL := $(BIN)/python -m pip install -q $(PIP_FLAGS) -c constraints.txt --no-compile

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLEAR) $(VENV)
	$(INSTALL) pip
	$(INSTALL) -e '.[$(EXTRAS)]'
	@echo $(EXTRAS) > $@

# For a target that needs a further extra, such as flower: make it depend on $(VENV)/.with-flower.
$(VENV)/.with-%: $(READY)
	grep -qw '$*' $(READY) || $(INSTALL) -e '.[$*]'
	@touch $@
