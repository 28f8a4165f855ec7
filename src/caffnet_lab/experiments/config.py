"""Settings of runs: typed, resolved from a protocol, a TOML file and options. No torch here.

`Campaign` is what a user writes: an experiment, a protocol, methods, seeds, settings that differ from the protocol's.
`RunConfig` is one run with every setting resolved; it is stored in the record, and its digest names the record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from caffnet_lab.experiments.files import read_limited
from caffnet_lab.experiments.shape import is_number, shown
from caffnet_lab.experiments.yardsticks import tasks as yardsticks
from caffnet_lab.experiments.yardsticks.tasks import UNTRAINED, YARDSTICKS

PAPER_TASKS = ("pwc", "opt", "cbf")
TASKS = (*PAPER_TASKS, *YARDSTICKS)
PROTOCOLS = ("paper", "ours")
METHODS = {
    "pwc": ("nn", "hardnet", "caffnet-ff", "caffnet-tf"),
    "opt": ("ipopt", "nn", "hardnet", "caffnet-ff", "caffnet-ff-lite", "caffnet-tf"),
    "cbf": ("nn", "hardnet", "caffnet-ff", "post-hoc"),
    **yardsticks.METHODS,
}
#: Known in every experiment of the paper, though not a row of every table.
PAPER_METHODS = (
    *("nn", "hardnet", "caffnet-ff", "caffnet-ff-lite", "caffnet-ff-each", "caffnet-tf", "post-hoc", "repair"),
)
#: These begin with the weights of the soft network: projected as it is, or frozen while a null-space head is trained.
FROM_SOFT = ("post-hoc", "repair")
#: Timed beside the rows of a table: the paper's layer word for word, with all sub-constraints and with those of Lite.
TIMED_ONLY = {"opt": ("enumeration", "enumeration-lite")}
#: Every row of every table.
ALL_METHODS = tuple(dict.fromkeys((*PAPER_METHODS, *(m for rows in METHODS.values() for m in rows))))

#: The seeds behind the paper's tables, and those of the yardsticks.
SEEDS = {
    **{"pwc": (1, 3, 5, 6, 7), "opt": (1, 2, 5, 7, 12), "cbf": (2, 6, 7, 10, 11)},
    **dict.fromkeys(YARDSTICKS, yardsticks.SEEDS),
}
EPOCHS = {"pwc": 50_000, "opt": 10_000, "cbf": 2_000}
OUR_EPOCHS = {"pwc": 10_000, "opt": 600, "cbf": 300}
QUICK_FOLDER = "runs/quick"
QUICK_EPOCHS = {"pwc": 200, "opt": 40, "cbf": 2, **yardsticks.QUICK_EPOCHS}

SIZES = {"pwc": (1, 1), "opt": (3, 5), "cbf": (3, 2)}  # inputs and outputs
HIDDEN, LAYERS, WIDTH = 200, 3, 120


#: The least and the most of settings that are whole numbers; more than this would fill the memory or never end.
WHOLE_NUMBERS = {
    "epochs": (0, 10_000_000),
    "batch": (0, 10_000_000),
    "hidden": (1, 10_000),
    "feedforward": (1, 10_000),
}
MOST_THREADS = 1024  # and processes
MOST_SEED = 2**32 - 1
LARGEST_FILE = 2**20  # bytes of a config


class ConfigError(ValueError):
    """A setting is unknown, has the wrong type, or makes no sense."""


def check_whole(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number outside of its range.

    Raises:
        ConfigError: the number is too small or too large.
    """
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {shown(value)}.")
    if value > most:
        raise ConfigError(f"{name} must be at most {most}, got {shown(value)}.")


def make_folder(out: Path) -> None:
    """Make the folder of the records, before hours of work whose results could not be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a ValueError for characters that no path has
        reason = error.strerror if isinstance(error, OSError) else error
        where = str(out) if str(out).isprintable() else repr(str(out))
        raise ConfigError(f"out must be a folder, but {where} cannot be one: {reason}.") from None


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run, every setting resolved.

    Attributes:
        task: the experiment.
        method: the row of its table.
        seed: of the problem, the networks and the shuffling.
        protocol: where the settings came from.
        epochs: passes over the training data.
        learning_rate: of Adam, at the start.
        schedule: ``"constant"`` (paper), or ``"cosine"``: down to zero at the last epoch.
        batch: samples per step; 0 for all.
        penalty_weight: factor of the violations in the loss.
        penalty: ``"squared"`` (the authors' code) or ``"linear"`` (the paper's text).
        hidden: width of the feed-forward networks.
        feedforward: width of the feed-forward part of the transformer.
        batch_norm: normalise after each hidden linear map.
        dropout: share dropped after each activation.
        null_start: of the null-space head, ``"random"`` (paper) or ``"zero"``; ``"none"`` leaves the head out.
        null_rate: learning rate of the null-space head, relative to that of the rest.
        gradient: ``"exact"`` (paper) or ``"tangent"``.
        keep: evaluate the ``"last"`` weights (paper), or the ``"best"``: at the start of the epoch of lowest loss.
        dtype: ``"float64"`` (paper) or ``"float32"``.
        device: ``"cpu"`` or ``"cuda"``.
        activation: of the feed-forward networks, ``"relu"`` (paper) or ``"silu"``, which is smooth between data points.
        clip: shorten a gradient that is longer than this times the recent mean length; 0 for never (paper).
        adjoint: in a rollout, shorten a gradient with respect to a state that is longer than this; 0 for never (paper).
        goal_radius: in cbf, of the circle that counts as the goal while training; 0.1 in every test (paper).
        search: of CAffNet, ``"full"``, or ``"paper"``: with the compromises of dependent rows. They make a difference
            in cbf only: pwc has one output, and the rows of opt never contradict each other. The yardsticks have too
            many rows for either: ``"active"``.
        draws: where a seed starts, ``"native"``; or ``"paper"``, for cbf: the weights of feed-forward networks in the
            order and number type of the authors' code, the states as their GPU drew them.
    """

    task: str
    method: str
    seed: int
    protocol: str
    epochs: int
    learning_rate: float = 1e-4
    schedule: str = "constant"
    batch: int = 0
    penalty_weight: float = 100.0
    penalty: str = "squared"
    hidden: int = HIDDEN
    feedforward: int = WIDTH
    batch_norm: bool = False
    dropout: float = 0.0
    null_start: str = "random"
    null_rate: float = 1.0
    gradient: str = "exact"
    keep: str = "last"
    dtype: str = "float64"
    device: str = "cpu"
    activation: str = "relu"
    clip: float = 0.0
    adjoint: float = 0.0
    goal_radius: float = 0.1
    search: str = "full"
    draws: str = "native"

    @property
    def digest(self) -> str:
        """A fingerprint of all settings. Newer ones count only if not at their default: records keep their names."""
        settings = dataclasses.asdict(self)
        for name in ("activation", "clip", "adjoint", "null_rate", "goal_radius", "search", "draws"):
            if settings[name] == getattr(RunConfig, name):
                del settings[name]
        text = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The name of the record and of the checkpoint."""
        return f"{self.task}-{self.protocol}-{self.method}-seed{self.seed}-{self.digest}"

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.task} {self.protocol} {self.method} seed {self.seed}"

    @property
    def soft(self) -> RunConfig:
        """The soft network with the same settings, which a post-hoc projection and a repair begin with."""
        return dataclasses.replace(self, method="nn")

    @property
    def trained(self) -> RunConfig:
        """The run whose weights this one evaluates: a post-hoc projection trains nothing, it takes the soft network."""
        return self.soft if self.method == "post-hoc" else self


@dataclasses.dataclass(frozen=True)
class Campaign:
    """Several runs of one experiment.

    Attributes:
        task: the experiment.
        protocol: ``"paper"``, or ``"ours"``: plain networks of equal size without a null-space head, the tangent-cone
            gradient, the best weights by training loss, and what each task asks for: a smooth activation (pwc), a
            larger learning rate that ends at zero and small batches (opt, cbf), limited gradients (cbf). If empty the
            paper's, and for a yardstick ours, its only one.
        methods: rows of the table; all of the paper's if empty.
        seeds: the paper's if empty.
        settings: fields of `RunConfig` that differ from the protocol.
        out: folder of records and checkpoints; if empty ``results``, or ``runs/quick`` for quick runs, which are no
            evidence.
        jobs: runs at the same time.
        threads: threads per run.
        quick: one seed and few epochs, to see that everything works.
        checkpoint_seconds: time between checkpoints.
    """

    task: str
    protocol: str = ""
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    out: str = ""
    jobs: int = 1
    threads: int = 1
    quick: bool = False
    checkpoint_seconds: float = 20.0

    def __post_init__(self) -> None:
        for name in ("jobs", "threads"):
            check_whole(name, getattr(self, name), 1, MOST_THREADS)
        if not self.checkpoint_seconds >= 0:
            raise ConfigError(f"checkpoint_seconds must be at least 0, got {self.checkpoint_seconds}.")

    @property
    def folder(self) -> Path:
        """Folder of all results."""
        return Path(self.out or (QUICK_FOLDER if self.quick else "results"))

    @property
    def runs(self) -> list[RunConfig]:
        """Every run once, seed by seed."""
        _choose("task", self.task, TASKS)
        seeds = self.seeds or (SEEDS[self.task][:1] if self.quick else SEEDS[self.task])
        methods = self.methods or METHODS[self.task]
        settings = {"epochs": QUICK_EPOCHS[self.task], **self.settings} if self.quick else self.settings
        protocol = self.protocol or default_protocol(self.task)
        # Rows that are not trained depend only on the task. A yardstick is one fixed task, so they run once.
        pairs = (
            (SEEDS[self.task][0] if self.task in YARDSTICKS and method in UNTRAINED else seed, method)
            for seed in seeds
            for method in methods
        )
        return list(dict.fromkeys(resolve(self.task, method, seed, protocol, settings) for seed, method in pairs))


def default_protocol(task: str) -> str:
    """The paper's for its experiments; the yardsticks have ours only."""
    return "ours" if task in YARDSTICKS else "paper"


