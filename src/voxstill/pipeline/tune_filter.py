"""filter --tune: propose thresholds of the filter from the WER of labels that have a human text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import REFERENCE, ErrorCounts, Label, Utterance, audio_hash
from voxstill.evaluation.recognition import hidden_texts
from voxstill.filtering import tuning
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import Confidences
from voxstill.filtering.verdicts import SPLITS
from voxstill.labelling import label_figures
from voxstill.pipeline.filter import measured_labels
from voxstill.pipeline.marks import marks_children
from voxstill.scoring import words
from voxstill.storage import corrections, manifest, tables, workdir
from voxstill.storage.arrays import arrow_array, numpy_array
from voxstill.storage.corrections import Correction
from voxstill.storage.figures import LabelFigures, ScoreFigures
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer

if TYPE_CHECKING:
    import pyarrow as pa


@marks_children("filter")
def tune(cfg: Config) -> tuning.TuneResult:
    """What each rule and option keeps, how wrong that is, and what is proposed; no verdict is made or changed.

    Judged by texts of the manifest, of any split, and of `evaluate.texts`, and by judgements in
    `voxstill explore`; DataError if there are none, or where they are what was learnt from.
    """
    import pyarrow as pa

    labels, measured = measured_labels(cfg)
    if label_figures.are_human_texts(labels):
        raise DataError(
            "labels that are the human texts cannot be evaluated with them",
            code="nothing-to-judge",
            why="the teacher is `reference`",
            fix="label with another teacher first",
        )
    work = Store(cfg.work)
    prefix = workdir.prefix("scores", measured.recipe)
    texts, judged = hidden_texts(cfg), _judged(work, measured)
    known_ids = [*texts, *judged]
    logprobs, kept, num = [np.zeros(0)], [tables.schema(Score).empty_table()], 0
    for part in tables.columns(work, manifest.parts(work, prefix), Score):  # of a million labels few have a text
        num += len(part)
        logprobs.append(numpy_array(part["mean_logprob"])[np.isin(numpy_array(part["split"]), SPLITS)])
        has_text_N = ~np.isnan(numpy_array(part["reference_words"]).astype(float))
        kept.append(part.filter(has_text_N | np.isin(numpy_array(part["utterance_id"]), known_ids)))
    scores = _with_hidden(cfg, labels, pa.concat_tables(kept), texts, judged)
    known = scores.filter(np.asarray(numpy_array(scores["reference_words"]) > 0))
    if not len(known):
        raise DataError(
            "no label can be compared with a human text",
            code="nothing-to-judge",
            why=f"{num:,} labels have scores, but none of their utterances has a human text",
            fix="give the texts of some utterances in the manifest or by `evaluate.texts`, or judge some labels with "
            f"`voxstill explore {work.root} --edit`: a hundred are enough to start",
        )
    return tuning.tune_thresholds(known, cfg.filter, Confidences(np.concatenate(logprobs)))


def _judged(work: Store, measured: ScoreFigures) -> dict[str, Correction]:
    """Judgements of utterances whose audio is still the same."""
    import pyarrow.compute as pc

    known = corrections.latest(work)
    judged: dict[str, Correction] = {}
    if not known:
        return judged
    wanted = arrow_array(list(known), tables.schema(Utterance).field("id").type)
    names = ("id", "recording_id", "channel", "start_ms", "end_ms")
    keys = manifest.parts(work, workdir.prefix("utterances", measured.utterances))
    for part in tables.columns(work, keys, Utterance, names):
        rows = part.filter(pc.is_in(part["id"], value_set=wanted))
        for id_, *stretch in zip(*(rows[name].to_pylist() for name in names), strict=True):
            if known[id_].audio == audio_hash(*stretch):
                judged[id_] = known[id_]
    return judged


def _with_hidden(
    cfg: Config, labels: LabelFigures, scores: pa.Table, texts: Mapping[str, str], judged: Mapping[str, Correction]
) -> pa.Table:
    """The scores, with the errors against texts that only `evaluate.texts` knows, and against judgements."""
    import pyarrow as pa

    if not texts and not judged:
        return scores
    normalize, work = normalizer(cfg.evaluate.normalizer), Store(cfg.work)
    counted: dict[str, ErrorCounts] = {}
    keys = manifest.parts(work, workdir.prefix("labels", labels.recipe))
    names = ("utterance_id", "text", "teacher")
    for part in tables.columns(work, keys, Label, names):
        for id_, text, teacher in zip(*(part[name].to_pylist() for name in names), strict=True):
            if id_ in counted or teacher.startswith(REFERENCE):  # of a supervised utterance
                continue
            if id_ in texts:
                counted[id_] = words.wer([(normalize(texts[id_]), normalize(text))])
            elif id_ in judged and (counts := _errors(judged[id_], text, normalize)) is not None:
                counted[id_] = counts
    for name, field in (("reference_words", "reference"), ("errors", "errors")):
        column = [
            known if known is not None or id_ not in counted else getattr(counted[id_], field)
            for id_, known in zip(scores["utterance_id"].to_pylist(), scores[name].to_pylist(), strict=True)
        ]
        scores = scores.set_column(scores.column_names.index(name), name, pa.array(column, pa.int64()))
    return scores


def _errors(correction: Correction, text: str, normalize: Callable[[str], str]) -> ErrorCounts | None:
    """The errors of a label by a judgement: all words of one that was judged wrong, as it is not known which.

    None if another label was judged wrong.
    """
    if correction.truth is not None:
        return words.wer([(normalize(correction.truth), normalize(text))])
    if correction.label != text:
        return None
    return ErrorCounts(substitutions=max(1, len(normalize(text).split())))
