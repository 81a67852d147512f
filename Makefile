PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test test-all lint

demo: $(INSTALLED)
	$(BIN)/clippedgossip demo

test: $(INSTALLED) lint
	$(BIN)/pytest -n 2 -q

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[peer,sweep,dev]'
	touch $@
