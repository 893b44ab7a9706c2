/* embeddings.c - task embed: trains embeddings of texts, so that a query is closer to the text that fits it than to all
 * other texts of the step, those of other queries included (contrast.h). An embedding is the last token's hidden state
 * after the final norm, the mean of a text's hidden states, or that of its first token, as sentence-transformers pools.
 *
 * The candidates are the texts of the whole step, of all ranks and micro-steps. With several micro-steps, a pass
 * without gradients first computes all embeddings (Gao et al., "Scaling Deep Contrastive Learning Batch Size under
 * Memory Limited Setup", arXiv:2101.06983). The ranks then exchange embeddings, and each computes the gradients of its
 * own. */
#include "contrast.h"
#include "heads.h"
#include "pairs.h"
#include "retrieval.h"
#include "dtrain/pretrained/sentence.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct embedder {
    dt_pooling pooling;
    dt_contrast step, valid; /* of a step, and of a validation */
    bool *mine;              /* [step.n] groups of this rank */
    bool gathered;           /* the step's gradients are known before its micro-steps */
    dt_retrieval found;      /* metrics of a validation */
    int loss, n_queries, right;
} embedder;

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* A model without a head, and what sentence-transformers has to know of it. */
static dt_err describe(dt_task *t, json_t *config)
{
    const dt_config *cfg = t->cfg;
    char architecture[128];
    const char *name = dt_classifier_architecture(t->mc->family), *head = strstr(name, "For");
    snprintf(architecture, sizeof architecture, "%.*sModel", head ? (int)(head - name) : 100, name);
    dt_sentence_options o;
    DT_TRY(dt_sentence_read(&o, *cfg->model_path ? cfg->model_path : NULL, t->mc->json));
    if (strcmp(cfg->embed_pooling, "auto") != 0) o.pooling = dt_pooling_of(cfg->embed_pooling);
    json_object_set_new(config, "architectures", json_pack("[s]", architecture));
    json_object_set_new(config, "sentence_transformers",
                        json_pack("{s:s, s:b, s:s, s:s}", "pooling", dt_pooling_name(o.pooling), "normalize",
                                  cfg->embed_normalize, "query_prompt", cfg->embed_query_prompt, "document_prompt",
                                  cfg->embed_document_prompt));
    t->n_labels = DT_HIDDEN_STATES;
    return DT_OK;
}

static dt_err read_lengths(const dt_task *t, dt_contrast *c)
{
    const dt_config *cfg = t->cfg;
    char **dims = NULL, **weights = NULL;
    int n = 0, n_weights = 0;
    dt_err err = dt_config_split(cfg->embed_matryoshka_dims, &dims, &n);
    if (err == DT_OK) err = dt_config_split(cfg->embed_matryoshka_weights, &weights, &n_weights);
    if (err == DT_OK && (n > DT_MOST_LENGTHS || (n_weights > 0 && n_weights != n)))
        err = dt_config_fail(cfg, "embed", n_weights ? "matryoshka_weights" : "matryoshka_dims",
                             "expected %d, found %d", n_weights ? n : DT_MOST_LENGTHS, n_weights ? n_weights : n);
    c->n_lengths = n ? n : 1;
    c->dim[0] = t->mc->hidden_size, c->weight[0] = 1;
    for (int i = 0; i < n && err == DT_OK; i++) {
        char *end, *end_of_weight = "";
        c->dim[i] = strtoll(dims[i], &end, 10), c->weight[i] = n_weights ? strtod(weights[i], &end_of_weight) : 1;
        if (*end || c->dim[i] < 1 || c->dim[i] > t->mc->hidden_size)
            err = dt_config_fail(cfg, "embed", "matryoshka_dims",
                                 "expected lengths from 1 to hidden_size = %lld, found %s",
                                 (long long)t->mc->hidden_size, dims[i]);
        if (err == DT_OK && (*end_of_weight || !(c->weight[i] >= 0 && isfinite(c->weight[i]))))
            err = dt_config_fail(cfg, "embed", "matryoshka_weights", "expected numbers from 0, found %s", weights[i]);
    }
    dt_list_free(dims, n);
    dt_list_free(weights, n_weights);
    return err;
}

static void declare(embedder *e, dt_sums *s)
{
    e->n_queries = dt_sums_declare(s, "embed/queries", DT_SUM_UNITS, 1);
    e->loss = pairs_metric(s, "loss", DT_SUM_LOSS, 1, "embed/queries");
    e->right = pairs_metric(s, "embed/accuracy", DT_SUM_UNITS, 1, "embed/queries");
    dt_retrieval_declare(&e->found, s, "embed/queries");
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

static void lay_out_contrast(dt_contrast *c, int64_t n, const dt_contrast *like, bool trains, void *block, size_t *used)
{
    *c = *like;
    c->n = n;
    const int64_t n_texts = n * c->n_texts, n_values = n_texts * c->width;
    c->x = dt_carve(block, used, n_values, sizeof *c->x);
    c->present = dt_carve(block, used, n_texts, sizeof *c->present);
    c->inverse = dt_carve(block, used, n_texts, sizeof *c->inverse);
    c->log_sum = dt_carve(block, used, n, sizeof *c->log_sum);
    c->loss = dt_carve(block, used, n, sizeof *c->loss);
    c->right = dt_carve(block, used, n, sizeof *c->right);
    c->gradient = trains ? dt_carve(block, used, n_values, sizeof *c->gradient) : NULL;
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    embedder *e = self;
    size_t used = 0;
    const int64_t n_valid = t->valid ? dt_loader_info(t->valid)->n_samples : 0;
    const dt_contrast like = e->step;
    lay_out_contrast(&e->step, t->batching.train_batch_size, &like, true, block, &used);
    if (n_valid) lay_out_contrast(&e->valid, n_valid, &like, false, block, &used);
    e->mine = dt_carve(block, &used, dt_max_i64(t->batching.train_batch_size, n_valid), sizeof *e->mine);
    return used;
}

static int64_t texts_of(const dt_loader *l, const dt_task *t)
{
    return l ? dt_loader_info(l)->max_seq / t->batching.micro_batch_size : 0;
}

static void embed_open(dt_task *t)
{
    static const dt_task_part_ops arrays = {.lay_out = lay_out};
    const dt_config *cfg = t->cfg;
    embedder *e = t->self;
    dt_sentence_options o = {0};
    if (t->n_units) dt_mistakes_add(t->mistakes, dt_sentence_read(&o, NULL, t->mc->json));
    e->pooling = o.pooling;
    answers_open(t, &(dt_task_data){.kind = DT_DATASET_TEXTS}, t->comm || *cfg->data_train ? 1 : 2);
    e->step.scale = cfg->embed_scale;
    e->step.width = t->mc->hidden_size;
    e->step.n_texts = dt_max_i64(2, dt_max_i64(texts_of(t->train, t), texts_of(t->valid, t)));
    if (t->n_units) dt_mistakes_add(t->mistakes, read_lengths(t, &e->step));
    declare(e, t->sums);
    dt_task_hold(t, &arrays, e);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

/* The tokens of a sequence that its embedding is the mean of. */
static void pooled_rows(const embedder *e, const dt_batch *b, int64_t sequence, int32_t *first, int32_t *end)
{
    *first = b->seq_start[sequence], *end = b->seq_start[sequence + 1];
    if (e->pooling == DT_POOL_LAST) *first = *end - 1;
    if (e->pooling == DT_POOL_FIRST) *end = *first + 1;
}

/* A text of a batch: its sequence, and the number of its group and of the text in it. */
typedef struct text_at {
    int64_t sequence, group, text;
} text_at;

static bool next_text(const dt_batch *b, text_at *at)
{
    if (++at->sequence >= b->n_seq) return false;
    const bool begins = b->seq_target[at->sequence + 1] > b->seq_target[at->sequence];
    at->group += begins;
    at->text = begins ? 0 : at->text + 1;
    return true;
}

/* Store the embeddings of a batch. number: [n_samples] of its groups in c. */
static void keep(const embedder *e, dt_contrast *c, const dt_batch *b, const float *value, const int64_t *number,
                 int64_t first)
{
    for (text_at at = {-1, -1, 0}; next_text(b, &at);) {
        const int64_t place = (number ? number[at.group] : first + at.group) * c->n_texts + at.text;
        const int32_t row = b->seq_start[at.sequence], end = b->seq_start[at.sequence + 1];
        dt_sentence_pool(e->pooling, value + row * c->width, end - row, c->width, c->x + place * c->width);
        c->present[place] = 1;
    }
}

static void clear(dt_contrast *c)
{
    memset(c->x, 0, (size_t)(c->n * c->n_texts * c->width) * sizeof *c->x);
    memset(c->present, 0, (size_t)(c->n * c->n_texts) * sizeof *c->present);
}

/* The embeddings of all ranks. */
static dt_err exchange(dt_task *t, dt_contrast *c)
{
    dt_phase_enter(t->phase, "exchange", "embeddings");
    DT_TRY(dt_fault("task.embed"));
    DT_TRY(answers_add_up(t, c->x, c->n * c->n_texts * c->width));
    return answers_add_up(t, c->present, c->n * c->n_texts);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Losses and gradients of this rank's groups, from the embeddings of all. */
static dt_err contrast(dt_task *t)
{
    embedder *e = t->self;
    dt_contrast *c = &e->step;
    DT_TRY(exchange(t, c));
    dt_contrast_clear(c);
    for (int64_t i = 0; i < c->n; i++) e->mine[i] = i / t->batching.micro_batch_size % t->data->size == t->data->rank;
    for (int k = 0; k < c->n_lengths; k++) {
        dt_contrast_length(c, k);
        dt_contrast_losses(c, k, e->mine);
        DT_TRY(answers_add_up(t, c->log_sum, c->n));
        dt_contrast_gradients(c, k, e->mine);
    }
    return DT_OK;
}

/* The embeddings of a micro-step, without gradients. */
static dt_err look_at(dt_task *t, const dt_batch *b, int64_t step, int64_t first)
{
    embedder *e = t->self;
    dt_phase_enter(t->phase, "forward", "embeddings");
    DT_TRY(dt_model_forward(t->model, b, true, step));
    DT_TRY(dt_model_values(t->model, b, t->buffers.value));
    keep(e, &e->step, b, t->buffers.value, NULL, first);
    return DT_OK;
}

static dt_err embed_begin_step(dt_task *t, int64_t step, const dt_step_counts *counts)
{
    embedder *e = t->self;
    clear(&e->step);
    e->gathered = t->micro.n_micro > 1;
    if (!e->gathered) return DT_OK;
    DT_TRY(dt_task_look_ahead(t, t->train, step, false, look_at));
    return contrast(t);
}

static dt_err embed_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    embedder *e = t->self;
    const dt_contrast *c = &e->step;
    const dt_batch *b = m->batch;
    if (!e->gathered) {
        keep(e, &e->step, b, p->value, NULL, t->first_sample);
        DT_TRY(contrast(t));
    }
    memset(w->dvalue, 0, (size_t)(b->n_tok * c->width) * sizeof *w->dvalue);
    for (text_at at = {-1, -1, 0}; next_text(b, &at);) {
        const double *g = c->gradient + ((t->first_sample + at.group) * c->n_texts + at.text) * c->width;
        int32_t first, end;
        pooled_rows(e, b, at.sequence, &first, &end);
        for (int32_t row = first; row < end; row++)
            for (int64_t d = 0; d < c->width; d++)
                w->dvalue[row * c->width + d] = (float)(g[d] * m->inv_norm / (end - first));
    }
    return DT_OK;
}

static void embed_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    embedder *e = t->self;
    const dt_batch *b = m->batch;
    dt_sums_count(t->sums, e->n_queries, b->n_samples);
    if (m->validation) {
        keep(e, &e->valid, b, p->value, b->sample, 0);
        return;
    }
    for (int64_t i = 0; i < b->n_samples; i++) {
        dt_sums_add(t->sums, e->loss, e->step.loss[t->first_sample + i]);
        dt_sums_count(t->sums, e->right, e->step.right[t->first_sample + i] > 0);
    }
}

/* ---- validation -------------------------------------------------------------------------------------------------- */

/* Loss and accuracy of as many groups as a step has, as in a step. Groups of other ranks count there. */
static void validate_block(dt_task *t, int64_t first, int64_t n)
{
    embedder *e = t->self;
    const dt_contrast *all = &e->valid;
    dt_contrast c = *all;
    c.n = n;
    c.x += first * c.n_texts * c.width, c.present += first * c.n_texts, c.inverse += first * c.n_texts;
    c.loss += first, c.right += first, c.log_sum += first;
    dt_contrast_clear(&c);
    for (int64_t i = 0; i < n; i++) e->mine[i] = (first + i) % t->data->size == t->data->rank;
    for (int k = 0; k < c.n_lengths; k++) {
        dt_contrast_length(&c, k);
        dt_contrast_losses(&c, k, e->mine);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!e->mine[i]) continue;
        dt_sums_add(t->sums, e->loss, c.loss[i]);
        dt_sums_count(t->sums, e->right, c.right[i] > 0);
    }
}

