#!/bin/bash
# Spoken coffee orders from raw audio to the comparison of teacher and student, in clean audio and in noise.
# Options are those of benchmarks/coffee.py.
#
#   examples/coffee/run.sh
set -euo pipefail
benchmark=data/speech-to-intent-benchmark
if [ ! -e "$benchmark" ]; then
    git clone --quiet --depth 1 https://github.com/Picovoice/speech-to-intent-benchmark "$benchmark"
fi
python examples/coffee/prepare.py --benchmark "$benchmark" --output data/coffee
python benchmarks/coffee.py --train data/coffee/train --test data/coffee/test --noise "$benchmark/data/noise/kitchen.wav" "$@"
