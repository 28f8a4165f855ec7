"""Many runs: one after the other, in parallel processes, or each in all processes of `torchrun`."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import torch

from caffnet_lab.experiments.config import FROM_SOFT, Campaign, RunConfig, make_folder
from caffnet_lab.experiments.distributed import process_group, started_by_torchrun
from caffnet_lab.experiments.run import run_one
from caffnet_lab.experiments.training import Tick

OnTick = Callable[[RunConfig, Tick], None]
OnDone = Callable[[RunConfig, dict[str, Any]], None]


class WorkerError(RuntimeError):
    """A process of a campaign was killed."""


def run_campaign(
    campaign: Campaign, on_tick: OnTick | None = None, on_done: OnDone | None = None
) -> list[dict[str, Any]]:
    """All runs of a campaign, `jobs` at a time, and their records in the order of the runs.

    A run that begins with the soft network (post-hoc, repair) waits for it. If a run fails the others continue; then
    the first error is raised, with a note that names the run.
    """
    out = campaign.folder
    make_folder(out)
    book = _Book(on_done)
    if campaign.jobs > 1 and not started_by_torchrun():
        _run_in_parallel(campaign, out, on_tick, book)
    else:
        _run_in_turn(campaign, out, on_tick, book)
    failed = [config for config in campaign.runs if config in book.failed]
    if failed:
        error = book.failed[failed[0]]
        error.add_note(f"The run was {failed[0].label}.")
        if failed[1:]:
            error.add_note(f"Failed too: {', '.join(config.label for config in failed[1:])}.")
        raise error
    return [book.done[config] for config in campaign.runs]


class _Book:
    """Outcome of each run."""

    def __init__(self, on_done: OnDone | None):
        self.done: dict[RunConfig, dict[str, Any]] = {}
        self.failed: dict[RunConfig, Exception] = {}
        self.on_done = on_done

    def enter(self, config: RunConfig, finish: Callable[[], dict[str, Any]]) -> None:
        try:
            self.done[config] = finish()
        except Exception as error:
            self.failed[config] = error
        else:
            if self.on_done is not None:
                self.on_done(config, self.done[config])


def _waves(runs: list[RunConfig]) -> Iterator[list[RunConfig]]:
    """Runs that begin with a soft network come last: its weights are then there."""
    for late in (False, True):
        wave = [config for config in runs if (config.method in FROM_SOFT) == late]
        if wave:
            yield wave


def _run_in_turn(campaign: Campaign, out: Path, on_tick: OnTick | None, book: _Book) -> None:
    torch.set_num_threads(campaign.threads)
    with process_group(campaign.runs[0].device) as group:
        book.on_done = book.on_done if group.leads else None
        for config in (config for wave in _waves(campaign.runs) for config in wave):
            announce = None if on_tick is None else partial(on_tick, config)
            book.enter(
                config, partial(run_one, config, out, every=campaign.checkpoint_seconds, on_tick=announce, group=group)
            )
            if book.failed and group.size > 1:
                return  # the other processes may be anywhere in this run: none can continue


def _run_in_parallel(campaign: Campaign, out: Path, on_tick: OnTick | None, book: _Book) -> None:
    """One process per run; ticks come back through a queue."""
    context = multiprocessing.get_context("spawn")
    by_name = {config.name: config for config in campaign.runs}
    # A pipe, not a manager: that is a process of its own, which stays when this one is killed. A tick is so short that
    # it is written in one piece, even by a process that is killed.
    queue = context.SimpleQueue()
    others = multiprocessing.active_children()
    setup = (campaign.threads, os.getpid(), queue)
    pool = ProcessPoolExecutor(campaign.jobs, mp_context=context, initializer=_set_up, initargs=setup)
    try:
        for wave in _waves(campaign.runs):
            waiting = {pool.submit(_work, config, out, campaign.checkpoint_seconds): config for config in wave}
            while waiting:
                finished, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                while not queue.empty():
                    name, tick = queue.get()
                    if on_tick is not None:
                        on_tick(by_name[name], tick)
                for future in finished:
                    if isinstance(future.exception(), BrokenProcessPool):
                        raise _killed(book.failed)
                    book.enter(waiting.pop(future), future.result)
        pool.shutdown()
    except BaseException:  # also when the user stops it: what runs now is saved up to its last checkpoint
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        queue.close()


def _killed(failed: Iterable[RunConfig]) -> WorkerError:
    error = WorkerError(
        "A process was killed from outside, often because memory ran out. Finished runs are recorded, the others "
        "continue from their checkpoints: run the same command again, perhaps with fewer jobs."
    )
    if labels := [config.label for config in failed]:
        error.add_note(f"Failed before, for other reasons: {', '.join(labels)}.")
    return error


_worker: dict[str, Any] = {}


def _set_up(threads: int, parent: int, queue: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    torch.set_num_threads(threads)
    _worker.update(parent=parent, queue=queue)


def _work(config: RunConfig, out: Path, every: float) -> dict[str, Any]:
    def announce(tick: Tick) -> None:
        if os.getppid() != _worker["parent"]:
            os._exit(1)  # the parent was killed: leave the run to whoever starts it again
        _worker["queue"].put((config.name, tick))

    return run_one(config, out, every=every, on_tick=announce)
