# `make demo` and `make test` are all the set-up there is: each installs what it needs into .venv first.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types docs bench clean

demo: $(VENV)/.train
	$(BIN)/delphic train examples/demo.toml --resume

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $${DELPHIC_TEST_WORKERS:-2}

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python scripts/write_docs.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[train,dev]'
	-$(PIP) --no-deps trl verl trinity-rft rldoctor orjson  # peers; where one cannot be had, its tests skip
	touch $@

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_step.py
	$(BIN)/python benchmarks/bench_scores.py
	$(BIN)/python benchmarks/bench_diagnose.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
