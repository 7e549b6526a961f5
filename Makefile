# Everything a developer or CI does, one line each. `make up` and `make test` need nothing but Python 3.11 and make.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
UV = $$(tools/uv.sh)
# Interpreters come from the machine, never from a download.
export UV_PYTHON_DOWNLOADS = never
BIN = .venv/bin
JOBS ?= 2
ARGS ?=

MACHINES = x86_64 aarch64
NATIVE = $(MACHINES:%=src/aliquot/native/libgpushare-%.so)

.PHONY: help up setup packages native test check lint format types imports kube soak bench wheel smoke crds docs clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

up: .venv/.notebook native ## run the platform here, in the foreground (ARGS="--port 8000")
	@exec $(BIN)/aliquot up $(ARGS)

setup: .venv/.ready ## the environment, from the lock file

.venv/.ready: pyproject.toml uv.lock
	@echo "setting up .venv"
	@$(UV) sync --locked --compile-bytecode $$([ ! -e .venv/.notebook ] || echo --extra notebook)
	@touch $@

# Notebooks are large, so only those who run jobs get them; once there, they stay.
.venv/.notebook: pyproject.toml uv.lock
	@echo "setting up .venv, with JupyterLab"
	@$(UV) sync --locked --compile-bytecode --extra notebook
	@touch .venv/.ready $@

kube: ## the Kubernetes programs that tests run: found, or built once (5 to 15 minutes)
	@python3 tools/kube/get.py

native: $(NATIVE) ## the GPU sharing library, for both machines, into the package

# one build makes both; the second target waits for the first
$(NATIVE) &: native/gpushare/build.sh $(wildcard native/gpushare/*.[ch]) | .venv/.ready
	@native/gpushare/build.sh $(BIN)/python src/aliquot/native

test: .venv/.notebook native ## all tests (ARGS="-k watch"); builds the Kubernetes programs first where Go is installed
	@if command -v go >/dev/null || [ -n "$${KUBEBUILDER_ASSETS:-}" ]; then python3 tools/kube/get.py >/dev/null; fi
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup $(ARGS)

lint: setup ## style
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: setup ## put into style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: setup ## mypy --strict
	@$(BIN)/mypy

imports: setup ## imports point downwards
	@$(BIN)/lint-imports

wheel: setup native ## dist/aliquot-*.whl, one for every platform
	@rm -rf dist && $(UV) build --quiet --wheel && ls dist

smoke: wheel ## the installed wheel, alone, does the tour
	@tools/smoke.sh

packages: ## the Debian packages that tests use, where they are missing (as root)
	@tools/packages.sh

check: packages lint types imports kube test smoke ## everything CI runs

soak: .venv/.notebook kube ## the long versions: hundreds of kills, thousands of cases (an hour)
	@ALIQUOT_SOAK=1 $(BIN)/pytest -m soak -p no:randomly $(ARGS)

bench: setup ## figures, as ratios of one run
	@$(BIN)/pytest -m bench -p no:randomly -s -q tests/bench $(ARGS)

crds: setup ## the custom resources, as YAML on stdout
	@$(BIN)/aliquot crds

docs: setup ## build the documentation into site/
	@$(UV) run --with zensical zensical build

clean: ## remove what was built here
	@rm -rf .venv dist site src/aliquot/native/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
