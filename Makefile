# A fresh machine with Python 3.11, pip and venv needs two commands: `make demo` and `make test`.
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares it the CUDA build of PyTorch.

PYTHON ?= python3
BIN := .venv/bin
PACKAGE := .venv/package
TOOLS := .venv/tools
DOCS := .venv/docs
TRITON := .venv/triton

.PHONY: demo docs test test-all test-machines rehearse lint

demo: $(PACKAGE)
	$(BIN)/clippedgossip demo

# The site, in out/docs/html; every warning is an error. Reading it needs no network.
docs: $(DOCS)
	$(BIN)/python docs/site/build.py

# Many tests wait, so a third process helps; more than one thread in each would take turns on two cores.
test: lint $(TRITON)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -q -m "not slow"

test-all: lint $(DOCS) $(TRITON)
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not hours"

# The suite as other machines would run it, about five minutes for each kind of machine.
test-machines: $(TOOLS)
	$(BIN)/python tools/test_machines.py

# The tests for a GPU, on a machine without one; then machine code for a GPU, which is not run.
rehearse: $(TOOLS) $(TRITON)
	OMP_NUM_THREADS=1 $(BIN)/pytest -p tests.rehearsal.plugin -n 2 --dist worksteal -q -m "gpu and not slow" --timeout=900
	OMP_NUM_THREADS=1 $(BIN)/pytest -p tests.rehearsal.hopper -n 2 --dist worksteal -q --timeout=900 tests/rehearsal/machine_code.py

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

# For the rehearsal alone: PyTorch for CPUs needs no Triton, and PyTorch for GPUs brings its own.
$(TRITON): $(TOOLS)
	$(BIN)/python -m pip install --no-deps --upgrade --target $@ triton==3.9.0
	touch $@
