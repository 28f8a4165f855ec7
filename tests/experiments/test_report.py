"""The report: right numbers, all formats, from records alone."""

import ast
import csv
import re
import statistics
from pathlib import Path

import pytest

import caffnet_lab.experiments.report as report_package
from caffnet_lab.experiments import records as records_module
from caffnet_lab.experiments.config import PAPER_TASKS, TASKS, load_campaign, parse_settings, resolve
from caffnet_lab.experiments.records import RecordError, read_records, read_timings, write_record
from caffnet_lab.experiments.report import write_report
from caffnet_lab.experiments.report.aims import aims_table
from caffnet_lab.experiments.report.claims import claims_table
from caffnet_lab.experiments.report.figures import figures, learned_functions, save
from caffnet_lab.experiments.report.formats import as_csv, as_latex, as_markdown, cell_text, number
from caffnet_lab.experiments.report.groups import group_records, main_groups, mean_and_spread, sources
from caffnet_lab.experiments.report.published import PAPER
from caffnet_lab.experiments.report.summary import summary_table
from caffnet_lab.experiments.report.tables import (
    Cell,
    Table,
    gap_table,
    optima,
    results_table,
    speed_table,
    variants_table,
)
from caffnet_lab.experiments.report.write import task_tables

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
    assert cell_text(table.rows[0][3]) == cell_text(table.rows[1][3]) == "-0.3494 (0.4995)"
    assert table.quiet == {1, 4, 7}
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert cell_text(table.rows[0][-1]) == "70/80"


def test_the_true_max_is_the_largest_of_all_seeds():
    runs = [with_violation(make_record("pwc", "nn", seed), violation) for seed, violation in ((1, 0.0), (3, 0.2))]
    table = results_table(group_records(runs), "pwc", "paper")
    row = dict(zip(table.columns, map(cell_text, table.rows[0]), strict=True))
    assert (row["viol. true max"], row["Epochs"]) == ("0.2000", "50000")


def test_all_methods_are_drawn_with_the_same_seed():
    groups = group_records(
        [make_record("pwc", m, s) for m, seeds in (("nn", (1, 3)), ("hardnet", (3, 6))) for s in seeds]
    )
    figure = learned_functions(groups)
    assert figure is not None
    assert [ax.get_title().split(":")[0] for ax in figure.axes] == ["NN, seed 3", "HardNet, seed 3"]


def test_other_settings_make_another_row():
    groups = group_records([make_record("opt", "nn", 1), make_record("opt", "nn", 1, epochs=7)])
    assert [group.title for group in groups] == ["NN", "NN [epochs=7]"]
    assert len(main_groups(groups, "opt", "paper")) == 1


def test_other_settings_have_a_table_of_their_own(everything, tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    for record in [*everything, make_record("cbf", "nn", 2, epochs=7, value=3.0)]:
        write_record(tmp_path / "records" / f"{record['name']}.json", record)
    write_report([tmp_path], tmp_path / "report")
    tables = tmp_path / "report" / "tables"
    assert "[epochs=7]" not in (tables / "cbf-paper.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader((tables / "cbf-paper-variants.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["Method"], row["Cost"]) for row in rows] == [("NN [epochs=7]", "3.0")]
    assert not (tables / "pwc-paper-variants.csv").exists()
    assert variants_table([], "pwc", "paper") is None


def test_summary():
    """The paper's figure beside ours, with the largest violation; what is missing is told."""
    records = [make_record("opt", "ipopt", seed, value=value) for seed, value in OBJECTIVES.items()]
    records += [make_record("opt", "nn", seed, value=0.5) for seed in (1, 2)]  # 1.5 with dropout on
    records.append(make_record("opt", "caffnet-ff", 1, "ours", value=-0.25))
    records.append(make_record("cbf", "nn", 2, epochs=500, value=3e5))
    for record in records:
        if record["config"]["method"] == "nn":
            with_violation(record, 0.2, 0.3)
    table = summary_table(group_records(records))
    assert table.columns[2:4] == ("Protocol “paper”", "violation, “paper”")
    assert [[cell_text(cell) for cell in row] for row in table.rows] == [
        ["opt objective: IPOPT", "-0.3494 (0.4995)", "-0.3494 (0.4995)", "1.0e-16", "–", "–"],
        ["opt objective: NN", "-0.1194 (0.5824)", "1.5000 (0), seeds 1 2", "0.3000", "–", "–"],
        ["opt objective: CAffNet-FF", "-0.3418 (0.5028)", "–", "–", "-0.2500, seed 1", "1.0e-16"],
        ["cbf cost: NN", "4.141e+05 (6.798e+04)", "3.000e+05, seed 2 [epochs=500]", "0.3000", "–", "–"],
    ]
    rows = list(csv.DictReader(as_csv(table).splitlines()))
    assert (rows[1]["Protocol “paper”"], rows[1]["Protocol “paper” remark"]) == ("1.5", "seeds 1 2")
    assert summary_table(group_records([make_record("pwc", "nn", 1, epochs=200)])) is None  # quick


def test_the_published_report_is_that_of_the_records():
    """docs/results.md has every table as the records now give it."""
    root = Path(__file__).parents[2]
    groups, timings = group_records(read_records(root / "results")), read_timings(root / "results")
    timings = [timing for timing in timings if timing["task"] in PAPER_TASKS]
    tables = [summary_table(groups), speed_table(timings)]
    tables += [table for task in ("pwc", "opt", "cbf") for table in task_tables(groups, timings, task)]
    shown = (root / "docs" / "results.md").read_text(encoding="utf-8")
    for table in tables:
        assert table is not None and as_markdown(table) in shown, "run caffnet report, see CONTRIBUTING.md"


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
    timing = {"task": "opt", "protocol": "paper", "methods": methods}
    table = speed_table([timing])
    assert table is not None
    named = "--method ipopt --method nn --method caffnet-ff"
    assert table.commands == (f"caffnet time opt --protocol paper {named} --rounds 7",)
    elsewhere = speed_table([timing | {"device": "cuda", "machine": {"threads": 2}}])
    assert elsewhere is not None and elsewhere.rows[0][0].text == "opt paper on cuda: IPOPT"
    assert elsewhere.commands[0].endswith("--rounds 7 --device cuda --threads 2")
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
    assert "| *NN, paper* | *five* | *50000* | *0.0045 (0.0057)* |" in as_markdown(table)
    assert r"\textit{NN, paper} & \textit{five} & \textit{50000} & \textit{0.0045 (0.0057)}" in as_latex(table)
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
    assert r"batch\_norm=false" in text
    assert r"$>$ 1e-6 (\%)" in text
    odd = Table("a", r"{x}^2 ~ \y$", "", ("a < b",), ((Cell(text="c >= d"),),))
    assert r"\{x\}\textasciicircum{}2 \textasciitilde{} \textbackslash{}y\$" in as_latex(odd)
    assert r"a $<$ b" in as_latex(odd) and r"c $\ge$ d" in as_latex(odd)


