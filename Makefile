# Everything that a person or CI does with a checkout. Each target sets up what it needs, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_CODE = $(filter-out %/__init__.py,$(wildcard clusterprep/remote/agent/*.py))
TARGETS ?= agent inventory playbook conf logs
SECONDS ?= 600
PYTEST = $(BIN)/python -m pytest
# The tests that a new plug-in has to pass besides its own; they are a part of `make test` and `make test-hosts`.
GATES = tests/machines/test_healthy.py tests/cli/commands tests/survey/test_honesty.py \
	tests/survey/test_registry.py tests/project/test_architecture.py tests/project/test_readme.py
PURE := not hosts and not torch and not machine and not clock and not slow
# Beyond eight processes each spends longer on collecting the tests than on running its share.
PARALLEL ?= --numprocesses=auto --maxprocesses=8
# Tests on hosts mostly wait, so there are more processes than cores. Modules share what they have set up.
# One that hangs beyond all limits ends the run: begun anew, it would hang as often as processes are begun anew.
PARALLEL_HOSTS ?= --numprocesses=4 --dist=loadfile --max-worker-restart=0
export PYTHON
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start commands by the thousand, which would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE

# Nothing that is locked is built here, so nothing comes in unlocked to build it with.
LOCKED := --quiet --require-hashes --only-binary=:all:
# Its build differs by machine: the one for processors where there is one, else that of the index, each by its hash.
# Where only others can be had: make TORCH=torch==2.13.0
TORCH :=

.PHONY: help setup packages demo test test-hosts test-all check format gates soak docs bench fuzz lock clean
.PHONY: test-bounds test-mutants docs-site dist pyz deb image

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## the virtual environment in .venv, and as root the lab's Debian packages

demo: setup ## four real hosts, two planted faults, apply before and after their cure
	@$(BIN)/python -m tests.support.demo

# A test is in the first of these unless a marker says why not: pyproject.toml lists the markers.
test: $(VENV)/.tests ## pure tests, in minutes: no root, no torch, no packages of the machine
	$(PYTEST) $(PARALLEL) --dist=worksteal -m "$(PURE)" $(ARGS)

test-hosts: setup ## as root: tests on lab hosts, and with torch, Slurm, Chromium and NVIDIA's NCCL
	$(PYTEST) $(PARALLEL_HOSTS) -m "not slow and not ($(PURE))" $(ARGS)

test-all: test ## every test, also those that take minutes each
	$(MAKE) setup
	$(PYTEST) $(PARALLEL_HOSTS) -o faulthandler_timeout=2000 -m "not ($(PURE))" $(ARGS)

check: $(VENV)/.tests ## lint, format, types, Python 3.6 for what runs on nodes, and 3.8 for the guard
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips -t=3.6- --violations $(NODE_CODE)
	$(BIN)/vermin --quiet --no-tips -t=3.6- --violations release/pyz_start.py
	$(BIN)/vermin --quiet --no-tips -t=3.8- --violations clusterprep/__init__.py clusterprep/guard.py

format: $(VENV)/.tests ## format, mend what ruff can, and renew tables, pages and recordings that follow from the code
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format
	$(BIN)/python -m tests.support.derived
	$(BIN)/ruff check

# Half a minute. Each says what to do if it fails.
gates: check ## everything of CI that a new check, fact or cause meets
	$(PYTEST) $(PARALLEL) --dist=loadfile --quiet -m "not hosts" $(GATES)

# Ends by itself: 1 when anything was wrong. ARGS='--nodes 16 --minutes 3 --seed 7' for less.
soak: setup ## as root: ten minutes of commands over 64 hosts that flap; renews docs/why/reliability.md
	$(BIN)/python -m tests.soak --write $(ARGS)

docs: setup ## as root: `make format`, the run of the demo and its recording, and the picture of the page
	$(BIN)/python -m tests.support.readme

# Strict: a link or an anchor that leads nowhere ends it, and so does a page that loads something from the network.
docs-site: $(VENV)/.tests ## the pages of docs/ as a site with search, in build/site; with Python 3.11 or newer
	$(BIN)/pip install $(LOCKED) -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m tests.support.docs_site build/site

