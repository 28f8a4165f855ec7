"""The page of the yardsticks says what the records say."""

from pathlib import Path

import pytest
from scipy import stats

from caffnet_lab.experiments.config import resolve
from caffnet_lab.experiments.records import RecordError, read_records, read_timings, write_record
from caffnet_lab.experiments.report import write_report, yardsticks
from caffnet_lab.experiments.report.formats import as_markdown, cell_text
from caffnet_lab.experiments.report.groups import group_records
from caffnet_lab.experiments.report.null_space import null_space_table
from caffnet_lab.experiments.report.tables import speed_table
from caffnet_lab.experiments.report.yardstick_numbers import GOALS, PUBLISHED
from caffnet_lab.experiments.report.yardsticks import COLUMNS, NAMES, STUDENT, paired, yardstick_tables
from caffnet_lab.experiments.yardsticks.tasks import FORECASTS, OPTIMISED, UNTRAINED, YARDSTICKS


def made(task: str, method: str, seed: int = 1, value: float = 0.001, violation: float = 0.0, **settings) -> dict:
    """A record as a run would write it."""
    config = resolve(task, method, seed, "ours", settings)
    broken = dict.fromkeys(("mean_of_max", "max", "mean", "percent"), violation) | {"exact_zeros": 1, "entries": 2}
    if task in OPTIMISED:
        gap = dict.fromkeys(("mean", "max", "min", "geometric", "percent", "max_percent"), value)
        found = {"objective": -1.0 + value, "optimum": -1.0, "gap": gap, "infeasible": 100.0 * (violation > 0)}
        found |= {"inequality": broken, "equality": broken}
        curves = {"gap_percent": [0.0, value]}
    elif task in FORECASTS:
        found = {"score": value, "incoherence": 0.0, "negative": 0.0, "infeasible": 0.0, "inequality": broken}
        curves = {"target": [1.0, 2.0], "forecast": [1.0, 2.0]}
    else:
        found = {"cost": value, "collided": 0.0, "clearance": 0.1, "inequality": broken}
        curves = {"paths": [[[0.0, 0.0], [1.0, 1.0]]]}
    history = {"epoch": [0, 1], "loss": [2.0, 1.0], "cost": [2.0, 1.0], "worst": [0.0, 0.0]}
    training = {"parameters": 5, "ms_per_epoch": 10.0, "seconds": 2.0, "starts": 1, "history": history}
    return {
        "name": config.name,
        "config": {field: getattr(config, field) for field in config.__dataclass_fields__},
        "versions": {"python": "3.11"},
        "machine": {"processor": "x", "threads": 1},
        "training": None if method in UNTRAINED else training,
        "evaluation": {**found, "test_ms": 4.0},
        "curves": curves,
        "finished": "2026-01-01T00:00:00+00:00",
    }


def test_half_of_an_interval_is_students():
    for degrees, half in enumerate(STUDENT, 1):
        assert half == pytest.approx(stats.t.ppf(0.975, degrees), abs=5e-4)


@pytest.mark.parametrize("apart", [[1.0, 1.2, 0.8], [-0.5, -0.6, -0.4, -0.55], [1.0, -1.0, 0.5, 0.1, 0.2]])
def test_intervals_of_pairs(apart):
    low, high = stats.t.interval(0.95, len(apart) - 1, stats.tmean(apart), stats.sem(apart))
    mean, interval, verdict = paired(apart)
    assert mean.mean == pytest.approx(stats.tmean(apart))
    told = [float(part) for part in (interval.text or "").split(" to ")]
    assert told == pytest.approx([low, high], abs=1e-3)
    assert verdict.text == ("ours is better" if low > 0 else "ours is worse" if high < 0 else "undecided")


def test_one_seed_decides_nothing():
    assert paired([1.0])[2].text == "open: one seed"


