"""The report: right numbers, all formats, from records alone."""

import ast
import csv
import re
import statistics
from pathlib import Path

import pytest

import caffnet.experiments.report as report_package
from caffnet.experiments import records as records_module
from caffnet.experiments.config import load_campaign, parse_settings, resolve
from caffnet.experiments.records import RecordError, write_record
from caffnet.experiments.report import write_report
from caffnet.experiments.report.claims import claims_table
from caffnet.experiments.report.figures import figures, save
from caffnet.experiments.report.formats import as_csv, as_latex, as_markdown, cell_text, number
from caffnet.experiments.report.groups import group_records, main_groups, mean_and_spread
from caffnet.experiments.report.published import PAPER
from caffnet.experiments.report.tables import Cell, gap_table, results_table, speed_table

ZERO = {"mean_of_max": 0.0, "max": 1e-16, "mean": 0.0, "percent": 0.0, "exact_zeros": 7, "entries": 8}
OBJECTIVES = {1: -0.13503, 2: -0.30995, 5: -0.08115, 7: -0.00125, 12: -1.21963}
GRID = [-2 + 0.5 * i for i in range(9)]
CURVES = {
    "pwc": {"x": GRID, "y": [0.1] * 9, "target": [0.0] * 9, "lower": [-1.0] * 9, "upper": [1.0] * 9},
    "opt": {},
    "cbf": {
        "dt": 0.1,
        "states": [[-4.5 + 0.4 * i, 0.1 * i, 0.0] for i in range(11)],
        "inputs": [[0.5, 0.1]] * 10,
        "nominal": [[0.6, 0.0]] * 10,
        "allowed_speed": [0.8] * 9 + [None],
        "limits": [[-0.01, 1.0], [-0.5, 0.5]],
        "obstacles": [[[-1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]],
        "box": [[-5.0, -4.0], [1.0, 2.0]],
        "goal_radius": 0.1,
    },
}


def make_record(task: str, method: str, seed: int, protocol: str = "paper", value: float = 0.5, **settings) -> dict:
    config = resolve(task, method, seed, protocol, settings)
    headline = {"pwc": "mse", "opt": "objective", "cbf": "cost"}[task]
    evaluation = {headline: value, "inequality": ZERO, "test_ms": 20.0 if method != "ipopt" else 4000.0}
    if task == "opt":
        evaluation["equality"] = ZERO
    if task == "cbf":
        evaluation |= {"final_distance": 0.0, "arrived": True, "collided": method == "nn"}
    if config.dropout and method != "ipopt":
        evaluation["dropout_on"] = {headline: value + 1, "inequality": ZERO, "equality": ZERO}
    history = {"epoch": [0, 1, 2], "loss": [3.0, 2.0, 1.0 - seed], "cost": [3.0, 2.0, 1.0], "worst": [0.0] * 3}
    trained = {"ms_per_epoch": 10.0 if method == "nn" else 15.0, "history": history}
    return {
        "name": config.name,
        "config": vars(config) | {},
        "versions": {"torch": "2.9"},
        "machine": {"processor": "A & B", "threads": 1, "gpu": None},
        "training": None if method == "ipopt" else trained,
        "evaluation": evaluation,
        "curves": CURVES[task],
        "finished": "2026-01-01T00:00:00+00:00",
    }


@pytest.fixture
def everything() -> list[dict]:
    made = [make_record("opt", "ipopt", seed, value=value) for seed, value in OBJECTIVES.items()]
    made += [make_record("opt", m, s, value=OBJECTIVES[s] + 0.001) for m in ("nn", "caffnet-ff") for s in OBJECTIVES]
    made += [make_record("pwc", method, seed) for method in ("nn", "caffnet-ff", "caffnet-tf") for seed in (1, 6)]
    made += [make_record("cbf", method, 2) for method in ("nn", "caffnet-ff", "post-hoc")]
    return made


def test_mean_and_sample_spread():
    values = list(OBJECTIVES.values())
    mean, spread = mean_and_spread(values)
    assert mean == pytest.approx(-0.3494, abs=5e-5)
    assert spread == pytest.approx(0.4995, abs=5e-5)
    assert spread == statistics.stdev(values)
    assert mean_and_spread([1.0]) == (1.0, None)
    assert mean_and_spread([]) == (None, None)


def test_the_papers_numbers_stand_beside_ours(everything):
    groups = [g for g in group_records(everything) if (g.task, g.protocol) == ("opt", "paper")]
    table = results_table(groups, "opt", "paper")
    names = [cell_text(row[0]) for row in table.rows]
    assert names == [
        "IPOPT",
        "IPOPT, paper",
        "NN",
        "NN, dropout on",
        "NN, paper",
        "CAffNet-FF",
        "CAffNet-FF, dropout on",
        "CAffNet-FF, paper",
    ]
    assert cell_text(table.rows[0][2]) == cell_text(table.rows[1][2]) == "-0.3494 (0.4995)"
    assert table.quiet == {1, 4, 7}
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert cell_text(table.rows[0][-1]) == "70/80"


def test_other_settings_make_another_row():
    groups = group_records([make_record("opt", "nn", 1), make_record("opt", "nn", 1, epochs=7)])
    assert [group.title for group in groups] == ["NN", "NN [epochs=7]"]
    assert len(main_groups(groups, "opt", "paper")) == 1


def test_of_two_equal_runs_the_later_counts():
    late = make_record("opt", "ipopt", 1, value=2.0) | {"finished": "2026-02-01T00:00:00+00:00"}
    (group,) = group_records([late, make_record("opt", "ipopt", 1, value=1.0, epochs=3)])
    assert group.values("objective") == [2.0]


def test_gap_is_per_seed(everything):
    table = gap_table(group_records(everything), "paper")
    assert table is not None
    assert table.columns == ("Method", "seed 1", "seed 2", "seed 5", "seed 7", "seed 12", "largest gap")
    assert table.rows[1][-1].mean == pytest.approx(0.001)
    assert gap_table(group_records([make_record("opt", "nn", 1)]), "paper") is None


def test_speed():
    methods = {
        "ipopt": {"train_ms": None, "test_ms": 2000.0},
        "nn": {"train_ms": 4.0, "test_ms": 5.0},
        "caffnet-ff": {"train_ms": 6.0, "test_ms": 10.0},
    }
    table = speed_table([{"task": "opt", "protocol": "paper", "methods": methods}])
    assert table is not None
    row = next(row for row in table.rows if row[0].text == "opt paper: CAffNet-FF")
    assert [cell.mean for cell in row[1:]] == pytest.approx([6.0, 1.5, 10.0, 200.0])
    assert speed_table([]) is None


def test_a_younger_setting_had_its_default():
    """Records written before a setting existed are told apart from runs that set it."""
    old = make_record("pwc", "caffnet-ff", 1, protocol="ours")
    old["config"].pop("activation", None)
    assert [group.changes for group in group_records([old])] == ["activation=relu"]


def test_formats_agree(everything):
    groups = [group for group in group_records(everything) if group.task == "pwc"]
    table = results_table(groups, "pwc", "paper")
    assert "| *NN, paper* | *five* | *0.0045 (0.0057)* |" in as_markdown(table)
    assert r"\textit{NN, paper} & \textit{five} & \textit{0.0045 (0.0057)}" in as_latex(table)
    rows = list(csv.DictReader(as_csv(table).splitlines()))
    assert [row["Method"] for row in rows][:2] == ["NN", "NN, paper"]
    assert (rows[1]["MSE"], rows[1]["MSE std"]) == ("0.0045", "0.0057")
    assert float(rows[0]["viol. true max"]) == 1e-16


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0"), (-0.34941, "-0.3494"), (1.2e-15, "1.2e-15"), (7.2e5, "7.200e+05")]
)
def test_numbers(value, text):
    assert number(value) == text
    assert cell_text(Cell(value)) == text


