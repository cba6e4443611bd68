# Evergreen, one command each. `make` alone lists them.
#
# Everything is installed into .venv from requirements.lock; with EXTRAS=all, from requirements-all.lock, which adds the
# libraries of all optional trainers and trackers but TensorFlow. With EXTRAS=tensorflow, the packages of
# requirements-tensorflow.lock are installed into an environment of their own, .venv-tensorflow. The package index
# and its certificates are pip's usual ones (PIP_INDEX_URL, PIP_CERT, ...) unless the environment names uv's own (UV_DEFAULT_INDEX, SSL_CERT_FILE, ...).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

EXTRAS ?=
$(if $(filter-out all tensorflow,$(EXTRAS)),$(error EXTRAS=$(EXTRAS): only EXTRAS=all and EXTRAS=tensorflow are known))
VENV := .venv$(if $(filter tensorflow,$(EXTRAS)),-tensorflow)
BIN := $(VENV)/bin
LOCK := requirements$(if $(EXTRAS),-$(EXTRAS)).lock
READY := $(VENV)/.ready$(if $(EXTRAS),-$(EXTRAS))
UV_VERSION := 0.13.8
UV := $(BIN)/uv-$(UV_VERSION)
CORE_EXTRAS := boosting s3 dev
COMPILE = $(UV) pip compile pyproject.toml --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	--generate-hashes --no-header --no-annotate --quiet
# Libraries that go together. TensorFlow is not among them: its environment has another lock.
ALL_EXTRAS := dev all
TENSORFLOW_TESTS := $(wildcard tests/*/test_*tensorflow*.py tests/*/*/test_tensorflow*.py)
RECIPE ?= digits
ARGS ?=

IS_SUPPORTED := import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))
PYTHON ?= $(shell for python in python3 python3.12 python3.11; do \
	if $$python -c '$(IS_SUPPORTED)' 2> /dev/null; then echo $$python; break; fi; done)

# A user's or a company's uv.toml must not change what the lock resolves to.
export UV_NO_CONFIG := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
ifdef PIP_DEFAULT_TIMEOUT
export UV_HTTP_TIMEOUT ?= $(PIP_DEFAULT_TIMEOUT)
endif

.NOTPARALLEL: # two targets must not make the same environment at the same time
.PHONY: help setup retrain test test-extended test-slow test-frameworks test-tensorflow bench bench-quick chaos check check-format check-lint check-types check-imports check-dead-code lock reference clean

help: ## List the commands
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 25

setup: $(READY) ## Install everything into .venv, about 6 GB: make setup [EXTRAS=all|tensorflow]

retrain: $(READY) ## Retrain a model: make retrain [RECIPE=digits] [ARGS="--set training.epochs=3"]
	@$(BIN)/evergreen retrain $(RECIPE) $(ARGS)

test: $(READY) ## Run the tests, in three processes: make test [ARGS="tests/training -k order -n 0"]
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-extended: $(READY) ## Run the tests that take more than some seconds, for half an hour
	@$(BIN)/python -m pytest -m "extended and not slow and not frameworks" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(READY) ## Run the tests that take long
	@$(BIN)/python -m pytest -m slow $(ARGS)

test-frameworks: ## Run the tests of the trainers and trackers whose libraries are extras
	@$(MAKE) setup EXTRAS=all
	@$(BIN)/python -m pytest -m "frameworks and not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-tensorflow: ## Run the tests of the trainer TensorFlow, in its own environment .venv-tensorflow
	@$(MAKE) setup EXTRAS=tensorflow
	@.venv-tensorflow/bin/python -m pytest -m frameworks $(TENSORFLOW_TESTS) $(ARGS)

bench: $(READY) ## Measure every row of benchmarks/results.md, some hours: make bench [ARGS="--rows P4,P13"]
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(READY) ## Measure a few rows, small, in about five minutes
	@$(BIN)/python -m benchmarks --quick $(ARGS)

chaos: $(READY) ## Run the fault matrix with real processes: make chaos [ARGS="--faults F1,F2 --trials 3 --seed 7"]
	@$(BIN)/python -m benchmarks.chaos $(ARGS)

check: check-format check-lint check-types check-imports check-dead-code ## Format, lint, types, layers, dead code (-k: all, even after a failure)

check-format: $(READY)
	@echo "== format"
	@$(BIN)/ruff format --check .

check-lint: $(READY)
	@echo "== lint"
	@$(BIN)/ruff check .

check-types: $(READY)
	@echo "== types"
	@$(BIN)/mypy

check-imports: $(READY)
	@echo "== layers"
	@$(BIN)/lint-imports --no-logo

check-dead-code: $(READY)
	@echo "== dead code"
	@$(BIN)/vulture

lock: $(UV) ## Write the locks from pyproject.toml: make lock [ARGS="--upgrade"]
	@echo "Resolving into requirements.lock"
	@$(COMPILE) $(addprefix --extra=,$(CORE_EXTRAS)) $(ARGS) --output-file requirements.lock
	@sed -i '1i # What Evergreen runs on: Linux x86-64, Python 3.11 or 3.12. Written by `make lock` from pyproject.toml.' \
		requirements.lock
	@echo "Resolving into requirements-all.lock"
	@$(COMPILE) $(addprefix --extra=,$(ALL_EXTRAS)) --constraint requirements.lock $(ARGS) --output-file requirements-all.lock
	@sed -i '1i # The packages of requirements.lock, and those of all extras but tensorflow. Written by `make lock` from pyproject.toml.' \
		requirements-all.lock
	@echo "Resolving into requirements-tensorflow.lock"
	@$(COMPILE) $(addprefix --extra=,$(CORE_EXTRAS) tensorflow) --constraint requirements.lock $(ARGS) \
		--output-file requirements-tensorflow.lock
	@sed -i '1i # The packages of requirements.lock, and TensorFlow. Written by `make lock` from pyproject.toml.' \
		requirements-tensorflow.lock

reference: $(READY) ## Write docs/reference.md and the table of docs/frameworks.md from the code
	@$(BIN)/python docs/make_reference.py
	@$(BIN)/python docs/make_frameworks.py

clean: ## Remove .venv and caches; models, data and runs in .evergreen stay
	rm -rf .venv .venv-tensorflow .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find benchmarks deployments docs evergreen flows tasks tests training -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(UV) $(LOCK) pyproject.toml
	@echo "Installing the packages of $(LOCK) into $(VENV)"
	@quiet=--quiet; if [ -t 2 ]; then quiet=; fi; \
	$(UV) pip install --python $(BIN)/python --require-hashes $$quiet -r $(LOCK); \
	$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation $$quiet --editable .
	@echo "Compiling Python modules to bytecode"
	@$(BIN)/python -m training.bytecode
	@$(BIN)/python -m tasks.trackers.empty_stores
	@touch $@

# The file name carries the version, so that a new pin installs that version.
$(UV):
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c '$(IS_SUPPORTED)'; then \
		echo "Evergreen needs Python 3.11 or 3.12; $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) --version 2>&1 | head -1)." >&2; \
		echo "Install one of them, or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	@ln -sf uv $@
