"""`to_c`: a model, a layer or a set as a folder of C that needs nothing else."""

from __future__ import annotations

import dataclasses
import functools
import keyword
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._kernel import build, native
from caffnet._solve.prepare import choose_search, count_subsets, subset_sizes
from caffnet._solve.problem import CORES, Options
from caffnet._solve.sparse import LARGE, is_sparse
from caffnet.constraints import AffineSet
from caffnet.deploy.assignments import number_text
from caffnet.deploy.checking import compare
from caffnet.deploy.network import Dense, read_network, run_network
from caffnet.deploy.program import (
    Source,
    copy_kernel,
    folder_of,
    layer_of,
    outputs_around,
    parts_of,
    read_source,
    samples_of,
    with_batch,
)
from caffnet.deploy.scalars import StraightLine
from caffnet.errors import ConstraintError
from caffnet.layer import CAffine, limit_null
from caffnet.model import CAffNet
from caffnet.projection import flatten, price_slacks, project_checked, soft_rows

SOURCES = Path(__file__).parent / "sources" / "c"
_TEMPLATES = ("policy.h", "policy.c", "test_policy.c", "CMakeLists.txt")
#: Headers that the C files include, directly or indirectly: a NAME.h beside them would be included instead.
# fmt: off
_HEADERS = frozenset((
    "alloca", "assert", "complex", "ctype", "endian", "errno", "features", "fenv", "float", "inttypes", "iso646",
    "kernel", "limits", "locale", "math", "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbool",
    "stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string", "strings", "tgmath", "threads", "time", "uchar",
    "wchar", "wctype",
))
# fmt: on
#: Targets that CMake reserves, and the library that the program is linked with.
_TARGETS = frozenset(("all", "clean", "help", "install", "m", "package", "rebuild_cache", "test"))


@functools.cache
def _words_of_kernel() -> frozenset[str]:
    """Prefixes of names in the C files: NAME_step of a policy must not begin like them, nor NAME_ROWS like a macro."""
    words: set[str] = set()
    for file in sorted([*build.HERE.glob("*.c"), *build.HERE.glob("*.h")]):
        for found in set(re.findall(r"[A-Za-z]\w*", file.read_text(encoding="utf-8"))):
            parts = found.lower().split("_")
            words.update("_".join(parts[:k]) for k in range(1, len(parts)))
    return frozenset(words - {"policy"})


