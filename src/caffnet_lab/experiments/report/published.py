"""The numbers of the paper's three tables: mean and sample standard deviation over five seeds."""

from __future__ import annotations

from typing import TypeAlias

Entry: TypeAlias = tuple[float, float]

_COLUMNS = ("mean_of_max", "mean", "percent")
NO_INEQUALITY_BROKEN: dict[str, Entry] = {f"inequality.{column}": (0.0, 0.0) for column in _COLUMNS}
NO_EQUALITY_BROKEN: dict[str, Entry] = {f"equality.{column}": (0.0, 0.0) for column in _COLUMNS}

#: task -> method -> column -> (mean, standard deviation). "mean_of_max" is the column that the paper calls "Max".
PAPER: dict[str, dict[str, dict[str, Entry]]] = {
    "pwc": {
        "nn": {
            "mse": (0.0045, 0.0057),
            "inequality.mean_of_max": (0.0074, 0.0074),
            "inequality.mean": (0.0019, 0.0019),
            "train_ms": (5.31, 0.16),
            "test_ms": (3.37, 0.20),
        },
        "hardnet": {
            "mse": (0.0037, 0.0063),
            "inequality.mean_of_max": (0.0033, 0.0037),
            "inequality.mean": (0.0008, 0.0009),
            "train_ms": (8.00, 0.34),
            "test_ms": (3.70, 0.24),
        },
        "caffnet-ff": {
            "mse": (0.0020, 0.0032),
            "inequality.mean_of_max": (0.0, 0.0),
            "inequality.mean": (0.0, 0.0),
            "train_ms": (11.93, 0.55),
            "test_ms": (7.11, 0.49),
        },
        "caffnet-tf": {
            "mse": (0.0012, 0.0009),
            "inequality.mean_of_max": (0.0, 0.0),
            "inequality.mean": (0.0, 0.0),
            "train_ms": (15.57, 0.32),
            "test_ms": (14.71, 2.04),
        },
    },
    "opt": {
        "ipopt": {
            "objective": (-0.3494, 0.4995),
            **NO_INEQUALITY_BROKEN,
            **NO_EQUALITY_BROKEN,
            "test_ms": (19799.80, 295.16),
        },
        "nn": {
            "objective": (-0.1194, 0.5824),
            "inequality.mean_of_max": (0.0018, 0.0015),
            "inequality.mean": (0.0004, 0.0003),
            "inequality.percent": (0.31, 0.21),
            "equality.mean_of_max": (0.1136, 0.0035),
            "equality.mean": (0.0685, 0.0023),
            "equality.percent": (100.0, 0.0),
            "train_ms": (4.27, 0.09),
            "test_ms": (1.23, 0.01),
        },
        "hardnet": {
            "objective": (-0.3000, 0.4975),
            "inequality.mean_of_max": (0.0027, 0.0026),
            "inequality.mean": (0.0006, 0.0006),
            "inequality.percent": (3.24, 2.91),
            "equality.mean_of_max": (0.0435, 0.0123),
            "equality.mean": (0.0258, 0.0071),
            "equality.percent": (99.99, 0.01),
            "train_ms": (7.38, 0.20),
            "test_ms": (2.11, 0.03),
        },
        "caffnet-ff": {
            "objective": (-0.3418, 0.5028),
            **NO_INEQUALITY_BROKEN,
            **NO_EQUALITY_BROKEN,
            "train_ms": (1325.38, 26.28),
            "test_ms": (1298.67, 26.28),
        },
        "caffnet-ff-lite": {
            "objective": (-0.3418, 0.5028),
            **NO_INEQUALITY_BROKEN,
            **NO_EQUALITY_BROKEN,
            "train_ms": (737.16, 20.54),
            "test_ms": (713.69, 20.73),
        },
        "caffnet-tf": {
            "objective": (-0.1576, 0.3653),
            **NO_INEQUALITY_BROKEN,
            **NO_EQUALITY_BROKEN,
            "train_ms": (1327.79, 24.21),
            "test_ms": (1299.95, 24.62),
        },
    },
    "cbf": {
        "nn": {
            "cost": (4.1411e5, 6.7984e4),
            "inequality.mean_of_max": (0.1348, 0.0083),
            "inequality.mean": (0.0106, 0.0006),
            "inequality.percent": (2.60, 0.03),
            "train_ms": (2895.13, 263.98),
            "test_ms": (47.17, 4.17),
        },
        "hardnet": {
            "cost": (4.5701e5, 4.2737e4),
            "inequality.mean_of_max": (0.1317, 0.0066),
            "inequality.mean": (0.0104, 0.0005),
            "inequality.percent": (2.60, 0.03),
            "train_ms": (4885.60, 231.74),
            "test_ms": (855.51, 81.92),
        },
        "caffnet-ff": {
            "cost": (7.2060e5, 6.9090e4),
            **NO_INEQUALITY_BROKEN,
            "train_ms": (12207.93, 306.59),
            "test_ms": (1885.10, 45.96),
        },
    },
}
