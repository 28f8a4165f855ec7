/* Soft rows: they give way where the set is empty; hard rows never do.

   The first level t is the least by which all soft rows must be relaxed, in the user's units, so that they meet within
   the hard ones: least violation (infeasible.c) with a unit of 0 for every hard row. A conflict that has no soft row in
   it is one of the hard rows among themselves. The rows of the conflict, which determine the level, stay there; the
   others need not give way so much, and are asked for their own least level, and so on until the rest hold: the largest
   violation is as small as it can be, then the next. The answer is the projection of g on the rows relaxed in this way.

   The derivative. The rows of a conflict mu, sum mu_i a_i = 0, fix its level. In R^n one of them depends on the others, the
   closing row c: a_c = sum_j r_cj a_j. With the levels t as more unknowns all rows are independent: they are the rows
   (a_i, -side_i unit_i e_l) of (y, t), l the level of row i, and the usual closed form holds for (y, t). With q = (A+)' v
   as if t were fixed,

     R_cl = [l is that of c] side_c unit_c - sum_{j of l} r_cj side_j unit_j,   tau_l = sum_{j of l} q_j side_j unit_j,
     R' s = tau,   q_j becomes q_j + sum_c s_c r_cj,   and row c has -s_c.

   `active` marks all of these rows, and the point says which level each has. Where a level is half of what the bounds of
   one row miss each other by, it is t = (low - high) / 2 unit of that row, which gets what is left of tau. */
#include "internal.h"

enum { ALL_ROWS, SOFT_ROWS, HARD_ROWS };

/* One of the user's units in the scaled row i. That of a soft row is not so small that a bound, counted in it, has no number:
   infinity times the unit 0 of a hard row is NaN. */
FN double users_unit(const Work *work, Index i) {
    Index exponent = work->rows.exponent[i] + work->rows.shift;
    if (is_soft(work, i) && exponent < -500) exponent = -500;
    return ldexp(1.0, exponent > 1000 ? 1000 : exponent);
}

/* Choose the rows that give way. If the hard rows give way, the soft rows are ignored. */
FN void choose_yielding(Work *work, int which) {
    for (Index i = 0; i < rows_of(&work->rows); i++) {
        int soft = is_soft(work, i), yields = which == ALL_ROWS || soft == (which == SOFT_ROWS);
        work->unit[i] = yields ? users_unit(work, i) : 0.0;
        work->give[i] = yields || !soft ? 0.0 : HUGE_VAL;
        work->conflict[i] = work->fine[i] = work->level[i] = 0.0;
        work->tier[i] = 0;
    }
}

/* Whether a hard row alone excludes every point. */
FN int has_impossible_hard_row(const Work *work) {
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (!is_soft(work, i) && (excludes_all(work, i) || work->low[i] > work->high[i])) return 1;
    return 0;
}

/* What a proven conflict means: RELAXED if a row that can give way is part of it. */
FN int meaning_of_conflict(const Work *work) {
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (work->conflict[i] != 0.0 && is_soft(work, i)) return CAFFNET_RELAXED;
    return CAFFNET_INFEASIBLE;
}

/* Leave the soft rows that determine the level `relax` there: those of the conflict, or whose bounds miss each other by
   that much. How many soft rows are left. */
FN Index fix_level(Work *work, double relax) {
    Index left = 0;
    for (Index i = 0; i < rows_of(&work->rows); i++) {
        double unit = work->unit[i], miss = work->low[i] - work->high[i];
        if (work->conflict[i] != 0.0 && work->tier[i] == 0) work->tier[i] = (int8_t)(work->conflict[i] > 0.0 ? 1 : -1);
        if (unit == 0.0) continue;
        if (work->conflict[i] == 0.0 && miss < 2.0 * relax * unit * (1.0 - work->t.search)) {
            left++;
            continue;
        }
        work->give[i] = relax * unit;
        work->unit[i] = 0.0;
    }
    return left;
}

/* The least relaxation with which no row that gives way excludes itself. */
FN double least_relaxation(const Work *work) {
    double least = 0.0;
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (work->unit[i] > 0.0) least = larger(least, (work->low[i] - work->high[i]) / (2.0 * work->unit[i]));
    return least;
}

/* Bring back the soft rows that need not give way by the first level, `relax`, at which all rows meet: level by level.
   The number of rows of the face, as climb has it; the levels are in work->level, the sides of the rows that determine
   them in work->tier. Where rounding is in the way, the rows that are left stay at the level before. */