def test_the_whole_report(everything, tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    for record in everything:
        write_record(tmp_path / "records" / f"{record['name']}.json", record)
    written = write_report([tmp_path], tmp_path / "report")
    names = {path.relative_to(tmp_path / "report").as_posix() for path in written}
    assert {"report.md", "report.tex", "report.html", "tables/opt-paper-seeds.csv"} <= names
    latex = (tmp_path / "report" / "report.tex").read_text(encoding="utf-8")
    assert latex.isascii() and r"for $\omega$ $\le$ 0.5" in latex
    assert latex.count("<") == latex.count("$<$")
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
    assert "<li><b>pwc</b>: learn a function of one variable" in page  # the introduction of the Markdown
    assert re.search(r"<code>caffnet report</code>", page)
    text = re.sub(r"<style>.*?</style>|<pre>.*?</pre>|<img[^>]*>", "", page)
    loose = re.sub(r'<span class="number">[^<]*</span>', "", text)
    assert not re.findall(r"(?<![\w.])\d[\d.]*e-\d+", loose)  # no number can break after its sign
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "There are no runs under the protocol “ours”." in markdown
    for link in re.findall(r"\]\((.+?)\)", markdown):
        assert (tmp_path / "report" / link).exists()


def test_a_repair_is_drawn_where_there_is_one():
    records = [make_record("opt", "ipopt", seed, value=value) for seed, value in OBJECTIVES.items()]
    for method, gap in (("post-hoc", 0.05), ("repair", 1e-4)):
        records += [make_record("opt", method, seed, "ours", value + gap) for seed, value in OBJECTIVES.items()]
    groups = group_records(records)
    drawn = figures(main_groups(groups, "opt", "ours"), optima(groups))
    assert drawn["repair"][0].startswith("Repair: a soft network")
    (axis,) = drawn["repair"][1].axes
    assert len(axis.lines) == 5
    for line in axis.lines:
        assert list(line.get_ydata()) == pytest.approx([0.05, 1e-4])
    alone = [group for group in main_groups(groups, "opt", "ours") if group.method != "post-hoc"]
    assert "repair" not in figures(alone, optima(groups))


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
                assert name.split(".")[0] not in ("torch", "caffnet"), path
                if name.startswith("caffnet_lab."):
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
    fewer = make_record("pwc", "nn", 1, epochs=10)
    longer = [make_record("pwc", "nn", seed, epochs=99_000, clip=1.0) for seed in (1, 3)]
    assert main_groups(group_records([*longer, fewer]), "pwc", "paper")[0].changes == "epochs=10"


def test_commands_give_the_same_runs(everything):
    """What the report says to type resolves to the runs that it shows."""
    records = [*everything, make_record("pwc", "caffnet-tf", 3, activation="silu", clip=1.5, batch_norm=True)]
    records.append(make_record("opt", "nn", 3, batch_norm=False))
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
    records[-1]["config"] |= {"a_setting_that_is_gone": 2.0}  # cannot be typed any more
    assert results_table(group_records(records[-1:]), "opt", "paper").commands == ()


def verdicts(records: list[dict], task: str, protocol: str = "paper", timings=()) -> dict[str, str]:
    """Claim -> what the report says of it."""
    table = claims_table(group_records(records), timings, task)
    assert table is not None
    column = table.columns.index(f"protocol “{protocol}”")
    return {str(row[0].text): cell_text(row[column]) for row in table.rows}


def with_violation(record: dict, inequality: float, equality: float | None = None, percent: float = 0.0) -> dict:
    for found in (record["evaluation"], record["evaluation"].get("dropout_on", {})):
        found["inequality"] = {**ZERO, "max": inequality}
        if equality is not None:
            found["equality"] = {**ZERO, "max": equality, "percent": percent}
    return record


def test_claims_about_violations():
    satisfied, violated = "Both CAffNets satisfy all constraints.", "NN and HardNet violate constraints."
    records = [with_violation(make_record("pwc", method, 1), 0.3) for method in ("nn", "hardnet")]
    assert verdicts(records, "pwc")[violated] == (
        "so far holds: largest violation, with the best seed: NN 0.3000, HardNet 0.3000 (seed 1)"
    )
    assert verdicts(records, "pwc")[satisfied] == "open: no full runs of CAffNet-FF, CAffNet-TF"
    records += [make_record("pwc", method, 1) for method in ("caffnet-ff", "caffnet-tf")]
    assert verdicts(records, "pwc")[satisfied] == "so far holds: largest violation 1.0e-16 (seed 1)"
    with_violation(records[-1], 1e-9)
    assert verdicts(records, "pwc")[satisfied] == "so far does not hold: largest violation 1.0e-09 (seed 1)"
    with_violation(records[1], 1e-16)
    assert verdicts(records, "pwc")[violated].startswith("so far does not hold")

    broken = "NN and HardNet break almost all equalities."
    solvers = [with_violation(make_record("opt", m, 1), 0.0, 0.1, percent=99.0) for m in ("nn", "hardnet")]
    assert verdicts(solvers, "opt")[broken] == "so far holds: NN at least 99.00 %, HardNet at least 99.00 % (seed 1)"
    assert verdicts(solvers, "opt")[violated].startswith(
        "so far holds: largest violation, with the best seed: NN 0.1000"
    )
    with_violation(solvers[0], 0.0, 0.1, percent=50.0)
    assert verdicts(solvers, "opt")[broken].startswith("so far does not hold")


def test_quick_runs_decide_no_claim():
    quick = [make_record("pwc", method, 1, epochs=200) for method in ("caffnet-ff", "caffnet-tf")]
    assert verdicts(quick, "pwc")["Both CAffNets satisfy all constraints."].startswith("open: no full runs")


def test_claims_compare_on_common_seeds_and_equal_settings():
    """In opt a seed is a problem: a mean over other seeds says nothing."""
    nearest, gaps = (
        "CAffNet-FF is nearest to IPOPT.",
        {"nn": 0.2, "hardnet": -0.3, "caffnet-tf": 0.1, "caffnet-ff": 0.01},
    )
    records = [make_record("opt", "ipopt", s, value=v) for s, v in OBJECTIVES.items()]
    records += [make_record("opt", m, s, "ours", OBJECTIVES[s] + gap) for m, gap in gaps.items() for s in (1, 2)]
    told = verdicts(records, "opt", "ours")[nearest]
    assert told == "so far holds: CAffNet-FF 0.0100, CAffNet-TF 0.1000, NN 0.2000, HardNet 0.3000 (seeds 1 2)"
    records.append(make_record("opt", "caffnet-ff", 12, "ours", OBJECTIVES[12] + 5.0))  # the others do not have it
    assert verdicts(records, "opt", "ours")[nearest] == told
    others = [r for r in records if r["config"]["method"] != "nn"]
    assert verdicts(others, "opt", "ours")[nearest] == "open: no full runs of NN"
    elsewhere = [*others, make_record("opt", "nn", 5, "ours", 0.0)]
    assert verdicts(elsewhere, "opt", "ours")[nearest] == "open: no runs with the same seeds"
    shorter = [*others, make_record("opt", "nn", 1, "ours", 0.0, epochs=900)]
    assert verdicts(shorter, "opt", "ours")[nearest] == "open: no runs with the same settings"
    unsolved = [r for r in records if r["config"]["method"] != "ipopt"]
    assert verdicts(unsolved, "opt", "ours")[nearest] == "open: no runs of IPOPT with these seeds"


def test_claims_take_settings_that_all_methods_have():
    """The NN was also trained for longer: it is compared where the other one was trained as long."""
    records = [make_record("cbf", "nn", 2), *(make_record("cbf", m, 2, epochs=500) for m in ("nn", "hardnet"))]
    told = verdicts(records, "cbf")
    assert told["NN and HardNet collide."] == "so far does not hold: NN 1 of 1, HardNet 0 of 1 (seed 2, epochs=500)"
    assert told["NN ends far from the goal (more than 0.5 m)."].endswith("final distance 0 m (seed 2)")


def test_so_far_means_that_something_is_missing():
    """Other settings are named, more epochs or seeds than needed too: but nothing is to come."""
    satisfied = "Both CAffNets satisfy all constraints."
    for settings in ({"epochs": 90_000}, {"hidden": 100}):
        records = [make_record("pwc", m, s, **settings) for m in ("caffnet-ff", "caffnet-tf") for s in (1, 3, 5, 6, 7)]
        (changed,) = settings.items()
        expected = f"holds: largest violation 1.0e-16 ({changed[0]}={changed[1]})"
        assert verdicts(records, "pwc")[satisfied] == expected
    fewer = [make_record("pwc", m, s, epochs=900) for m in ("caffnet-ff", "caffnet-tf") for s in (1, 3, 5, 6, 7)]
    assert verdicts(fewer, "pwc")[satisfied] == "so far holds: largest violation 1.0e-16 (epochs=900)"


def test_other_devices_and_number_types_are_other_runs():
    records = [make_record("pwc", "nn", 1), make_record("pwc", "nn", 3, device="cuda")]
    records += [make_record("opt", "ipopt", 1), make_record("opt", "ipopt", 1, dtype="float32")]
    assert [group.title for group in group_records(records)] == [
        "NN",
        "NN [device=cuda]",
        "IPOPT",
        "IPOPT [dtype=float32]",
    ]
    records[-1]["evaluation"]["objective"] = 99.0
    assert optima(group_records(records)) == {1: 0.5}


def test_claims_judge_dropout_as_the_paper_did():
    records = [make_record("opt", "ipopt", 1, value=0.0), make_record("opt", "caffnet-tf", 1, value=0.7)]
    records += [make_record("opt", method, 1, value=value) for method, value in (("nn", 3.0), ("hardnet", 2.0))]
    records.append(make_record("opt", "caffnet-ff", 1, value=0.5))  # 1.5 with dropout on
    told = verdicts(records, "opt")["CAffNet-FF is nearest to IPOPT."]
    assert told == "so far does not hold: CAffNet-FF 1.5000, CAffNet-TF 0.7000, NN 4.0000, HardNet 3.0000 (seed 1)"
    aims = aims_table(group_records(records), (), "opt")  # our own are of the network as it is used
    assert aims is not None
    assert "so far does not hold: largest distance 0.5000 (seed 1)" in [cell_text(row[1]) for row in aims.rows]


def test_claims_about_lite_and_times():
    same = "Lite is as good as the full search."
    full = [make_record("opt", "caffnet-ff", s, "ours", value) for s, value in OBJECTIVES.items()]
    for shift, said in ((4e-6, "holds: -0.3494 and -0.3494"), (1e-3, "does not hold"), (-1e-3, "holds")):
        lite = [make_record("opt", "caffnet-ff-lite", s, "ours", value + shift) for s, value in OBJECTIVES.items()]
        assert verdicts(full + lite, "opt", "ours")[same].startswith(said)

    times = {"caffnet-ff": (20.0, 10.0), "caffnet-ff-lite": (11.0, 5.5), "caffnet-tf": (20.0, 8.0)}
    methods = {name: dict(zip(("train_ms", "test_ms"), pair, strict=True)) for name, pair in times.items()}
    methods["ipopt"] = {"train_ms": None, "test_ms": 4e3}
    timing = {"task": "opt", "protocol": "ours", "methods": methods}
    told = verdicts(full, "opt", "ours", [timing])
    assert told["Lite takes about 45 % less time."] == "holds: T_train 45 % less, T_test 45 % less"
    assert told["The CAffNets answer faster than IPOPT."] == "holds: CAffNet-FF 400 times, CAffNet-TF 500 times"
    plain = {"enumeration": {"train_ms": None, "test_ms": 10.0}, "enumeration-lite": {"train_ms": None, "test_ms": 4.0}}
    told = verdicts(full, "opt", "ours", [timing | {"methods": methods | plain}])
    assert told["Lite takes about 45 % less time."].endswith("473 subsets instead of 1023, T_test 60 % less")
    methods["caffnet-ff-lite"]["test_ms"], methods["ipopt"]["test_ms"] = 9.0, 9.0
    told = verdicts(full, "opt", "ours", [timing])
    assert told["Lite takes about 45 % less time."] == "does not hold: T_train 45 % less, T_test 10 % less"
    methods["caffnet-ff-lite"]["test_ms"] = 10.1
    told = verdicts(full, "opt", "ours", [timing])
    assert told["Lite takes about 45 % less time."] == "does not hold: T_train 45 % less, T_test 1 % more"
    assert told["The CAffNets answer faster than IPOPT."].startswith("does not hold")
    assert verdicts(full, "opt", "ours")["Lite takes about 45 % less time."] == "open: no times, see caffnet time"


def test_the_spread_of_a_ratio_is_told():
    """Timed in turn, so the ratio of each round is one of the same disturbance."""
    methods = {
        "nn": {"train_ms": 10.0, "test_ms": 1.0, "train_ms_rounds": [9.0, 10.0, 11.0, 20.0]},
        "caffnet-ff": {"train_ms": 19.0, "test_ms": 1.0, "train_ms_rounds": [18.0, 19.0, 22.0, 42.0]},
    }
    groups = group_records([make_record("cbf", "nn", 2)])

    def told() -> str:
        table = aims_table(groups, [{"task": "cbf", "protocol": "paper", "methods": methods}], "cbf")
        assert table is not None
        return cell_text(table.rows[-1][1])

    assert told() == "open: 2.0000 times in the median round (half of the rounds 1.9250 to 2.0750)"  # the limit is 2
    methods["caffnet-ff"]["train_ms_rounds"] = [17.0, 19.0, 20.9, 38.0]
    assert told() == "holds: 1.9000 times in the median round (half of the rounds 1.8917 to 1.9000)"
    methods["caffnet-ff"]["train_ms"] = 19.0
    for times in methods.values():
        del times["train_ms_rounds"]
    assert told() == "holds: 1.9000 times"
    timings = [{"task": "cbf", "protocol": "paper", "methods": methods}]
    timings += [{**timings[0], "device": "cuda", "methods": {"nn": {"train_ms": 1.0}, "caffnet-ff": {"train_ms": 9.0}}}]
    table = aims_table(groups, timings, "cbf")
    assert table is not None and cell_text(table.rows[-1][1]) == "holds: 1.9000 times"  # the CPU's


def test_claims_about_losses():
    start, later = "The CAffNets start with a lower loss.", "The CAffNets converge faster (loss after 4000 epochs)."
    records = []
    for method, first in (("nn", 5.0), ("hardnet", 4.0), ("caffnet-tf", 3.0), ("caffnet-ff", 4.5)):
        records.append(make_record("pwc", method, 1, value=first))
        history = {"epoch": [0, 3960, 3970, 3980, 6000], "loss": [first, 1.0, 1.0, 8.0, 9.0]}  # the last but one jumps
        records[-1]["training"]["history"] = history
    told = verdicts(records, "pwc")
    assert told[start].startswith("so far does not hold: CAffNet-FF 4.5000, CAffNet-TF 3.0000")
    assert told["CAffNet-TF has the lowest MSE."].startswith("so far holds: CAffNet-TF 3.0000")
    saved = "CAffNet-TF reduces the MSE of the NN by 73.33 %."
    assert told[saved].startswith("so far does not hold: 40.00 % lower in the mean over seeds; lower with 1 of 1 seeds")
    records[-1]["training"]["history"]["loss"] = [3.5, 0.5, 0.5, 0.5, 9.0]
    records[-2]["training"]["history"]["loss"] = [3.5, 0.9, 0.9, 0.9, 9.0]
    assert verdicts(records, "pwc")[start].startswith("so far holds")
    assert verdicts(records, "pwc")[later].startswith("so far holds: CAffNet-FF 0.5000, CAffNet-TF 0.9000")
    records[0]["training"]["history"]["loss"][1:4] = [0.7] * 3
    assert verdicts(records, "pwc")[later].startswith("so far does not hold")
    records[-1]["training"]["history"]["loss"][1:4] = [None] * 3  # not finite
    assert verdicts(records, "pwc")[later].startswith("so far does not hold: CAffNet-FF inf")
    short = [make_record("pwc", method, 1, epochs=300) for method in ("nn", "hardnet", "caffnet-tf", "caffnet-ff")]
    assert verdicts(short, "pwc")[later] == "open: no runs of 4000 epochs"


def test_aims():
    strict = {"exact_inequality": {"max": 0.0}}
    records = [make_record("opt", "ipopt", seed, value=value) for seed, value in OBJECTIVES.items()]
    for seed, value in OBJECTIVES.items():
        for method, gap in (("caffnet-ff", 4e-6), ("caffnet-tf", 6e-5)):
            records.append(make_record("opt", method, seed, "ours", value=value + gap))
            records[-1]["evaluation"]["strict"] = strict
    timing = {
        "task": "opt",
        "protocol": "ours",
        "methods": {"ipopt": {"test_ms": 99.0}, "caffnet-ff": {"test_ms": 1.0}},
    }

    def told(timings=(timing,)) -> dict[str, str]:
        table = aims_table(group_records(records), timings, "opt")
        assert table is not None
        column = table.columns.index("protocol “ours”")
        return {cell_text(row[0]): cell_text(row[column]) for row in table.rows}

    safe, ff, tf, fast = told()
    assert told()[safe] == "holds: largest violation 1.0e-16, of inequalities with strict 0"
    assert told()[ff] == "holds: largest distance 4.0e-06"
    assert told()[tf] == "does not hold: largest distance 0.0001"
    assert told()[fast] == "does not hold: 99.00 times"
    assert told([])[fast].startswith("open")
    last = records.pop(-2)  # CAffNet-FF with the last seed
    assert told()[ff] == "open: no runs with seeds 12"
    records.insert(-1, last)
    records[-1]["evaluation"]["strict"] = {"exact_inequality": {"max": 1e-20}}
    assert told()[safe].startswith("does not hold")


def test_claims_about_driving():
    safely = "CAffNet-FF comes near the goal (0.5 m), safely."
    records = {m: make_record("cbf", m, 2, epochs=500) for m in ("nn", "hardnet", "caffnet-ff", "post-hoc")}
    told = verdicts(list(records.values()), "cbf")
    figures = "final distance 0 m; 0 collided, largest violation 1.0e-16 (seed 2, epochs=500)"
    assert told[safely] == f"so far holds: {figures}"
    assert told["NN and HardNet collide."] == "so far does not hold: NN 1 of 1, HardNet 0 of 1 (seed 2, epochs=500)"
    assert told["HardNet comes near the goal (0.5 m)."].startswith("so far holds: final distance 0 m")
    assert told["NN ends far from the goal (more than 0.5 m)."].startswith("so far does not hold: final distance 0 m")
    stuck = "A soft network that is projected afterwards gets stuck."
    assert told[stuck].startswith("so far does not hold")
    for record in records.values():
        record["evaluation"] |= {"final_distance": 2.0, "arrived": False, "collided": True}
    told = verdicts(list(records.values()), "cbf")
    assert told[safely].startswith("so far does not hold: final distance 2.0000 m; 1 collided")
    assert told["NN and HardNet collide."].startswith("so far holds")
    assert told["HardNet comes near the goal (0.5 m)."].startswith("so far does not hold: final distance 2.0000 m")
    assert told["NN ends far from the goal (more than 0.5 m)."].startswith("so far holds")
    assert told[stuck].startswith("so far holds")


def test_aims_in_driving():
    records = [make_record("cbf", "caffnet-ff", seed) for seed in (2, 6)]
    for record, cost, arrived in zip(records, (6.9e5, 7.4e5), (True, False), strict=True):
        record["evaluation"] |= {"cost": cost, "arrived": arrived}
    table = aims_table(group_records(records), [], "cbf")
    assert table is not None
    _, arrives, mean, each, fresh, *_ = (cell_text(row[1]) for row in table.rows)
    assert arrives.startswith("so far does not hold: 1 of 2")
    assert mean.startswith("so far holds: CAffNet-FF 7.150e+05")
    assert each.startswith("so far does not hold: CAffNet-FF 6.900e+05, 7.400e+05")
    assert fresh == "open: no fresh.safe of CAffNet-FF"
    found = {"starts": 200, "safe": 100.0, "arrived": 96.0, "cost": 1.0, "violation": 0.0, "clearance": 0.1}
    for record, changes, said in (
        (records[0], {}, "open: fresh starts with 1 of 2 seeds"),
        (records[1], {}, "so far holds: safe 100.00, 100.00 %, arrived 96.00, 96.00 %"),
        (records[1], {"arrived": 94.5}, "so far does not hold: safe 100.00, 100.00 %, arrived 96.00, 94.50 %"),
        (records[1], {"safe": 99.5}, "so far does not hold: safe 100.00, 99.50 %"),
    ):
        record["evaluation"]["fresh"] = found | changes
        table = aims_table(group_records(records), [], "cbf")
        assert table is not None
        assert cell_text(table.rows[4][1]).startswith(said)
    row = results_table(group_records(records), "cbf", "paper")
    shown = dict(zip(row.columns, map(cell_text, row.rows[0]), strict=True))
    assert shown["Collided"] == "0/2" and shown["Arrived"] == "1/2"
    assert shown["Fresh starts: safe (%)"].startswith("99.75")
    assert row.columns.index("Collided") < 6  # where a reader sees it without scrolling


def test_a_timing_of_some_methods_does_not_hide_one_of_all(tmp_path):
    def timing(day: int, *methods: str) -> None:
        times = {name: {"train_ms": float(day), "test_ms": 1.0} for name in methods}
        record = {
            "name": "cbf-paper",
            "task": "cbf",
            "protocol": "paper",
            "methods": times,
            "versions": {},
            "machine": {"processor": "A", "threads": 1},
            "finished": f"2026-01-0{day}",
        }
        write_record(tmp_path / "timing" / f"{day}.json", record)

    timing(1, "nn", "hardnet")
    timing(2, "nn", "hardnet")
    timing(3, "hardnet")
    (found,) = read_timings(tmp_path)
    assert found["finished"] == "2026-01-02"
    partial = {**found, "methods": {"hardnet": {"train_ms": 1.0, "test_ms": 1.0}}}
    assert speed_table([partial]) is not None  # without the NN there is no ratio


def test_records_that_lack_something_are_named(tmp_path):
    record = make_record("pwc", "nn", 1)
    del record["config"]["seed"]
    write_record(tmp_path / "records" / "a.json", record)
    with pytest.raises(RecordError, match=r"a.json is incomplete: it has no config.seed"):
        read_records(tmp_path)
    write_record(tmp_path / "timing" / "b.json", {"name": "cbf-paper"})
    with pytest.raises(
        RecordError, match=r"b.json is incomplete: it has no task, protocol, methods, versions, machine, finished"
    ):
        read_timings(tmp_path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"machine": {}}, "machine.processor, machine.threads"),
        ({"machine": None}, "machine"),
        ({"versions": None}, "versions"),
        ({"evaluation": None}, "evaluation"),
        ({"evaluation": {"mse": 1.0}}, "evaluation.inequality"),
        ({"curves": None}, "curves"),
        ({"training": None}, "training"),
        ({"training": {}}, "training.history"),
        ({"finished": None}, "finished"),
        ({"evaluation": {"mse": None, "inequality": ZERO}}, "evaluation.mse"),
        ({"evaluation": {"mse": 1.0, "inequality": {**ZERO, "max": None}}}, "evaluation.inequality.max"),
        ({"curves": {**CURVES["pwc"], "y": None}}, "curves.y"),
    ],
)
def test_damaged_records_are_named(tmp_path, damage, told):
    write_record(tmp_path / "records" / "good.json", make_record("pwc", "nn", 1))
    for name in ("bad", "worse"):
        write_record(tmp_path / "records" / f"{name}.json", make_record("pwc", "nn", 3) | damage)
    with pytest.raises(RecordError) as refused:
        write_report([tmp_path], tmp_path / "out")
    lines = str(refused.value).splitlines()
    assert [line.split("/")[-1] for line in lines] == [
        f"{name}.json is incomplete: it has no {told}. Restore the file, or move it away." for name in ("bad", "worse")
    ]


