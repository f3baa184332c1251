"""Verdicts that keep nothing: the reason of most of them, and what to do about it."""

from __future__ import annotations

from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.filtering.rules import RULES, current_name
from voxstill.storage.figures import VerdictFigures
from voxstill.storage.store import Store


def warn(work: Store, verdicts: VerdictFigures) -> None:
    """Say in the log where these verdicts keep nothing."""
    if (error := _error(work, verdicts)) is not None:
        log.warning("filter: %s: %s; %s", error.what, error.why, error.fix)


def refuse(work: Store, verdicts: VerdictFigures) -> None:
    """DataError if these verdicts keep nothing: there is nothing to learn from."""
    if (error := _error(work, verdicts)) is not None:
        raise error


def _error(work: Store, verdicts: VerdictFigures) -> DataError | None:
    if verdicts.kept_utterances:
        return None
    what = f"the verdicts {verdicts.recipe} in `{work.root}` keep no utterance"
    if not verdicts.judged and verdicts.removed:
        why = f"all {verdicts.removed:,} utterances of the splits train and dev were removed"
        return DataError(
            what,
            code="nothing-kept",
            why=why,
            fix="index more audio, or delete the earlier shards: voxstill clean --yes",
        )
    if not verdicts.judged:
        why = "no utterance is of the splits train or dev, which are filtered"
        return DataError(what, code="nothing-kept", why=why, fix="check the splits of the source")
    former, num = max(verdicts.reasons.items(), key=lambda reason: reason[1])
    name = current_name(former)
    sentences = {rule.name: rule.why for rule in RULES}
    why = f"{num:,} of {verdicts.judged:,} are dropped as `{name}`"
    why += f" ({sentences[name]})" if name in sentences else ""
    return DataError(what, code="nothing-kept", why=why, fix=_fix(name, work))


def _fix(reason: str, work: Store) -> str:
    if reason == "wrong_language":
        return (
            "check `source.language` and `teacher.language`; if one of them was corrected, index and label in "
            "another work folder, as these labels were made with the earlier one"
        )
    if reason == "failed":
        return f"fix the cause, then run: voxstill label {work.root} --retry-failed"
    if reason == "disagreement":
        return (
            "raise `filter.max_disagreement`, or use another second teacher; with `rounds` that is the student of "
            "the previous round: train it longer"
        )
    return f"change the options of `filter`; to see all reasons, run: voxstill filter {work.root} --report filter.html"
