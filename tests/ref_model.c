/* ref_model.c - see ref_model.h. Plain loops, which also check the contract of unit.h: balanced calls, no gradient
 * read before it is written. */
#include "ref_model.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the formula ---- */

static uint64_t name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

static double number_of(uint64_t hash, int64_t i)
{
    return (double)(dt_mix64(hash + (uint64_t)i) >> 40) * 0x1p-24 - 0.5;
}
double ref_number(const char *name, int64_t i) { return number_of(name_hash(name), i); }

static double formula_weight(const dt_tensor *t, uint64_t hash, int64_t i)
{
    const size_t n = strlen(t->name);
    const bool norm = t->n_dims == 1 && n > 6 && strcmp(t->name + n - 6, "weight") == 0;
    return (norm ? 1 : 0) + 0.5 * number_of(hash, i);
}

double ref_weight(const dt_tensor *t, int64_t i) { return formula_weight(t, name_hash(t->name), i); }

/* ---- reading and writing elements of any type ---- */

static double get(const void *p, dt_dtype t, int64_t i) { return (double)dt_element(p, t, i); }

static void put(void *p, dt_dtype t, int64_t i, double x) { dt_set_element(p, t, i, (float)x); }

/* Tests work on copies in host memory: the host may not reach the device's. */
static void move(ref_model *r, void *dst, const void *src, size_t nbytes)
{
    const dt_device_ops *ops = r->dev.ops;
    if (ops->copy(&r->dev, dst, src, nbytes, NULL) != DT_OK || ops->stream_sync(&r->dev, NULL) != DT_OK) abort();
}

double ref_grad(ref_model *r, int unit, int64_t i)
{
    for (int u = 0; r->grads_changed && u < r->n_units; u++)
        move(r, r->host_grads[u], r->grads[u].ptr, r->grads[u].nbytes);
    r->grads_changed = false;
    return get(r->host_grads[unit], r->opt.grad_dtype, i);
}

int64_t ref_at(const ref_model *r, int unit, const dt_tensor *t)
{
    const int64_t *len = r->units[unit].flat_len;
    return t->offset + (t->part > DT_TRAINED ? len[DT_TRAINED] : 0) + (t->part > DT_FROZEN ? len[DT_FROZEN] : 0);
}

/* Elements of the parts before DT_EXACT, and the byte at which that part begins. */
static int64_t n_before_exact(const ref_model *r, int unit)
{
    return r->units[unit].flat_len[DT_TRAINED] + r->units[unit].flat_len[DT_FROZEN];
}
static size_t at_exact(const ref_model *r, int unit)
{
    return ((size_t)n_before_exact(r, unit) * dt_dtype_size(r->opt.dtype) + 63) / 64 * 64;
}

double ref_param(const ref_model *r, int unit, int64_t i)
{
    const int64_t n = n_before_exact(r, unit);
    if (i < n) return get(r->host_params[unit], r->opt.dtype, i);
    return get((char *)r->host_params[unit] + at_exact(r, unit), DT_F32, i - n);
}

void ref_set_param(ref_model *r, int unit, int64_t i, double value)
{
    const int64_t n = n_before_exact(r, unit);
    if (i < n)
        put(r->host_params[unit], r->opt.dtype, i, value);
    else
        put((char *)r->host_params[unit] + at_exact(r, unit), DT_F32, i - n, value);
    r->params_changed[unit] = true;
}

/* ---- the parameter source ---- */

enum { CALLS_SIZE = 1 << 16 };

static void note(ref_model *r, const char *call, int unit)
{
    if (r->calls_len + 16 < CALLS_SIZE)
        r->calls_len += (size_t)snprintf(r->calls + r->calls_len, CALLS_SIZE - r->calls_len, "%s%d ", call, unit);
}

static dt_err params_acquire(void *self, int unit, dt_param_view *view)
{
    ref_model *r = self;
    note(r, "p", unit);
    r->param_holds[unit]++;
    if (r->params_changed[unit]) move(r, r->params[unit].ptr, r->host_params[unit], r->params[unit].nbytes);
    r->params_changed[unit] = false;
    char *base = r->params[unit].ptr;
    for (int p = 0; p < DT_N_PARTS; p++) {
        const int64_t len = r->units[unit].flat_len[p];
        if (p == DT_EXACT) base = (char *)r->params[unit].ptr + at_exact(r, unit);
        view->part[p].data = len > 0 ? base : NULL;
        view->part[p].dtype = p == DT_EXACT ? DT_F32 : r->opt.dtype;
        base += (size_t)len * dt_dtype_size(r->opt.dtype);
    }
    return DT_OK;
}

static dt_err params_release(void *self, int unit)
{
    ref_model *r = self;
    note(r, "P", unit);
    r->misused = r->misused || r->param_holds[unit]-- <= 0;
    return DT_OK;
}

static dt_err grads_acquire(void *self, int unit, dt_grad_view *view)
{
    ref_model *r = self;
    r->misused = r->misused || r->units[unit].flat_len[DT_TRAINED] == 0;
    note(r, "g", unit);
    r->grad_holds[unit]++;
    r->grads_changed = true;
    *view = (dt_grad_view){r->grads[unit].ptr, r->opt.grad_dtype, !r->grads_fresh[unit]};
    return DT_OK;
}

static dt_err grads_release(void *self, int unit)
{
    ref_model *r = self;
    note(r, "G", unit);
    r->misused = r->misused || r->grad_holds[unit]-- <= 0;
    if (r->grad_holds[unit] == 0) r->grads_fresh[unit] = false;
    return DT_OK;
}

/* ---- open and close ---- */

dt_model_options ref_options(int32_t max_tok, int32_t max_pos, dt_dtype dtype)
{
    return (dt_model_options){.dtype = dtype,
                              .grad_dtype = DT_F32,
                              .max_tok = max_tok,
                              .max_seq = max_tok,
                              .max_pos = max_pos,
                              .training = true,
                              .seed = 7};
}

static void fill_weights(ref_model *r)
{
    const uint64_t other = r->guest ? 1 : 0;
    for (int u = 0; u < r->n_units; u++) {
        for (int i = 0; i < r->units[u].n_tensors; i++) {
            const dt_tensor *t = &r->units[u].tensors[i];
            const uint64_t hash = name_hash(t->name) + (other << 32);
            for (int64_t e = 0; e < t->n_elems; e++)
                ref_set_param(r, u, ref_at(r, u, t) + e, formula_weight(t, hash, e));
        }
    }
}

static dt_err alloc_units(ref_model *r)
{
    const size_t n = (size_t)r->n_units;
    r->params = calloc(n, sizeof *r->params);
    r->grads = calloc(n, sizeof *r->grads);
    r->param_holds = calloc(n, sizeof *r->param_holds);
    r->grad_holds = calloc(n, sizeof *r->grad_holds);
    r->grads_fresh = calloc(n, sizeof *r->grads_fresh);
    r->host_params = calloc(n, sizeof *r->host_params);
    r->host_grads = calloc(n, sizeof *r->host_grads);
    r->params_changed = calloc(n, sizeof *r->params_changed);
    r->calls = calloc(CALLS_SIZE, 1);
    DT_CHECK(r->params && r->grads && r->param_holds && r->grad_holds && r->grads_fresh && r->host_params &&
                 r->host_grads && r->params_changed && r->calls,
             DT_ERR_MEMORY, "no memory");
    for (int u = 0; u < r->n_units; u++) {
        const size_t n_grads = (size_t)r->units[u].flat_len[DT_TRAINED],
                     nbytes = at_exact(r, u) + (size_t)r->units[u].flat_len[DT_EXACT] * sizeof(float);
        r->host_params[u] = calloc(nbytes, 1);
        r->host_grads[u] = calloc(n_grads + 1, sizeof(float));
        DT_CHECK(r->host_params[u] && r->host_grads[u], DT_ERR_MEMORY, "no memory");
        DT_TRY(dt_buf_alloc(&r->params[u], &r->dev, DT_ON_DEVICE, nbytes, DT_MEM_PARAMS));
        DT_TRY(dt_buf_alloc(&r->grads[u], &r->dev, DT_ON_DEVICE, n_grads * dt_dtype_size(r->opt.grad_dtype),
                            DT_MEM_GRADS));
    }
    return DT_OK;
}

/* A setting of runs, which fixtures have in their configuration. */
static double z_loss_of(const char *config_json)
{
    json_t *root = json_loads(config_json, 0, NULL);
    const double coef = json_number_value(json_object_get(root, "router_z_loss_coef"));
    json_decref(root);
    return coef;
}

static dt_err open_units(ref_model *r, ref_model *host, const char *name, const char *config_json,
                         const dt_model_options *opt, ref_build build, dt_trains trained, void *self)
{
    *r = (ref_model){.opt = *opt, .guest = host != NULL};
    r->source = (dt_param_source){r, params_acquire, params_release, grads_acquire, grads_release, NULL};
    if (host)
        r->dev = host->dev;
    else
        DT_TRY(dt_device_open(&r->dev, "cpu", 0, 1, &r->ledger));
    DT_TRY(dt_model_config_parse(&r->mc, name, config_json));
    r->mc.router_z_loss_coef = z_loss_of(config_json);
    DT_TRY(build(&r->mc, &r->units, &r->n_units));
    dt_units_choose_trained(r->units, r->n_units, trained, self);
    DT_TRY(alloc_units(r));
    fill_weights(r);
    ref_model_forget_grads(r);
    return dt_model_open(&r->model, &r->mc, &r->opt, r->units, r->n_units, host ? &host->dev : &r->dev, &r->source,
                         NULL, NULL);
}