def resolve(
    task: str, method: str, seed: int, protocol: str = "paper", settings: Mapping[str, Any] | None = None
) -> RunConfig:
    """The settings of one run: the protocol's, with `settings` on top.

    >>> resolve("opt", "caffnet-ff", 1, "paper").dropout
    0.2
    >>> resolve("opt", "caffnet-ff", 1, "ours", {"epochs": 1500}).epochs
    1500
    """
    _choose("task", task, TASKS)
    _choose("protocol", protocol, PROTOCOLS)
    if task in YARDSTICKS and protocol != "ours":
        raise ConfigError(f"{task} has the protocol ours only, got {protocol}.")
    _choose("method", method, dict.fromkeys((*METHODS[task], *(PAPER_METHODS if task in PAPER_TASKS else ()))))
    chosen = {**_protocol_settings(task, method, protocol), **(settings or {})}
    fixed = {"task", "method", "seed", "protocol"}
    tunable = {f.name: f for f in dataclasses.fields(RunConfig) if f.name not in fixed}
    for key, value in chosen.items():
        if key not in tunable:
            raise ConfigError(f"Unknown setting {key!r}. Known: {', '.join(tunable)}.")
        chosen[key] = _typed(key, value, str(tunable[key].type))
    config = RunConfig(task, method, _typed("seed", seed, "int"), protocol, **chosen)
    for name, known in (
        ("schedule", ("constant", "cosine")),
        ("penalty", ("squared", "linear")),
        ("null_start", ("random", "zero", "none")),
        ("gradient", ("exact", "tangent")),
        ("keep", ("last", "best")),
        ("dtype", ("float32", "float64")),
        ("device", ("cpu", "cuda")),
        ("activation", ("relu", "silu")),
        ("search", ("full", "paper", "active")),
        ("draws", ("native", "paper")),
    ):
        _choose(name, getattr(config, name), known)
    for name, (least, most) in WHOLE_NUMBERS.items():
        check_whole(name, getattr(config, name), least, most)
    for name in ("learning_rate", "clip", "adjoint", "goal_radius", "null_rate", "penalty_weight"):
        value = getattr(config, name)
        if not math.isfinite(value) or value < 0:
            wanted = "at least 0.0" if math.isfinite(value) else "finite"
            raise ConfigError(f"{name} must be {wanted}, got {value}.")
    if not 0 <= config.seed < 2**32:
        raise ConfigError(f"seed must be in [0, 2**32), got {shown(config.seed)}.")
    for name in ("adjoint", "goal_radius", "draws"):
        if config.task != "cbf" and getattr(config, name) != getattr(RunConfig, name):
            raise ConfigError(f"{name} is about the rollouts of cbf, got task {config.task}.")
    if config.draws == "paper" and config.method == "caffnet-tf":
        raise ConfigError('draws "paper" is known for feed-forward networks: set draws = "native".')
    if config.search == "paper" and config.method not in ("caffnet-ff", "caffnet-tf"):
        raise ConfigError(f'search "paper" is one of caffnet-ff and caffnet-tf, got method {config.method}.')
    if config.search == "paper" and config.gradient != "exact":
        reason = f'search "paper" goes with gradient "exact", got {config.gradient!r}'
        raise ConfigError(f'{reason}: set search = "full" too.')
    if config.method == "repair" and (config.batch_norm or config.dropout or config.null_start == "none"):
        raise ConfigError(
            "repair keeps f as it is and trains w: set batch_norm=false and dropout=0, which would change f, and "
            'null_start to "zero" or "random".'
        )
    if config.method == "caffnet-ff-each" and (
        config.task != "opt" or config.null_start != "zero" or config.gradient != "exact" or config.search != "full"
    ):
        raise ConfigError(
            "caffnet-ff-each, a w for every choice of rows, is for opt, with null_start=zero, gradient=exact and "
            f"search=full, got {config.task}, {config.null_start}, {config.gradient} and {config.search}."
        )
    if not 0 <= config.dropout < 1:
        raise ConfigError(f"dropout must be in [0, 1), got {config.dropout}.")
    return config