def to_c(
    model: Source,
    folder: str | Path,
    *,
    inputs: Tensor | None = None,
    name: str = "policy",
) -> Path:
    """Write a policy as C11 that needs no Python, no allocation and no library except libm.

    The folder has the kernel (``kernel/``), the numbers of the network and the set (``policy_data.c``), two functions
    (``policy.h``), a test program with the answers of torch (``test_policy.c``), and ``CMakeLists.txt``. A step returns
    the value, its status, its active rows and its violation. All memory is one struct of a fixed size.

    Args:
        model: a `CAffNet` whose networks are sequences of Linear, ReLU, SiLU, Tanh and BatchNorm1d; or a layer or a set
            alone, which take the raw output. The rows may depend on the input: their function is then written in C
            too, if it is made of common operations of torch (as every barrier of `caffnet.control` is).
        folder: the folder for the files; it is created. Files of the same names in it are replaced.
        inputs: x ``(B, ...)`` for the test program: typical inputs of the policy. Random ones if None. Needed if the
            rows depend on the input and the model is a layer alone.
        name: prefix of the names of files, functions and types, so that one program can have several policies.

    Returns:
        The folder.

    Raises:
        ConstraintError: a part of the model cannot be written in C.

    The program is compared with torch at the inputs and near them, and refused if it differs.
    ``on_infeasible="raise"`` becomes the returned status: the value is NaN, as with ``"nan"``.

    >>> import tempfile
    >>> made = to_c(AffineSet.box(-1.0, 1.0, dim=2), tempfile.mkdtemp())
    >>> sorted(path.name for path in made.iterdir())[:3]
    ['CMakeLists.txt', 'kernel', 'policy.c']
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name.startswith("caffnet"):
        raise ConstraintError(f"name must be a lower-case identifier that does not begin with caffnet, got {name!r}.")
    if name in _HEADERS:
        raise ConstraintError(
            f"name={name!r} is taken: {name}.h is a header that the files include. Choose another one."
        )
    if name in _TARGETS or name in _words_of_kernel():
        raise ConstraintError(f"name={name!r} is taken: a word of CMake or of the kernel. Choose another one.")
    target = folder_of(folder, "to_c")
    policy = _read(model, inputs)
    copy_kernel(target)
    files = {template: (SOURCES / template).read_text() for template in _TEMPLATES}
    files |= {
        "policy_data.h": _data_header(policy),
        "policy_data.c": _data(policy),
        "policy_vectors.h": _vectors(policy),
    }
    for template, text in files.items():
        for old, new in (("policy", name), ("Policy", _camel(name)), ("POLICY", name.upper())):
            template, text = template.replace(old, new), text.replace(old, new)
        (target / template).write_text(text, encoding="utf-8")
    return target


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


# ------------------------------------------------------------------------------------------------- reading


@dataclasses.dataclass
class _Policy:
    """Parts of a policy. `backbone` is empty for a layer alone; `rows` are lines of C of an input-dependent set."""

    layer: CAffine
    options: Options
    backbone: list[Dense]
    null: list[Dense]
    set: AffineSet  # at the test inputs, where it depends on them
    rows: list[str] | None
    x: Tensor  # (B, inputs), test inputs
    f: Tensor  # (B, n), their raw outputs
    w: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        return self.f.dtype


def _read(source: Source, inputs: Tensor | None) -> _Policy:
    model = read_source(source, "to_c")
    net = model if isinstance(model, CAffNet) else None
    layer = layer_of(model)
    backbone = [] if net is None else read_network(net.backbone, "backbone")
    null = [] if net is None or net.null is None else read_network(net.null, "null-space network")
    x = samples_of(model, inputs)
    if x.ndim != 2:
        raise ConstraintError(f"to_c takes inputs (B, size), got {tuple(x.shape)}.")
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            set = _in_full(layer.set_at(x))
            f, w = (outputs_around(set, x), None) if net is None else net.raw(x)
            if layer.constraint is None and set.batch_shape:
                raise ConstraintError(f"to_c writes one set that holds for every input, got {set}: index it, set[i].")
            if set.n == 0:
                raise ConstraintError("to_c needs at least one output.")
            if net is not None:
                written = [network for network in (backbone, null) if network]
                compare(lambda x: [run_network(one, x) for one in written], lambda x: _raw(net, x), x, "the raw output")
            rows = None if layer.constraint is None else _write_rows(layer, x)
    finally:
        model.train(training)
    options = layer._options
    if options.on_infeasible == "raise":  # C has no exceptions: NaN and a status
        options = dataclasses.replace(options, on_infeasible="nan")
    search = choose_search(set, options.search, options.budget)
    return _Policy(layer, options.searching(search), backbone, null, set, rows, x, f, w)


def _raw(net: CAffNet, x: Tensor) -> list[Tensor]:
    return [t for t in net.raw(x) if t is not None]


def _in_full(set: AffineSet) -> AffineSet:
    """The set with all numbers of A."""
    if not is_sparse(set.A):
        return set
    if set.m * set.n > LARGE:
        raise ConstraintError(
            f"The rows are sparse, and to_c writes A in full, here {set.m} x {set.n} numbers: write set.to_dense() if "
            "that is meant, or export groups of outputs that share no row as sets of their own."
        )
    return set.to_dense()


def _searched(set: AffineSet) -> dict[str, Tensor]:
    """Return the tensors that the kernel gets, by name: rows with a weight have a slack, which is one more output."""
    parts = parts_of(set)
    if set.slacks:
        batch = set.batch_shape
        problem = price_slacks(flatten(set, set.A.new_zeros(*batch, set.n), None, batch), set, batch)
        assert problem.metric is not None
        parts = [problem.A, problem.lower, problem.upper, problem.metric]
        parts = [t if batch or t.ndim == axes else t[0] for t, axes in zip(parts, CORES[2:], strict=True)]
    return dict(zip(("A", "lower", "upper", "metric"), parts, strict=False))


def _names_at_one(rows: Callable[[Tensor], dict[str, Tensor]], x: Tensor) -> list[str]:
    """Return the names of the tensors of the rows, for one sample."""
    try:
        return list(rows(x[0]))
    except IndexError as error:
        raise ConstraintError(
            f"The function of the rows fails for one sample x of shape {tuple(x[0].shape)}: {error}. Write x[..., i], "
            "not x[:, i]: it works for one sample and for a batch."
        ) from error


def _write_rows(layer: CAffine, x: Tensor) -> list[str]:
    """The lines of C of rows that depend on the input, compared with torch at the samples."""

    def rows(at: Tensor) -> dict[str, Tensor]:
        return _searched(_in_full(layer.set_at(at)))

    names = _names_at_one(rows, x)
    program = StraightLine(lambda one: list(rows(one).values()), x[0])
    compare(program, lambda many: with_batch(rows(many).values(), len(many)), x, ", ".join(names))
    return ([] if "metric" in names else ["(void)metric;"]) + program.lines(names)


# ------------------------------------------------------------------------------------------------- writing


def _numbers(values: Iterable[float], double: bool) -> str:
    """Numbers in lines of at most 120 characters."""
    lines, line = [], ""
    for value in values:
        text = number_text(value, double) + ","
        if len(line) + len(text) > 118:
            lines.append(line)
            line = ""
        line += (" " if line else "") + text
    return "\n".join([*lines, line])


def _array(declaration: str, values: Tensor | None, double: bool) -> str:
    """Write a constant array; an empty one gets one number, as C has no empty arrays."""
    flat = [0.0] if values is None or not values.numel() else values.detach().double().reshape(-1).tolist()
    return f"{declaration}[] = {{\n{_numbers(flat, double)}\n}};"


def _most_steps(policy: _Policy) -> tuple[str, str]:
    """Return a bound on the work of a call, as an expression in C, and a text that says what it counts."""
    set, search = policy.set, policy.options.search
    size = set.n + set.slacks
    rounds = f"CAFFNET_ROUNDS({size}, {set.m})"
    if search == "active":
        return rounds, "rounds of one dual active-set search; each adds a row and drops at most n"
    sizes = subset_sizes(set.row_kinds, size, search == "lite")
    count = count_subsets(set.row_kinds, sizes)
    return f"({count} + {rounds})", "sub-constraints looked at, and rounds of one dual active-set search"


def _data_header(policy: _Policy) -> str:
    layer, options, set = policy.layer, policy.options, policy.set
    n, m, search, searched = set.n, set.m, options.search, _searched(set)
    size, metric = n + set.slacks, searched.get("metric")
    widths = [len(dense.bias) for dense in (*policy.backbone, *policy.null)]
    activations = {dense.activation for dense in (*policy.backbone, *policy.null)}
    code, measured = native.SEARCHES[search], metric is not None
    room = max(native.workspace_size(size, m, each, measured) for each in {code, native.SEARCHES["active"]})
    numbers = 0 if metric is None else metric.shape[-2] * size
    steps, meaning = _most_steps(policy)
    double = policy.dtype == torch.float64
    end = "" if double else "f"
    return "\n".join(
        [
            "/* The sizes and options of the policy. Written by caffnet. */",
            "#ifndef POLICY_DATA_H",
            "#define POLICY_DATA_H",
            "",
            '#include "kernel.h"',
            "",
            f"typedef {'double' if double else 'float'} policy_real;",
            f"#define POLICY_INPUTS {policy.x.shape[-1]}",
            f"#define POLICY_OUTPUTS {n}",
            f"#define POLICY_SIZE {size} /* outputs, and a slack for each soft row with a weight */",
            f"#define POLICY_ROWS {m}",
            f"#define POLICY_ROWS_OR_1 {max(m, 1)}",
            f"#define POLICY_FIXED {int(policy.rows is None)} /* the rows do not depend on x */",
            f"#define POLICY_SEARCH {code} /* {search} */",
            f"#define POLICY_NORM {'HUGE_VAL' if options.norm == float('inf') else number_text(options.norm)}",
            f"#define POLICY_STRICT {int(options.strict)}",
            f"#define POLICY_SOFT {_soft_text(policy)} /* 's': gives way where the set is empty */",
            f"#define POLICY_NEAREST {int(options.on_infeasible == 'nearest')}",
            f"#define POLICY_METRIC {numbers} /* the numbers of the metric: POLICY_SIZE if it is diagonal */",
            f"#define POLICY_NULL_LIMIT {number_text(layer.null_limit or 0.0)} /* 0: w has no limit */",
            f"#define POLICY_WARM {int(layer.warm_start is True)} /* a step begins with the rows of the one before */",
            f"#define POLICY_WORKSPACE {room} /* bytes */",
            f"#define POLICY_MOST_STEPS {steps} /* {meaning} */",
            "",
            f"#define POLICY_HAS_NETWORK {int(bool(policy.backbone))}",
            f"#define POLICY_BACKBONE_LAYERS {len(policy.backbone)}",
            f"#define POLICY_NULL_LAYERS {len(policy.null)}",
            f"#define POLICY_WIDTH {max(widths, default=1)}",
            f"#define POLICY_USES_EXP {int('SILU' in activations)}",
            f"#define POLICY_USES_TANH {int('TANH' in activations)}",
            f"#define POLICY_EXP exp{end}",
            f"#define POLICY_TANH_OF tanh{end}",
            f"#define POLICY_ROOT sqrt{end}",
            "enum { POLICY_NONE, POLICY_RELU, POLICY_SILU, POLICY_TANH };",
            "",
            "/* activation(weight x + bias), weight (outputs, inputs) */",
            "typedef struct {",
            "    int inputs, outputs, activation;",
            "    const policy_real *weight, *bias;",
            "} PolicyLayer;",
            "",
            "extern const CaffnetTolerances policy_tolerances;",
            "extern const char policy_kinds[];",
            *(f"extern const policy_real policy_{key}[];" for key in (searched if policy.rows is None else ())),
            *(["extern const PolicyLayer policy_backbone[];"] if policy.backbone else []),
            *(["extern const PolicyLayer policy_null[];"] if policy.null else []),
            "",
            "#endif",
            "",
        ]
    )


def _comment(text: str) -> str:
    """Make a text safe inside a comment: without comment marks and invisible characters."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    return shown.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def _soft_text(policy: _Policy) -> str:
    """Write the soft rows in C."""
    marks = soft_rows(policy.set, policy.options)
    return f'"{marks}"' if marks else "NULL"


