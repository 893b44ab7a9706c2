/* self_check_matrix.c - cases of the self-check: all variants of matmuls, attention, the classifier, token
 * selection. */
#include "dtrain/device/nf4.h"
#include "self_check.h"
#include <stdlib.h>

/* ---- matmuls ---------------------------------------------------------------------------------------------------- */

/* Epilogues of op(A) op(B) in training and generation. Each is checked with all layouts of A and B that it supports. */
static const struct matmul_way {
    const char *name;
    bool bias, addend, float_addend, float_c, accumulate, batch_invariant, narrow_sums;
    dt_dtype stored; /* type of B; DT_F32: the type of the computation */
    dt_epilogue epilogue;
    dt_matmul_sums sums_of;
} WAYS[] = {
    {.name = "plain"},
    {"into float", .float_c = true},
    {"bias", .bias = true},
    {"bias and addend", .bias = true, .addend = true},
    {"float addend", .addend = true, .float_addend = true},
    {"added to a gradient, sums of A", .float_c = true, .accumulate = true, .sums_of = DT_SUMS_OF_A},
    {"added, sums of B", .accumulate = true, .sums_of = DT_SUMS_OF_B, .narrow_sums = true},
    {"bias and activation", .bias = true, .epilogue = DT_EPILOGUE_ACT},
    {"slope of an activation, sums of C", .epilogue = DT_EPILOGUE_ACT_BACKWARD, .sums_of = DT_SUMS_OF_C},
    {"batch-invariant", .bias = true, .batch_invariant = true},
    {"B of int8, bias and addend", .bias = true, .addend = true, .stored = DT_I8},
    {"B of int8, batch-invariant", .batch_invariant = true, .stored = DT_I8},
    {"B of nf4, addend", .addend = true, .stored = DT_NF4X2},
    {"B of nf4, batch-invariant", .bias = true, .batch_invariant = true, .stored = DT_NF4X2},
};
enum { N_WAYS = sizeof WAYS / sizeof WAYS[0] };

static array put_any(check *c, int64_t n)
{
    uint8_t *q = malloc((size_t)n + 1);
    for (int64_t i = 0; i < n && q; i++) q[i] = (uint8_t)dt_mix64((uint64_t)(n + i));
    if (!q && c->err == DT_OK) c->err = dt_fail(DT_ERR_MEMORY, "self-check: out of memory for a matrix");
    const array a = q ? put_bytes(c, q, 1, n) : (array){0};
    free(q);
    return a;
}

/* B and its scales. */
typedef struct stored {
    array b, scale, blocks;
} stored;
static stored put_b(check *c, const struct matmul_way *w, dt_dtype dt, int64_t rows, int64_t ld)
{
    const int64_t n = rows * ld;
    switch (w->stored) {
    case DT_I8:
        return (stored){.b = put_any(c, n), .scale = put(c, DT_F32, rows, 1.0 / 127)};
    case DT_NF4X2:
        return (stored){.b = put_any(c, (n + 1) / 2),
                        .scale = put(c, DT_F32, 2 * dt_nf4_groups(n), 0.5),
                        .blocks = put_any(c, dt_nf4_blocks(n))};
    default:
        return (stored){.b = put(c, dt, n, 1)};
    }
}