def test_methods_are_paired_by_seed_and_infeasible_ones_are_marked():
    records = [made("dc3-simple", "orthogonal", seed, 0.001 * seed) for seed in (1, 2, 3)]
    records += [made("dc3-simple", "nn", seed, 1 + 0.001 * seed, violation=0.1) for seed in (2, 3, 4)]
    records += [made("dc3-simple", "daqp", value=0.0), made("dc3-simple", "orthogonal", 1, 0.1, gradient="exact")]
    results, pairs, goals = yardstick_tables(group_records(records), "dc3-simple")
    names = [row[0].text for row in results.rows]
    assert names[:4] == ["DAQP", "NN", "CAffNet without w", "CAffNet without w [gradient=exact]"]
    assert names[4:] == [row.name for row in PUBLISHED["dc3-simple"]] and results.quiet == frozenset(range(4, 8))
    assert [[cell_text(cell) for cell in row][:3] for row in pairs.rows] == [
        ["NN", "2", "1.0000"],
        ["CAffNet without w [gradient=exact]", "1", "0.0990"],
    ]
    assert [cell_text(row[-1]) for row in pairs.rows] == ["it breaks rows", "open: one seed"]
    assert [cell_text(row[1]) for row in goals.rows] == [
        "so far holds: Gap (%) 0.0030, worst gap (%) 0.0030, ineq. true max 0, eq. true max 0",
        "open: no full runs of No learning: the unconstrained minimiser, projected in the metric of the objective",
    ]


def test_a_goal_that_one_seed_misses_does_not_hold():
    records = [made("dcopf-118", "orthogonal", seed, 0.01 if seed < 5 else 0.02) for seed in (1, 2, 3, 4, 5)]
    *_, goals = yardstick_tables(group_records(records), "dcopf-118")
    assert cell_text(goals.rows[0][1]) == "does not hold: Gap (%) 0.0200, Infeasible (%) 0"


def test_records_of_other_samples_are_refused():
    records = [made("dcopf-118", "orthogonal", seed) for seed in (1, 2, 3)]
    records[1]["evaluation"]["optimum"] = -1.001
    with pytest.raises(RecordError, match="1 of 3 records of dcopf-118 were tested on other samples"):
        yardstick_tables(group_records(records), "dcopf-118")


def test_a_goal_may_be_another_row():
    records = [made("forecast-labour", "orthogonal", seed, 0.5) for seed in (1, 2, 3, 4, 5)]
    *_, goals = yardstick_tables(group_records(records), "forecast-labour")
    assert cell_text(goals.rows[1][1]).startswith("open: no full runs of No learning")
    for value, verdict in ((0.4, "does not hold"), (0.5, "holds")):
        *_, goals = yardstick_tables(
            group_records([*records, made("forecast-labour", "minimiser", value=value)]), "forecast-labour"
        )
        assert cell_text(goals.rows[1][1]) == f"{verdict}: Error 0.5000 against {value:.4f}"


def test_every_yardstick_has_a_name_columns_and_goals():
    assert set(NAMES) == set(COLUMNS) == set(YARDSTICKS) == set(GOALS)
    for task, goals in GOALS.items():
        assert {column for goal in goals for column in goal.limits} <= {key for key, _ in COLUMNS[task]}
    for task, rows in PUBLISHED.items():
        assert {key for row in rows for key in row.values} <= {key for key, _ in COLUMNS[task]}


