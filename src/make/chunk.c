/* chunk.c - memory of chunks, which are reused. */
#include "chunk.h"
#include <stdlib.h>
#include <string.h>

enum { KEPT_NBYTES = 8 * DT_CHUNK_NBYTES }; /* limit for reused buffers; at worst a byte is a token, with a 4-byte id */

dt_err dt_chunk_add(dt_chunk *p, const char *text, size_t nbytes, dt_chunk_item item)
{
    if (!p->text || nbytes > p->text_alloc - p->n_text) { /* allocate text even for an empty item */
        const size_t need = p->n_text + nbytes,
                     want = need > DT_CHUNK_NBYTES ? need + need / 4 : 2 * (size_t)DT_CHUNK_NBYTES;
        DT_RESIZE(p->text, want, "%s: out of memory for a document of %zu bytes", item.path, nbytes);
        p->text_alloc = want;
    }
    DT_GROW(p->items, p->n_items, "out of memory for %d records", p->n_items + 1);
    if (nbytes) memcpy(p->text + p->n_text, text, nbytes);
    item.first = p->n_text;
    item.nbytes = nbytes - item.n_binary;
    p->items[p->n_items++] = item;
    p->n_text += nbytes;
    return DT_OK;
}

dt_err dt_chunk_sample(dt_chunk *p, dt_sample **s)
{
    DT_GROW(p->samples, p->n_samples, "out of memory for %d records", p->n_samples + 1);
    *s = &p->samples[p->n_samples++];
    **s = (dt_sample){.weight = 1};
    return DT_OK;
}

dt_err dt_chunk_reserve_pixels(dt_chunk *p, size_t nbytes)
{
    const size_t need = p->n_pixels + nbytes;
    if (need <= p->pixels_alloc) return DT_OK;
    const size_t want = need > DT_CHUNK_PIXELS ? need + need / 4 : DT_CHUNK_PIXELS;
    DT_RESIZE(p->pixels, want, "out of memory for images of %zu bytes", nbytes);
    p->pixels_alloc = want;
    return DT_OK;
}

dt_err dt_chunk_add_record(dt_chunk *p, dt_sample *s, const char *json)
{
    const size_t n = strlen(json), need = p->n_records + n;
    if (need > p->records_alloc) {
        DT_RESIZE(p->records, 2 * need, "out of memory for a record of %zu bytes", n);
        p->records_alloc = 2 * need;
    }
    memcpy(p->records + p->n_records, json, n);
    p->n_records = need;
    s->n_record = n;
    return DT_OK;
}

void dt_chunk_clear(dt_chunk *p)
{
    for (int i = 0; i < p->n_samples; i++) free(p->samples[i].problem);
    p->n_samples = p->n_items = 0;
    p->n_text = p->n_records = p->n_pixels = 0;
    p->ignored.n = 0;
    p->ignored.n_others = p->ignored.n_calls = p->ignored.n_in_row = p->ignored.n_without_user = 0;
    p->err = DT_OK;
    if (p->text_alloc > KEPT_NBYTES) {
        free(p->text);
        p->text = NULL;
        p->text_alloc = 0;
    }
    if (p->records_alloc > KEPT_NBYTES) {
        free(p->records);
        p->records = NULL;
        p->records_alloc = 0;
    }
    if (p->pixels_alloc > 2 * DT_CHUNK_PIXELS) {
        free(p->pixels);
        p->pixels = NULL;
        p->pixels_alloc = 0;
    }
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
    free(p->text);
    free(p->items);
    free(p->samples);
    free(p->records);
    free(p->pixels);
    for (int s = 0; s < DT_N_SIDES; s++) {
        free(p->ids[s].id);
        free(p->mask[s]);
    }
    *p = (dt_chunk){0};
}
