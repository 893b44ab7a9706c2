/* plain_adapter.c - an adapter of split weights as one of the original model, with twice the rank (PEFT,
 * path_initial_model_for_weight_conversion): with the initial factors A0 and B0 of W = W0 + s B0 A0
 *
 *     W0 + s B A = W + s (B A - B0 A0) = W + s [B, -B0] [A; A0] */
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/io/safetensors.h"
#include "dtrain/pretrained/pretrained.h"
#include "peft_locate.h"
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG = 1 << 24 };

typedef struct plain_job {
    const char *from, *initial, *to;
    dt_safetensors s, before;
    dt_st_entry *entries; /* [s.n_tensors] */
    int64_t (*shapes)[DT_MAX_DIMS];
    dt_st_layout layout;
} plain_job;

static bool is_a(const char *name) { return strstr(name, ".lora_A.") != NULL; }
static bool is_b(const char *name) { return strstr(name, ".lora_B.") != NULL; }

/* The rank of A and B is twice that of the file. Other tensors stay. */
static dt_err list_entries(plain_job *j)
{
    const int n = j->s.n_tensors;
    DT_ALLOC(j->entries, n + 1, "out of memory for a list of %d tensors", n);
    DT_ALLOC(j->shapes, n + 1, "out of memory for a list of %d tensors", n);
    for (int i = 0; i < n; i++) {
        const dt_st_tensor *t = &j->s.tensors[i], *before = dt_safetensors_find(&j->before, t->name);
        memcpy(j->shapes[i], t->shape, sizeof j->shapes[i]);
        DT_CHECK(!strstr(t->name, "lora_embedding") && !strstr(t->name, DT_LORA_MAGNITUDE), DT_ERR_DATA,
                 "%s: tensor `%s`: expected adapters of linear layers without magnitudes", j->from, t->name);
        if (is_a(t->name) || is_b(t->name)) {
            DT_CHECK(before && before->n_dims == 2 && t->n_dims == 2 && before->shape[0] == t->shape[0] &&
                         before->shape[1] == t->shape[1],
                     DT_ERR_DATA, "%s: tensor `%s` is missing or has another shape than in %s", j->initial, t->name,
                     j->from);
            j->shapes[i][is_a(t->name) ? 0 : 1] *= 2;
        }
        j->entries[i] = (dt_st_entry){.name = t->name, .n_dims = t->n_dims, .shape = j->shapes[i]};
    }
    return dt_st_layout_make(&j->layout, "adapter_model", j->entries, n, DT_ST_F32, INT64_MAX);
}

/* Rows of [A; A0] or [B, -B0], or the tensor itself. */
static dt_err make_tensor(const plain_job *j, int i, float *out)
{
    const dt_st_tensor *t = &j->s.tensors[i], *before = dt_safetensors_find(&j->before, t->name);
    const int64_t rows = t->n_dims > 0 ? t->shape[0] : 1, cols = t->n_elems / dt_max_i64(1, rows);
    if (!is_b(t->name)) {
        DT_TRY(dt_safetensors_read(&j->s, t, 0, t->n_elems, DT_F32, out));
        return is_a(t->name) ? dt_safetensors_read(&j->before, before, 0, t->n_elems, DT_F32, out + t->n_elems) : DT_OK;
    }
    for (int64_t r = 0; r < rows; r++) {
        float *to = out + 2 * r * cols;
        DT_TRY(dt_safetensors_read(&j->s, t, r * cols, cols, DT_F32, to));
        DT_TRY(dt_safetensors_read(&j->before, before, r * cols, cols, DT_F32, to + cols));
        for (int64_t c = cols; c < 2 * cols; c++) to[c] = -to[c];
    }
    return DT_OK;
}