# ---------------------------------------------------------------- what is published, in dist/

dist: $(VENV)/.tests ## sdist and wheel: the same bytes from the same commit
	$(BIN)/python -m release.dist

pyz: $(VENV)/.tests ## clusterprep.pyz, one file for machines without pip; PYTHONS='3.11 3.13' for some Pythons
	$(BIN)/python -m release.pyz

deb: $(VENV)/.tests ## a package for Debian 13, judged by lintian; takes mmdebstrap
	$(BIN)/python -m release.deb

image: $(VENV)/.tests ## an OCI image of Debian's files with that package; takes mmdebstrap and podman
	$(BIN)/python -m release.image

# ---------------------------------------------------------------- less often

bench: .venv-bench/.installed setup ## compare with Ansible, pyinfra, parallel-ssh and plain ssh
	$(BIN)/python benchmarks/fanout.py $(ARGS)

.venv-bench/.installed: requirements/bench.txt | packages
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install $(LOCKED) -r requirements/bench.txt
	@touch $@

lock: setup .venv-lock/.installed ## renew requirements/ where pyproject.toml asks for it; ARGS=--upgrade: with the newest releases
	@.ci/lock $(ARGS)

.venv-lock/.installed: requirements/lock.txt | packages
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install $(LOCKED) -r requirements/lock.txt
	@touch $@

# Every Python of pyproject.toml has to be there; PYTHONS='3.10 3.12' for some of them.
test-bounds: $(VENV)/.tests ## the pure tests on Python 3.10 to 3.13, with dependencies at both ends of their bounds
	@$(BIN)/python -m tests.support.bounds $(PARALLEL) --dist=worksteal -m "$(PURE)" $(ARGS)

fuzz: setup ## input that nobody thought of, TARGETS for SECONDS each; what breaks a promise is kept as a test
	$(BIN)/pip install $(LOCKED) -r requirements/fuzz.txt
	@for target in $(TARGETS); do echo "fuzz: $$target for $(SECONDS) s"; $(BIN)/python -m tests.fuzz $$target $(SECONDS) || exit 1; done

test-mutants: $(VENV)/.tests ## 300 small faults planted in the core, one at a time: how many the tests find; renews docs/why/mutants.md
	$(BIN)/pip install $(LOCKED) -r requirements/mutants.txt
	$(BIN)/python -m tests.mutants --write $(ARGS)

clean: ## take away what these targets made
	rm -rf .venv .venv-bench .venv-lock .venv-bounds build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- set-up

packages:
	@.ci/packages

$(VENV)/.installed: $(VENV)/.tests $(VENV)/.mcp $(VENV)/.torch | packages
	@touch $@

# This checkout, and what the tests without torch need.
$(VENV)/.tests: pyproject.toml $(VENV)/.locked
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.locked: requirements/dev.txt $(VENV)/.made
	$(BIN)/pip install $(LOCKED) -r requirements/dev.txt
	@touch $@

# What `clusterprep mcp` needs besides; its bounds are narrower than ours, so it is none of what is tested at both.
$(VENV)/.mcp: requirements/mcp.txt $(VENV)/.locked
	$(BIN)/pip install $(LOCKED) -r requirements/mcp.txt
	@touch $@

# Last comes what a build for GPUs brings along; one for processors needs nothing that is not there.
$(VENV)/.torch: requirements/torch.txt requirements/torch-cpu.txt $(VENV)/.locked
ifeq ($(TORCH),)
	$(BIN)/pip install $(LOCKED) --no-deps -r requirements/torch-cpu.txt 2>/dev/null || \
	$(BIN)/pip install $(LOCKED) --no-deps -r requirements/torch.txt
endif
	$(BIN)/pip install --quiet $(or $(TORCH),torch)
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("clusterprep needs Python 3.10 or newer, and $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.11 ..." % v[:2])'
	@.ci/packages python3-venv
	$(PYTHON) -m venv $(VENV)
	@touch $@
