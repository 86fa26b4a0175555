# Everything runs in environments under this folder: .uv (the installer), .venv (the package and
# its checks), .venv-marginal (the same with pymc-extras), .venv-benchmarks and .venv-sbi (the
# peers). A second run of a target finds them made.
# Plain enough for GNU make 3.81, which is what macOS has.

SHELL := bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

UV := .uv/bin/uv
BIN := .venv/bin
# two workers; a file stays on one of them, which keeps its compiled functions, and the longest do
# not come last
WORKERS ?= 2
PYTEST_ARGS ?=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
LOCK := $(UV) pip compile --universal --python-version 3.12 --generate-hashes --no-header -q \
	$(if $(UPGRADE),--upgrade) pyproject.toml --extra demo --extra report --extra cluster

.PHONY: help env demo test lint licences models unit marginal docs tutorials wheel slow lock \
	bench-env sbi-env benchmarks

help: ## what there is to run
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s%s\n", $$1, $$2}'

env: .venv/.synced ## the environment .venv: the lock, and pmcl from this folder

demo: .venv/.synced ## the main job, end to end
	$(BIN)/python -m pmcl.cli demo

# cheap checks first, so that a slip shows within minutes; each of them keeps one core busy
test: .venv/.synced .venv-marginal/.synced ## everything that must pass: those below
	$(MAKE) -j $(WORKERS) lint docs wheel models licences
	$(MAKE) unit marginal

lint: .venv/.synced ## style, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

licences: .venv/.synced ## every runtime dependency is permissively licensed
	$(BIN)/python tools/check_licences.py

models: .venv/.synced ## published models compile, and their cards and states are theirs
	PMCL_MODELS= $(BIN)/python -m pmcl.cli models check

unit: .venv/.synced ## the tests, less the slow ones (PYTEST_ARGS="-k replay" for some of them)
	$(PYTEST) --durations=10 $(PYTEST_ARGS)

# pymc-extras lags behind PyMC, so its environment also tests the older PyMC
marginal: .venv-marginal/.synced ## what touches PyMC, with pymc-extras and the PyMC that it needs
	.venv-marginal/bin/python tools/check_licences.py demo report cluster marginal
	.venv-marginal/bin/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS) \
	  $(addprefix tests/test_,$(addsuffix .py,marginal compile simulator covariates refuse))

# the stubs are made anew: one left of a name that is gone would be a page that nothing leads to
docs: .venv/.synced ## the documentation into docs/_build/html, warnings as errors
	rm -rf docs/api/generated
	$(BIN)/sphinx-build -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html

tutorials: .venv/.synced ## the outputs of the docs' tutorials anew, and the models' thumbnails
	$(BIN)/python tools/run_tutorials.py
	$(BIN)/python tools/model_pictures.py

wheel: .venv/.synced ## the wheel holds the package only, and works in an empty environment
	$(BIN)/python tools/check_wheel.py
	$(BIN)/python tools/check_install.py 3.12 wheel

slow: .venv/.synced ## the tests that take minutes
	$(BIN)/python tools/check_install.py 3.13 sdist
	$(PYTEST) -m slow --durations=0 $(PYTEST_ARGS)

lock: | $(UV) ## the locks anew from pyproject.toml (UPGRADE=1 also takes newer versions)
	$(LOCK) --group test --group docs -o requirements.txt
	$(LOCK) --extra marginal --group test -o requirements-marginal.txt
	$(LOCK) --group benchmarks -o requirements-benchmarks.txt
	$(UV) pip compile --python-version 3.11 --generate-hashes --no-header -q $(FROM_CPU_INDEX) \
	  $(if $(UPGRADE),--upgrade) benchmarks/sbi.in -o requirements-sbi.txt

bench-env: .venv-benchmarks/.synced ## the environment .venv-benchmarks, with pmcl's peers

sbi-env: .venv-sbi/.synced ## the environment .venv-sbi: sbi, with the CPU build of torch

benchmarks: .venv/.synced bench-env sbi-env .venv-marginal/.synced ## the table of peers: hours
	$(BIN)/python benchmarks/peers.py

# --- the environments -------------------------------------------------------------------------

# The first interpreter that can make an environment: python3 may be too old, lack ensurepip (some
# Linux distributions split it off), or be a pyenv shim for a version that is not installed.
PYTHON ?= python3
PYTHONS := $(PYTHON) python3.13 python3.12 python3.11 python3.10 python3.9 python /usr/bin/python3

$(UV):
	@for python in $(PYTHONS); do \
	  if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then \
	    echo "making .uv with $$python"; \
	    $$python -m venv --clear .uv && \
	    .uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'; \
	    exit; \
	  fi; \
	done; \
	echo "make: expected a Python 3.9 or newer that has venv and ensurepip, found none." >&2; \
	echo "Install one (on Debian and Ubuntu: python3-venv), or name it: make PYTHON=..." >&2; \
	exit 1

.venv/bin/python .venv-marginal/bin/python .venv-benchmarks/bin/python: | $(UV)
	$(UV) venv --quiet --clear --python 3.12 $(@:/bin/python=)

# sbi and torch for Python 3.11; the CPU build of torch has an index of its own, which uv knows, or
# a folder that UV_FIND_LINKS names
FROM_CPU_INDEX = $(if $(UV_FIND_LINKS),,--torch-backend cpu)
.venv-sbi/.synced: requirements-sbi.txt | $(UV)
	$(UV) venv --quiet --clear --python 3.11 .venv-sbi
	$(UV) pip sync --python .venv-sbi/bin/python --require-hashes $(FROM_CPU_INDEX) $<
	touch $@

.venv/.synced: requirements.txt pyproject.toml | .venv/bin/python
.venv-marginal/.synced: requirements-marginal.txt pyproject.toml | .venv-marginal/bin/python
.venv-benchmarks/.synced: requirements-benchmarks.txt pyproject.toml | .venv-benchmarks/bin/python
# the project's build backend is in both locks, so nothing is fetched past their hashes; bytecode is
# made at once, since tests start many processes and some systems let none of them keep theirs
.venv/.synced .venv-marginal/.synced .venv-benchmarks/.synced:
	$(UV) pip sync --python $(@D)/bin/python --require-hashes --compile-bytecode $<
	$(UV) pip install --python $(@D)/bin/python --no-deps --no-build-isolation -e .
	touch $@
