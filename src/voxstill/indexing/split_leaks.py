"""What training and a held-out split have in common: stretches of one recording, and speakers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from voxstill.core.records import Split, Utterance


class SplitLeaks:
    """Counts recordings of which training and a held-out split share audio, and the speakers that are in both.

    `has_unknown_speakers` is set by the caller, where chance has drawn the split of a recording.
    """

    def __init__(self) -> None:
        self.has_unknown_speakers = False
        self._shared: list[str] = []  # recordings; threads see several at once, and none is lost
        self._splits: dict[str, set[Split]] = {}

    def see(self, utterances: Sequence[Utterance]) -> None:
        """Look at all utterances of a recording."""
        for utterance in utterances:
            if utterance.info.speaker is not None:
                self._splits.setdefault(utterance.info.speaker, set()).add(utterance.split)
        if len({utterance.split for utterance in utterances}) > 1 and _share_audio(utterances):
            self._shared.append(utterances[0].recording_id)

    def warnings(self) -> list[str]:
        """A sentence for each of them that there is."""
        speakers = sorted(speaker for speaker, splits in self._splits.items() if "train" in splits and len(splits) > 1)
        sentences = []
        if self.has_unknown_speakers:
            sentences.append(
                "the speakers of some recordings are not known, so the splits may share voices and error rates "
                "may look too good; a manifest with `speaker` or `split` prevents that"
            )
        if self._shared:
            sentences.append(
                f"stretches of {len(self._shared):,} recordings, such as `{self._shared[0]}`, are in training and "
                "overlap with held-out ones: test data is used in training"
            )
        if speakers:
            sentences.append(
                f"{len(speakers):,} speakers, such as `{speakers[0]}`, are in training and in a held-out split: "
                "error rates look better than for new speakers"
            )
        return sentences


def _share_audio(utterances: Iterable[Utterance]) -> bool:
    """Whether a stretch of training overlaps with one of another split, on one channel."""

    def channel(utterance: Utterance) -> int:
        return -1 if utterance.channel is None else utterance.channel

    for _, of_channel in groupby(sorted(utterances, key=channel), key=channel):
        in_order = sorted(of_channel, key=lambda utterance: utterance.start_ms)
        trained_to = held_out_to = 0
        for utterance in in_order:
            if utterance.split == "train":
                if utterance.start_ms < held_out_to:
                    return True
                trained_to = max(trained_to, utterance.end_ms)
            else:
                if utterance.start_ms < trained_to:
                    return True
                held_out_to = max(held_out_to, utterance.end_ms)
    return False
