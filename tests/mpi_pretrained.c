/* mpi_pretrained.c - models that transformers saved: every family loads on any number of ranks at every stage, as
 * the model that test_model_reference.c compares with transformers; what does not fit is refused by name.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "h5_change.h"
#include "model_cases.h"
#include "pretrained_fixture.h"
#include "dtrain/pretrained/frozen_model.h"
#include <inttypes.h>
#include <jansson.h>

static char *fixture_path(const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "tests/data/hf/%s", name);
    return out;
}

static void count_difference(void *n, const char *name, const char *before, const char *now) { ++*(int *)n; }

/* Is the directory's model the one that test_model_reference.c compares with transformers? */
static bool is_reference(const fixture *f, const char *name)
{
    char path[PATH_MAX];
    dt_model_config mc;
    int n = 0;
    snprintf(path, sizeof path, "tests/data/model/%s.json", name);
    json_t *root = json_load_file(path, 0, NULL);
    char *config = json_dumps(json_object_get(root, "config"), 0);
    const bool ok = config && dt_model_config_parse(&mc, path, config) == DT_OK;
    if (ok) dt_model_config_compare(&f->mc, &mc, count_difference, &n);
    if (ok) dt_model_config_free(&mc);
    free(config), json_decref(root);
    return ok && n == 0;
}

IN_DIR(every_family_loads_at_every_stage)
{
    static const struct {
        const char *name;
        dt_st_type type;
    } more[] = {{"llama_sharded", DT_ST_F32}, {"gpt2_bare", DT_ST_F32},         {"mistral_bf16", DT_ST_BF16},
                {"qwen3_f16", DT_ST_F16},     {"qwen3_5_vl", DT_ST_F32},        {"qwen3_5_moe_vl", DT_ST_F32},
                {"mixtral_fused", DT_ST_F32}, {"deepseek_v3_bf16", DT_ST_BF16}, {"mistral3", DT_ST_F32}};
    enum { N_MORE = sizeof more / sizeof more[0] };
    fixture *f = *state;
    char path[PATH_MAX];
    for (int c = 0; c < N_CASES + N_MORE; c++) {
        const char *name = c < N_CASES ? CASES[c] : more[c - N_CASES].name;
        const dt_st_type type = c < N_CASES ? DT_ST_F32 : more[c - N_CASES].type;
        for (int stage = 0; stage <= 3; stage++) {
            const dt_dtype dtype = stage % 2 ? DT_BF16 : DT_F32;
            assert_all(f->mpi,
                       open_model(f, fixture_path(name, path), stage, dtype, false) == DT_OK && weights_are(f, type));
        }
        assert_all(f->mpi, open_model(f, path, 3, DT_BF16, true) == DT_OK && weights_are(f, type));
        assert_all(f->mpi, c >= N_CASES || is_reference(f, name));
        assert_all(f->mpi, dt_pretrained_verify(&f->from, f->units, f->n_units, NULL) == DT_OK);
    }
}

/* Bytes that this process has asked files for; -1: the system does not say. */
static int64_t bytes_read(void)
{
    FILE *in = fopen("/proc/self/io", "re");
    long long n = -1;
    if (in && fscanf(in, "rchar: %lld", &n) != 1) n = -1;
    if (in) fclose(in);
    return n;
}

IN_DIR(a_rank_reads_what_it_is_in_charge_of)
{
    /* reading the counter, MPI's own wake-ups, and what the system says of free memory (of each group that a process is
     * in); with the header still less than a shard of 20000 bytes and more */
    enum { SLACK = 8192 };
    fixture *f = *state;
    char path[PATH_MAX];
    assert_all(f->mpi, open_model(f, fixture_path("gpt2", path), 3, DT_F32, false) == DT_OK);
    int64_t own = 0;
    for (int i = 0; i < dt_zero_n_slices(f->z); i++) own += dt_zero_slices(f->z)[i].n * 4;
    /* the first rank looks where the tensors are */
    const int64_t before = bytes_read(), header = f->comm.rank == 0 ? 8192 : 0;
    const bool loaded = dt_pretrained_load(&f->comm, f->z, &f->from, NULL) == DT_OK;
    const int64_t read = bytes_read() - before;
    assert_all(f->mpi, loaded && own > 20000);
    if (before < 0) skip();
    if (read < own || read > own + header + SLACK)
        print_error("%" PRId64 " bytes read, %" PRId64 " owned\n", read, own);
    assert_all(f->mpi, read >= own && read <= own + header + SLACK);
}

/* ---- what they compute ------------------------------------------------------------------------------------------- */

static double number(const json_t *v) { return json_is_number(v) ? json_number_value(v) : NAN; }

/* Relative to the size of the expected value: the documented tolerance for imported models is 1e-4. */
static bool near(const char *what, const char *which, double want, double found, double scale)
{
    if (fabs(found - want) <= 1e-4 * scale) return true;
    print_error("%s of %s: expected %.9g, found %.9g\n", what, which, want, found);
    return false;
}

/* Are these the values of the first batch, and a rank's without tokens none? */
static bool values_are_those_of(fixture *f, const dt_frozen_model *frozen, const json_t *want)
{
    enum { N_TOK = 25, N_LABELS = 3 };
    static const int32_t lens[] = {7, 12, 1, 5};
    const dt_model_options opt = {
        .dtype = DT_F32, .grad_dtype = DT_F32, .max_tok = N_TOK, .max_seq = N_TOK, .max_pos = 12};
    static float value[N_TOK * N_LABELS];
    dt_model *m = NULL;
    dt_batch b = {0};
    bool ok = json_array_size(want) == N_TOK && dt_batch_alloc(&b, N_TOK, N_TOK, &f->ledger) == DT_OK &&
              dt_model_open(&m, &frozen->mc, &opt, frozen->units, frozen->n_units, &f->dev, &frozen->source, NULL,
                            NULL) == DT_OK;
    if (ok) ref_batch_fill(&b, frozen->mc.vocab_size, 0, f->comm.rank == 0 ? 4 : 0, lens, 0);
    ok = ok && dt_model_forward(m, &b, false, 0) == DT_OK && dt_model_values(m, &b, value) == DT_OK;
    for (int t = 0; ok && t < b.n_tok; t++)
        for (int l = 0; l < N_LABELS; l++) {
            const double x = number(json_array_get(json_array_get(want, (size_t)t), (size_t)l));
            ok = near("value", "qwen2_score", x, (double)value[t * N_LABELS + l], fmax(1, fabs(x))) && ok;
        }
    dt_model_close(m);
    dt_batch_free(&b, &f->ledger);
    return ok;
}

IN_DIR(a_frozen_reward_model_gives_the_values_of_pytorch)
{
    fixture *f = *state;
    json_t *expected = json_load_file("tests/data/hf/qwen2_score/expected.json", 0, NULL);
    for (int stage = 0; stage <= 3; stage += 3) {
        dt_frozen_model frozen = {0};
        const dt_zero_options kept = {.stage = stage};
        dt_error_clear();
        assert_all(f->mpi, dt_frozen_model_describe(&frozen, "tests/data/hf/qwen2_score", 3) == DT_OK);
        assert_all(f->mpi, dt_frozen_model_load(&frozen, &kept, DT_F32, &f->comm, &f->dev, NULL, NULL) == DT_OK);
        assert_all(f->mpi, values_are_those_of(f, &frozen, json_object_get(expected, "values")));
        dt_frozen_model_close(&frozen);
    }
    json_decref(expected);
}

/* The last rank cannot divide its units into groups. */
IN_DIR(a_rank_that_cannot_group_its_experts_stops_all)
{
    fixture *f = *state;
    dt_frozen_model frozen = {0};
    const dt_zero_options grouped = {.stage = 3, .expert_group_size = 1};
    assert_all(f->mpi, dt_frozen_model_describe(&frozen, "tests/data/hf/qwen3_moe", 0) == DT_OK);
    const int n_units = frozen.n_units;
    if (f->comm.rank == f->comm.nranks - 1) frozen.n_units = 0;
    const dt_err err = dt_frozen_model_load(&frozen, &grouped, DT_F32, &f->comm, &f->dev, NULL, NULL);
    frozen.n_units = n_units;
    assert_all(f->mpi, err == DT_ERR_ARG && !frozen.zero);
    dt_error_clear();
    dt_frozen_model_close(&frozen);
}

/* A head of another size, and a directory whose head is the vocabulary's or the other way round. */
IN_DIR(heads_that_do_not_fit_are_refused_by_name)
{
    static const struct {
        const char *model, *word;
        int n_labels;
    } all[] = {{"tests/data/hf/qwen2_score", "score.weight", 1},
               {"tests/data/hf/qwen2_score", "score.weight", 0},
               {"tests/data/hf/qwen2", "score.weight", 3}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        dt_frozen_model frozen = {0};
        const dt_zero_options whole = {.stage = 0};
        dt_error_clear();
        assert_all(f->mpi, dt_frozen_model_describe(&frozen, all[i].model, all[i].n_labels) == DT_OK);
        const dt_err err = dt_frozen_model_load(&frozen, &whole, DT_F32, &f->comm, &f->dev, NULL, NULL);
        const bool named = f->comm.rank || strstr(dt_error_message(), all[i].word);
        assert_all(f->mpi, err == DT_ERR_DATA && named);
        dt_frozen_model_close(&frozen);
    }
}

IN_DIR(sampling_defaults_and_ends_are_read)
{
    fixture *f = *state;
    assert_all(f->mpi, open_model(f, "tests/data/hf/qwen3_f16", 0, DT_F32, true) == DT_OK);
    const dt_generation_defaults *g = &f->from.generation;
    assert_all(f->mpi, g->n_eos == 2 && g->eos[0] == 2 && g->eos[1] == 7 && g->bos == 1 && g->pad == 0 &&
                           g->do_sample == 1 && g->top_k == 20);
    assert_all(f->mpi, g->temperature == 0.6 && g->top_p == 0.95 && g->repetition_penalty == 1.05 && g->min_p < 0 &&
                           g->max_new_tokens < 0);
    assert_all(f->mpi, open_model(f, "tests/data/hf/qwen3", 0, DT_F32, true) == DT_OK &&
                           f->from.generation.n_eos == 0 && f->from.generation.do_sample < 0);
}

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

/* A copy of a directory in one file, with one tensor changed. */
typedef struct alteration {
    const char *from, *tensor; /* tensor: the one left out, reshaped or doubled; NULL: none */
    const char *add;           /* a tensor more: of add_shape, or a copy of `tensor` when add_shape is 0 */
    int64_t add_shape;
    bool drop, reshape, differ; /* differ: the added copy differs in its last element */
    const char *word;           /* of the message; NULL: loads */
} alteration;

enum { MAX_TENSORS = 64 };

static bool fill_in(const dt_st_layout *l, const char *dir, const dt_safetensors *s, const int *source, bool differ)
{
    char path[PATH_MAX];
    float *x = calloc(1 << 16, sizeof *x);
    snprintf(path, sizeof path, "%s/%s.part", dir, l->names[0]);
    const int fd = open(path, O_WRONLY);
    bool ok = x && fd >= 0;
    for (int i = 0; i < l->n_tensors && ok; i++) {
        if (source[i] < 0) continue; /* zeros */
        const dt_st_tensor *t = &s->tensors[source[i]];
        ok = t->n_elems <= 1 << 16 && dt_safetensors_read(s, t, 0, t->n_elems, DT_F32, x) == DT_OK;
        if (differ && i == l->n_tensors - 1) x[t->n_elems - 1] += 1;
        ok = ok && dt_write_at(fd, path, l->offset[i], x, (size_t)t->n_elems * sizeof *x) == DT_OK;
    }
    close(fd);
    free(x);
    return ok;
}

static dt_st_entry entry_of(const char *name, int n_dims, const int64_t *shape)
{
    return (dt_st_entry){.name = name, .n_dims = n_dims, .shape = shape};
}

static bool alter(const fixture *f, const void *what)
{
    const alteration *a = what;
    char from[PATH_MAX];
    dt_safetensors s = {0};
    dt_st_entry e[MAX_TENSORS];
    dt_st_layout l;
    int source[MAX_TENSORS], n = 0;
    int64_t flat = 0;
    fixture_path(a->from, from);
    if (!shell("rm -rf '%s'/*", f->dir) || !shell("cp '%s'/config.json '%s'", from, f->dir) ||
        dt_safetensors_open(&s, from) != DT_OK)
        return false;
    for (int i = 0; i < s.n_tensors && n < MAX_TENSORS - 1; i++) {
        const bool chosen = a->tensor && strcmp(s.tensors[i].name, a->tensor) == 0;
        if (chosen && a->drop) continue;
        source[n] = i;
        e[n++] = entry_of(s.tensors[i].name, s.tensors[i].n_dims, s.tensors[i].shape);
        if (chosen && a->reshape) {
            flat = s.tensors[i].n_elems;
            e[n - 1].n_dims = 1;
            e[n - 1].shape = &flat;
        }
    }
    const dt_st_tensor *twin = a->tensor ? dt_safetensors_find(&s, a->tensor) : NULL;
    if (a->add) {
        source[n] = a->add_shape ? -1 : (int)(twin - s.tensors);
        e[n++] = a->add_shape ? entry_of(a->add, 1, &a->add_shape) : entry_of(a->add, twin->n_dims, twin->shape);
    }
    bool ok = dt_st_layout_make(&l, "model", e, n, DT_ST_F32, DT_ST_SHARD_SIZE) == DT_OK;
    ok = ok && dt_st_layout_create(&l, f->dir) == DT_OK && fill_in(&l, f->dir, &s, source, a->differ) &&
         dt_st_layout_publish(&l, f->dir) == DT_OK;
    dt_st_layout_free(&l);
    dt_safetensors_close(&s);
    return ok;
}

