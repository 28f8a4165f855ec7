"""Cross-checks against the published packages; each runs only where that package is installed.

They are not dependencies: ``rayen`` needs a C build, ``pishield`` has the bug that our C-DGM does not.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

from caffnet import AffineSet
from caffnet.methods import CDGM, RAYEN, Orthogonal

pytestmark = pytest.mark.filterwarnings("default")


def test_rayen_gives_the_same_outputs(mixed: AffineSet):
    module, sets = pytest.importorskip("rayen.constraint_module"), pytest.importorskip("rayen.constraints")
    A, b = mixed.A.numpy(), mixed.upper.numpy()[:, None]
    linear = sets.LinearConstraint(A[:5], b[:5], A[5:], b[5:])
    theirs = module.ConstraintModule(sets.ConvexConstraints(lc=linear, qcs=[], socs=[], lmic=None), create_map=False)
    mine = RAYEN(nn.Identity(), mixed.to(torch.float32), create_map=False)
    torch.testing.assert_close(theirs.NA_E @ theirs.NA_E.T, mine.N @ mine.N.T)  # the same directions
    # from the same middle and coordinates (ours is the deeper one), the same ray
    mine.N, mine.D, mine.y_0 = theirs.NA_E, theirs.D, theirs.y0.squeeze(-1)
    q = 3 * torch.randn(200, 2)
    torch.testing.assert_close(mine(mine.y_0 + q @ mine.N.T), theirs(q.unsqueeze(-1)).squeeze(-1), atol=1e-4, rtol=1e-4)


def shield(folder: Path, rules: str, f: torch.Tensor) -> torch.Tensor:
    pishield = pytest.importorskip("pishield.shield_layer")
    path = folder / "rules.txt"
    path.write_text(rules)
    corrected = pishield.build_shield_layer(f.shape[-1], str(path))(f)
    gc.collect()  # it leaves the file open; the warning belongs to this test
    return corrected


def test_pishield_agrees_where_its_constants_need_no_factor(tmp_path: Path):
    f = torch.randn(200, 3)
    theirs = shield(tmp_path, "ordering y_0 y_1 y_2\ny_1 - y_0 >= 0\ny_2 - y_1 >= 0\n- y_2 >= -1\n", f)
    limits = AffineSet.inequality([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]], [0.0, 0.0, 1.0])
    torch.testing.assert_close(CDGM(nn.Identity(), limits)(f), theirs)


def test_pishield_violates_where_ours_does_not(tmp_path: Path):
    f = 10 * torch.randn(500, 2)
    theirs = shield(tmp_path, "ordering y_0 y_1\ny_1 - y_0 >= 4\n- 2 y_1 - y_0 >= -10\n", f)
    limits = AffineSet.inequality([[1.0, -1.0], [1.0, 2.0]], [-4.0, 10.0])
    assert limits.violation(CDGM(nn.Identity(), limits)(f)).max() < 1e-5
    assert limits.violation(theirs).max() > 1.0  # once this fails, the public code was repaired


def test_cvxpylayers_finds_the_same_projection(mixed: AffineSet):
    layers, cp = pytest.importorskip("cvxpylayers.torch"), pytest.importorskip("cvxpy")
    y, raw = cp.Variable(5), cp.Parameter(5)
    A, b = mixed.A.numpy(), mixed.upper.numpy()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - raw)), [A[:5] @ y <= b[:5], A[5:] @ y == b[5:]])
    layer = layers.CvxpyLayer(problem, parameters=[raw], variables=[y])
    f = 2 * torch.randn(20, 5, dtype=torch.float64)
    (theirs,) = layer(f)
    torch.testing.assert_close(Orthogonal(nn.Identity(), mixed)(f), theirs, atol=1e-2, rtol=1e-2)