static bool all_are_trained(void *self, const dt_tensor *t) { return true; }

dt_err ref_model_open(ref_model *r, const char *name, const char *config_json, const dt_model_options *opt)
{
    return ref_model_open_part(r, name, config_json, opt, all_are_trained, NULL);
}

dt_err ref_model_open_built(ref_model *r, const char *name, const char *config_json, const dt_model_options *opt,
                            ref_build build)
{
    return open_units(r, NULL, name, config_json, opt, build, all_are_trained, NULL);
}

dt_err ref_model_open_beside(ref_model *q, ref_model *r, const char *config_json, const dt_model_options *opt)
{
    return open_units(q, r, "beside", config_json, opt, dt_model_make_units, all_are_trained, NULL);
}

dt_err ref_model_open_part(ref_model *r, const char *name, const char *config_json, const dt_model_options *opt,
                           dt_trains trained, void *self)
{
    return open_units(r, NULL, name, config_json, opt, dt_model_make_units, trained, self);
}

static void free_rows(void *rows, int n)
{
    for (int i = 0; rows && i < n; i++) free(((void **)rows)[i]);
    free(rows);
}

void ref_model_close(ref_model *r)
{
    dt_model_close(r->model);
    for (int u = 0; r->params && u < r->n_units; u++) dt_buf_free(&r->params[u]);
    for (int u = 0; r->grads && u < r->n_units; u++) dt_buf_free(&r->grads[u]);
    free_rows(r->master, r->n_units);
    free_rows(r->m, r->n_units);
    free_rows(r->v, r->n_units);
    free_rows(r->host_params, r->n_units);
    free_rows(r->host_grads, r->n_units);
    free(r->params_changed);
    free(r->params);
    free(r->grads);
    free(r->param_holds);
    free(r->grad_holds);
    free(r->grads_fresh);
    free(r->calls);
    dt_model_free_units(r->units, r->n_units);
    dt_model_config_free(&r->mc);
    if (!r->guest) dt_device_close(&r->dev);
    r->model = NULL;
}

size_t ref_model_left(const ref_model *r) { return atomic_load(&r->ledger.total_now); }

void ref_model_fill_grads(ref_model *r, double value)
{
    for (int u = 0; u < r->n_units; u++) {
        for (int64_t e = 0; e < r->units[u].flat_len[DT_TRAINED]; e++)
            put(r->host_grads[u], r->opt.grad_dtype, e, value);
        move(r, r->grads[u].ptr, r->host_grads[u], r->grads[u].nbytes);
    }
    r->grads_changed = false;
}

void ref_model_forget_grads(ref_model *r)
{
    ref_model_fill_grads(r, NAN);
    for (int u = 0; u < r->n_units; u++) r->grads_fresh[u] = true;
}

/* ---- AdamW ---- */

static float **alloc_rows(const ref_model *r)
{
    float **rows = calloc((size_t)r->n_units, sizeof *rows);
    for (int u = 0; rows && u < r->n_units; u++)
        rows[u] = calloc((size_t)r->units[u].flat_len[DT_TRAINED] + 1, sizeof **rows);
    return rows;
}

static void update_tensor(ref_model *r, int u, const dt_tensor *t, double lr, double weight_decay, double factor)
{
    const double b1 = 0.9, b2 = 0.95, fix1 = 1 - pow(b1, (double)r->n_updates),
                 fix2 = 1 - pow(b2, (double)r->n_updates);
    for (int64_t i = t->offset; i < t->offset + t->n_elems; i++) {
        const double g = factor * ref_grad(r, u, i), decay = t->decay ? weight_decay : 0;
        const double m = b1 * r->m[u][i] + (1 - b1) * g, v = b2 * r->v[u][i] + (1 - b2) * g * g;
        r->m[u][i] = (float)m;
        r->v[u][i] = (float)v;
        r->master[u][i] = (float)(r->master[u][i] * (1 - lr * decay) - lr * (m / fix1) / (sqrt(v / fix2) + 1e-8));
        ref_set_param(r, u, i, r->master[u][i]);
    }
}

double ref_model_adamw(ref_model *r, double lr, double weight_decay, double clip)
{
    double sum = 0;
    if (!r->master) {
        r->master = alloc_rows(r);
        r->m = alloc_rows(r);
        r->v = alloc_rows(r);
        for (int u = 0; u < r->n_units; u++)
            for (int64_t i = 0; i < r->units[u].flat_len[DT_TRAINED]; i++) r->master[u][i] = (float)ref_param(r, u, i);
    }
    for (int u = 0; u < r->n_units; u++)
        for (int i = 0; i < r->units[u].n_tensors; i++)
            for (int64_t e = 0; r->units[u].tensors[i].trainable && e < r->units[u].tensors[i].n_elems; e++)
                sum += pow(ref_grad(r, u, r->units[u].tensors[i].offset + e), 2);
    const double norm = sqrt(sum), factor = clip > 0 ? fmin(1, clip / (norm + 1e-6)) : 1;
    r->n_updates++;
    for (int u = 0; u < r->n_units; u++)
        for (int i = 0; i < r->units[u].n_tensors; i++)
            if (r->units[u].tensors[i].trainable)
                update_tensor(r, u, &r->units[u].tensors[i], lr, weight_decay, factor);
    return norm;
}

