"""Embeddings of windows to speakers: clusters that are too small at first, joined until no two are of one voice.

Each block of a recording is divided by spectral clustering into more clusters than it has speakers. Clusters of all
blocks are then joined by the cosine of their centroids, and by how windows follow one another: parts of one voice
alternate with what is said, while a speaker stays for some seconds, whatever the channel does to cosines. A cluster
that lies between two others holds windows in which one speaker follows another, and is no speaker. Choosing the number
by the eigengap alone (Park et al. 2019) was right half as often; docs/diarization.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAME_VOICE = 0.80
"""How alike two clusters are that are one speaker: the cosine of their centroids, which is 0.9 for halves of one voice,
below 0.80 for two voices in wide-band audio and up to 0.92 over a telephone, less what their persistence counts."""
_MIXTURE = 0.82
"""Cosine of a centroid to the nearest combination of two others above which its windows are of both."""
_MAX_BLOCK_CLUSTERS, _CLUSTER_WINDOWS = 12, 5
_PERSISTENCE_WEIGHT = 0.1
"""Weight of the persistence of two clusters against their cosine."""
_FEWEST_PAIRS, _PAIRS_OF_DOUBT = 4, 6
"""Of windows that follow one another: fewer say nothing, and so many count half."""
_FEWEST_WINDOWS = 4
"""A cluster of fewer windows is no speaker."""
_NEIGHBOUR_SHARE = 0.06
_KMEANS_STARTS, _KMEANS_ROUNDS = 8, 50

Points = NDArray[np.float32]
Labels = NDArray[np.int64]
Pairs = NDArray[np.int64]


def speaker_labels(
    blocks: Sequence[Points], pair_P2: Pairs, max_speakers: int, num_speakers: int | None = None
) -> list[NDArray[np.int64]]:
    """The speaker of each embedding (N, E) of each block, from 0 on; `num_speakers` where their number is known.

    `pair_P2` are the indices, counted through all blocks, of two windows of which the second follows the first within
    one stretch of speech, and has none of its samples. A block takes memory with the square of its embeddings, and all
    of them together only their own.
    """
    clusters = [_divide(points_NE) for points_NE in blocks]
    first = np.cumsum([0, *(int(cluster_N.max(initial=-1)) + 1 for cluster_N in clusters)])
    label_N = np.concatenate([cluster_N + start for cluster_N, start in zip(clusters, first[:-1], strict=True)])
    points_NE = np.concatenate(blocks)
    if num_speakers is not None:
        label_N = _joined(points_NE, _without_few(points_NE, label_N), pair_P2, 2.0, num_speakers)
    else:
        for _ in range(2):
            label_N = _without_few(points_NE, _joined(points_NE, label_N, pair_P2, SAME_VOICE, max_speakers))
            label_N = _without_mixtures(points_NE, label_N)
        label_N = _without_few(points_NE, _joined(points_NE, label_N, pair_P2, SAME_VOICE, max_speakers))
    return np.split(label_N, np.cumsum([len(points_NE) for points_NE in blocks])[:-1])


def kmeans(
    points: NDArray[np.float32] | NDArray[np.float64], num_clusters: int, num_starts: int = _KMEANS_STARTS
) -> Labels:
    """The cluster of each point: k-means++ and Lloyd's rounds, the best of several starts, the same each time."""
    rng = np.random.default_rng(0)
    points_ND: NDArray[np.float64] = points.astype(np.float64)
    square_N: NDArray[np.float64] = np.square(points_ND).sum(axis=1)

    def distances(centre_KD: NDArray[np.float64]) -> NDArray[np.float64]:
        """Squares of distances (N, K), less the square of each point's length, which changes no order."""
        return np.asarray(np.square(centre_KD).sum(axis=1) - points_ND @ (2 * centre_KD.T))

    best_cost, best_N = np.inf, np.zeros(len(points_ND), np.int64)
    for _ in range(num_starts):
        chosen = [int(rng.integers(len(points_ND)))]
        nearest_N = np.full(len(points_ND), np.inf)
        for _ in range(num_clusters - 1):
            nearest_N = np.minimum(nearest_N, np.maximum(square_N + distances(points_ND[chosen[-1:]])[:, 0], 0.0))
            total = nearest_N.sum()
            chosen.append(int(rng.choice(len(points_ND), p=nearest_N / total)) if total > 0 else chosen[0])
        centre_KD, label_N = points_ND[chosen], np.full(len(points_ND), -1)
        for _ in range(_KMEANS_ROUNDS):
            before_N, label_N = label_N, distances(centre_KD).argmin(axis=1)
            if np.array_equal(before_N, label_N):
                break
            one_hot_KN = (label_N == np.arange(num_clusters)[:, None]).astype(np.float64)
            size_K = one_hot_KN.sum(axis=1, keepdims=True)
            centre_KD = np.where(size_K > 0, one_hot_KN @ points_ND / np.maximum(size_K, 1), centre_KD)
        to_NK = distances(centre_KD)
        if (cost := to_NK.min(axis=1).sum()) < best_cost:
            best_cost, best_N = cost, to_NK.argmin(axis=1)
    return best_N


