/* self_check_delta.c - cases of the self-check: convolution, gated delta rule and gates of linear attention. */
#include "self_check.h"

/* Sequences of 0, 1, 2 and more tokens, below and above a chunk. */
static const int32_t STARTS[] = {0, 3, 3, 4, 6, 76};
enum { N_SEQ = sizeof STARTS / sizeof STARTS[0] - 1, N_TOK = 76, MAX_LEN = 70 };

static void conv(check *c, dt_dtype dt, int kernel, bool with_state)
{
    const int64_t width = 131, x_ld = width + 3, y_ld = width + 2;
    const int32_t state_row[N_SEQ] = {4, 0, 3, 1, 2};
    begin(c, "conv_forward, conv_backward, kernel %d%s, %s", kernel, with_state ? ", states" : "", dt_dtype_name(dt));
    const array starts = put_bytes(c, STARTS, sizeof *STARTS, N_SEQ + 1),
                rows = put_bytes(c, state_row, sizeof *state_row, N_SEQ), x = put(c, dt, N_TOK * x_ld, 2),
                weight = put(c, dt, width * kernel, 1), y = result(c, "y", near(32, 0, dt), room(c, dt, N_TOK * y_ld)),
                dy = put(c, dt, N_TOK * y_ld, 1), dx = result(c, "dx", near(64, 0, dt), room(c, dt, N_TOK * x_ld)),
                dweight = result(c, "dweight", near(256, 0, dt), put(c, DT_F32, width * kernel, 1)),
                state = result(c, "state", EXACT, put(c, dt, N_SEQ * (kernel - 1) * width, 2)),
                scratch = room(
                    c, DT_F32,
                    LARGER_OF(c, conv_scratch_elems, (&(dt_conv){.n_tok = N_TOK, .width = width, .kernel = kernel})));
    EACH_DEVICE (c) {
        const dt_conv d = {N_SEQ, at(c, starts), N_TOK, width, kernel, x_ld, y_ld, at(c, rows), dt};
        RUN(c, conv_forward, &d, at(c, x), at(c, weight), at(c, y), with_state ? at(c, state) : NULL);
        RUN(c, conv_backward, &d, at(c, x), at(c, weight), at(c, dy), at(c, dx), at(c, dweight), DT_F32, true,
            at(c, scratch));
    }
    end(c);
}

static void delta(check *c, dt_dtype dt, int n_k_heads, int n_v_heads, int k_dim, int v_dim)
{
    const int64_t K = (int64_t)n_k_heads * k_dim, V = (int64_t)n_v_heads * v_dim, x_ld = 2 * K + V + 1, o_ld = V + 2,
                  G = (int64_t)N_TOK * n_v_heads, S = (int64_t)N_SEQ * n_v_heads * k_dim * v_dim;
    dt_delta d = {N_SEQ, n_k_heads, n_v_heads, k_dim, v_dim, NULL, N_TOK, MAX_LEN, x_ld, o_ld, NULL, dt};
    begin(c, "delta_forward, delta_step, delta_backward, %d and %d heads of %d and %d, %s", n_k_heads, n_v_heads, k_dim,
          v_dim, dt_dtype_name(dt));
    const array starts = put_bytes(c, STARTS, sizeof *STARTS, N_SEQ + 1), x = put(c, dt, N_TOK * x_ld, 1),
                a = put(c, DT_F32, G, 1), g = result(c, "g", near(64, 0, DT_F32), room(c, DT_F32, G)),
                beta = result(c, "beta", near(64, 0, DT_F32), room(c, DT_F32, G)), rate = put(c, DT_F32, n_v_heads, 1),
                out = result(c, "out", near(2048, 0, dt), room(c, dt, N_TOK * o_ld)),
                one = result(c, "out of single tokens", near(2048, 0, dt), room(c, dt, N_TOK * o_ld)),
                state = result(c, "state", near(2048, 0, dt), put(c, DT_F32, S, 1)),
                other = result(c, "state after single tokens", near(2048, 0, dt), put(c, DT_F32, S, 1)),
                dout = put(c, dt, N_TOK * o_ld, 1),
                dx = result(c, "gradients of q, k and v", near(8192, 0, dt), room(c, dt, N_TOK * x_ld)),
                dg = result(c, "dg", near(8192, 0, dt), room(c, DT_F32, G)),
                dbeta = result(c, "dbeta", near(8192, 0, dt), room(c, DT_F32, G)),
                scratch = room(c, DT_F32, LARGER_OF(c, delta_scratch_elems, &d, true));
    EACH_DEVICE (c) {
        const dt_delta_gates gates = {N_TOK, n_v_heads, n_v_heads, DT_F32};
        d.q_start = at(c, starts);
        RUN(c, delta_gates_forward, &gates, at(c, a), at(c, a), at(c, rate), at(c, rate), at(c, g), at(c, beta));
        RUN(c, delta_forward, &d, at(c, x), at(c, part(x, K, 0)), at(c, part(x, 2 * K, 0)), at(c, g), at(c, beta),
            at(c, out), at(c, state), at(c, scratch));
        RUN(c, delta_step, &d, at(c, x), at(c, part(x, K, 0)), at(c, part(x, 2 * K, 0)), at(c, g), at(c, beta),
            at(c, one), at(c, other));
        RUN(c, delta_backward, &d, at(c, x), at(c, part(x, K, 0)), at(c, part(x, 2 * K, 0)), at(c, g), at(c, beta),
            at(c, dout), at(c, dx), at(c, part(dx, K, 0)), at(c, part(dx, 2 * K, 0)), at(c, dg), at(c, dbeta),
            at(c, scratch));
    }
    end(c);
}

static void delta_gates(check *c, dt_dtype dt)
{
    const int64_t n_rows = 201, width = 33, ld = 2 * width + 1, n = n_rows * width;
    const dt_delta_gates d = {n_rows, width, ld, dt};
    begin(c, "delta_gates_forward, delta_gates_backward, %s", dt_dtype_name(dt));
    const array x = put(c, dt, n_rows * ld, 6), a_log = put(c, dt, width, 2), bias = put(c, dt, width, 2),
                g = result(c, "g", near(64, 0, dt), room(c, DT_F32, n)),
                beta = result(c, "beta", near(64, 0, dt), room(c, DT_F32, n)), dg = put(c, DT_F32, n, 1),
                dbeta = put(c, DT_F32, n, 1), dx = result(c, "da and db", near(128, 0, dt), room(c, dt, n_rows * ld)),
                grads = result(c, "gradients of the weights", near(256, 0, dt), put(c, DT_F32, 2 * width, 1)),
                scratch = room(c, DT_F32, LARGER_OF(c, norm_scratch_elems, width));
    EACH_DEVICE (c) {
        RUN(c, delta_gates_forward, &d, at(c, x), at(c, part(x, width, 0)), at(c, a_log), at(c, bias), at(c, g),
            at(c, beta));
        RUN(c, delta_gates_backward, &d, at(c, x), at(c, g), at(c, beta), at(c, a_log), at(c, bias), at(c, dg),
            at(c, dbeta), at(c, dx), at(c, part(dx, width, 0)), at(c, grads), at(c, part(grads, width, 0)), DT_F32,
            true, at(c, scratch));
    }
    end(c);
}

static void norm_gate(check *c, dt_dtype dt, int64_t width, int64_t group)
{
    const int64_t n_rows = 66 / group * group, n_groups = n_rows / group, ld = group * width + 2,
                  yld = group * width + 3, zld = group * width + 5;
    const dt_rmsnorm n = {n_rows, width, group, ld, yld, 1e-6f, false, dt, false};
    begin(c, "norm_gate_forward, norm_gate_backward, rows of %d in groups of %d, %s", (int)width, (int)group,
          dt_dtype_name(dt));
    const array x = put(c, dt, n_groups * ld, 1), weight = put(c, dt, width, 1), z = put(c, dt, n_groups * zld, 3),
                y = result(c, "y", near(128, 6, dt), room(c, dt, n_groups * yld)),
                rstd = result(c, "rstd", near(128, 0, dt), room(c, DT_F32, n_rows)), dy = put(c, dt, n_groups * yld, 1),
                dx = result(c, "dx", near(256, 6, dt), room(c, dt, n_groups * ld)),
                dz = result(c, "dz", near(256, 6, dt), room(c, dt, n_groups * zld)),
                dweight = result(c, "dweight", near(256, 6, dt), put(c, DT_F32, width, 1)),
                scratch = room(c, DT_F32, LARGER_OF(c, norm_scratch_elems, width));
    EACH_DEVICE (c) {
        RUN(c, norm_gate_forward, &n, at(c, x), at(c, weight), at(c, z), zld, at(c, y), at(c, rstd));
        RUN(c, norm_gate_backward, &n, at(c, x), at(c, weight), at(c, z), zld, at(c, rstd), at(c, dy), at(c, dx),
            at(c, dz), at(c, dweight), DT_F32, true, at(c, scratch));
    }
    end(c);
}

static void blocks(check *c, dt_dtype dt)
{
    const int64_t rows = 13, n_blocks = 3, width = 37, x_ld = n_blocks * width + 1, y_ld = 2 * n_blocks * width + 2;
    const dt_blocks b = {rows, n_blocks, width, x_ld, width, y_ld, 2 * width, dt};
    begin(c, "copy_blocks, sigmoid_gate_forward, sigmoid_gate_backward, %s", dt_dtype_name(dt));
    const array x = put(c, dt, rows * x_ld, 2), gate = put(c, dt, rows * y_ld, 5),
                copy = result(c, "copy_blocks", EXACT, room(c, dt, rows * y_ld)),
                y = result(c, "sigmoid_gate_forward", near(64, 0, dt), room(c, dt, rows * x_ld)),
                dy = put(c, dt, rows * x_ld, 1), dx = result(c, "dx", near(64, 0, dt), room(c, dt, rows * x_ld)),
                dgate = result(c, "dgate", near(128, 0, dt), room(c, dt, rows * y_ld));
    EACH_DEVICE (c) {
        RUN(c, copy_blocks, &b, at(c, x), at(c, copy));
        RUN(c, sigmoid_gate_forward, &b, at(c, x), at(c, gate), at(c, y));
        RUN(c, sigmoid_gate_backward, &b, at(c, x), at(c, gate), at(c, dy), at(c, dx), at(c, dgate));
    }
    end(c);
}

void check_delta_cases(check *c)
{
    for (int t = 0; t < N_TYPES; t++) {
        const dt_dtype dt = TYPES[t];
        delta_gates(c, dt); /* first, because delta's cases fail with it */
        conv(c, dt, 4, false);
        conv(c, dt, 4, true);
        conv(c, dt, 7, true);
        delta(c, dt, 1, 3, 20, 33);
        delta(c, dt, 2, 2, 128, 128);
        norm_gate(c, dt, 128, 1);
        norm_gate(c, dt, 37, 3);
        blocks(c, dt);
    }
}
