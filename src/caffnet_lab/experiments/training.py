"""The training loop: Adam on cost + weight · penalty. A killed run continues and ends as if it had never stopped.

Everything that decides the next step is in the checkpoint: weights, moments, random state, history, best weights.
Batches are drawn from a stream of their own that depends on the seed and the epoch only. So the result depends neither
on when checkpoints were written, nor on whether the run was ever interrupted.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from caffnet import CAffNet
from caffnet_lab.experiments.checkpoint import Checkpoint, CheckpointError
from caffnet_lab.experiments.config import ConfigError, RunConfig
from caffnet_lab.experiments.distributed import Group
from caffnet_lab.experiments.problem import Problem, synchronise
from caffnet_lab.experiments.provenance import versions
from caffnet_lab.experiments.shape import FLOAT_OR_NULL, NUMBER, TEXT_OR_NULL, WHOLE, Many, faults

COST, PENALTY, WORST = 0, 1, 2  # columns of the history
WARM_UP = 3  # epochs after each start that the clock does not count
TICK = 0.5  # seconds between two looks at the progress

#: The parts of a checkpoint beside its tensors.
PROGRESS: dict[str, Any] = {
    **{"epoch": WHOLE, "starts": Many(TEXT_OR_NULL, least=0), "best_epoch": WHOLE, "best_loss": FLOAT_OR_NULL},
    **{"seconds": NUMBER, "warm_seconds": NUMBER, "warm_epochs": WHOLE, "usual_length": FLOAT_OR_NULL},
}


@dataclasses.dataclass(frozen=True)
class Tick:
    """A sign of life: epochs done, present loss and largest violation."""

    epoch: int
    epochs: int
    loss: float
    worst: float


@dataclasses.dataclass(frozen=True)
class Trained:
    """Results of training, besides the weights in the model.

    Attributes:
        history: cost, penalty and largest violation of every epoch, ``(epochs, 3)``; shorter if the weights were lost.
        ms_per_epoch: mean time of an epoch after warm-up, synchronised; None if there was none.
        seconds: time spent in training.
        starts: the commit that each start of the run came from; None where it is not known.
        evaluated_epoch: the epoch whose weights are evaluated.
    """

    history: Tensor
    ms_per_epoch: float | None
    seconds: float
    starts: list[str | None]
    evaluated_epoch: int


class DivergedError(RuntimeError):
    """The weights to be evaluated are NaN or infinite."""


class _Step(nn.Module):
    """The loss as a module, so that DistributedDataParallel sees one forward pass per step, rollouts included."""

    def __init__(self, problem: Problem, model: nn.Module, penalty: str):
        super().__init__()
        self.model, self.problem, self.penalty = model, problem, penalty

    def forward(self, x: Tensor):
        return self.problem.loss(self.model, x, self.penalty)


class _Run:
    """A run in progress."""

    def __init__(self, config: RunConfig, problem: Problem, model: nn.Module, group: Group):
        if group.size > 1 and (config.batch_norm or config.dropout):
            raise ConfigError(
                "BatchNorm and dropout need the whole batch in one process: run without torchrun, or with "
                "batch_norm=false and dropout=0."
            )
        samples = len(problem.train)
        batch = min(config.batch or samples, samples)
        last = samples % batch or batch
        if last < group.size:
            raise ConfigError(
                f"With batch {config.batch} the last of {samples} samples are {last}, too few for {group.size} "
                "processes: choose another batch."
            )
        if config.batch_norm and last == 1:
            raise ConfigError(
                f"With batch {config.batch} the last of {samples} samples is alone, and BatchNorm needs two: choose "
                "another batch, or batch_norm=false."
            )
        self.config, self.problem, self.model, self.group = config, problem, model, group
        self.device = problem.train.device
        self.optimizer = torch.optim.Adam(_parameter_groups(model, config.null_rate), lr=0.0, fused=True)
        self.step: nn.Module = _Step(problem, model, config.penalty)
        if group.size > 1:
            self.step = DistributedDataParallel(self.step)
        self.history = torch.zeros(config.epochs, 3, dtype=torch.float64, device=self.device)
        self.epoch = 0
        self.starts: list[str | None] = []
        self.seconds, self.warm_seconds, self.warm_epochs = 0.0, 0.0, 0
        self.best: dict[str, Tensor] = {}
        self.best_epoch, self.best_loss = 0, float("inf")
        self.keeps_best = config.keep == "best"
        self.usual_length = 0.0
        self._whole = group.share(problem.train)
        torch.manual_seed(config.seed)

    # -------------------------------------------------------------------------------------------- one epoch

    def train_epoch(self) -> None:
        self.model.train()
        for settings in self.optimizer.param_groups:
            settings["lr"] = self._rate() * settings["relative_rate"]
        row = torch.zeros(3, dtype=torch.float64, device=self.device)
        # Under all names, where weights are shared.
        weights = self.model.named_parameters(remove_duplicate=False) if self.keeps_best else ()
        start = {name: weight.detach().clone() for name, weight in weights}
        for x in self._batches():
            loss = self.step(x)
            weighted = loss.cost + self.config.penalty_weight * loss.penalty
            self.optimizer.zero_grad(set_to_none=True)
            weighted.backward()
            if self.group.size > 1:
                # They were averaged over processes, and the loss is a sum over samples. (Not the loss times the number
                # of processes: limits inside the backward pass would see the factor.)
                for gradient in (p.grad for p in self.model.parameters() if p.grad is not None):
                    gradient.mul_(self.group.size)
            total = self.group.total(torch.stack([loss.cost.detach(), loss.penalty.detach()]).double())
            row[:2] += total
            row[WORST] = torch.maximum(row[WORST], self.group.largest(loss.worst.double()))
            if self.config.clip:
                self._shorten()
            self.optimizer.step()
        if self.keeps_best and self._loss(row) < self.best_loss:
            # The weights that had this loss; with several batches nearly so, as they moved between them.
            now = {name: t.detach().clone() for name, t in self.model.state_dict().items()}  # running statistics too
            self.best, self.best_loss, self.best_epoch = now | start, self._loss(row), self.epoch
        self.history[self.epoch] = row
        self.epoch += 1

    def _shorten(self) -> None:
        """Limit the gradient: that of a rollout is sometimes a thousand times longer than usual."""
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        length = float(norm)
        usual = self.usual_length or length
        limit = self.config.clip * usual
        if not math.isfinite(length):
            self.optimizer.zero_grad(set_to_none=True)  # nothing to learn from
            return
        if length > limit:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        self.usual_length = 0.9 * usual + 0.1 * min(length, 10 * limit)

    def _rate(self) -> float:
        """The learning rate of this epoch."""
        rate = self.config.learning_rate
        if self.config.schedule == "constant":
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * self.epoch / self.config.epochs))

    def _batches(self) -> list[Tensor]:
        data, size = self.problem.train, self.config.batch
        if not 0 < size < len(data):
            return [self._whole]  # always the same tensor: the constraints of the data are computed once
        stream = torch.Generator().manual_seed(self.config.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(data), generator=stream).to(data.device)
        return [self.group.share(data[part]) for part in order.split(size)]

    def _loss(self, row: Tensor) -> float:
        return float(row[COST] + self.config.penalty_weight * row[PENALTY])

    def tick(self) -> Tick:
        row = self.history[max(self.epoch - 1, 0)] if self.config.epochs else torch.zeros(3)
        return Tick(self.epoch, self.config.epochs, self._loss(row), float(row[WORST]))

    def count_time(self, seconds: float, warm: bool) -> None:
        self.seconds += seconds
        if warm:
            self.warm_seconds += seconds
            self.warm_epochs += 1

    def finish(self) -> Trained:
        """Put the weights to be evaluated into the model."""
        best = self.keeps_best and bool(self.best)
        if self.lost and not best:
            raise self._diverged()
        if best:
            self.model.load_state_dict(self.best)
        self.model.eval()
        mean = 1e3 * self.warm_seconds / self.warm_epochs if self.warm_epochs else None
        epoch = self.best_epoch if best else self.config.epochs
        return Trained(self.history[: self.epoch].cpu(), mean, self.seconds, self.starts, epoch)

    @property
    def lost(self) -> bool:
        """Check whether the weights contain NaN or infinity, from which training cannot recover."""
        return not all(bool(weight.isfinite().all()) for weight in self.model.parameters())

    def _diverged(self) -> DivergedError:
        finite = self.history[: self.epoch].isfinite().all(-1).nonzero()
        since = int(finite[-1]) + 1 if len(finite) else 0
        return DivergedError(
            f"The loss is not a finite number since epoch {since}: lower learning_rate "
            f"({self.config.learning_rate:g}), limit gradients (clip), or keep the best weights (keep=best)."
        )

    # -------------------------------------------------------------------------------------------- saved and restored

    def snapshot(self) -> Checkpoint:
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"best.{name}": t for name, t in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{key}": value for key, value in state.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        tensors["history"] = self.history[: self.epoch]
        progress = {
            "epoch": self.epoch,
            "starts": self.starts,
            "seconds": self.seconds,
            "warm_seconds": self.warm_seconds,
            "warm_epochs": self.warm_epochs,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss if self.best else None,
            "usual_length": self.usual_length,
        }
        return Checkpoint(self.config.digest, tensors, progress)

    def restore(self, saved: Checkpoint, path: Path) -> None:
        """Continue from a checkpoint.

        Raises:
            CheckpointError: it fits the settings, but not the network or the epochs.
        """
        try:
            self._restore(saved)
        except torch.OutOfMemoryError:  # a RuntimeError too, but not the file's fault
            raise
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"{path} does not fit this run ({reason}). Delete it to start the run again."
            ) from None

    def _restore(self, saved: Checkpoint) -> None:
        absent, wrong = faults(saved.progress, PROGRESS)
        if absent or wrong:
            raise ValueError("; ".join([*wrong, *[f"it has no {', '.join(absent)}"] * bool(absent)]))
        epoch, known = saved.progress["epoch"], len(saved.tensors["history"])
        if not epoch == known <= self.config.epochs:
            raise ValueError(f"it is after epoch {epoch} of {self.config.epochs}, with the losses of {known}")
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "adam": {}, "random": {}}
        for name, value in saved.tensors.items():
            kind, _, rest = name.partition(".")
            if rest:
                groups[kind][rest] = value
        self.model.load_state_dict({name: t.to(self.device) for name, t in groups["model"].items()})
        self.best = {name: t.to(self.device) for name, t in groups["best"].items()}
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": _moments(groups["adam"]), "param_groups": whole["param_groups"]})
        torch.set_rng_state(groups["random"]["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(groups["random"]["cuda"], self.device)
        progress = saved.progress
        self.epoch, self.starts = progress["epoch"], progress["starts"]
        self.seconds = progress["seconds"]
        self.warm_seconds, self.warm_epochs = progress["warm_seconds"], progress["warm_epochs"]
        self.best_epoch = progress["best_epoch"]
        self.best_loss = float("inf") if progress["best_loss"] is None else progress["best_loss"]
        self.usual_length = progress["usual_length"]
        self.history[: self.epoch] = saved.tensors["history"].to(self.device)


def _parameter_groups(model: nn.Module, null_rate: float) -> list[dict[str, Any]]:
    """The weights with their relative learning rates: those that only the null-space head has, and all others."""
    head = model.null.parameters() if isinstance(model, CAffNet) and model.null is not None else ()
    shared = set(model.backbone.parameters()) if isinstance(model, CAffNet) else set()
    own = {weight for weight in head if weight not in shared}
    groups = [
        {"params": [weight for weight in model.parameters() if weight not in own], "relative_rate": 1.0},
        {"params": [weight for weight in model.parameters() if weight in own], "relative_rate": null_rate},
    ]
    return [group for group in groups if group["params"]]


def _moments(tensors: dict[str, Tensor]) -> dict[int, dict[str, Any]]:
    """Adam's state by parameter, from names such as ``3.exp_avg``."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        found.setdefault(int(index), {})[key] = value
    return found


