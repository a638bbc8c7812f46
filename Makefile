# `make` alone lists what there is. Everything installs into .venv and build folders of this tree.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
RUST := $(wildcard Cargo.toml Cargo.lock rust/*.rs)
BACKEND := $(wildcard python/build_backend/*.py)
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "agent-sandbox: needs Python 3.11 or later; none is on the PATH. Install one, or say make PYTHON=/path/to/python3."; exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "agent-sandbox: $(PYTHON) cannot make a virtual environment (no ensurepip). On Debian and Ubuntu: apt install python3-venv; then run make again."; exit 2; }
	@echo "agent-sandbox: making $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv $(VENV)

# The package itself, editable, with what it needs to run. Built again when the Rust core changes.
$(VENV)/.installed: pyproject.toml constraints.txt $(RUST) $(BACKEND) | $(BIN)/python
	@command -v cargo >/dev/null || echo "agent-sandbox: no Rust toolchain (no cargo on the PATH): pure-Python install, complete, only slower on large files."
	@echo "agent-sandbox: installing the package and what it needs (the first time takes a minute)"
	@$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

# What tests, linters and benches need on top.
$(VENV)/.dev: $(VENV)/.installed
	@$(PIP) install --quiet --constraint constraints.txt 'pip>=25.1'
	@$(PIP) install --quiet --constraint constraints.txt --group dev
	@touch $@

.PHONY: venv
venv: $(VENV)/.dev ## .venv with the package (editable) and everything for development
