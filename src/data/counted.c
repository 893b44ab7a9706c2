/* counted.c - each array follows a header that links it to the others. */
#include "counted.h"
#include <stdlib.h>
#include <string.h>

typedef struct dt_counted_block {
    struct dt_counted_block *next;
    size_t nbytes; /* of the array */
} block;

bool dt_counted_add(dt_counted *memory, void *pointer, int64_t n, size_t elem_size)
{
    block *b = n >= 0 && (uint64_t)n <= SIZE_MAX / 2 / elem_size ? calloc(1, sizeof *b + (size_t)n * elem_size) : NULL;
    if (!b) return false;
    *b = (block){memory->blocks, (size_t)n * elem_size};
    memory->blocks = b;
    memory->nbytes += b->nbytes;
    dt_ledger_add(memory->ledger, DT_MEM_DATA, DT_ON_HOST, b->nbytes);
    memcpy(pointer, &(void *){b + 1}, sizeof(void *));
    return true;
}

void dt_counted_free(dt_counted *memory, const void *array)
{
    block **at = &memory->blocks;
    while (*at && *at + 1 != array) at = &(*at)->next;
    if (!*at) return;
    block *b = *at;
    *at = b->next;
    memory->nbytes -= b->nbytes;
    dt_ledger_sub(memory->ledger, DT_MEM_DATA, DT_ON_HOST, b->nbytes);
    free(b);
}

void dt_counted_free_all(dt_counted *memory)
{
    while (memory->blocks) dt_counted_free(memory, memory->blocks + 1);
}
