/* Sparse rows without another structure: Newton's method on their multipliers, with the bounds of outputs eliminated.

   Let N be the rows that are no bound of one output. With multipliers u for them, the nearest point within the bounds is
   y(u) = clip(g - A_N' u, low, high), and the dual function is concave, once differentiable and piecewise quadratic:

     slope of u_i       a_i y(u) - b_i,   b_i the upper bound for u_i > 0, the lower for u_i < 0
     curvature          K = A_W F A_W',   F the outputs within their bounds, W the rows whose multiplier moves

   A step solves K d = slope (cholesky.c). Its length is where the slope along d vanishes; multipliers stop at 0, where
   their row lets go. The number of pieces is finite, and on the last one the step is exact: there W and the outputs at
   bounds are the face. A slope that does not end has no point: then d, with the bounds that its outputs run to, is a
   proof (Farkas).

   On a face K is the whole linear algebra: A+ b + (I - A+ A) g and coefficients of the rows are one solve each. */
#include "internal.h"

/* y -= amount A_N' u */
FN void subtract_rows(const Rows *s, const double *u, double amount, double *y) {
    const Newton *w = s->newton;
    for (Index o = 0; o < w->count; o++) {
        Index i = w->order[o];
        double share = amount * u[i];
        const double *a = row_of(s, i);
        for (Index e = 0; share != 0.0 && e < s->entries[i]; e++) y[column_of(s, i, e)] -= share * a[e];
    }
}

/* Factorise the face of the rows held, unless its factors are there; rows that are not independent are left out. */
FN int newton_factors(const Rows *s, const int8_t *held) {
    Newton *w = s->newton;
    order_rows(s);
    fix_outputs(s, held, NULL);
    int same = w->faced;
    for (Index i = 0; i < rows_of(s) && same; i++) same = (w->face[i] != 0) == (held[i] != 0);
    if (same) return 1;
    if (!factorise_rows(s, held, s->direct.side, 0.0, s->t->fine_rank)) return 0;
    keep_face(s, held);
    return 1;
}

/* y = A+ b + (I - A+ A) g on the rows held; with b = 0 if `cone`. */
FN void newton_flat(const Rows *s, const int8_t *held, const double *g, double *y, int cone) {
    Newton *w = s->newton;
    Index n = outputs_of(s);
    copy(y, g, n);
    if (!newton_factors(s, held)) return;
    fix_outputs(s, held, y);
    for (Index j = 0; cone && j < n; j++)
        if (s->direct.side[j]) y[j] = 0.0;
    for (int again = 0; again < 3; again++) {
        for (Index i = 0; i < rows_of(s); i++) w->step[i] = 0.0;
        for (Index p = 0; p < w->k; p++) {
            Index i = w->list[p];
            w->right[p] = value_of(s, i, y) - (cone ? 0.0 : bound_of(s, i, held[i] > 0));
        }
        solve_rows(w, w->right);
        for (Index p = 0; p < w->k; p++) w->step[w->list[p]] = w->right[p];
        for (Index j = 0; j < n; j++) w->x[j] = 0.0;
        subtract_rows(s, w->step, 1.0, w->x);
        for (Index j = 0; j < n; j++) y[j] += s->direct.side[j] ? 0.0 : w->x[j];
    }
}

/* The coefficients r (m,) of a vector x that the held rows span. */
FN void newton_coefficients(const Rows *s, const int8_t *held, const double *x, double *r) {
    Newton *w = s->newton;
    for (Index i = 0; i < rows_of(s); i++) r[i] = 0.0;
    copy(w->x, x, outputs_of(s));
    if (!newton_factors(s, held)) return;
    for (int again = 0; again < 2; again++) {
        for (Index j = 0; j < outputs_of(s); j++) w->y[j] = s->direct.side[j] ? 0.0 : w->x[j];
        for (Index p = 0; p < w->k; p++) w->right[p] = value_of(s, w->list[p], w->y);
        solve_rows(w, w->right);
        for (Index i = 0; i < rows_of(s); i++) w->step[i] = 0.0;
        for (Index p = 0; p < w->k; p++) {
            w->step[w->list[p]] = w->right[p];
            r[w->list[p]] += w->right[p];
        }
        subtract_rows(s, w->step, 1.0, w->x);
    }
    for (Index i = 0; i < rows_of(s); i++)
        if (held[i] != 0 && s->plain[i] >= 0) r[i] = s->sign[i] * w->x[s->plain[i]];
}

/* y(u) and the slope of every multiplier; its product with `along`, or 0 if that is NULL. */
FN double slopes_at(const Rows *s, const double *g, const double *u, const double *along, double *y) {
    Newton *w = s->newton;
    const Direct *d = &s->direct;
    double total = 0.0;
    copy(w->x, g, outputs_of(s));
    subtract_rows(s, u, 1.0, w->x);
    for (Index j = 0; j < outputs_of(s); j++) y[j] = smaller(larger(w->x[j], d->low[j]), d->high[j]);
    for (Index o = 0; o < w->count; o++) {
        Index i = w->order[o];
        double value = value_of(s, i, y), pull = u[i];
        if (pull == 0.0 && along) pull = along[i]; /* the side that it is moving to */
        double above = value - s->high[i], below = value - s->low[i];
        w->slope[i] = s->equal[i] || pull > 0.0 ? above : pull < 0.0 ? below : above > 0.0 ? above : below < 0.0 ? below : 0.0;
        if (along) total += w->slope[i] * along[i];
    }
    return total;
}

/* Whether a direction is a conflict, with the bounds that its outputs run to: multipliers in work->conflict. */
FN int is_conflict(Work *work, const double *direction) {
    const Rows *s = &work->rows;
    const Newton *w = s->newton;
    const Direct *d = &s->direct;
    double gap = 0.0, size = 0.0, top = 0.0, *pull = w->x;
    for (Index j = 0; j < outputs_of(s); j++) pull[j] = 0.0;
    subtract_rows(s, direction, -1.0, pull);
    for (Index i = 0; i < rows_of(s); i++) work->conflict[i] = work->fine[i] = 0.0;
    for (Index o = 0; o < w->count; o++) {
        Index i = w->order[o];
        double u = direction[i], bound = bound_of(s, i, u > 0.0);
        if (u == 0.0) continue;
        if (!is_finite(bound)) return 0;
        work->conflict[i] = u;
        gap += u * bound;
        size += fabs(u * bound);
        top = larger(top, fabs(u));
    }
    for (Index j = 0; j < outputs_of(s); j++) {
        double bound = pull[j] > 0.0 ? d->low[j] : d->high[j];
        if (fabs(pull[j]) <= work->t.optimal * top && !is_finite(bound)) continue; /* the proof measures the remainder */
        if (pull[j] == 0.0) continue;
        if (!is_finite(bound)) return 0;
        gap -= pull[j] * bound;
        size += fabs(pull[j] * bound);
    }
    for (Index j = 0; j < outputs_of(s); j++) d->side[j] = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        Index j = s->plain[i];
        if (j < 0 || pull[j] == 0.0 || d->side[j]) continue;
        double bound = pull[j] > 0.0 ? d->low[j] : d->high[j];
        if (!is_finite(bound) || !puts_bound(s, i, pull[j] < 0.0, bound)) continue;
        d->side[j] = 1;
        work->conflict[i] = -s->sign[i] * pull[j];
    }
    return gap < -work->t.search * size;
}

/* The direction of a Newton step for the rows `moving`, in w->step; 0 if its factors have no room. Multipliers at 0 whose
   row would be pulled the wrong way stay there. */
FN int newton_step(Work *work) {
    const Rows *s = &work->rows;
    Newton *w = s->newton;
    for (int again = 1, tries = 0; again && tries < 8; tries++) {
        /* Directions without curvature get a long step: the line search stops where the next output leaves its bound. */
        if (!factorise_rows(s, w->moving, s->direct.side, work->t.fine_rank, 0.0)) return 0;
        for (Index p = 0; p < w->k; p++) w->right[p] = w->slope[w->list[p]];
        solve_rows(w, w->right);
        again = 0;
        for (Index i = 0; i < rows_of(s); i++) w->step[i] = 0.0;
        for (Index p = 0; p < w->k; p++) {
            Index i = w->list[p];
            int wrong = !s->equal[i] && w->u[i] == 0.0 && w->right[p] * w->slope[i] <= 0.0;
            again = again || wrong;
            if (wrong) w->moving[i] = 0;
            else w->step[i] = w->right[p];
        }
    }
    return 1;
}

/* The dual function at multipliers u: y(u) and slopes as slopes_at leaves them. */
FN double dual_value(const Rows *s, const double *g, const double *u, double *y) {
    const Newton *w = s->newton;
    double total = 0.0;
    (void)slopes_at(s, g, u, NULL, y);
    for (Index j = 0; j < outputs_of(s); j++) total += 0.5 * (y[j] - g[j]) * (y[j] - g[j]);
    for (Index o = 0; o < w->count; o++) total += u[w->order[o]] * w->slope[w->order[o]];
    return total;
}

/* Move the multipliers by `length` of the step, into w->trial; the slope along it. */
FN double slope_after(const Rows *s, const double *g, double length, double *y) {
    const Newton *w = s->newton;
    for (Index i = 0; i < rows_of(s); i++) w->trial[i] = w->u[i] + length * w->step[i];
    return slopes_at(s, g, w->trial, w->step, y);
}

