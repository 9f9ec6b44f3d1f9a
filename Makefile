# SPDX-License-Identifier: Apache-2.0
# `make` lists what there is. Each target sets up what it needs first (tools/bootstrap.py).
PYTHON ?= python3
BIN := .venv/bin

# More than one thread per process makes the emulated NPU slower, not faster.
export OMP_NUM_THREADS ?= 1
# numba, which vLLM looks drafts up with, would set torch's number of threads to the cores'.
export NUMBA_NUM_THREADS ?= 1
# Set in many containers; without bytecode each process compiles torch, transformers, vLLM anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format typecheck port unit emulated docs generate lock clean bench matrix

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## virtual environment in .venv, requirements, vLLM, vllm-ascend, native parts
	@command -v $(PYTHON) >/dev/null || \
		{ echo "Set-up stopped: no $(PYTHON): apt-get install python3"; exit 1; }
	@$(PYTHON) tools/bootstrap.py

demo: setup ## serve a target with a draft on the emulated NPU, and compare every token
	@$(BIN)/mkv-ascend demo

test: setup ## lint, type check, unit tests, emulated tests, docs
	@$(BIN)/python tools/checks.py

lint: setup ## ruff, clang-format, import-linter
	@$(BIN)/python tools/checks.py lint

format: setup ## rewrite sources in the repository's format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@git ls-files '*.cpp' '*.h' | xargs --no-run-if-empty $(BIN)/clang-format -i

typecheck: setup ## mypy
	@$(BIN)/python tools/checks.py types

port: setup ## compare what is replaced of vllm-ascend with its post-release, which is fetched
	@$(BIN)/python tools/checks.py port

unit: setup ## tests that need no device and no engine
	@$(BIN)/python tools/checks.py unit

emulated: setup ## tests that run vLLM on the emulated NPU
	@$(BIN)/python tools/checks.py emulated

bench: setup ## KV groups and memory of pairs of models, beside vLLM's own grouping; custom ops
	@$(BIN)/python -m benchmarks.kv_layout
	@$(BIN)/python -m benchmarks.ops

matrix: setup ## every draft family with every target family, here, in graphs and on stock (half an hour)
	@$(BIN)/python -m benchmarks.matrix
	@$(BIN)/python tools/generate_docs.py

docs: setup ## build the documentation into site-docs/
	@$(BIN)/python tools/checks.py docs

generate: setup ## write the generated pages and parts of docs/ anew
	@$(BIN)/python tools/generate_docs.py
	@$(BIN)/python -m emulated_npu.operators.table

lock: setup ## resolve requirements/*.in anew into requirements/constraints.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-annotate \
		--overrides requirements/overrides.txt --excludes requirements/excludes.txt \
		--custom-compile-command "make lock" --output-file requirements/constraints.txt \
		requirements/build.in requirements/emulator.in requirements/test.in \
		requirements/dev.in requirements/docs.in

clean: ## remove what these targets made, .venv included
	rm -rf .venv build dist site-docs .cache *.egg-info mkv_ascend/ops/_*.so \
		emulated_npu/build emulated_npu/src/*.egg-info emulated_npu/src/emulated_npu/_native.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find mkv_ascend emulated_npu tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