def _protocol_settings(task: str, method: str, protocol: str) -> dict[str, Any]:
    if task in YARDSTICKS:
        return yardsticks.settings(task, method)
    settings: dict[str, Any]
    if protocol == "paper":
        # The feed-forward rows of the opt table come from networks with BatchNorm and dropout.
        regular = task == "opt" and method not in ("caffnet-tf", "ipopt")
        # Dependent rows: see `search`. A projection afterwards has no w, and needs none of them.
        search = "paper" if task == "cbf" and method in ("caffnet-ff", "caffnet-tf") else "full"
        draws = "paper" if task == "cbf" and method != "caffnet-tf" else "native"
        settings = {"epochs": EPOCHS[task], "batch_norm": regular, "dropout": 0.2 if regular else 0.0}
        if method == "caffnet-ff-each":
            settings["null_start"] = "zero"
        return settings | {"search": search, "draws": draws}
    # The start of w matters to a repair only; the rivals, which have none, keep it in their names.
    settings = {"epochs": OUR_EPOCHS[task], "null_start": "zero", "gradient": "tangent", "keep": "best"}
    # Equal parameter counts: those of the paper's CAffNet-FF, which has two networks, f and w. Here f is alone.
    n_in, n_out = SIZES[task]
    budget = 2 * feedforward_size(n_in, n_out, HIDDEN)
    if method == "caffnet-tf":
        settings["feedforward"] = _nearest(lambda h: transformer_size(n_in, n_out, h, networks=1), budget)
    elif method not in UNTRAINED:
        settings["hidden"] = _nearest(lambda h: feedforward_size(n_in, n_out, h), budget)
    if method == "caffnet-ff-each":
        settings["gradient"] = "exact"
    elif method.startswith("caffnet"):
        # Whatever w can do along a face f can do too; but where the face changes, and where f leaves the set, w makes
        # the output jump by its own size. In a closed loop that becomes a jump of the whole drive.
        settings["null_start"] = "none"
    if task == "pwc" and method != "caffnet-tf":
        settings["activation"] = "silu"
    if task != "pwc":
        settings |= {"learning_rate": 1e-3, "schedule": "cosine"}
    if task == "opt":
        # Ten steps in the time of one. Tried on programs that are in no table: with seed 102, 300 epochs leave 3.0e-6
        # of the distance to IPOPT, 1000 epochs of whole batches 6.7e-6; with seed 103, 300 epochs leave 2.8e-6.
        settings["batch"] = 100
        if method == "caffnet-tf":
            # Transformers learn more slowly: with seeds 31 and 32, 600 epochs leave 3.2e-5 and 1.8e-5, 1200 leave 5e-6.
            settings["epochs"] *= 2
    if task == "cbf":
        # Small batches take more steps per epoch. The limit: for a robot half a metre from the goal, with a cost of
        # 1e3 |p|², a metre matters by 2e3 · 0.5 m · 100 steps = 1e5; so neither those who are stuck, with a final cost
        # of 1e7, nor those who are far away outweigh the last metre of the others. The goal: inside the circle the
        # robot stays, whichever way it came in, so nothing teaches it not to graze the edge; unseen starts then miss it
        # by a centimetre. A smaller circle while training leaves room.
        settings |= {"learning_rate": 2e-3, "batch": 50, "adjoint": 1e5, "clip": 1.0, "goal_radius": 0.05}
    return settings


