"""Cross-checks against the published packages; each runs only where that package is installed.

They are not dependencies: ``rayen`` needs a C build, ``pishield`` has the bug that our C-DGM does not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import AffineSet
from caffnet.methods import CDGM, RAYEN, Orthogonal
from caffnet.methods.rayen import presolve

pytestmark = pytest.mark.filterwarnings("default")


def test_rayen_finds_the_same_affine_hull_and_boundary(mixed: AffineSet):
    module = pytest.importorskip("rayen.constraint_module")
    sets = pytest.importorskip("rayen.constraints")
    A, b = mixed.A.numpy(), mixed.upper.numpy()[:, None]
    linear = sets.LinearConstraint(A[:5], b[:5], A[5:], b[5:])
    theirs = module.ConstraintModule(sets.ConvexConstraints(lc=linear, qcs=[], socs=[], lmic=None))
    mine = presolve(mixed)
    hull = theirs.NA_E.double().numpy()
    np.testing.assert_allclose(hull @ hull.T, mine.N @ mine.N.T, atol=1e-6)  # the same directions
    point = theirs.yp.double().numpy().ravel()
    np.testing.assert_allclose(A[5:] @ point, b[5:, 0], atol=1e-6)
    far = RAYEN(nn.Identity(), mixed, create_map=False)(1e4 * torch.randn(100, 5, dtype=torch.float64))
    assert mixed.violation(far).max() < 1e-12


def test_pishield_agrees_where_its_constants_need_no_factor(tmp_path: Path):
    pishield = pytest.importorskip("pishield.shield_layer")
    rules = tmp_path / "rules.txt"
    rules.write_text("ordering y_0 y_1 y_2\n\ny_1 - y_0 >= 0\ny_2 - y_1 >= 0\n- y_2 >= -1\n")
    theirs = pishield.build_shield_layer(3, str(rules))
    limits = AffineSet.inequality([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]], [0.0, 0.0, 1.0])
    f = torch.randn(200, 3)
    torch.testing.assert_close(CDGM(nn.Identity(), limits)(f), theirs(f))


def test_pishield_violates_where_ours_does_not(tmp_path: Path):
    pishield = pytest.importorskip("pishield.shield_layer")
    rules = tmp_path / "rules.txt"
    rules.write_text("ordering y_0 y_1\n\ny_1 - y_0 >= 4\n- 2 y_1 - y_0 >= -10\n")
    limits = AffineSet.inequality([[1.0, -1.0], [1.0, 2.0]], [-4.0, 10.0])
    f = 10 * torch.randn(500, 2)
    assert limits.violation(CDGM(nn.Identity(), limits)(f)).max() < 1e-5
    theirs = pishield.build_shield_layer(2, str(rules))(f)
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