def test_runs_with_and_without_w():
    def opt(method: str, value: float, **settings) -> dict:
        config = resolve("opt", method, 1, "ours", settings)
        broken = dict.fromkeys(("mean_of_max", "max", "mean", "percent"), 0.0) | {"exact_zeros": 1, "entries": 2}
        found = {"objective": value, "inequality": broken, "equality": broken, "test_ms": 1.0}
        same = made("dc3-simple", "nn")
        training = None if method == "ipopt" else same["training"]
        fields = {field: getattr(config, field) for field in config.__dataclass_fields__}
        return same | {"name": config.name, "config": fields, "training": training, "evaluation": found, "curves": {}}

    small = {"hidden": 200, "null_rate": 0.1}
    records = [opt("ipopt", -1.0), opt("caffnet-ff", -0.9, null_start="zero", **small), opt("caffnet-ff", -0.99)]
    records += [opt("caffnet-ff", -0.8, **small)]  # the protocol's own runs come first
    records += [opt("caffnet-ff-each", -0.8, hidden=200)]
    records += [opt("post-hoc", -0.5), opt("repair", -0.95), opt("caffnet-ff", -0.7, clip=1.0)]
    records += [made("dcopf-14", "orthogonal", value=0.2), made("dcopf-14", "caffnet-ff", value=0.3)]
    table = null_space_table(group_records(records))
    assert table is not None
    assert [[cell_text(cell) for cell in row] for row in table.rows] == [
        [
            "opt ours: CAffNet-FF",
            "0.0100, 1 seed",
            "0.1000, 1 seed [hidden=200, null_rate=0.1]",
            "–",
            "0.2000, 1 seed [hidden=200]",
            "0.5000, 1 seed",
            "0.0500, 1 seed",
        ],
        ["dcopf-14: CAffNet-FF", "0.2000", "0.3000", "–", "–", "–", "–"],
    ]
    assert null_space_table(group_records(records[:2])) is None
    assert null_space_table(group_records([records[0], records[2], opt("post-hoc", -0.5)])) is None  # nobody has a w
    longer = [opt("caffnet-ff", -0.6, epochs=700), opt("caffnet-ff", -0.5, epochs=700, null_start="random")]
    table = null_space_table(group_records([records[0], *longer, *records[1:3]]))
    assert table is not None  # runs are compared with those of the same settings
    assert [[cell_text(cell) for cell in row[:4]] for row in table.rows] == [
        ["opt ours: CAffNet-FF", "0.0100, 1 seed", "0.1000, 1 seed [hidden=200, null_rate=0.1]", "–"],
        ["opt ours: CAffNet-FF [epochs=700]", "0.4000, 1 seed", "–", "0.5000, 1 seed"],
    ]


def test_the_page_is_written_beside_that_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    for task in YARDSTICKS:
        methods = ("daqp" if task in FORECASTS else "base" if task == "hardnet-cbf" else "constant", "nn", "orthogonal")
        for method in methods:
            record = made(task, method)
            write_record(tmp_path / "in" / "records" / f"{record['name']}.json", record)
    written = write_report([tmp_path / "in"], tmp_path / "out", tmp_path / "docs" / "results.md")
    names = {path.relative_to(tmp_path).as_posix() for path in written}
    assert {"out/yardsticks.md", "out/yardsticks.html", "out/yardsticks.tex", "docs/yardsticks.md"} <= names
    assert "docs/results.md" not in names and "out/report.md" not in names
    assert "docs/figures/yardsticks/dc3-simple-gaps.png" in names
    text = (tmp_path / "docs" / "yardsticks.md").read_text()
    for task, name in NAMES.items():
        assert f"## {name}\n" in text and f"caffnet run {task} --protocol ours" in text
    assert "(figures/yardsticks/dc3-simple-gaps.png)" in text


def test_the_published_page_is_that_of_the_records():
    """docs/yardsticks.md has every table as the records now give it."""
    root = Path(__file__).parents[2]
    groups = group_records(read_records(root / "results"))
    timings = [timing for timing in read_timings(root / "results") if timing["task"] in YARDSTICKS]
    speeds = speed_table(timings, "yardsticks")
    shown = (root / "docs" / "yardsticks.md").read_text(encoding="utf-8")
    for table in (speeds, null_space_table(groups)):
        assert table is not None and as_markdown(table) in shown, "run caffnet report, see CONTRIBUTING.md"
    for task in yardsticks.NAMES:
        for table in yardstick_tables(groups, task):
            assert as_markdown(table) in shown, "run caffnet report, see CONTRIBUTING.md"


def test_rows_are_called_what_they_are_in_their_task():
    records = [made("hardnet-cbf", "base"), made("forecast-wiki2", "base"), made("forecast-wiki2", "minimiser")]
    drive, base, projected = (group.title for group in group_records(records))
    assert drive == "No learning: the nominal controller"
    assert base == "No learning: base forecasts"
    assert projected == "No learning: base forecasts, projected (non-negative MinT)"