def feedforward_size(n_in: int, n_out: int, hidden: int) -> int:
    """Parameters of one feed-forward network.

    >>> feedforward_size(1, 1, 200)
    81001
    """
    return (n_in + 1) * hidden + (LAYERS - 1) * (hidden + 1) * hidden + (hidden + 1) * n_out


def transformer_size(n_in: int, n_out: int, feedforward: int, networks: int = 2) -> int:
    """Parameters of transformers, one or two, that share the embedding.

    >>> transformer_size(1, 1, 120)
    175682
    """
    attention = 4 * (WIDTH + 1) * WIDTH
    block = attention + (WIDTH + 1) * feedforward + (feedforward + 1) * WIDTH + 4 * WIDTH
    return (n_in + 1) * WIDTH + networks * (block + (WIDTH + 1) * n_out)


def _nearest(size: Any, budget: int) -> int:
    return min(range(1, 1000), key=lambda width: abs(size(width) - budget))


# ---------------------------------------------------------------------------------------------------- reading


def load_campaign(path: str | Path | None = None, default_device: str = "cpu", /, **options: Any) -> Campaign:
    """A campaign from a TOML file, options on top. Options that are None count as not given.

    The file holds fields of `Campaign` and settings of `RunConfig` side by side:

        task = "opt"
        protocol = "ours"
        methods = ["caffnet-ff", "caffnet-tf"]
        seeds = [1, 2, 5, 7, 12]
        epochs = 1500
    """
    written: dict[str, Any] = {}
    if path is not None:
        try:
            written = tomllib.loads(read_limited(Path(path), LARGEST_FILE).decode("utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"There is no config file {path}.") from None
        except OSError as error:
            raise ConfigError(f"The config file {path} cannot be read: {error.strerror}.") from None
        except RecursionError:
            raise ConfigError(f"{path} is not a config: it has lists in lists, deeper than any setting has.") from None
        except ValueError as error:  # not TOML, not UTF-8, or too large
            raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    written |= {key: value for key, value in options.items() if value is not None}
    of_campaign = {f.name: f for f in dataclasses.fields(Campaign) if f.name != "settings"}
    of_run = {f.name for f in dataclasses.fields(RunConfig)} - {"task", "method", "seed", "protocol"}
    unknown = sorted(set(written) - set(of_campaign) - of_run)
    if unknown:
        known = ", ".join([*of_campaign, *sorted(of_run)])
        where = f" in {path}" if path is not None else ""
        raise ConfigError(f"Unknown setting{'s' * (len(unknown) > 1)} {', '.join(unknown)}{where}. Known: {known}.")
    if "task" not in written:
        raise ConfigError(f"Name a task: one of {', '.join(TASKS)}.")
    given = {key: _typed(key, written[key], str(of_campaign[key].type)) for key in of_campaign if key in written}
    settings = {"device": default_device} | {key: written[key] for key in written if key in of_run}
    campaign = Campaign(**given, settings=settings)
    _ = campaign.runs  # every run resolves, or says why not
    return campaign


def parse_settings(written: Iterable[str]) -> dict[str, Any]:
    """Settings as on a command line; a value is TOML, or a word without quotes.

    >>> parse_settings(["clip=1.0", "activation=silu", "seeds=[1, 3]"])
    {'clip': 1.0, 'activation': 'silu', 'seeds': [1, 3]}
    """
    found: dict[str, Any] = {}
    for text in written:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"A setting is written name=value, got {shown(text)}.")
        if (name := name.strip()) in found:
            raise ConfigError(f"{name} is set twice.")
        try:
            found[name] = tomllib.loads(f"value = {value}")["value"]
        except ValueError:
            found[name] = value.strip()
        except RecursionError:
            raise ConfigError(f"{name} has lists in lists, deeper than any setting has.") from None
    return found


def _choose(name: str, value: Any, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {shown(value)}.")


def _typed(name: str, value: Any, kind: str) -> Any:
    """The value in the type of its field; TOML's integers pass as floats, nothing else is converted."""
    if kind.startswith("tuple"):
        inner = "str" if "str" in kind else "int"
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} must be a list, got {shown(value)}.")
        return tuple(_typed(name, item, inner) for item in value)
    if kind == "float" and isinstance(value, int) and is_number(value):
        return float(value)
    types = {"int": int, "float": float, "str": str, "bool": bool}
    if not isinstance(value, types[kind]) or (kind == "int" and isinstance(value, bool)):
        raise ConfigError(f"{name} must be of type {kind}, got {shown(value)}.")
    return value
