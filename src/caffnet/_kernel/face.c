/* A sub-constraint as an orthogonal factorisation, A_face = R' Q, so A_face+ = Q' R^-T.

   Rows are added by Gram-Schmidt (twice where cancellation asks for it) and dropped by rotations. A row that bounds
   one output keeps a direction with one entry, so it costs no products. */
#include "internal.h"

/* q_j y */
FN double along(const Face *face, Index j, const double *y, Index n) {
    const double *q = face->Q + (size_t)j * (size_t)n;
    Index unit = face->unit[j];
    return unit >= 0 ? q[unit] * y[unit] : dot(q, y, n);
}

/* y -= amount q_j */
FN void move(const Face *face, Index j, double amount, double *y, Index n) {
    const double *q = face->Q + (size_t)j * (size_t)n;
    Index unit = face->unit[j];
    if (unit >= 0) y[unit] -= amount * q[unit];
    else if (amount != 0.0) subtract(y, amount, q, n);
}

/* Whether a GROUP of directions from slot j on are full vectors. */
FN int group_is_full(const Face *face, Index j) {
    if (j + GROUP > face->k) return 0;
    for (Index l = j; l < j + GROUP; l++)
        if (face->unit[l] >= 0) return 0;
    return 1;
}

/* d_j = q_j y for all slots. */
FN void along_all(const Face *face, const double *y, double *d, Index n) {
    for (Index j = 0; j < face->k;) {
        if (n >= 8 && group_is_full(face, j)) {
            const double *lines[GROUP];
            for (Index l = 0; l < GROUP; l++) lines[l] = face->Q + (size_t)(j + l) * (size_t)n;
            group_dots(lines, y, n, d + j);
            j += GROUP;
        } else {
            d[j] = along(face, j, y, n);
            j++;
        }
    }
}

/* y -= d_j q_j for all slots, one after the other. */
FN void move_all(const Face *face, const double *d, double *y, Index n) {
    for (Index j = 0; j < face->k;) {
        if (group_is_full(face, j) && d[j] != 0.0 && d[j + 1] != 0.0 && d[j + 2] != 0.0 && d[j + 3] != 0.0) {
            subtract_lines(y, d + j, face->Q + (size_t)j * (size_t)n, n);
            j += GROUP;
        } else {
            move(face, j, d[j], y, n);
            j++;
        }
    }
}

/* Split row i into its part d on the face and the rest z; returns |z|^2. The remainder of a row beside the equalities is
   kept, for the samples that share it. */
FN double remainder_of(const Rows *s, Index i, Face *face) {
    Index n = outputs_of(s), k = face->k;
    size_t line = (size_t)i * (size_t)n;
    int first = k > 0 && k == face->base;
    double *z = face->z, *d = face->d, *more = face->r;
    if (first && face->left[i] >= 0.0) {
        copy(z, face->rest + line, n);
        copy(d, face->part + line, k);
        return face->left[i];
    }
    copy(z, s->A + line, n);
    if (k == 0) return s->squared[i];
    along_all(face, z, d, n); /* all products first, as they are independent */
    move_all(face, d, z, n);
    double left = dot(z, z, n);
    if (left < CANCELLATION * s->squared[i]) { /* once more makes z orthogonal to rounding */
        along_all(face, z, more, n);
        move_all(face, more, z, n);
        for (Index j = 0; j < k; j++) d[j] += more[j];
        left = dot(z, z, n);
    }
    if (first) {
        copy(face->rest + line, z, n);
        copy(face->part + line, d, k);
        face->left[i] = left;
    }
    return left;
}

/* Add the row that remainder_of has just split. */
FN void append(const Rows *s, Face *face, Index i, Index side, double left) {
    Index n = outputs_of(s), k = face->k, entries = 0, column = -1;
    double length = sqrt(left), inverse = 1.0 / length, *q = face->Q + (size_t)k * (size_t)n;
    for (Index j = 0; j < n; j++) {
        q[j] = face->z[j] * inverse;
        if (face->z[j] != 0.0) {
            entries++;
            column = j;
        }
    }
    face->unit[k] = entries == 1 ? column : -1;
    for (Index j = 0; j < k; j++) face->R[(size_t)j * (size_t)n + (size_t)k] = face->d[j];
    face->R[(size_t)k * (size_t)n + (size_t)k] = length;
    face->inverse[k] = inverse;
    face->rows[k] = i;
    face->sides[k] = (double)side;
    face->held[i] = (int8_t)side;
    face->k = k + 1;
}

/* Remove the row in a slot: shift the columns of R, rotate its lines until it is triangular again. The coordinates in d
   rotate with the directions. One direction is left over: it and its coordinate stay behind the last slot. */
FN void drop(Face *face, Index place, Index n) {
    Index k = face->k;
    double *R = face->R, *d = face->d;
    face->held[face->rows[place]] = 0;
    for (Index c = place; c < k - 1; c++) {
        face->rows[c] = face->rows[c + 1];
        face->sides[c] = face->sides[c + 1];
        face->multiplier[c] = face->multiplier[c + 1];
    }
    for (Index j = 0; j < k; j++) {
        Index from = j - 1 > place ? j - 1 : place;
        double *line = R + (size_t)j * (size_t)n;
        for (Index c = from; c < k - 1; c++) line[c] = line[c + 1];
    }
    for (Index c = place; c < k - 1; c++) {
        double *upper = R + (size_t)c * (size_t)n, *lower = upper + n;
        double *RESTRICT first = face->Q + (size_t)c * (size_t)n, *RESTRICT second = first + n;
        Index unit = face->unit[c];
        double cosine = 0.0, sine = 1.0;
        if (upper[c] == 0.0) { /* orthogonal rows only swap */
            face->unit[c] = face->unit[c + 1];
            face->unit[c + 1] = unit;
            sine = lower[c] < 0.0 ? -1.0 : 1.0;
        } else if (lower[c] == 0.0) continue;
        else { /* a rotation makes full vectors of what was one entry */
            double inverse = 1.0 / sqrt(upper[c] * upper[c] + lower[c] * lower[c]);
            face->unit[c] = face->unit[c + 1] = -1;
            cosine = upper[c] * inverse;
            sine = lower[c] * inverse;
        }
        double before = d[c];
        d[c] = cosine * before + sine * d[c + 1];
        d[c + 1] = cosine * d[c + 1] - sine * before;
        for (Index j = c; j < k - 1; j++) {
            double top = upper[j], bottom = lower[j];
            upper[j] = cosine * top + sine * bottom;
            lower[j] = cosine * bottom - sine * top;
        }
        for (Index j = 0; j < n; j++) {
            double top = first[j], bottom = second[j];
            first[j] = cosine * top + sine * bottom;
            second[j] = cosine * bottom - sine * top;
        }
    }
    for (Index c = place; c < k - 1; c++) face->inverse[c] = 1.0 / R[(size_t)c * (size_t)n + (size_t)c];
    face->k = k - 1;
}

/* The same as remainder_of, after a drop: the rest of row i, whose square was `left`, gets back what it had along the
   direction that is left over. */
FN double remainder_after_drop(const Rows *s, Index i, Face *face, double left) {
    double back = face->d[face->k];
    left += back * back;
    if (left < CANCELLATION_OF_DROP * s->squared[i]) return remainder_of(s, i, face);
    move(face, face->k, -back, face->z, outputs_of(s));
    return left;
}

/* r = R^-1 d from slot `first` on: coordinates on the q become coefficients of the rows. A GROUP of slots at a time: their
   products with what is known of r do not wait for each other. */
FN void in_rows(const Face *face, Index first, const double *d, double *r, Index n) {
    Index j = face->k;
    for (; j - GROUP >= first; j -= GROUP) {
        const double *lines[GROUP], *inverse = face->inverse + j - GROUP;
        double known[GROUP];
        for (Index l = 0; l < GROUP; l++) lines[l] = face->R + (size_t)(j - GROUP + l) * (size_t)n + j;
        group_dots(lines, r + j, face->k - j, known);
        for (Index l = 0; l < GROUP; l++) known[l] = d[j - GROUP + l] - known[l];
        double last = known[3] * inverse[3];
        double third = (known[2] - lines[2][-1] * last) * inverse[2];
        double second = (known[1] - lines[1][-1] * last - lines[1][-2] * third) * inverse[1];
        r[j - 4] = (known[0] - lines[0][-1] * last - lines[0][-2] * third - lines[0][-3] * second) * inverse[0];
        r[j - 3] = second;
        r[j - 2] = third;
        r[j - 1] = last;
    }
    for (j--; j >= first; j--) {
        const double *line = face->R + (size_t)j * (size_t)n + j + 1;
        r[j] = (d[j] - dot(line, r + j + 1, face->k - j - 1)) * face->inverse[j];
    }
}

/* Whether row i, which remainder_of has just split, is independent of the face. a_i = sum_j r_j a_j + z, and the rounding of
   the rows with large r_j reaches z: it must be more than that. Uses face.r. */
