"""vLLM for real, on the CPU: `make test-vllm` runs these where vLLM is installed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import write_whisper_checkpoint
from tones import PLAIN, TEXTS, speak
from voxstill import engine
from voxstill.audio import codec, read_utterances
from voxstill.core import config
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label, Utterance, UtteranceInfo
from voxstill.labelling import label
from voxstill.nn.frontends import WhisperFrontend
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip, Transcription
from voxstill.teachers.vllm import VllmOptions, VllmTeacher, _check_known, _language_tag
from voxstill.text.pretrained import WhisperTokenizer
from waiting import until

LANGUAGES = dict(zip(TEXTS[:2], ("en", "de"), strict=True))
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 4096,
}


def clip_of(samples_T: np.ndarray, number: int = 0) -> Clip:
    utterance = Utterance(id=f"u{number}", recording_id="r", uri="", end_ms=len(samples_T) // 16)
    return Clip(utterance=utterance, samples_T=samples_T)


NUM_STEPS = 150
CLIPS = [clip_of(speak(text, i)[0], i) for i, text in enumerate(LANGUAGES)]


# ------------------------------------------------------------------------------------------------ without vLLM


def test_another_file_in_the_folder_is_another_revision_and_the_hub_is_named(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 << 20))
    first = VllmTeacher(VllmOptions(model=str(tmp_path))).revision()
    assert VllmTeacher(VllmOptions(model=str(tmp_path), temperature=0.5)).revision() == first
    weights.write_bytes(bytes((3 << 20) - 1) + b"1")
    assert VllmTeacher(VllmOptions(model=str(tmp_path))).revision() != first
    assert VllmTeacher(VllmOptions(model="openai/whisper-tiny", revision="abc")).revision() == "openai/whisper-tiny@abc"


def test_the_language_that_a_model_names_before_the_text_is_a_code() -> None:
    names = {"en": "English", "yue": "Cantonese"}
    assert _language_tag("language Cantonese<asr_text>hello", names) == "yue"
    assert _language_tag("language None<asr_text>", names) is None
    assert _language_tag("hello language English", names) is None


def test_where_it_is_not_installed_the_error_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(TeacherError, match="not installed") as caught:
        registry.create(config.Teacher(name="vllm", model="m")).load()  # type: ignore[call-arg]
    assert "pip install 'voxstill[vllm]'" in caught.value.fix


@pytest.mark.parametrize(
    ("engine_options", "reason"),
    [
        ({"dtype": "float16"}, "set `teacher.dtype`"),
        ({"quantization": "fp8", "model": "other"}, "set `teacher.model`"),
        ({"hf_token": "secret"}, "HF_TOKEN"),
        ({"logprobs_mode": "raw_logits"}, "log-probability"),
        ({"limit_mm_per_prompt": {"audio": 0}}, "one `audio`"),
        ({"limit_mm_per_prompt": 3}, "one `audio`"),
    ],
)
def test_an_option_of_the_engine_that_is_set_elsewhere_is_refused(engine_options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=r"teacher\.engine") as caught:
        registry.create(config.Teacher.model_validate({"name": "vllm", "model": "m", "engine": engine_options}))
    assert reason in f"{caught.value}"
    assert "secret" not in f"{caught.value}"


def test_an_option_that_the_engine_does_not_have_is_refused_with_a_suggestion() -> None:
    _check_known(["quantization"], ["quantization", "kv_cache_dtype"])
    with pytest.raises(ConfigError, match=r"`teacher\.engine` has `quantisation`") as caught:
        _check_known(["quantisation"], ["quantization", "kv_cache_dtype"])
    assert "`quantization`" in caught.value.fix


def test_options_of_the_engine_are_of_the_recipe_and_none_of_them_is_not() -> None:
    def recipe(**options: Any) -> str:
        return label.task(config.Teacher.model_validate({"name": "vllm", "model": "org/m", **options})).recipe

    assert recipe(engine={}) == recipe() != recipe(engine={"quantization": "fp8"})


# ------------------------------------------------------------------------------------------------ with vLLM


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small Whisper that knows two utterances by heart, and the language of each."""
    pytest.importorskip("vllm")
    import transformers

    folder = write_whisper_checkpoint(tmp_path_factory.mktemp("whisper"), TEXTS)
    shape = transformers.WhisperConfig.from_pretrained(
        folder, d_model=64, encoder_attention_heads=2, decoder_attention_heads=2
    )  # vLLM has no attention narrower than 32
    torch.manual_seed(0)
    model: Any = transformers.WhisperForConditionalGeneration(shape)
    frontend, rows = WhisperFrontend(PLAIN), []
    for text, language in LANGUAGES.items():
        tokenizer = WhisperTokenizer(str(folder), language, 0)
        rows.append(torch.tensor([*tokenizer.prefix, *tokenizer.encode(text)[0], tokenizer.end_id]))
    tokens_BU = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    audio = [torch.from_numpy(clip.samples_T) for clip in CLIPS]
    audio_BT = torch.nn.utils.rnn.pad_sequence(audio, batch_first=True)
    features_BDF, _ = frontend.extract(audio_BT, torch.tensor(list(map(len, audio))))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1, (step + 1) / 20)
        input_BU = tokens_BU[:, :-1].clamp(min=0)
        logits_BUV = model(input_features=features_BDF, decoder_input_ids=input_BU).logits
        loss = torch.nn.functional.cross_entropy(logits_BUV.transpose(1, 2), tokens_BU[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save(folder, frontend.extractor, "seq2seq")
    return folder


@pytest.fixture(scope="module")
def teacher(learnt: Path) -> Iterator[Any]:
    loaded = registry.create(config.Teacher(name="vllm", model=str(learnt), **ENGINE))  # type: ignore[arg-type]
    loaded.load()
    yield loaded
    loaded.close()


def by_transformers(folder: Path, clip: Clip) -> tuple[str, float]:
    """What `transformers` alone says, token by token, and the mean log-probability."""
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    model: Any = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    tokenizer = WhisperTokenizer(str(folder), LANGUAGES[TEXTS[int(clip.utterance.id[1:])]], 0)
    audio_T = clip.samples_T.astype(np.float32) / 32768
    inputs = processor(audio_T, sampling_rate=16_000, return_tensors="pt")
    ids, total = list(tokenizer.prefix), 0.0
    while True:
        with torch.no_grad():
            logits_V = model(**inputs, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        logprob, token = logits_V.log_softmax(-1).max(-1)
        if int(token) == tokenizer.end_id:
            break
        ids.append(int(token))
        total += float(logprob)
    ids = ids[len(tokenizer.prefix) :]
    return tokenizer.decode(ids), total / len(ids)


def test_text_confidence_and_language_are_those_of_transformers(teacher: Any, learnt: Path) -> None:
    for clip, result in zip(CLIPS, teacher.transcribe_batch(CLIPS), strict=True):
        text, mean_logprob = by_transformers(learnt, clip)
        assert result.text == text
        assert result.mean_logprob == pytest.approx(mean_logprob, abs=1e-3)
    assert {result.text: result.language for result in teacher.transcribe_batch(CLIPS)} == LANGUAGES
    assert {(result.finish, result.error, result.words) for result in teacher.transcribe_batch(CLIPS)} == {
        ("stop", None, ())
    }


def test_each_clip_is_transcribed_in_the_language_of_its_manifest(teacher: Any) -> None:
    def languages(*names: str | None) -> list[str]:
        clips = [
            Clip(utterance=replace(CLIPS[0].utterance, info=UtteranceInfo(language=name)), samples_T=CLIPS[0].samples_T)
            for name in names
        ]
        return [result.language for result in teacher.transcribe_batch(clips)]

    detected = LANGUAGES[TEXTS[0]]
    assert languages("german", "fr-FR", None, "klingon", "eng") == ["de", "fr", detected, detected, "en"]


def test_a_thousand_clips_come_back_in_order_and_a_poisoned_one_is_a_row(teacher: Any) -> None:
    alone = teacher.transcribe_batch(CLIPS)
    clips = [CLIPS[i % 2] for i in range(1000)]
    clips[10] = clip_of(np.zeros(0, np.int16))
    clips[20] = clip_of(np.zeros(31 * 16_000, np.int16))
    clips[30] = Clip(utterance=CLIPS[0].utterance, samples_T=np.zeros((2, 2, 2), np.int16))  # no audio at all
    results = teacher.transcribe_batch(clips)
    assert [i for i, result in enumerate(results) if result.error] == [10, 20, 30]
    assert "30 s" in results[20].error
    assert results[30].error.startswith("vLLM: ")
    assert all(result.text == alone[i % 2].text for i, result in enumerate(results) if not result.error)
    right = [result for i, result in enumerate(results) if not result.error and i % 2]
    assert [result.mean_logprob for result in right] == pytest.approx([alone[1].mean_logprob] * len(right), abs=1e-3)


def test_only_a_few_more_requests_than_the_batch_holds_are_in_memory_at_once(
    teacher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    generate = teacher._generate

    async def counted(*args: Any) -> Any:
        at_once.append(teacher._engine.output_processor.get_num_unfinished_requests())
        return await generate(*args)

    monkeypatch.setattr(teacher, "_generate", counted)
    assert all(result.error is None for result in teacher.transcribe_batch(CLIPS * 50))
    assert ENGINE["max_num_seqs"] < max(at_once) <= 2 * ENGINE["max_num_seqs"]  # type: ignore[operator]


def test_two_chunks_are_transcribed_at_once(teacher: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(teacher.transcribe_batch, [CLIPS * 8, CLIPS[::-1] * 8]))
    assert [result.text for result in results[0]] == [*LANGUAGES] * 8
    assert [result.text for result in results[1]] == [*LANGUAGES][::-1] * 8
    figures = teacher.figures()
    assert (figures.requests_running or 0) > 1
    assert 0 < (figures.kv_cache_ratio or 0) <= 1
    assert (figures.tokens_per_second or 0) > 0


def test_a_worker_of_a_cluster_labels_with_it(learnt: Path, tmp_path: Path) -> None:
    spoken = np.concatenate([clip.samples_T for clip in CLIPS])
    (tmp_path / "a.wav").write_bytes(codec.encode(spoken, "wav"))
    cut = len(CLIPS[0].samples_T) // 16
    spans = [(0, cut), (cut, len(spoken) // 16)] * 60
    common: dict[str, Any] = {"recording_id": "r", "uri": str(tmp_path / "a.wav")}
    rows = [Utterance(id=f"u{i:03}", start_ms=start, end_ms=end, **common) for i, (start, end) in enumerate(spans)]
    work = Store(str(tmp_path / "work"))
    work.create("utterances/t/0.parquet", tables.to_parquet(rows, Utterance))
    task = label.task(config.Teacher(name="vllm", model=str(learnt), **ENGINE))  # type: ignore[arg-type]
    cfg = config.Engine(name="ray", chunk=20, workers=1, teachers=1)
    try:
        with StepMeter("label", None, "utterances") as meter:
            label.label(work, "utterances/t", task, cfg, read_utterances.reading(config.Config()), meter)
    finally:
        engine.shutdown()
    labels = {row.utterance_id: row for row in tables.read(work, task.prefix, Label)}
    assert [labels[row.id].text for row in rows] == [*LANGUAGES] * 60
    assert all(row.mean_logprob is not None and row.language in LANGUAGES.values() for row in labels.values())


def test_the_engine_gets_its_settings_and_the_answers_theirs(learnt: Path) -> None:
    options: dict[str, Any] = {
        "language": "de",
        "max_tokens": 2,
        "max_model_len": 24,
        "max_num_batched_tokens": 2048,
        "seed": 7,
    }
    options["engine"] = {"enable_prefix_caching": False, "limit_mm_per_prompt": {"image": 0}}
    teacher: Any = registry.create(config.Teacher(name="vllm", model=str(learnt), **(ENGINE | options)))  # type: ignore[arg-type]
    teacher.load()
    try:
        engine_config = teacher._engine.vllm_config
        assert (engine_config.model_config.max_model_len, engine_config.model_config.seed) == (24, 7)
        assert engine_config.model_config.dtype == torch.float32
        assert not engine_config.cache_config.enable_prefix_caching
        assert engine_config.model_config.multimodal_config.get_limit_per_prompt("audio") == 1
        assert engine_config.model_config.multimodal_config.get_limit_per_prompt("image") == 0
        assert engine_config.model_config.enforce_eager
        assert not engine_config.model_config.trust_remote_code
        assert (engine_config.scheduler_config.max_num_seqs, engine_config.scheduler_config.max_num_batched_tokens) == (
            16,
            2048,
        )
        results: list[Transcription] = teacher.transcribe_batch(CLIPS)
    finally:
        teacher.close()
    assert {(result.finish, result.num_tokens, result.language) for result in results} == {("length", 2, "de")}


def test_an_option_that_the_installed_engine_does_not_have_is_refused_before_the_model_is_loaded() -> None:
    pytest.importorskip("vllm")
    teacher = registry.create(config.Teacher(name="vllm", model="org/none", engine={"kv_cache_dtyp": "fp8"}))  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="`kv_cache_dtyp`") as caught:
        teacher.load()
    assert "`kv_cache_dtype`" in caught.value.fix


def test_a_whisper_of_english_alone_takes_no_other_language(learnt: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(learnt, tmp_path / "english")
    generation = json.loads((folder / "generation_config.json").read_text()) | {"is_multilingual": False}
    del generation["_from_model_config"]  # transformers would leave out what a model's own configuration cannot have
    (folder / "generation_config.json").write_text(json.dumps(generation))
    options: dict[str, Any] = {"model": str(folder), "language": "de", **ENGINE}
    with pytest.raises(ConfigError, match=r"`teacher\.language` is `de`"):
        registry.create(config.Teacher(name="vllm", **options)).load()


def test_a_model_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    with pytest.raises(TeacherError, match="cannot load"):
        registry.create(config.Teacher(name="vllm", model=str(tmp_path))).load()  # type: ignore[call-arg]


@pytest.fixture
def server(learnt: Path) -> Iterator[str]:
    """vLLM's own server on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items() if value is not True]
    flags += ["--enforce-eager", "--served-model-name", "tones"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(learnt), "--port", str(port)]
    environment = os.environ | {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.Popen([*command, "--host", "127.0.0.1", *flags], env=environment)
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


def test_its_own_server_answers_the_teacher_openai(server: str, learnt: Path) -> None:
    options = {"base_url": server, "model": "tones", "language": "en", "concurrency": 8}
    teacher: Any = registry.create(config.Teacher(name="openai", **options))  # type: ignore[arg-type]
    teacher.load()
    results = teacher.transcribe_batch([CLIPS[0], clip_of(np.zeros(0, np.int16)), *[CLIPS[0]] * 100])
    until(lambda: teacher.figures() is not None)
    assert teacher.figures().requests_running is not None
    assert teacher.figures().kv_cache_ratio is not None
    teacher.close()
    assert {result.text for result in results if not result.error} == {TEXTS[0]}
    assert [i for i, result in enumerate(results) if result.error] == [1]
    other: Any = registry.create(config.Teacher(name="openai", **(options | {"model": "nobody"})))  # type: ignore[arg-type]
    other.load()
    with pytest.raises(TeacherError) as caught:
        other.transcribe_batch(CLIPS[:1])
    assert "nobody" in caught.value.why
    other.close()
