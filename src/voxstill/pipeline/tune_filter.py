"""filter --tune: propose thresholds of the filter from the WER of labels that have a human text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Label
from voxstill.core.result import Result
from voxstill.evaluation.recognition import hidden_texts
from voxstill.filtering import tuning
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import Confidences
from voxstill.filtering.verdicts import SPLITS
from voxstill.labelling import label
from voxstill.pipeline.filter import measured_labels
from voxstill.scoring import words
from voxstill.storage import tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer

_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult(Result):
    """What each rule and threshold keeps, how wrong that is, and what is proposed."""

    labels: int
    words: int
    wer: float | None
    rules: Sequence[Mapping[str, Any]]
    options: Sequence[Mapping[str, Any]]
    as_set: Mapping[str, Any]
    proposed: Mapping[str, float]
    as_proposed: Mapping[str, Any]

    def to_text(self) -> str:
        """A line for each rule, the curve of `keep_share`, and the proposal."""
        return picture(self.to_dict())


def tune(cfg: Config) -> TuneResult:
    """What each rule and option keeps, how wrong that is, and what is proposed; no verdict is made or changed.

    Judged by texts of the manifest, of any split, and of `evaluate.texts`; DataError where there are none, or where
    they are what was learnt from.
    """
    import pyarrow as pa

    labels, measured = measured_labels(cfg)
    if label.are_human_texts(labels):
        raise DataError(
            "labels that are the human texts cannot be judged by them",
            why="the teacher is `reference`",
            fix="label with another teacher first",
        )
    work = Store(cfg.work)
    prefix = workdir.prefix("scores", measured.recipe)
    texts = hidden_texts(cfg)
    logprobs, kept, num = [np.zeros(0)], [tables.schema(Score).empty_table()], 0
    for part in tables.columns(work, tables.parts(work, prefix), Score):  # of a million labels few have a text
        num += len(part)
        logprobs.append(part["mean_logprob"].to_numpy()[np.isin(part["split"].to_numpy(), SPLITS)])
        has_text_N = ~np.isnan(part["reference_words"].to_numpy().astype(float))
        kept.append(part.filter(has_text_N | np.isin(part["utterance_id"].to_numpy(), list(texts))))
    scores = _with_hidden(cfg, labels, pa.concat_tables(kept), texts)
    known = scores.filter(np.asarray(scores["reference_words"].to_numpy() > 0))
    if not len(known):
        raise DataError(
            "no label can be held against a human text",
            why=f"{num:,} labels have scores, and nobody wrote down what was said in any of them",
            fix="give the texts of some utterances in the manifest or by `evaluate.texts`: a hundred are a beginning",
        )
    return TuneResult(**tuning.tune_thresholds(known, cfg.filter, Confidences(np.concatenate(logprobs))))


def _with_hidden(cfg: Config, labels: LabelFigures, scores: Any, texts: Mapping[str, str]) -> Any:
    """The scores, with the errors against texts that only `evaluate.texts` knows."""
    import pyarrow as pa

    if not texts:
        return scores
    alike, work = normalizer(cfg.evaluate.normalizer), Store(cfg.work)
    counted = {}
    keys = tables.parts(work, workdir.prefix("labels", labels.recipe))
    for part in tables.columns(work, keys, Label, ("utterance_id", "text")):
        for id_, text in zip(part["utterance_id"].to_pylist(), part["text"].to_pylist(), strict=True):
            if id_ in texts and id_ not in counted:
                counted[id_] = words.wer([(alike(texts[id_]), alike(text))])
    for name, field in (("reference_words", "reference"), ("errors", "errors")):
        column = [
            known if known is not None or id_ not in counted else getattr(counted[id_], field)
            for id_, known in zip(scores["utterance_id"].to_pylist(), scores[name].to_pylist(), strict=True)
        ]
        scores = scores.set_column(scores.column_names.index(name), name, pa.array(column, pa.int64()))
    return scores


def picture(found: dict[str, Any]) -> str:
    """Format the figures as text for a terminal."""
    lines = [
        f"{found['labels']:,} labels have a human text of {found['words']:,} words; {_percent(found['wer'])} of those "
        "are wrong",
        "",
        f"{'rule, alone':<16}{'dropped':>9}{'WER of these':>14}{'kept':>8}{'WER of kept':>13}",
    ]
    for row in (*found["rules"], {"rule": "all, as set", **found["as_set"]}):
        lines.append(
            f"{row['rule']:<16}{row['dropped']:>9,}{_percent(row['dropped_wer']):>14}{_percent(row['kept']):>8}"
            f"{_percent(row['wer']):>13}"
        )
    curve = next(each["points"] for each in found["options"] if each["option"] == "keep_share")
    if curve:
        lines += ["", f"{'filter.keep_share':<20}{'WER of what is kept'}"]
        most = max(each["wer"] or 0.0 for each in curve) or 1.0
        for each in curve:
            rate = each["wer"] or 0.0
            bar = "█" * max(round(_BAR * rate / most), rate > 0)
            lines.append(f"{each['value']:<20}{bar} {_percent(each['wer'])}")
    lines.append("")
    if not found["proposed"]:
        return "\n".join([*lines, "nothing is proposed: no threshold drops labels that are bad enough"])
    as_proposed = found["as_proposed"]
    lines.append(f"proposed, keeping {_percent(as_proposed['kept'])} with a WER of {_percent(as_proposed['wer'])}:")
    lines += [f"  --set {name}={value}" for name, value in found["proposed"].items()]
    return "\n".join([*lines, "These labels chose it: on others it will do a little worse."])


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"
