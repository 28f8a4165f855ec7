/* Sets made of bounds on single outputs: every output is chosen by itself, so nothing is factorised.

   With w = 0 the answer is a clamp. With w, the candidates of an output are its bounds and, where g_j is within them,
   g_j itself. A p-norm grows with each |y_j - f_j|, so FULL takes the candidate nearest to f_j for each output. ACTIVE
   takes the clamp of g, or bounds where f leaves the box and g elsewhere, whichever is nearer to f. */
#include "internal.h"

/* The bounds of every output; 0 if some exclude each other. */
FN int box_limits(const Rows *s, double *low, double *high) {
    for (Index j = 0; j < s->n; j++) {
        low[j] = -HUGE_VAL;
        high[j] = HUGE_VAL;
    }
    for (Index i = 0; i < s->m; i++) {
        Index j = s->plain[i];
        int up = plain_sign(s, i) > 0.0;
        low[j] = larger(low[j], up ? s->low[i] : -s->high[i]);
        high[j] = smaller(high[j], up ? s->high[i] : -s->low[i]);
        if (!(low[j] <= high[j])) return 0;
    }
    return 1;
}

/* Hold each output at its side, by the first row that does it, equalities before all others. */
FN void mark_box(const Rows *s, Face *face, int8_t *side, const double *low, const double *high) {
    clear_face(s, face);
    for (int equalities = 1; equalities >= 0; equalities--)
        for (Index i = 0; i < s->m; i++) {
            Index j = s->plain[i];
            if (j < 0 || side[j] == 0 || s->equal[i] != equalities) continue;
            int up = plain_sign(s, i) > 0.0, upper = (side[j] > 0) == up;
            double bound = (up ? 1.0 : -1.0) * (side[j] > 0 ? high[j] : low[j]);
            if (upper && s->high[i] == bound) face->held[i] = 1;
            else if (!upper && s->low[i] == bound) face->held[i] = s->equal[i] ? 1 : -1;
            else continue;
            side[j] = 0;
        }
}

/* One output of FULL: its side, and where it lies. */
FN int8_t box_choice(double f, double g, double low, double high, double *y) {
    if (low == high || f < low || f > high) {
        *y = f > low ? high : low;
        return f > low ? 1 : -1;
    }
    double below = f - low, above = high - f;
    if (low <= g && g <= high && fabs(g - f) <= below && fabs(g - f) <= above) {
        *y = g;
        return 0;
    }
    *y = below <= above ? low : high;
    return below <= above ? -1 : 1;
}

/* The answer in a box, in work->y, with its rows in face.held; 0 if the bounds exclude each other. */
FN int box_point(Work *work, int search) {
    const Rows *s = &work->rows;
    Index n = s->n;
    double *low = work->spare, *high = work->other, *y = work->y, *clamped = work->face.z;
    const double *f = work->f, *g = work->g;
    int8_t *side = work->seed;
    if (!box_limits(s, low, high)) return 0;
    if (search != CAFFNET_ACTIVE) {
        for (Index j = 0; j < n; j++) side[j] = box_choice(f[j], g[j], low[j], high[j], &y[j]);
        mark_box(s, &work->face, side, low, high);
        return 1;
    }
    int feasible = 1, any = 0;
    Index nearest = 0;
    double room = HUGE_VAL;
    for (Index j = 0; j < n; j++) {
        int fixed = low[j] == high[j] || f[j] < low[j] || f[j] > high[j];
        y[j] = fixed ? (f[j] > low[j] ? high[j] : low[j]) : g[j];
        feasible = feasible && low[j] <= y[j] && y[j] <= high[j];
        clamped[j] = smaller(larger(g[j], low[j]), high[j]);
        any = any || clamped[j] != g[j] || low[j] == high[j];
        double here = smaller(g[j] - low[j], high[j] - g[j]);
        if (here < room) {
            room = here;
            nearest = j;
        }
    }
    if (!any) /* g is inside: the nearest bound of all */
        clamped[nearest] = g[nearest] - low[nearest] < high[nearest] - g[nearest] ? low[nearest] : high[nearest];
    int own = feasible && distance(y, f, n, work->norm) <= distance(clamped, f, n, work->norm);
    for (Index j = 0; j < n; j++) {
        int fixed = low[j] == high[j] || (own ? f[j] < low[j] || f[j] > high[j] : clamped[j] != g[j] || (!any && j == nearest));
        if (!own) y[j] = clamped[j];
        side[j] = !fixed ? 0 : y[j] == high[j] && (low[j] < high[j] || f[j] > low[j]) ? 1 : -1;
    }
    mark_box(s, &work->face, side, low, high);
    return 1;
}
