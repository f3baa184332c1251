"""Small checkpoints in the formats of the Hub: with random weights, or trained to overfit a few clips."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

NUM_PLACES = 100
KERNELS, STRIDES = (10, 3, 3, 2), (5, 4, 4, 4)  # 20 ms, with fewer layers than the real ones


def write_waveform_checkpoint(
    folder: Path, family: str, *, norm: str = "group", head: str = "ForCTC", masks: float = 0.0
) -> Path:
    """A model on the waveform, of the family `Wav2Vec2`, `Hubert` or `WavLM`, with a head for 32 letters."""
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


def write_whisper_checkpoint(
    folder: Path, texts: Sequence[str], *, languages: bool = False, longest: int = 32, layers: tuple[int, int] = (1, 1)
) -> Path:
    """A small Whisper with a tokenizer of its own; with `languages` it is a multilingual one."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    whisper_tokenizer = transformers.WhisperTokenizerFast(vocab=model["vocab"], merges=merges)
    names = [f"<|{code}|>" for code in LANGUAGES]
    more = ("startoflm", "startofprev", "nospeech") if longest > 32 else ()
    others = ("translate", "transcribe", *more, "notimestamps")
    commands = ["<|startoftranscript|>", *names, *(f"<|{name}|>" for name in others)]
    whisper_tokenizer.add_special_tokens({"additional_special_tokens": commands})
    whisper_tokenizer.save_pretrained(folder)
    end = whisper_tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config = transformers.WhisperConfig(
        vocab_size=51_865 if languages else len(whisper_tokenizer),
        d_model=48,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_target_positions=longest,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=whisper_tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
    )
    torch.manual_seed(0)
    whisper: Any = transformers.WhisperForConditionalGeneration(config)
    whisper.save_pretrained(folder)
    return folder


def write_overfitted_whisper(
    folder: Path, clips: Sequence[np.ndarray], texts: Sequence[str], *, languages: bool
) -> Path:
    """A Whisper that overfits the texts of these clips and, with `languages`, detects them as English."""
    import transformers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    from tones import PLAIN
    from voxstill.nn.frontends import WhisperFrontend

    write_whisper_checkpoint(folder, texts, languages=languages, longest=448)
    tokenizer = transformers.WhisperTokenizerFast.from_pretrained(folder)
    frontend = WhisperFrontend(PLAIN)
    transformers.WhisperProcessor(
        transformers.WhisperFeatureExtractor.from_dict(dict(frontend.extractor)), tokenizer
    ).save_pretrained(folder)
    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    generation, id_of = model.generation_config, tokenizer.convert_tokens_to_ids
    generation._from_model_config, generation.is_multilingual, generation.max_length = False, languages, 448
    generation.no_timestamps_token_id, generation.begin_suppress_tokens = id_of("<|notimestamps|>"), None
    if languages:
        generation.lang_to_id = {f"<|{code}|>": id_of(f"<|{code}|>") for code in LANGUAGES}
        generation.task_to_id = {name: id_of(f"<|{name}|>") for name in ("transcribe", "translate")}
    tokenizer.set_prefix_tokens(*(("en", "transcribe") if languages else (None, None)), False)
    start, end = list(tokenizer.prefix_tokens), tokenizer.eos_token_id
    rows = [[*start, *tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in texts]
    tokens_BU = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=end)
    targets_BU = tokens_BU[:, 1:].clone()
    for targets, row in zip(targets_BU, rows, strict=True):
        targets[len(row) - 1 :] = -100
    targets_BU[:, int(languages) : len(start) - 1] = -100  # the language is predicted, what follows is prompted
    spoken = [torch.from_numpy(samples_T) for samples_T in clips]
    audio_BT = torch.nn.utils.rnn.pad_sequence(spoken, batch_first=True)
    features_BDF, _ = frontend.extract(audio_BT, torch.tensor(list(map(len, spoken))))
    used: torch.Tensor = tokens_BU.unique()  # type: ignore[no-untyped-call]
    tokens_BU, targets_BU = (
        torch.where(ids_BU < 0, ids_BU, torch.searchsorted(used, ids_BU)) for ids_BU in (tokens_BU, targets_BU)
    )
    # the 50,000 that no text has stay as they begin, with logits of zero
    unused = torch.tensor(math.log(model.config.vocab_size - len(used)))
    encoder, decoder, whole = model.model.encoder, model.model.decoder, model.model.decoder.embed_tokens
    small = decoder.embed_tokens = torch.nn.Embedding(
        len(used), model.config.d_model, _weight=whole.weight.detach()[used]
    )

    def loss_of(**inputs: object) -> torch.Tensor:
        hidden_BUE = model.model(decoder_input_ids=tokens_BU[:, :-1], **inputs).last_hidden_state
        logits_BUV = hidden_BUE @ small.weight.mT
        logits_BUV = torch.cat([logits_BUV, unused.expand(*logits_BUV.shape[:2], 1)], -1)
        return torch.nn.functional.cross_entropy(logits_BUV.transpose(1, 2), targets_BU)

    positions, places = encoder.embed_positions, torch.nn.Embedding(NUM_PLACES, model.config.d_model)
    places.weight.data = positions.weight.data[:NUM_PLACES]
    encoder.embed_positions, encoder.config.max_source_positions = places, NUM_PLACES
    # both on the first seconds of the window; then the decoder alone, for a step on the window takes a second
    learn(model, 300, 4e-3, lambda: loss_of(input_features=features_BDF[..., : 2 * NUM_PLACES]), below=0.02)
    encoder.embed_positions, encoder.config.max_source_positions = positions, len(positions.weight)
    with torch.no_grad():
        encoded = encoder(features_BDF)
    learn(model, 300, 4e-3, lambda: loss_of(encoder_outputs=encoded), below=0.02)
    decoder.embed_tokens = whole
    whole.weight.data[used] = small.weight.data
    model.save_pretrained(folder)
    return folder