FN Index settle_levels(Work *work, double relax, Index k) {
    double size = largest(work->g, outputs_of(&work->rows)) + largest(work->y, outputs_of(&work->rows));
    for (Index number = 0; relax > 0.0 && number < rows_of(&work->rows); number++) {
        if (fix_level(work, relax) == 0) break;
        double before = relax;
        int found = 0;
        for (int again = 0; again < 2 && !found; again++) {
            for (Index i = 0; again > 0 && i < rows_of(&work->rows); i++) /* rows that meet up to rounding are relaxed by the rounding */
                if (is_soft(work, i) && work->unit[i] == 0.0) work->give[i] += work->t.search * size;
            for (Index i = 0; i < rows_of(&work->rows); i++) work->conflict[i] = work->fine[i] = 0.0;
            relax = least_relaxation(work);
            k = climb(work, work->g, &relax, NULL);
            found = k >= 0 && relax <= before;
        }
        if (found) continue;
        for (Index i = 0; i < rows_of(&work->rows); i++) {
            work->give[i] += before * work->unit[i];
            work->unit[i] = 0.0;
        }
        relax = 0.0;
        k = climb(work, work->g, &relax, NULL);
    }
    for (Index i = 0; i < rows_of(&work->rows); i++) {
        if (!is_soft(work, i)) continue;
        work->level[i] = work->give[i] + relax * work->unit[i];
        work->give[i] = 0.0;
    }
    return k;
}

/* Take the conflict for that of a level of 0. */
FN void forget_levels(Work *work) {
    for (Index i = 0; i < rows_of(&work->rows); i++) {
        work->level[i] = 0.0;
        work->tier[i] = (int8_t)((work->conflict[i] > 0.0) - (work->conflict[i] < 0.0));
    }
}

/* Relax the soft rows to their levels, or free them altogether, until restore_bounds. */
FN void relax_soft_rows(Work *work, int free) {
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (is_soft(work, i)) work->give[i] = free ? HUGE_VAL : work->level[i];
    relax_rows(work, 0.0);
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (is_soft(work, i)) work->give[i] = 0.0;
}

/* Add the rows of the conflicts to those of the face: independent rows join it, the others are only marked. */
FN void close_face(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    for (Index i = 0; i < rows_of(s); i++) {
        if (work->tier[i] == 0 || face->held[i] != 0) continue;
        int8_t side = (int8_t)(work->tier[i] > 0 ? 1 : -1);
        if (!is_finite(side > 0 ? work->high[i] : work->low[i])) continue; /* no point is nearer to it than another */
        add(s, face, i, side);
        face->held[i] = side;
    }
    forget_factors(work);
}

/* The terms that the levels add to a gradient. */
typedef struct {
    Index count, closing[LEVELS]; /* rows that close a conflict */
    double s[LEVELS];             /* minus their coefficients */
    Index crossed[LEVELS];        /* rows whose bounds miss each other by the level, or -1 */
    double share[LEVELS];         /* of their lower bounds, and minus that of the upper ones */
} Level;

/* Tie active rows that depend on each other: leader[i] leads to the same row for all of them. */
FN void tie_rows(Work *work, const int8_t *active, Index *leader) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    for (Index i = 0; i < rows_of(s); i++) leader[i] = i;
    for (Index i = 0; i < rows_of(s); i++) {
        double top = 1.0;
        if (active[i] == 0 || face->held[i] != 0) continue;
        (void)remainder_of(s, i, face);
        in_rows(face, 0, face->d, face->r, outputs_of(s));
        for (Index j = 0; j < face->k; j++) top = larger(top, fabs(face->r[j]));
        for (Index j = 0; j < face->k; j++)
            if (fabs(face->r[j]) > work->t.fine_rank * top) leader[leader_of(leader, face->rows[j])] = leader_of(leader, i);
    }
}

/* The levels of the active soft rows at y, as tiers 1, 2, ...; 0 for rows that do not give way. Their number. Rows have one
   level if they depend on each other and are exceeded by as much; conflicts beside each other have their own. */
FN int find_tiers(Work *work, const int8_t *active, const double *y) {
    const Rows *s = &work->rows;
    double size = largest(y, outputs_of(s)) + largest(work->g, outputs_of(s)), level[LEVELS], room[LEVELS];
    Index *leader = work->walk.after, first[LEVELS];
    int count = 0;
    tie_rows(work, active, leader);
    for (Index i = 0; i < rows_of(s); i++) {
        work->tier[i] = 0;
        if (active[i] == 0 || !is_soft(work, i)) continue;
        double unit = users_unit(work, i), bound = bound_of(s, i, active[i] > 0);
        double t = (double)active[i] * (value_of(s, i, y) - bound) / unit;
        double counts = size_at(s, i, y, size) + fabs(bound);
        double mine = 4.0 * (work->t.feasibility * counts + work->t.underflow) / unit;
        if (!(t > mine)) continue;
        Index lead = leader_of(leader, i);
        int tier = 0;
        mine += work->t.optimal * t; /* levels are found up to the rounding of all rows of a conflict */
        while (tier < count && (first[tier] != lead || fabs(t - level[tier]) > mine + room[tier])) tier++;
        if (tier == LEVELS) tier--;
        else if (tier == count) {
            level[tier] = t;
            room[tier] = mine;
            first[tier] = lead;
            count++;
        }
        work->tier[i] = (int8_t)(tier + 1);
    }
    return count;
}

