# A fresh machine with Python 3.11, pip and venv needs two commands: `make demo` and `make test`.
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares it the CUDA build of PyTorch.

PYTHON ?= python3
BIN := .venv/bin
PACKAGE := .venv/package
TOOLS := .venv/tools
DOCS := .venv/docs

.PHONY: demo docs test test-all test-machines lint

demo: $(PACKAGE)
	$(BIN)/clippedgossip demo

# The site, in out/docs/html; every warning is an error. Reading it needs no network.
docs: $(DOCS)
	$(BIN)/python docs/site/build.py

# Many tests wait, so a third process helps; more than one thread in each would take turns on two cores.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -q -m "not slow"

test-all: lint $(DOCS)
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not hours"

# The suite as other machines would run it, about five minutes for each kind of machine.
test-machines: $(TOOLS)
	$(BIN)/python tools/test_machines.py

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/zizmor --offline --quiet .github

$(PACKAGE): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e .
	touch $@

$(TOOLS): $(PACKAGE)
	$(BIN)/python -m pip install -c constraints.txt -e '.[peer,sweep,export,watch,test,lint]'
	touch $@

$(DOCS): $(PACKAGE)
	$(BIN)/python -m pip install -c constraints.txt -e '.[peer,docs]'
	touch $@