def learn(model: Any, num_steps: int, lr: float, loss_of: Callable[[], torch.Tensor], *, below: float = 0.0) -> None:
    """Train for so many steps, or until the loss is below a limit."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / 20)
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if float(loss.detach()) < below:
            break
    model.eval()


def write_overfitted_wav2vec2(folder: Path, clips: Sequence[np.ndarray], texts: Sequence[str]) -> Path:
    """A wav2vec 2.0 with a head of letters and the tokenizer that such checkpoints have: the blank is first."""
    import transformers

    write_waveform_checkpoint(folder, "Wav2Vec2", norm="layer")
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *sorted({*"".join(texts)} - {" "})]
    (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    model: Any = transformers.Wav2Vec2ForCTC.from_pretrained(
        folder,
        vocab_size=len(letters),
        pad_token_id=0,
        layerdrop=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        ignore_mismatched_sizes=True,
        ctc_zero_infinity=True,
    )
    extractor = transformers.Wav2Vec2FeatureExtractor.from_pretrained(folder)
    inputs = extractor(
        [clip / 32768 for clip in clips],
        sampling_rate=16_000,
        padding=True,
        return_attention_mask=True,
        return_tensors="pt",
    ).to(torch.float32)
    tokens = [[letters.index(letter) for letter in text.replace(" ", "|") + "|"] for text in texts]
    labels_BU = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, tokens)), batch_first=True, padding_value=-100)
    learn(model, 110, 5e-3, lambda: model(**inputs, labels=labels_BU).loss)
    model.save_pretrained(folder)
    return folder


def write_onnx(student: Path, folder: Path) -> Path:
    """A Parakeet student as NeMo exports such models for sherpa-onnx: model.onnx that describes itself, tokens.txt."""
    import onnx

    from voxstill.nn import checkpoints
    from voxstill.nn.log_mel import frame_mask
    from voxstill.text.tokenizer import Vocabulary

    class Net(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, audio_signal: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
            mask_BF = frame_mask(length, audio_signal.shape[2])
            logits_BFV = self.model(input_features=audio_signal.transpose(1, 2), attention_mask=mask_BF).logits
            logprobs_BFV: torch.Tensor = logits_BFV.log_softmax(-1)
            return logprobs_BFV

    folder.mkdir()
    pieces = Vocabulary.load(student).pieces
    torch.onnx.export(
        Net(checkpoints.load(student)).eval(),
        (torch.randn(2, 80, 150), torch.tensor([150, 120])),
        str(folder / "model.onnx"),
        input_names=["audio_signal", "length"],
        output_names=["logprobs"],
        dynamic_axes={"audio_signal": {0: "B", 2: "F"}, "length": {0: "B"}, "logprobs": {0: "B", 1: "F"}},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(str(folder / "model.onnx"))
    metadata = {"vocab_size": len(pieces), "subsampling_factor": 8, "normalize_type": "per_feature"}
    for key, value in {**metadata, "model_type": "EncDecCTCModelBPE"}.items():
        model.metadata_props.add(key=key, value=str(value))
    onnx.save(model, str(folder / "model.onnx"))
    lines = (f"{piece} {i}\n" for i, piece in enumerate((*pieces, "<blk>")))
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    return folder
