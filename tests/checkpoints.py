"""Small checkpoints with random weights, as people find them on the Hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

KERNELS, STRIDES = (10, 3, 3, 2), (5, 4, 4, 4)  # 20 ms, with fewer layers than the real ones


def write_samples_checkpoint(
    folder: Path, family: str, *, norm: str = "group", head: str = "ForCTC", masks: float = 0.0
) -> Path:
    """A model of the family that hears samples, `Wav2Vec2`, `Hubert` or `WavLM`, with a head for 32 letters."""
    import transformers

    config = getattr(transformers, f"{family}Config")(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(32,) * len(KERNELS),
        conv_kernel=KERNELS,
        conv_stride=STRIDES,
        feat_extract_norm=norm,
        num_feat_extract_layers=len(KERNELS),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=masks,
        vocab_size=32,
        layerdrop=0.1,
        do_stable_layer_norm=norm == "layer",
    )
    torch.manual_seed(0)
    model: Any = getattr(transformers, f"{family}{head}")(config)
    model.save_pretrained(folder)
    extractor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": norm == "layer"}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    return folder


def write_whisper_checkpoint(folder: Path, texts: Sequence[str], *, languages: bool = False) -> Path:
    """A small Whisper with a tokenizer of its own; with `languages` it is to be told which one it hears."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(each) for each in model["merges"]]
    made = transformers.WhisperTokenizerFast(vocab=model["vocab"], merges=merges)
    names = [f"<|{code}|>" for code in LANGUAGES]
    commands = ["<|startoftranscript|>", *names, "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]
    made.add_special_tokens({"additional_special_tokens": commands})
    made.save_pretrained(folder)
    end = made.convert_tokens_to_ids("<|endoftext|>")
    config = transformers.WhisperConfig(
        vocab_size=51_865 if languages else len(made),
        d_model=48,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_target_positions=32,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=made.convert_tokens_to_ids("<|startoftranscript|>"),
    )
    torch.manual_seed(0)
    whisper: Any = transformers.WhisperForConditionalGeneration(config)
    whisper.save_pretrained(folder)
    return folder