def test_a_history_needs_a_loss_for_every_epoch(tmp_path):
    record = make_record("pwc", "nn", 1)
    record["training"]["history"]["loss"].pop()
    write_record(tmp_path / "records" / "a.json", record)
    with pytest.raises(
        RecordError, match=r"lists in training\.history must have the same length, but epoch has 3, loss has 2"
    ):
        read_records(tmp_path)


def test_folders_that_overlap_count_once(tmp_path, monkeypatch):
    write_record(tmp_path / "a" / "records" / "one.json", make_record("pwc", "nn", 1))
    assert len(read_records(tmp_path, tmp_path / "a", tmp_path / "a" / "records")) == 1
    monkeypatch.chdir(tmp_path / "a" / "records")
    assert len(read_records(Path("."))) == 1


def made_times(tmp_path: Path, name: str = "a", **other) -> None:
    record = make_record("cbf", "nn", 2)
    kept = {part: record[part] for part in ("versions", "machine", "finished")}
    times = {"nn": {"train_ms": 1.0, "test_ms": 1.0}}
    record = {"name": "cbf-ours", "task": "cbf", "protocol": "ours", "methods": times, **kept, **other}
    write_record(tmp_path / "timing" / f"{name}.json", record)


def test_a_report_of_times_alone(tmp_path):
    made_times(tmp_path)
    write_report([tmp_path], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| cbf ours: NN | 1.0000 |" in text
    assert "There are no runs" not in text
    assert "A & B, 1 thread(s) per run" in text


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"methods": {"nn": {}}}, "is incomplete: it has no methods.nn.train_ms, methods.nn.test_ms."),
        ({"methods": {"nn": None}}, "is incomplete: it has no methods.nn."),
        (
            {"methods": {"nn": {"train_ms": None, "test_ms": 0}}},
            "is damaged: methods.nn.test_ms must be a number above 0, got 0.",
        ),
        ({"task": "abc"}, f"is damaged: task must be one of {', '.join(TASKS)}, got 'abc'."),
        ({"machine": None}, "is incomplete: it has no machine."),
    ],
)
def test_damaged_times_are_named(tmp_path, damage, told):
    for name in ("bad", "worse"):
        made_times(tmp_path, name, **damage)
    with pytest.raises(RecordError) as refused:
        write_report([tmp_path], tmp_path / "out")
    assert [line.split("/")[-1] for line in str(refused.value).splitlines()] == [
        f"{name}.json {told} Restore the file, or move it away." for name in ("bad", "worse")
    ]


