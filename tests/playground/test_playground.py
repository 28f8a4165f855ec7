"""The playground: the page in headless Chromium shows what Python computes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from caffnet import AffineSet, Status, project
from caffnet._kernel import build

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "playground.html"
NODE = Path(os.environ.get("NODE_PATH", ROOT / "build" / "node" / "node_modules"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_is_small_and_has_this_kernel():
    """`make playground` writes it again after a change of the kernel."""
    text = PAGE.read_text()
    assert len(text.encode()) < 500_000
    assert f"caffnet-sources:{build.source_hash()};" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded from elsewhere


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> dict:
    if not (CHROMIUM and shutil.which("node") and (NODE / "playwright-core").exists()):
        pytest.skip("node, chromium or playwright-core is missing (make playground-test)")
    folder = tmp_path_factory.mktemp("screenshots")
    command = ["node", str(Path(__file__).parent / "drive.mjs"), str(PAGE), str(CHROMIUM), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NODE_PATH": str(NODE)})
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"set.png", "metric.png", "empty.png", "drive.png", "phone.png"}
    return json.loads(done.stdout)


def test_no_errors_and_no_requests(shown: dict):
    assert shown["errors"] == []
    assert shown["requests"] == []


def test_the_numbers_are_those_of_python(shown: dict):
    """After drags, other norms and searches, without w, with more rows, and for an empty set."""
    seen = set()
    for view in shown["views"]:
        A, b, f = (torch.tensor(view[key], dtype=torch.float64) for key in ("A", "b", "f"))
        w = None if view["w"] is None else torch.tensor(view["w"], dtype=torch.float64)
        search = ("full", "lite", "active")[view["search"]]
        set_ = AffineSet.inequality(A, b)
        if view["metric"] is not None:
            set_ = set_.with_metric(torch.tensor(view["metric"], dtype=torch.float64))
        answer = project(f, set_, w, norm=float(view["norm"]), search=search, on_infeasible="nearest")
        assert view["status"] == Status(int(answer.status)).name
        torch.testing.assert_close(
            torch.tensor(view["value"], dtype=torch.float64), answer.value, rtol=1e-12, atol=1e-12
        )
        seen.add(view["status"])
        if view["status"] == "PROJECTED" and (search == "full" or w is None):
            assert view["best"] == view["shown"]
        if view["status"] == "PROJECTED":  # M (f + w - y) is made of the normals of the active rows
            pull = (f if w is None else f + w) - answer.value
            pull = pull if view["metric"] is None else torch.tensor(view["metric"], dtype=torch.float64) @ pull
            multipliers = torch.tensor([float(x) for x in view["multipliers"].split()], dtype=torch.float64)
            torch.testing.assert_close(multipliers @ A[answer.active != 0], pull, rtol=1e-9, atol=1e-9)
        assert (view["certificate"] != "") == (view["status"] == "INFEASIBLE")
        assert view["cone"] == (view["status"] == "PROJECTED")
    assert {"PROJECTED", "INFEASIBLE"} <= seen
    assert shown["views"][0]["w"] is None and shown["views"][1]["w"] is not None  # w is off until it is asked for
    assert sum(view["metric"] is not None for view in shown["views"]) == 3
    assert len({tuple(view["f"]) for view in shown["views"]}) >= 3  # the drags moved it
    assert "reads 0 ≤ -" in shown["views"][-1]["certificate"]


def test_arrow_keys_move_a_point(shown: dict):
    (x, y), (right, up) = shown["keys"]
    assert right == pytest.approx(x + 0.1) and up == pytest.approx(y + 0.01)


def test_the_filter_keeps_the_robot_safe_and_is_that_of_python(shown: dict):
    drive = shown["drive"]
    assert drive["off"]["inside"] and drive["off"]["smallest"] < 0
    assert not drive["on"]["inside"] and drive["on"]["smallest"] > -1e-3  # inputs are held for a step
    assert drive["on"]["far"] < 0.1  # the controller has nothing left to do
    for step in drive["on"]["seen"]:
        A, u, high = (torch.tensor(step[key], dtype=torch.float64) for key in ("A", "u", "high"))
        low = torch.tensor([-torch.inf if x is None else x for x in step["low"]], dtype=torch.float64)
        answer = project(u, AffineSet(A, low, high), search="full", on_infeasible="nearest")
        assert step["status"] == int(answer.status)
        torch.testing.assert_close(
            torch.tensor(step["value"], dtype=torch.float64), answer.value, rtol=1e-12, atol=1e-12
        )


def test_it_fits_a_phone(shown: dict):
    assert shown["phone"]["width"] <= shown["phone"]["view"] <= 390
