# The one door to everything: `make` lists the targets.
# Needs CPython 3.11 or later with pip, cargo, and make. Everything else is installed into .venv.

PYTHON ?= python3
ARGS ?=
SEED ?= 1
CASES ?= 20000

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BIN := .venv/bin
STAMPS := .venv/.stamps
BOOTSTRAP := .venv-bootstrap

# uv from the path where it runs; otherwise one of our own. `pip install --target` also works for
# interpreters that a distribution manages, and touches nothing outside this folder.
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv)
ifeq ($(UV),)
UV := $(CURDIR)/$(BOOTSTRAP)/bin/uv
UV_HERE := $(BOOTSTRAP)/bin/uv
endif

# No interpreter is downloaded behind the user's back, and no other environment is touched.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.venv
export VIRTUAL_ENV := $(CURDIR)/.venv
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python

SYNC := "$(UV)" sync --quiet --locked --inexact --no-install-project
RUST := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: help venv build demo test test-rust test-python test-slow lint lint-python lint-rust bench docs sim fuzz lock clean

help:
	@echo "make demo       train a model on a mesh of processes (ARGS=--no-torch to do without torch)"
	@echo "make test       every test but the slow ones"
	@echo "make test-slow  soak and chaos tests"
	@echo "make lint       ruff, mypy, rustfmt and clippy"
	@echo "make docs       run the Python in README.md and docs/"
	@echo "make bench      benchmarks"
	@echo "make sim        the simulation, SEED=$(SEED)"
	@echo "make fuzz       property tests of the core, CASES=$(CASES) a property"
	@echo "make venv       .venv with the tools and the extension, built in release"
	@echo "make lock       bring uv.lock in step with pyproject.toml"
	@echo "make clean      remove what these targets have made"

$(BOOTSTRAP)/bin/uv:
	mkdir -p $(BOOTSTRAP) && echo '*' > $(BOOTSTRAP)/.gitignore
	"$(PYTHON)" -m pip install --quiet --upgrade --target $(BOOTSTRAP) 'uv>=0.9,<1'

$(BIN)/python: | $(UV_HERE)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "roost needs CPython 3.11 or later; set PYTHON=")'
	"$(UV)" venv --quiet --no-project --python "$$("$(PYTHON)" -c 'import sys; print(sys.executable)')" .venv

$(STAMPS)/tools: pyproject.toml uv.lock | $(BIN)/python $(UV_HERE)
	$(SYNC)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/examples: pyproject.toml uv.lock | $(STAMPS)/tools $(UV_HERE)
	$(SYNC) --extra examples
	@touch $@

$(STAMPS)/torch: pyproject.toml uv.lock | $(STAMPS)/tools $(UV_HERE)
	@echo "installing torch: a download of up to 3 GB the first time"
	$(SYNC) --extra torch
	@touch $@

$(STAMPS)/bench: pyproject.toml uv.lock | $(STAMPS)/tools $(UV_HERE)
	$(SYNC) --extra bench
	@touch $@

$(STAMPS)/extension: $(RUST) pyproject.toml | $(STAMPS)/tools $(UV_HERE)
	PATH="$(dir $(UV)):$$PATH" $(BIN)/maturin develop --quiet --release --locked --uv
	@touch $@

build: $(STAMPS)/extension

venv: build

demo: $(STAMPS)/extension $(STAMPS)/examples $(if $(filter --no-torch,$(ARGS)),,$(STAMPS)/torch)
	$(BIN)/python examples/train.py $(ARGS)

# pytest comes last, so that a run closes with its summary.
test: test-rust test-python

test-rust:
	cargo test --quiet --locked -p roost-core

test-python: $(STAMPS)/extension $(STAMPS)/examples
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(STAMPS)/extension $(STAMPS)/examples
	$(BIN)/python -m pytest -m slow --timeout 1800 $(ARGS)

lint: lint-python lint-rust

lint-python: $(STAMPS)/extension
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-rust: | $(BIN)/python
	cargo fmt --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings

docs: $(STAMPS)/extension
	$(BIN)/python -m pytest tests/test_docs.py

bench: $(STAMPS)/extension $(STAMPS)/bench
	$(BIN)/python -m benchmarks $(ARGS)

sim:
	@test -d crates/roost-core/tests/sim || { echo "there is no simulation yet"; exit 1; }
	ROOST_SIM_SEED=$(SEED) cargo test --locked --release -p roost-core --test sim -- --nocapture $(ARGS)

fuzz:
	PROPTEST_CASES=$(CASES) cargo test --locked --release -p roost-core -- $(ARGS)

lock: | $(BIN)/python $(UV_HERE)
	"$(UV)" lock

clean:
	rm -rf .venv $(BOOTSTRAP) target dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .roost
	rm -f python/roost/_core*.so
	find $(wildcard python tests examples benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +
