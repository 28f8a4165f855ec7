"""Every epsilon of the library, each with its reason.

All of them are multiples of the machine epsilon of the *user's* number type, and all are used on rows that were
first scaled by a power of two so that ``1 <= |a_i|_1 < 2``. So they do not depend on the units of the user.

A sample of the kernel meets them in this order; the last column is the size that the number is multiplied by.

    feasibility    rows.c        Is f, or another point, accepted?             the row's numbers at the point, its bound
    search         dual.c        Is a row violated during the search?          all numbers of the sample
    rank           face.c        Is a row independent of those of a face?      the row
    fine_rank      infeasible.c  Is a coefficient zero? (float64 throughout)   the largest coefficient
    tie            walk.c        Are two candidates equally near?              their distance to f
    optimal        project.c     Is an accepted point the nearest?             its distance to f
    EMPTY          violation.c   Does the proof of an empty set reach far?     the radius of the proof
    strict_margin  strict.c      How far inside must a strict point lie?       the row's numbers at the point, its bound
"""

from __future__ import annotations

import math

import torch


def feasibility(dtype: torch.dtype, n: int) -> float:
    """The relative error allowed in ``a_i y <= b_i``: multiply by ``2 |a_i| |y| + |b_i|``.

    Evaluating ``a_i y`` in floating point already costs up to ``n eps |a_i| |y|``; the point itself is rounded to the
    same order, and so is the projection that produced it. Four such errors is the smallest allowance with which every
    real problem we know keeps its true face; two to eight work. Outputs that are not in the row do not count, except
    for the rounding of float64, in which everything is computed (`search`).
    """
    return 4 * max(n, 1) * torch.finfo(dtype).eps


def rank(dtype: torch.dtype, n: int) -> float:
    """The share of a row that its part orthogonal to the other rows must exceed to count as a new direction.

    Below it the remainder is rounding noise of the data (0.3 is not 3 * 0.1): keeping the row would put a vertex at
    a random far point. Rounding errors of ``n`` entries add up like a random walk, hence the root.
    """
    return 8 * math.sqrt(max(n, 1)) * torch.finfo(dtype).eps


def tie(dtype: torch.dtype, n: int) -> float:
    """The relative difference of two distances below which candidates count as equally near.

    Several sub-constraints often give one point; rounding must not decide between them, so the one with the fewest
    rows (the first in order) wins.
    """
    return 4 * max(n, 1) * torch.finfo(dtype).eps


def underflow(dtype: torch.dtype) -> float:
    """The size below which products of the data underflow, so that no relative bound on their error holds."""
    info = torch.finfo(dtype)
    return info.tiny / info.eps


def rounding(dtype: torch.dtype, n: int) -> float:
    """A rigorous bound on rounding: ``|fl(a y - b) - (a y - b)| <= rounding * (|a| |y| + |b|)``.

    The classical bound for a dot product of length ``n`` and one subtraction is ``(n + 1) u / (1 - (n + 1) u)``
    with ``u = eps / 2``, whatever the order of summation. Twice that also covers the rounding of the bound itself.
    """
    return (n + 2) * torch.finfo(dtype).eps


def strict_margin(dtype: torch.dtype, n: int) -> float:
    """The margin by which `strict` aims inside: the error of the projection plus twice the rigorous bound above."""
    return feasibility(dtype, n) + 4 * rounding(dtype, n)


def search(n: int) -> float:
    """The excess, relative to the data, below which the active-set search sees a row as satisfied.

    The search decides the active rows in float64, so this is as fine as float64 allows for every type of the user: the
    tolerance of the user's type would miss a row that is only just active. If the rows then exclude each other, the
    search runs again with `feasibility`. Any row may be exceeded by four times this share of the size of all outputs,
    whatever its own numbers: in float64 that is `feasibility`.
    """
    return max(n, 1) * torch.finfo(torch.float64).eps


def fine_rank(n: int) -> float:
    """The share of the largest coefficient below which a coefficient of the search is rounding noise in float64."""
    return rank(torch.float64, n)