def test_latex_escapes():
    text = as_latex(results_table(group_records([make_record("opt", "nn", 1, batch_norm=False)]), "opt", "paper"))
    assert r"batch\_norm=False" in text
    assert r"$>$ 1e-6 (\%)" in text


def test_the_whole_report(everything, tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet.experiments.report.figures.DPI", 30)
    for record in everything:
        write_record(tmp_path / "records" / f"{record['name']}.json", record)
    written = write_report([tmp_path], tmp_path / "report")
    names = {path.relative_to(tmp_path / "report").as_posix() for path in written}
    assert {"report.md", "report.tex", "report.html", "tables/opt-paper-seeds.csv"} <= names
    for figure in (
        "pwc-paper-functions",
        "pwc-paper-loss",
        "opt-paper-gap",
        "cbf-paper-trajectories",
        "cbf-paper-inputs",
    ):
        assert f"figures/{figure}.png" in names
        assert f"figures/{figure}.pdf" in names
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:image/png|#)', page)  # nothing from elsewhere
    assert page.count("<img") == sum(name.endswith(".png") for name in names)
    assert "A &amp; B, 1 thread(s) per run" in page
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\((.+?)\)", markdown):
        assert (tmp_path / "report" / link).exists()


def test_figures_are_reproducible(everything):
    groups = main_groups(group_records(everything), "cbf", "paper")
    first, again = (save(figures(groups)["trajectories"][1], "png") for _ in range(2))
    assert first == again
    assert first.startswith(b"\x89PNG")
    assert figures([]) == {}


def test_no_records_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="No records below"):
        write_report([tmp_path], tmp_path / "report")


def test_published_tables_are_complete():
    assert {task: len(rows) for task, rows in PAPER.items()} == {"pwc": 4, "opt": 6, "cbf": 3}
    assert PAPER["cbf"]["caffnet-ff"]["cost"] == (7.2060e5, 6.9090e4)


def test_the_report_knows_neither_torch_nor_models():
    """Directly or through the modules of the package that it imports."""
    folder = Path(report_package.__file__).parent
    root = Path(records_module.__file__).parent.parent
    waiting, seen = list(folder.glob("*.py")), set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] != "torch", path
                if name.startswith("caffnet."):
                    module = root.joinpath(*name.split(".")[1:])
                    waiting.append(module / "__init__.py" if module.is_dir() else module.with_suffix(".py"))
    assert root / "experiments" / "config.py" in seen


def test_the_protocol_s_own_settings_come_first():
    own = make_record("pwc", "nn", 1)
    own["config"] |= {"a_setting_that_is_gone": 0.0}
    other = [make_record("pwc", "nn", seed, epochs=99_000) for seed in (1, 3)]
    groups = group_records([*other, own])
    assert [group.changes for group in groups] == ["", "epochs=99000"]
    assert main_groups(groups, "pwc", "paper")[0].seeds == [1]
    own["config"]["a_setting_that_is_gone"] = 2.0
    assert group_records([own])[0].changes == "a_setting_that_is_gone=2.0"


def test_commands_give_the_same_runs(everything):
    """What the report says to type resolves to the runs that it shows."""
    records = [*everything, make_record("pwc", "caffnet-tf", 3, activation="silu", clip=1.5)]
    typed = []
    for task in ("pwc", "opt", "cbf"):
        groups = [group for group in group_records(records) if group.task == task]
        typed += results_table(groups, task, "paper").commands
    assert typed[0] == (
        "caffnet run pwc --protocol paper --method nn --method caffnet-ff --method caffnet-tf --seed 1 --seed 6"
    )
    names = set()
    for line in typed:
        words = line.split()[2:]
        given = {"task": words[0]} | parse_settings(words[i + 1] for i, word in enumerate(words) if word == "--set")
        for option, name in (("--protocol", "protocol"), ("--method", "methods"), ("--seed", "seeds")):
            values = [words[i + 1] for i, word in enumerate(words) if word == option]
            given[name] = values[0] if name == "protocol" else [int(v) if name == "seeds" else v for v in values]
        names |= {run.name for run in load_campaign(**given).runs}
    assert names == {record["name"] for record in records}


