"""Contestants: our layer with each search, the backbone alone, the paper's literal algorithm, and the rivals.

A contestant turns a task into calls that are ready to be timed. Everything that a user would do once (import, build a
problem, factorise a shared A, convert the constraints) is done here; everything that depends on f is in the calls.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet import CAffine, FeedForward, prepare
from caffnet.errors import BudgetError
from caffnet_lab.bench import literal, rivals
from caffnet_lab.bench.ready import Limits, Ready, Refused, of_map
from caffnet_lab.bench.tasks import SEED, Task

LAYER, BACKBONE, LITERAL, RAW = "caffnet", "backbone", "literal", "daqp"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A participant of the benchmark.

    Attributes:
        name: as in the tables.
        kind: ``layer``, ``backbone``, ``literal``, ``differentiable`` (a rival with a gradient) or ``raw`` (a solver
            called in a Python loop, no gradient).
        build: makes the calls for a task.
        packages: what must be installed.
        note: how it is called, in a few words.
    """

    name: str
    kind: str
    build: Callable[[Task, Limits], Ready]
    packages: tuple[str, ...] = ()
    note: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed; nothing is imported to find out."""
        return tuple(name for name in self.packages if importlib.util.find_spec(name) is None)


def _layer(search: str, shifted: bool = False) -> Callable[[Task, Limits], Ready]:
    def build(task: Task, limits: Limits) -> Ready:
        try:
            # A shared A is prepared once, as a user would; an A per sample is new in every call.
            constraint = prepare(task.set, search) if task.shared else task.set
            layer = CAffine(lambda _: constraint, search=search)
            w = 0.3 * task.v if shifted else None
            ready = of_map(lambda f: layer(f, w, x=task.x), task)
            ready.forward()  # an A per sample is refused, if at all, by the call
        except BudgetError as error:
            raise Refused(str(error)) from None
        return dataclasses.replace(ready, euclidean=not shifted and search != "lite")

    return build


def _backbone(task: Task, limits: Limits) -> Ready:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = FeedForward(task.x.shape[-1], task.n).double()
    parameters = list(network.parameters())

    def forward() -> Tensor:
        with torch.no_grad():
            return network(task.x)

    def train() -> tuple[Tensor, None]:
        y = network(task.x)
        torch.autograd.grad(y, parameters, task.v)
        return y, None

    return Ready(forward, train, euclidean=False, constrained=False)


def _literal(task: Task, limits: Limits) -> Ready:
    needed = literal.needed_bytes(task)
    if needed > limits.memory_bytes:
        count = literal.subsets(literal.rows_of(task), task.n)
        raise Refused(
            f"{count:.2g} subsets need {needed / 2**30:.2g} GiB, the limit is {limits.memory_bytes / 2**30:.2g}"
        )
    return of_map(literal.build(task), task)


CONTESTANTS: dict[str, Contestant] = {
    c.name: c
    for c in (
        Contestant(BACKBONE, "backbone", _backbone, note="3x200 ReLU network, float64; gradient of its weights"),
        Contestant(LAYER, "layer", _layer("auto"), note="CAffine, search chosen by auto"),
        Contestant("caffnet-full", "layer", _layer("full"), note="CAffine, every sub-constraint"),
        Contestant("caffnet-lite", "layer", _layer("lite"), note="CAffine, single rows and minimal faces"),
        Contestant("caffnet-active", "layer", _layer("active"), note="CAffine, active-set search"),
        Contestant(
            "caffnet-w", "layer", _layer("auto", shifted=True), note="CAffine by auto, null-space vector not zero"
        ),
        Contestant(LITERAL, "literal", _literal, note="all subsets with pinv, as in the paper"),
        Contestant(
            "cvxpylayers",
            "differentiable",
            rivals.cvxpylayers,
            ("cvxpylayers",),
            "diffcp with Clarabel, tolerance 1e-9",
        ),
        Contestant(
            "cvxpylayers-moreau",
            "differentiable",
            rivals.moreau,
            ("cvxpylayers", "moreau"),
            'solver="MOREAU", tolerance 1e-9',
        ),
        Contestant("qpth", "differentiable", rivals.qpth, ("qpth",), "QPFunction, eps 1e-12 (its default)"),
        Contestant(
            "proxsuite", "differentiable", rivals.proxsuite, ("proxsuite",), "QPFunction, eps 1e-9, all threads"
        ),
        Contestant(
            "qpax",
            "differentiable",
            rivals.qpax,
            ("jax", "qpax"),
            "jit(vmap(solve_qp_primal)), tolerance 1e-9; all cores",
        ),
        Contestant(
            "pinet", "differentiable", rivals.pinet, ("jax", "pinet"), "jit, 1000 iterations, shared A only; all cores"
        ),
        Contestant(RAW, "raw", rivals.daqp, ("daqp",), "Python loop, tolerance 1e-9"),
        Contestant("quadprog", "raw", rivals.quadprog, ("quadprog",), "Python loop"),
        Contestant("piqp", "raw", rivals.piqp, ("piqp",), "Python loop, tolerance 1e-9"),
        Contestant("clarabel", "raw", rivals.clarabel, ("clarabel", "scipy"), "Python loop, tolerance 1e-9"),
        Contestant("osqp", "raw", rivals.osqp, ("osqp", "scipy"), "Python loop, tolerance 1e-9, polished"),
    )
}


def select(wanted: list[str] | None) -> list[str]:
    """Names of contestants in their order; the backbone always takes part, the ratios need it.

    Raises:
        ValueError: a name is not known.

    >>> select(["caffnet", "daqp"])
    ['backbone', 'caffnet', 'daqp']
    """
    if not wanted:
        return list(CONTESTANTS)
    for word in wanted:
        if word not in CONTESTANTS:
            raise ValueError(f"There is no contestant {word!r}: use one of {', '.join(CONTESTANTS)}.")
    return [name for name in CONTESTANTS if name in wanted or name == BACKBONE]


def watched(names: list[str], whose: str) -> list[str]:
    """Whose memory is measured: ``ours``, ``all`` or ``none``.

    Raises:
        ValueError: another word.
    """
    choices = {"none": (), "ours": ("layer",), "all": {CONTESTANTS[name].kind for name in names}}
    if whose not in choices:
        raise ValueError(f"Memory can be measured of {', '.join(choices)}, got {whose!r}.")
    return [name for name in names if CONTESTANTS[name].kind in choices[whose]]