IN_DIR(what_does_not_fit_the_model_is_refused_by_name)
{
    static const char embed[] = "model.embed_tokens.weight", wte[] = "transformer.wte.weight";
    static const alteration all[] = {
        {"qwen2", NULL, NULL, 0, false, false, false, NULL},
        {"qwen2", "model.norm.weight", NULL, 0, true, false, false, "`model.norm.weight` is missing"},
        {"qwen2", "model.layers.1.mlp.up_proj.weight", NULL, 0, false, true, false,
         "`model.layers.1.mlp.up_proj.weight`: expected the shape [28, 20] of this model, found [560]"},
        {"qwen2", NULL, "model.layers.2.mlp.up_proj.weight", 5, false, false, false,
         "`model.layers.2.mlp.up_proj.weight`: this model has no such tensor"},
        {"qwen2", NULL, "model.layers.1.self_attn.rotary_emb.inv_freq", 5, false, false, false, NULL},
        {"qwen2", embed, "lm_head.weight", 0, false, false, false, NULL},
        {"qwen2", embed, "lm_head.weight", 0, false, false, true,
         "`lm_head.weight` differs from `model.embed_tokens.weight`"},
        {"qwen2", NULL, "lm_head.weight", 61, false, false, false, "`lm_head.weight`: expected the shape [61, 20]"},
        {"llama", "lm_head.weight", NULL, 0, true, false, false, "`lm_head.weight` is missing"},
        {"mixtral_fused", "model.layers.1.mlp.experts.gate_up_proj", NULL, 0, false, true, false,
         "`model.layers.1.mlp.experts.gate_up_proj`: expected the shape [5, 56, 20] of this model, found [5600]"},
        {"mixtral_fused", "model.layers.1.mlp.experts.down_proj", NULL, 0, true, false, false,
         "`model.layers.1.block_sparse_moe.experts.0.w2.weight` is missing"},
        {"mixtral_fused", NULL, "model.layers.0.block_sparse_moe.experts.0.w1.weight", 5, false, false, false,
         "`model.layers.0.block_sparse_moe.experts.0.w1.weight`: expected the shape [28, 20]"},
        {"gpt_oss", "model.layers.1.mlp.experts.gate_up_proj_bias", NULL, 0, false, true, false,
         "`model.layers.1.mlp.experts.gate_up_proj_bias`: expected the shape [5, 56] of this model, found [280]"},
        {"gpt_oss", "model.layers.1.mlp.experts.down_proj", NULL, 0, true, false, false,
         "`model.layers.1.mlp.experts.down_proj` is missing"},
        {"gpt_oss", "model.layers.0.self_attn.sinks", NULL, 0, true, false, false,
         "`model.layers.0.self_attn.sinks` is missing"},
        {"internlm2", "model.layers.1.attention.wqkv.weight", NULL, 0, false, true, false,
         "`model.layers.1.attention.wqkv.weight`: expected the shape [40, 24] of this model, found [960]"},
        {"internlm2", "model.layers.0.attention.wqkv.bias", NULL, 0, true, false, false,
         "`model.layers.0.attention.wqkv.bias` is missing"},
        {"internlm2", NULL, "model.layers.2.attention_norm.weight", 5, false, false, false,
         "`model.layers.2.attention_norm.weight`: this model has no such tensor"},
        {"chatglm", "transformer.encoder.layers.1.self_attention.query_key_value.bias", NULL, 0, false, true, false,
         NULL},
        {"chatglm", "transformer.encoder.layers.1.mlp.dense_h_to_4h.weight", NULL, 0, false, true, false,
         "`transformer.encoder.layers.1.mlp.dense_h_to_4h.weight`: expected the shape [56, 20] of this model"},
        {"chatglm", "transformer.output_layer.weight", NULL, 0, true, false, false,
         "`transformer.output_layer.weight` is missing"},
        {"gpt2", NULL, "h.0.attn.bias", 9, false, false, false, NULL},
        {"gpt2", NULL, "transformer.h.1.attn.masked_bias", 1, false, false, false, NULL},
        {"gpt2", wte, "wte.weight", 0, false, false, false, "`wte.weight`: this model has no such tensor"},
        {"gpt2", wte, "lm_head.weight", 0, false, false, true,
         "`lm_head.weight` differs from `transformer.wte.weight`"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const alteration *a = &all[i];
        assert_all(f->mpi, on_first(f, alter, a));
        const dt_err err = open_model(f, f->dir, (int)i % 4, DT_F32, false);
        const bool speaks = err == DT_OK || dt_comm_prints_error(&f->comm);
        if (err != (a->word ? DT_ERR_DATA : DT_OK)) print_error("alteration %zu: error %d\n", i, err);
        assert_all(f->mpi, err == (a->word ? DT_ERR_DATA : DT_OK));
        assert_all(f->mpi, !a->word || !speaks || strstr(dt_error_message(), a->word));
        dt_error_clear();
        /* --check finds it, too */
        const dt_err checked = f->comm.rank == 0 ? dt_pretrained_verify(&f->from, f->units, f->n_units, NULL) : err;
        assert_all(f->mpi, checked == err);
        dt_error_clear();
    }
}

/* ---- the same in checkpoints ------------------------------------------------------------------------------------- */

static bool add_array(const char *path, const char *name, const float *x, int n_dims, const hsize_t *dims)
{
    dt_h5_lock();
    const hid_t file = open_to_change(path), space = H5Screate_simple(n_dims, dims, NULL);
    const hid_t d = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const bool ok = H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0;
    H5Dclose(d), H5Sclose(space), H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

typedef struct addition {
    const char *path, *name;
    bool differ;
} addition;

static bool add_head(const fixture *f, const void *what)
{
    const addition *a = what;
    dt_safetensors s = {0};
    float x[61 * 20];
    const hsize_t dims[2] = {61, 20};
    bool ok = dt_safetensors_open(&s, "tests/data/hf/qwen2") == DT_OK;
    ok = ok &&
         dt_safetensors_read(&s, dt_safetensors_find(&s, "model.embed_tokens.weight"), 0, 61 * 20, DT_F32, x) == DT_OK;
    dt_safetensors_close(&s);
    if (a->differ) x[7] = -x[7];
    return ok && add_array(a->path, a->name, x, 2, dims);
}

IN_DIR(a_checkpoint_may_not_hold_what_the_model_has_not)
{
    static const struct {
        const char *name;
        bool differ;
        const char *word;
    } all[] = {
        {"/model/lm_head.weight", false, NULL},
        {"/model/lm_head.weight", true, "`lm_head.weight` differs from `model.embed_tokens.weight`"},
        {"/model/score.weight", false, "model/score.weight`: this model has no such tensor"},
        {"/model/model.layers.0.self_attn.rotary_emb.inv_freq", false, NULL},
        {"/extra", false, NULL},
    };
    fixture *f = *state;
    char path[PATH_MAX];
    in_folder(f->dir, "sub/model.h5", path);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_all(f->mpi, open_model(f, "tests/data/hf/qwen2", 1, DT_F32, true) == DT_OK);
        const dt_ckpt_meta meta = {
            .scale.scale = 1, .config = (char *)"[model]\ntokenizer = bytes\n", .model_config = f->mc.json};
        assert_all(f->mpi, dt_checkpoint_save_as(&f->comm, f->z, &meta, path, NULL) == DT_OK);
        assert_all(f->mpi, exists_in(f->dir, "sub/model.h5") && !exists_in(f->dir, "sub/model.h5.part") &&
                               !exists_in(f->dir, "sub/latest"));
        const addition a = {path, all[i].name, all[i].differ};
        assert_all(f->mpi, on_first(f, add_head, &a));
        const dt_err err = open_model(f, path, (int)i % 4, DT_F32, false);
        assert_all(f->mpi, err == (all[i].word ? DT_ERR_DATA : DT_OK));
        assert_all(f->mpi, err == DT_OK || !dt_comm_prints_error(&f->comm) || strstr(dt_error_message(), all[i].word));
        assert_all(f->mpi, err != DT_OK || (weights_are(f, DT_ST_F32) && strcmp(f->from.tokenizer, "bytes") == 0));
        dt_error_clear();
    }
}

/* A scalar head is tied to nothing, whatever the configuration says of the vocabulary's. */
IN_DIR(a_scalar_head_is_not_tied)
{
    fixture *f = *state;
    assert_all(f->mpi, open_model(f, "tests/data/hf/qwen2", 1, DT_F32, true) == DT_OK);
    for (int64_t n_labels = 0; n_labels < 2; n_labels++) {
        dt_saved_model one = {0};
        dt_unit *units = NULL;
        dt_stored_slot *slots = NULL;
        int n_slots = 0;
        bool ok =
            f->mc.tie_word_embeddings && (n_labels ? dt_model_make_value_units(&f->mc, n_labels, &units, &one.n_units)
                                                   : dt_model_make_units(&f->mc, &units, &one.n_units)) == DT_OK;
        one.units = units;
        ok = ok && dt_stored_slots(&one, 1, &slots, &n_slots) == DT_OK;
        ok = ok && dt_stored_tied_embedding(slots, n_slots) == (n_labels ? -1 : 0);
        free(slots);
        dt_model_free_units(units, one.n_units);
        assert_all(f->mpi, ok);
    }
}

/* ---- invalid models ---------------------------------------------------------------------------------------------- */

static bool prepare_directory(const fixture *f, const void *what)
{
    return shell("rm -rf '%s'/*", f->dir) && shell("cd '%s' && %s", f->dir, (const char *)what);
}

/* Reward models ignore the head in files of models with their own code. Tied models compare it with the embedding. */
IN_DIR(heads_have_the_names_of_own_code)
{
    static const char *const all[] = {"internlm2", "chatglm"};
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        char from[PATH_MAX], tied[2 * PATH_MAX + 128];
        close_model(f);
        bool ok = dt_pretrained_describe(&f->from, fixture_path(all[i], from), DT_MODEL_USUAL) == DT_OK &&
                  dt_model_config_parse(&f->mc, f->from.config_name, f->from.model_config) == DT_OK &&
                  dt_model_make_value_units(&f->mc, 1, &f->units, &f->n_units) == DT_OK;
        const dt_zero_options opt = {.stage = 3, .param_dtype = DT_F32, .grad_dtype = DT_F32, .tied_unit = -1};
        ok = ok && dt_zero_open(&f->z, &opt, f->units, f->n_units, &f->comm, &f->dev, NULL, NULL) == DT_OK;
        assert_all(f->mpi, ok);
        f->from.new_score = true;
        assert_all(f->mpi, dt_pretrained_load(&f->comm, f->z, &f->from, NULL) == DT_OK);
        snprintf(
            tied, sizeof tied,
            "cp \"$OLDPWD\"/'%s'/* . && sed -i -e '/tie_word_embeddings/d' -e '1s/{/{\"tie_word_embeddings\": true,/' "
            "config.json",
            from);
        assert_all(f->mpi, on_first(f, prepare_directory, tied));
        const dt_err err = open_model(f, f->dir, 3, DT_F32, true);
        assert_all(f->mpi, err == DT_ERR_DATA && (!dt_comm_prints_error(&f->comm) ||
                                                  strstr(dt_error_message(), "`lm_head.weight` differs from")));
        dt_error_clear();
    }
}

