/* Memory with marked bytes before and behind it: a write past its ends shows. Under AddressSanitizer a read does too. */
#ifndef CAFFNET_GUARD_H
#define CAFFNET_GUARD_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

enum { GUARD_BYTES = 64, GUARD_BLOCKS = 64, GUARD_MARK = 0xA5 };

static struct {
    unsigned char *start; /* GUARD_BYTES marks, the block, GUARD_BYTES marks */
    size_t size;
} guard_blocks[GUARD_BLOCKS];
static int guard_count = 0;

/* A block of memory, every byte of it `fill`. It lives until guard_release. */
static void *guarded(size_t size, int fill) {
    unsigned char *start = (unsigned char *)malloc(size + 2 * GUARD_BYTES);
    if (!start || guard_count == GUARD_BLOCKS) abort();
    memset(start, GUARD_MARK, GUARD_BYTES);
    memset(start + GUARD_BYTES, fill, size);
    memset(start + GUARD_BYTES + size, GUARD_MARK, GUARD_BYTES);
    ASAN_POISON_MEMORY_REGION(start, GUARD_BYTES);
    ASAN_POISON_MEMORY_REGION(start + GUARD_BYTES + size, GUARD_BYTES);
    guard_blocks[guard_count].start = start;
    guard_blocks[guard_count++].size = size;
    return start + GUARD_BYTES;
}

/* Give all blocks back; whether all marks were as they should be. */
static int guard_release(void) {
    int intact = 1;
    while (guard_count > 0) {
        unsigned char *start = guard_blocks[--guard_count].start;
        size_t behind = GUARD_BYTES + guard_blocks[guard_count].size;
        ASAN_UNPOISON_MEMORY_REGION(start, behind + GUARD_BYTES);
        for (size_t i = 0; i < GUARD_BYTES; i++)
            if (start[i] != GUARD_MARK || start[behind + i] != GUARD_MARK) intact = 0;
        free(start);
    }
    return intact;
}

#endif