/* ---- batches ---- */

void ref_batch_fill(dt_batch *b, int64_t n_vocab, int64_t k, int n_seq, const int32_t *lens, int without_target_every)
{
    int32_t t = 0;
    b->n_seq = n_seq;
    b->seq_start[0] = 0;
    for (int s = 0; s < n_seq; s++) {
        const uint64_t seed = (uint64_t)(1000003 * k + 1009 * s);
        for (int32_t i = 0; i < lens[s]; i++, t++) {
            const bool none = without_target_every > 0 && (t + 1) % without_target_every == 0;
            b->token[t] = (int32_t)(dt_mix64(seed + (uint64_t)i) % (uint64_t)n_vocab);
            b->target[t] = none ? -1 : (int32_t)(dt_mix64(seed + (uint64_t)i + 1) % (uint64_t)n_vocab);
            b->pos[t] = i;
            b->weight[t] = none ? 0 : 1;
            b->token_key[t] = dt_mix64(seed * 64 + (uint64_t)i);
        }
        b->seq_start[s + 1] = t;
    }
    b->n_tok = t;
    b->n_samples = n_seq;
    dt_batch_finish(b);
}

static double mean_loss(const dt_batch *b, const float *logp)
{
    double sum = 0;
    for (int64_t i = 0; i < b->n_target; i++) sum -= (double)logp[i];
    return b->n_target > 0 ? sum / (double)b->n_target : 0;
}

/* The losses of the routers, and their gradients for the next backward. */
static dt_err balance(ref_model *r, double scale, double *loss)
{
    double load[2 * 64 + 1];
    float dload[64 + 1];
    if (!dt_model_counts_experts(&r->mc)) return DT_OK;
    DT_TRY(dt_model_expert_load(r->model, load));
    *loss = r->mc.router_aux_loss_coef * dt_model_balance_loss(&r->mc, load, scale, dload) +
            r->mc.router_z_loss_coef * dt_model_z_loss(&r->mc, load, scale, &dload[r->mc.num_experts]);
    return dt_model_balance(r->model, dload);
}

dt_err ref_model_loss(ref_model *r, const dt_batch *b, bool train, int64_t step, double *loss, float *logp)
{
    float *own = calloc((size_t)b->max_tok + 1, sizeof *own);
    DT_CHECK(own, DT_ERR_MEMORY, "no memory");
    dt_err err = dt_model_forward(r->model, b, train, step);
    if (err == DT_OK) err = dt_model_logp(r->model, b, 1, own, NULL, NULL);
    double balanced = 0;
    if (err == DT_OK && train) err = balance(r, 1, &balanced);
    if (err == DT_OK && loss) *loss = mean_loss(b, own) + balanced;
    for (int32_t t = 0; err == DT_OK && logp && t < b->n_tok; t++) logp[t] = 0;
    for (int64_t i = 0; err == DT_OK && logp && i < b->n_target; i++) logp[b->target_row[i]] = own[i];
    free(own);
    return err;
}

dt_err ref_model_grads(ref_model *r, const dt_batch *b, int64_t step, double scale, double *loss)
{
    float *logp = calloc((size_t)b->max_tok + 1, sizeof *logp), *u = calloc((size_t)b->max_tok + 1, sizeof *u);
    dt_err err = logp && u ? dt_model_forward(r->model, b, true, step) : DT_ERR_MEMORY;
    double balanced = 0;
    if (err == DT_OK) err = balance(r, scale, &balanced);
    for (int64_t i = 0; u && i < b->n_target; i++)
        u[i] = (float)(scale * (double)b->weight[b->target_row[i]] / (double)b->n_target);
    if (err == DT_OK) err = dt_model_head(r->model, b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL);
    if (err == DT_OK) err = dt_model_backward(r->model, b);
    if (err == DT_OK) err = dt_model_results(r->model, &(dt_head_results){.logp = logp});
    if (err == DT_OK && loss) *loss = mean_loss(b, logp) + balanced;
    free(logp);
    free(u);
    return err;
}

char *ref_read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    char *text = n >= 0 ? calloc((size_t)n + 1, 1) : NULL;
    rewind(f);
    if (text && fread(text, 1, (size_t)n, f) != (size_t)n) text[0] = '\0';
    fclose(f);
    return text;
}