def epochs_of(config: RunConfig, problem: Problem, model: nn.Module) -> Callable[[], None]:
    """A function that trains for one epoch with each call, at most `config.epochs` times; nothing is saved."""
    return _Run(config, problem, model, Group()).train_epoch


def train(
    config: RunConfig,
    problem: Problem,
    model: nn.Module,
    path: Path,
    *,
    group: Group | None = None,
    every: float = 20.0,
    on_tick: Callable[[Tick], None] | None = None,
) -> Trained:
    """Train the model of a run, from its checkpoint if there is one; the model then holds the weights to evaluate.

    Args:
        config: the run.
        problem: its data and loss.
        model: as `build_model` gave it.
        path: the checkpoint.
        group: the processes that share each batch.
        every: seconds between checkpoints.
        on_tick: called now and then.

    Raises:
        CheckpointError: there is a checkpoint that cannot be used.
        DivergedError: the weights are NaN or infinite.
    """
    run = _Run(config, problem, model, Group() if group is None else group)
    if path.exists():
        run.restore(Checkpoint.read(path, config.digest), path)
    run.group.wait()
    first, saved, shown = run.epoch, time.perf_counter(), 0.0
    run.starts += [versions().get("revision")] if first < config.epochs else []
    while run.epoch < config.epochs:
        began = time.perf_counter()
        run.train_epoch()
        if not run.history[run.epoch - 1].isfinite().all() and run.lost:
            break
        synchronise(run.device)
        now = time.perf_counter()
        run.count_time(now - began, warm=run.epoch - first > WARM_UP)
        last = run.epoch == config.epochs
        if not run.group.leads:
            continue
        if on_tick is not None and (last or now - shown > TICK):
            on_tick(run.tick())
            shown = now
        if last or now - saved > every:
            run.snapshot().write(path)
            saved = time.perf_counter()
    return run.finish()
