"""Power grids: a reader of MATPOWER case files, and the linear (DC) model of their flows.

**The model**, that of the published optima (PowerModels' DC form). All voltages are 1, angles θ are small:

    flow of a branch       f = b (θ_from - θ_to - shift),      b = x / (r² + x²);  without the tap ratio
    balance at the buses   Eᵀ f = P,                           E the incidence matrix, P the power injected

Put f into the balance: ``B θ = P + Eᵀ(b · shift)`` with ``B = Eᵀ diag(b) E``. B is singular (only differences of
angles matter, and P must sum to 0); with the angle of one bus at 0 it has an inverse, written B⁻ here, and

    f = F (P + Eᵀ(b · shift)) - b · shift,       F = diag(b) E B⁻ the matrix of power transfer distribution factors.

Limits: `|f| <= rate`, and ``angmin <= θ_from - θ_to <= angmax`` is one on f too, as ``θ_from - θ_to = f / b + shift``.
Shunts draw their conductance. Storage, DC lines and switched branches are not modelled (the files have none).

**One branch lost** (N-1). If branch k is out, its flow takes the others: ``f_l + L_lk f_k`` with the line outage
distribution factors ``L_lk = T_lk / (1 - T_kk)``, T_lk the flow in l of one unit sent from one end of k to the other.
``T_kk = 1`` means that k is a bridge: without it the grid falls apart, and there is nothing to secure.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

#: A branch whose own transfer is this near to 1 is a bridge: rounding apart, 1 - T_kk is 0 there.
BRIDGE = 1e-8

# Columns of MATPOWER's tables, from 0.
BUS_NUMBER, BUS_TYPE, BUS_LOAD, BUS_SHUNT = 0, 1, 2, 4
GEN_BUS, GEN_STATUS, GEN_MOST, GEN_LEAST = 0, 7, 8, 9
FROM, TO, RESISTANCE, REACTANCE, RATE, SHIFT, BRANCH_STATUS, LEAST_ANGLE, MOST_ANGLE = 0, 1, 2, 3, 5, 9, 10, 11, 12
COST_KIND, COST_COUNT, COST_FIRST = 0, 3, 4
POLYNOMIAL, REFERENCE, ISOLATED = 2, 3, 4


class CaseError(ValueError):
    """A file is not a MATPOWER case, or has something that is not modelled."""


@dataclasses.dataclass(frozen=True)
class Flows:
    """Flows that have limits: ``least <= transfer @ P + constant <= most`` for the power P injected at the buses."""

    transfer: np.ndarray
    constant: np.ndarray
    least: np.ndarray
    most: np.ndarray
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A grid in service, powers per unit.

    Attributes:
        base: one unit in MW.
        load: power drawn at each bus, ``(buses,)``.
        shunt: drawn by shunts, whatever the load, ``(buses,)``.
        generator_bus: the place of each generator, ``(generators,)``.
        least: smallest power of each generator.
        most: largest power of each generator.
        cost: ``(generators, 3)``: of the square, of the power itself and of being there, in $/h.
        transfer: the matrix F above, ``(branches, buses)``.
        constant: the flows that phase shifters drive by themselves, ``(branches,)``.
        flow_least: smallest flow of each branch, ``-inf`` where there is no limit.
        flow_most: largest flow of each branch.
        ends: the places of both ends of each branch, ``(branches, 2)``.
    """

    base: float
    load: np.ndarray
    shunt: np.ndarray
    generator_bus: np.ndarray
    least: np.ndarray
    most: np.ndarray
    cost: np.ndarray
    transfer: np.ndarray
    constant: np.ndarray
    flow_least: np.ndarray
    flow_most: np.ndarray
    ends: np.ndarray

    def flows(self) -> Flows:
        """Those of all branches."""
        names = tuple(f"branch {i}" for i in range(len(self.ends)))
        return Flows(self.transfer, self.constant, self.flow_least, self.flow_most, names)

    def secured_flows(self, emergency: float) -> Flows:
        """Those of all branches, and of each while another is lost, within `emergency` times its limits."""
        whole, (lost, factor) = self.flows(), self.outages()
        pairs = [(line, k) for k in range(len(lost)) for line in range(len(self.ends)) if line != lost[k]]
        line, k = np.array(pairs).T
        share = factor[line, k]
        return Flows(
            np.concatenate([whole.transfer, whole.transfer[line] + share[:, None] * whole.transfer[lost[k]]]),
            np.concatenate([whole.constant, whole.constant[line] + share * whole.constant[lost[k]]]),
            np.concatenate([whole.least, emergency * whole.least[line]]),
            np.concatenate([whole.most, emergency * whole.most[line]]),
            whole.names + tuple(f"branch {i} without {lost[j]}" for i, j in pairs),
        )

    def outages(self) -> tuple[np.ndarray, np.ndarray]:
        """The branches that are no bridges, ``(K,)``, and the factors L of their outages, ``(branches, K)``."""
        moved = self.transfer[:, self.ends[:, 0]] - self.transfer[:, self.ends[:, 1]]  # T
        own = np.diag(moved)
        lost = np.flatnonzero(1 - own > BRIDGE)
        return lost, moved[:, lost] / (1 - own[lost])


def read_grid(path: Path) -> Grid:
    """Read a case file.

    Raises:
        CaseError: it is not a case, or not one of this model.
    """
    text = re.sub(r"%[^\n]*", "", path.read_text(encoding="utf-8"))
    if "mpc.dcline" in text:
        raise CaseError(f"{path.name} has DC lines, which are not modelled.")
    bus, gen, branch, cost = (_table(text, name, path) for name in ("bus", "gen", "branch", "gencost"))
    base = _number(text, path)
    if (bus[:, BUS_TYPE] == ISOLATED).any():
        raise CaseError(f"{path.name} has isolated buses, which are not modelled.")
    if (cost[:, COST_KIND] != POLYNOMIAL).any() or (cost[:, COST_COUNT] > 3).any():
        raise CaseError(f"{path.name} has costs other than polynomials of degree 2, which are not modelled.")
    works = gen[:, GEN_STATUS] > 0
    gen, cost = gen[works], cost[: len(works)][works]
    branch = branch[branch[:, BRANCH_STATUS] > 0]
    place = {int(number): i for i, number in enumerate(bus[:, BUS_NUMBER])}
    ends = np.array([[place[int(a)], place[int(b)]] for a, b in branch[:, [FROM, TO]]])
    transfer, constant, susceptance = _flows(bus, branch, ends)
    rate = np.where(branch[:, RATE] > 0, branch[:, RATE] / base, np.inf)
    shift = np.deg2rad(branch[:, SHIFT])
    by_angle = np.sort(
        susceptance[:, None] * (np.deg2rad(branch[:, [LEAST_ANGLE, MOST_ANGLE]]) - shift[:, None]), axis=1
    )
    return Grid(
        base=base,
        load=bus[:, BUS_LOAD] / base,
        shunt=bus[:, BUS_SHUNT] / base,
        generator_bus=np.array([place[int(number)] for number in gen[:, GEN_BUS]]),
        least=gen[:, GEN_LEAST] / base,
        most=gen[:, GEN_MOST] / base,
        cost=_costs(cost, base),
        transfer=transfer,
        constant=constant,
        flow_least=np.maximum(-rate, by_angle[:, 0]),
        flow_most=np.minimum(rate, by_angle[:, 1]),
        ends=ends,
    )


def _flows(bus: np.ndarray, branch: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F, the flows of phase shifters alone, and b."""
    r, x, lines = branch[:, RESISTANCE], branch[:, REACTANCE], np.arange(len(branch))
    susceptance = x / (r**2 + x**2)
    incidence = np.zeros((len(branch), len(bus)))
    incidence[lines, ends[:, 0]], incidence[lines, ends[:, 1]] = 1.0, -1.0
    weighted = susceptance[:, None] * incidence
    others = np.flatnonzero(np.arange(len(bus)) != int(np.argmax(bus[:, BUS_TYPE] == REFERENCE)))
    transfer = np.zeros_like(incidence)
    reduced = (incidence.T @ weighted)[np.ix_(others, others)]
    transfer[:, others] = np.linalg.solve(reduced, weighted[:, others].T).T
    driven = susceptance * np.deg2rad(branch[:, SHIFT])
    return transfer, transfer @ (incidence.T @ driven) - driven, susceptance


def _costs(table: np.ndarray, base: float) -> np.ndarray:
    """Coefficients of p², p and 1 for p per unit; MATPOWER writes the highest power first."""
    found = np.zeros((len(table), 3))
    for row, line in zip(found, table, strict=True):
        count = int(line[COST_COUNT])
        row[3 - count :] = line[COST_FIRST : COST_FIRST + count]
    return found * np.array([base**2, base, 1.0])


def _table(text: str, name: str, path: Path) -> np.ndarray:
    found = re.search(rf"mpc\.{name}\s*=\s*\[(.*?)\]", text, re.DOTALL)
    if found is None:
        raise CaseError(f"{path.name} is not a MATPOWER case: it has no table mpc.{name}.")
    lines = [line.split() for line in re.split(r"[;\n]", found[1]) if line.strip()]
    least = {"bus": BUS_SHUNT, "gen": GEN_LEAST, "branch": MOST_ANGLE, "gencost": COST_FIRST}[name] + 1
    try:
        table = np.array(lines, dtype=np.float64)
    except ValueError:
        table = np.empty((0, 0))
    if table.ndim != 2 or table.shape[-1] < least:
        raise CaseError(
            f"{path.name} is not a MATPOWER case: mpc.{name} is no table of at least {least} numbers a line."
        )
    return table


def _number(text: str, path: Path) -> float:
    found = re.search(r"mpc\.baseMVA\s*=\s*([\d.eE+-]+)", text)
    if found is None:
        raise CaseError(f"{path.name} is not a MATPOWER case: it has no mpc.baseMVA.")
    return float(found[1])
