"""Embeddings of windows to speakers: clusters that are too small at first, joined until no two are of one voice.

Each block of a recording is divided by spectral clustering into more clusters than it has speakers. Clusters of all
blocks are then joined by the mean cosine of their windows (average linkage), and by how windows follow one another:
parts of one voice alternate with what is said, while a speaker stays for some seconds, whatever the channel does to
cosines. A telephone raises all cosines, so what counts as one voice depends on the mean cosine of all windows of the
recording. Choosing the number by the eigengap alone (Park et al. 2019) was right less often; docs/diarization.md has
the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SAME_VOICE, _CHANNEL_SHARE = 0.475, 0.3
"""Two clusters are one speaker whose windows have this mean cosine, and this share of that of all windows, or more."""
_PERSISTENCE_WEIGHT = 0.05
"""Weight of the persistence of two clusters against their cosine."""
_SMALL_WEIGHT = 0.3
"""Weight of one over the windows of the smaller of two clusters: few windows may be similar only by their words."""
_MAX_BLOCK_CLUSTERS, _CLUSTER_WINDOWS = 12, 5
_FEWEST_PAIRS, _PAIRS_OF_DOUBT = 4, 6
"""Of windows that follow one another: fewer say nothing, and so many count half."""
_FEWEST_WINDOWS = 4
"""A cluster of fewer windows is not a speaker."""
_NEIGHBOUR_SHARE = 0.06
_KMEANS_STARTS, _KMEANS_ROUNDS, _NEAREST_ROUNDS = 8, 50, 3

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
        same_voice, most = np.inf, num_speakers
    else:
        same_voice, most = _SAME_VOICE + _CHANNEL_SHARE * _mean_cosine(points_NE), max_speakers
    label_N = _to_nearest(points_NE, label_N, _FEWEST_WINDOWS)
    label_N = _to_nearest(points_NE, _joined(points_NE, label_N, pair_P2, same_voice, most))
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


def _mean_cosine(points_NE: Points) -> float:
    """The mean cosine of two points; 1 of a single one."""
    num = len(points_NE)
    total = np.square(points_NE.sum(axis=0, dtype=np.float64)).sum()
    return float((total - num) / (num * (num - 1))) if num > 1 else 1.0


def _divide(points_NE: Points) -> Labels:
    """More clusters than there are speakers, by the eigenvectors of the graph that joins each point to its nearest.

    Points that are near to none are one cluster there, whosever they are, so all go to the nearest centroid after that.
    """
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
    label_N = kmeans(vector_NN[:, :num_clusters], num_clusters)
    for _ in range(_NEAREST_ROUNDS):
        label_N = _to_nearest(points_NE, label_N)
    return label_N


def _joined(points_NE: Points, label_N: Labels, pair_P2: Pairs, same_voice: float, most: int) -> Labels:
    """Join the two most similar clusters while they are similar enough, or there are more than `most`.

    Their similarity is the mean cosine of their windows, less what speaks for a change of speaker, and more where one
    of them is small.
    """
    name_K, index_N, size_K = np.unique(label_N, return_inverse=True, return_counts=True)
    sum_KE = _sums(points_NE, index_N)
    product_KK, pair_KK = sum_KE @ sum_KE.T, np.zeros((len(name_K), len(name_K)))
    np.add.at(pair_KK, (index_N[pair_P2[:, 0]], index_N[pair_P2[:, 1]]), 1.0)
    pair_KK += pair_KK.T
    joined_K = left_K = np.arange(len(name_K))
    while len(left_K) > 1:
        alike_KK = product_KK / np.outer(size_K, size_K) - _PERSISTENCE_WEIGHT * _persistence(pair_KK)
        alike_KK += _SMALL_WEIGHT / np.minimum.outer(size_K, size_K)
        np.fill_diagonal(alike_KK, -np.inf)
        one, other = sorted(divmod(int(alike_KK.argmax()), len(left_K)))
        if alike_KK[one, other] < same_voice and len(left_K) <= most:
            break
        joined_K = np.where(joined_K == left_K[other], left_K[one], joined_K)
        size_K[one] += size_K[other]
        for of_KK in (product_KK, pair_KK):
            of_KK[one] += of_KK[other]
            of_KK[:, one] += of_KK[:, other]
        left_K, size_K = np.delete(left_K, other), np.delete(size_K, other)
        product_KK, pair_KK = (np.delete(np.delete(of_KK, other, 0), other, 1) for of_KK in (product_KK, pair_KK))
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


def _to_nearest(points_NE: Points, label_N: Labels, fewest: int = 1) -> Labels:
    """Give each point to the nearest centroid of the clusters that have so many points; the largest always stays."""
    name_K, index_N, size_K = np.unique(label_N, return_inverse=True, return_counts=True)
    stays_K = size_K >= min(fewest, size_K.max(initial=0))
    centroid_KE = _unit(_sums(points_NE, index_N)[stays_K])
    return np.asarray(name_K[stays_K][(points_NE @ centroid_KE.T).argmax(axis=1)], np.int64)


def _sums(points_NE: Points, index_N: Labels) -> NDArray[np.float64]:
    """The sums (K, E) of the points of each cluster."""
    sum_KE = np.zeros((int(index_N.max(initial=-1)) + 1, points_NE.shape[1]))
    np.add.at(sum_KE, index_N, points_NE)
    return sum_KE


def _unit(vector_KE: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors of length 1."""
    return np.asarray(vector_KE / np.maximum(np.linalg.norm(vector_KE, axis=1, keepdims=True), 1e-12), np.float64)
