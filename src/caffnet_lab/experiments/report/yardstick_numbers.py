"""Published numbers of the yardsticks: rows of other papers, and what this library must show."""

from __future__ import annotations

import dataclasses

from caffnet_lab.experiments.yardsticks.tasks import FORECASTS


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of another paper: its name, with what the columns cannot say, and the columns that it has."""

    name: str
    values: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Goal:
    """Goal of some rows: for every column the most that any seed may have, or the row that has it."""

    text: str
    methods: tuple[str, ...]
    limits: dict[str, float | str]


def _gap(objective: float, optimum: float) -> dict[str, float]:
    return {"objective": objective, "gap.percent": 100 * (objective - optimum) / abs(optimum)}


_SOFT = "NN (equalities broken by 0.35)"
PUBLISHED: dict[str, tuple[Row, ...]] = {
    "dc3-simple": (
        Row("OSQP, DC3's paper", {"objective": -15.05}),
        Row("DC3, its paper", _gap(-13.46, -15.05)),
        Row(f"{_SOFT}, DC3's paper", _gap(-12.57, -15.05)),
        Row("Completed NN, corrected at test (inequalities broken by 0.89), DC3's paper", _gap(-14.68, -15.05)),
    ),
    "dc3-nonconvex": (
        Row("IPOPT, DC3's paper", {"objective": -11.59}),
        Row("DC3, its paper", _gap(-10.66, -11.59)),
        Row(f"{_SOFT}, DC3's paper", _gap(-10.02, -11.59)),
        Row("Completed NN, corrected at test (inequalities broken by 0.87), DC3's paper", _gap(-10.99, -11.59)),
        Row("FSNet, its paper (another instance)", {"gap.percent": 2.45, "gap.max_percent": 8.58}),
    ),
    "hardnet-opt": (
        Row("IPOPT, HardNet's paper", {"objective": -14.28}),
        Row("HardNet-Aff, its paper", _gap(-14.10, -14.28)),
        Row("DC3, HardNet's paper", _gap(-12.57, -14.28)),
        Row("Soft (equalities broken by 0.35), HardNet's paper", _gap(-13.13, -14.28)),
    ),
    "snarenet-noncvx": (
        Row("SnareNet, its paper", {"gap.geometric": 0.079, "gap.max": 0.426}),
        Row("HardNet, SnareNet's paper", {"gap.geometric": 0.917, "gap.max": 10.2}),
        Row("DC3, SnareNet's paper", {"gap.geometric": 2.68, "gap.max": 8.81}),
        Row("H-Proj, SnareNet's paper", {"gap.geometric": 3.72, "gap.max": 597.0}),
    ),
    "hardnet-cbf": (
        Row("CBF-QP, HardNet's paper", {"cost": 948.32}),
        Row("HardNet-Aff, its paper", {"cost": 518.85}),
        Row("Soft (rows broken by 6.92), HardNet's paper", {"cost": 480.10}),
        Row("DC3 (rows broken by 6.86), HardNet's paper", {"cost": 480.21}),
    ),
    "forecast-wiki2": (
        # Seven days instead of 56, from other base forecasts: not comparable with the column above.
        Row("AutoETS, the last seven days alone; compared in the guide to programs (Nixtla)", {"score": 1.0108}),
        Row("the same, MinT with equal variances (Nixtla)", {"score": 0.9777}),
        Row("the same, non-negative (Nixtla)", {"score": 0.9393}),
    ),
}

_EXACT = {"inequality.max": 1e-12, "equality.max": 1e-12}
_LEARNED = ("orthogonal",)
_OUTRIGHT = Goal(
    "Solved outright: gap at most 1e-6 %, none infeasible.", ("direction",), {"gap.percent": 1e-6, "infeasible": 0.0}
)
_GRID = (
    Goal("Learned: mean gap at most 0.015 %, none infeasible.", _LEARNED, {"gap.percent": 0.015, "infeasible": 0.0}),
    _OUTRIGHT,
)
GOALS: dict[str, tuple[Goal, ...]] = {
    "dc3-simple": (
        Goal(
            "Learned: mean gap at most 0.005 %, the worst sample's at most 0.05 %, violation at most 1e-12.",
            _LEARNED,
            {"gap.percent": 0.005, "gap.max_percent": 0.05, **_EXACT},
        ),
        Goal("Solved outright: gap at most 1e-9.", ("minimiser",), {"gap.max": 1e-9, **_EXACT}),
    ),
    "dc3-nonconvex": (
        Goal(
            "Learned: mean gap at most 0.005 %, the worst sample's at most 0.05 %, violation at most 1e-12.",
            _LEARNED,
            {"gap.percent": 0.005, "gap.max_percent": 0.05, **_EXACT},
        ),
    ),
    "hardnet-opt": (Goal("Learned: mean gap at most 0.02 %.", _LEARNED, {"gap.percent": 0.02, **_EXACT}),),
    "snarenet-noncvx": (
        Goal(
            "Learned: f(y) - f* at most 0.001 in the geometric mean, 0.01 in the worst sample.",
            _LEARNED,
            {"gap.geometric": 1e-3, "gap.max": 1e-2, **_EXACT},
        ),
    ),
    "hardnet-cbf": (
        Goal("Learned: cost at most 500, safe on all starts.", _LEARNED, {"cost": 500.0, "collided": 0.0}),
    ),
    **dict.fromkeys(
        FORECASTS,
        (
            Goal(
                "Reconciled: forecasts add up and are never negative.",
                ("minimiser", *_LEARNED),
                {"incoherence": 0.0, "negative": 0.0, "infeasible": 0.0, "inequality.max": 0.0},
            ),
            Goal("Trained through the projection: no worse than reconciled alone.", _LEARNED, {"score": "minimiser"}),
        ),
    ),
    **dict.fromkeys(("dcopf-14", "dcopf-30", "dcopf-89"), (_OUTRIGHT,)),
    **dict.fromkeys(("dcopf-118", "dcopf-300", "dcopf-118-n1"), _GRID),
}
