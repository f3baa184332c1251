"""filter --tune: propose thresholds of the filter from the WER of labels that have a human text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import REFERENCE, Label
from voxstill.evaluation.recognition import hidden_texts
from voxstill.filtering import tuning
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import Confidences
from voxstill.filtering.verdicts import SPLITS
from voxstill.labelling import label_figures
from voxstill.pipeline.filter import measured_labels
from voxstill.pipeline.marks import marks_children
from voxstill.scoring import words
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.arrays import numpy_array
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer

if TYPE_CHECKING:
    import pyarrow as pa


@marks_children("filter")
def tune(cfg: Config) -> tuning.TuneResult:
    """What each rule and option keeps, how wrong that is, and what is proposed; no verdict is made or changed.

    Judged by texts of the manifest, of any split, and of `evaluate.texts`; DataError where there are none, or where
    they are what was learnt from.
    """
    import pyarrow as pa

    labels, measured = measured_labels(cfg)
    if label_figures.are_human_texts(labels):
        raise DataError(
            "labels that are the human texts cannot be judged by them",
            why="the teacher is `reference`",
            fix="label with another teacher first",
        )
    work = Store(cfg.work)
    prefix = workdir.prefix("scores", measured.recipe)
    texts = hidden_texts(cfg)
    logprobs, kept, num = [np.zeros(0)], [tables.schema(Score).empty_table()], 0
    for part in tables.columns(work, manifest.parts(work, prefix), Score):  # of a million labels few have a text
        num += len(part)
        logprobs.append(numpy_array(part["mean_logprob"])[np.isin(numpy_array(part["split"]), SPLITS)])
        has_text_N = ~np.isnan(numpy_array(part["reference_words"]).astype(float))
        kept.append(part.filter(has_text_N | np.isin(numpy_array(part["utterance_id"]), list(texts))))
    scores = _with_hidden(cfg, labels, pa.concat_tables(kept), texts)
    known = scores.filter(np.asarray(numpy_array(scores["reference_words"]) > 0))
    if not len(known):
        raise DataError(
            "no label can be held against a human text",
            why=f"{num:,} labels have scores, and nobody wrote down what was said in any of them",
            fix="give the texts of some utterances in the manifest or by `evaluate.texts`: a hundred are a beginning",
        )
    return tuning.tune_thresholds(known, cfg.filter, Confidences(np.concatenate(logprobs)))


def _with_hidden(cfg: Config, labels: LabelFigures, scores: pa.Table, texts: Mapping[str, str]) -> pa.Table:
    """The scores, with the errors against texts that only `evaluate.texts` knows."""
    import pyarrow as pa

    if not texts:
        return scores
    alike, work = normalizer(cfg.evaluate.normalizer), Store(cfg.work)
    counted = {}
    keys = manifest.parts(work, workdir.prefix("labels", labels.recipe))
    names = ("utterance_id", "text", "teacher")
    for part in tables.columns(work, keys, Label, names):
        for id_, text, teacher in zip(*(part[name].to_pylist() for name in names), strict=True):
            if id_ in texts and id_ not in counted and not teacher.startswith(REFERENCE):  # of a supervised utterance
                counted[id_] = words.wer([(alike(texts[id_]), alike(text))])
    for name, field in (("reference_words", "reference"), ("errors", "errors")):
        column = [
            known if known is not None or id_ not in counted else getattr(counted[id_], field)
            for id_, known in zip(scores["utterance_id"].to_pylist(), scores[name].to_pylist(), strict=True)
        ]
        scores = scores.set_column(scores.column_names.index(name), name, pa.array(column, pa.int64()))
    return scores
