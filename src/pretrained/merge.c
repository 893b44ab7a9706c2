/* merge.c - computes W + s B A when a model is written; the model in memory is unchanged.
 *
 * A weight's adapter is found by its name, and sharded like the weights of its unit. Its two matrices are small and are
 * gathered for one weight at a time. A weight that is stored [in, out], such as a lookup table, uses the transpose A^T
 * B^T. */
#include "merge.h"
#include "dtrain/adapter/adapter.h"
#include "dtrain/device/nf4.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const merge_part *)a)->name, ((const merge_part *)b)->name);
}

dt_err merge_open(merge_delta *d, dt_zero *z)
{
    const dt_slice *slices = dt_zero_slices(z);
    const int n = dt_zero_n_slices(z);
    *d = (merge_delta){.z = z, .parts = malloc(((size_t)n + 1) * sizeof *d->parts)};
    DT_CHECK(d->parts, DT_ERR_MEMORY, "out of memory for a list of %d tensors", n);
    for (int i = 0; i < n; i++) {
        const dt_tensor *t = dt_zero_tensor(z, &slices[i]);
        if (t->adapter_scale != 0) d->parts[d->n_parts++] = (merge_part){t->name, &slices[i]};
    }
    qsort(d->parts, (size_t)d->n_parts, sizeof *d->parts, by_name);
    return DT_OK;
}

/* The slice of MODULE.part of an adapter; NULL: none. */
static const dt_slice *find_part(const merge_delta *d, const char *module, size_t len, const char *part)
{
    char name[2 * DT_NAME_MAX];
    const merge_part key = {.name = name};
    snprintf(name, sizeof name, "%.*s.%s", (int)len, module, part);
    const merge_part *found = bsearch(&key, d->parts, (size_t)d->n_parts, sizeof key, by_name);
    return found ? found->slice : NULL;
}

/* The same, given the name MODULE.weight. */
static const dt_slice *find_slice(const merge_delta *d, const char *weight, const char *part)
{
    const char *dot = strrchr(weight, '.');
    return dot && strcmp(dot, ".weight") == 0 ? find_part(d, weight, (size_t)(dot - weight), part) : NULL;
}

const dt_slice *merge_magnitude(const merge_delta *d, const char *weight)
{
    return find_slice(d, weight, DT_LORA_MAGNITUDE);
}

/* The slice of blocks or scales of codes, given its index in the unit; NULL: none. */
static const dt_slice *with_codes(const dt_stored_slot *s, int tensor)
{
    return s->tensor->part == DT_CODES && tensor >= 0 ? s->slice + (tensor - s->tensor->coded.codes) : NULL;
}

/* A weight's adapter; a NULL: none. turned: rows of the weight are inputs. */
typedef struct adapter_of {
    const dt_slice *a, *b;
    bool turned;
} adapter_of;

/* The tensors MODULE.part_a and MODULE.part_b; {0}: the module has no such adapter. */
static adapter_of find_pair(const merge_delta *d, const char *module, size_t len, const char *part_a,
                            const char *part_b, bool turned)
{
    const adapter_of found = {find_part(d, module, len, part_a), find_part(d, module, len, part_b), turned};
    return found.a && found.b ? found : (adapter_of){0};
}

static adapter_of find_adapter(const merge_delta *d, const dt_tensor *t, const char *weight, bool in_first)
{
    static const char a[] = "lora_A.weight", b[] = "lora_B.weight";
    if (t->of_expert && t->fused.name) {
        const dt_tensor all = dt_tensor_fused(t);
        return find_pair(d, all.name, strlen(all.name), a, b, in_first);
    }
    if (t->site == DT_SITE_PARAMETER) return find_pair(d, weight, strlen(weight), a, b, in_first);
    if (!dt_has_ending(weight, ".weight")) return (adapter_of){0};
    const size_t len = strlen(weight) - strlen(".weight");
    const adapter_of found = find_pair(d, weight, len, a, b, in_first);
    return found.a ? found : find_pair(d, weight, len, "lora_embedding_A", "lora_embedding_B", true);
}

bool merge_has(const merge_delta *d, const dt_stored_slot *s, const char *weight)
{
    return s->tensor->part == DT_CODES || find_adapter(d, s->tensor, weight, false).a;
}