/* Take the step: in full, where multipliers of inequalities stop at 0, if that climbs; else along the line, as far as no
   multiplier passes 0, to the point where its slope, which never grows, is small. */
FN void climb_dual(const Rows *s, const double *g, double before, double *y) {
    Newton *w = s->newton;
    double start = 0.0, far = 1.0;
    int stops = 0;
    for (Index o = 0; o < w->count; o++) {
        Index i = w->order[o];
        double next = w->u[i] + w->step[i];
        int passes = !s->equal[i] && next * w->u[i] < 0.0;
        w->trial[i] = passes ? 0.0 : next;
        stops = stops || passes;
        start += w->slope[i] * w->step[i];
        if (passes) far = smaller(far, -w->u[i] / w->step[i]);
    }
    if (!(dual_value(s, g, w->trial, y) >= before + LINE_SEARCH * LINE_SEARCH * start)) {
        double near = 0.0, length = far, at_near = start, here = slope_after(s, g, far, y), at_far = here;
        for (int trial = 0; trial < 100; trial++) {
            if (fabs(here) <= LINE_SEARCH * start || (here > 0.0 && length == far)) break;
            if (here > 0.0) {
                near = length;
                at_near = here;
            } else {
                far = length;
                at_far = here;
            }
            double secant = near + (far - near) * at_near / (at_near - at_far), middle = 0.5 * (near + far);
            length = trial % 2 == 0 && secant > near && secant < far ? secant : middle;
            here = slope_after(s, g, length, y);
        }
    }
    for (Index o = 0; o < w->count; o++) {
        Index i = w->order[o];
        double next = w->trial[i], room = ROUNDING * fabs(w->u[i]);
        w->u[i] = !s->equal[i] && w->u[i] != 0.0 && (next * w->u[i] < 0.0 || fabs(next) <= room) ? 0.0 : next;
    }
}

/* The point of sparse rows, in y with its rows in face.held; their number, CONFLICT, or NOT_FOUND. */
FN Index newton_search(Work *work, const double *g, double *y, double fine) {
    const Rows *s = &work->rows;
    Newton *w = s->newton;
    const Direct *d = &s->direct;
    Face *face = &work->face;
    Index n = outputs_of(s), m = rows_of(s);
    int most = (int64_t)n * ((int64_t)m + n) > FULL_ENTRIES ? NEWTON_ROUNDS_ALONE : NEWTON_ROUNDS;
    double scale = largest(g, n), *u = w->u;
    int8_t *moving = w->moving;
    order_rows(s);
    for (Index i = 0; i < m; i++) u[i] = 0.0;
    for (int round = 0;; round++) {
        double before = dual_value(s, g, u, y), size = scale + largest(y, n);
        int open = 0;
        for (Index i = 0; i < m; i++) moving[i] = 0;
        for (Index o = 0; o < w->count; o++) {
            Index i = w->order[o];
            double bound = s->equal[i] || u[i] > 0.0 || (u[i] == 0.0 && w->slope[i] > 0.0) ? s->high[i] : s->low[i];
            int violated = fabs(w->slope[i]) > fine * (size + fabs(bound)) + work->t.underflow;
            moving[i] = (int8_t)(u[i] != 0.0 || violated || s->equal[i]);
            open = open || violated;
        }
        if (!open) break;
        if (round == most || (work->cancel && *work->cancel)) return NOT_FOUND;
        for (Index j = 0; j < n; j++) d->side[j] = (int8_t)(y[j] != w->x[j]);
        if (!newton_step(work)) return NOT_FOUND;
        climb_dual(s, g, before, y);
        if (round % 8 == 7 && (is_conflict(work, w->step) || is_conflict(work, u))) return CONFLICT;
    }
    /* The face: rows that pull, outputs at bounds; without rows that depend on the others. */
    for (Index j = 0; j < n; j++) {
        double room = ROUNDING * (fabs(g[j]) + fabs(w->x[j]));
        d->side[j] = (int8_t)(w->x[j] > d->high[j] + room ? 1 : w->x[j] < d->low[j] - room ? -1 : d->low[j] == d->high[j] ? 1 : 0);
    }
    for (Index i = 0; i < m; i++) moving[i] = (int8_t)(s->plain[i] >= 0 ? 0 : s->equal[i] ? 1 : u[i] > 0.0 ? 1 : u[i] < 0.0 ? -1 : 0);
    if (!factorise_rows(s, moving, d->side, 0.0, work->t.fine_rank)) return NOT_FOUND;
    clear_face(s, face);
    mark_box(s, face, d->side, d->low, d->high);
    for (Index p = 0; p < w->k; p++)
        if (w->pivot[p] > 0.0) face->held[w->list[p]] = moving[w->list[p]];
    keep_face(s, face->held);
    return list_held(s, face);
}