@dataclass(frozen=True)
class _Clusters:
    """The clusters of points: names, sizes and centroids of unit length."""

    name_K: Labels
    size_K: Labels
    centroid_KE: NDArray[np.float64]

    @classmethod
    def of(cls, points_NE: Points, label_N: Labels) -> _Clusters:
        name_K, index_N, size_K = np.unique(label_N, return_inverse=True, return_counts=True)
        sum_KE = np.zeros((len(name_K), points_NE.shape[1]))
        np.add.at(sum_KE, index_N, points_NE)
        return cls(name_K, size_K, _unit(sum_KE))


def _divide(points_NE: Points) -> Labels:
    """More clusters than there are speakers, by the eigenvectors of the graph that joins each point to its nearest."""
    num = len(points_NE)
    num_clusters = min(_MAX_BLOCK_CLUSTERS, num // _CLUSTER_WINDOWS)
    if num_clusters <= 1:
        return np.zeros(num, np.int64)
    neighbours = max(3, int(num * _NEIGHBOUR_SHARE))
    nearest_NP = np.argsort(-(points_NE @ points_NE.T), axis=1, kind="stable")[:, :neighbours]
    joined_NN = np.zeros((num, num))
    np.put_along_axis(joined_NN, nearest_NP, 0.5, axis=1)
    joined_NN += joined_NN.T
    laplacian_NN = np.diag(joined_NN.sum(axis=1)) - joined_NN
    _, vector_NN = np.linalg.eigh(laplacian_NN)
    return kmeans(vector_NN[:, :num_clusters], num_clusters)


def _joined(points_NE: Points, label_N: Labels, pair_P2: Pairs, same_voice: float, most: int) -> Labels:
    """Join the two most alike clusters while they are alike enough, or there are more than `most`.

    How alike two are is the cosine of their centroids, less what speaks for a change of speaker.
    """
    clusters = _Clusters.of(points_NE, label_N)
    index_N, num = np.searchsorted(clusters.name_K, label_N), len(clusters.name_K)
    sum_KE = np.zeros((num, points_NE.shape[1]))
    np.add.at(sum_KE, index_N, points_NE)
    pair_KK = np.zeros((num, num))
    np.add.at(pair_KK, (index_N[pair_P2[:, 0]], index_N[pair_P2[:, 1]]), 1.0)
    pair_KK += pair_KK.T
    cosine_KK, name_K, joined_K = clusters.centroid_KE @ clusters.centroid_KE.T, clusters.name_K, np.arange(num)
    left_K = np.arange(num)
    while len(left_K) > 1:
        alike_KK = cosine_KK - _PERSISTENCE_WEIGHT * _persistence(pair_KK)
        np.fill_diagonal(alike_KK, -np.inf)
        one, other = sorted(divmod(int(alike_KK.argmax()), len(left_K)))
        if alike_KK[one, other] < same_voice and len(left_K) <= most:
            break
        joined_K[joined_K == left_K[other]] = left_K[one]
        sum_KE[one] += sum_KE[other]
        pair_KK[one] += pair_KK[other]
        pair_KK[:, one] += pair_KK[:, other]
        left_K, sum_KE = np.delete(left_K, other), np.delete(sum_KE, other, axis=0)
        pair_KK, cosine_KK = (np.delete(np.delete(of_KK, other, 0), other, 1) for of_KK in (pair_KK, cosine_KK))
        cosine_KK[one] = cosine_KK[:, one] = _unit(sum_KE) @ _unit(sum_KE[one])
    return name_K[joined_K[index_N]]


def _persistence(pair_KK: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much more often windows that follow one another stay within one of two clusters than by chance (K, K).

    It is Cohen's kappa: 1 where they always stay, 0 where they change as often as drawn ones; few pairs count less.
    `pair_KK` counts them in both directions.
    """
    within_K = np.diag(pair_KK)
    num_KK = (within_K[:, None] + within_K) / 2 + pair_KK
    share_KK = (within_K[:, None] + pair_KK) / np.maximum(2 * num_KK, 1)
    chance_KK = np.square(share_KK) + np.square(1 - share_KK)
    stays_KK = 1 - pair_KK / np.maximum(num_KK, 1)
    kappa_KK = (stays_KK - chance_KK) / np.maximum(1 - chance_KK, 1e-3)
    is_known_KK = (num_KK >= _FEWEST_PAIRS) & (chance_KK < 1 - 1e-3)
    return np.where(is_known_KK, kappa_KK * num_KK / (num_KK + _PAIRS_OF_DOUBT), 0.0)


def _without_few(points_NE: Points, label_N: Labels) -> Labels:
    """Give the windows of clusters that are too small to the nearest of the others; the largest always stays."""
    clusters = _Clusters.of(points_NE, label_N)
    stays_K = clusters.size_K >= min(_FEWEST_WINDOWS, clusters.size_K.max(initial=0))
    return _given_away(points_NE, label_N, clusters, stays_K)


def _without_mixtures(points_NE: Points, label_N: Labels) -> Labels:
    """Give away the windows of each cluster that lies between two larger ones, from the smallest on."""
    while True:
        clusters = _Clusters.of(points_NE, label_N)
        for cluster in np.argsort(clusters.size_K, kind="stable").tolist():
            larger_K = clusters.size_K >= clusters.size_K[cluster]
            larger_K[cluster] = False
            if _cosine_to_mixture(clusters.centroid_KE[cluster], clusters.centroid_KE[larger_K]) > _MIXTURE:
                stays_K = np.ones(len(larger_K), bool)
                stays_K[cluster] = False
                label_N = _given_away(points_NE, label_N, clusters, stays_K)
                break
        else:
            return label_N


def _cosine_to_mixture(centroid_E: NDArray[np.float64], other_KE: NDArray[np.float64]) -> float:
    """Cosine of a centroid to the nearest sum, with positive weights, of two of the others; 0 without two."""
    to_K, between_KK = other_KE @ centroid_E, other_KE @ other_KE.T
    first_P, second_P = np.triu_indices(len(other_KE), 1)
    if not len(first_P):
        return 0.0
    one_P, two_P, between_P = to_K[first_P], to_K[second_P], between_KK[first_P, second_P]
    scale_P = 1 - np.square(between_P) + 1e-9
    one_weight_P, two_weight_P = (one_P - between_P * two_P) / scale_P, (two_P - between_P * one_P) / scale_P
    is_between_P = (one_weight_P > 0) & (two_weight_P > 0)
    square_P = np.where(is_between_P, one_weight_P * one_P + two_weight_P * two_P, 0.0)
    return float(np.sqrt(np.maximum(square_P, 0.0)).max())


def _given_away(points_NE: Points, label_N: Labels, clusters: _Clusters, stays_K: NDArray[np.bool_]) -> Labels:
    """The labels where some clusters no longer are: their points are of the nearest centroid that stays."""
    if stays_K.all():
        return label_N
    index_N = np.searchsorted(clusters.name_K, label_N)
    moves_N = ~stays_K[index_N]
    nearest_N = (points_NE[moves_N] @ clusters.centroid_KE[stays_K].T).argmax(axis=1)
    moved_N = label_N.copy()
    moved_N[moves_N] = clusters.name_K[stays_K][nearest_N]
    return moved_N


def _unit(vector_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors of length 1 along the last axis; those without length stay as they are."""
    length = np.linalg.norm(vector_E, axis=-1, keepdims=True)
    return np.asarray(vector_E / np.maximum(length, 1e-12), np.float64)
