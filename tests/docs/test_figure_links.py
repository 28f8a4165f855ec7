"""The hook of the site that leads every figure to its file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "tools"))

import figures


def test_a_figure_leads_to_its_file():
    image = '<img alt="Time &gt; 1" src="../figures/ratios.png" />'
    assert (
        figures.on_page_content(f"<p>{image}</p>")
        == f'<p><a href="../figures/ratios.png" title="full size">{image}</a></p>'
    )


def test_an_image_in_a_link_and_other_text_stay():
    for page in (
        '<a href="x.html">see <img src="a.png"></a>',
        "<p>an image</p>",
        '<iframe src="../playground.html"></iframe>',
    ):
        assert figures.on_page_content(page) == page
