"""Goals of this library in the experiments, judged by the records as the claims of the paper are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from caffnet_lab.experiments.config import SEEDS
from caffnet_lab.experiments.report.claims import BOTH, Claim, Evidence, Missing, Verdict, judge
from caffnet_lab.experiments.report.formats import number
from caffnet_lab.experiments.report.groups import TITLES, Group
from caffnet_lab.experiments.report.tables import Table


def _exact(seen: Evidence) -> Verdict:
    """With ``strict`` no inequality is broken in exact arithmetic; without, all rows hold to rounding."""
    strict, usual = 0.0, 0.0
    for method in seen.methods:
        found = seen.groups[method].values("strict.exact_inequality.max")
        if len(found) < len(seen.seeds):
            raise Missing(f"no strict runs of {TITLES[method]}")
        strict, usual = max(strict, *found), max(usual, *seen.largest(method))
    summary = f"largest violation {number(usual)}, of inequalities with strict {number(strict)}"
    return strict == 0.0 and usual <= seen.rounding, summary


def _at_most(column: str, limit: float, mean: bool = False) -> Callable[[Evidence], Verdict]:
    """The figure of every seed, or its mean over them, of every method."""

    def check(seen: Evidence) -> Verdict:
        summary, holds = [], True
        for method in seen.methods:
            values = seen.values(method, column)
            figures = [sum(values) / len(values)] if mean else values
            holds = holds and max(figures) <= limit
            summary.append(f"{TITLES[method]} {', '.join(map(number, figures))}")
        return holds, ", ".join(summary)

    return check


def _arrives(seen: Evidence) -> Verdict:
    (method,) = seen.methods
    arrived = int(sum(seen.values(method, "arrived")))
    return arrived == len(seen.seeds), f"{arrived} of {len(seen.seeds)}"


def _fresh_starts(seen: Evidence) -> Verdict:
    """All of them safe, and 95 % arrive, with every seed."""
    (method,) = seen.methods
    safe, arrived = (seen.values(method, f"fresh.{column}") for column in ("safe", "arrived"))
    if len(safe) < len(seen.seeds):
        raise Missing(f"fresh starts with {len(safe)} of {len(seen.seeds)} seeds")
    summary = f"safe {', '.join(map(number, safe))} %, arrived {', '.join(map(number, arrived))} %"
    return min(safe) == 100.0 and min(arrived) >= 95.0, summary


def _near_ipopt(limit: float) -> Callable[[Evidence], Verdict]:
    def check(seen: Evidence) -> Verdict:
        (method,) = seen.methods
        gap = max(seen.gaps(method))
        holds = gap <= limit
        if holds and (absent := sorted(set(SEEDS["opt"]) - set(seen.seeds))):
            raise Missing(f"no runs with seeds {' '.join(map(str, absent))}")
        return holds, f"largest distance {number(gap)}"

    return check


def _ratio(kind: str, over: str, under: str, wanted: Callable[[float], bool]) -> Callable[[Evidence], Verdict]:
    """Ratio of the times of two methods; open while the rounds disagree."""

    def check(seen: Evidence) -> Verdict:
        whole = seen.time(over, kind) / seen.time(under, kind)
        rounds = seen.time_ratios(over, under, kind)
        if len(rounds) < 4:
            return wanted(whole), f"{number(whole)} times"
        low, ratio, high = statistics.quantiles(rounds)
        summary = f"{number(ratio)} times in the median round (half of the rounds {number(low)} to {number(high)})"
        if len({wanted(figure) for figure in (low, ratio, high)}) > 1:
            raise Missing(summary)
        return wanted(ratio), summary

    return check


_SAFE = Claim("CAffNets break nothing; exactly, with strict.", BOTH, _exact)
AIMS: dict[str, tuple[Claim, ...]] = {
    "pwc": (_SAFE, Claim("The MSE of both CAffNets is at most 0.0012.", BOTH, _at_most("mse", 0.0012, mean=True))),
    "opt": (
        _SAFE,
        Claim("CAffNet-FF is within 1e-5 of IPOPT with every seed.", ("caffnet-ff",), _near_ipopt(1e-5)),
        Claim("CAffNet-TF is within 5e-5 of IPOPT with every seed.", ("caffnet-tf",), _near_ipopt(5e-5)),
        Claim(
            "CAffNet-FF is 100 times faster than IPOPT.",
            (),
            _ratio("test_ms", "ipopt", "caffnet-ff", lambda r: r >= 100),
        ),
    ),
    "cbf": (
        Claim("CAffNet-FF breaks nothing; exactly, with strict.", ("caffnet-ff",), _exact),
        Claim("CAffNet-FF arrives at the goal in the 10 s of the test with every seed.", ("caffnet-ff",), _arrives),
        Claim("The mean cost is at most 7.2e5, the paper's.", ("caffnet-ff",), _at_most("cost", 7.2e5, mean=True)),
        Claim("The cost of every seed is at most 5.4e5.", ("caffnet-ff",), _at_most("cost", 5.4e5)),
        Claim("200 fresh starts: all safe, 95 % arrive, with every seed.", ("caffnet-ff",), _fresh_starts),
        Claim("An epoch takes at most twice the NN's.", (), _ratio("train_ms", "caffnet-ff", "nn", lambda r: r <= 2)),
    ),
}


def aims_table(groups: list[Group], timings: Sequence[dict[str, Any]], task: str) -> Table | None:
    """The goals of this library."""
    return judge(groups, timings, task, AIMS[task], "aims", "Aims of caffnet", "The aim", dropout=False)
