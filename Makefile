PYTHON ?= python3# 3.11.4 or newer; makes .venv
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
COMMIT ?= HEAD# `make behaviour` compares with it
AXE := node_modules/axe-core/axe.min.js# checks whether the study's page can be read by everyone

.PHONY: help quickstart benchmarks notebooks axe test test-oldest test-full test-gpu behaviour mutants lint docs constraints

help:
	@echo "make quickstart  creates $(VENV) and shows what training a trunk brings, with four losses"
	@echo "make notebooks   runs and tests the notebooks, and stores their output"
	@echo "make test        the tests, about 10 minutes on 2 cores"
	@echo "make test-oldest the core tests with the lowest versions that pyproject.toml allows"
	@echo "make test-full   the long tests too, about an hour"
	@echo "make behaviour   compares scores, embeddings and weights with those of COMMIT (HEAD), bit by bit"
	@echo "make mutants     changes the source at the places of tests/mutations.txt, or at random ones of FILE; tests must notice"
	@echo "make axe         fetches axe-core, which checks the study's page for accessibility"
	@echo "make test-gpu    the tests that need CUDA; they are skipped without it"
	@echo "make lint        ruff, mypy, imports, and the words and claims of the documentation"
	@echo "make docs        the documentation site, build/site/index.html"
	@echo "make benchmarks  speed and memory next to other libraries, into benchmarks/README.md; an hour"
	@echo "make constraints writes the versions in $(VENV) to constraints.txt"
	@echo "PYTHON=python3.12 chooses the interpreter that $(VENV) is made with"

quickstart: $(VENV)/installed
	@$(BIN)/levelfield study run configs/study/quickstart.yaml
	@echo "To type levelfield here: source $(BIN)/activate"

notebooks: $(VENV)/installed-dev
	STORE_NOTEBOOKS=1 $(BIN)/pytest -m "full or not full" tests/notebooks

test: $(VENV)/installed-dev
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# What computes with other libraries: arrays, training, files and the study engine. Left out: pages, commands and notebooks,
# which `make test` runs, and tests of several processes, which take long and use the same calls.
# Warnings are no errors here: old versions warn of newer ones.
test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/pytest -W default --disable-warnings --numprocesses auto --dist loadfile --no-loadscope-reorder \
		-m "not full and not gpu and not processes and not slow" \
		$(addprefix tests/,losses miners regularizers metrics data models training core study use) \
		tests/test_private_parts.py tests/test_strangers_checkpoints.py

test-full: $(VENV)/installed-dev
	-$(MAKE) --no-print-directory axe # without npm the tests of accessibility are skipped
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,ray]'
	$(BIN)/pytest -m "not gpu" --numprocesses auto --dist loadfile --no-loadscope-reorder

behaviour: $(VENV)/installed-dev
	scripts/behaviour.sh $(COMMIT)

# FILE=src/levelfield/metrics/ranking.py COUNT=20 MINUTES=30 SEED=1 TESTS=tests/metrics; all are optional.
mutants: $(VENV)/installed-dev
	$(BIN)/python scripts/mutants.py $(if $(FILE),--files "$(FILE)") $(if $(TESTS),--tests "$(TESTS)") \
		$(if $(COUNT),--count $(COUNT)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

test-gpu: $(VENV)/installed-dev
	$(BIN)/pytest -m gpu -W default

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python scripts/words.py --check
	$(BIN)/python scripts/capabilities.py --check
	$(BIN)/mypy

# every page anew, for those that are not written again keep their warnings to themselves
docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet -c docs -d build/doctrees . build/site
	@echo "build/site/index.html"

benchmarks: $(VENV)/installed-dev
	$(BIN)/python benchmarks/all.py

axe: $(AXE)

# Linux wheels of torch alone need nvidia, cuda and triton.
constraints:
	echo "# The versions that CI passes with, written from .venv by: make constraints" > constraints.txt
	$(BIN)/python -m pip list --format freeze --exclude-editable --exclude pip --exclude setuptools \
		| sed -E '/^(nvidia|cuda|triton)/d; s/\+.*//' >> constraints.txt

$(AXE): Makefile
	npm install --prefix . --no-save --no-package-lock --no-audit --no-fund axe-core@4.14.1
	touch $@

# uv is here for its --resolution; pip always takes the newest. Python 3.11 is the oldest allowed.
$(OLDEST)/installed: pyproject.toml
	python3.11 -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	$(OLDEST)/bin/uv pip install --python $(OLDEST) --resolution lowest-direct --editable '.[dev]'
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' \
		|| { echo "levelfield needs Python 3.11.4 or newer: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@echo "installing levelfield and its packages into $(VENV): 2 to 10 minutes, mostly PyTorch"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[docs]'
	touch $@
