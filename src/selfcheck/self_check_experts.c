/* self_check_experts.c - cases of the self-check: mixtures of experts. */
#include "self_check.h"
#include <string.h>

enum { TOK = 61, MOST = 8 };

/* Routing and its backward, and the sums of the rows of the experts. */
static void routing(check *c, dt_dtype dt, int32_t n_experts, int32_t k, bool groups)
{
    dt_routing r = {.n_tok = TOK, .n_experts = n_experts, .k = k, .normalise = k > 1};
    if (groups) r.sigmoid = true, r.n_groups = 8, r.k_groups = 3, r.group_best = 2, r.scale = 2.5f;
    const int64_t N = TOK * (int64_t)k, width = 67;
    begin(c, "experts, %d of %d%s, %s", k, n_experts, groups ? " in groups" : "", dt_dtype_name(dt));
    const array prob = result(c, "route", near(64, 0, dt), put(c, DT_F32, TOK * (int64_t)n_experts, 4)),
                expert = result(c, "route: experts", EXACT, room_bytes(c, sizeof(int32_t), N)),
                weight = result(c, "route: weights", near(64, 0, dt), room(c, DT_F32, N)),
                start = result(c, "order_experts", EXACT, room_bytes(c, sizeof(int32_t), n_experts + 1)),
                row = result(c, "order_experts: rows", EXACT, room_bytes(c, sizeof(int32_t), N)),
                assignment = result(c, "order_experts: assignments", EXACT, room_bytes(c, sizeof(int32_t), N)),
                token = result(c, "order_experts: tokens", EXACT, room_bytes(c, sizeof(int32_t), N)),
                x = result(c, "weigh_rows: x", near(64, 0, dt), put(c, dt, N * width, 1)),
                dy = result(c, "weigh_rows: dy", near(64, 0, dt), put(c, dt, N * width, 1)),
                sum = result(c, "combine_rows", near(64 + of_sum(k), 0, dt), put(c, dt, TOK * width, 1)),
                dweight = result(c, "dweight", near(64 + of_sum(67), 0, dt), room(c, DT_F32, N)),
                dprob = put(c, DT_F32, n_experts, 1),
                lse = result(c, "route: lse", near(64, 0, dt), room(c, DT_F32, 2 * TOK)),
                load = result(c, "order_experts: load", EXACT, put(c, DT_F32, n_experts, 1)),
                correction = put(c, DT_F32, n_experts, 1),
                dlogits =
                    result(c, "route_backward", near(256 + of_sum(67), 0, dt), room(c, dt, TOK * (int64_t)n_experts)),
                bias = put(c, dt, n_experts * width, 1),
                dbias = result(c, "group_bias_backward", near(64 + of_sum((double)N), 0, dt),
                               room(c, DT_F32, n_experts * width)),
                dout = put(c, dt, N * width, 1); /* not dy: once weighed, it may differ by a rounding */
    memset(c->before + expert.at, 0, (size_t)N * sizeof(int32_t)); /* of a route that does nothing: valid numbers */
    EACH_DEVICE (c) {
        r.correction = groups ? at(c, correction) : NULL;
        RUN(c, route, &r, at(c, prob), at(c, expert), at(c, weight), at(c, lse));
        RUN(c, order_experts, &r, at(c, expert), at(c, start), at(c, row), at(c, assignment), at(c, token),
            at(c, load));
        RUN(c, combine_rows, at(c, x), at(c, row), at(c, weight), at(c, sum), at(c, sum), TOK, k, width, dt);
        RUN(c, weigh_rows, at(c, x), at(c, dy), at(c, assignment), at(c, weight), at(c, dweight), N, width, dt);
        RUN(c, group_bias_backward, at(c, dout), at(c, start), at(c, assignment), at(c, weight), at(c, bias),
            at(c, dweight), at(c, dbias), DT_F32, false, N, n_experts, width, dt);
        RUN(c, route_backward, &r, at(c, prob), at(c, expert), at(c, dweight), at(c, dprob), at(c, lse), at(c, dprob),
            at(c, dlogits), dt);
    }
    end(c);
}

static void row_gates(check *c, dt_dtype dt, int64_t width)
{
    begin(c, "row_gate_forward, row_gate_backward, rows of %d, %s", (int)width, dt_dtype_name(dt));
    const array gate = put(c, DT_F32, TOK, 5), x = put(c, dt, TOK * width, 2),
                y = result(c, "y", near(64, 0, dt), put(c, dt, TOK * width, 2)),
                dx = result(c, "dx", near(64, 0, dt), put(c, dt, TOK * width, 1)),
                dgate = result(c, "dgate", near(128 + of_sum((double)width), 0, dt), room(c, dt, TOK));
    EACH_DEVICE (c) {
        RUN(c, row_gate_forward, at(c, gate), at(c, y), TOK, width, dt);
        RUN(c, row_gate_backward, at(c, gate), at(c, x), at(c, dx), at(c, dgate), TOK, width, dt);
    }
    end(c);
}

/* The three matmuls of a layer of experts. way: 0 forward, 1 batch-invariant, 2 gradient of the input, 3 of the
 * weights. */
static void groups(check *c, dt_dtype dt, int way, int64_t n_in, int64_t n_out)
{
    static const int32_t START[] = {0, 0, 33, 34, 200, 200, 263};
    enum { N_GROUPS = sizeof START / sizeof START[0] - 1, N = 263 };
    const bool of_weights = way == 3, biased = way < 2;
    dt_matmul mm = way < 2    ? dt_dense_matmul(N, n_out, n_in, false, true, dt, dt)
                   : way == 2 ? dt_dense_matmul(N, n_in, n_out, false, false, dt, dt)
                              : dt_dense_matmul(n_out, n_in, N, true, false, dt, DT_F32);
    const int64_t matrices = N_GROUPS * n_in * n_out;
    mm.n_groups = N_GROUPS, mm.group_stride = n_in * n_out;
    mm.batch_invariant = way == 1;
    begin(c, "matmul of %d groups, form %d, %d to %d, %s", (int)N_GROUPS, way, (int)n_in, (int)n_out,
          dt_dtype_name(dt));
    const array start = put_bytes(c, START, sizeof *START, N_GROUPS + 1), a = put(c, dt, N * mm.lda, 1),
                b = put(c, dt, of_weights ? N * mm.ldb : matrices, 1),
                to = result(c, "result", near(of_sum(of_weights ? N : (double)mm.k), 0, dt),
                            put(c, mm.c_dtype, of_weights ? matrices : N * mm.ldc, 1)),
                bias = put(c, dt, N_GROUPS * n_out, 1);
    EACH_DEVICE (c) {
        mm.group_start = at(c, start);
        mm.bias = biased ? at(c, bias) : NULL;
        RUN(c, matmul, &mm, at(c, a), at(c, b), at(c, to));
    }
    end(c);
}

void check_experts_cases(check *c)
{
    for (int t = 0; t < N_TYPES; t++) {
        routing(c, TYPES[t], 5, 2, false);
        routing(c, TYPES[t], 128, MOST, false);
        routing(c, TYPES[t], 33, 1, false);
        routing(c, TYPES[t], 128, MOST, true);
        row_gates(c, TYPES[t], 64);
        row_gates(c, TYPES[t], 131);
        for (int way = 0; way < 4; way++) {
            groups(c, TYPES[t], way, 64, 136);
            groups(c, TYPES[t], way, 75, 41);
        }
    }
}
