"""Exact borders of turns: a mixture of Gaussians of each speaker's cepstra, and the best path through them.

Windows of an embedding are longer than a second, so a change of speaker is known to half of that. The spectrum of 10 ms
frames, modelled within the recording, tells it closer (a hidden Markov model that is trained on its own first labels).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.diarization.clustering import kmeans

STEP_FRAMES = 5
"""Frames of 10 ms in a step: the resolution of turns."""
NUM_CEPSTRA = 19
_ROUNDS = 2
_CHANGE_COST = 30.0
"""What a change of speaker costs, in log-likelihood: a third of a second must fit the other one clearly better."""
_MAX_GAUSSIANS, _GAUSSIAN_FRAMES, _TRAINING_FRAMES, _FEWEST_FRAMES = 8, 100, 1500, 50
_KMEANS_STARTS = 2
_FRAMES_AT_ONCE = 1 << 16
_FLOOR = 1e-8

Steps = list[NDArray[np.int64]]
"""The speaker of each step of each stretch of speech."""


def cepstra(mel_power_FD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cepstra 1 to 19 (F, 19) of mel power (F, D)."""
    num_mels = mel_power_FD.shape[1]
    angle_DC = np.pi * (np.arange(num_mels)[:, None] + 0.5) * np.arange(1, NUM_CEPSTRA + 1) / num_mels
    return np.asarray(np.log(mel_power_FD + _FLOOR) @ (np.cos(angle_DC) / num_mels), np.float32)


def resegment(frames: Sequence[NDArray[np.float32]], steps: Steps) -> Steps:
    """Move the borders of speakers within each stretch, of which `frames` are the cepstra (F, 19).

    A stretch has a step for each `STEP_FRAMES` frames or part of them. Stretches stay as they are where fewer than two
    speakers have enough frames.
    """
    if not frames:
        return steps
    all_FC = np.concatenate(frames)
    all_FC -= all_FC.mean(axis=0)  # in place: hours of frames are hundreds of megabytes
    all_FC /= all_FC.std(axis=0) + np.float32(1e-6)
    ends = np.cumsum([len(frame_FC) for frame_FC in frames])
    for _ in range(_ROUNDS):
        label_F = np.concatenate([_of_frames(step_S, len(part)) for step_S, part in zip(steps, frames, strict=True)])
        speakers, count_K = np.unique(label_F, return_counts=True)
        speakers = speakers[count_K > _FEWEST_FRAMES]
        if len(speakers) < 2:
            break
        score_FK = np.stack([_log_likelihood(all_FC[label_F == speaker], all_FC) for speaker in speakers], axis=1)
        steps = [speakers[_best_path(_summed(part_FK))] for part_FK in np.split(score_FK, ends[:-1])]
    return steps


def _of_frames(step_S: NDArray[np.int64], num_frames: int) -> NDArray[np.int64]:
    return np.repeat(step_S, STEP_FRAMES)[:num_frames]


def _log_likelihood(own_FC: NDArray[np.float32], all_FC: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-likelihood of all frames in a mixture of diagonal Gaussians of a speaker's own, found by k-means."""
    own_FC = own_FC[:: max(1, len(own_FC) // _TRAINING_FRAMES)]
    num = min(_MAX_GAUSSIANS, max(1, len(own_FC) // _GAUSSIAN_FRAMES))
    label_F, score_F = kmeans(own_FC, num, _KMEANS_STARTS), np.full(len(all_FC), -np.inf, np.float32)
    members = [own_FC[label_F == gaussian] for gaussian in range(num)]
    for start in range(0, len(all_FC), _FRAMES_AT_ONCE):
        part_FC, part_F = (array[start : start + _FRAMES_AT_ONCE] for array in (all_FC, score_F))
        square_FC = np.square(part_FC)
        for members_FC in members:
            if len(members_FC) < 5:
                continue
            mean_C, variance_C = members_FC.mean(axis=0), members_FC.var(axis=0) * 0.8 + 0.2
            distance_F = square_FC @ (1 / variance_C) - 2 * part_FC @ (mean_C / variance_C)
            constant = (np.square(mean_C) / variance_C + np.log(variance_C)).sum()
            np.logaddexp(part_F, np.log(len(members_FC) / len(own_FC)) - 0.5 * (distance_F + constant), out=part_F)
    return score_F


def _summed(score_FK: NDArray[np.float32]) -> NDArray[np.float32]:
    """The log-likelihood of each step (S, K)."""
    return np.add.reduceat(score_FK, np.arange(0, len(score_FK), STEP_FRAMES), axis=0)


def _best_path(score_SK: NDArray[np.float32]) -> NDArray[np.int64]:
    """The best path through the speakers of a stretch, each change of which has its cost (Viterbi)."""
    num_steps, num_speakers = score_SK.shape
    speaker_K, from_SK = np.arange(num_speakers), np.zeros((num_steps, num_speakers), np.int64)
    total_K = score_SK[0].astype(np.float64)
    for step in range(1, num_steps):
        best = int(total_K.argmax())
        changed = total_K[best] - _CHANGE_COST
        from_SK[step] = np.where(total_K >= changed, speaker_K, best)
        total_K = np.maximum(total_K, changed) + score_SK[step]
    path_S = np.zeros(num_steps, np.int64)
    path_S[-1] = total_K.argmax()
    for step in range(num_steps - 1, 0, -1):
        path_S[step - 1] = from_SK[step, path_S[step]]
    return path_S