def test_claims_are_judged_by_the_records(everything):
    def verdicts(records: list[dict], task: str, timings=()) -> dict[str, str]:
        table = claims_table(group_records(records), timings, task)
        return {} if table is None else {row[0].text: cell_text(row[1]) for row in table.rows}

    driving = verdicts(everything, "cbf")
    assert driving["CAffNet-FF arrives, without a collision or a violation."].startswith("holds: 1 of 1 arrived")
    assert driving["NN ends far from the goal."] == "does not hold: final distance 0 m"
    assert "NN and HardNet collide." not in driving  # HardNet has not been run
    hardnet = make_record("cbf", "hardnet", 2)
    assert verdicts([*everything, hardnet], "cbf")["NN and HardNet collide."] == (
        "does not hold: NN 1 of 1, HardNet 0 of 1"
    )
    full = [r for r in everything if r["config"]["method"] == "caffnet-ff" and r["config"]["task"] == "opt"]
    lite = [make_record("opt", "caffnet-ff-lite", s, value=OBJECTIVES[s] + 0.001 + 1e-3 * (s == 7)) for s in OBJECTIVES]
    same = "Lite is as good as the full search."
    assert verdicts(full + lite[:3], "opt").get(same) is None  # other seeds
    assert verdicts(full + lite, "opt")[same].startswith("does not hold: objectives at most 0.0010")
    lite[3] = make_record("opt", "caffnet-ff-lite", 7, value=OBJECTIVES[7] + 0.001)
    assert verdicts(full + lite, "opt")[same].startswith("holds")

    times = {
        "caffnet-ff": (20.0, 10.0),
        "caffnet-ff-lite": (11.0, 5.5),
        "caffnet-tf": (20.0, 8.0),
        "ipopt": (None, 4e3),
    }
    methods = {name: dict(zip(("train_ms", "test_ms"), pair, strict=True)) for name, pair in times.items()}
    timed = verdicts(full, "opt", [{"task": "opt", "protocol": "paper", "methods": methods}])
    assert timed["Lite takes about 45 % less time."] == "holds: saved: T_train 45 %, T_test 45 %"
    assert timed["CAffNet answers faster than IPOPT."] == "holds: CAffNet-FF 400 times, CAffNet-TF 500 times"


def test_claims_compare_losses_and_gaps():
    records = [make_record("opt", "ipopt", s, value=v) for s, v in OBJECTIVES.items()]
    for method, gap in (("nn", 0.2), ("hardnet", -0.3), ("caffnet-tf", 0.1), ("caffnet-ff", 0.01)):
        records += [make_record("opt", method, seed, value=OBJECTIVES[seed] + gap) for seed in OBJECTIVES]
    for method, first in (("nn", 5.0), ("hardnet", 4.0), ("caffnet-tf", 3.0), ("caffnet-ff", 4.5)):
        records.append(make_record("pwc", method, 1, value=first))
        records[-1]["training"]["history"] = {"epoch": [0, 3980, 6000], "loss": [first, 2 * (first > 3.5), 9.0]}
    table = claims_table(group_records(records), (), "opt")
    assert table is not None
    told = {row[0].text: cell_text(row[1]) for row in table.rows}
    assert told["CAffNet-FF is nearest to IPOPT."] == (
        "holds: CAffNet-FF 0.0100, NN 0.2000, HardNet 0.3000, CAffNet-TF 0.1000"
    )
    table = claims_table(group_records(records), (), "pwc")
    assert table is not None
    told = {row[0].text: cell_text(row[1]) for row in table.rows}
    assert told["The CAffNets start with a lower loss."].startswith("does not hold")  # 4.5 is above 4.0
    assert told["The CAffNets converge faster (loss at epoch 4000)."].endswith(
        "CAffNet-TF 0, NN 2.0000, HardNet 2.0000"
    )
    assert told["CAffNet-TF has the lowest MSE."].startswith("holds")
    assert told["NN and HardNet violate them."].startswith("does not hold")  # 1e-16 is rounding
