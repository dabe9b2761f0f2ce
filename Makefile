# Every target sets up what it needs: a virtual environment in .venv, from the locked files.
# Needs Python 3.11 or newer (with venv) and make; nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A file of the environment's own tells what is installed in it.
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
# Arguments for `make run`, `make test`, `make bench` and `make bench-memory`.
ARGS ?=
# The default tests run in two processes, file by file.
PARALLEL ?= -n 2 --dist loadfile

.PHONY: run test check lint types imports sizes bench bench-memory docs lock newest clients client-tests clean help

help:
	@echo "make run     set up, then serve the embedded model on 127.0.0.1:8300 (downloads 491 MB once)"
	@echo "make test    set up, then run the tests"
	@echo "make check   lint, types, imports, sizes, generated docs, tests"
	@echo "make bench   measure against the same requests made directly"
	@echo "make bench-memory  look for planted facts after compactions of every kind (downloads 98 MB once)"
	@echo "make docs    write the generated reference pages"
	@echo "make newest  run the SDK tests against the newest openai package"
	@echo "make clients install the SDKs and programs that the client tests drive (about 1 GB, in .clients)"
	@echo "make client-tests  install them, run those tests"
	@echo "make lock    lock the newest dependencies"
	@echo "make clean   remove the environment and caches"

run: $(RUN_STAMP)
	$(BIN)/antiphon serve $(ARGS)

test: $(DEV_STAMP)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

check: lint types imports sizes
	$(BIN)/python tools/write_docs.py --check
	$(BIN)/python -m pytest $(PARALLEL)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

imports: $(DEV_STAMP)
	$(BIN)/lint-imports --no-logo

sizes: $(DEV_STAMP)
	$(BIN)/python tools/check_sizes.py

bench: $(DEV_STAMP)
	$(BIN)/python -m bench $(ARGS)

bench-memory: $(DEV_STAMP)
	$(BIN)/python -m bench.memory --real $(ARGS)

docs: $(DEV_STAMP)
	$(BIN)/python tools/write_docs.py

# Our pages and objects must fit the SDK of today, not only the one that is locked.
newest: $(DEV_STAMP)
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(VENV)-newest/bin/python -m pip install -q --disable-pip-version-check --upgrade openai
	$(VENV)-newest/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
	$(VENV)-newest/bin/python -m pip show openai | head -2
	$(VENV)-newest/bin/python -m pytest -m "not real_model and not fuzz and not bench and not faults_long" \
		tests/scenarios tests/clients tests/unit

clients: | $(BIN)/python
	$(BIN)/python -m tools.set_up_clients

client-tests: $(DEV_STAMP)
	$(BIN)/python -m tools.run_client_tests

lock: $(DEV_STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --no-header --python-version 3.11 \
		pyproject.toml --extra local --extra mcp --extra pdf -o requirements/runtime.lock
	$(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --no-header --python-version 3.11 \
		pyproject.toml --extra local --extra mcp --extra pdf --group dev -o requirements/dev.lock

clean:
	rm -rf $(VENV) $(VENV)-newest .clients .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "No virtual environment could be made; on Debian: apt-get install python3-venv"; exit 1; }

$(RUN_STAMP): requirements/runtime.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/runtime.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

$(DEV_STAMP): requirements/dev.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@
