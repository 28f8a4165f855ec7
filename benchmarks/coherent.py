"""The published week of Wiki2 in docs/qp.md: forecasts reconciled as in Nixtla's example, and by a projection.

    pip install "statsforecast==2.0.1" "hierarchicalforecast>=1.5" "numpy<2.2" "pandas<2.3"
    python benchmarks/coherent.py

AutoETS forecasts the last seven days of 199 series; statsforecast 2.0.1 gives the forecasts that were published (other
versions fit slightly different models). They neither add up nor are they all positive. MinT takes the nearest coherent
ones, here with equal weights (OLS), or with the number of bottom series below a series as its variance (WLS). The score
is the mean squared error over that of the last known value, as published: 1.0108, .9777 and .9393. Times are of the
processor, the median of some runs on one thread.
"""

# Optional packages, some without types:
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from caffnet import AffineSet, project
from caffnet_lab.experiments.yardsticks.data import find
from caffnet_lab.experiments.yardsticks.hierarchy import Hierarchy, read_hierarchy

DAYS, RUNS = 7, 21


def auto_ets(series: Hierarchy) -> np.ndarray:
    """Forecasts of the last days by AutoETS, one series at a time: ``(days, n)``."""
    import pandas as pd
    from statsforecast import StatsForecast
    from statsforecast.models import AutoETS

    known, n = series.values[:-DAYS], series.values.shape[1]
    dates = pd.date_range("2016-01-01", periods=len(known))
    names = np.repeat(np.arange(n), len(known))
    table = pd.DataFrame({"unique_id": names, "ds": np.tile(dates, n), "y": known.T.ravel()})
    models = [AutoETS(season_length=series.season, model="ZAA")]
    found = StatsForecast(models=models, freq="D").forecast(df=table, h=DAYS)
    return found["AutoETS"].to_numpy(dtype=np.float64).reshape(n, DAYS).T


def mint(sums: np.ndarray, base: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The nearest coherent forecasts, which may be negative."""
    weighted = sums.T / variances
    return np.linalg.solve(weighted @ sums, weighted @ base.T).T @ sums.T


def projected(sums: np.ndarray, base: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The nearest coherent forecasts without negative ones: a projection in the metric ``SᵀW⁻¹S``."""
    weighted = sums.T / variances
    metric = weighted @ sums
    nearest = np.linalg.solve(metric, weighted @ base.T).T
    signs = AffineSet.box(torch.zeros(sums.shape[1], dtype=torch.float64), None)
    return project(torch.from_numpy(nearest), signs, metric=torch.from_numpy(metric)).value.numpy() @ sums.T


def nixtla(sums: np.ndarray, base: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Non-negative MinT of hierarchicalforecast. It sets negative base forecasts to zero first."""
    from hierarchicalforecast.methods import MinTrace

    method = "ols" if np.ptp(variances) == 0 else "wls_struct"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reconciler = MinTrace(method=method, nonnegative=True)
        return reconciler.fit_predict(S=sums, y_hat=base.T, y_insample=None)["mean"].T


def main() -> None:
    torch.set_num_threads(1)
    series = read_hierarchy(find("hierarchical") / "wiki2", DAYS)
    sums, actual, last = series.sums, series.values[-DAYS:], series.values[-DAYS - 1]
    print("forecasting 199 series by AutoETS: one or two minutes", file=sys.stderr)
    base = auto_ets(series)
    positive, equal, counted = np.maximum(base, 0), np.ones(len(sums)), sums.sum(1)
    rows: list[tuple[str, Callable[[], np.ndarray], np.ndarray, np.ndarray]] = [
        ("AutoETS", lambda: base, base, equal),
        ("MinT (OLS)", lambda: mint(sums, base, equal), base, equal),
    ]
    for weights, variances in (("OLS", equal), ("WLS", counted)):
        rows += [
            (f"hierarchicalforecast ({weights})", partial(nixtla, sums, base, variances), positive, variances),
            (f"caffnet, from the same ({weights})", partial(projected, sums, positive, variances), positive, variances),
            (f"caffnet, from AutoETS as it is ({weights})", partial(projected, sums, base, variances), base, variances),
        ]
    print("| forecasts | score | squared distance, over the least | negative | sums apart by | ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, forecast, goal, variances in rows:
        y, times = forecast(), []
        for _ in range(RUNS):
            start = time.process_time()
            forecast()
            times.append(1e3 * (time.process_time() - start))
        score = np.square(y - actual).mean() / np.square(last - actual).mean()
        least = np.square(goal - projected(sums, goal, variances)) / variances
        distance = (np.square(goal - y) / variances).sum() / least.sum()
        apart = np.abs(y - y[:, -sums.shape[1] :] @ sums.T).max()
        taken = f"{sorted(times)[RUNS // 2]:.3g}" if times[0] > 1e-2 else "–"
        print(f"| {name} | {score:.6f} | {distance:.7f} | {(y < 0).sum()} | {apart:.2g} | {taken} |")


if __name__ == "__main__":
    main()
