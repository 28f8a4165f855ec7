"""Records as a table, JSON and Markdown. Needs nothing but the records."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caffnet_lab.bench.claims import ABSENT, Claim, Figure, Table
from caffnet_lab.bench.contestants import BACKBONE, CONTESTANTS
from caffnet_lab.bench.measure import Record, Timing
from caffnet_lab.markup import code_block, markdown, markdown_row

CLAIM_HEADER = ("ratio", "forward (limit)", "verdict", "forward + backward (limit)", "verdict", "note")
NOISY = 1.3
RECORD_HEADER = (
    *("task", "contestant", "forward ms", "/ backbone", "fwd + bwd ms", "/ backbone"),
    *("violation", "distance", "gradient", "memory / inputs"),
)


def claim_rows(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """The cells of the table of claims, below `CLAIM_HEADER`."""
    rows = []
    for claim in claims:
        cells = [cell for figure in (claim.forward, claim.train) for cell in _figure(figure)]
        rows.append((claim.line, *cells, claim.note))
    return rows


def record_rows(facts: Sequence[dict[str, Any]], records: Sequence[Record]) -> list[tuple[str, ...]]:
    """The cells of the table of measurements, below `RECORD_HEADER`; absent contestants are in `absent`."""
    table = Table(facts, records)
    rows = []
    for record in records:
        if record.forward is None:
            continue
        inputs, peak = table.facts[record.task]["input_bytes"], (record.memory or {}).get("peak")
        ratios = [table.ratio(record.task, record.contestant, BACKBONE, d) for d in ("forward", "train")]
        rows.append(
            (
                *(record.task, record.contestant),
                *(_milliseconds(record.forward), _number(ratios[0])),
                *(_milliseconds(record.train), _number(ratios[1])),
                *(_power(record.violation), _power(record.distance), _power(record.gradient)),
                _number(None if peak is None else peak / inputs),
            )
        )
    return rows


def noise(records: Sequence[Record]) -> str:
    """Spread of the rounds of one measurement: a busy machine makes it large."""
    spreads = sorted(t.high / t.low for r in records for t in (r.forward, r.train) if t and t.rounds > 1)
    if not spreads:
        return "Nothing was timed twice."
    middle = spreads[len(spreads) // 2]
    advice = " The machine was busy: measure again when it is quiet." if middle > NOISY else ""
    return f"Third over first quartile of the rounds: {middle:.2f} (median of {len(spreads)} measurements).{advice}"


def absent(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """``(contestant, why, tasks)`` of everything that was not measured."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record.skipped is not None:
            found.setdefault((record.contestant, record.skipped), []).append(record.task)
    return [(name, why, ", ".join(tasks)) for (name, why), tasks in found.items()]


def to_json(
    conditions: dict[str, Any], facts: Sequence[dict[str, Any]], records: Sequence[Record], claims: Sequence[Claim]
) -> str:
    """Everything, for another program. Numbers that are not finite become null."""
    judged = []
    for claim in claims:
        one = dataclasses.asdict(claim)
        for direction in ("forward", "train"):
            figure: Figure | None = getattr(claim, direction)
            if figure is not None:
                one[direction]["verdict"] = figure.verdict
        judged.append(one)
    whole = {
        "conditions": conditions,
        "tasks": list(facts),
        "claims": judged,
        "records": [dataclasses.asdict(record) for record in records],
    }
    return json.dumps(_finite(whole), indent=1, allow_nan=False)


def from_json(text: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[Record]]:
    """Conditions, tasks and records of a stored run: claims and figures can be made again."""
    whole = json.loads(text)
    records = []
    for one in whole["records"]:
        for direction in ("forward", "train"):
            one[direction] = None if one[direction] is None else Timing(**one[direction])
        records.append(Record(**one))
    return whole["conditions"], whole["tasks"], records


def to_markdown(
    conditions: dict[str, Any],
    facts: Sequence[dict[str, Any]],
    records: Sequence[Record],
    claims: Sequence[Claim],
    figures: Sequence[str] = (),
) -> str:
    """The page that a person reads."""
    parts = ["# Benchmark", "", markdown(_sentence(conditions)), ""]
    parts += [f"![{name}]({name})" for name in figures] + [""] * bool(figures)
    parts += ["## What the layer must show", "", *_grid(CLAIM_HEADER, claim_rows(claims)), ""]
    parts += [
        "## Measured",
        "",
        f"Medians; distance and gradient are the largest error of an entry. {noise(records)}",
        "",
    ]
    parts += [*_folded("Every measurement", RECORD_HEADER, record_rows(facts, records)), ""]
    took_part = [CONTESTANTS[name] for name in CONTESTANTS if any(r.contestant == name for r in records if r.forward)]
    parts += [*_grid(("contestant", "how it is called"), [(c.name, c.note) for c in took_part]), ""]
    missing = absent(records)
    if missing:
        parts += ["## Not measured", "", *_folded("Who, and why", ("contestant", "why", "tasks"), missing), ""]
    parts += ["## Conditions", "", *code_block(json.dumps(conditions, indent=1).splitlines(), "json"), ""]
    return "\n".join(parts)


def save(
    folder: Path,
    conditions: dict[str, Any],
    facts: Sequence[dict[str, Any]],
    records: Sequence[Record],
    claims: Sequence[Claim],
) -> Path:
    """``bench.json`` alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    path.write_text(to_json(conditions, facts, records, claims) + "\n", encoding="utf-8")
    return path


def write(
    folder: Path,
    conditions: dict[str, Any],
    facts: Sequence[dict[str, Any]],
    records: Sequence[Record],
    claims: Sequence[Claim],
) -> list[Path]:
    """``bench.json``, ``bench.md`` and the figures."""
    from caffnet_lab.bench.figures import draw

    data, page = save(folder, conditions, facts, records, claims), folder / "bench.md"
    drawn = draw(folder, facts, records)
    text = to_markdown(conditions, facts, records, claims, [path.name for path in drawn])
    page.write_text(text, encoding="utf-8")
    return [data, page, *drawn]


# ------------------------------------------------------------------------------------------------- cells


def _figure(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    sign = ">=" if figure.above else "<="
    value = "?" if figure.value is None else _number(figure.value)
    return f"{value} ({sign} {_number(figure.limit)})", "-" if figure.verdict == ABSENT else figure.verdict


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _milliseconds(timing: Timing | None) -> str:
    return "" if timing is None else f"{1e3 * timing.median:.3g}"


def _power(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}" if value else "0"


def _sentence(conditions: dict[str, Any]) -> str:
    loads = [conditions[key][0] for key in ("load", "load_at_end") if conditions.get(key)]
    busy = f", load {' to '.join(map(str, loads))}" if loads else ""
    return (
        f"Measured {conditions.get('when')} on {conditions.get('processor')}; cores: {conditions.get('cores')}, "
        f"threads: {conditions.get('threads')}, OMP_WAIT_POLICY={conditions.get('OMP_WAIT_POLICY')}{busy}."
    )


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [markdown_row([markdown(cell) for cell in line]) for line in lines]


def _folded(summary: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A long table behind a line to click on, which GitHub and the site understand; empty lines make it Markdown."""
    summary = f"{summary}: {len(rows)} {'line' if len(rows) == 1 else 'lines'}"
    return ['<details markdown="1">', f"<summary>{summary}</summary>", "", *_grid(header, rows), "", "</details>"]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
