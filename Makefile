# SPDX-License-Identifier: Apache-2.0
# `make` lists what there is. Each target sets up what it needs first (tools/bootstrap.py).
PYTHON ?= python3
# Which host (tools/hosts.py). From the command line only: csh has a variable HOST of its own.
ifneq ($(origin HOST),command line)
ifneq ($(filter 0.23 0.30,$(HOST)),)
$(info HOST=$(HOST) of the environment is ignored, and 0.23 taken: write it behind make, make TARGET HOST=$(HOST))
endif
HOST := 0.23
endif
# Which part of `rest`.
SHARD ?= 1/1
BIN := .venv$(patsubst %,-%,$(filter-out 0.23,$(HOST)))/bin
CHECKS := $(BIN)/python tools/checks.py --host '$(HOST)'

# More than one thread per process makes the emulated NPU slower, not faster.
export OMP_NUM_THREADS ?= 1
# numba, which vLLM looks drafts up with, would set torch's number of threads to the cores'.
export NUMBA_NUM_THREADS ?= 1
# Set in many containers; without bytecode each process compiles torch, transformers, vLLM anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all rest vendor lint format typecheck port unit emulated docs release-check generate lock clean bench matrix soak

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "HOST=0.30 sets up and tests the second host: setup, demo, test, test-all, port, unit, emulated"
	@echo "RUNNER=v2 lets the demo of that host run on vLLM's model runner V2"

setup: ## virtual environment, requirements, vLLM, vllm-ascend, native parts
	@command -v $(PYTHON) >/dev/null || \
		{ echo "Set-up stopped: no $(PYTHON): apt-get install python3"; exit 1; }
	@$(PYTHON) tools/bootstrap.py --host '$(HOST)'

demo: setup ## serve a target with a draft on the emulated NPU, and compare every token
	@$(BIN)/python -m examples.demo $(addprefix --runner ,$(RUNNER))

test: setup ## lint, type check, docs, unit tests, one engine of each kind on the emulated NPU
	@$(CHECKS)

test-all: setup ## what test runs, packaging, and all other engines (half an hour)
	@$(CHECKS) --all

rest: setup ## what test-all runs beyond test; SHARD=2/4 runs the second quarter of its engines
	@$(CHECKS) --shard '$(SHARD)' $(if $(filter 1/%,$(SHARD)),vendor) \
		$(if $(filter 0.23:1/%,$(HOST):$(SHARD)),packaging) rest

vendor: setup ## argument lists and shape functions of torch_npu's operators, from its wheel, which is fetched
	@$(BIN)/python tools/operator_schemas.py
	@$(BIN)/python tools/operator_shapes.py

lint: setup ## ruff, clang-format, import-linter
	@$(CHECKS) lint

format: setup ## rewrite sources in the repository's format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@git ls-files '*.cpp' '*.h' | xargs --no-run-if-empty $(BIN)/clang-format -i

typecheck: setup ## mypy
	@$(CHECKS) types

port: setup ## compare what is replaced of vllm-ascend with its post-release, which is fetched
	@$(CHECKS) port

unit: setup ## tests that need no device and no engine
	@$(CHECKS) unit

emulated: setup ## tests that run vLLM on the emulated NPU
	@$(CHECKS) core rest

bench: setup ## KV groups and memory of pairs of models, beside vLLM's own grouping; custom ops
	@$(BIN)/python -m benchmarks.kv_layout
	@$(BIN)/python -m benchmarks.ops

matrix: setup ## every draft family with every target family, here, in graphs, with prefix hits and on stock (an hour)
	@$(BIN)/python -m benchmarks.matrix
	@$(BIN)/python tools/generate_docs.py

SOAK = $(BIN)/mkv-ascend emulate --strict --float32-compute -- $(BIN)/python -m reliability
MANY = --running 32 --answer 256 --at-once 48 --round 500
soak: setup ## real servers under load and under faults, for hours; goes on where it was stopped
	@mkdir -p .cache/soak
	@$(SOAK) bookkeeping --runs 1000
	@$(BIN)/python -m reliability plans --count 1000000 --keep .cache/soak/plans
	@$(SOAK) started --count 100
	@$(SOAK) load --pair dense --mode graphs $(MANY) --requests 10000 --keep .cache/soak/load-dense
	@for pair in mla recurrent states dflash; do \
		$(SOAK) load --pair $$pair --mode graphs $(MANY) --requests 2000 --keep .cache/soak/load-$$pair || exit 1; \
	done
	@$(SOAK) faults --pair dense --count 150 --keep .cache/soak/faults-1
	@$(SOAK) faults --pair dense --count 150 --ranks 2 --seed 2 --keep .cache/soak/faults-2
	@$(SOAK) load --pair dense --adapters 2 --requests 500 --keep .cache/soak/load-adapters
	@$(SOAK) fuzz --pair dense
	@$(SOAK) faults --pair dense --count 10 --ranks 2 --kinds memory --keep .cache/soak/faults-3
	@$(SOAK) faults --pair dense --count 10 --kinds clock --keep .cache/soak/faults-4
	@$(SOAK) faults --pair mla --count 10 --mode graphs --kinds stale --keep .cache/soak/faults-5

docs: setup ## build the documentation into site-docs/
	@$(CHECKS) docs

release-check: setup ## build what is uploaded, read and install it; TAG=v0.23.0 prints the notes
	@$(BIN)/python tools/release_check.py $(addprefix --tag ,$(TAG))

generate: setup ## write the generated pages and parts of docs/ anew
	@$(BIN)/python tools/generate_docs.py
	@$(BIN)/python -m emulated_npu.operators.table

LOCK = @$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-annotate \
	--overrides requirements/overrides.txt --excludes requirements/excludes.txt \
	--custom-compile-command "make lock"

lock: setup ## resolve requirements/*.in anew into requirements/constraints*.txt
	$(LOCK) --output-file requirements/constraints.txt $(addprefix requirements/, \
		build.in emulator.in host_0_23.in test.in dev.in docs.in)
	$(LOCK) --output-file requirements/constraints_0_30.txt $(addprefix requirements/, \
		build.in emulator.in host_0_30.in test.in)

clean: ## remove what these targets made, .venv and those beside it included
	rm -rf .venv .venv-* build dist site-docs .cache *.egg-info mkv_ascend/ops/_*.so \
		emulated_npu/build emulated_npu/src/*.egg-info emulated_npu/src/emulated_npu/_native.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find mkv_ascend emulated_npu tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
