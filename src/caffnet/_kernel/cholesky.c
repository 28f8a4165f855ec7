/* Factors of K = A_W F A_W' for sparse rows: W the rows that take part, F the outputs that are free. K = L L'.

   Two rows are neighbours if they share an output. A row that is eliminated makes neighbours of all its neighbours, so
   the row with the fewest goes first: that leaves most of L zero. Once the rest are nearly all neighbours of each other,
   they are the tail: a full triangle, whose sums run along whole lines. This order comes from the matrix alone and
   serves all samples. Which entries of L are zero depends on the sample and is found line by line (Liu's elimination
   tree): with parent(q) the first line below q that has an entry in column q, line p has entries in the columns met on
   the ways up from all q with K_pq != 0. Columns before the tail are lists of entries; a line of the tail is in full. */
#include "internal.h"

/* Read the rows that are not bounds, by columns. */
FN void read_columns(const Rows *s) {
    Newton *w = s->newton;
    Index n = outputs_of(s), m = rows_of(s);
    for (Index j = 0; j <= n; j++) w->column[j] = 0;
    for (Index i = 0; i < m; i++)
        for (Index e = 0; s->plain[i] < 0 && e < s->entries[i]; e++) w->column[column_of(s, i, e) + 1]++;
    for (Index j = 0; j < n; j++) w->column[j + 1] += w->column[j];
    for (Index i = m - 1; i >= 0; i--) /* backwards, so that the rows of a column rise */
        for (Index e = s->entries[i] - 1; s->plain[i] < 0 && e >= 0; e--) {
            Index at = --w->column[column_of(s, i, e) + 1];
            w->row[at] = i;
            w->entry[at] = entry_of(s, i, e);
        }
    for (Index j = 0; j < n; j++) w->column[j] = w->column[j + 1]; /* the counting has moved them by one */
    w->column[n] = 0;
    for (Index i = 0; i < m; i++) w->column[n] += s->plain[i] < 0 ? s->entries[i] : 0;
}

/* The neighbours of all rows while they are eliminated: in `pool`, the memory of L, each list after its row and length.
   Rows of one degree are chained. The arrays belong to the factors, which do not exist yet. */
typedef struct {
    Index *pool;
    int64_t used, room;
    Index *start, *degree;       /* (m,) */
    Index *head, *next, *before; /* (m,) the first row of each degree; chains; -1 at their ends */
    Index *mark;                 /* (m,) */
} Graph;

FN void unchain(Graph *at, Index i) {
    if (at->before[i] >= 0) at->next[at->before[i]] = at->next[i];
    else at->head[at->degree[i]] = at->next[i];
    if (at->next[i] >= 0) at->before[at->next[i]] = at->before[i];
}

FN void chain(Graph *at, Index i) {
    Index first = at->head[at->degree[i]];
    at->before[i] = -1;
    at->next[i] = first;
    if (first >= 0) at->before[first] = i;
    at->head[at->degree[i]] = i;
}

/* Make room for a list of `length`, by moving the lists in use together; 0 if there is no room. */
FN int make_room(Graph *at, Index length) {
    if (at->used + 2 + length <= at->room) return 1;
    int64_t to = 0;
    for (int64_t from = 0; from < at->used;) {
        Index i = at->pool[from], size = at->pool[from + 1];
        if (i >= 0 && at->start[i] == from + 2) {
            for (Index e = 0; e < size + 2; e++) at->pool[to + e] = at->pool[from + e];
            at->start[i] = (Index)(to + 2);
            to += size + 2;
        }
        from += size + 2;
    }
    at->used = to;
    return at->used + 2 + length <= at->room;
}

/* The neighbours of row i, which are those marked by it, without i itself; 0 if there is no room. */
FN int list_neighbours(const Rows *s, Graph *at, Index i) {
    const Newton *w = s->newton;
    Index count = 0;
    at->mark[i] = i;
    for (int write = 0; write < 2; write++) {
        if (write && !make_room(at, count)) return 0;
        Index *list = at->pool + at->used + 2, length = 0;
        for (Index e = 0; e < s->entries[i]; e++)
            for (Index j = column_of(s, i, e), c = w->column[j]; c < w->column[j + 1]; c++) {
                Index r = w->row[c];
                if (r == i || (at->mark[r] == i) != write) continue;
                at->mark[r] = write ? -1 : i;
                if (write) list[length] = r;
                length++;
            }
        count = length;
    }
    at->pool[at->used] = i;
    at->pool[at->used + 1] = count;
    at->start[i] = (Index)(at->used + 2);
    at->degree[i] = count;
    at->used += count + 2;
    return 1;
}

/* Eliminate row v: its neighbours become neighbours of each other; 0 if there is no room. */
FN int eliminate(Graph *at, Index v) {
    Index degree = at->degree[v];
    for (Index t = 0; t < degree; t++) {
        Index a = at->pool[at->start[v] + t], kept = 0, more = 0;
        Index *own = at->pool + at->start[a];
        unchain(at, a);
        for (Index e = 0; e < at->degree[a]; e++) {
            if (own[e] == v) continue;
            own[kept++] = own[e];
            at->mark[own[e]] = a;
        }
        at->mark[a] = a;
        for (Index e = 0; e < degree; e++) more += at->mark[at->pool[at->start[v] + e]] != a;
        if (kept + more > own[-1]) { /* a longer list, at the end */
            if (!make_room(at, kept + more)) return 0;
            own = at->pool + at->start[a];
            Index *longer = at->pool + at->used + 2;
            for (Index e = 0; e < kept; e++) longer[e] = own[e];
            longer[-2] = a;
            longer[-1] = kept + more;
            at->start[a] = (Index)(at->used + 2);
            at->used += kept + more + 2;
            own = longer;
        }
        for (Index e = 0; e < degree; e++) {
            Index b = at->pool[at->start[v] + e];
            if (at->mark[b] != a) own[kept++] = b;
        }
        at->degree[a] = kept;
        chain(at, a);
    }
    return 1;
}

/* Find the order in which rows are eliminated, once for a matrix. Rows that do not fit into the memory go to the tail. */
FN void order_rows(const Rows *s) {
    Newton *w = s->newton;
    Index m = rows_of(s), left = 0, lowest = 0;
    if (w->ordered) return;
    w->ordered = 1;
    w->faced = 0;
    read_columns(s);
    Graph graph = {(Index *)w->L, 0, 2 * w->room, w->begin, w->list, w->end, w->parent, w->path, w->mark}, *at = &graph;
    int fits = 1;
    w->count = 0;
    for (Index i = 0; i < m; i++) {
        at->head[i] = at->mark[i] = -1;
        at->start[i] = 0;
    }
    for (Index i = 0; i < m; i++) {
        w->place[i] = s->plain[i] >= 0 ? 0 : -1; /* -1: not in the order yet */
        left += s->plain[i] < 0;
        fits = fits && (s->plain[i] >= 0 || list_neighbours(s, at, i));
    }
    for (Index i = m - 1; i >= 0 && fits; i--)
        if (s->plain[i] < 0) chain(at, i);
    for (Index i = 0; i < m; i++) at->mark[i] = -1;
    while (fits && left > 0) {
        while (at->head[lowest] < 0) lowest++;
        if (lowest >= FULL_TAIL * (left - 1)) break;
        Index v = at->head[lowest];
        unchain(at, v);
        w->place[v] = 0;
        w->order[w->count++] = v;
        left--;
        fits = eliminate(at, v);
        at->start[v] = 0; /* its list is not needed any more */
        lowest = lowest > 0 ? lowest - 1 : 0;
    }
    w->tail = w->count;
    for (Index i = 0; i < m; i++)
        if (w->place[i] < 0) w->order[w->count++] = i;
}

/* The factors are those of the rows held. */
FN void keep_face(const Rows *s, const int8_t *held) {
    s->newton->faced = 1;
    for (Index i = 0; i < rows_of(s); i++) s->newton->face[i] = held[i];
}

/* The columns before the tail in which line p has entries, in an order that respects the links: from the place returned
   to k in `path`. With x, line p of K is added to it. */
FN Index columns_of_line(const Rows *s, const int8_t *fixed, Index p, double *x) {
    Newton *w = s->newton;
    Index i = w->list[p], top = w->k;
    const double *a = row_of(s, i);
    for (Index e = 0; e < s->entries[i]; e++) {
        Index j = column_of(s, i, e);
        if (fixed[j]) continue;
        for (Index c = w->column[j]; c < w->column[j + 1]; c++) {
            Index q = w->place[w->row[c]], length = 0;
            if (q < 0 || q > p) continue;
            if (x) x[q] += a[e] * w->entry[c];
            for (; q < w->first && q != p && w->mark[q] != p; q = w->parent[q]) {
                w->path[length++] = q;
                w->mark[q] = p;
                if (w->parent[q] < 0) w->parent[q] = p;
            }
            while (length > 0) w->path[--top] = w->path[--length];
        }
    }
    return top;
}

/* The entries of line p in the columns of the tail, without the pivot. */
INLINE double *full_line(const Newton *w, Index p) {
    int64_t line = p - w->first;
    return w->full + line * (line - 1) / 2;
}

/* Factorise K for the rows with moving[i] != 0 over the outputs with fixed[j] == 0; rows that depend on those before, up to
   `rank`, are left out (their pivot is 0). 0 if there is no room for it. */
FN int factorise_rows(const Rows *s, const int8_t *moving, const int8_t *fixed, double shift, double rank) {
    Newton *w = s->newton;
    Index k = 0, first = -1;
    w->faced = 0;
    for (Index i = 0; i < rows_of(s); i++) w->place[i] = -1;
    for (Index o = 0; o < w->count; o++) {
        if (o == w->tail) first = k;
        if (moving[w->order[o]] == 0) continue;
        w->list[k] = w->order[o];
        w->place[w->order[o]] = k++;
    }
    w->k = k;
    w->first = first < 0 ? k : first;
    for (Index p = 0; p < k; p++) {
        w->parent[p] = w->mark[p] = -1;
        w->end[p] = 0;
        w->line[p] = 0.0;
    }
    for (Index p = 0; p < k; p++)
        for (Index at = columns_of_line(s, fixed, p, NULL); at < k; at++) w->end[w->path[at]]++;
    int64_t used = 0, wide = k - w->first;
    for (Index q = 0; q < w->first; q++) {
        w->begin[q] = (Index)used;
        used += w->end[q];
        w->end[q] = w->begin[q];
        w->mark[q] = -1;
    }
    if (used + wide * (wide - 1) / 2 > w->room) return 0;
    w->full = w->L + used;
    for (Index p = 0; p < k; p++) {
        Index at = columns_of_line(s, fixed, p, w->line);
        double size = w->line[p] + shift, left = size, *x = w->line;
        for (; at < k; at++) {
            Index q = w->path[at];
            double entry = w->pivot[q] > 0.0 ? x[q] / w->pivot[q] : 0.0;
            x[q] = 0.0;
            if (entry == 0.0) continue;
            for (Index e = w->begin[q], end = w->end[q]; e < end; e++) x[w->where[e]] -= entry * w->L[e];
            left -= entry * entry;
            w->where[w->end[q]] = p;
            w->L[w->end[q]++] = entry;
        }
        if (p >= w->first) { /* the rest of the line in full */
            Index length = p - w->first;
            double *here = full_line(w, p);
            for (Index q = 0; q < length; q++) {
                double pivot = w->pivot[w->first + q];
                here[q] = pivot > 0.0 ? (x[w->first + q] - dot(full_line(w, w->first + q), here, q)) / pivot : 0.0;
                x[w->first + q] = 0.0;
            }
            left -= dot(here, here, length);
        }
        x[p] = 0.0;
        w->pivot[p] = left > rank * size && left > 0.0 ? sqrt(left) : 0.0;
    }
    return 1;
}

/* Solve K x = x for the rows of the factors, in the order of `list`; 0 for rows left out. */
FN void solve_rows(const Newton *w, double *x) {
    Index first = w->first;
    for (Index q = 0; q < first; q++) {
        x[q] = w->pivot[q] > 0.0 ? x[q] / w->pivot[q] : 0.0;
        for (Index e = w->begin[q]; e < w->end[q]; e++) x[w->where[e]] -= x[q] * w->L[e];
    }
    for (Index p = first; p < w->k; p++) {
        const double *here = full_line(w, p);
        x[p] = w->pivot[p] > 0.0 ? (x[p] - dot(here, x + first, p - first)) / w->pivot[p] : 0.0;
    }
    for (Index p = w->k - 1; p >= first; p--) {
        const double *here = full_line(w, p);
        x[p] = w->pivot[p] > 0.0 ? x[p] / w->pivot[p] : 0.0;
        subtract(x + first, x[p], here, p - first);
    }
    for (Index q = first - 1; q >= 0; q--) {
        for (Index e = w->begin[q]; e < w->end[q]; e++) x[q] -= x[w->where[e]] * w->L[e];
        x[q] = w->pivot[q] > 0.0 ? x[q] / w->pivot[q] : 0.0;
    }
}