static bool matmul(check *c, const struct matmul_way *w, dt_dtype dt, const int64_t size[3], int form)
{
    const int64_t m = size[0], n = size[1], k = size[2], odd = k % 2 * 3;
    const bool ta = form & 1, tb = form >> 1, has_aux = w->epilogue != DT_EPILOGUE_NONE;
    dt_matmul mm = dt_dense_matmul(m, n, k, ta, tb, dt, w->float_c ? DT_F32 : dt);
    mm.lda += odd, mm.ldb += odd, mm.ldc += odd, mm.ldd = n + 2 * odd, mm.ld_aux = n + odd;
    mm.addend_dtype = w->float_addend ? DT_F32 : dt;
    mm.batch_invariant = w->batch_invariant;
    mm.epilogue = w->epilogue;
    mm.act = c->whole ? DT_ACT_GELU_TANH : (dt_activation)((m + form) % DT_N_ACT);
    mm.sums_of = w->sums_of;
    mm.sums_dtype = !w->narrow_sums ? DT_F32 : dt == DT_F32 ? DT_BF16 : dt;
    mm.accumulate = mm.accumulate_sums = w->accumulate;
    begin(c, "matmul %dx%dx%d, %s%s, %s, %s", (int)m, (int)n, (int)k, ta ? "A'" : "A", tb ? "B'" : "B",
          dt_dtype_name(dt), w->name);
    const int64_t n_sums = w->sums_of == DT_SUMS_OF_A ? m : n;
    const stored b = put_b(c, w, dt, tb ? n : k, mm.ldb);
    const array a = put(c, dt, (ta ? k : m) * mm.lda, 1), bias = put(c, dt, n, 1),
                d = put(c, mm.addend_dtype, m * mm.ldd, 1),
                aux = w->epilogue == DT_EPILOGUE_ACT ? room(c, dt, m * mm.ld_aux) : put(c, dt, m * mm.ld_aux, 3),
                to = w->accumulate ? put(c, mm.c_dtype, m * mm.ldc, 1) : room(c, mm.c_dtype, m * mm.ldc),
                sums = w->accumulate ? put(c, mm.sums_dtype, n_sums, 1) : room(c, mm.sums_dtype, n_sums);
    c->matmul = &mm; // cppcheck-suppress autoVariables ; not read after end_matmul
    EACH_DEVICE (c) {
        if (w->stored != DT_F32)
            mm.b_scaled = (dt_scaled){.how = w->stored == DT_NF4X2 ? DT_SCALE_NF4
                                             : form & 2 && n % 2   ? DT_SCALE_MATRIX
                                                                   : DT_SCALE_ROWS,
                                      .stored = w->stored,
                                      .scale = at(c, b.scale),
                                      .blocks = w->stored == DT_NF4X2 ? at(c, b.blocks) : NULL};
        mm.bias = w->bias ? at(c, bias) : NULL;
        mm.addend = w->addend ? at(c, d) : NULL;
        mm.aux = has_aux ? at(c, aux) : NULL;
        mm.sums = w->sums_of != DT_SUMS_NONE ? at(c, sums) : NULL;
        RUN(c, matmul, &mm, at(c, a), at(c, b.b), at(c, to));
    }
    /* an epilogue, or the sum with bias or D, may start from the rounded P (dt_matmul) */
    const int n_added = w->float_c || w->batch_invariant ? 0 : w->bias + (w->addend || w->accumulate);
    compare(c, "C", to, near(of_sum((double)k) + (has_aux ? 256 : 0), n_added + (has_aux ? 3 : 0), dt));
    if (w->epilogue == DT_EPILOGUE_ACT) compare(c, "aux", aux, near(of_sum((double)k), 0, dt));
    if (w->sums_of != DT_SUMS_NONE)
        compare(c, "sums", sums, near(of_sum((double)(w->sums_of == DT_SUMS_OF_C ? m + k : k)), has_aux ? 4 : 0, dt));
    return end_matmul(c);
}

/* Of a matrix stored as values, by rows or by columns, as int8 or as nf4. */
static void magnitudes(check *c, dt_dtype dt, dt_dtype kind, bool in_first)
{
    enum { OUT = 37, IN = 192, R = 5 };
    dt_row_lengths d = {
        .n_out = OUT, .n_in = IN, .r = R, .w_ld = in_first ? OUT : IN, .in_first = in_first, .scale = 0.5f, .dt = dt};
    begin(c, "magnitude_factors, %s, weights in %s%s", dt_dtype_name(dt), dt_dtype_name(kind),
          in_first ? ", as columns" : "");
    const struct matmul_way way = {.stored = kind};
    const stored w = put_b(c, &way, dt, OUT, IN);
    const array a = put(c, dt, (int64_t)R * IN, 1), b = put(c, dt, (int64_t)OUT * R, 1), m = put(c, dt, OUT, 2),
                factor = result(c, "factor", near(64 + of_sum(IN), 0, dt), room(c, dt, OUT)),
                inverse = result(c, "inverse", near(64 + of_sum(IN), 0, dt), room(c, dt, OUT));
    EACH_DEVICE (c) {
        if (kind != DT_F32)
            d.w_scaled = (dt_scaled){.how = kind == DT_NF4X2 ? DT_SCALE_NF4 : DT_SCALE_ROWS,
                                     .stored = kind,
                                     .scale = at(c, w.scale),
                                     .blocks = kind == DT_NF4X2 ? at(c, w.blocks) : NULL};
        RUN(c, magnitude_factors, &d, at(c, w.b), at(c, a), at(c, b), at(c, m), at(c, factor), at(c, inverse), dt);
    }
    end(c);
}

/* True if the way supports this layout of A and B, one of three. */
static bool has_form(const struct matmul_way *w, int form)
{
    const bool ta = form & 1;
    return !ta || (!w->batch_invariant && w->stored == DT_F32);
}

static void matmuls(check *c, dt_dtype dt)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {77, 131, 95}, {128, 192, 64}, {3, 520, 259}, {300, 40, 512}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        c->whole = sizes[s][1] % 8 == 0 && sizes[s][2] % 8 == 0; /* aligned sizes are for a library and its GELU */
        for (int form = 0; form < 3; form++)
            for (int w = 0; w < N_WAYS; w++)
                while (has_form(&WAYS[w], form) && matmul(c, &WAYS[w], dt, sizes[s], form)) {
                }
    }
    c->whole = false;
    for (int in_first = 0; in_first < 2; in_first++) magnitudes(c, dt, DT_F32, in_first);
    magnitudes(c, dt, DT_I8, false);
    magnitudes(c, dt, DT_NF4X2, false);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct attention_form {
    const char *name;
    int n_heads, n_kv_heads, head_dim, window;
    bool bidirectional;
    float dropout_p;
    int longest; /* upper bound of the lengths, which selects kernels; 0: their maximum */
    float softcap;
    bool sinks;
    int block, ahead;
} attention_form;

enum { N_SEQ = 4, N_TOK = 65 + 1 + 0 + 130 };
static const int32_t Q_START[N_SEQ + 1] = {0, 65, 66, 66, N_TOK}, Q_LEN[N_SEQ] = {65, 1, 0, 130};

/* Scores are below sqrt(head_dim). Their errors become relative errors of the exponentials. */
static double of_score(int head_dim) { return 64 + 4 * (4 + sqrt((double)head_dim)) * sqrt((double)head_dim); }

/* P and, in backward, its gradient may be rounded to the type of activations before their matmuls. The first rows
 * see few keys. There the error relates to |v| <= 1, up to 6 times the root mean square. Dropout adds a third. */
