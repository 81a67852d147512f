# A fresh machine with Python 3.11, pip and venv needs two commands: `make demo` and `make test`.
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares it the CUDA build of PyTorch.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test test-all lint

demo: $(INSTALLED)
	$(BIN)/clippedgossip demo

test: lint
	$(BIN)/pytest -n 2 -q -m "not slow"

test-all: lint
	$(BIN)/pytest -n 2 -q

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[peer,sweep,dev]'
	touch $@
