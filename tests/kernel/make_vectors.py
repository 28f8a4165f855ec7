"""Writes vectors.h: problems with the answers and gradients of the Python package, for test_vectors.c.

Run it from the root of a clone whenever answers are meant to change: ``.venv/bin/python tests/kernel/make_vectors.py``.
Random arrays are not stored: the program draws them again from their seed (`noise`). Answers are stored number by
number, gradients and proofs as a hash of their bits.
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet import AffineSet, project
from caffnet._kernel import native
from caffnet._solve.problem import Problem, check_options

HERE = Path(__file__).parent
TARGET = HERE / "vectors.h"
SEARCHES = {"full": 0, "lite": 1, "active": 2, "paper": 3}
MOST_N = 40
INFINITE = math.inf


# ------------------------------------------------------------------------------------------------- arrays


def noise(seed: int, count: int, single: bool) -> np.ndarray:
    """Numbers in [-4, 4) with 24 or 48 bits: splitmix64 of the place, as test_vectors.c has it."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    bits = 24 if single else 48
    return ((z >> np.uint64(64 - bits)).astype(np.int64) - (1 << (bits - 1))).astype(np.float64) * 2.0 ** (3 - bits)


@dataclasses.dataclass
class Array:
    """An array of a problem and how the program gets it: from a seed, as an identity, or from the list of numbers."""

    data: np.ndarray  # (lines, ...)
    source: str = "LISTED"
    seed: int = 0
    power: int = 0

    @property
    def lines(self) -> int:
        return len(self.data)


def drawn(seed: int, shape: tuple[int, ...], single: bool, power: int = 0) -> Array:
    data = noise(seed, math.prod(shape), single).reshape(shape) * 2.0**power
    return Array(data, "DRAWN", seed, power)


def listed(data: Any, single: bool) -> Array:
    with np.errstate(over="ignore"):
        array = np.asarray(data, dtype=np.float32 if single else np.float64)
    return Array(array.astype(np.float64))


def identity(n: int) -> Array:
    return Array(np.eye(n)[None], "IDENTITY")


@dataclasses.dataclass
class Case:
    """A problem and its options."""

    single: bool
    f: Array
    A: Array
    lower: Array
    upper: Array
    w: Array | None = None
    search: str = "active"
    norm: float = 2.0
    strict: bool = False
    nearest: bool = True
    start: np.ndarray | None = None

    @property
    def samples(self) -> int:
        return self.f.lines


# ------------------------------------------------------------------------------------------------- problems


def bounds_around(A: np.ndarray, centre: np.ndarray, kinds: str, dice: random.Random, grid: float) -> Any:
    """Bounds that leave room for a point, of the kinds that are asked for, as multiples of a number."""
    low, high = np.full(A.shape[:2], -INFINITE), np.full(A.shape[:2], INFINITE)
    for b in range(A.shape[0]):
        for i in range(A.shape[1]):
            kind, at = kinds[i % len(kinds)], float(A[b, i] @ centre[b % len(centre)])
            at = round(at / grid) * grid
            below, above = at - grid * dice.randrange(1, 40), at + grid * dice.randrange(1, 40)
            low[b, i] = at if kind == "=" else below if kind in ">B" else -INFINITE
            high[b, i] = at if kind == "=" else above if kind in "<B" else INFINITE
    return low, high


def random_case(dice: random.Random, seed: int, n: int, m: int, kinds: str, **options: Any) -> Case:
    """Rows that are drawn, bounds around a point, and f beyond some of them."""
    single, samples = dice.random() < 0.5, dice.randrange(1, 4)
    power = options.pop("power", 0)
    own_A, own_bounds = dice.random() < 0.5, dice.random() < 0.5
    lines = samples if own_A else 1
    A = drawn(4 * seed, (lines, m, n), single, options.pop("row_power", 0))
    f = drawn(4 * seed + 1, (samples, n), single, power)
    w = drawn(4 * seed + 2, (samples, n), single, power - 1) if options.pop("w", dice.random() < 0.4) else None
    own_bounds = own_bounds or own_A
    rows = A.data if own_A or not own_bounds else np.repeat(A.data, samples, 0)
    grid = 2.0 ** (power + round(math.log2(np.abs(A.data).max())) - 5) if m else 1.0
    low, high = bounds_around(rows, 0.25 * f.data, kinds, dice, grid)
    return Case(single, f, A, listed(low, single), listed(high, single), w, **options)