static void attention(check *c, const attention_form *f, dt_dtype dt)
{
    const int64_t width = (int64_t)f->n_heads * f->head_dim, kv_width = (int64_t)f->n_kv_heads * f->head_dim;
    uint64_t key[N_TOK];
    int32_t later[N_TOK] = {0};
    for (int t = 0; t < N_TOK; t++) key[t] = dt_mix64((uint64_t)t);
    for (int t = 3; t < 3 + f->ahead; t++) later[t] = later[70 + t] = f->ahead + 2 - t;
    dt_attention how = {.n_seq = N_SEQ,
                        .n_heads = f->n_heads,
                        .n_kv_heads = f->n_kv_heads,
                        .head_dim = f->head_dim,
                        .n_tok = N_TOK,
                        .max_q_len = f->longest ? f->longest : 130,
                        .max_kv_len = f->longest ? f->longest : 130,
                        .q_ld = width + 2 * kv_width,
                        .kv_ld = width + 2 * kv_width,
                        .o_ld = width,
                        .scale = 1 / sqrtf((float)f->head_dim),
                        .softcap = f->softcap,
                        .window = f->window,
                        .block = f->block,
                        .bidirectional = f->bidirectional,
                        .max_ahead = f->ahead,
                        .dt = dt,
                        .dropout_p = f->dropout_p,
                        .dropout_key = 77,
                        .dsinks_dtype = DT_F32};
    begin(c, "attention_forward, attention_backward, %s, %d heads of %d, %s%s", f->name, f->n_heads, f->head_dim,
          dt_dtype_name(dt), c->whole ? "" : ", arrays anywhere");
    const int64_t scratch_elems = LARGER_OF(c, attention_scratch_elems, &how);
    const array q_start = put_bytes(c, Q_START, sizeof *Q_START, N_SEQ + 1),
                kv_len = put_bytes(c, Q_LEN, sizeof *Q_LEN, N_SEQ), keys = put_bytes(c, key, sizeof *key, N_TOK),
                later_keys = put_bytes(c, later, sizeof *later, N_TOK), qkv = put(c, dt, N_TOK * how.q_ld, 1),
                dout = put(c, dt, N_TOK * width, 1),
                out = result(c, "out", near(of_score(f->head_dim), 8, dt), room(c, dt, N_TOK * width)),
                lse =
                    result(c, "lse", near(of_score(f->head_dim), 0, dt), room(c, DT_F32, (int64_t)N_TOK * f->n_heads)),
                dqkv = result(c, "the gradients of q, k and v", near(8 * of_score(f->head_dim), 16, dt),
                              room(c, dt, N_TOK * how.q_ld)),
                scratch = room(c, DT_F32, scratch_elems), sinks = put(c, dt, f->n_heads, 1),
                dsinks = result(c, "the gradient of sinks", near(8 * of_score(f->head_dim), 16, dt),
                                room(c, DT_F32, f->n_heads));
    const array q = qkv, k = part(qkv, width, 0), v = part(qkv, width + kv_width, 0), dq = dqkv,
                dk = part(dqkv, width, 0), dv = part(dqkv, width + kv_width, 0);
    EACH_DEVICE (c) {
        how.q_start = how.kv_start = at(c, q_start), how.kv_len = at(c, kv_len);
        how.token_key = f->dropout_p > 0 ? at(c, keys) : NULL;
        how.ahead = f->ahead ? at(c, later_keys) : NULL;
        if (f->sinks) how.sinks = at(c, sinks), how.dsinks = at(c, dsinks);
        RUN(c, attention_forward, &how, at(c, q), at(c, k), at(c, v), at(c, out), at(c, lse));
        RUN(c, attention_backward, &how, at(c, q), at(c, k), at(c, v), at(c, out), at(c, lse), at(c, dout), at(c, dq),
            at(c, dk), at(c, dv), at(c, scratch));
    }
    end(c);
}

/* A few queries, each with cached keys, as in generation. Two of the sequences share a prefix. */
static void attention_over_a_cache(check *c, dt_dtype dt, bool extras)
{
    enum { SLOTS = 3, LEN = 200, HEADS = 6, KV_HEADS = 2, DIM = 64, QUERIES = 1 + 3 + 1 };
    const int32_t q_start[SLOTS + 1] = {0, 1, 4, QUERIES}, kv_start[SLOTS] = {0, LEN, 2 * LEN},
                                  kv_len[SLOTS] = {40, LEN, 1}, shared_start[SLOTS] = {2 * LEN + 1, 2 * LEN + 1, 0},
                                  shared_len[SLOTS] = {33, 150, 0};
    dt_attention how = {.n_seq = SLOTS,
                        .n_heads = HEADS,
                        .n_kv_heads = KV_HEADS,
                        .head_dim = DIM,
                        .n_tok = QUERIES,
                        .max_q_len = 3,
                        .max_kv_len = LEN,
                        .q_ld = HEADS * DIM,
                        .kv_ld = KV_HEADS * DIM,
                        .o_ld = HEADS * DIM,
                        .scale = 0.125f,
                        .softcap = extras ? 0.5f : 0,
                        .dt = dt,
                        .batch_invariant = true};
    begin(c, "attention_forward over a cache%s, %s", extras ? " with soft-cap and sinks" : "", dt_dtype_name(dt));
    const array queries = put_bytes(c, q_start, sizeof *q_start, SLOTS + 1),
                starts = put_bytes(c, kv_start, sizeof *kv_start, SLOTS),
                lens = put_bytes(c, kv_len, sizeof *kv_len, SLOTS),
                shared_starts = put_bytes(c, shared_start, sizeof *shared_start, SLOTS),
                shared_lens = put_bytes(c, shared_len, sizeof *shared_len, SLOTS),
                q = put(c, dt, QUERIES * how.q_ld, 1), k = put(c, dt, SLOTS * LEN * how.kv_ld, 1),
                v = put(c, dt, SLOTS * LEN * how.kv_ld, 1), sinks = put(c, dt, HEADS, 1),
                out = result(c, "result", near(of_score(DIM), 8, dt), room(c, dt, QUERIES * how.o_ld));
    EACH_DEVICE (c) {
        how.q_start = at(c, queries), how.kv_start = at(c, starts), how.kv_len = at(c, lens);
        how.shared_start = at(c, shared_starts), how.shared_len = at(c, shared_lens);
        how.sinks = extras ? at(c, sinks) : NULL;
        RUN(c, attention_forward, &how, at(c, q), at(c, k), at(c, v), at(c, out), NULL);
    }
    end(c);
}

static void attentions(check *c, dt_dtype dt)
{
    static const attention_form forms[] = {
        {"causal", 2, 2, 64, .longest = 0},
        {"grouped keys", 6, 2, 72, .longest = 0},
        {"window", 2, 1, 128, .window = 33},
        {"both directions", 3, 3, 80, .bidirectional = true},
        {"narrow heads", 2, 1, 20, .longest = 0},
        {"heads of 96", 2, 1, 96, .longest = 0},
        {"dropout", 2, 2, 64, .dropout_p = 0.25f},
        {"as long sequences", 2, 1, 128, .longest = 4096},
        {"soft-cap", 4, 2, 64, .softcap = 0.5f},
        {"soft-cap in a window", 2, 1, 256, .window = 33, .softcap = 0.5f},
        {"soft-cap and dropout", 2, 2, 64, .dropout_p = 0.25f, .softcap = 0.5f},
        {"sinks", 4, 1, 64, .window = 33, .sinks = true},
        {"blocks of keys", 2, 1, 64, .block = 16},
        {"images in a window", 2, 1, 64, .window = 33, .ahead = 50},
        {"soft-cap and sinks", 2, 1, 96, .softcap = 0.5f, .sinks = true},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int whole = 0; whole < 2; whole++) {
            c->whole = whole;
            attention(c, &forms[i], dt);
        }
    c->whole = false;
    attention_over_a_cache(c, dt, false);
    attention_over_a_cache(c, dt, true);
}

/* ---- the classifier ---------------------------------------------------------------------------------------------- */

enum { N_ROWS = 7 };

static void classifier(check *c, int64_t n_vocab, dt_dtype dlogits, int terms)
{
    const int64_t ld = n_vocab + 3;
    int32_t target[N_ROWS] = {-1};
    float weight[N_ROWS] = {1, 0.5f, -1, 2, 0, 1, 0.25f};
    for (int r = 1; r < N_ROWS; r++) target[r] = (int32_t)(dt_mix64((uint64_t)r) % (uint64_t)n_vocab);
    dt_classifier cl = {.n_rows = N_ROWS,
                        .n_vocab = n_vocab,
                        .logits_ld = ld,
                        .inv_temperature = terms ? 0.7f : 1,
                        .dlogits_dtype = dlogits,
                        .label_smoothing = terms & 1 ? 0.1f : 0,
                        .z_loss = terms & 1 ? 1e-3f : 0,
                        .softcap = terms & 1 ? 30 : 0,
                        .kl_mix = terms & 4 ? 0.3f : 0,
                        .weight_by_p = terms < 2 && n_vocab < 2000,
                        .ref_ld = ld};
    begin(c, "classifier over %d classes, %s, gradients in %s", (int)n_vocab,
          terms == 0   ? "loss"
          : terms == 1 ? "smoothing, z-loss and softcap"
          : terms == 2 ? "entropy and divergence"
                       : "divergence of a mixture",
          dt_dtype_name(dlogits));
    const array logits = put(c, DT_F32, N_ROWS * ld, 5), ref = put(c, DT_F32, N_ROWS * ld, 5),
                targets = put_bytes(c, target, sizeof *target, N_ROWS),
                weights = put_bytes(c, weight, sizeof *weight, N_ROWS),
                logp = result(c, "logp", near(256, 0, DT_F32), room(c, DT_F32, N_ROWS)),
                entropy = result(c, "entropy", near(1024, 0, DT_F32), room(c, DT_F32, N_ROWS)),
                kl = result(c, "kl", near(4096, 0, DT_F32), room(c, DT_F32, N_ROWS)),
                loss = result(c, "loss", near(1024, 0, DT_F32), room(c, DT_F32, N_ROWS)),
                squares = result(c, "sum of squared probabilities", near(1024, 0, DT_F32), room(c, DT_F32, N_ROWS)),
                mean = result(c, "mean logit", near(1024, 0, DT_F32), room(c, DT_F32, N_ROWS)),
                hit = result(c, "hit", EXACT, room_bytes(c, 1, N_ROWS));
    EACH_DEVICE (c) {
        cl.target = at(c, targets), cl.weight = at(c, weights);
        cl.entropy_weight = cl.kl_weight = terms & 2 ? at(c, weights) : NULL;
        cl.ref_logits = terms & 2 ? at(c, ref) : NULL, cl.kl = terms & 2 ? at(c, kl) : NULL;
        cl.logp = at(c, logp), cl.hit = at(c, hit), cl.entropy = at(c, entropy), cl.loss = at(c, loss);
        cl.log_sum_squares = terms == 1 ? at(c, squares) : NULL, cl.mean_logit = terms ? at(c, mean) : NULL;
        if (cl.softcap > 0) RUN(c, softcap, at(c, logits), cl.softcap, N_ROWS, n_vocab, ld);
        RUN(c, classifier, &cl, at(c, logits));
    }
    /* e^x for x down to -10, summed over all classes; means multiply it by logarithms of the same magnitude */
    for (int r = 0; r < N_ROWS; r++) {
        array row = part(logits, r * ld, n_vocab);
        row.dt = dlogits, row.elem_size = dt_dtype_size(dlogits);
        compare(c, "the logits' gradient", row, near(terms & 2 ? 4096 : 512, 0, dlogits));
    }
    end(c);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static void tokens(check *c, int64_t n_vocab)
{
    enum { ROWS = 5, K = 9 };
    const int64_t words = (n_vocab + 31) / 32;
    const dt_choice ways[] = {{.greedy = true, .temperature = 1, .top_p = 1},
                              {.temperature = 0.8, .top_p = 1},
                              {.temperature = 1.2, .top_k = 40, .top_p = 0.9, .min_p = 0.01}};
    double u[ROWS];
    int32_t asked[ROWS * K];
    for (int r = 0; r < ROWS; r++) u[r] = (double)(dt_mix64((uint64_t)r + 5) >> 11) * 0x1p-53;
    for (int i = 0; i < ROWS * K; i++) asked[i] = i % 4 ? (int32_t)(dt_mix64((uint64_t)i) % (uint64_t)n_vocab) : -1;
    begin(c, "draw_tokens, top_tokens, log_softmax_at, fill_rest, %d classes", (int)n_vocab);
    dt_token_rows rows = {.n_rows = ROWS, .n_vocab = n_vocab, .logits_ld = n_vocab + 1, .allowed_ld = words};
    const int64_t scratch = (LARGER_OF(c, draw_scratch_nbytes, &rows) + 63) / 64;
    const array logits = put(c, DT_F32, ROWS * rows.logits_ld, 6), uniform = put_bytes(c, u, sizeof *u, ROWS),
                to_find = put_bytes(c, asked, sizeof *asked, ROWS * K), mask = put(c, DT_F32, ROWS * words, 1e30),
                drawn = result(c, "draw_tokens", EXACT, room_bytes(c, sizeof(int32_t), 4 * ROWS)),
                best = result(c, "top_tokens", EXACT, room_bytes(c, sizeof(int32_t), 2 * ROWS * K)),
                best_logit = result(c, "top_tokens' logits", EXACT, room(c, DT_F32, 2 * ROWS * K)),
                logp = room_bytes(c, sizeof(double), ROWS * K), filled = room(c, DT_F32, ROWS * rows.logits_ld),
                work = room_bytes(c, 64, scratch);
    float known[ROWS * K];
    for (int i = 0; i < ROWS * K; i++) {
        known[i] = -2.5f - 0.1f * (float)(i % K);
        for (int j = i / K * K; j < i; j++)
            if (asked[j] == asked[i]) asked[i] = -1; /* no token occurs twice */
    }
    const array to_fill = put_bytes(c, asked, sizeof *asked, ROWS * K),
                of_known = put_bytes(c, known, sizeof *known, ROWS * K);
    enum { LISTED = 40 };
    int32_t listed[LISTED], places[ROWS], lens[ROWS];
    for (int i = 0; i < LISTED; i++) listed[i] = (int32_t)(n_vocab * i / LISTED);
    for (int r = 0; r < ROWS; r++) places[r] = r, lens[r] = LISTED - 2 * r;
    const array list = put_bytes(c, listed, sizeof *listed, LISTED),
                list_start = put_bytes(c, places, sizeof *places, ROWS),
                list_len = put_bytes(c, lens, sizeof *lens, ROWS);
    EACH_DEVICE (c) {
        rows.allowed = at(c, mask); /* random bits */
        rows.list = rows.list_start = rows.list_len = NULL;
        for (int w = 0; w < 3; w++)
            RUN(c, draw_tokens, &rows, &ways[w], at(c, logits), at(c, uniform), (int32_t *)at(c, drawn) + w * ROWS,
                at(c, work));
        RUN(c, top_tokens, &rows, at(c, logits), K, at(c, best), at(c, best_logit));
        rows.list = at(c, list), rows.list_start = at(c, list_start), rows.list_len = at(c, list_len);
        RUN(c, draw_tokens, &rows, &ways[1], at(c, logits), at(c, uniform), (int32_t *)at(c, drawn) + 3 * ROWS,
            at(c, work));
        RUN(c, top_tokens, &rows, at(c, logits), K, (int32_t *)at(c, best) + ROWS * K,
            (float *)at(c, best_logit) + ROWS * K);
        RUN(c, log_softmax_at, &rows, at(c, logits), 1 / 0.7, K, at(c, to_find), at(c, logp));
        RUN(c, fill_rest, &rows, at(c, logits), 1 / 0.7f, K, at(c, to_fill), at(c, of_known), at(c, filled));
    }
    compare_doubles(c, "log_softmax_at", logp, 0x1p-24);
    for (int r = 0; r < ROWS; r++)
        compare(c, "fill_rest", part(filled, r * rows.logits_ld, n_vocab), near(256, 0, DT_F32));
    end(c);
}

void check_matrix_cases(check *c)
{
    for (int t = 0; t < N_TYPES; t++) {
        matmuls(c, TYPES[t]);
        attentions(c, TYPES[t]);
        for (int i = 0; i < 4; i++) {
            classifier(c, 1003, TYPES[t], i < 3 ? i : 6);
            classifier(c, 20011, TYPES[t], i < 3 ? i : 6);
        }
    }
    tokens(c, 67);
    tokens(c, 20011);
}