static dt_err write_tensors(const plain_job *j)
{
    char path[PATH_MAX];
    DT_CHECK(dt_join_path(path, j->to, j->layout.names[0], ".part"), DT_ERR_WRITE, "%s: the path is too long", j->to);
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_WRITE, path, NULL);
    dt_err err = DT_OK;
    for (int i = 0; i < j->s.n_tensors && err == DT_OK; i++) {
        const size_t nbytes = (size_t)(2 * j->s.tensors[i].n_elems) * sizeof(float);
        float *whole = malloc(nbytes + 1);
        int64_t n = 1;
        for (int d = 0; d < j->entries[i].n_dims; d++) n *= j->shapes[i][d];
        err = whole ? make_tensor(j, i, whole) : dt_fail(DT_ERR_MEMORY, "out of memory for `%s`", j->entries[i].name);
        if (err == DT_OK) err = dt_write_at(fd, path, j->layout.offset[i], whole, (size_t)n * sizeof *whole);
        free(whole);
    }
    if (close(fd) != 0 && err == DT_OK) err = dt_fail(DT_ERR_WRITE, "%s: close failed", path);
    return err;
}

/* Multiply the values of rank_pattern or alpha_pattern. */
static void double_pattern(json_t *root, const char *key)
{
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(json_object_get(root, key), next, name, value)
    {
        if (json_is_integer(value)) json_integer_set(value, 2 * json_integer_value(value));
        if (json_is_real(value)) json_real_set(value, 2 * json_real_value(value));
    }
}

/* The scale alpha / r, or alpha / sqrt(r), stays. */
static dt_err write_config(const plain_job *j, const dt_lora *l)
{
    char from[PATH_MAX], to[PATH_MAX], *text = NULL;
    size_t nbytes;
    json_t *root;
    const double alpha = l->alpha * (l->use_rslora ? sqrt(2) : 2);
    DT_CHECK(dt_is_in(from, j->from, DT_PEFT_CONFIG) && dt_join_path(to, j->to, DT_PEFT_CONFIG, ""), DT_ERR_WRITE,
             "%s: the path is too long", j->to);
    DT_TRY(dt_read_file(from, MAX_CONFIG, &text, &nbytes));
    const dt_err err = dt_json_parse(&root, from, text, nbytes, DT_JSON_LAST_KEY);
    free(text);
    DT_TRY(err);
    json_object_set_new(root, "r", json_integer(2 * l->r));
    json_object_set_new(root, "lora_alpha", alpha == floor(alpha) ? json_integer((json_int_t)alpha) : json_real(alpha));
    json_object_set_new(root, "init_lora_weights", json_true());
    json_object_set_new(root, "base_model_name_or_path", json_null());
    double_pattern(root, "rank_pattern");
    double_pattern(root, "alpha_pattern");
    text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for %s", DT_PEFT_CONFIG);
    const dt_err wrote = dt_write_file_atomic(to, text, strlen(text));
    free(text);
    return wrote;
}

static dt_err convert(plain_job *j)
{
    dt_lora l;
    DT_TRY(dt_lora_read(&l, j->from));
    dt_err err =
        l.use_rslora && (l.n_rank_pattern > 0 || l.n_alpha_pattern > 0)
            ? dt_fail(DT_ERR_DATA, "%s: use_rslora with rank_pattern or alpha_pattern cannot be converted", j->from)
            : list_entries(j);
    if (err == DT_OK) err = dt_make_dirs(j->to);
    if (err == DT_OK) err = dt_st_layout_create(&j->layout, j->to);
    if (err == DT_OK) {
        err = write_tensors(j);
        if (err == DT_OK) err = dt_st_layout_sync(&j->layout, j->to, 0);
        if (err == DT_OK) err = dt_st_layout_publish(&j->layout, j->to);
        if (err == DT_OK) err = write_config(j, &l);
        if (err != DT_OK) dt_st_layout_discard(&j->layout, j->to);
    }
    dt_lora_free(&l);
    return err;
}

dt_err dt_adapter_plain(const char *from, const char *initial, const char *to)
{
    plain_job j = {.from = from, .initial = initial, .to = to};
    char path[PATH_MAX];
    dt_err err = peft_open(&j.s, from, path);
    if (err == DT_OK) err = peft_open(&j.before, initial, path);
    if (err == DT_OK) err = convert(&j);
    dt_st_layout_free(&j.layout);
    free(j.entries);
    free(j.shapes);
    dt_safetensors_close(&j.s);
    dt_safetensors_close(&j.before);
    return err;
}