static dt_err begin_validation(dt_task *t)
{
    clear(&((embedder *)t->self)->valid);
    return DT_OK;
}

static dt_err end_validation(dt_task *t)
{
    embedder *e = t->self;
    /* an evaluation has no steps: their size is that of the key */
    const int64_t given = t->cfg->batch_train_batch_size, block = t->ops->trains ? t->batching.train_batch_size
                                                                  : given > 0    ? given
                                                                                 : e->valid.n;
    DT_TRY(exchange(t, &e->valid));
    for (int64_t first = 0; first < e->valid.n; first += block)
        validate_block(t, first, dt_min_i64(block, e->valid.n - first));
    dt_contrast whole = e->valid;
    whole.n_lengths = 1, whole.dim[0] = whole.width;
    dt_contrast_length(&whole, 0);
    dt_retrieval_measure(&e->found, t, &whole);
    return DT_OK;
}

#define EMBEDDER                                                                                                       \
    .name = "embed", .no_dropout = true, .self_nbytes = sizeof(embedder), .describe = describe, .open = embed_open,    \
    .collect = embed_collect, .begin_validation = begin_validation, .end_validation = end_validation

const dt_task_ops embed_evaluation = {EMBEDDER};
const dt_task_ops dt_task_embed = {EMBEDDER,
                                   .trains = true,
                                   .watch = {"embed/accuracy"},
                                   .num_tokens = "embed/num_tokens",
                                   .begin_step = embed_begin_step,
                                   .weights = embed_weights};
