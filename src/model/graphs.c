/* graphs.c - steps of generation as graphs: a step that queues the operations of one before it, with the same sizes and
 * addresses, is recorded when it comes for the second time, and from then on queued with one call.
 *
 * What changes from step to step (tokens, positions, rows and lengths of the cache, masks, random numbers) and from one
 * update to the next (parameters) lies in device memory, where the operations read it; what does not is the graph's
 * key. Launches depend on the longest cache: lengths are rounded up to powers of two, so that a graph serves many
 * steps. And they depend on the number of sequences, which shrinks as texts end: a step is filled up with tokens that
 * nobody reads, to 16, 32 or a multiple of 64, which takes hardly longer, since what counts there is reading the
 * weights. The first time of a step runs as it is because a device may have things to do once that cannot be recorded,
 * and because most steps with many tokens do not come again.
 *
 * The table is small and keeps what was used last. What a driver holds for a graph is not in the plan: it tells no
 * size. */
#include "model_private.h"
#include <stdlib.h>

enum { N_GRAPHS = 32, SHORTEST = 256 };

struct step_graph {
    struct step_key key;
    dt_graph *graph; /* NULL: it came once */
    uint64_t used;   /* 0: an empty place */
};
struct graphs {
    struct step_graph at[N_GRAPHS];
    uint64_t clock;
    bool full; /* the driver had no room for another */
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

/* The step's place; it is new where used is 0: then what was used longest ago makes room, when it has run. */
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
    m->phase = NULL; /* who listens to phases records events */
    const dt_err err = queue(m, how);
    m->phase = phase;
    const dt_err ended = m->ops->graph_end(m->dev, m->stream, err == DT_OK ? &g->graph : NULL);
    return err != DT_OK ? err : ended;
}

/* A step can do without its graph: so do this one and all that have none yet. */
static dt_err go_without(dt_model *m)
{
    DT_WARN("no memory for another CUDA graph (%s); decoding steps without a graph are slower", dt_error_message());
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