bool merge_of_layer(const merge_delta *d, const dt_stored_slot *s, const dt_slice **a, const dt_slice **b)
{
    *a = find_slice(d, s->tensor->name, "lora_A.weight"), *b = find_slice(d, s->tensor->name, "lora_B.weight");
    return *a && *b && s->tensor->part < DT_CODES && !s->tensor->of_expert;
}

/* ---- matrices gathered on every rank ----------------------------------------------------------------------------- */

/* Size rounded up to words of 8 bytes. */
static size_t whole_nbytes(const dt_tensor *t)
{
    const size_t size = t->part == DT_BLOCKS ? 1 : sizeof(float);
    return ((size_t)t->n_elems * size + 7) / 8 * 8;
}

/* Copy this rank's part of a matrix to its position in the whole. */
static dt_err read_own(dt_zero *z, const dt_slice *p, void *to)
{
    const dt_dtype kept = dt_zero_state_dtype(z, DT_STATE_PARAM, p);
    float *whole = to;
    if (p->n == 0) return DT_OK;
    if (kept == DT_U8) return dt_zero_state_read(z, DT_STATE_PARAM, p, 0, p->n, (char *)to + p->first);
    if (kept == DT_F32) return dt_zero_state_read(z, DT_STATE_PARAM, p, 0, p->n, whole + p->first);
    void *raw = malloc((size_t)p->n * dt_st_type_size(dt_st_type_of(kept)));
    DT_CHECK(raw, DT_ERR_MEMORY, "out of memory for an adapter");
    const dt_err err = dt_zero_state_read(z, DT_STATE_PARAM, p, 0, p->n, raw);
    if (err == DT_OK) dt_st_convert(raw, dt_st_type_of(kept), whole + p->first, DT_ST_F32, p->n);
    free(raw);
    return err;
}

static void transpose(const float *from, int64_t rows, int64_t cols, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * rows + i] = from[i * cols + j];
}

dt_err merge_turn(float **matrix, const dt_tensor *t)
{
    float *turned = malloc(whole_nbytes(t));
    DT_CHECK(turned, DT_ERR_MEMORY, "out of memory for the transpose of `%s`", t->name);
    transpose(*matrix, t->shape[0], t->shape[1], turned);
    free(*matrix);
    *matrix = turned;
    return DT_OK;
}

/* Allocate the whole matrix and read this rank's slice into it. */
static dt_err fetch(void **whole, dt_zero *z, const dt_slice *p)
{
    if (!p) return DT_OK;
    *whole = calloc(1, whole_nbytes(dt_zero_tensor(z, p)));
    DT_CHECK(*whole, DT_ERR_MEMORY, "out of memory for an adapter, or for scales");
    return read_own(z, p, *whole);
}

static dt_err arrange(merge_delta *d, const dt_tensor *a, const dt_tensor *b, bool turned)
{
    d->rank = a->shape[0], d->scale = d->subtracts ? -a->adapter_scale : a->adapter_scale, d->turned = turned;
    d->cols = turned ? b->shape[0] : a->shape[1];
    if (!turned) return DT_OK;
    float *const of_a = d->right;
    d->right = d->left, d->left = of_a;
    DT_TRY(merge_turn(&d->left, a));
    return merge_turn(&d->right, b);
}

dt_err merge_join(dt_comm *comm, dt_zero *z, const dt_slice *p, dt_err own, float **whole)
{
    void *all = NULL;
    if (own == DT_OK) own = fetch(&all, z, p);
    *whole = all;
    DT_TRY(dt_comm_agree(comm, own));
    return dt_comm_join_host(dt_comm_all(comm), all, whole_nbytes(dt_zero_tensor(z, p)));
}

