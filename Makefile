# `make demo` shows the tool at work, `make test` checks it; both make .venv on first use.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# a plain "torch" would bring several GB of CUDA packages; this pin is a CPU build for CI and demo
TORCH ?= torch==2.13.0
READY := $(VENV)/.ready

.PHONY: demo test lint bench clean

demo: $(READY)
	$(BIN)/python samples/cifar10.py

test: $(READY) lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV)
