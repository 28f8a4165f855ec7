"""The hook of the site that keeps numbers on one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "tools"))
unbroken = pytest.importorskip("unbroken")


def test_numbers_with_a_hyphen_or_a_unit_are_marked():
    page = "<td>1.2e-10 (-3.5) of 12, 0.02 s</td>"
    span = '<span class="number">{}</span>'.format
    assert unbroken.on_page_content(page) == f"<td>{span('1.2e-10')} ({span('-3.5')}) of 12, {span('0.02 s')}</td>"


def test_groups_comparisons_and_options_are_marked():
    page = "<td>32 931 rows, 1 2 3, 0.04 (&lt;= 0.25), 256 MiB</td><code>--name</code>"
    span = '<span class="number">{}</span>'.format
    marked = f"{span('32 931')} rows, {span('1 2 3')}, 0.04 ({span('&lt;= 0.25')}), {span('256 MiB')}"
    assert unbroken.on_page_content(page) == f'<td>{marked}</td><code class="number">--name</code>'


def test_spreads_and_shares_are_marked():
    page = "<td>-73.2 ± 222.6</td><td>0 of 12000</td><td>3 of them</td>"
    span = '<span class="number">{}</span>'.format
    marked = f"<td>{span('-73.2 ± 222.6')}</td><td>{span('0 of 12000')}</td><td>3 of them</td>"
    assert unbroken.on_page_content(page) == marked


def test_everything_else_stays():
    for page in (
        '<a href="x-1.html#a-2" title="1e-5">dcopf-118, forecast-wiki2, 2026-11-18</a>',
        "<pre><code>x = 1e-5</code></pre><code>1 - 3</code><math><mn>1e-5</mn></math>",
        "3 samples, 5 stars",
    ):
        assert unbroken.on_page_content(page) == page
