# What a developer types, and what CI runs: the same. Needs only Python 3.11 or newer with venv; the rest goes to .venv.
#
#   make demo          the same sessions directly and through the proxy, in a table
#   make test          the tests, with a real llama-server; ARGS="-k name" and so on go to pytest
#   make test-long     more of the same tests: every fault of every call, sub-agents at once (by name only)
#   make fuzz          a hundred thousand broken requests (FUZZ_SEED=2 sends others)
#   make test-pi       the real Pi through the proxy (installs it from npm)
#   make test-newer    the tests with a newer llama-server (compiles it, some ten minutes the first time)
#   make bench-prefill what conversations cost in prompt tokens, directly and proxied (ARGS=--short; all: hours)
#   make bench-restart time to the first token after a restart of the server
#   make bench-overhead what the proxy adds to a request, beside a bare forwarder, nginx and hearth-llm (ARGS=--short)
#   make soak          one proxy for an hour under everything at once, fails where it grows (ARGS="--minutes 5 --seed 1")
#   make lint          formatting, lint, types
#   make clean         away with .venv and what the tools left
#
# LLAMA_SERVER=/path/to/llama-server chooses the server; NO_LLAMA_SERVER=1 leaves out the tests that need one.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-long fuzz test-pi test-newer bench-prefill bench-restart bench-overhead soak lint clean

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	@$(RUN) -m proxy demo

test: $(VENV)/.test
	$(RUN) -m pytest $(ARGS)

test-long: $(VENV)/.test
	$(RUN) -m pytest -m long --ignore=tests/fuzz $(ARGS)

fuzz: $(VENV)/.test
	$(RUN) -m pytest -m long tests/fuzz $(ARGS)

test-pi: $(VENV)/.test
	$(RUN) -m pytest tests/pi $(ARGS)

test-newer: $(VENV)/.test
	server=$$($(RUN) -m proxy.demo.newer) && LLAMA_SERVER=$$server $(RUN) -m pytest $(ARGS)

bench-prefill: $(VENV)/.demo
	@$(RUN) -m bench.prefill $(ARGS)

bench-restart: $(VENV)/.demo
	@$(RUN) -m bench.restart $(ARGS)

bench-overhead: $(VENV)/.demo
	@$(RUN) -m bench.overhead $(ARGS)

soak: $(VENV)/.test
	@$(RUN) -m bench.soak $(ARGS)

lint: $(VENV)/.lint
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

# A stamp for each set of packages: installed once, and again when the project's needs change.

$(VENV)/.demo: EXTRAS := demo
$(VENV)/.test: EXTRAS := test
$(VENV)/.lint: EXTRAS := test,lint
$(VENV)/.demo $(VENV)/.test $(VENV)/.lint: pyproject.toml $(VENV)/.made
	@echo "installing the packages for '$(EXTRAS)' into $(VENV) …" >&2
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) isn't there: install Python 3.11 or newer, or say PYTHON=/path" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) is too old: Python 3.11 or newer, or say PYTHON=/path" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$$($(PYTHON) --version) has no venv or ensurepip: apt-get install python3-venv, or say PYTHON=/path" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@
