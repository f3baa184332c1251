"""The corpus as the loop sees it: nothing is planned that CTC could not learn at any tempo."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from tones import PLAIN, TEXTS, write_shards
from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.config import Augment, Cache, Config, Plan
from voxstill.core.errors import ConfigError
from voxstill.core.records import Batch
from voxstill.nn import augment_features
from voxstill.nn.frontends import LogMelFrontend
from voxstill.nn.log_mel import output_frames
from voxstill.nn.mel import NUM_MELS
from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.data import Corpus
from voxstill.text import tokenizer
from voxstill.text.normalize import normalizer


def corpus_of(store: Store, vocabulary: tokenizer.Vocabulary, cfg: Config) -> Corpus:
    folder, frontend = Path(store.root) / "corpus", LogMelFrontend(cfg.augment)
    return Corpus(store, "s", folder, vocabulary, normalizer("basic"), frontend, cfg, rank=0, ranks=1)


def test_every_planned_utterance_is_alignable_at_its_tempo_and_nothing_else_is_dropped(tmp_path: Path) -> None:
    store, pairs, rows = Store(str(tmp_path)), [], {}
    for num_samples in range(2560 - 640, 6000, 159):
        for num_tokens in range(1, 9):
            text = "abcdefgh"[:num_tokens]
            sample = Sample(
                id=f"{num_samples}-{num_tokens}",
                duration_ms=pcm.samples_to_ms(num_samples),
                num_samples=num_samples,
                text=text,
            )
            rows[sample.id] = (num_samples, num_tokens)
            pairs.append((sample, codec.encode(np.ones(num_samples, np.int16), "wav")))
    file = io.BytesIO()
    written = shard_format.write(file, pairs)
    store.create("s/00000.tar", file.getvalue())
    store.create("s/00000.parquet", tables.to_parquet(written, Sample))
    shard_format.finish(store, "s", ShardFigures(shards=1, utterances=len(written)))
    tempo = 0.1
    cfg = Config(augment=Augment(tempo=tempo), plan=Plan(budget_ms=5000))
    corpus = corpus_of(store, tokenizer.train(["abcdefgh"], "character", 0), cfg)
    changed = set()
    for epoch in range(3):
        plan = corpus.plan(epoch, ascending=False)
        assert plan.tempo_N is not None
        assert abs(plan.tempo_N - 1).max() <= tempo + 1e-6
        num_frames = 0
        for row in plan.order.tolist():
            num_samples, num_tokens = rows[written[row].id]
            mel_BFD, frames_B = torch.zeros(1, num_samples // 160, NUM_MELS), torch.tensor([num_samples // 160])
            _, stretched_B = augment_features.stretch(mel_BFD, frames_B, torch.from_numpy(plan.tempo_N[[row]]))
            assert int(output_frames(stretched_B)) >= num_tokens, written[row].id
            num_frames += int(output_frames(stretched_B))
        assert plan.step_frames.sum() == num_frames
        learnable = [row for row, (samples, tokens) in rows.items() if output_frames(samples // 160) >= tokens]
        assert sorted(written[row].id for row in plan.order) == sorted(learnable)
        assert 0 < len(learnable) < len(rows)
        changed.add(plan.tempo_N.tobytes())
    assert len(changed) == 3


def as_read(_: int, batches: list[Batch]) -> list[Batch]:
    return batches


def test_the_steps_of_an_epoch_hold_every_utterance_once_and_go_on_from_any_step(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_shards(store, "s", {"train": 17, "dev": 3})
    cfg = Config.model_validate({"plan": {"budget_ms": 5000, "batches_per_step": 2}, "train": {"loader_workers": 0}})
    corpus = corpus_of(store, tokenizer.train(TEXTS, "word", 9), cfg)
    plan = corpus.plan(0, ascending=True)
    assert corpus.plan(0, ascending=True) is plan  # three places ask for the first one
    steps = list(corpus.steps(plan, 0, as_read))
    ids = [id_ for batches in steps for batch in batches for id_ in batch.ids]
    assert len(ids) - plan.num_repeated == 17
    assert set(ids) == {f"train/{i}" for i in range(17)}
    rest = list(corpus.steps(plan, 2, as_read))
    assert [[batch.ids for batch in batches] for batches in rest] == [
        [batch.ids for batch in batches] for batches in steps[2:]
    ]
    assert corpus.replaced() == 0


def test_a_training_that_goes_on_reads_its_plans_and_makes_them_anew_with_other_options(tmp_path: Path) -> None:
    store, vocabulary = Store(str(tmp_path)), tokenizer.train(TEXTS, "word", 9)
    write_shards(store, "s", {"train": 40, "dev": 3})
    cfg = Config.model_validate({"plan": {"budget_ms": 5000, "batches_per_step": 2}, "augment": {"tempo": 0.1}})

    def hashes(cfg: Config) -> list[str]:
        corpus = corpus_of(store, vocabulary, cfg)
        return [corpus.plan(epoch, ascending=epoch == 0).sha256() for epoch in (0, 2)]

    def kept() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "corpus").glob("*.plan")}

    begun, files = hashes(cfg), kept()
    assert sorted(files) == ["epoch.plan", "first.plan"]
    assert (hashes(cfg), kept()) == (begun, files)
    for section, option, value in (("plan", "budget_ms", 6000), ("augment", "tempo", 0.2), (None, "seed", 1)):
        changes = {section: {**getattr(cfg, section).model_dump(), option: value}} if section else {option: value}
        other = Config.model_validate({**cfg.model_dump(exclude_unset=True), **changes})
        assert not set(hashes(other)) & set(begun), option
        assert not set(kept().values()) & set(files.values()), option
        assert hashes(cfg) == begun, option
        files = kept()


def test_a_corpus_without_a_dev_split_has_no_dev_batches(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_shards(store, "s", {"train": 3})
    corpus = corpus_of(store, tokenizer.train(TEXTS, "word", 9), Config())
    assert list(corpus.dev_batches(lambda: None)) == []
    task = CtcTask(tokenizer.train(TEXTS, "word", 9), Config().train, PLAIN)
    assert task.validate(torch.nn.Identity(), corpus.dev_batches(lambda: None)) is None


@pytest.mark.parametrize("name", ["file", "file/cache"])
def test_a_cache_folder_that_cannot_be_used_is_refused_where_shards_are_far_away(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    cfg = Config(cache=Cache(folder=str(tmp_path / name)))
    vocabulary = tokenizer.train(TEXTS, "word", 9)
    for store in (Store(str(tmp_path / "near")), Store(f"memory://{tmp_path.name}")):
        write_shards(store, "s", {"train": 3})

    def opened(root: str) -> Corpus:
        normalize, frontend = normalizer("basic"), LogMelFrontend(cfg.augment)
        return Corpus(Store(root), "s", tmp_path / "corpus", vocabulary, normalize, frontend, cfg, rank=0, ranks=1)

    opened(str(tmp_path / "near"))  # needs none
    with pytest.raises(ConfigError, match=r"`cache\.folder`") as caught:
        opened(f"memory://{tmp_path.name}")
    assert caught.value.fix


def test_dev_batches_come_with_their_references_and_the_counts_of_the_whole_split(tmp_path: Path) -> None:
    store, beats = Store(str(tmp_path)), list[int]()
    write_shards(store, "s", {"train": 3, "dev": 5})
    vocabulary = tokenizer.train(TEXTS, "word", 9)
    batches = list(corpus_of(store, vocabulary, Config()).dev_batches(lambda: beats.append(1)))
    assert len(beats) == len(batches)
    assert sum(len(dev.batch.ids) for dev in batches) == 5
    for dev in batches:
        assert dev.context.num_utterances == 5
        assert dev.context.num_tokens == sum(int(other.batch.token_len_B.sum()) for other in batches)
        for text, ids, num in zip(dev.references, dev.batch.tokens_BU, dev.batch.token_len_B, strict=True):
            assert vocabulary.decode(ids[: int(num)].tolist()) == text


def test_the_texts_of_a_split_are_normalized(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_shards(store, "s", {"train": 3, "dev": 2})
    texts = list(Corpus.texts(store, "s", "dev", str.upper))
    assert len(texts) == 2
    assert all(text == text.upper() for text in texts)