def test_networks_and_solver_with_other_seeds_have_no_gap():
    groups = group_records(
        [make_record("opt", "ipopt", 1), *(make_record("opt", m, 2, value=0.4) for m in ("nn", "caffnet-ff"))]
    )
    assert "gap" not in figures(groups)
    groups = group_records([make_record("opt", "ipopt", 2), *(r for g in groups for r in g.records)])
    for best in (None, {1: 0.0, 2: 0.4}):  # others may know IPOPT's; what equals it is drawn too
        _, figure = figures(groups, best)["gap"]
        assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["seed 2"]
        save(figure, "png")
    heights = [float(dots.get_offsets()[0][1]) for dots in figure.axes[0].collections if len(dots.get_offsets())]
    assert heights == [figure.axes[0].get_ylim()[0]] * 2  # equal to the last `best`


def test_the_solver_of_one_protocol_serves_all(tmp_path):
    for record in (make_record("opt", "ipopt", 1), make_record("opt", "nn", 1, "ours", value=0.6)):
        write_record(tmp_path / "records" / f"{record['name']}.json", record)
    write_report([tmp_path], tmp_path / "out")
    assert (tmp_path / "out" / "figures" / "opt-ours-gap.png").is_file()


def test_rounding_is_judged_in_the_number_type_of_the_runs():
    satisfied = "Both CAffNets satisfy all constraints."
    for dtype, verdict in (("float32", "so far holds"), ("float64", "so far does not hold")):
        records = [make_record("pwc", m, 1, dtype=dtype) for m in ("caffnet-ff", "caffnet-tf")]
        with_violation(records[0], 4.8e-7)
        assert verdicts(records, "pwc")[satisfied].startswith(f"{verdict}: largest violation 4.8e-07")


def test_sources_count_the_runs_of_each_commit():
    records = [make_record("pwc", "nn", seed) for seed in (1, 3, 5)]
    for record in records[:2]:
        record["versions"] = {**record["versions"], "revision": "abc"}
    assert sources(records)[-1] == "Commits: abc (2 runs), not noted (1 run)"
    records[0]["training"]["revisions"] = ["000", "abc"]
    assert sources(records)[-1] == "Commits: 000, then abc (1 run), abc (1 run), not noted (1 run)"
