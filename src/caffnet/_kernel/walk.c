/* All sub-constraints, depth first: the feasible candidate nearest to f.

   Candidates of a sub-constraint are at least as far from f as its flat, and flats only move away when rows are added:
   a branch ends where dist(f, flat) passes the best distance. LITE looks at single rows and at minimal faces, which
   have as many rows as are independent (the paper's min(m, n) rows have no feasible candidate where the rank is
   smaller). */
#include "internal.h"

/* The order of equally good sub-constraints of one size: by rows, then by sides. */
FN int earlier(const Index *rows, const double *sides, const Index *other_rows, const double *other_sides, Index size) {
    for (Index j = 0; j < size; j++)
        if (rows[j] != other_rows[j]) return rows[j] < other_rows[j];
    for (Index j = 0; j < size; j++)
        if (sides[j] != other_sides[j]) return sides[j] < other_sides[j];
    return 0;
}

/* A choice is one side of a row: 2 row + (upper side). */
FN Index choice_row(Index choice) { return choice >> 1; }
FN double choice_bound(const Rows *s, Index choice) { return bound_of(s, choice >> 1, choice & 1); }

/* List the sides that can be chosen beside the equalities, in order; how many. */
FN Index list_choices(const Rows *s, Index *choices) {
    Index count = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        if (s->equal[i] || s->squared[i] == 0.0) continue;
        if (s->low[i] > -HUGE_VAL) choices[count++] = 2 * i;
        if (s->high[i] < HUGE_VAL) choices[count++] = 2 * i + 1;
    }
    return count;
}

/* Walk through all sub-constraints. `best` and `size` describe a candidate known before, in walk.rows. With
   minimal >= 0 only single rows and sub-constraints of that size are candidates. Returns the size of the best one
   beside the equalities, or n + 1 where there is none. */
