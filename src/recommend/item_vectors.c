/* item_vectors.c - vectors of items as floats, one row per item in catalogue order. Norms are computed once. */
#include "dtrain/recommend/item_vectors.h"
#include "dtrain/io/io.h"
#include "dtrain/io/matrix_file.h"
#include "dtrain/recommend/sid.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct dt_item_vectors {
    const dt_catalogue *catalogue;
    int64_t width;
    double *norm; /* [n_items] */
    float *row;   /* [n_items, width] */
    dt_ledger *ledger;
    size_t nbytes, told; /* told: bytes reported to the ledger */
};

static bool ids_are_numbers(const dt_catalogue *c)
{
    int64_t number;
    for (int32_t i = 0; i < dt_catalogue_n_items(c); i++)
        if (!dt_sid_item_number(dt_catalogue_get(c, i).id, &number)) return false;
    return true;
}

static dt_err read_rows(dt_item_vectors *v, dt_matrix_file *rows, bool by_number)
{
    for (int32_t i = 0; i < dt_catalogue_n_items(v->catalogue); i++) {
        const dt_catalogue_item item = dt_catalogue_get(v->catalogue, i);
        int64_t at = i;
        if (by_number) dt_sid_item_number(item.id, &at);
        DT_CHECK(at < rows->n, DT_ERR_DATA,
                 "%s has no row for item %s (%s:%" PRId32
                 "): an item with a numeric id uses the row of that number, counted from 0, and there are %" PRId64
                 " rows",
                 rows->path, item.id, dt_catalogue_path(v->catalogue), item.line, rows->n);
        float *x = v->row + i * v->width;
        DT_TRY(dt_matrix_file_read(rows, at, 1, x));
        double sum = 0;
        for (int64_t k = 0; k < v->width; k++) sum += (double)x[k] * x[k];
        v->norm[i] = sqrt(sum);
        DT_CHECK(sum > 0, DT_ERR_DATA,
                 "%s: row %" PRId64 ", of item %s: expected a non-zero embedding, found only zeros", rows->path, at,
                 item.id);
    }
    return DT_OK;
}

static dt_err take(dt_item_vectors *v, dt_matrix_file *rows, bool describe)
{
    const int32_t n = dt_catalogue_n_items(v->catalogue);
    const bool by_number = ids_are_numbers(v->catalogue);
    DT_CHECK(by_number || rows->n == n, DT_ERR_DATA,
             "%s: expected %" PRId32
             " rows, one per item of %s in its order because not all ids are numbers, found %" PRId64,
             rows->path, n, dt_catalogue_path(v->catalogue), rows->n);
    v->width = rows->width;
    const size_t numbers = (size_t)n * (size_t)v->width;
    v->nbytes = (size_t)n * sizeof *v->norm + numbers * sizeof *v->row;
    if (describe) return DT_OK;
    v->norm = malloc(v->nbytes);
    DT_CHECK(v->norm, DT_ERR_MEMORY, "%s: out of memory for %zu bytes of embeddings", rows->path, v->nbytes);
    v->row = (float *)(v->norm + n);
    dt_ledger_add(v->ledger, DT_MEM_DATA, DT_ON_HOST, v->told = v->nbytes);
    return read_rows(v, rows, by_number);
}

dt_err dt_item_vectors_open(dt_item_vectors **out, const dt_catalogue *c, const char *path, const char *array,
                            bool describe, dt_ledger *ledger)
{
    dt_matrix_file rows = {0};
    dt_item_vectors *v = calloc(1, sizeof *v);
    *out = NULL;
    DT_CHECK(v, DT_ERR_MEMORY, "%s: out of memory for embeddings", path);
    v->catalogue = c, v->ledger = ledger;
    dt_err err = dt_matrix_file_open(&rows, path, *array ? array : NULL);
    if (err == DT_OK) err = take(v, &rows, describe);
    dt_matrix_file_close(&rows);
    if (err == DT_OK)
        *out = v;
    else
        dt_item_vectors_close(v);
    return err;
}

void dt_item_vectors_close(dt_item_vectors *v)
{
    if (!v) return;
    dt_ledger_sub(v->ledger, DT_MEM_DATA, DT_ON_HOST, v->told);
    free(v->norm);
    free(v);
}

uint64_t dt_item_vectors_fingerprint(const dt_item_vectors *v)
{
    return dt_checksum(v->row, 0, dt_catalogue_n_items(v->catalogue) * v->width, sizeof *v->row);
}

size_t dt_item_vectors_nbytes(const dt_item_vectors *v) { return v ? v->nbytes : 0; }
const dt_catalogue *dt_item_vectors_catalogue(const dt_item_vectors *v) { return v->catalogue; }

double dt_item_cosine(const dt_item_vectors *v, int32_t x, int32_t y)
{
    const float *a = v->row + x * v->width, *b = v->row + y * v->width;
    double dot = 0;
    for (int64_t k = 0; k < v->width; k++) dot += (double)a[k] * b[k];
    return dot / (v->norm[x] * v->norm[y]);
}