FN int is_independent(const Rows *s, Index i, Face *face, double left, double rank) {
    Index n = outputs_of(s);
    double squared = s->squared[i], sum = 0.0;
    if (face->k >= n || !(left > rank * rank * squared)) return 0;
    if (left > s->t->empty * squared) return 1; /* nearly always */
    in_rows(face, 0, face->d, face->r, n);
    for (Index j = 0; j < face->k; j++) sum += fabs(face->r[j]) * sqrt(s->squared[face->rows[j]]);
    return left > s->t->fine_rank * s->t->fine_rank * sum * sum;
}

/* Add row i if it is independent of the face. */
FN void add(const Rows *s, Face *face, Index i, Index side) {
    if (face->k >= outputs_of(s)) return;
    if (is_direct(s)) { /* has no factors */
        face->rows[face->k] = i;
        face->sides[face->k++] = (double)side;
        face->held[i] = (int8_t)side;
        return;
    }
    double left = remainder_of(s, i, face);
    if (is_independent(s, i, face, left, s->t->rank)) append(s, face, i, side, left);
}

/* Move y onto the rows in slots first .. k-1, one after the other: q_j leaves the rows before j alone. */
FN void slide(const Rows *s, const Face *face, Index first, double *y) {
    if (is_direct(s)) return;
    for (Index j = first; j < face->k; j++) {
        Index i = face->rows[j];
        double bound = bound_of(s, i, face->sides[j] > 0);
        move(face, j, (value_of(s, i, y) - bound) * face->inverse[j], y, outputs_of(s));
    }
}

/* r = R^-T r */
FN void solve_transposed(const Face *face, double *r, Index n) {
    for (Index j = 0; j < face->k; j++) {
        const double *line = face->R + (size_t)j * (size_t)n;
        r[j] *= face->inverse[j];
        subtract(r + j + 1, r[j], line + j + 1, face->k - j - 1);
    }
}

/* y = A_face+ b + (I - A_face+ A_face) g, refined once. Not g - A+(A g - b), which loses b when g is far away. */
FN void flat_point(const Rows *s, Face *face, const double *g, double *y) {
    Index n = outputs_of(s), k = face->k;
    double *r = face->r;
    if (is_direct(s)) {
        direct_flat(s, face->held, g, y, 0);
        return;
    }
    copy(y, g, n);
    along_all(face, g, r, n);
    move_all(face, r, y, n);
    for (Index j = 0; j < k; j++) r[j] = -bound_of(s, face->rows[j], face->sides[j] > 0);
    solve_transposed(face, r, n);
    move_all(face, r, y, n);
    slide(s, face, 0, y);
}

FN void copy_face(const Rows *s, Face *to, const Face *from) {
    Index n = outputs_of(s), k = from->k;
    int factors = !is_direct(s);
    to->k = k;
    if (factors) copy(to->Q, from->Q, k * n);
    for (Index j = 0; j < k; j++) {
        size_t line = (size_t)j * (size_t)n;
        if (factors) copy(to->R + line + j, from->R + line + j, k - j);
        to->rows[j] = from->rows[j];
        to->sides[j] = from->sides[j];
        to->multiplier[j] = from->multiplier[j];
        to->unit[j] = from->unit[j];
        to->inverse[j] = from->inverse[j];
    }
    for (Index i = 0; i < rows_of(s); i++) to->held[i] = from->held[i];
}

/* The marks in face.held are not those of its factors any more. */
FN void forget_factors(Work *work) { work->ready = 0; }

/* Mark these rows instead. */
FN void mark_rows(Work *work, const int8_t *marks) {
    memcpy(work->face.held, marks, (size_t)rows_of(&work->rows));
    forget_factors(work);
}

/* Use another tolerance for independent rows: factors found with the previous one are not valid. */
FN void set_rank(Work *work, double rank) {
    work->t.rank = rank;
    forget_factors(work);
}

/* The face of the equalities alone; kept from sample to sample while the rows are shared. */
FN void restart(Work *work) {
    Rows *s = &work->rows;
    Face *face = &work->face;
    const int8_t *equal = s->equal;
    int same = work->ready;
    for (Index i = 0; i < rows_of(s) && same; i++) same = work->before[i] == equal[i];
    clear_face(s, face);
    if (is_direct(s)) {
        work->ready = 0;
        return;
    }
    if (same) { /* rows added later have not changed the factors of the first rows */
        face->k = face->base;
        for (Index j = 0; j < face->base; j++) face->held[face->rows[j]] = 1;
        return;
    }
    face->base = 0; /* until it is complete */
    memcpy(work->before, equal, (size_t)rows_of(s));
    for (Index i = 0; i < rows_of(s); i++)
        if (equal[i] && s->squared[i] > 0.0) add(s, face, i, 1);
    face->base = face->k;
    for (Index i = 0; i < rows_of(s) && face->base > 0; i++) face->left[i] = -1.0;
    work->ready = 1;
}