/* The part of one expert's matrix t of the adapter of all experts, from d->whole_a and d->whole_b. */
static dt_err take_expert(merge_delta *d, const dt_tensor *t, const dt_tensor *a, const dt_tensor *b, bool turned)
{
    const int64_t E = a->adapter_experts, r = b->shape[1], n_in = a->shape[1], n_out = b->shape[0] / E,
                  e = t->fused.first / (n_in * n_out), row = t->fused.first % (n_in * n_out) / n_in,
                  rows = dt_n_weights(t) / n_in;
    const float *of_a = d->whole_a + e * r * n_in, *of_b = d->whole_b + (e * n_out + row) * r;
    d->rank = r, d->scale = a->adapter_scale, d->cols = turned ? rows : n_in;
    d->left = malloc((size_t)((turned ? n_in : rows) * r) * sizeof(float));
    d->right = malloc((size_t)((turned ? rows : n_in) * r) * sizeof(float));
    DT_CHECK(d->left && d->right, DT_ERR_MEMORY, "out of memory for an adapter");
    if (turned) {
        transpose(of_a, r, n_in, d->left);
        transpose(of_b, rows, r, d->right);
    } else {
        memcpy(d->left, of_b, (size_t)(rows * r) * sizeof(float));
        memcpy(d->right, of_a, (size_t)(r * n_in) * sizeof(float));
    }
    return DT_OK;
}

/* Collective, agreed. */
static dt_err gather_expert(merge_delta *d, dt_comm *comm, const dt_tensor *t, adapter_of found)
{
    dt_zero *z = d->z;
    if (d->whole_of != found.a) {
        free(d->whole_a), free(d->whole_b);
        d->whole_of = NULL, d->whole_a = d->whole_b = NULL;
        DT_TRY(merge_join(comm, z, found.a, DT_OK, &d->whole_a));
        DT_TRY(merge_join(comm, z, found.b, DT_OK, &d->whole_b));
        d->whole_of = found.a;
    }
    return dt_comm_agree(comm, take_expert(d, t, dt_zero_tensor(z, found.a), dt_zero_tensor(z, found.b), found.turned));
}

/* The magnitudes divided by the lengths. Collective, agreed. */
static dt_err gather_factors(merge_delta *d, dt_comm *comm, const dt_stored_slot *s, const dt_slice *magnitude)
{
    float *length, *whole;
    DT_TRY(merge_lengths(d, comm, s, DT_OK, &length));
    const dt_err err = merge_join(comm, d->z, magnitude, DT_OK, &whole);
    for (int64_t j = 0; err == DT_OK && j < dt_zero_tensor(d->z, magnitude)->n_elems; j++)
        whole[j] /= length[j] > 0 ? length[j] : 1;
    free(length);
    if (err == DT_OK) d->factor = whole;
    return err;
}

dt_err merge_gather(merge_delta *d, dt_comm *comm, const dt_stored_slot *s, const char *weight, dt_err own)
{
    const dt_slice *magnitude = merge_magnitude(d, weight);
    DT_TRY(merge_gather_update(d, comm, s, weight, own));
    return magnitude ? gather_factors(d, comm, s, magnitude) : DT_OK;
}

dt_err merge_gather_update(merge_delta *d, dt_comm *comm, const dt_stored_slot *s, const char *weight, dt_err own)
{
    dt_zero *z = d->z;
    const dt_coded *c = &s->tensor->coded;
    const adapter_of found = find_adapter(d, s->tensor, weight, s->tensor->in_first);
    const bool of_experts = found.a && dt_zero_tensor(z, found.a)->adapter_experts > 0;
    const dt_slice *a = of_experts ? NULL : found.a, *b = of_experts ? NULL : found.b;
    const dt_slice *const slices[4] = {a, b, with_codes(s, c->blocks), with_codes(s, c->scales)};
    void *whole[4] = {NULL};
    d->cols = s->tensor->part == DT_CODES ? c->n_in : s->tensor->shape[1];
    for (int k = 0; k < 4 && own == DT_OK; k++) own = fetch(&whole[k], z, slices[k]);
    d->right = whole[0], d->left = whole[1], d->blocks = whole[2], d->scales = whole[3];
    DT_TRY(dt_comm_agree(comm, own));
    for (int k = 0; k < 4; k++)
        if (slices[k])
            DT_TRY(dt_comm_join_host(dt_comm_all(comm), whole[k], whole_nbytes(dt_zero_tensor(z, slices[k]))));
    if (of_experts) return gather_expert(d, comm, s->tensor, found);
    return a ? dt_comm_agree(comm, arrange(d, dt_zero_tensor(z, a), dt_zero_tensor(z, b), found.turned)) : DT_OK;
}

