# Everything a newcomer needs: `make demo`, `make test`. Both create .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint types check sanitise

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/sepgconv demo

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

check: test lint types

# The compiled kernels by themselves, under the compiler's sanitisers
sanitise:
	sh tests/execution/native/sanitise.sh
