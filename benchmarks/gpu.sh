#!/bin/sh
# All GPU benchmarks within 40 minutes, out of a checkout; see gpu.py. Installs nothing.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
