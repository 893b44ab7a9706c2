/* cpu_attention.c - divides attention into parts, and parts among threads.
 *
 * Parts are numbered sequence by sequence, and threads take the next number. The list of parts is not stored: each
 * thread walks through the sequences up to its number, and keeps its position. Within a sequence the longest parts come
 * first, so that threads finish at about the same time. */
#include "cpu.h"
#include <omp.h>
#include <stdatomic.h>

typedef enum part_kind { BY_QUERIES, BY_GROUP /* of heads that share a key head */, BY_KEYS, BY_SEQUENCE } part_kind;
typedef void part_function(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);

/* Position in the walk: the parts of sequence seq begin with number base. */
typedef struct walk {
    int seq;
    int64_t base;
} walk;

/* Queries or keys of a part. BY_GROUP: the tokens whose heads fill the rows of a tile. */
static int32_t tile_len(const dt_attention *at, part_kind kind)
{
    const int group = at->n_heads / at->n_kv_heads;
    if (kind == BY_GROUP) return group < DT_ATTENTION_Q_TILE ? DT_ATTENTION_Q_TILE / group : 1;
    return kind == BY_QUERIES ? DT_ATTENTION_Q_TILE : DT_ATTENTION_K_TILE;
}

/* Parts of a sequence and head. */
static int32_t n_tiles(const dt_attention *at, part_kind kind, int seq)
{
    if (kind == BY_SEQUENCE) return 1;
    const int32_t n =
        kind == BY_QUERIES || kind == BY_GROUP ? at->q_start[seq + 1] - at->q_start[seq] : at->kv_len[seq];
    return (int32_t)cpu_n_chunks(n, tile_len(at, kind));
}

/* Find part number index, which is at or after the walk's position. False after the last part. */
static bool find_part(const dt_attention *at, part_kind kind, walk *w, int64_t index, dt_attention_part *part)
{
    const int n_heads = kind == BY_QUERIES ? at->n_heads : at->n_kv_heads;
    for (; w->seq < at->n_seq; w->seq++) {
        const int32_t tiles = n_tiles(at, kind, w->seq);
        const int64_t here = index - w->base;
        if (here >= (int64_t)tiles * n_heads) {
            w->base += (int64_t)tiles * n_heads;
            continue;
        }
        part->seq = w->seq;
        part->head = (int)(here % n_heads);
        const int32_t place = (int32_t)(here / n_heads), n_q = at->q_start[w->seq + 1] - at->q_start[w->seq],
                      n_kv = at->kv_len[w->seq];
        if (kind == BY_QUERIES || kind == BY_GROUP) { /* late queries see most keys */
            part->first = (tiles - 1 - place) * tile_len(at, kind);
            part->n = (int32_t)dt_min_i64(tile_len(at, kind), n_q - part->first);
        } else if (kind == BY_KEYS) { /* early keys are seen by most queries */
            part->first = place * DT_ATTENTION_K_TILE;
            part->n = (int32_t)dt_min_i64(DT_ATTENTION_K_TILE, n_kv - part->first);
        } else {
            part->first = 0;
            part->n = n_kv;
        }
        return true;
    }
    return false;
}

/* dkv: dkv_elems floats per thread, or NULL. */
static void run_parts(cpu_state *cpu, const dt_attention *at, const dt_attention_args *a, part_kind kind,
                      part_function *run, float *dkv, int64_t dkv_elems)
{
    atomic_llong next = 0;
#pragma omp parallel num_threads(cpu->n_threads)
    {
        const int64_t thread = omp_get_thread_num();
        dt_attention_part part = {.scratch = cpu->attention_scratch + thread * cpu->attention_scratch_elems,
                                  .dkv = dkv ? dkv + thread * dkv_elems : NULL,
                                  .with_dq = kind == BY_SEQUENCE,
                                  .unit = cpu->unit};
        walk w = {0};
        if (cpu->unit) cpu->unit->begin();
        while (find_part(at, kind, &w, atomic_fetch_add(&next, 1), &part)) run(at, a, &part);
        if (cpu->unit) cpu->unit->end();
    }
}