IN_DIR(a_directory_without_a_model_says_what_is_missing)
{
    static const struct {
        const char *command, *word;
    } all[] = {
        {"true", "expected a"},
        {"touch model.safetensors", "expected the model's config.json"},
        {"echo '{\"model_type\": \"llama\"}' > config.json", "the weights are missing: expected model.safetensors"},
        {"echo '{\"model_type\": \"llama\"}' > config.json; touch pytorch_model.bin", "pickle"},
        {"echo '{\"model_type\": \"mamba\"}' > config.json; touch model.safetensors", "mamba"},
        {"echo '{' > config.json; touch model.safetensors", "config.json"},
        {"printf '{}\\0' > config.json; touch model.safetensors", "zero byte"},
        {"mkdir config.json", "config.json: expected a file"},
        {"mkfifo config.json", "config.json: expected a file"},
        {"echo '{\"model_type\": \"llama\"}' > config.json; echo '{\"eos_token_id\": \"x\"}' > generation_config.json",
         "generation_config.json: eos_token_id"},
        {"echo '{\"model_type\": \"llama\"}' > config.json; echo '{\"top_p\": 2}' > generation_config.json",
         "generation_config.json: top_p"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_all(f->mpi, on_first(f, prepare_directory, all[i].command));
        dt_err err = dt_comm_agree(&f->comm, dt_pretrained_describe(&f->from, f->dir, DT_MODEL_USUAL));
        if (err == DT_OK)
            err = dt_comm_agree(&f->comm, dt_model_config_parse(&f->mc, f->from.config_name, f->from.model_config));
        if (err == DT_OK) err = dt_pretrained_verify(&f->from, NULL, 0, NULL);
        if (!strstr(dt_error_message(), all[i].word)) print_error("case %zu: expected %s\n", i, all[i].word);
        assert_all(f->mpi, err == DT_ERR_DATA && strstr(dt_error_message(), all[i].word));
        close_model(f);
        dt_error_clear();
    }
}

MPI_TEST_MAIN(open_fixture, close_fixture)