def _data(policy: _Policy) -> str:
    set, double = policy.set, policy.dtype == torch.float64
    tolerances = ", ".join(number_text(v) for v in native.tolerances(policy.dtype, set.n + set.slacks))
    lines = [
        "/* The numbers of the policy. Written by caffnet. */",
        '#include "policy.h"',
        "",
        "#include <math.h>",
        "",
        f"const CaffnetTolerances policy_tolerances = {{{tolerances}}};",
        f'const char policy_kinds[] = "{set.row_kinds}";',
        "",
    ]
    if policy.rows is None:
        lines.append(f"/* {_comment(', '.join(set.names))} */")
        lines += [_array(f"const policy_real policy_{key}", t, double) for key, t in _searched(set).items()]
    else:
        lines.append("void policy_rows(const policy_real *x, policy_real *A, policy_real *lower, policy_real *upper,")
        lines.append("                 policy_real *metric) {")
        lines += [f"    {line}" for line in policy.rows]
        lines.append("}")
    for role, network in (("backbone", policy.backbone), ("null", policy.null)):
        table = []
        for k, dense in enumerate(network):
            weight, bias = f"{role}_weight_{k}", f"{role}_bias_{k}"
            lines += [_array(f"static const policy_real {weight}", dense.weight, double)]
            lines += [_array(f"static const policy_real {bias}", dense.bias, double)]
            outputs, inputs = dense.weight.shape
            table.append(f"    {{{inputs}, {outputs}, POLICY_{dense.activation}, {weight}, {bias}}},")
        if table:
            lines += [f"const PolicyLayer policy_{role}[] = {{", *table, "};"]
    return "\n".join([*lines, ""])


def _vectors(policy: _Policy) -> str:
    """Compute the answers of torch at the test inputs, one sample at a time, as a robot would."""
    set, double = policy.set, policy.dtype == torch.float64
    with torch.no_grad():
        w, limit = policy.w, policy.layer.null_limit
        if w is not None and limit is not None:
            w = limit_null(policy.f, w, set, policy.options, limit)
        answer = project_checked(policy.f, set, w, policy.options)
        count = len(policy.x)
        arrays = [("x", policy.x), ("value", answer.value), ("violation", answer.violation)]
        if not policy.backbone:
            arrays.append(("f", policy.f))
        if policy.rows is not None:
            searched = _searched(set)
            arrays += zip(searched, with_batch(searched.values(), count), strict=True)
    return "\n".join(
        [
            "/* Inputs and what torch answers. Written by caffnet. */",
            f"#define POLICY_VECTORS {count}",
            "/* Sums in another order differ by their rounding. */",
            f"#define POLICY_TOLERANCE {number_text(tolerance.exported(policy.dtype))}",
            *(_array(f"static const policy_real vector_{key}", t, double) for key, t in arrays),
            f"static const int vector_status[] = {{{', '.join(map(str, answer.status.tolist()))}}};",
            "",
        ]
    )
