#!/bin/bash
# Spoken digits (FSDD) from raw audio to the comparison of teacher and student, each of six speakers held out in turn.
# Options are those of benchmarks/fsdd.py.
#
#   examples/fsdd/run.sh
#   examples/fsdd/run.sh --speakers theo
set -euo pipefail
export LC_ALL=C # the order of the files is part of the corpus
corpus=data/free-spoken-digit-dataset
words=(zero one two three four five six seven eight nine)
if [ ! -e "$corpus" ]; then
    git clone --quiet --depth 1 https://github.com/Jakobovski/free-spoken-digit-dataset "$corpus"
fi
for file in "$corpus"/recordings/*.wav; do
    name=${file##*/}
    id=${name%.wav}
    IFS=_ read -r digit speaker _ <<< "$id"
    printf '{"id": "%s", "audio": "recordings/%s.wav", "text": "%s", "speaker": "%s"}\n' \
        "$id" "$id" "${words[$digit]}" "$speaker"
done > "$corpus/manifest.jsonl"
python examples/fsdd/strings.py --manifest "$corpus/manifest.jsonl" --output work/fsdd/corpus
python examples/fsdd/voices.py --output work/fsdd/voices
python examples/fsdd/strings.py --manifest work/fsdd/voices/manifest.jsonl --strings 60 --dataset voices \
    --output work/fsdd/voices-corpus
python benchmarks/fsdd.py --corpus work/fsdd/corpus/manifest.jsonl --voices work/fsdd/voices-corpus/manifest.jsonl \
    --no-dev --output work/fsdd/figures.json "$@"