/* The sums tau of the coefficients x of the rows of the face, for each level. */
FN void pull_of_levels(const Work *work, const double *x, double *pull) {
    const Face *face = &work->face;
    for (int l = 0; l < LEVELS; l++) pull[l] = 0.0;
    for (Index j = 0; j < face->k; j++) {
        Index i = face->rows[j];
        if (work->tier[i] > 0) pull[work->tier[i] - 1] += x[j] * face->sides[j] * users_unit(work, i);
    }
}

/* Write the coefficients R_cl of row i (see above) into R; 0 if all are zero. */
FN int level_coefficients(Work *work, Index i, Index side, int count, double *R) {
    Face *face = &work->face;
    double size = 0.0, most = 0.0;
    (void)remainder_of(&work->rows, i, face);
    in_rows(face, 0, face->d, face->r, outputs_of(&work->rows));
    pull_of_levels(work, face->r, R);
    for (int l = 0; l < count; l++) R[l] = -R[l];
    for (Index j = 0; j < face->k; j++)
        if (work->tier[face->rows[j]] > 0) size += fabs(face->r[j]) * users_unit(work, face->rows[j]);
    if (work->tier[i] > 0) {
        R[work->tier[i] - 1] += (double)side * users_unit(work, i);
        size += users_unit(work, i);
    }
    for (int l = 0; l < count; l++) most = larger(most, fabs(R[l]));
    return most > work->t.fine_rank * size;
}

/* Change q, the coefficients of v on the rows of the face, from those at fixed levels to those of (y, t). */
FN Level share_levels(Work *work, const int8_t *active, const double *y, double *q) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Level level = {0};
    double tau[LEVELS], worst[LEVELS], R[LEVELS][LEVELS], left[LEVELS][LEVELS]; /* left: the new part of each row */
    int count = find_tiers(work, active, y), pivot[LEVELS], settled[LEVELS] = {0};
    pull_of_levels(work, q, tau);
    for (Index i = 0; i < rows_of(s) && level.count < count; i++) { /* rows that are independent of those before */
        Index c = level.count;
        if (active[i] == 0 || face->held[i] != 0 || !level_coefficients(work, i, active[i], count, R[c])) continue;
        double size = 0.0, most = 0.0;
        for (int l = 0; l < count; l++) {
            left[c][l] = R[c][l];
            size = larger(size, fabs(R[c][l]));
        }
        for (Index e = 0; e < c; e++) {
            double factor = left[c][pivot[e]] / left[e][pivot[e]];
            for (int l = 0; l < count; l++) left[c][l] -= factor * left[e][l];
        }
        for (int l = 0; l < count; l++)
            if (!settled[l] && fabs(left[c][l]) > most) {
                most = fabs(left[c][l]);
                pivot[c] = l;
            }
        if (!(most > work->t.optimal * size)) continue;
        settled[pivot[c]] = 1;
        level.closing[level.count++] = i;
    }
    /* R' s = tau for the levels of the pivots: a small system, its right side in the last column. */
    double small[LEVELS][LEVELS + 1], *line[LEVELS];
    for (Index e = 0; e < level.count; e++) {
        line[e] = small[e];
        for (Index c = 0; c < level.count; c++) line[e][c] = R[c][pivot[e]];
        line[e][level.count] = tau[pivot[e]];
    }
    for (Index c = 0; c < level.count; c++) {
        Index best = c;
        for (Index e = c + 1; e < level.count; e++)
            if (fabs(line[e][c]) > fabs(line[best][c])) best = e;
        exchange(&line[c], &line[best]);
        for (Index e = 0; e < level.count; e++) {
            if (e == c || line[e][c] == 0.0) continue;
            double factor = line[e][c] / line[c][c];
            for (Index d = c; d <= level.count; d++) line[e][d] -= factor * line[c][d];
        }
    }
    for (Index c = 0; c < level.count; c++) level.s[c] = line[c][level.count] / line[c][c];
    for (Index c = 0; c < level.count; c++) {
        double again[LEVELS];
        (void)level_coefficients(work, level.closing[c], active[level.closing[c]], count, again);
        for (Index j = 0; j < face->k; j++) q[j] += level.s[c] * face->r[j];
        for (int l = 0; l < count; l++) tau[l] -= level.s[c] * R[c][l];
    }
    for (int l = 0; l < LEVELS; l++) {
        level.crossed[l] = -1;
        worst[l] = 0.0;
    }
    for (Index i = 0; i < rows_of(s); i++) { /* levels that no conflict determines are those of bounds that miss each other */
        int l = work->tier[i] - 1;
        double unit = users_unit(work, i), miss = l < 0 || settled[l] ? 0.0 : (s->low[i] - s->high[i]) / unit;
        if (l < 0 || !(miss > worst[l])) continue;
        worst[l] = miss;
        level.crossed[l] = i;
        level.share[l] = tau[l] / (2.0 * unit);
    }
    return level;
}

/* Soft rows are not equalities while they give way. */
FN void release_soft_rows(Work *work) {
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (is_soft(work, i)) work->rows.equal[i] = 0;
}