FN Index walk_all(Work *work, Index minimal, double best, Index size) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Walk *walk = &work->walk;
    const CaffnetTolerances *t = &work->t;
    const double *f = work->f, *g = work->g;
    double *y = work->y, norm = work->norm;
    Index n = outputs_of(s), base = face->k, top = minimal < 0 ? n - base : minimal > 1 ? minimal : 1;
    /* The p-norm of a vector is at least this share of its length. */
    double share = norm <= 2.0 ? 1.0 : pow((double)n, (norm > 1e300 ? 0.0 : 1.0 / norm) - 0.5);
    double size_f = largest(f, n), margin = 4.0 * t->feasibility * larger(size_f, largest(g, n)), tie = 1.0 + t->tie;
    double kept = best;
    copy(y, f, n);
    slide(s, face, 0, y);
    copy(walk->f, y, n);
    double far = distance(y, f, n, 2.0);
    walk->squared[0] = far * far;
    copy(y, g, n);
    slide(s, face, 0, y);
    copy(walk->g, y, n);
    if (base > 0) {
        slide(s, face, 0, y);
        double here = distance(y, f, n, norm);
        if (here <= best * tie && accepts(s, y, size_f)) {
            best = smaller(best, here);
            kept = here;
            size = 0;
        }
    }
    Index *choices = face->violated, options = list_choices(s, choices), depth = 0;
    uint32_t count = 0;
    for (Index c = options - 1, row = -1, after = -1; c >= 0; c--) {
        after += choice_row(choices[c]) != row;
        row = choice_row(choices[c]);
        walk->after[row] = after;
    }
    walk->option[0] = 0;
    walk->last[0] = -1;
    while (depth >= 0) {
        if ((++count & 1023) == 0 && work->cancel && *work->cancel) return n + 1;
        Index option = walk->option[depth];
        if (option >= options || depth >= top) {
            depth--;
            continue;
        }
        walk->option[depth] = option + 1;
        Index i = choice_row(choices[option]), side = 2 * (choices[option] & 1) - 1;
        double bound = choice_bound(s, choices[option]);
        const double *at_f = walk->f + (size_t)depth * (size_t)n;
        double gap = dot(s->A + (size_t)i * (size_t)n, at_f, n) - bound, reach = best * tie + margin;
        /* The step along the flat is at least the distance to the plane of the row: often enough to decide without a direction. */
        if (share * sqrt(walk->squared[depth] + gap * gap / s->squared[i]) > reach) continue;
        face->k = base + depth;
        if (walk->last[depth] != i) {
            walk->last[depth] = i;
            double left = remainder_of(s, i, face);
            walk->independent[depth] = (int8_t)is_independent(s, i, face, left, t->rank);
            if (walk->independent[depth]) append(s, face, i, side, left);
        }
        if (!walk->independent[depth]) continue;
        Index k = base + depth, here = depth + 1;
        face->k = k + 1;
        face->sides[k] = side;
        const double *q = face->Q + (size_t)k * (size_t)n;
        double step = gap * face->inverse[k], squared = walk->squared[depth] + step * step;
        if (share * sqrt(squared) > reach) continue;
        walk->squared[here] = squared;
        double *next_f = walk->f + (size_t)here * (size_t)n, *next_g = walk->g + (size_t)here * (size_t)n;
        copy(next_f, at_f, n);
        subtract(next_f, step, q, n);
        copy(next_g, walk->g + (size_t)depth * (size_t)n, n);
        slide(s, face, k, next_g);
        /* Before the candidate is refined, its distance is known up to `margin`. */
        if ((minimal < 0 || here == 1 || here == minimal) && distance(next_g, f, n, norm) <= reach + margin) {
            copy(y, next_g, n);
            slide(s, face, 0, y);
            double length = distance(y, f, n, norm);
            if (length <= best * tie && accepts(s, y, size_f)) {
                best = smaller(best, length);
                const Index *rows = face->rows + base;
                const double *sides = face->sides + base;
                if (kept > best * tie || here < size ||
                    (here == size && earlier(rows, sides, walk->rows, walk->sides, here))) {
                    kept = length;
                    size = here;
                    for (Index j = 0; j < here; j++) {
                        walk->rows[j] = rows[j];
                        walk->sides[j] = sides[j];
                    }
                }
            }
        }
        /* LITE looks at the deepest level only: skip a branch that has too few rows left to reach it. */
        if (here < top && (minimal < 0 || here + walk->after[i] >= minimal)) {
            depth = here;
            walk->option[depth] = option + (option + 1 < options && choice_row(choices[option + 1]) == i ? 2 : 1);
            walk->last[depth] = -1;
        }
    }
    return size;
}

/* Find the nearest candidate of FULL or LITE. The face given (of k rows, or fewer than 0) is the first bound. */
FN Index enumerate(Work *work, Index k, int lite) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Walk *walk = &work->walk;
    Index n = outputs_of(s), size = n + 1, minimal = -1;
    double best = HUGE_VAL;
    if (lite) {
        restart(work);
        Index options = list_choices(s, face->violated);
        for (Index c = 0; c < options; c++) add(s, face, choice_row(face->violated[c]), 1);
        minimal = face->k - face->base;
    } else if (k >= 0) {
        slide(s, face, 0, work->y); /* y is the projection of g, up to rounding */
        if (accepts(s, work->y, largest(work->f, n))) {
            best = distance(work->y, work->f, n, work->norm);
            size = k - face->base;
            for (Index j = 0; j < size; j++) { /* in order */
                Index row = face->rows[face->base + j], place = j;
                double side = face->sides[face->base + j];
                for (; place > 0 && walk->rows[place - 1] > row; place--) {
                    walk->rows[place] = walk->rows[place - 1];
                    walk->sides[place] = walk->sides[place - 1];
                }
                walk->rows[place] = row;
                walk->sides[place] = side;
            }
        }
    }
    restart(work);
    size = walk_all(work, minimal, best, size);
    restart(work);
    if (size > n) return NOT_FOUND;
    for (Index j = 0; j < size; j++) add(s, face, walk->rows[j], (Index)walk->sides[j]);
    return face->k;
}
