"""The folder that ESPnet trains from, of a manifest of `audio` and `text` in JSONL; what its user writes.

    python espnet_data.py corpus/manifest.jsonl data
    python -m espnet2.bin.asr_train --config espnet_ctc.yaml --output_dir exp --token_list data/tokens.txt \
        --train_data_path_and_name_and_type data/wav.scp,speech,sound \
        --train_data_path_and_name_and_type data/text,text,text --train_shape_file data/speech_shape \
        --valid_data_path_and_name_and_type data/wav.scp,speech,sound \
        --valid_data_path_and_name_and_type data/text,text,text --valid_shape_file data/speech_shape
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import soundfile


def write(manifest: Path, folder: Path) -> None:
    """Write audio files, texts, numbers of samples and tokens."""
    folder.mkdir()
    audio, texts, lengths, words = [], [], [], set[str]()
    for number, line in enumerate(manifest.read_text().splitlines()):
        row = json.loads(line)
        path = manifest.parent / row["audio"]
        audio.append(f"u{number:06} {path}\n")
        texts.append(f"u{number:06} {row['text']}\n")
        lengths.append(f"u{number:06} {soundfile.info(path).frames}\n")
        words.update(row["text"].split())
    (folder / "wav.scp").write_text("".join(audio))
    (folder / "text").write_text("".join(texts))
    (folder / "speech_shape").write_text("".join(lengths))
    (folder / "tokens.txt").write_text("\n".join(["<blank>", "<unk>", *sorted(words), "<sos/eos>"]) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