CPU_OP(attention_forward)
{
    const dt_attention *at = &x->at;
    const dt_attention_args a = {.q = x->q, .k = x->k, .v = x->v, .out_w = x->out, .lse_w = x->lse};
    if (at->batch_invariant) {
        DT_EXPECT(!x->lse && at->dropout_p == 0);
        run_parts(cpu, at, &a, BY_GROUP, cpu->k->attention_rows, NULL, 0);
        return DT_OK;
    }
    const bool bf16 = at->dt == DT_BF16 && cpu->unit;
    run_parts(cpu, at, &a, BY_QUERIES, bf16 ? cpu->k->attention_forward_bf16 : cpu->k->attention_forward, NULL, 0);
    return DT_OK;
}

/* Does backward take one pass per sequence and key head? Only if there are enough of them for all threads. */
static bool by_sequence(const cpu_state *cpu, const dt_attention *at)
{
    return (int64_t)at->n_seq * at->n_kv_heads >= cpu->n_threads;
}

/* Floats of a thread's sums of dk and dv: for all keys of the longest sequence, or for one tile of keys. */
static int64_t dkv_elems(const cpu_state *cpu, const dt_attention *at)
{
    const int64_t v = dt_attention_v_dim(at), width = v > at->head_dim ? v : at->head_dim,
                  padded = (width + DT_ATTENTION_PAD - 1) / DT_ATTENTION_PAD * DT_ATTENTION_PAD;
    const int64_t n_tiles_at_most = by_sequence(cpu, at) ? cpu_n_chunks(at->max_kv_len, DT_ATTENTION_K_TILE) : 1;
    return 2 * padded * n_tiles_at_most * DT_ATTENTION_K_TILE;
}

/* The threads' sums of dk and dv, then delta. */
int64_t cpu_attention_scratch_elems(const dt_device *dev, const dt_attention *at)
{
    const cpu_state *cpu = cpu_of(dev);
    return dkv_elems(cpu, at) * cpu->n_threads + (int64_t)at->n_tok * at->n_heads;
}

static void sinks_backward(cpu_state *cpu, const dt_attention *at, const float *lse, const float *delta)
{
    enum { HEADS = 4 };
    CPU_PARALLEL_FOR (cpu, i, cpu_n_chunks(at->n_heads, HEADS)) {
        double grad[HEADS];
        const int64_t first = i * HEADS, n = dt_min_i64(HEADS, at->n_heads - first);
        cpu->k->attention_sinks(at, lse, delta, first, n, grad);
        for (int64_t h = 0; h < n; h++) {
            const float before = at->accumulate_dsinks ? dt_element(at->dsinks, at->dsinks_dtype, first + h) : 0;
            dt_set_element(at->dsinks, at->dsinks_dtype, first + h, (float)(before + grad[h]));
        }
    }
}

CPU_OP(attention_backward)
{
    const dt_attention *at = &x->at;
    float *delta = x->scratch + dkv_elems(cpu, at) * cpu->n_threads;
    enum { TOKENS = 16 };
    CPU_PARALLEL_FOR (cpu, i, cpu_n_chunks(at->n_tok, TOKENS)) {
        cpu->k->attention_delta(at, x->out, x->dout, i * TOKENS, dt_min_i64(TOKENS, at->n_tok - i * TOKENS), delta);
    }
    if (at->dsinks) sinks_backward(cpu, at, x->lse, delta);
    const dt_attention_args a = {.q = x->q,
                                 .k = x->k,
                                 .v = x->v,
                                 .dout = x->dout,
                                 .lse = x->lse,
                                 .delta = delta,
                                 .dq = x->dq,
                                 .dk = x->dk,
                                 .dv = x->dv};
    const bool bf16 = at->dt == DT_BF16 && cpu->unit;
    part_function *const for_kv = bf16 ? cpu->k->attention_backward_kv_bf16 : cpu->k->attention_backward_kv;
    if (by_sequence(cpu, at)) {
        run_parts(cpu, at, &a, BY_SEQUENCE, for_kv, x->scratch, dkv_elems(cpu, at));
    } else {
        run_parts(cpu, at, &a, BY_QUERIES, bf16 ? cpu->k->attention_backward_q_bf16 : cpu->k->attention_backward_q,
                  NULL, 0);
        run_parts(cpu, at, &a, BY_KEYS, for_kv, x->scratch, dkv_elems(cpu, at));
    }
    return DT_OK;
}