void merge_free(merge_delta *d)
{
    free(d->left);
    free(d->right);
    free(d->factor);
    free(d->blocks);
    free(d->scales);
    d->left = d->right = d->scales = d->factor = NULL;
    d->blocks = NULL;
    d->rank = d->cols = 0;
}

void merge_close(merge_delta *d)
{
    merge_free(d);
    free(d->whole_a);
    free(d->whole_b);
    free(d->parts);
    *d = (merge_delta){0};
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

void merge_codes(const merge_delta *d, const dt_tensor *t, const void *codes, int64_t first, int64_t n, float *w)
{
    const int8_t *q = codes;
    if (t->coded.type == DT_NF4X2) {
        dt_dequantise_nf4(codes, d->blocks, d->scales, t->coded.finer, first, n, w);
        return;
    }
    for (int64_t i = 0; i < n; i++) w[i] = (float)q[i] * d->scales[(first + i) / d->cols];
}

/* w[j] += scale sum over k of left[k] right[k, j], j from begin to end of a row. */
static void add_to_row(const merge_delta *d, const float *left, int64_t begin, int64_t end, float *w)
{
    enum { STRIP = 256 };
    float sum[STRIP];
    for (int64_t at = begin; at < end; at += STRIP) {
        const int64_t n = dt_min_i64(STRIP, end - at);
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < d->rank; k++)
            for (int64_t j = 0; j < n; j++) sum[j] += left[k] * d->right[k * d->cols + at + j];
        for (int64_t j = 0; j < n; j++) w[at - begin + j] += d->scale * sum[j];
    }
}

dt_err merge_add(const merge_delta *d, const dt_tensor *t, int64_t first, int64_t n, float *w)
{
    for (int64_t at = first, end; at < first + n; at = end) {
        const int64_t row = at / d->cols, begin = at - row * d->cols;
        end = dt_min_i64((row + 1) * d->cols, first + n);
        add_to_row(d, d->left + row * d->rank, begin, begin + (end - at), w + (at - first));
        for (int64_t i = at; i < end && d->factor; i++) w[i - first] *= d->factor[d->turned ? i % d->cols : row];
    }
    for (int64_t i = 0; i < n; i++)
        DT_CHECK(isfinite(w[i]), DT_ERR_DATA, "tensor `%s`: merging its adapter produces non-finite values", t->name);
    return DT_OK;
}

/* ---- lengths of rows ------------------------------------------------------------------------------------------ */

/* Visits the elements of the updated weight that this rank is in charge of. */
typedef void visit(void *self, int64_t output, float w);

static dt_err visit_own(const merge_delta *d, const dt_stored_slot *s, visit *see, void *self)
{
    enum { CHUNK = 1 << 13 };
    float w[2 * CHUNK], kept[CHUNK];
    const dt_tensor *t = s->tensor;
    dt_zero *z = s->of->zero;
    const dt_dtype type = dt_zero_state_dtype(z, DT_STATE_PARAM, s->slice);
    const int64_t each = dt_weights_per_elem(t);
    for (int64_t at = 0; at < s->slice->n; at += CHUNK) {
        const int64_t n = dt_min_i64(CHUNK, s->slice->n - at), first = (s->slice->first + at) * each,
                      n_w = dt_min_i64(n * each, dt_n_weights(t) - first);
        DT_TRY(dt_zero_state_read(z, DT_STATE_PARAM, s->slice, at, n, kept));
        if (t->part == DT_CODES)
            merge_codes(d, t, kept, first, n_w, w);
        else
            dt_st_convert(kept, dt_st_type_of(type), w, DT_ST_F32, n);
        DT_TRY(merge_add(d, t, first, n_w, w));
        for (int64_t i = 0; i < n_w; i++) see(self, d->turned ? (first + i) % d->cols : (first + i) / d->cols, w[i]);
    }
    return DT_OK;
}

/* Sums of squares are integers, whose sum does not depend on the order: each square is rounded to a multiple of
 * 2^-shift, 2^-40 of the row's largest. */
typedef struct squares {
    double *most;
    int64_t *sum, *shift;
} squares;

static void see_largest(void *self, int64_t output, float w)
{
    double *most = &((squares *)self)->most[output];
    if (fabs((double)w) > *most) *most = fabs((double)w);
}

static void see_square(void *self, int64_t output, float w)
{
    const squares *q = self;
    q->sum[output] += llrint(ldexp((double)w * (double)w, (int)q->shift[output]));
}

dt_err merge_lengths(const merge_delta *d, dt_comm *comm, const dt_stored_slot *s, dt_err own, float **length)
{
    const int64_t n = d->turned ? d->cols : dt_n_weights(s->tensor) / d->cols;
    squares q = {calloc((size_t)n, sizeof *q.most), calloc((size_t)n, sizeof *q.sum),
                 calloc((size_t)n, sizeof *q.shift)};
    *length = malloc((size_t)n * sizeof **length);
    if (own == DT_OK && !(q.most && q.sum && q.shift && *length))
        own = dt_fail(DT_ERR_MEMORY, "out of memory for the lengths of %" PRId64 " rows", n);
    if (own == DT_OK) own = visit_own(d, s, see_largest, &q);
    dt_err err = dt_comm_agree(comm, own);
    if (err == DT_OK) err = dt_comm_reduce_host_f64(dt_comm_all(comm), q.most, (int)n, DT_MAX);
    for (int64_t j = 0; j < n && err == DT_OK; j++) q.shift[j] = 40 - 2 * (q.most[j] > 0 ? ilogb(q.most[j]) : 0);
    if (err == DT_OK) err = dt_comm_agree(comm, visit_own(d, s, see_square, &q));
    if (err == DT_OK) err = dt_comm_reduce_host_i64(dt_comm_all(comm), q.sum, (int)n, DT_SUM);
    for (int64_t j = 0; j < n && err == DT_OK; j++)
        (*length)[j] = (float)sqrt(ldexp((double)q.sum[j], -(int)q.shift[j]));
    free(q.most), free(q.sum), free(q.shift);
    if (err != DT_OK) free(*length), *length = NULL;
    return err;
}

/* ---- merging into a model -------------------------------------------------------------------------------------- */

/* Merge into the elements of a weight that this rank owns. */
static dt_err add_to_own(dt_zero *z, const dt_stored_slot *s, const merge_delta *d)
{
    enum { CHUNK = 1 << 14 };
    float sum[CHUNK], kept[CHUNK];
    const dt_slice *p = s->owned;
    const dt_st_type type = dt_st_type_of(dt_zero_state_dtype(z, DT_STATE_PARAM, p));
    for (int64_t at = 0; at < p->n; at += CHUNK) {
        const int64_t n = dt_min_i64(CHUNK, p->n - at);
        DT_TRY(dt_zero_state_read(z, DT_STATE_PARAM, p, at, n, kept));
        dt_st_convert(kept, type, sum, DT_ST_F32, n);
        DT_TRY(merge_add(d, s->tensor, p->first + at, n, sum));
        dt_st_convert(sum, DT_ST_F32, kept, type, n);
        DT_TRY(dt_zero_state_write(z, DT_STATE_PARAM, p, at, n, kept));
    }
    return DT_OK;
}

static dt_err add_to_slot(merge_delta *d, dt_comm *comm, const dt_stored_slot *s)
{
    if (!merge_has(d, s, s->tensor->name)) return DT_OK;
    DT_TRY(merge_gather(d, comm, s, s->tensor->name, DT_OK));
    return dt_comm_agree(comm, add_to_own(s->of->zero, s, d));
}

dt_err merge_each(dt_comm *comm, dt_zero *z, dt_zero *adapters, merge_use *use)
{
    const dt_saved_model of = {.zero = z};
    dt_stored_slot *slots = NULL;
    int n = 0;
    merge_delta d = {0};
    dt_err err = dt_stored_slots(&of, 1, &slots, &n);
    if (err == DT_OK) err = merge_open(&d, adapters);
    err = dt_comm_agree(comm, err);
    for (int i = 0; i < n && err == DT_OK; i++) {
        err = use(&d, comm, &slots[i]);
        merge_free(&d);
    }
    merge_close(&d);
    free(slots);
    return err == DT_OK ? dt_comm_agree(comm, dt_zero_state_written(z)) : err;
}

dt_err merge_into(dt_comm *comm, dt_zero *z, dt_zero *adapters) { return merge_each(comm, z, adapters, add_to_slot); }
