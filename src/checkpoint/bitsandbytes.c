/* bitsandbytes.c - locate the matrices of a model that transformers has saved in the forms of bitsandbytes.
 *
 * A matrix W of n weights in 4 bits (nf4.h) has these tensors:
 *
 *     W                    codes, two to a byte, of any type and shape
 *     W.quant_state.bitsandbytes__nf4 (or __fp4)   JSON: type, shape, block sizes, and the mean
 *     W.quant_map          [16] the levels
 *     W.absmax             [blocks] scales; with double quantisation U8, with
 *     W.nested_absmax      [groups] and
 *     W.nested_quant_map   [256]
 *
 * In 8 bits (LLM.int8) it is I8 [out, in], with SCB [out], the maxima of its rows, and weight_format, which is 0.
 * Conv1D's matrices are transposed: codes have the order [out, in]. */
#include "dtrain/device/nf4.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include "locate.h"
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { MAX_STATE = 1 << 16 /* bytes */, MAX_BLOCK = 1 << 20 };

static const char *const STATES[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
static const char *const ENDINGS[] = {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"};

/* The tensor NAME, without its last `cut` characters, followed by an ending; NULL: none. */
static const dt_st_tensor *relative(const dt_safetensors *s, const char *name, size_t cut, const char *ending)
{
    char other[2 * DT_NAME_MAX];
    const size_t len = strlen(name);
    if (len < cut) return NULL;
    snprintf(other, sizeof other, "%.*s%s", (int)(len - cut), name, ending);
    return dt_safetensors_find(s, other);
}

static const dt_st_tensor *state_of(const dt_safetensors *s, const char *name, size_t cut)
{
    const dt_st_tensor *nf4 = relative(s, name, cut, STATES[0]);
    return nf4 ? nf4 : relative(s, name, cut, STATES[1]);
}

static const dt_st_tensor *maxima_of(const dt_safetensors *s, const dt_st_tensor *t)
{
    const size_t weight = sizeof "weight" - 1;
    return strcmp(t->dtype, "I8") == 0 && dt_has_ending(t->name, ".weight") ? relative(s, t->name, weight, "SCB")
                                                                            : NULL;
}

bool dt_stored_is_bitsandbytes(const dt_safetensors *s, const char *name)
{
    const dt_st_tensor *t = dt_safetensors_find(s, name);
    if (state_of(s, name, 0) || (t && maxima_of(s, t)) || strstr(name, STATES[0]) || strstr(name, STATES[1]))
        return true;
    for (size_t i = 0; i < sizeof ENDINGS / sizeof ENDINGS[0]; i++)
        if (dt_has_ending(name, ENDINGS[i]) && state_of(s, name, strlen(ENDINGS[i]))) return true;
    return dt_has_ending(name, ".SCB") || dt_has_ending(name, ".weight_format");
}

/* ---- 4 bits ------------------------------------------------------------------------------------------------------ */

/* The JSON of a matrix. */
typedef struct state {
    int64_t block, group, shape[2];
    double mean;
    const char *type, *dtype;
    bool nested;
} state;

static dt_err read_bytes(const locate_job *job, const dt_st_tensor *t, void *out, size_t nbytes)
{
    const char *path = job->s.files[t->file];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_DATA, path, "cannot be opened");
    const dt_err err = dt_read_at(fd, path, t->offset, out, nbytes);
    close(fd);
    return err;
}

static dt_err read_state(const dt_spec *root, state *s)
{
    dt_spec shape;
    *s = (state){.nested = dt_spec_has(root, "nested_blocksize") || dt_spec_has(root, "nested_offset")};
    DT_TRY(dt_spec_need_string(root, "quant_type", &s->type));
    DT_TRY(dt_spec_need_string(root, "dtype", &s->dtype));
    DT_TRY(dt_spec_int(root, "blocksize", 1, MAX_BLOCK, &s->block));
    if (s->block == 0) return dt_spec_bad(root, "blocksize", "a size of blocks");
    DT_TRY(dt_spec_need(root, "shape", JSON_ARRAY, &shape));
    for (size_t d = 0; d < 2; d++) s->shape[d] = json_integer_value(json_array_get(shape.value, d));
    if (json_array_size(shape.value) != 2) return dt_spec_bad(&shape, NULL, "the shape of a matrix");
    if (!s->nested) return DT_OK;
    DT_TRY(dt_spec_int(root, "nested_blocksize", 1, MAX_BLOCK, &s->group));
    if (s->group == 0) return dt_spec_bad(root, "nested_blocksize", "a size of groups");
    if (!dt_spec_has(root, "nested_offset")) return dt_spec_bad(root, "nested_offset", "a number");
    return dt_spec_real(root, "nested_offset", -FLT_MAX, FLT_MAX, &s->mean);
}

static dt_err check_state(const dt_spec *root, const dt_st_tensor *t, const state *s, dt_stored_location *location)
{
    static const char *const NAMES[] = {"float32", "float16", "bfloat16"};
    static const dt_st_type TYPES[] = {DT_ST_F32, DT_ST_F16, DT_ST_BF16};
    location->type = DT_ST_OTHER;
    for (int i = 0; i < 3; i++)
        if (strcmp(s->dtype, NAMES[i]) == 0) location->type = (int32_t)TYPES[i];
    if (location->type == DT_ST_OTHER) return dt_spec_bad(root, "dtype", "float32, float16 or bfloat16");
    const char *form = t->name + strlen(t->name) - 3; /* the state's tensor ends with it */
    return strcmp(s->type, form) == 0 ? DT_OK : dt_spec_bad(root, "quant_type", form);
}

/* Read and check the state of a matrix. */
static dt_err take_state(const locate_job *job, const dt_st_tensor *t, state *s, dt_stored_location *location)
{
    static char text[MAX_STATE]; /* rank 0 alone locates tensors, one at a time */
    char name[PATH_MAX + 2 * DT_NAME_MAX];
    json_t *root = NULL;
    snprintf(name, sizeof name, "%s: tensor `%.200s`", job->s.files[t->file], t->name);
    DT_CHECK(t->nbytes <= MAX_STATE && strcmp(t->dtype, "U8") == 0, DT_ERR_DATA,
             "%s: expected at most %d bytes of JSON, found %lld values of type %s", name, (int)MAX_STATE,
             (long long)t->n_elems, t->dtype);
    DT_TRY(read_bytes(job, t, text, (size_t)t->nbytes));
    DT_TRY(dt_json_parse(&root, name, text, (size_t)t->nbytes, 0));
    const dt_spec spec = {.file = name, .value = root};
    dt_err err = read_state(&spec, s);
    if (err == DT_OK) err = check_state(&spec, t, s, location);
    json_decref(root);
    return err;
}

/* Find the tensor NAME.ENDING of n values of this type. */
static dt_err need(locate_job *job, const dt_st_tensor *codes, const char *ending, int64_t n, const char *type,
                   const dt_st_tensor **out)
{
    const dt_st_tensor *t = relative(&job->s, codes->name, 0, ending);
    *out = t;
    DT_CHECK(t, DT_ERR_DATA, "%s: tensor `%.200s%s` is missing: bitsandbytes' data of the matrix",
             job->s.files[codes->file], codes->name, ending);
    DT_CHECK(strcmp(t->dtype, type) == 0, DT_ERR_DATA, "%s: tensor `%.200s`: expected %s, found %s",
             job->s.files[t->file], t->name, type, t->dtype);
    job->used[t - job->s.tensors] = true;
    return locate_check_shape(job, t, 1, &n);
}

static dt_err need_values(locate_job *job, const dt_st_tensor *codes, const char *ending, const dt_st_tensor **t,
                          float *values, int n)
{
    DT_TRY(need(job, codes, ending, n, "F32", t));
    return read_bytes(job, *t, values, (size_t)n * sizeof *values);
}

/* Is the difference of these values from others below rounding? */
static bool are_close(const float *x, const float *y, int n)
{
    bool close = true;
    for (int i = 0; i < n; i++) close = close && fabsf(x[i] - y[i]) <= 1e-6f;
    return close;
}

static dt_err take_nested(locate_job *job, const dt_st_tensor *codes, const state *s, int64_t n_blocks, dt_packed *p)
{
    static const float MAP[DT_PACKED_MAP] = {DT_NF4_MAP};
    const dt_st_tensor *groups, *map;
    float values[DT_PACKED_MAP];
    DT_TRY(need(job, codes, ".nested_absmax", dt_ceil_div(n_blocks, s->group), "F32", &groups));
    DT_TRY(need_values(job, codes, ".nested_quant_map", &map, values, DT_PACKED_MAP));
    p->group = s->group, p->group_scales = groups->offset, p->group_file = job->first_file + groups->file;
    p->map = map->offset, p->map_file = job->first_file + map->file;
    p->mean = (float)s->mean;
    p->is_nf4_map = are_close(values, MAP, DT_PACKED_MAP);
    return DT_OK;
}

static dt_err take_4bit(locate_job *job, const dt_st_tensor *found, const dt_st_tensor *of_state, const dt_tensor *t,
                        dt_stored_location *location)
{
    static const float NF4[16] = {DT_NF4_LEVELS}, FP4[16] = {DT_FP4_LEVELS};
    const char *path = job->s.files[found->file];
    const int turned = t->in_first;
    const dt_st_tensor *levels, *scales;
    dt_tensor stored = *t;
    float values[16];
    state s;
    DT_CHECK(t->n_dims == 2, DT_ERR_DATA, "%s: tensor `%.200s`: expected plain values, found codes of bitsandbytes",
             path, found->name);
    job->used[of_state - job->s.tensors] = true;
    DT_TRY(take_state(job, of_state, &s, location));
    stored.shape[0] = t->shape[turned], stored.shape[1] = t->shape[!turned];
    DT_TRY(dt_stored_check_shape(job->s.files[of_state->file], of_state->name, &stored, 2, s.shape));
    DT_CHECK(found->nbytes == dt_ceil_div(t->n_elems, 2), DT_ERR_DATA,
             "%s: tensor `%.200s`: expected %lld bytes for codes of 4 bits, found %lld", path, found->name,
             (long long)dt_ceil_div(t->n_elems, 2), (long long)found->nbytes);
    const bool is_nf4 = strcmp(of_state->name + strlen(of_state->name) - 3, "nf4") == 0;
    const int64_t n_blocks = dt_ceil_div(t->n_elems, s.block);
    DT_TRY(need_values(job, found, ".quant_map", &levels, values, 16));
    DT_CHECK(are_close(values, is_nf4 ? NF4 : FP4, 16), DT_ERR_DATA,
             "%s: tensor `%.200s`: expected the 16 levels of %s, found others", job->s.files[levels->file],
             levels->name, is_nf4 ? "nf4" : "fp4");
    DT_TRY(need(job, found, ".absmax", n_blocks, s.nested ? "U8" : "F32", &scales));
    location->packed = (dt_packed){.form = is_nf4 ? DT_PACKED_NF4 : DT_PACKED_FP4,
                                   .bits = 4,
                                   .n_rows = stored.shape[0],
                                   .n_cols = stored.shape[1],
                                   .block_cols = s.block,
                                   .scales_type = s.nested ? DT_ST_U8 : DT_ST_F32,
                                   .turned = turned};
    locate_mark(job, found, scales, location);
    return s.nested ? take_nested(job, found, &s, n_blocks, &location->packed) : DT_OK;
}

/* ---- 8 bits ------------------------------------------------------------------------------------------------------ */

/* Older versions also saved codes in the order of a GPU's tensor cores. */
static dt_err check_order(const locate_job *job, const dt_st_tensor *found)
{
    const dt_st_tensor *t = relative(&job->s, found->name, 0, "_format");
    uint8_t order = 0;
    if (t && t->nbytes == 1) DT_TRY(read_bytes(job, t, &order, 1));
    DT_CHECK(order == 0, DT_ERR_DATA,
             "%s: tensor `%.200s`: expected 0, codes in rows, found %d; load and save the model with a current "
             "bitsandbytes",
             job->s.files[t->file], t->name, order);
    return DT_OK;
}

static dt_err take_8bit(locate_job *job, const dt_st_tensor *found, const dt_st_tensor *maxima, const dt_tensor *t,
                        dt_stored_location *location)
{
    const int turned = t->in_first;
    dt_tensor stored = *t;
    if (t->n_dims == 2) stored.shape[0] = t->shape[turned], stored.shape[1] = t->shape[!turned];
    DT_TRY(dt_stored_check_shape(job->s.files[found->file], found->name, &stored, found->n_dims, found->shape));
    DT_TRY(check_order(job, found));
    DT_CHECK(maxima->type == DT_ST_F32, DT_ERR_DATA, "%s: tensor `%.200s`: expected F32, found %s",
             job->s.files[maxima->file], maxima->name, maxima->dtype);
    DT_TRY(locate_check_shape(job, maxima, 1, stored.shape));
    location->type = DT_ST_F32;
    location->packed = (dt_packed){.form = DT_PACKED_INT8,
                                   .bits = 8,
                                   .n_rows = stored.shape[0],
                                   .n_cols = stored.shape[1],
                                   .block_rows = 1,
                                   .block_cols = stored.shape[1],
                                   .scales_type = DT_ST_F32,
                                   .turned = turned};
    locate_mark(job, found, maxima, location);
    return DT_OK;
}

dt_err locate_bitsandbytes(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location,
                           bool *is_there)
{
    const dt_st_tensor *of_state = state_of(&job->s, found->name, 0), *maxima = maxima_of(&job->s, found);
    *is_there = of_state || maxima;
    if (of_state) return take_4bit(job, found, of_state, t, location);
    return maxima ? take_8bit(job, found, maxima, t, location) : DT_OK;
}

/* ---- codes that stay as they are --------------------------------------------------------------------------------- */

void locate_as_stored(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location)
{
    const dt_packed p = location->packed;
    const dt_coded *c = &slot->tensor->coded;
    const bool same = c->type == DT_NF4X2 && p.form == DT_PACKED_NF4 && p.block_cols == DT_NF4_BLOCK &&
                      p.group == DT_NF4_GROUP && p.is_nf4_map && location->run == 0 &&
                      p.first % (DT_NF4_BLOCK << dt_nf4_shift(c->finer)) == 0;
    if (slot->tensor->part < DT_CODES || p.form < DT_PACKED_INT8) return;
    if (slot->tensor->part == DT_CODES) same ? job->n_kept++ : job->n_requantised++;
    if (!same) return;
    *location = (dt_stored_location){.type = DT_ST_U8, .file = location->file, .offset = location->offset};
    if (slot->tensor->part == DT_CODES) {
        location->offset += p.first / 2;
    } else if (slot->tensor->part == DT_BLOCKS) {
        location->offset = p.scales + p.first / DT_NF4_BLOCK, location->file = p.scales_file;
    } else {
        location->offset = p.group_scales, location->file = p.group_file, location->type = DT_ST_F32;
        location->packed = (dt_packed){.form = DT_PACKED_PAIRS,
                                       .first = p.first / DT_NF4_BLOCK,
                                       .group = p.group,
                                       .finer = c->finer,
                                       .mean = p.mean};
    }
}

void locate_report_kept(const locate_job *job)
{
    if (job->n_kept > 0)
        DT_INFO("%s: the codes and scales of %d matrices in nf4 are kept as bitsandbytes stored them", job->path,
                job->n_kept);
    if (job->n_requantised > 0)
        DT_INFO("%s: %d matrices of bitsandbytes are decoded and quantised again, because lora.base_quantization has "
                "another form: their values are rounded a second time",
                job->path, job->n_requantised);
}