#: A proof that a set is empty must reach to points of 1 / EMPTY times the size of the data. Its multipliers are
#: rounded, so it shows that no point within some radius satisfies the rows: infinite where the data cancel exactly,
#: else about 1e16 times the gap. Rows that are parallel but for the rounding of 0.1 and 0.3 meet far beyond any answer;
#: in float32 some meet nearer. A proof as far as the root of it is enough where the allowance of the rows in conflict
#: at their common point is larger than what they miss each other by near the data.
EMPTY = 2.0**-20


def optimal(dtype: torch.dtype) -> float:
    """The share of the distance by which a PROJECTED point may be farther than the nearest one.

    Checked by a bound from duality where rows are nearly dependent (`DELICATE`, or by so much that the rounding of the
    data, divided by what is left of a row, exceeds this share), and in float32 where the search took rows for dependent
    that float64 tells apart; a point that fails the check is WITHIN_TOL. Comparing the squares of distances preserves
    half of their digits.
    """
    return math.sqrt(torch.finfo(dtype).eps)


#: Rows are nearly dependent if less than this share of a row's square is left beside the others. Multipliers then lose
#: more than six of their sixteen digits.
DELICATE = 2.0**-40


#: A matrix that differs from its transpose by more than this share of its largest entry was not meant as a metric.
#: Rounding leaves 1e-6 in float32, finite differences move an entry by 1e-4 at most; one diagonal per sample, taken for
#: a matrix, differs by about as much as its entries do.
ASYMMETRY = 1e-3


def flat(dtype: torch.dtype, n: int) -> float:
    """An eigenvalue of a positive semidefinite matrix below this share of its largest is zero.

    Those of a computed ``R Rᵀ`` are wrong by some ``n eps`` of the largest; eight such errors separate both kinds.
    """
    return 8 * max(n, 1) * torch.finfo(dtype).eps


#: Lengths of the steps of the proximal sequence, in turn, in units of the room around the point. A long step comes
#: near the end of a linear program, with a rounding error of so many units in the last place; the short step after it
#: starts from there and finds the right rows.
PROXIMAL = 2.0**-6, 2.0**8, 2.0**-6, 2.0**16, 2.0**-6, 2.0**24

#: The least and the most of the damping ε of that sequence, as shares of the largest entry of Q: enough to factorise
#: ``Q + ε I``, whose rounding errors are then below a part in 1e8, and so little that curvature hardly feels it.
DAMPING = 2.0**-26, 2.0**-12

#: A step of that sequence is made longer by so many times its length at most: its rounding grows as much, and must stay
#: far below the step.
FARTHEST = 2.0**16

#: A direction in which the objective falls without end is no shorter than this, for a largest entry of q of 1. What
#: rounding leaves of none is 1e-16 times the condition of the rows.
RAY = 2.0**-26


def reach(dtype: torch.dtype) -> float:
    """The share of ``|∇h| |g|`` below which an input does not reach a barrier: ``L_g h = 0``.

    A gradient of a gradient may cancel, so its error is not bounded by its own size; where the input does act, the
    share is of order one. The root of the machine epsilon lies between, far from both.
    """
    return math.sqrt(torch.finfo(dtype).eps)


def shell(dtype: torch.dtype, n: int) -> float:
    """The share of the way from a centre to the boundary that a map into the interior leaves out.

    Evaluating ``c + k z`` and then ``a_i u`` costs some ``n eps`` of the numbers involved; the slack at the centre is a
    fair share of them. Sixty-four such errors keep every row satisfied in floating point; no policy notices them.
    """
    return 64 * max(n, 1) * torch.finfo(dtype).eps


#: The radius of a ball has stopped growing if looking 2^12 times farther adds less than this share of it, beside what
#: rounding adds. Where it still grows, it does so by a factor of the order of 2^12.
GROWN = 2.0**-16


def even(dtype: torch.dtype) -> float:
    """The change of a log-density over an interval below which it is the same all over the interval.

    The mass of the interval is then a difference that keeps less than half of its digits, and the interval times its
    density is right to as many: the root is where both are equally good.
    """
    return math.sqrt(torch.finfo(dtype).eps)


def exported(dtype: torch.dtype) -> float:
    """The difference, relative to a number or 1, that an exported model may have from torch: 1e-12 in float64.

    Networks of a few layers sum a few hundred products in another order; each sum may lose some dozen units in the last
    place, and the layers behind it pass that on.
    """
    return 2.0**12 * torch.finfo(dtype).eps
