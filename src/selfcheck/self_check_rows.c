/* self_check_rows.c - cases of the self-check: single elements, rows, norms, embedding, optimizers, sums, streams. */
#include "self_check.h"
#include "dtrain/device/block8.h"

static const char *const ACTS[] = {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu"};

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static void conversions(check *c)
{
    for (int way = 0; way < 2 * N_TYPES * N_TYPES; way++) {
        const dt_dtype src = TYPES[way % N_TYPES], dst = TYPES[way / N_TYPES % N_TYPES];
        const bool accumulate = way >= N_TYPES * N_TYPES;
        const int64_t n = 10007;
        begin(c, "zero, convert, add_into, add, scale from %s to %s", dt_dtype_name(src), dt_dtype_name(dst));
        const array x = put(c, src, n, 3), y = result(c, "add_into", EXACT, put(c, dst, n, 2)),
                    z = result(c, "convert", EXACT, room(c, dst, n)), sum = result(c, "add", EXACT, room(c, src, n)),
                    scaled = result(c, "scale", EXACT, room(c, src, n)),
                    zeros = result(c, "zero", EXACT, room(c, dst, n));
        EACH_DEVICE (c) {
            RUN(c, zero, at(c, zeros), (size_t)n * dt_dtype_size(dst));
            RUN(c, convert, at(c, x), src, at(c, z), dst, n);
            RUN(c, add_into, at(c, x), src, at(c, y), dst, accumulate, n);
            RUN(c, add, at(c, x), at(c, x), at(c, sum), src, n);
            RUN(c, scale, at(c, x), 0.3f, at(c, scaled), src, n);
        }
        end(c);
    }
}

static void activations(check *c, dt_dtype dt)
{
    const int64_t n_rows = 37, width = 129, n = n_rows * width;
    for (int act = 0; act < DT_N_ACT; act++) {
        begin(c, "act_forward, act_backward, %s, %s", ACTS[act], dt_dtype_name(dt));
        array x = put(c, dt, n, 8), dy = result(c, "act_backward", near(256, 0, dt), put(c, dt, n, 1)),
              y = result(c, "act_forward", near(64, 0, dt), room(c, dt, n));
        EACH_DEVICE (c) {
            RUN(c, act_forward, (dt_activation)act, at(c, x), at(c, y), dt, n);
            RUN(c, act_backward, (dt_activation)act, at(c, x), at(c, dy), at(c, dy), dt, n);
        }
        end(c);

        begin(c, "glu_forward, glu_backward, %s, %s", ACTS[act], dt_dtype_name(dt));
        x = put(c, dt, 2 * n, 4), dy = put(c, dt, n, 1), y = result(c, "glu_forward", near(64, 1, dt), room(c, dt, n));
        const array dx = result(c, "glu_backward", near(256, 1, dt), room(c, dt, 2 * n));
        EACH_DEVICE (c) {
            RUN(c, glu_forward, (dt_activation)act, 0, at(c, x), at(c, y), dt, n_rows, width);
            RUN(c, glu_backward, (dt_activation)act, 0, at(c, x), at(c, dy), at(c, dx), dt, n_rows, width);
        }
        end(c);
    }
    begin(c, "glu_forward, glu_backward with a limit, %s", dt_dtype_name(dt));
    const array x = put(c, dt, 2 * n, 4), dy = put(c, dt, n, 1),
                y = result(c, "glu_forward", near(64, 1, dt), room(c, dt, n)),
                dx = result(c, "glu_backward", near(256, 1, dt), room(c, dt, 2 * n));
    EACH_DEVICE (c) {
        RUN(c, glu_forward, DT_ACT_QUICK_GELU, 3.0f, at(c, x), at(c, y), dt, n_rows, width);
        RUN(c, glu_backward, DT_ACT_QUICK_GELU, 3.0f, at(c, x), at(c, dy), at(c, dx), dt, n_rows, width);
    }
    end(c);
}

static void dropout(check *c, dt_dtype dt)
{
    const int64_t n_tok = 53, width = 131;
    uint64_t key[53];
    for (int t = 0; t < n_tok; t++) key[t] = dt_mix64((uint64_t)t);
    begin(c, "dropout, %s", dt_dtype_name(dt));
    const array x = put(c, dt, n_tok * width, 1), y = result(c, "dropout", near(4, 0, dt), room(c, dt, n_tok * width)),
                sum = result(c, "dropout and sum", near(4, 1, dt), put(c, dt, n_tok * width, 1)),
                keys = put_bytes(c, key, sizeof *key, n_tok);
    EACH_DEVICE (c) {
        RUN(c, dropout, at(c, x), NULL, at(c, y), 0.3f, 77, at(c, keys), n_tok, width, dt);
        RUN(c, dropout, at(c, x), at(c, sum), at(c, sum), 0.3f, 77, at(c, keys), n_tok, width, dt);
    }
    end(c);
}

static void add_noise(check *c, dt_dtype dt)
{
    const int64_t n_tok = 29, width = 131;
    uint64_t key[29];
    for (int t = 0; t < n_tok; t++) key[t] = dt_mix64((uint64_t)t);
    begin(c, "add_noise, %s", dt_dtype_name(dt));
    const array x = result(c, "add_noise", near(8, 1, dt), put(c, dt, n_tok * width, 1)),
                bound = put(c, DT_F32, n_tok, 2), keys = put_bytes(c, key, sizeof *key, n_tok);
    EACH_DEVICE (c) RUN(c, add_noise, at(c, x), at(c, bound), 78, at(c, keys), n_tok, width, dt);
    end(c);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void rows_by_index(check *c, dt_dtype dt)
{
    const int64_t width = 67;
    const int32_t index[] = {4, -1, 0, 6, -3, 1};
    begin(c, "gather_rows, scatter_rows, %s", dt_dtype_name(dt));
    const array x = put(c, dt, 7 * width, 1), some = result(c, "gather_rows", EXACT, room(c, dt, 6 * width)),
                y = result(c, "scatter_rows", EXACT, put(c, dt, 7 * width, 1)),
                from = put_bytes(c, index, sizeof *index, 6);
    EACH_DEVICE (c) {
        RUN(c, gather_rows, at(c, x), at(c, from), at(c, some), 6, width, dt);
        RUN(c, scatter_rows, at(c, some), at(c, from), at(c, y), 6, width, dt);
    }
    end(c);
}

static void patches(check *c, dt_dtype dt, int64_t size, int64_t side, int lead)
{
    enum { IMAGES = 2, MAX_SIZE = 48 };
    uint8_t pixel[IMAGES * MAX_SIZE * MAX_SIZE * 3];
    const dt_patches p = {.n_images = IMAGES,
                          .size = size,
                          .patch = side,
                          .lead = lead,
                          .scale = {0.017f, -0.3f, 1},
                          .shift = {-2.1f, 0.7f, 0},
                          .dt = dt};
    for (size_t i = 0; i < sizeof pixel; i++) pixel[i] = (uint8_t)dt_mix64(i);
    begin(c, "patches of %d in images of %d, %s", (int)side, (int)size, dt_dtype_name(dt));
    const array from = put_bytes(c, pixel, 1, IMAGES * size * size * 3),
                out = result(c, "result", EXACT, room(c, dt, IMAGES * dt_patches_rows(&p) * dt_patches_width(&p)));
    EACH_DEVICE (c) RUN(c, patches, &p, at(c, from), at(c, out));
    end(c);
}

/* Both devices read the angles from a table, so they rotate equally. way & 1: norms; & 2: k and v are written to
 * rows of a cache; & 4: the norms add 1 to their weights; & 8: half of a head rotates; & 16: neighbours rotate, those
 * of q by a table of their own. */
static void heads(check *c, dt_dtype dt, int head_dim, int way)
{
    enum { TOK = 61, POS = 20, HQ = 3, HK = 2 };
    const int64_t d = head_dim, x_ld = (HQ + 2 * HK) * d + head_dim % 16, q_ld = HQ * d, kv_ld = 2 * HK * d;
    int32_t pos[TOK], row[TOK];
    for (int t = 0; t < TOK; t++) pos[t] = t * 7 % POS, row[t] = (t * 5 + 3) % TOK;
    begin(c, "heads_forward, heads_backward, heads of %d%s%s%s%s%s, %s", head_dim, way & 1 ? ", norms" : "",
          way & 4 ? " of weights plus 1" : "", way & 2 ? ", into a cache" : "", way & 8 ? ", in part" : "",
          way & 16 ? ", neighbours" : "", dt_dtype_name(dt));
    const tolerance of_norm = way & 1 ? near(32, 4, dt) : near(8, 0, dt),
                    of_dx = way & 1 ? near(64, 4, dt) : near(8, 0, dt);
    const array x = put(c, dt, TOK * x_ld, 1), q = result(c, "q", of_norm, room(c, dt, TOK * q_ld)),
                kv = result(c, "k and v", of_norm, room(c, dt, TOK * kv_ld)),
                rstd_q = result(c, "rstd of q", near(32, 0, dt), room(c, DT_F32, TOK * HQ)),
                rstd_k = result(c, "rstd of k", near(32, 0, dt), room(c, DT_F32, TOK * HK)), w = put(c, dt, 2 * d, 1),
                dq = result(c, "dq", of_dx, put(c, dt, TOK * q_ld, 1)),
                dk = result(c, "dk", of_dx, put(c, dt, TOK * kv_ld, 1)),
                dw =
                    result(c, "gradients of the weights", way & 1 ? near(128, 4, dt) : EXACT, put(c, DT_F32, 2 * d, 1)),
                table = put(c, DT_F32, POS * d, 1), q_table = put(c, DT_F32, POS * d, 1),
                at_pos = put_bytes(c, pos, sizeof *pos, TOK), at_row = put_bytes(c, row, sizeof *row, TOK),
                scratch = room(c, DT_F32, LARGER_OF(c, norm_scratch_elems, d));
    EACH_DEVICE (c) {
        const dt_heads h = {.n_tok = TOK,
                            .n_heads = HQ,
                            .n_kv_heads = HK,
                            .head_dim = head_dim,
                            .x_ld = x_ld,
                            .q_ld = q_ld,
                            .kv_ld = kv_ld,
                            .kv_row = way & 2 ? at(c, at_row) : NULL,
                            .q_norm = way & 1 ? at(c, w) : NULL,
                            .k_norm = way & 1 ? at(c, part(w, d, d)) : NULL,
                            .eps = 1e-5f,
                            .plus_one = way & 4,
                            .pos = at(c, at_pos),
                            .cos_sin = at(c, table),
                            .q_cos_sin = way & 16 ? at(c, q_table) : NULL,
                            .rotary_dim = way & 8 ? head_dim / 2 : 0,
                            .neighbours = way & 16,
                            .dt = dt};
        RUN(c, heads_forward, &h, at(c, x), at(c, q), at(c, kv), way & 2 ? at(c, part(kv, HK * d, 0)) : NULL,
            way & 1 ? at(c, rstd_q) : NULL, way & 1 ? at(c, rstd_k) : NULL);
        RUN(c, heads_backward, &h, at(c, x), at(c, rstd_q), at(c, rstd_k), at(c, dq), at(c, dk), at(c, dw),
            at(c, part(dw, d, d)), DT_F32, true, at(c, scratch));
    }
    end(c);
}

/* way & 1: k and v are written to rows of a cache; & 2: neighbours rotate. */
static void latent(check *c, dt_dtype dt, int way)
{
    enum { TOK = 61, POS = 20, H = 3, N = 40, R = 24, V = 33, D = N + R };
    dt_latent l = {.n_tok = TOK,
                   .n_heads = H,
                   .nope_dim = N,
                   .rope_dim = R,
                   .v_dim = V,
                   .xq_ld = H * D + 1,
                   .xkv_ld = H * (N + V),
                   .xr_ld = R + 3,
                   .q_ld = H * D,
                   .kv_ld = H * (D + V),
                   .neighbours = way & 2,
                   .dt = dt};
    int32_t pos[TOK], row[TOK];
    for (int t = 0; t < TOK; t++) pos[t] = t * 7 % POS, row[t] = (t * 5 + 3) % TOK;
    begin(c, "latent_forward, latent_backward%s%s, %s", way & 1 ? ", into a cache" : "", way & 2 ? ", neighbours" : "",
          dt_dtype_name(dt));
    const array xq = put(c, dt, TOK * l.xq_ld, 1), xkv = put(c, dt, TOK * l.xkv_ld, 1),
                xr = put(c, dt, TOK * l.xr_ld, 1), q = result(c, "q", near(8, 0, dt), room(c, dt, TOK * l.q_ld)),
                kv = result(c, "k and v", near(8, 0, dt), room(c, dt, TOK * l.kv_ld)), dq = put(c, dt, TOK * l.q_ld, 1),
                dkv = put(c, dt, TOK * l.kv_ld, 1), dxq = result(c, "dxq", near(8, 0, dt), room(c, dt, TOK * l.xq_ld)),
                dxkv = result(c, "dxkv", EXACT, room(c, dt, TOK * l.xkv_ld)),
                dxr = result(c, "dxr", near(32, 0, dt), room(c, dt, TOK * l.xr_ld)), table = put(c, DT_F32, POS * R, 1),
                at_pos = put_bytes(c, pos, sizeof *pos, TOK), at_row = put_bytes(c, row, sizeof *row, TOK);
    EACH_DEVICE (c) {
        l.pos = at(c, at_pos), l.cos_sin = at(c, table), l.kv_row = way & 1 ? at(c, at_row) : NULL;
        RUN(c, latent_forward, &l, at(c, xq), at(c, xkv), at(c, xr), at(c, q), at(c, kv), at(c, part(kv, H * D, 0)));
        RUN(c, latent_backward, &l, at(c, dq), at(c, dkv), at(c, part(dkv, H * D, 0)), at(c, dxq), at(c, dxkv),
            at(c, dxr));
    }
    end(c);
}

static void bias_backward(check *c, dt_dtype dt)
{
    for (int way = 0; way < 2 * N_TYPES; way++) {
        const int64_t m = way & 1 ? 301 : 1024, n = way & 1 ? 77 : 128, ld = n + (way & 1) * 5;
        const dt_dtype gt = TYPES[way >> 1];
        begin(c, "bias_backward from %s to %s", dt_dtype_name(dt), dt_dtype_name(gt));
        const array dy = put(c, dt, m * ld, 1),
                    dbias = result(c, "result", near(of_sum((double)m), 0, dt), put(c, gt, n, 1));
        EACH_DEVICE (c) RUN(c, bias_backward, at(c, dy), m, n, ld, dt, at(c, dbias), gt, way > 1);
        end(c);
    }
}

static void embedding(check *c, dt_dtype dt, dt_dtype gt)
{
    enum { N_TOK = 203, ROWS = 31, POSITIONS = 60 };
    const int64_t width = 129;
    int32_t token[N_TOK], pos[N_TOK], order[N_TOK];
    int n = 0;
    for (int t = 0; t < N_TOK; t++) token[t] = (int32_t)(dt_mix64((uint64_t)t) % ROWS), pos[t] = t % POSITIONS;
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < N_TOK; t++)
            if (token[t] == r) order[n++] = t;
    begin(c, "embedding_forward, embedding_backward, %s, gradients in %s", dt_dtype_name(dt), dt_dtype_name(gt));
    const array tokens = put_bytes(c, token, sizeof *token, N_TOK), positions = put_bytes(c, pos, sizeof *pos, N_TOK),
                sorted = put_bytes(c, order, sizeof *order, N_TOK), wte = put(c, dt, ROWS * width, 1),
                wpe = put(c, dt, POSITIONS * width, 1), out = result(c, "tokens", EXACT, room(c, dt, N_TOK * width)),
                both = result(c, "tokens and positions", EXACT, room(c, dt, N_TOK * width)),
                grad =
                    result(c, "the table's gradient", near(of_sum(N_TOK / ROWS), 0, dt), put(c, gt, ROWS * width, 1));
    EACH_DEVICE (c) {
        RUN(c, embedding_forward, at(c, tokens), NULL, at(c, wte), NULL, at(c, out), N_TOK, width, dt);
        RUN(c, embedding_forward, at(c, tokens), at(c, positions), at(c, wte), at(c, wpe), at(c, both), N_TOK, width,
            dt);
        RUN(c, embedding_backward, at(c, both), at(c, tokens), at(c, sorted), at(c, grad), N_TOK, width, dt, gt);
    }
    end(c);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

enum norm_form { PLAIN, PLUS_ONE, SCALES };

/* The tolerances include roundings of x rstd: before the multiplication by the weight, and in the gradients. */
static void rmsnorm(check *c, dt_dtype dt, dt_dtype gt, int64_t width, int64_t group, enum norm_form form)
{
    static const char *const NAMES[] = {"", ", weights plus 1", ", scales only"};
    const int64_t n_rows = 66 / group * group, ld = group * width + 2, yld = group * width + 3,
                  n_groups = n_rows / group;
    const int64_t scratch_elems = LARGER_OF(c, norm_scratch_elems, width);
    const dt_rmsnorm n = {n_rows, width, group, ld, yld, 1e-5f, form == PLUS_ONE, dt, form == SCALES};
    begin(c, "rmsnorm_forward, rmsnorm_backward, rows of %d in groups of %d%s, %s, gradients in %s", (int)width,
          (int)group, NAMES[form], dt_dtype_name(dt), dt_dtype_name(gt));
    const array x = put(c, dt, n_groups * ld, 1), weight = put(c, dt, width, 1), dy = put(c, dt, n_groups * yld, 1),
                y = result(c, "y", near(of_sum((double)width), 3, dt), room(c, dt, n_groups * yld)),
                rstd = result(c, "rstd", near(of_sum((double)width), 0, dt), room(c, DT_F32, n_rows)),
                dx = result(c, "dx", near(32 + of_sum((double)width), 4, dt), put(c, dt, n_groups * ld, 1)),
                dweight = result(c, "dweight", near(32 + of_sum((double)n_rows), 4, dt), put(c, gt, width, 1)),
                scratch = room(c, DT_F32, scratch_elems);
    EACH_DEVICE (c) {
        RUN(c, rmsnorm_forward, &n, at(c, x), at(c, weight), at(c, y), at(c, rstd));
        RUN(c, rmsnorm_backward, &n, at(c, x), at(c, weight), at(c, rstd), at(c, dy), at(c, dx), group == 1,
            at(c, dweight), gt, gt == DT_F32, at(c, scratch));
    }
    end(c);
}

static void layernorm(check *c, dt_dtype dt, dt_dtype gt, int64_t width)
{
    const int64_t n_rows = 65, n = n_rows * width, scratch_elems = LARGER_OF(c, norm_scratch_elems, width);
    begin(c, "layernorm_forward, layernorm_backward, rows of %d, %s, gradients in %s", (int)width, dt_dtype_name(dt),
          dt_dtype_name(gt));
    const array x = put(c, dt, n, 1), weight = put(c, dt, width, 1), bias = put(c, dt, width, 1), dy = put(c, dt, n, 1),
                y = result(c, "y", near(of_sum((double)width), 3, dt), room(c, dt, n)),
                mean = result(c, "mean", near(of_sum((double)width), 0, dt), room(c, DT_F32, n_rows)),
                rstd = result(c, "rstd", near(of_sum((double)width), 0, dt), room(c, DT_F32, n_rows)),
                dx = result(c, "dx", near(32 + of_sum((double)width), 4, dt), put(c, dt, n, 1)),
                dweight = result(c, "dweight", near(32 + of_sum((double)n_rows), 4, dt), put(c, gt, width, 1)),
                dbias = result(c, "dbias", near(of_sum((double)n_rows), 0, dt), put(c, gt, width, 1)),
                scratch = room(c, DT_F32, scratch_elems);
    EACH_DEVICE (c) {
        RUN(c, layernorm_forward, at(c, x), at(c, weight), at(c, bias), at(c, y), at(c, mean), at(c, rstd), n_rows,
            width, 1e-5f, dt);
        RUN(c, layernorm_backward, at(c, x), at(c, weight), at(c, mean), at(c, rstd), at(c, dy), at(c, dx), true,
            at(c, dweight), at(c, dbias), gt, gt == DT_F32, n_rows, width, at(c, scratch), dt);
    }
    end(c);
}

/* ---- optimizers and sums ----------------------------------------------------------------------------------------- */

static void optimizers(check *c, dt_dtype gt)
{
    const int64_t n = 5003;
    const dt_dtype param_dt = gt == DT_F32 ? DT_BF16 : gt;
    const dt_adamw adamw = {.lr = 1e-2f,
                            .beta1 = 0.9f,
                            .beta2 = 0.99f,
                            .eps = 1e-8f,
                            .weight_decay = 0.1f,
                            .l2 = 0.01f,
                            .fix1 = 0.271f,
                            .fix2 = 0.0297f,
                            .grad_scale = 0.5f};
    const dt_sgd sgd = {.lr = 1e-2f, .momentum = 0.9f, .l2 = 0.01f, .grad_scale = 0.5f};
    begin(c, "adamw_step, sgd_step, gradients in %s", dt_dtype_name(gt));
    /* two steps from zero moments: random m and v would give steps of arbitrary length */
    const array grad = put(c, gt, n, 1), p = result(c, "adamw's parameters", near(64, 0, gt), put(c, DT_F32, n, 1)),
                m = result(c, "adamw's m", near(16, 0, gt), room(c, DT_F32, n)),
                v = result(c, "adamw's v", near(16, 0, gt), room(c, DT_F32, n)),
                rounded = result(c, "adamw's rounded parameters", near(64, 0, gt), room(c, param_dt, n)),
                q = result(c, "sgd's parameters", near(16, 0, gt), put(c, DT_F32, n, 1)),
                b = result(c, "sgd's momentum", near(16, 0, gt), put(c, DT_F32, n, 1)),
                q_rounded = result(c, "sgd's rounded parameters", near(16, 0, gt), room(c, param_dt, n));
    EACH_DEVICE (c) {
        RUN(c, zero, at(c, m), (size_t)n * sizeof(float));
        RUN(c, zero, at(c, v), (size_t)n * sizeof(float));
        for (int step = 0; step < 2; step++) {
            RUN(c, adamw_step, &adamw, at(c, grad), gt, at(c, p), at(c, m), at(c, v), at(c, rounded), param_dt, n);
            RUN(c, sgd_step, &sgd, at(c, grad), gt, at(c, q), at(c, b), at(c, q_rounded), param_dt, n);
        }
    }
    end(c);
}

/* States of fewer bits: the same rounding on both devices. */
static void add_scaled(check *c, dt_dtype dt)
{
    const int64_t n = 5003;
    begin(c, "add_scaled, %s", dt_dtype_name(dt));
    const array x = put(c, dt, n, 1), y = result(c, "add_scaled in place", near(4, 2, DT_F32), put(c, DT_F32, n, 1)),
                out = result(c, "add_scaled", near(4, 1, dt), room(c, dt, n));
    EACH_DEVICE (c) {
        RUN(c, add_scaled, 0.7f, at(c, x), dt, -0.3f, at(c, y), DT_F32, at(c, out), dt, n);
        RUN(c, add_scaled, 0.9f, at(c, y), DT_F32, 2, at(c, x), dt, at(c, y), DT_F32, n);
    }
    end(c);
}

static void states(check *c)
{
    const int64_t n = 5003, n_blocks = dt_ceil_div(n, DT_BLOCK8);
    begin(c, "round_stochastic, quantise_blocks, dequantise_blocks");
    const array x = put(c, DT_F32, n, 1), rounded = result(c, "round_stochastic", EXACT, room(c, DT_BF16, n)),
                codes = result(c, "codes", EXACT, room_bytes(c, 1, n)),
                absmax = result(c, "absmax", EXACT, room(c, DT_F32, n_blocks)),
                back = result(c, "dequantise_blocks", EXACT, room(c, DT_F32, n));
    EACH_DEVICE (c) {
        RUN(c, round_stochastic, at(c, x), at(c, rounded), 77, 5, 3, n);
        RUN(c, quantise_blocks, at(c, x), at(c, codes), at(c, absmax), false, n);
        RUN(c, dequantise_blocks, at(c, codes), at(c, absmax), at(c, back), false, n);
    }
    end(c);
}

static void sums(check *c, dt_dtype dt)
{
    const int64_t n = 300007;
    begin(c, "sum_squares, abs_max, sum_squares_fixed, %s", dt_dtype_name(dt));
    const array x = put(c, dt, n, 1), sum = room_bytes(c, sizeof(double), 1),
                most = result(c, "abs_max", EXACT, room(c, DT_F32, 1)),
                fixed = result(c, "sum_squares_fixed", EXACT, room_bytes(c, sizeof(uint64_t), 2));
    EACH_DEVICE (c) {
        RUN(c, sum_squares, at(c, x), dt, n, at(c, sum));
        RUN(c, abs_max, at(c, x), dt, n, at(c, most));
        RUN(c, sum_squares_fixed, at(c, x), dt, n, 50, at(c, fixed));
    }
    compare_doubles(c, "sum_squares", sum, 0x1p-24 * 16);
    end(c);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* Operations after event_wait run after those before event_record on the other stream. They do not wait for later
 * operations of that stream. The first stream computes x and later clears it. In between, the second one computes y = x
 * + x, and z = y + y. */
static dt_err two_streams(check *c, array from, array x, array y, array z, int64_t n)
{
    dt_device *dev = c->dev[c->side];
    const dt_device_ops *ops = dev->ops;
    dt_stream *s[2] = {NULL, NULL};
    dt_event *made = NULL, *used = NULL;
    dt_err err = ops->stream_create(dev, &s[0]);
    if (err == DT_OK) err = ops->stream_create(dev, &s[1]);
    if (err == DT_OK) err = ops->event_create(dev, &made);
    if (err == DT_OK) err = ops->event_create(dev, &used);
    for (int turn = 0; turn < 4 && err == DT_OK; turn++) {
        err = ops->convert(dev, at(c, from), DT_BF16, at(c, x), DT_F32, n, s[0]);
        if (err == DT_OK) err = ops->event_record(dev, made, s[0]);
        if (err == DT_OK) err = ops->event_wait(dev, made, s[1]);
        if (err == DT_OK) err = ops->add(dev, at(c, x), at(c, x), at(c, y), DT_F32, n, s[1]);
        if (err == DT_OK) err = ops->event_record(dev, used, s[1]);
        if (err == DT_OK) err = ops->add(dev, at(c, y), at(c, y), at(c, z), DT_F32, n, s[1]);
        if (err == DT_OK) err = ops->event_wait(dev, used, s[0]);
        if (err == DT_OK) err = ops->zero(dev, at(c, x), (size_t)n * sizeof(float), s[0]);
    }
    for (int i = 0; i < 2; i++) {
        const dt_err late = s[i] ? ops->stream_sync(dev, s[i]) : DT_OK;
        if (err == DT_OK) err = late;
    }
    if (made) ops->event_destroy(dev, made);
    if (used) ops->event_destroy(dev, used);
    for (int i = 0; i < 2; i++)
        if (s[i]) ops->stream_destroy(dev, s[i]);
    return err;
}

static void streams(check *c)
{
    const int64_t n = 1 << 18;
    begin(c, "two streams and their events");
    const array from = put(c, DT_BF16, n, 1), x = result(c, "x", EXACT, room(c, DT_F32, n)),
                y = result(c, "y", EXACT, room(c, DT_F32, n)), z = result(c, "z", EXACT, room(c, DT_F32, n));
    EACH_DEVICE (c) c->err = two_streams(c, from, x, y, z, n);
    end(c);
}

void check_rows_cases(check *c)
{
    conversions(c);
    states(c);
    for (int t = 0; t < N_TYPES; t++) {
        const dt_dtype dt = TYPES[t];
        activations(c, dt);
        dropout(c, dt);
        add_noise(c, dt);
        rows_by_index(c, dt);
        patches(c, dt, 45, 14, 1);
        patches(c, dt, 48, 16, 0);
        for (int way = 0; way < 8; way++) heads(c, dt, way & 4 ? 128 : 72, way & 3);
        heads(c, dt, 96, 1 | 4);
        for (int way = 8; way < 32; way += 8) heads(c, dt, 128, way), heads(c, dt, 72, way | 1 | 2);
        for (int way = 0; way < 4; way++) latent(c, dt, way);
        bias_backward(c, dt);
        sums(c, dt);
        add_scaled(c, dt);
        optimizers(c, dt);
        for (int g = 0; g < N_TYPES; g++) {
            embedding(c, dt, TYPES[g]);
            rmsnorm(c, dt, TYPES[g], 129, 1, g == 1 ? PLUS_ONE : PLAIN);
            rmsnorm(c, dt, TYPES[g], 64, 3, g == 0 ? PLUS_ONE : PLAIN); /* heads inside a wider row */
            rmsnorm(c, dt, TYPES[g], 1024, 1, PLAIN);
            rmsnorm(c, dt, TYPES[g], 1024, 1, PLUS_ONE);
            rmsnorm(c, dt, TYPES[g], 1024, 1, SCALES);
            rmsnorm(c, dt, TYPES[g], 77, 1, SCALES);
            layernorm(c, dt, TYPES[g], 77);
            layernorm(c, dt, TYPES[g], 768);
        }
    }
    streams(c);
}