def box_case(dice: random.Random, seed: int, n: int, **options: Any) -> Case:
    single, samples = dice.random() < 0.5, dice.randrange(1, 4)
    f = drawn(4 * seed + 1, (samples, n), single)
    w = drawn(4 * seed + 2, (samples, n), single) if dice.random() < 0.4 else None
    low, high = bounds_around(np.eye(n)[None], np.zeros((1, n)), dice.choice(["B", "<", ">B", "=B<"]), dice, 1 / 16)
    return Case(single, f, identity(n), listed(low, single), listed(high, single), w, **options)


def integer_case(dice: random.Random, n: int, m: int, **options: Any) -> Case:
    """Small integers: rows repeat, depend on each other, vanish, and many meet in a point; or contradict each other."""
    single, samples = dice.random() < 0.5, dice.randrange(1, 3)

    def integers(*shape: int) -> np.ndarray:
        return np.array([dice.choice([-2, -1, -1, 0, 0, 0, 1, 1, 2]) for _ in range(math.prod(shape))]).reshape(shape)

    f, A = integers(samples, n) * 3, integers(1, m, n)
    low, high = integers(1, m).astype(float), integers(1, m).astype(float)
    if dice.random() < 0.7:
        low, high = np.minimum(low, high), np.maximum(low, high)
    for i in range(m):
        side = dice.randrange(4)
        low[0, i] = low[0, i] if side else -INFINITE
        high[0, i] = high[0, i] if side != 1 else INFINITE
    w = listed(integers(samples, n), single) if dice.random() < 0.5 else None
    return Case(single, listed(f, single), listed(A, single), listed(low, single), listed(high, single), w, **options)


def empty_case(dice: random.Random, seed: int, n: int, m: int, **options: Any) -> Case:
    """Drawn rows and their negatives with bounds that exclude each other in some samples."""
    single, samples = dice.random() < 0.5, 3
    half = drawn(4 * seed, (1, m, n), single).data
    A = np.concatenate([half, -half], 1)
    at = np.round(half[0] @ noise(4 * seed + 3, n, single) * 8) / 8
    gap = np.array([[dice.choice([-1.0, 0.5, 1.0]) if i == 0 else 1.0 for i in range(m)] for _ in range(samples)])
    upper = np.concatenate([np.repeat(at[None], samples, 0), gap - at], 1)
    f = drawn(4 * seed + 1, (samples, n), single)
    low = np.full((1, 2 * m), -INFINITE)
    return Case(single, f, listed(A, single), listed(low, single), listed(upper, single), **options)


def invalid_case(dice: random.Random, seed: int, n: int, m: int, **options: Any) -> Case:
    """NaN and infinite entries in one array of a sound problem."""
    case = random_case(dice, seed, n, m, "<B=", w=True, **options)
    name = dice.choice(["f", "w", "A", "lower", "upper"])
    array = getattr(case, name)
    data = array.data.copy()
    data.reshape(-1)[dice.randrange(data.size)] = dice.choice([math.nan, INFINITE, -INFINITE])
    setattr(case, name, listed(data, case.single))
    return case


def extreme_case(dice: random.Random, n: int, m: int, **options: Any) -> Case:
    """The smallest and largest numbers side by side."""
    single, samples = False, dice.randrange(1, 3)
    numbers = [0.0, -0.0, 1.0, -1.0, 5e-324, -1e-310, 1e-200, 1e200, 1e308, -1e308, 1e-160, -3e160]

    def some(*shape: int) -> np.ndarray:
        return np.array([dice.choice(numbers) for _ in range(math.prod(shape))]).reshape(shape)

    low, high = some(1, m), some(1, m)
    low, high = np.minimum(low, high), np.maximum(low, high)
    f, A = listed(some(samples, n), single), listed(some(1, m, n), single)
    return Case(single, f, A, listed(low, single), listed(high, single), None, **options)


def all_cases() -> list[Case]:
    dice, cases, norms = random.Random(1), [], [2.0, 2.0, 1.0, INFINITE]
    kinds = ["<", "B", "<B", "=<<", ">B<", "=", "<-B"]

    def options() -> dict[str, Any]:
        return {"norm": dice.choice(norms), "strict": dice.random() < 0.25, "nearest": dice.random() < 0.7}

    for _ in range(90):  # small, all searches
        n, m = dice.randrange(1, 5), dice.randrange(0, 7)
        search = dice.choice(["full", "lite", "active", "paper"])
        cases.append(random_case(dice, len(cases), n, m, dice.choice(kinds), search=search, **options()))
    for _ in range(50):  # of middle size
        n, m = dice.randrange(3, 13), dice.randrange(1, 30)
        kind = dice.choice(["<", "B", "<B", ">B<", "=" + "<" * 11])
        cases.append(random_case(dice, len(cases), n, m, kind, **options()))
    for n, m in [(16, 40), (20, 60), (24, 24), (32, 80), (33, 100), (40, 120), (40, 40), (40, 10), (31, 90), (40, 120)]:
        cases.append(random_case(dice, len(cases), n, m, dice.choice(["<", "B<", "<<<<<B"]), **options()))
    for _ in range(25):
        n = dice.choice([1, 2, 3, 8, 17, 40])
        search = dice.choice(["full", "lite", "paper", "active"]) if n < 4 else "active"
        cases.append(box_case(dice, len(cases), n, search=search, **options()))
    for _ in range(55):
        n, m = dice.randrange(1, 5), dice.randrange(1, 8)
        search = dice.choice(["full", "lite", "active", "active", "paper"])
        cases.append(integer_case(dice, n, m, search=search, **options()))
    for _ in range(15):
        cases.append(empty_case(dice, len(cases), dice.randrange(1, 6), dice.randrange(1, 5), **options()))
    for _ in range(20):
        n, m = dice.randrange(1, 5), dice.randrange(1, 5)
        search = dice.choice(["full", "lite", "active"])
        cases.append(invalid_case(dice, len(cases), n, m, search=search, **options()))
    for _ in range(20):  # far from one
        power, row_power = dice.choice([-80, -20, 20, 80]), dice.choice([-30, 0, 30])
        n, m = dice.randrange(1, 6), dice.randrange(1, 6)
        scales = {"power": power, "row_power": row_power}
        cases.append(random_case(dice, len(cases), n, m, dice.choice(kinds), **scales, **options()))
    for _ in range(15):
        cases.append(extreme_case(dice, dice.randrange(1, 4), dice.randrange(1, 5), **options()))
    for case in cases[::7]:
        m = case.A.data.shape[1]
        case.start = np.array([dice.choice([-1, 0, 1]) for _ in range(case.samples * m)]).reshape(case.samples, m)
    return cases


# ------------------------------------------------------------------------------------------------- answers


def hash_of(*arrays: Tensor | None) -> int:
    """FNV-1a of the numbers as doubles, a word at a time; all NaN are one."""
    state = 0xCBF29CE484222325
    for array in arrays:
        if array is None:
            continue
        words = array.detach().double().numpy().reshape(-1).copy()
        words[np.isnan(words)] = np.nan
        for word in words.view(np.uint64).tolist():
            state = (state ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


@dataclasses.dataclass
class Expected:
    """What the package says about a case."""

    value: Tensor
    status: Tensor
    active: Tensor
    row_kinds: str
    hashes: list[list[int]]  # for the exact and the tangent gradient: f, w, A, lower, upper
    conflict: int


def answer(case: Case, v: np.ndarray) -> Expected:
    dtype = torch.float32 if case.single else torch.float64

    def tensor(array: Array | None, shared: bool) -> Tensor | None:
        if array is None:
            return None
        data = array.data[0] if shared and array.lines == 1 else array.data
        return torch.tensor(data, dtype=dtype).requires_grad_()

    hashes, found, row_kinds, conflict = [], None, "", 0
    for gradient in ["exact"] if case.search == "paper" else ["exact", "tangent"]:
        parts = [tensor(t, k > 1) for k, t in enumerate((case.f, case.w, case.A, case.lower, case.upper))]
        f, w, A, lower, upper = parts
        assert f is not None and A is not None and lower is not None and upper is not None
        set = AffineSet(A, lower, upper)
        on_infeasible = "nearest" if case.nearest else "nan"
        found = project(
            f,
            set,
            w,
            search=case.search,
            norm=case.norm,
            strict=case.strict,
            on_infeasible=on_infeasible,
            gradient=gradient,
            start=None if case.start is None else torch.tensor(case.start, dtype=torch.int8),
        )
        found.value.backward(torch.tensor(v, dtype=dtype))
        hashes.append([hash_of(None if t is None else t.grad) for t in parts])
        row_kinds = set.row_kinds
        bad = (found.status == 3).nonzero()
        if len(bad):
            plain = [None if t is None else t.detach() for t in parts]
            problem = Problem(*plain, None, row_kinds, None, (case.samples,))  # type: ignore[arg-type]
            options = check_options(case.search, case.norm, case.strict, on_infeasible)
            multipliers, gap, radius = native.conflict(problem, options, int(bad[0]))
            conflict = hash_of(multipliers, torch.tensor([gap, radius], dtype=torch.float64))
    assert found is not None
    return Expected(found.value.detach(), found.status, found.active, row_kinds, hashes, conflict)


# ------------------------------------------------------------------------------------------------- the file


def text_of(x: float) -> str:
    """A number in C, exactly."""
    if math.isnan(x):
        return "N"
    if math.isinf(x):
        return "X" if x > 0 else "-X"
    short = repr(int(x)) if x == int(x) and abs(x) < 1e6 and not (x == 0 and math.copysign(1, x) < 0) else repr(x)
    mantissa, _, power = x.hex().partition("p")
    mantissa = mantissa.rstrip("0") if "." in mantissa else mantissa
    mantissa = mantissa.removesuffix(".")
    return min(short, f"{mantissa}p{int(power)}", key=len)


class Writer:
    """Collects the numbers, the sides and the cases."""

    def __init__(self) -> None:
        self.numbers: list[str] = []
        self.cases: list[str] = []
        self.places: dict[tuple[str, ...], int] = {}

    def place(self, data: np.ndarray) -> int:
        """Where numbers stand in the list; those that are there already are not repeated."""
        texts = tuple(text_of(x) for x in data.reshape(-1).tolist())
        if texts not in self.places:
            self.places[texts] = len(self.numbers)
            self.numbers.extend(texts)
        return self.places[texts]

    def array(self, array: Array | None) -> str:
        if array is None:
            return "{0}"
        if array.source == "LISTED":
            return f"{{{array.lines}, LISTED, {self.place(array.data)}, 0}}"
        return f"{{{array.lines}, {array.source}, {array.seed}, {array.power}}}"

    def add(self, case: Case, number: int) -> None:
        n, m = case.f.data.shape[1], case.A.data.shape[1]
        v = drawn(4 * number + 3, (case.samples, n), case.single)
        expected = answer(case, v.data)
        sides = "-.+"
        active = "".join(sides[side + 1] for side in expected.active.reshape(-1).tolist())
        start = "NULL"
        if case.start is not None:
            start = '"' + "".join(sides[side + 1] for side in case.start.reshape(-1).tolist()) + '"'
        status = "".join(str(s) for s in expected.status.tolist())
        hashes = ", ".join("{" + ", ".join(f"{h:#x}" for h in line) + "}" for line in expected.hashes)
        value = self.place(expected.value.double().numpy())
        arrays = ", ".join(self.array(t) for t in (case.f, case.w, case.A, case.lower, case.upper, v))
        numbers = [n, m, case.samples, int(case.single), SEARCHES[case.search], int(case.strict), int(case.nearest)]
        self.cases.append(
            f"{{{', '.join(map(str, numbers))}, {text_of(case.norm)}, {arrays},\n "
            f'"{expected.row_kinds}", {start}, "{status}", "{active}", {value},\n '
            f"{len(expected.hashes)}, {{{hashes}}}, {expected.conflict:#x}}},"
        )

    def lines(self) -> list[str]:
        wrapped, line = [], ""
        for text in self.numbers:
            if len(line) + len(text) + 1 > 118:
                wrapped.append(line)
                line = ""
            line += text + ","
        tolerances = []
        for dtype in (torch.float64, torch.float32):
            tables = (", ".join(text_of(x) for x in native.tolerances(dtype, n)) for n in range(MOST_N + 1))
            tolerances += ["{", *(f"{{{table}}}," for table in tables), "},"]
        return [
            "/* Written by make_vectors.py; the types are those of test_vectors.c. */",
            "#define X INFINITY",
            "#define N NAN",
            f"static const CaffnetTolerances tolerances[2][{MOST_N + 1}] = {{",
            *tolerances,
            "};",
            "static const double numbers[] = {",
            *wrapped,
            line,
            "};",
            "static const Vector vectors[] = {",
            *self.cases,
            "};",
            "#undef X",
            "#undef N",
        ]


def main(target: Path = TARGET) -> None:
    torch.set_num_threads(1)
    writer = Writer()
    for number, case in enumerate(all_cases()):
        writer.add(case, number)
    target.write_text("\n".join(writer.lines()) + "\n")
    sys.stdout.write(f"{len(writer.cases)} problems, {target.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
