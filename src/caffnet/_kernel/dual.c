/* The Euclidean projection of g by the dual method of Goldfarb and Idnani.

   y is always the projection of g on the flat of the rows collected so far, whose multipliers are not negative. The
   row a that y violates most is added:

     z = N a           how y can move to satisfy the row without leaving the flat
     r = (A_face+)' a  how the multipliers move meanwhile
     step = min( (a y - b) / (a z),  min over r_j > 0 of multiplier_j / r_j )

   If the first term wins, the row joins; if the second, row j has lost its multiplier and leaves. If neither exists,
   a - sum r_j a_j = 0 with r <= 0 and b - sum r_j b_j < 0: no point satisfies all rows, and these numbers prove it
   (Farkas). Every step raises the distance to g, so no face comes twice; a cap ends what rounding may make of that. */
#include "internal.h"

/* The multipliers of the inequalities in the face, for y = flat_point(g). */
FN void multipliers(const Rows *s, Face *face, Index base, const double *g, const double *y) {
    if (is_direct(s)) {
        for (Index j = 0; j < outputs_of(s); j++) face->z[j] = g[j] - y[j];
        direct_coefficients(s, face->held, face->z, face->left);
        for (Index j = 0; j < face->k; j++) face->multiplier[j] = face->left[face->rows[j]] * face->sides[j];
        return;
    }
    along_all(face, g, face->d, outputs_of(s));
    along_all(face, y, face->r, outputs_of(s));
    for (Index j = 0; j < face->k; j++) face->d[j] -= face->r[j];
    in_rows(face, base, face->d, face->r, outputs_of(s));
    for (Index j = base; j < face->k; j++) face->multiplier[j] = face->r[j] * face->sides[j];
}

/* The multipliers of the closed form for g, without the point and its refinement: enough to see rows that do not pull. */
FN void rough_multipliers(const Rows *s, Face *face, const double *g) {
    double *r = face->r;
    along_all(face, g, face->d, outputs_of(s));
    for (Index j = 0; j < face->k; j++) r[j] = bound_of(s, face->rows[j], face->sides[j] > 0);
    solve_transposed(face, r, outputs_of(s));
    for (Index j = 0; j < face->k; j++) face->d[j] -= r[j];
    in_rows(face, face->base, face->d, r, outputs_of(s));
    for (Index j = face->base; j < face->k; j++) face->multiplier[j] = r[j] * face->sides[j];
}

/* Drop the inequalities whose multipliers are below `least`; how many. */
FN Index drop_below(const Rows *s, Face *face, double least) {
    Index before = face->k;
    for (Index j = face->k - 1; j >= face->base; j--)
        if (face->multiplier[j] < least) drop(face, j, outputs_of(s));
    return before - face->k;
}

/* Move to the projection on the flat, and drop the rows that do not pull, until all do. */
FN void settle(const Rows *s, Face *face, const double *g, double *y) {
    double least = 0.0;
    do {
        do rough_multipliers(s, face, g);
        while (drop_below(s, face, least) > 0);
        flat_point(s, face, g, y);
        multipliers(s, face, face->base, g, y);
        /* A row whose multiplier is only rounding is left out, as a cold start would not have found it. */
        least = s->t->tie * (largest(g, outputs_of(s)) + largest(y, outputs_of(s)));
    } while (drop_below(s, face, least) > 0);
}

/* Begin with the rows marked in `start` that are independent and pull the right way. */
FN void warm(const Rows *s, Face *face, const int8_t *start, const double *g, double *y) {
    for (Index i = 0; i < rows_of(s); i++) {
        int bounded = (start[i] > 0 && s->high[i] < HUGE_VAL) || (start[i] < 0 && s->low[i] > -HUGE_VAL);
        if (bounded && !s->equal[i] && s->squared[i] > 0.0) add(s, face, i, start[i] > 0 ? 1 : -1);
    }
    settle(s, face, g, y);
}

/* The row that y violates most, of those that were violated before; of all, when none of those is any more; -1 if
   there is none. `fine` is the excess, relative to the data, that counts as satisfied. Its value a y goes to `at`. */
