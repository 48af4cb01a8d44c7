# Needs Python >= 3.10 and GNU make; everything else goes into a virtual environment made here.
#
#   make test PYTHON=python3.12        another interpreter
#   make check VENV=/var/tmp/venv      another place for the environment
#   make test PYTEST_ARGS="-k drift"   more arguments for pytest
#   make look LOOK_ARGS="--minutes 10" other arguments for the look around
#   make soak SOAK_ARGS="--minutes 2"  other arguments for the soak
#   make mutants MUTANTS_ARGS="--since HEAD~1"  mutants of the functions that changed

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
LOOK_ARGS ?=
SOAK_ARGS ?= --minutes 30 --rate 100
MUTANTS_ARGS ?= --count 300
SERVERS := uvicorn gunicorn celery ipykernel jupyter-client

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Each worker and each process that a test starts compiles all modules if Python may not store them.
COMPILED := PYTHONDONTWRITEBYTECODE=
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
# Installs $(1), and shows the name of each package as pip gets it.
define install
	@echo "Installing packages into $(VENV), once: this takes one or two minutes."
	@rm -f $(VENV)/.failed
	@{ $(filter-out --quiet,$(PIP)) $(1) || touch $(VENV)/.failed; } | \
		sed -n -e 's/^Collecting \([^ ]*\).*/    \1/p' -e 's/^Installing collected.*/Unpacking them./p'
	@test ! -e $(VENV)/.failed
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check docs e2e look faults ablate mutants bench soak clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.core  ## Show scores on a trace: no key, no network, no model
	@$(BIN)/rag-eval-otel demo

test: $(VENV)/.test  ## Run the tests, without the slow ones
	$(COMPILED) $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(PYTEST_ARGS)

check: $(VENV)/.dev  ## Run everything a change must pass: lint, types, layers, docs, coverage
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(SITE)
	$(BIN)/coverage erase
	$(COMPILED) $(BIN)/coverage run -m pytest -n auto --dist worksteal --hypothesis-profile=full $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

docs: $(VENV)/.dev  ## Write the reference pages anew, and build the site of the documentation
	PYTHONPATH=tests $(BIN)/python -m reference
	$(SITE)

e2e: $(VENV)/.dev  ## Run against real instrumentations, collector, backends, other Pythons
	$(COMPILED) $(BIN)/python tests/e2e/sessions.py $(PYTEST_ARGS)

look: $(VENV)/.core  ## Show dashboards, alerts and bad turns of the demo under traffic, until ^C
	@$(BIN)/rag-eval-otel look $(LOOK_ARGS)

faults: $(VENV)/.test  ## Run the fault matrix, and write docs/dev/reliability.md
	@mkdir -p build
	$(PIP) $(SERVERS)
	$(COMPILED) $(BIN)/python -m pytest -n auto --dist loadfile tests/faults --faults-json build/faults.json
	$(BIN)/python tests/faults/reliability.py build/faults.json > docs/dev/reliability.md

ablate: $(VENV)/.test  ## Find rules of capture that no recorded trace needs
	@mkdir -p build
	nice $(BIN)/python benchmarks/ablate.py > build/ablation.tsv

mutants: $(VENV)/.dev  ## Change the package in 300 places, and see whether its tests notice
	$(PIP) cosmic-ray==8.7.0
	$(BIN)/python benchmarks/mutants.py $(MUTANTS_ARGS)

bench: $(VENV)/.dev  ## Measure against the peers
	$(BIN)/nox --session bench

soak: $(VENV)/.test  ## Score mixed traffic with outages for half an hour; nothing may be lost
	$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)

clean:  ## Remove what make and the tools have made
	rm -rf $(VENV) .nox .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		.import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: each says what is installed, and is out of date when the requirements change.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "Python 3.10 or newer is needed, and '$(PYTHON)' is not (`$(PYTHON) -V 2>&1`)."; \
		echo "Name another one:  make $(MAKECMDGOALS) PYTHON=python3.12"; \
		exit 1; }
	@echo "Making a virtual environment in $(VENV), and upgrading its pip."
	$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --upgrade pip
	@touch $@

$(VENV)/.core: pyproject.toml $(VENV)/.made
	$(call install,--editable .)
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.made
	$(call install,--editable '.[test]')
	@touch $(VENV)/.core $@

$(VENV)/.dev: pyproject.toml $(VENV)/.made
	$(call install,--editable '.[dev]')
	@touch $(VENV)/.core $(VENV)/.test $@
