#!/bin/bash
# Downloads LibriSpeech (61 GB) into the folder `data`, unpacks it and lists the audio to label, and downloads Whisper's
# table of British spellings; run it again and it goes on where it stopped.
#
#   examples/librispeech-whisper/prepare.sh
set -euo pipefail
mkdir -p data
cd data
for part in train-clean-100 train-clean-360 train-other-500 dev-clean dev-other test-clean test-other; do
    if [ ! -e "$part.unpacked" ]; then
        if [ ! -e "$part.tar.gz" ]; then
            curl --fail --location --continue-at - --output "$part.part" \
                "https://www.openslr.org/resources/12/$part.tar.gz"
            mv "$part.part" "$part.tar.gz"
        fi
        tar -xzf "$part.tar.gz"
        touch "$part.unpacked"
        rm "$part.tar.gz"
    fi
done
curl --fail --location --output normalizer.json \
    https://huggingface.co/openai/whisper-large-v3/resolve/06f233fe06e710322aca913c1bc4249a0d71fce1/normalizer.json
find LibriSpeech/train-* -name '*.flac' | sort > train.lst
