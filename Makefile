# Every target sets up its own environment in .venv: a machine with Python 3.11 to 3.13, pip and g++ is enough.
# On a machine without a GPU, PIP_EXTRA_INDEX_URL may point pip at an index of CPU builds of torch, which are smaller.

VENV ?= .venv
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell \
	$(name) -c 'import sys, venv, ensurepip; (3, 11) <= sys.version_info[:2] <= (3, 13) and print("$(name)")' 2>/dev/null)))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers fit two cores; each test process keeps to one thread so that they do not fight.
WORKERS ?= 2
PYTEST_ARGS ?=

.PHONY: demo test test-slow check format clean help

help:
	@echo "make demo    optimise the examples on this machine and print what was gained"
	@echo "make test    run the test suite"
	@echo "make test-slow  run the tests that make test leaves out for their cost"
	@echo "make check   ruff, formatting, mypy strict"
	@echo "make format  let ruff format and fix"
	@echo "make clean   remove .venv and caches (keeps runs/)"

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 with the venv module found; set PYTHON=..." >&2; exit 2; }
	@command -v $(or $(CXX),g++) >/dev/null || { echo "no C++ compiler found; install g++" >&2; exit 2; }
	@echo "setting up $(VENV): some gigabytes are fetched, and nothing is printed for minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python -m stitchcuda.demo

# Tests marked serial measure time or drive whole runs: they get the machine to themselves.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not serial and not slow" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m serial $(PYTEST_ARGS)

# What other tests rest on, such as that every exploit fools a naive harness.
test-slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist
