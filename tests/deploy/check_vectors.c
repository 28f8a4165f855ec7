/* Asks the kernel the problems of vectors.py and compares: the same status, and the same bits of the value. As a program it
   reads the file that is its argument; as a WebAssembly module it is given the bytes. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernel.h"

enum { MOST_N = 40, MOST_M = 200 };

static double results[4]; /* problems, those with the same status, those with the same bits, the largest difference */
static char memory[4 << 20];
static double arrays[2 * MOST_N + MOST_M * MOST_N + 2 * MOST_M + MOST_N * MOST_N];

/* `count` numbers of the problem in its own type, at the next place of `arrays`. */
static void *copy_numbers(const unsigned char **from, int64_t count, int single, double **place) {
    double *to = *place;
    for (int64_t i = 0; i < count; i++) {
        double x;
        memcpy(&x, *from + 8 * i, 8);
        if (single) ((float *)(void *)to)[i] = (float)x;
        else to[i] = x;
    }
    *from += 8 * count;
    *place += count;
    return to;
}

/* Returns how many problems differ. */
int32_t check_vectors(const unsigned char *from) {
    int64_t head[2], whole[9];
    memset(results, 0, sizeof results);
    memcpy(head, from, sizeof head);
    from += sizeof head;
    if (head[1] * (int64_t)sizeof(double) != (int64_t)sizeof(CaffnetTolerances)) return -1;
    for (int64_t k = 0; k < head[0]; k++) {
        CaffnetBatch batch;
        double value[MOST_N], *place = arrays;
        int8_t status = -1, active[MOST_M];
        int32_t choice[MOST_N];
        char kinds[MOST_M];
        memset(&batch, 0, sizeof batch);
        memcpy(whole, from, sizeof whole);
        from += sizeof whole;
        int64_t n = whole[0], m = whole[1];
        int single = (int)whole[2], same = 1;
        batch.n = n, batch.m = m, batch.samples = 1, batch.single = single;
        batch.search = whole[3], batch.strict = whole[4], batch.nearest = whole[5];
        memcpy(&batch.norm, from, 8);
        memcpy(&batch.t, from + 8, sizeof batch.t);
        from += 8 + sizeof batch.t;
        for (int64_t i = 0; i < m; i++) kinds[i] = (char)from[8 * i];
        from += 8 * m;
        batch.kinds = kinds;
        batch.f = copy_numbers(&from, n, single, &place);
        batch.w = whole[6] ? copy_numbers(&from, n, single, &place) : NULL;
        batch.A = copy_numbers(&from, m * n, single, &place);
        batch.lower = copy_numbers(&from, m, single, &place);
        batch.upper = copy_numbers(&from, m, single, &place);
        batch.metric = whole[8] ? copy_numbers(&from, whole[8], single, &place) : NULL;
        batch.diagonal = whole[8] == n;
        batch.value = value, batch.status = &status, batch.active = active, batch.choice = choice;
        if (caffnet_workspace(n, m, batch.search, whole[8] > 0) > (int64_t)sizeof memory) return -1;
        caffnet_solve(&batch, 0, 1, (void *)(((uintptr_t)memory + 63) & ~(uintptr_t)63));
        for (int64_t j = 0; j < n; j++) {
            double expected, found = single ? (double)((float *)(void *)value)[j] : value[j];
            memcpy(&expected, from + 8 * j, 8);
            if (isnan(expected) && isnan(found)) continue;
            double difference = fabs(found - expected) / fmax(1.0, fabs(expected));
            if (!(difference <= results[3])) results[3] = difference;
            same &= memcmp(&found, &expected, 8) == 0;
        }
        from += 8 * n;
        results[0] += 1.0;
        results[1] += status == whole[7];
        results[2] += same;
    }
    return (int32_t)(2.0 * results[0] - results[1] - results[2]);
}

double check_result(int32_t which) { return results[which]; }

#ifndef __wasm__
#include <stdio.h>
#include <stdlib.h>

int main(int arguments, char **argument) {
    FILE *file = arguments > 1 ? fopen(argument[1], "rb") : NULL;
    if (!file) return 2;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = (unsigned char *)malloc(size);
    if (!bytes || fread(bytes, 1, size, file) != size) return 2;
    fclose(file);
    int differ = check_vectors(bytes) != 0;
    printf("%.0f %.0f %.0f %.3g\n", results[0], results[1], results[2], results[3]);
    free(bytes);
    return differ;
}
#endif
