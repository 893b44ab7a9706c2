/* load_rows.c - codes and scales from a file of floats: whole rows, as many at a time as the chunks take, of which this
 * rank keeps what it has a part of. Codes and scales are two slots, each of which reads the rows: nothing has to be
 * kept from one to the other. */
#include "load.h"
#include "dtrain/device.h"
#include <inttypes.h>
#include <math.h>

/* Rows of a weight. Row o of the codes is row o of the file, or its column (turned). */
typedef struct rows {
    const dt_stored_slot *of; /* codes, or scales */
    dt_stored_slot plain;     /* as it is in the file */
    const dt_tensor *codes;
    int64_t n_out, n_in; /* of the codes */
    bool turned;
    int64_t first, n;
} rows;

/* Where the parts of a chunk are: rows have ROWS_ELEMS elements together, at most. */
enum {
    ROWS_ELEMS = DT_STORED_BUFFER / 16,
    AT_SCALES = ROWS_ELEMS,       /* bytes behind the codes: floats */
    AT_ROW = DT_STORED_BUFFER / 2 /* a row of floats */
};

static rows rows_of(const dt_stored_slot *s, dt_tensor *tensor)
{
    rows r = {.of = s, .plain = dt_stored_plain(s, tensor)};
    r.codes = s->tensor->part == DT_CODES ? s->tensor : &s->unit->tensors[s->tensor->pair];
    r.n_out = r.codes->shape[0], r.n_in = r.codes->shape[1];
    r.turned = r.codes->turned;
    return r;
}

static bool are_codes(const rows *r) { return r->of->tensor == r->codes; }

/* Of elements first .. as they stand in the file, the rows or (turned) element i of each, those that this rank is in
 * charge of: with codes as of any tensor, with scales whole rows. */
static uint64_t checksum_of(const rows *r, const char *elems, int64_t first, int64_t i, size_t size)
{
    const int64_t each = are_codes(r) ? 1 : r->n_in;
    const dt_piece charge = {.first = r->of->piece->first * each, .n = r->of->piece->n * each};
    if (!r->turned || charge.n == 0) return load_checksum(&charge, elems, first, r->n * r->n_in, size);
    const int64_t lo = dt_max_i64(r->first, (charge.first - i + r->n_in - 1) / r->n_in),
                  hi = dt_min_i64(r->first + r->n, (charge.first + charge.n - i + r->n_in - 1) / r->n_in);
    return lo < hi ? dt_checksum(elems + (size_t)(lo - r->first) * size, first + lo - r->first, hi - lo, size) : 0;
}

/* converted = the rows as floats, as they lie in the file: [n, n_in], or turned [n_in, n]. */
static dt_err fetch_rows(load_job *j, int slot, const rows *r)
{
    const dt_stored_location *p = &j->map.locations[slot];
    const size_t size = dt_st_type_size((dt_st_type)p->type);
    const int64_t n_runs = r->turned ? r->n_in : 1, len = r->turned ? r->n : r->n * r->n_in;
    for (int64_t i = 0; i < n_runs; i++) {
        const int64_t first = r->turned ? i * r->n_out + r->first : r->first * r->n_in;
        char *to = j->chunks->raw + (size_t)(i * len) * size;
        DT_TRY(load_fetch(j, &r->plain, p, first, len, to));
        if (p->has_checksum || r->of->of->base) j->sums[slot] += checksum_of(r, to, first, i, size);
    }
    dt_st_convert(j->chunks->raw, (dt_st_type)p->type, j->chunks->converted, DT_ST_F32, n_runs * len);
    return DT_OK;
}

/* Row k of those that were fetched, one number after the other. */
static const float *row_of(const load_job *j, const rows *r, int64_t k)
{
    const float *all = (const float *)(const void *)j->chunks->converted;
    float *row = (float *)(void *)(j->chunks->raw + AT_ROW);
    if (!r->turned) return all + k * r->n_in;
    for (int64_t i = 0; i < r->n_in; i++) row[i] = all[i * r->n + k];
    return row;
}

/* raw = their codes and their scales. */
static dt_err quantise(const load_job *j, const rows *r)
{
    int8_t *codes = (int8_t *)j->chunks->raw;
    float *scales = (float *)(void *)(j->chunks->raw + AT_SCALES);
    for (int64_t k = 0; k < r->n; k++) {
        dt_quantise_row(row_of(j, r, k), r->n_in, codes + k * r->n_in, &scales[k]);
        DT_CHECK(isfinite(scales[k]), DT_ERR_DATA,
                 "%s: tensor `%s`: row %" PRId64 " has numbers that are not finite, and no scale as int8", j->path,
                 r->codes->name, r->first + k);
    }
    return DT_OK;
}

/* What this rank has of them into the state. width: elements of a row. */
static dt_err keep(const load_job *j, const rows *r, int64_t width)
{
    const dt_stored_slot *s = r->of;
    const int64_t at = r->first * width, lo = dt_max_i64(at, s->owned->first),
                  hi = dt_min_i64(at + r->n * width, s->owned->first + s->owned->n);
    const char *from =
        are_codes(r) ? j->chunks->raw + (lo - at) : j->chunks->raw + AT_SCALES + (lo - at) * (int64_t)sizeof(float);
    return dt_zero_state_write(s->of->zero, s->state, s->owned, lo - s->owned->first, hi - lo, from);
}

dt_err load_quantised(load_job *j, int i)
{
    const dt_stored_slot *s = &j->slots[i];
    dt_tensor tensor;
    rows r = rows_of(s, &tensor);
    const int64_t width = are_codes(&r) ? r.n_in : 1, most = ROWS_ELEMS / r.n_in,
                  end = (s->owned->first + s->owned->n + width - 1) / width;
    DT_CHECK(most > 0, DT_ERR_DATA, "%s: tensor `%s`: rows of %" PRId64 " numbers are too long to be stored as int8",
             j->path, r.codes->name, r.n_in);
    for (r.first = s->owned->first / width; r.first < end; r.first += r.n) {
        r.n = dt_min_i64(most, end - r.first);
        DT_TRY(dt_phase_poll(j->phase));
        DT_TRY(fetch_rows(j, i, &r));
        DT_TRY(quantise(j, &r));
        DT_TRY(keep(j, &r, width));
    }
    return DT_OK;
}
