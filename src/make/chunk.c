/* chunk.c - memory of chunks, which are reused. */
#include "chunk.h"
#include <stdlib.h>
#include <string.h>

enum { KEPT_NBYTES = 8 * DT_CHUNK_NBYTES }; /* limit for reused buffers; at worst a byte is a token, with a 4-byte id */

dt_err dt_chunk_add(dt_chunk *p, const char *text, size_t nbytes, dt_chunk_item item)
{
    DT_GROW(p->items, p->n_items, "out of memory for %d records", p->n_items + 1);
    item.first = p->text.n;
    item.nbytes = nbytes - item.n_binary;
    dt_text_reserve(&p->text, nbytes); /* an empty item has an address, too */
    dt_text_append(&p->text, text, nbytes);
    DT_CHECK(!p->text.failed, DT_ERR_MEMORY, "%s: out of memory for a document of %zu bytes", item.path, nbytes);
    p->items[p->n_items++] = item;
    return DT_OK;
}

dt_err dt_chunk_sample(dt_chunk *p, dt_sample **s)
{
    DT_GROW(p->samples, p->n_samples, "out of memory for %d records", p->n_samples + 1);
    *s = &p->samples[p->n_samples++];
    **s = (dt_sample){.weight = 1};
    return DT_OK;
}

static void empty(dt_text *t, size_t kept_nbytes)
{
    t->n = 0;
    if (t->failed || t->n_alloc > kept_nbytes) dt_text_free(t);
}

void dt_chunk_clear(dt_chunk *p)
{
    for (int i = 0; i < p->n_samples; i++) free(p->samples[i].problem);
    p->n_samples = p->n_items = 0;
    p->ignored = (dt_field_counts){0};
    p->err = DT_OK;
    empty(&p->text, KEPT_NBYTES);
    empty(&p->records, KEPT_NBYTES);
    empty(&p->pixels, 2 * DT_CHUNK_PIXELS);
    p->grids.n = 0;
    for (int s = 0; s < DT_N_SIDES; s++) {
        p->ids[s].n = 0;
        if (p->ids[s].n_alloc <= KEPT_NBYTES) continue;
        free(p->ids[s].id);
        free(p->mask[s]);
        p->ids[s] = (dt_ids){0};
        p->mask[s] = NULL;
    }
}

void dt_chunk_free(dt_chunk *p)
{
    dt_chunk_clear(p);
    free(p->items);
    free(p->samples);
    dt_text_free(&p->text);
    dt_text_free(&p->records);
    dt_text_free(&p->pixels);
    dt_text_free(&p->grids);
    for (int s = 0; s < DT_N_SIDES; s++) {
        free(p->ids[s].id);
        free(p->mask[s]);
    }
    *p = (dt_chunk){0};
}
