"""Integrated loudness by ITU-R BS.1770-4 of 16 kHz mono audio.

The K-weighting filter is applied in the frequency domain, block by block, with the response that the coefficients of
the standard have at 48 kHz: so none have to be derived for another rate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import RATE_HZ

_HEAD = (1.53512485958697, -2.69169618940638, 1.19839281085285), (1.0, -1.69065929318241, 0.73248077421585)
"""The high shelf for the effect of the head: numerator and denominator (BS.1770-4, Annex 1, table 1)."""
_HIGH_PASS = (1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)
"""The RLB high-pass (table 2)."""
_COEFFICIENT_RATE_HZ = 48_000
_OFFSET_DB = -0.691  # makes a sine of 997 Hz at full scale -3.01 LUFS
_ABSOLUTE_GATE_LUFS = -70.0
_RELATIVE_GATE_LU = -10.0
_HOP = RATE_HZ // 10  # gating blocks of 400 ms begin every 100 ms
_HOPS_IN_BLOCK = 4
_FILTERED = 100 * _HOP  # samples that are filtered at a time
_MEMORY = RATE_HZ // 2  # the response to an impulse has died away by then


def loudness_lufs(parts: Iterable[NDArray[np.float32]]) -> float:
    """Integrated loudness in LUFS of float samples in parts that follow one another.

    Audio shorter than a gating block of 400 ms is repeated to fill one. Minus infinity where every block lies below the
    absolute gate of -70 LUFS.
    """
    energy_H = np.concatenate([_energies(block_T) for block_T in _weighted(parts)])
    power_N = np.convolve(energy_H, np.ones(_HOPS_IN_BLOCK), "valid") / (_HOPS_IN_BLOCK * _HOP)
    loud_N = power_N[power_N > _power(_ABSOLUTE_GATE_LUFS)]
    if not len(loud_N):
        return -math.inf
    return _lufs(loud_N[loud_N > loud_N.mean() * 10 ** (_RELATIVE_GATE_LU / 10)].mean())


def _lufs(power: float) -> float:
    return _OFFSET_DB + 10 * math.log10(power)


def _power(lufs: float) -> float:
    return float(10 ** ((lufs - _OFFSET_DB) / 10))


def _energies(samples_T: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum of squares of each whole hop."""
    samples_HT = samples_T[: len(samples_T) // _HOP * _HOP].reshape(-1, _HOP)
    energy_H: NDArray[np.float64] = np.einsum("ht,ht->h", samples_HT, samples_HT).astype(np.float64)
    return energy_H


def _weighted(parts: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """The samples after the K-weighting filter, in blocks of whole hops but for the last."""
    weight_F = _response()
    before_T = np.zeros(_MEMORY, np.float32)
    for block_T in _blocks(parts):
        samples_T = np.concatenate([before_T, block_T])
        weighted_T = np.fft.irfft(np.fft.rfft(samples_T, _MEMORY + _FILTERED) * weight_F)
        yield weighted_T[_MEMORY : len(samples_T)].astype(np.float32, copy=False)
        before_T = samples_T[-_MEMORY:]


def _blocks(parts: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """The same samples in blocks of one size, of which the last may be shorter; at least one gating block in all."""
    waiting: list[NDArray[np.float32]] = []
    num_waiting, is_first = 0, True
    for part_T in parts:
        waiting.append(part_T)
        num_waiting += len(part_T)
        if num_waiting >= _FILTERED:
            samples_T = np.concatenate(waiting)
            for start in range(0, num_waiting - _FILTERED + 1, _FILTERED):
                yield samples_T[start : start + _FILTERED]
            is_first, num_waiting = False, num_waiting % _FILTERED
            waiting = [samples_T[len(samples_T) - num_waiting :]]
    rest_T = np.concatenate(waiting) if waiting else np.zeros(0, np.float32)
    yield np.resize(rest_T, _HOPS_IN_BLOCK * _HOP) if is_first and len(rest_T) < _HOPS_IN_BLOCK * _HOP else rest_T


@functools.cache
def _response() -> NDArray[np.complex64]:
    """The frequency response of both filters at the frequencies of the transform."""
    angle_F = 2 * np.pi * np.fft.rfftfreq(_MEMORY + _FILTERED, 1 / RATE_HZ) / _COEFFICIENT_RATE_HZ
    delay_FK = np.exp(-1j * angle_F[:, None] * np.arange(3))
    response_F = np.ones(len(angle_F), np.complex128)
    for numerator, denominator in (_HEAD, _HIGH_PASS):
        response_F *= (delay_FK @ np.array(numerator)) / (delay_FK @ np.array(denominator))
    return response_F.astype(np.complex64)
