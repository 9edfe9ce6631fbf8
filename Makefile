# Everything that a person or CI does with a checkout. Each target sets up what it needs, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_CODE = $(filter-out %/__init__.py %/boot.py,$(wildcard clusterprep/remote/*.py))
TARGETS ?= agent inventory playbook conf logs
SECONDS ?= 600
export PYTHON
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What must hold is that torch comes first and exactly: anything that depends on it then takes this one.
TORCH := torch==2.13.0

.PHONY: help setup packages demo test test-all check format fleets docs bench test-bounds fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## the virtual environment in .venv, and as root the lab's Debian packages

demo: setup ## four real hosts, two planted faults, apply before and after their cure
	@$(BIN)/python -m tests.demo

test: setup ## the tests, but for those that take minutes each
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-all: setup ## every test
	$(BIN)/python -m pytest $(ARGS)

check: setup ## lint, format, types, Python 3.6 for what runs on nodes, and 3.8 for the guard
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips -t=3.6- --violations $(NODE_CODE)
	$(BIN)/vermin --quiet --no-tips -t=3.8- --violations clusterprep/__init__.py clusterprep/guard.py

format: setup ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

fleets: setup ## as root: record the machines that `clusterprep selftest` plays, after a check reads something new
	$(BIN)/python -m tests.fleets

docs: setup ## as root: renew what README.md shows of the tool, its pictures and the lists in docs/
	$(BIN)/python -m tests.readme

# ---------------------------------------------------------------- less often

bench: .venv-bench/.installed setup ## compare with Ansible, pyinfra, parallel-ssh and plain ssh
	$(BIN)/python benchmarks/fanout.py $(ARGS)

.venv-bench/.installed: benchmarks/requirements.txt | packages
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet -r benchmarks/requirements.txt
	@touch $@

# The lower bounds of pyproject.toml as exact versions: every line of its lists of the form "name>=version".
test-bounds: | packages ## the tests without lab and torch, with every dependency at its lower bound
	$(PYTHON) -m venv --clear .venv-bounds
	sed -n 's/^    "\([A-Za-z0-9-]*\)>=\([0-9.]*\)[",].*/\1==\2/p' pyproject.toml > .venv-bounds/bounds.txt
	.venv-bounds/bin/pip install --quiet -c .venv-bounds/bounds.txt -e '.[dev]'
	.venv-bounds/bin/python -m pytest -m 'not lab and not slow and not torch' $(ARGS)

fuzz: setup ## input that nobody thought of, TARGETS for SECONDS each; what breaks a promise is kept as a test
	$(BIN)/pip install --quiet -e '.[fuzz]'
	@for target in $(TARGETS); do echo "fuzz: $$target for $(SECONDS) s"; $(BIN)/python -m tests.fuzz $$target $(SECONDS) || exit 1; done

clean: ## take away what these targets made
	rm -rf .venv .venv-bench .venv-bounds build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- set-up

packages:
	@.ci/packages

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	$(BIN)/pip install --quiet $(TORCH)
	@touch $@

$(VENV)/.made: | packages
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("clusterprep needs Python 3.10 or newer, and $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@
