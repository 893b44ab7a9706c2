/* graphs.c - generation steps as CUDA graphs. A step with the same operations, sizes and addresses as an earlier one is
 * recorded at its second occurrence. From then on it is launched with one call.
 *
 * Values that change are read from device memory. Per step these are tokens, positions, cache rows and lengths, masks
 * and random numbers; per update the parameters. Everything else is part of the graph's key.
 *
 * Launch sizes depend on the longest cache, so lengths are rounded up to powers of two and one graph serves many steps.
 * They also depend on the number of sequences, which shrinks as texts end. A step is padded with unused tokens to 16,
 * 32 or a multiple of 64 sequences. This costs little, because reading the weights dominates.
 *
 * The first occurrence runs without recording, for two reasons: devices may do one-time work that cannot be recorded,
 * and most steps with many tokens never repeat.
 *
 * The table is small and has LRU replacement. The driver does not report the memory of a graph, so the plan omits
 * it. */
#include "model_private.h"
#include <stdlib.h>

enum { N_GRAPHS = 32, SHORTEST = 256 };

struct step_graph {
    struct step_key key;
    dt_graph *graph; /* NULL: occurred once, not recorded */
    uint64_t used;   /* serial of the last use; 0: empty entry */
};
struct graphs {
    struct step_graph at[N_GRAPHS];
    uint64_t clock;
    bool full; /* the driver could not allocate another graph */
};

dt_err dt_graphs_open(dt_model *m)
{
    if (!m->opt.graphs || !m->cache || !m->ops->graph_begin) return DT_OK;
    m->graphs = calloc(1, sizeof *m->graphs);
    DT_CHECK(m->graphs, DT_ERR_MEMORY, "out of memory for a table of graphs");
    return DT_OK;
}

static void drop(dt_model *m, struct step_graph *g)
{
    if (g->graph) m->ops->graph_destroy(m->dev, g->graph);
    *g = (struct step_graph){0};
}

void dt_graphs_close(dt_model *m)
{
    for (int i = 0; m->graphs && i < N_GRAPHS; i++) drop(m, &m->graphs->at[i]);
    free(m->graphs);
    m->graphs = NULL;
}

int32_t dt_step_len(const dt_model *m, int32_t len)
{
    int32_t most = SHORTEST;
    if (!m->graphs) return len;
    while (most < len) most = most > INT32_MAX / 2 ? len : 2 * most;
    const int32_t longest = m->opt.cache_prompt_len + m->opt.cache_len;
    return most < longest ? most : longest;
}

static bool is_resident(const dt_param_source *s) { return s->params_resident && s->params_resident(s->self); }

int32_t dt_step_rows(const dt_model *m, int32_t n)
{
    int32_t most = m->opt.cache_seqs < m->opt.max_seq ? m->opt.cache_seqs : m->opt.max_seq;
    if (m->opt.max_tok < most) most = m->opt.max_tok;
    if (!m->graphs || !m->opt.batch_invariant || !is_resident(m->source) || n == 0 || n >= most) return n;
    const int64_t rows = n <= 16 ? 16 : n <= 32 ? 32 : ((int64_t)n + 63) / 64 * 64;
    return rows < most ? (int32_t)rows : most;
}

static bool same_choice(const dt_choice *a, const dt_choice *b)
{
    return a->repetition_penalty == b->repetition_penalty && a->greedy == b->greedy &&
           a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p;
}

static bool same(const struct step_key *a, const struct step_key *b)
{
    return a->what == b->what && a->n == b->n && a->len == b->len && a->masked == b->masked &&
           a->limited == b->limited && a->listed == b->listed && a->uniform == b->uniform && a->logp == b->logp &&
           a->logp_temperature == b->logp_temperature && same_choice(&a->how, &b->how);
}

/* The entry of a step. used 0: a new entry, which may replace the least recently used one after its graph has
 * completed. */
static dt_err find(dt_model *m, const struct step_key *key, struct step_graph **found)
{
    struct step_graph *oldest = m->graphs->at;
    for (struct step_graph *g = m->graphs->at; g < m->graphs->at + N_GRAPHS; g++) {
        *found = g;
        if (g->used && same(&g->key, key)) return DT_OK;
        if (g->used < oldest->used) oldest = g;
    }
    if (oldest->graph) DT_TRY(dt_model_sync(m));
    drop(m, oldest);
    oldest->key = *key;
    *found = oldest;
    return DT_OK;
}

static dt_err record(dt_model *m, struct step_graph *g, dt_queue_step *queue, const void *how)
{
    dt_phase *const phase = m->phase;
    DT_TRY(m->ops->graph_begin(m->dev, m->stream));
    m->phase = NULL; /* phase listeners record events, which must not be captured */
    const dt_err err = queue(m, how);
    m->phase = phase;
    const dt_err ended = m->ops->graph_end(m->dev, m->stream, err == DT_OK ? &g->graph : NULL);
    return err != DT_OK ? err : ended;
}

/* Run this step without a graph, and record no further graphs. */
static dt_err go_without(dt_model *m)
{
    DT_WARN("out of memory for another CUDA graph (%s); decoding steps without a graph are slower", dt_error_message());
    dt_error_clear();
    m->graphs->full = true;
    return DT_OK;
}

dt_err dt_step_run(dt_model *m, const struct step_key *key, dt_queue_step *queue, const void *how)
{
    struct step_graph *g = NULL;
    if (!m->graphs || !is_resident(m->source)) return queue(m, how);
    DT_TRY(find(m, key, &g));
    const bool is_new = g->used == 0;
    g->used = ++m->graphs->clock;
    if (!is_new && !g->graph && !m->graphs->full) {
        const dt_err err = record(m, g, queue, how);
        DT_TRY(err == DT_ERR_MEMORY ? go_without(m) : err);
    }
    return g->graph ? m->ops->graph_launch(m->dev, g->graph, m->stream) : queue(m, how);
}