FN Index most_violated(const Rows *s, Face *face, const double *y, double size, double fine, Index *waiting, double *at) {
    double free = fine * size + s->t->underflow, worst = 0.0, values[GROUP];
    Index found = -1, *rows = face->violated;
    int grouped = outputs_of(s) >= 8; /* shorter rows are not faster in groups */
    for (;;) {
        int all = *waiting == 0;
        Index left_over = 0, count = all ? rows_of(s) : *waiting;
        for (Index i = 0; all && i < count; i++) rows[i] = i;
        for (Index e = 0; e < count; e++) {
            Index i = rows[e];
            if (grouped && e % GROUP == 0) values_of(s, rows + e, count - e < GROUP ? count - e : GROUP, y, values);
            double value = grouped ? values[e % GROUP] : value_of(s, i, y);
            double above = value - s->high[i], below = s->low[i] - value, excess = larger(above, below);
            if (!(excess > free)) continue; /* decides most rows by one comparison */
            int violated = (above > free + fine * fabs(s->high[i])) | (below > free + fine * fabs(s->low[i]));
            violated &= face->held[i] == 0; /* an equality that is not held depends on the others */
            rows[left_over] = i;
            left_over += violated;
            excess *= excess;
            if (violated & (excess > worst * s->squared[i])) { /* of equal rows the first */
                found = i;
                worst = (1.0 + s->t->tie) * (excess / s->squared[i]);
                *at = value;
            }
        }
        *waiting = left_over;
        if (found < 0 && left_over > 0) { /* the squares underflow: take any of these rows */
            found = rows[0];
            *at = value_of(s, found, y);
        }
        if (found >= 0 || all) return found;
    }
}

/* Put the rows marked in `held` into the face, after the equalities. */
FN void rebuild_face(Work *work, const int8_t *held) {
    restart(work);
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (held[i] != 0 && (!work->rows.equal[i] || is_direct(&work->rows))) add(&work->rows, &work->face, i, held[i]);
}

/* Let row p, whose value at y is `at`, join the face, dropping what must leave; 0 if it cannot: a conflict. */
FN int join(Work *work, Index p, double at, double *y) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    const CaffnetTolerances *t = &work->t;
    Index n = outputs_of(s), base = face->base, side = at > s->high[p] ? 1 : -1;
    double bound = bound_of(s, p, side > 0), sign = (double)side, gain = 0.0, *multiplier = face->multiplier;
    for (double left = remainder_of(s, p, face);; left = remainder_after_drop(s, p, face, left)) {
        int independent = is_independent(s, p, face, left, t->rank);
        if (!independent && t->rank > t->fine_rank) work->exchanged |= is_independent(s, p, face, left, t->fine_rank);
        in_rows(face, base, face->d, face->r, n);
        double pull = 1.0, fall = 0.0; /* the multiplier of the row that leaves first, and its rate */
        Index place = -1;
        double noise = t->fine_rank * largest(face->r + base, face->k - base); /* a rate that is only rounding removes no row */
        for (Index j = base; j < face->k; j++) {
            double rate = sign * face->sides[j] * face->r[j];
            if ((multiplier[j] * fall < pull * rate) & (rate > noise)) {
                pull = larger(multiplier[j], 0.0);
                fall = rate;
                place = j;
            }
        }
        double longest = fall > 0.0 ? pull / fall : HUGE_VAL, step = HUGE_VAL;
        if (independent) step = larger(sign * (at - bound), 0.0) / left;
        if (!independent && place < 0) {
            face->entering = p;
            face->side = side;
            return 0;
        }
        double length = smaller(step, longest);
        if (independent) subtract(y, length * sign, face->z, n);
        gain += length;
        for (Index j = base; j < face->k; j++) multiplier[j] -= length * sign * face->sides[j] * face->r[j];
        if (step <= longest) {
            append(s, face, p, side, left);
            multiplier[face->k - 1] = gain;
            return 1;
        }
        drop(face, place, n);
        at = value_of(s, p, y);
    }
}

/* Find the face of the projection of g, in `face`; the number of its rows, CONFLICT or NOT_FOUND.

   The face begins with the equalities, which are never dropped; `start` marks rows to begin with: NULL for none,
   face.held for the face as it is. Rows count as satisfied up to `fine`. Once they hold up to `coarse`, only few more
   rounds follow: if rows exclude each other by less than that, the previous face is the answer. A negative `coarse` makes
   this a conflict too. After a conflict, face.entering and face.side are the row that could not join. */
FN Index dual(Work *work, const double *g, double *y, const int8_t *start, double fine, double coarse) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    const CaffnetTolerances *t = &work->t;
    Index n = outputs_of(s), waiting = 0, rounds = CAFFNET_ROUNDS(n, rows_of(s));
    int settled = 0;
    double scale = largest(g, n), at = 0.0;
    work->flat = 0;
    if (is_direct(s)) {
        Index k = direct_search(work, g, y, fine, coarse);
        if (k == NOT_FOUND && is_sparse(s) && !is_for_newton(s)) {
            work->rows.direct.family = SPARSE;
            k = direct_search(work, g, y, fine, coarse);
        }
        work->lost = work->lost || (is_sparse(s) && k == NOT_FOUND);
        if (is_sparse(s) || k != NOT_FOUND) return k;
        work->rows.direct.family = ANY; /* the method below takes this sample */
        restart(work);
        start = NULL;
    }
    if (start == face->held) settle(s, face, g, y);
    else if (start) warm(s, face, start, g, y);
    else flat_point(s, face, g, y);
    work->flat = 1; /* until a row joins */
    for (; rounds > 0; rounds--) {
        if (work->cancel && *work->cancel) return NOT_FOUND;
        double size = scale + largest(y, n);
        Index p = most_violated(s, face, y, size, fine, &waiting, &at);
        if (p < 0) return face->k;
        /* The row violated most is the farthest; others may exceed their own allowance, so all are checked. */
        if (coarse > 0.0 && !settled && excess_of(s, p, at) <= coarse * (size + bound_at(s, p, at)) + t->underflow &&
            accepts(s, y, scale)) {
            settled = 1;
            rounds = face->k == n ? 4 : n + 10; /* at a vertex there is little left to gain */
            copy_face(s, &work->saved, face);
        }
        Index before = face->k;
        int flat = work->flat;
        work->flat = 0;
        if (join(work, p, at, y)) continue;
        /* y has accumulated the rounding of all steps: compute it anew, and check again. */
        if (coarse > 0.0 && !flat && face->k == before) {
            flat_point(s, face, g, y);
            work->flat = 1;
            waiting = 0;
        } else if (!settled) return CONFLICT;
        else break;
    }
    if (!settled) return NOT_FOUND;
    copy_face(s, face, &work->saved);
    flat_point(s, face, g, y);
    work->flat = 1;
    return face->k;
}

/* For a g inside the set: the row whose plane is nearest, as a face of one row. The ball around g that touches this
   plane lies in the set, so the touching point is a candidate. */
FN Index nearest_plane(Work *work, const double *g) {
    const Rows *s = &work->rows;
    double best = HUGE_VAL;
    Index row = -1, side = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        if (s->squared[i] == 0.0) continue;
        double value = value_of(s, i, g), length = sqrt(s->squared[i]);
        if ((s->high[i] - value) / length < best) {
            best = (s->high[i] - value) / length;
            row = i;
            side = 1;
        }
        if ((value - s->low[i]) / length < best) {
            best = (value - s->low[i]) / length;
            row = i;
            side = -1;
        }
    }
    if (row < 0) return NOT_FOUND;
    add(s, &work->face, row, side);
    return work->face.k;
}

/* The face of the projection of g, never empty; the point in work->y. */
FN Index nearest_face(Work *work, const double *g, const int8_t *start) {
    restart(work);
    Index k = dual(work, g, work->y, start, work->t.search, work->t.feasibility);
    if (k != 0) return k;
    work->flat = 0;
    return nearest_plane(work, g);
}

/* ACTIVE with w: the face of the projection of f, if its candidate is feasible and nearer to f than that of the face
   of g, which has just been found. */
FN Index nearer_face(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s);
    double best, *y = work->y, *own = work->other;
    const double *f = work->f, *g = work->g;
    flat_point(s, face, g, y);
    best = distance(y, f, n, work->norm);
    copy(own, y, n);
    copy_face(s, &work->first, face);
    Index other = dual(work, f, y, face->held, work->t.search, work->t.feasibility);
    work->flat = 1; /* of g, on either face */
    if (other > 0) {
        flat_point(s, face, g, y);
        if (distance(y, f, n, work->norm) < best && accepts(s, y, larger(largest(f, n), largest(g, n)))) return other;
    }
    copy_face(s, face, &work->first);
    copy(y, own, n);
    return face->k;
}
