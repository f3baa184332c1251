# The two commands of the README are `make demo` and `make test`; both set up .venv first.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: install demo check test torture format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "voxstill needs Python 3.11 or newer: make PYTHON=python3.11")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: install
	$(VENV)/bin/voxstill demo

check: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# two at a time: most tests wait for processes of their own
test: install
	$(VENV)/bin/pytest --numprocesses 2 --dist worksteal

# Hours. `make torture SHARE=0.1` does a tenth.
SHARE ?= 1
torture: install
	TORTURE_SHARE=$(SHARE) $(VENV)/bin/pytest --timeout=0 tests/torture

format: install
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist
