"""The text of a record is shown in a report, never obeyed: not by a shell, a viewer, LaTeX or a spreadsheet."""

import csv
import html
import io
import re
import shlex

import pytest
from test_report import make_record

from caffnet_lab.bench import report as bench_report
from caffnet_lab.experiments.report.formats import as_csv, as_html, as_latex, as_markdown
from caffnet_lab.experiments.report.groups import commands, group_records, sources
from caffnet_lab.experiments.report.tables import Cell, Table, results_table, speed_table
from caffnet_lab.experiments.report.write import write_report
from caffnet_lab.markup import markdown

HOSTILE = (
    "x; touch owned",
    "$(touch owned)",
    "`touch owned`",
    "a'b\"c\\d",
    "a\n```\n# A heading\n<script>alert(1)</script>",
    "a | b | [here](javascript:alert(1)) | ![](http://example.org/x.png)",
    "</td></table><img src=x onerror=alert(1)>",
    r"\input{/etc/passwd} $x$ % & _ ^ ~ #",
    "*bold* &lt;b&gt;",
)
TAGS = {"section", "h3", "p", "div", "table", "thead", "tbody", "tr", "th", "td"}
TAGS |= {"details", "summary", "pre", "br", "small", "span"}


def with_setting(value: str) -> dict:
    record = make_record("pwc", "nn", 1)
    record["config"]["activation"] = value
    return record


@pytest.mark.parametrize("value", HOSTILE)
def test_a_setting_is_one_word_of_a_command(value):
    (line,) = commands(group_records([with_setting(value)]))
    assert shlex.split(line)[-2:] == ["--set", f"activation={value}"]
    timing = {"task": "opt", "protocol": "paper", "methods": {}, "device": value}
    table = speed_table([timing | {"methods": {"nn": {"train_ms": 1.0, "test_ms": 1.0}}}])
    assert table is not None
    assert shlex.split(table.commands[0])[-2:] == ["--device", value]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_setting_stays_in_its_cell(value):
    table = results_table(group_records([with_setting(value)]), "pwc", "paper")
    width = len(table.columns)
    text = as_markdown(table)
    block = text.index("```")
    grid = [line for line in text[:block].splitlines() if line.startswith("|")]
    assert len(grid) == 4  # header, rule, ours, the paper's
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in grid} == {width + 1}
    for active in ("<script", "<img", "</td", "](javascript", "](http"):
        assert not re.search(rf"(?<!\\){re.escape(active)}", text[:block].replace("]\\(", "")), active
    fence = re.match("`+", text[block:])
    assert fence is not None
    assert [line for line in text[block:].splitlines() if line.startswith(fence[0])] == [f"{fence[0]}sh", fence[0]]

    page = as_html(table)
    assert {tag.strip("/") for tag in re.findall(r"<(/?\w+)", page)} <= TAGS
    assert html.escape(value) in page

    latex = as_latex(table)
    body = latex[latex.index(r"\midrule") : latex.index(r"\bottomrule")].splitlines()
    assert len(body) == 4  # the rule, ours, the paper's, and the beginning of the next rule
    assert len(re.findall(r"(?<!\\)&", body[1])) == width - 1
    assert not re.search(r"\\input|\\(?!text|[_%&#{}$\\])", body[1].removesuffix(r" \\"))

    rows = list(csv.reader(io.StringIO(as_csv(table))))
    assert len(rows) == 3


def test_a_spreadsheet_sees_text():
    table = Table(
        "a", "a", "", ("a", "b"), ((Cell(text='=HYPERLINK("http://example.org")'), Cell(1.0, remark=", @x")),)
    )
    (_, row) = csv.reader(io.StringIO(as_csv(table)))
    assert row == ['\'=HYPERLINK("http://example.org")', "1.0", "'@x"]
    negative = Table("a", "a", "", ("a",), ((Cell(-1.5),),))
    assert as_csv(negative) == "a\n-1.5\n"  # a number stays one


@pytest.mark.parametrize("value", HOSTILE)
def test_where_the_runs_were_made_is_a_list_of_plain_text(value):
    record = make_record("pwc", "nn", 1)
    record["machine"]["processor"], record["versions"] = value, {"torch": value, "revision": value}
    for line in sources([record]):
        shown = markdown(line)
        assert "\n" not in shown
        assert not re.search(r"(?<!\\)(`|\||<(?=[A-Za-z/])|\*)|(?<!\\)&lt;|\]\(", shown)


def test_the_benchmark_escapes_its_conditions():
    text = bench_report.to_markdown({"processor": "<b>`x`|\n# y", "load": [1.0]}, [], [], [])
    assert "# y" not in text.splitlines()
    assert r"\<b>\`x\`\| # y" in text


def test_the_page_is_free_of_hostile_text(tmp_path, monkeypatch):
    """A file that reached the report in spite of every check."""
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    record = make_record("pwc", "nn", 1)
    record["machine"]["processor"] = HOSTILE[4]
    monkeypatch.setattr("caffnet_lab.experiments.report.write.read_records", lambda *_: [record])
    write_report([tmp_path], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "# A heading" not in text.splitlines()
    assert not re.search(r"(?<!\\)<script", text)
    assert "<script" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
