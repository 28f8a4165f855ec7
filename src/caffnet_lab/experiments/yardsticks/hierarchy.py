"""Series that add up: the data of a hierarchy, simple base forecasts, and the covariance of their errors."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np

WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # of the newest value in an exponential smoothing


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """All series of a hierarchy over time.

    Attributes:
        values: ``(times, n)``; the last b series are the bottom ones.
        sums: S, ``(n, b)``: every series is a sum of bottom ones, ``values = bottom @ S.T``.
        season: times in a season.
    """

    values: np.ndarray
    sums: np.ndarray
    season: int


def read_hierarchy(folder: Path, season: int) -> Hierarchy:
    """Read ``data.csv`` (one line per time) and ``agg_mat.csv`` (one line per series that is a sum).

    Raises:
        ValueError: the series do not add up as the matrix says.
    """
    names, values = _read(folder / "data.csv")
    bottom, sums = _read(folder / "agg_mat.csv")
    S = np.concatenate([sums, np.eye(len(bottom))]) if len(sums) + len(bottom) == len(names) else sums
    apart = np.abs(values - values[:, -len(bottom) :] @ S.T).max()
    if S.shape != (len(names), len(bottom)) or apart > 1e-6 * np.abs(values).max():
        raise ValueError(f"{folder.name}: its series do not add up as agg_mat.csv says, but are {apart:g} apart.")
    return Hierarchy(values, S, season)


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    """The names of the columns, and the numbers below them without the first column."""
    with path.open(encoding="utf-8", newline="") as file:
        (_, *names), *lines = csv.reader(file)
    return names, np.array([line[1:] for line in lines], dtype=np.float64)


def base_forecasts(values: np.ndarray, season: int, lead: int, known: int) -> np.ndarray:
    """Forecasts of every series by itself, made `lead` times before: ``(times, n)``, NaN where there is no past.

    Exponential smoothing, ``l_t = a v_t + (1 - a) l_{t-1}``, either of the values, ``ŷ_t = l_{t-lead}``, or of their
    change over a season, ``ŷ_t = y_{t-season} + l_{t-lead}``. Each series has its own kind and its own a: those with
    the least error one step ahead in the first `known` times. So together the forecasts do not add up.

    Args:
        values: ``(times, n)``.
        season: times in a season.
        lead: from 1 to a season.
        known: how many times may be looked at for the choice.
    """
    if not 1 <= lead <= season:
        raise ValueError(f"lead must be from 1 to a season of {season}, got {lead}.")
    best, error = np.full_like(values, np.nan), np.full(values.shape[1], np.inf)
    for weight in WEIGHTS:
        for seasonal in (True, False):
            ahead = _smoothed(values, season, 1, weight, seasonal)
            mean = np.square(values - ahead)[season + 1 : known].mean(0)
            better = mean < error
            best[:, better] = _smoothed(values, season, lead, weight, seasonal)[:, better]
            error = np.where(better, mean, error)
    return best


def _smoothed(values: np.ndarray, season: int, lead: int, weight: float, seasonal: bool) -> np.ndarray:
    """Forecasts of one kind with one weight, from ``season + lead`` on."""
    before = np.concatenate([np.zeros((season, values.shape[1])), values[:-season]]) if seasonal else 0.0
    moving, level = values - before, np.full_like(values, np.nan)
    current = moving[season]
    for t in range(season, len(values)):
        current = weight * moving[t] + (1 - weight) * current
        level[t] = current
    forecast = np.full_like(values, np.nan)
    forecast[season + lead :] = level[season:-lead]
    return forecast + before


def shrunk_covariance(errors: np.ndarray) -> np.ndarray:
    """The covariance of errors ``(times, n)``, drawn to its diagonal as far as their correlations are noise.

    Schäfer and Strimmer's estimate, which MinT uses: ``λ diag + (1 - λ) full`` with λ the sum of the variances of the
    correlations over the sum of their squares.
    """
    errors = errors - errors.mean(0)
    scale = errors.std(0)
    scale = np.where(scale > 0, scale, scale[scale > 0].min() if (scale > 0).any() else 1.0)
    unit = errors / scale
    count = len(unit)
    correlation = unit.T @ unit / count
    variance = ((unit**2).T @ (unit**2) / count - correlation**2) / (count - 1)
    off = ~np.eye(errors.shape[1], dtype=bool)
    share = float(np.clip(variance[off].sum() / max((correlation[off] ** 2).sum(), 1e-300), 0, 1))
    shrunk = np.where(off, (1 - share) * correlation, 1.0)
    return shrunk * np.outer(scale, scale)
