/* op_list.h - every numerical operation of a device, declared once. The conventions of device.h apply.
 *
 * An entry is a function of the table dt_device_ops. Its first argument is dt_device *dev and its last is dt_stream
 * *stream; between them are, in the order of the entry:
 *
 *   IN(type, name)     const type *name: an array that the operation reads
 *   OUT(type, name)    type *name: an array that the operation overwrites
 *   INOUT(type, name)  type *name: an array that the operation reads and writes
 *   DESC(type, name)   const type *name: a description (device_ops.h), read during the call
 *   VAL(type, name)    type name: a value
 *   CHECK(call)        not an argument: a check of the arguments (device_check.h)
 *
 * DT_OP is an operation and returns dt_err. Its types are fp32, bf16 or fp16; those of DT_OP_ANY may be any, because it
 * only moves elements. DT_OP_ELEMENTS is one on n elements, DT_OP_ROWS one on n_rows rows of width elements. Each
 * element or row is computed independently, in fp32, bf16 or fp16. The CPU device needs only a kernel for a range of
 * them (kernel_list.h). DT_SIZE is a size query: it returns `type`, its first argument is const dt_device *dev, and it
 * has no stream.
 *
 * DT_MOVES is the cost of an operation that a GPU computes in one launch: the minimum of bytes of device memory that it
 * reads and writes. x points to the arguments: nbytes(x->n, x->dt) and matrix_nbytes(x->n_rows, x->width, x->dt) are
 * the sizes of arrays. count_ops.c states the cost of the others.
 *
 * A file that includes this list first defines the entries that it uses, usually with op_args.h; DT_OP_ANY,
 * DT_OP_ELEMENTS and DT_OP_ROWS are DT_OP unless it defines them too. The table, the prototypes and tables of backends,
 * the queue device, the counting device and lists of tests are generated from it. */
#ifndef DT_OP
#define DT_OP(op, ...)
#endif
#ifndef DT_OP_ANY
#define DT_OP_ANY DT_OP
#endif
#ifndef DT_OP_ELEMENTS
#define DT_OP_ELEMENTS DT_OP
#endif
#ifndef DT_OP_ROWS
#define DT_OP_ROWS DT_OP
#endif
#ifndef DT_MOVES
#define DT_MOVES(op, bytes)
#endif
#ifndef DT_SIZE
#define DT_SIZE(type, name, ...)
#endif

/* ---- fills, types, rows ------------------------------------------------------------------------------------------ */

/** dst = 0; nbytes bytes. */
DT_OP(zero, OUT(void, dst), VAL(size_t, nbytes))
DT_MOVES(zero, x->nbytes)

/** dst[i] = src[i] from one type to another; dst == src only for equal types. */
DT_OP_ELEMENTS(convert, IN(void, src), VAL(dt_dtype, src_dt), OUT(void, dst), VAL(dt_dtype, dst_dt), VAL(int64_t, n),
               CHECK(dt_convert_check(src, src_dt, dst, dst_dt, n)))
DT_MOVES(convert, nbytes(x->n, x->src_dt) + nbytes(x->n, x->dst_dt))

/** dst[i] = (accumulate ? dst[i] : 0) + src[i], in float, rounded on storing. */
DT_OP_ELEMENTS(add_into, IN(void, src), VAL(dt_dtype, src_dt), INOUT(void, dst), VAL(dt_dtype, dst_dt),
               VAL(bool, accumulate), VAL(int64_t, n))
DT_MOVES(add_into, nbytes(x->n, x->src_dt) + (x->accumulate ? 2 : 1) * nbytes(x->n, x->dst_dt))

/** c = a + b (c may be a or b). */
DT_OP_ELEMENTS(add, IN(void, a), IN(void, b), OUT(void, c), VAL(dt_dtype, dt), VAL(int64_t, n))
DT_MOVES(add, 3 * nbytes(x->n, x->dt))

/** out[i] = a x[i] + b y[i], in float, rounded on storing; out may be x or y if their types are equal. */
DT_OP_ELEMENTS(add_scaled, VAL(float, a), IN(void, x), VAL(dt_dtype, x_dt), VAL(float, b), IN(void, y),
               VAL(dt_dtype, y_dt), OUT(void, out), VAL(dt_dtype, out_dt), VAL(int64_t, n))
DT_MOVES(add_scaled, nbytes(x->n, x->x_dt) + nbytes(x->n, x->y_dt) + nbytes(x->n, x->out_dt))

/** y = factor x (y may be x). */
DT_OP_ELEMENTS(scale, IN(void, x), VAL(float, factor), OUT(void, y), VAL(dt_dtype, dt), VAL(int64_t, n))
DT_MOVES(scale, 2 * nbytes(x->n, x->dt))

/** dst[i,:] = src[index[i],:], i < n_rows (gather); zeros where index[i] < 0. */
DT_OP_ANY(gather_rows, IN(void, src), IN(int32_t, index), OUT(void, dst), VAL(int64_t, n_rows), VAL(int64_t, width),
          VAL(dt_dtype, dt))
DT_MOVES(gather_rows, 2 * matrix_nbytes(x->n_rows, x->width, x->dt) + (double)x->n_rows * sizeof(int32_t))

/** dst[index[i],:] = src[i,:] (scatter; indices distinct; other rows unchanged); rows with index[i] < 0 are
 *  skipped. To sum rows, use embedding_backward. */
DT_OP_ANY(scatter_rows, IN(void, src), IN(int32_t, index), OUT(void, dst), VAL(int64_t, n_rows), VAL(int64_t, width),
          VAL(dt_dtype, dt))
DT_MOVES(scatter_rows, 2 * matrix_nbytes(x->n_rows, x->width, x->dt) + (double)x->n_rows * sizeof(int32_t))

/** See dt_patches. pixels: [n_images, size, size, 3], red, green, blue; out: [n_images * dt_patches_rows,
 *  dt_patches_width]. */
DT_OP(patches, DESC(dt_patches, p), IN(uint8_t, pixels), OUT(void, out), CHECK(dt_patches_check(p)))

/* ---- matmuls ----------------------------------------------------------------------------------------------------- */

/** See dt_matmul. */
DT_OP(matmul, DESC(dt_matmul, mm), IN(void, a), IN(void, b), INOUT(void, c), CHECK(dt_matmul_check(mm)))

/** dbias[n] (+)= column sums of dy [m,n] with row distance ld. */
DT_OP(bias_backward, IN(void, dy), VAL(int64_t, m), VAL(int64_t, n), VAL(int64_t, ld), VAL(dt_dtype, dt),
      INOUT(void, dbias), VAL(dt_dtype, gt), VAL(bool, accumulate))

/** See dt_row_lengths. factor[j] = magnitude[j] / n_j, inverse[j] = 1 / n_j; of type out_dt. A row of zeros counts as
 *  one of length 1. */
DT_OP(magnitude_factors, DESC(dt_row_lengths, d), IN(void, w), IN(void, a), IN(void, b), IN(void, magnitude),
      OUT(void, factor), OUT(void, inverse), VAL(dt_dtype, out_dt), CHECK(dt_row_lengths_check(d)))
DT_MOVES(magnitude_factors, matrix_nbytes(x->d.n_out, x->d.n_in, x->d.w_scaled.how ? DT_I8 : x->d.dt) +
                                matrix_nbytes(x->d.r, x->d.n_out + x->d.n_in, x->d.dt))

/* ---- mixtures of experts ----------------------------------------------------------------------------------------- */

/** See dt_routing. prob [n_tok, n_experts]: in logits, out p of a softmax; unchanged with `sigmoid`. expert, weight:
 *  [n_tok, k]. A row with NaN gets NaN weights, and with softmax one with +inf, too. lse [n_tok, 2]: l = log(sum over e
 *  of e^z_e), and l^2; NULL: not computed. */
DT_OP(route, DESC(dt_routing, r), INOUT(float, prob), OUT(int32_t, expert), OUT(float, weight), OUT(float, lse),
      CHECK(dt_routing_check(r)))
DT_MOVES(route, 2 * matrix_nbytes(x->r.n_tok, x->r.n_experts, DT_F32) + 2 * matrix_nbytes(x->r.n_tok, x->r.k, DT_F32))

/** dlogits [n_tok, n_experts] of dt: the gradient of the logits, from dweight [n_tok, k] and route's prob. dprob
 *  [n_experts]: a gradient of each token's p in addition; NULL: none. dsquare [1]: a gradient of each token's l^2 in
 *  addition, with route's lse; NULL: none. */
DT_OP(route_backward, DESC(dt_routing, r), IN(float, prob), IN(int32_t, expert), IN(float, dweight), IN(float, dprob),
      IN(float, lse), IN(float, dsquare), OUT(void, dlogits), VAL(dt_dtype, dt), CHECK(dt_routing_check(r)))
DT_MOVES(route_backward, matrix_nbytes(x->r.n_tok, x->r.n_experts, DT_F32) +
                             matrix_nbytes(x->r.n_tok, x->r.n_experts, x->dt) +
                             2 * matrix_nbytes(x->r.n_tok, x->r.k, DT_F32))

/** Stable sort of the assignments i < n_tok k by expert[i]. start [n_experts + 1]: the first row of
 *  each expert. Row row[i] is assignment i; assignment[r] is that of row r, and token[r] = assignment[r] / k. load
 *  [n_experts]: the number of rows of each expert is added; NULL: none. */
DT_OP(order_experts, DESC(dt_routing, r), IN(int32_t, expert), OUT(int32_t, start), OUT(int32_t, row),
      OUT(int32_t, assignment), OUT(int32_t, token), INOUT(float, load), CHECK(dt_routing_check(r)))
DT_MOVES(order_experts, 4 * matrix_nbytes(x->r.n_tok, x->r.k, DT_F32) + (double)x->r.n_experts * sizeof(int32_t))

/** out[t,:] = sum over j < k of weight[t,j] y[row[t,j],:] (+ addend[t,:]), in float, j in order, then the addend.
 *  weight NULL: 1. addend NULL: 0; out may be addend. */
DT_OP(combine_rows, IN(void, y), IN(int32_t, row), IN(float, weight), IN(void, addend), OUT(void, out),
      VAL(int64_t, n_tok), VAL(int64_t, k), VAL(int64_t, width), VAL(dt_dtype, dt))
DT_MOVES(combine_rows, matrix_nbytes(x->n_tok * x->k, x->width, x->dt) +
                           (x->addend ? 2 : 1) * matrix_nbytes(x->n_tok, x->width, x->dt))

/** The backward of weights, for w = weight[assignment[r]]: dweight[assignment[r]] = sum over c of x[r,c] dy[r,c], then
 *  x[r,:] *= w and dy[r,:] *= w. */
DT_OP(weigh_rows, INOUT(void, x), INOUT(void, dy), IN(int32_t, assignment), IN(float, weight), OUT(float, dweight),
      VAL(int64_t, n_rows), VAL(int64_t, width), VAL(dt_dtype, dt))
DT_MOVES(weigh_rows, 4 * matrix_nbytes(x->n_rows, x->width, x->dt))

/** x[r,:] /= 1 + e^-gate[r]. */
DT_OP_ROWS(row_gate_forward, IN(float, gate), INOUT(void, x), VAL(int64_t, n_rows), VAL(int64_t, width),
           VAL(dt_dtype, dt))
DT_MOVES(row_gate_forward, 2 * matrix_nbytes(x->n_rows, x->width, x->dt) + nbytes(x->n_rows, DT_F32))

/** The gradients, with s = 1 / (1 + e^-gate[r]) and x as before forward: dgate[r] = s (1 - s) sum over c of
 *  x[r,c] dx[r,c], then dx[r,:] *= s. dgate is of dt. */
DT_OP_ROWS(row_gate_backward, IN(float, gate), IN(void, x), INOUT(void, dx), OUT(void, dgate), VAL(int64_t, n_rows),
           VAL(int64_t, width), VAL(dt_dtype, dt))
DT_MOVES(row_gate_backward,
         3 * matrix_nbytes(x->n_rows, x->width, x->dt) + nbytes(x->n_rows, DT_F32) + nbytes(x->n_rows, x->dt))
/** The backward of a bias [n_groups, width] of a grouped matmul, for its output's gradient dy [n_rows, width] and the
 *  first rows start [n_groups + 1] of its groups. With w_r = weight[assignment[r]], or 1 if weight is NULL:
 *
 *      dbias[g,:] (+)= sum over the rows r of group g of w_r dy[r,:]
 *      dweight[assignment[r]] += sum over c of bias[g,c] dy[r,c]
 *
 *  dbias NULL: not computed. Without weight, assignment, bias and dweight are NULL. */
DT_OP(group_bias_backward, IN(void, dy), IN(int32_t, start), IN(int32_t, assignment), IN(float, weight), IN(void, bias),
      INOUT(float, dweight), INOUT(void, dbias), VAL(dt_dtype, gt), VAL(bool, accumulate), VAL(int64_t, n_rows),
      VAL(int64_t, n_groups), VAL(int64_t, width), VAL(dt_dtype, dt))

/* ---- embedding --------------------------------------------------------------------------------------------------- */

/** out[t,:] = wte[token[t],:] (+ wpe[pos[t],:] where wpe is not NULL) */
DT_OP(embedding_forward, IN(int32_t, token), IN(int32_t, pos), IN(void, wte), IN(void, wpe), OUT(void, out),
      VAL(int64_t, n_tok), VAL(int64_t, width), VAL(dt_dtype, dt))
DT_MOVES(embedding_forward, (x->wpe ? 3 : 2) * matrix_nbytes(x->n_tok, x->width, x->dt))

/** table_grad[id[t],:] += dout[t,:] for all t in order [n_tok]. id[order[.]] ascends, equal ids by ascending t.
 *  Each row is summed in float, in that order, and written once. Always accumulates. */
DT_OP(embedding_backward, IN(void, dout), IN(int32_t, id), IN(int32_t, order), INOUT(void, table_grad),
      VAL(int64_t, n_tok), VAL(int64_t, width), VAL(dt_dtype, dt), VAL(dt_dtype, gt))

/* ---- norms over the last axis ------------------------------------------------------------------------------------ */

/** See dt_rmsnorm. rstd: float [n_rows]; NULL: not stored. y may be x if the layouts are equal and no backward needs
 *  x. */
DT_OP(rmsnorm_forward, DESC(dt_rmsnorm, n), IN(void, x), IN(void, weight), OUT(void, y), OUT(float, rstd),
      CHECK(dt_rmsnorm_check(n)))
DT_MOVES(rmsnorm_forward, 2 * matrix_nbytes(x->n.n_rows, x->n.width, x->n.dt) + nbytes(x->n.n_rows, DT_F32))

/** dx = (add_to_dx ? dx : 0) + gradient. x and dx have x's layout, dy has y's. If add_to_dx is false, dx may be x, or
 *  dy if the layouts are equal. dweight (+)= per accumulate; NULL: not computed. scratch: float
 *  [norm_scratch_elems(width)]. n->eps is ignored. */
DT_OP(rmsnorm_backward, DESC(dt_rmsnorm, n), IN(void, x), IN(void, weight), IN(float, rstd), IN(void, dy),
      INOUT(void, dx), VAL(bool, add_to_dx), INOUT(void, dweight), VAL(dt_dtype, gt), VAL(bool, accumulate),
      OUT(float, scratch), CHECK(dt_rmsnorm_check(n)))

/** LayerNorm with weight and bias, rows contiguous. */
DT_OP_ROWS(layernorm_forward, IN(void, x), IN(void, weight), IN(void, bias), OUT(void, y), OUT(float, mean),
           OUT(float, rstd), VAL(int64_t, n_rows), VAL(int64_t, width), VAL(float, eps), VAL(dt_dtype, dt))
DT_MOVES(layernorm_forward, 2 * matrix_nbytes(x->n_rows, x->width, x->dt) + nbytes(x->n_rows, DT_F32))

/** dweight and dbias may each be NULL: not computed. dx may be dy if add_to_dx is false. */
DT_OP(layernorm_backward, IN(void, x), IN(void, weight), IN(float, mean), IN(float, rstd), IN(void, dy),
      INOUT(void, dx), VAL(bool, add_to_dx), INOUT(void, dweight), INOUT(void, dbias), VAL(dt_dtype, gt),
      VAL(bool, accumulate), VAL(int64_t, n_rows), VAL(int64_t, width), OUT(float, scratch), VAL(dt_dtype, dt))

/** Floats of scratch that the backward of either norm needs for rows of this width. */
DT_SIZE(int64_t, norm_scratch_elems, VAL(int64_t, width))

/* ---- heads and attention ----------------------------------------------------------------------------------------- */

/** See dt_heads. q, k and v may be their own blocks in the rows of x. v NULL: not copied. rstd_q [n_tok, n_heads],
 *  rstd_k [n_tok, n_kv_heads]: out, statistics of the norms for backward; NULL: not stored. */
DT_OP(heads_forward, DESC(dt_heads, h), IN(void, x), OUT(void, q), OUT(void, k), OUT(void, v), OUT(float, rstd_q),
      OUT(float, rstd_k), CHECK(dt_heads_check(h, v != NULL)))

/** dq, dk: in the gradients of q' and k', out those of q and k; row distances q_ld and kv_ld (kv_row is ignored).
 *  With norms: x as in forward; dq_norm, dk_norm (+)= per accumulate, NULL: not computed; scratch: float
 *  [norm_scratch_elems(head_dim)]. */
DT_OP(heads_backward, DESC(dt_heads, h), IN(void, x), IN(float, rstd_q), IN(float, rstd_k), INOUT(void, dq),
      INOUT(void, dk), INOUT(void, dq_norm), INOUT(void, dk_norm), VAL(dt_dtype, gt), VAL(bool, accumulate),
      OUT(float, scratch), CHECK(dt_heads_check(h, false)))

/** See dt_latent. q may be xq if the layouts are equal. */
DT_OP(latent_forward, DESC(dt_latent, l), IN(void, xq), IN(void, xkv), IN(void, xr), OUT(void, q), OUT(void, k),
      OUT(void, v), CHECK(dt_latent_check(l)))
DT_MOVES(latent_forward,
         matrix_nbytes(x->l.n_tok, x->l.n_heads *(4LL * x->l.nope_dim + 3LL * x->l.rope_dim + 2LL * x->l.v_dim),
                       x->l.dt))

/** Gradients of xq, xkv and xr in their layouts, from those of q, k and v, which have q_ld and kv_ld (kv_row is
 *  ignored). dxr is summed over the heads in float, in order. dxq may be dq if the layouts are equal. */
DT_OP(latent_backward, DESC(dt_latent, l), IN(void, dq), IN(void, dk), IN(void, dv), OUT(void, dxq), OUT(void, dxkv),
      OUT(void, dxr), CHECK(dt_latent_check(l)))
DT_MOVES(latent_backward,
         matrix_nbytes(x->l.n_tok, x->l.n_heads *(4LL * x->l.nope_dim + 3LL * x->l.rope_dim + 2LL * x->l.v_dim),
                       x->l.dt))

/** See dt_attention. lse: float [n_tok, n_heads]; NULL: not stored. */
DT_OP(attention_forward, DESC(dt_attention, at), IN(void, q), IN(void, k), IN(void, v), OUT(void, out), OUT(float, lse),
      CHECK(dt_attention_check(at)))

/** dq, dk, dv in the layouts of q, k, v, overwritten; dsinks of at. scratch: float [attention_scratch_elems(at)]. */
DT_OP(attention_backward, DESC(dt_attention, at), IN(void, q), IN(void, k), IN(void, v), IN(void, out), IN(float, lse),
      IN(void, dout), OUT(void, dq), OUT(void, dk), OUT(void, dv), OUT(float, scratch), CHECK(dt_attention_check(at)))

/** Floats of scratch for attention_backward. They depend on the sizes, not on the arrays. by_library: includes the
 *  library's scratch, whether the library is available or not. */
DT_SIZE(int64_t, attention_scratch_elems, DESC(dt_attention, at))

/* ---- linear attention, gates ------------------------------------------------------------------------------------- */

/** See dt_conv. weight: [width, kernel]. state: of dt, in the inputs before the sequences, out those before their next
 *  tokens; NULL: zeros, not stored. */
DT_OP(conv_forward, DESC(dt_conv, c), IN(void, x), IN(void, weight), OUT(void, y), INOUT(void, state),
      CHECK(dt_conv_check(c)))

/** The gradients of a conv_forward without state. dweight (+)= per accumulate; NULL: not computed. dx must not overlap
 *  dy or x. scratch: float [conv_scratch_elems(c)]. */
DT_OP(conv_backward, DESC(dt_conv, c), IN(void, x), IN(void, weight), IN(void, dy), OUT(void, dx), INOUT(void, dweight),
      VAL(dt_dtype, gt), VAL(bool, accumulate), OUT(float, scratch), CHECK(dt_conv_check(c)))

/** Floats of scratch for conv_backward. */
DT_SIZE(int64_t, conv_scratch_elems, DESC(dt_conv, c))

/** See dt_delta; in chunks of DT_DELTA_CHUNK tokens. state: in before the first, out after the last token; NULL: zeros,
 *  not stored. scratch: float [delta_scratch_elems(d, false)]. */
DT_OP(delta_forward, DESC(dt_delta, d), IN(void, q), IN(void, k), IN(void, v), IN(float, g), IN(float, beta),
      OUT(void, out), INOUT(float, state), OUT(float, scratch), CHECK(dt_delta_check(d)))

/** The gradients of a delta_forward without state. It recomputes the state before each chunk, in scratch: float
 *  [delta_scratch_elems(d, true)]. */
DT_OP(delta_backward, DESC(dt_delta, d), IN(void, q), IN(void, k), IN(void, v), IN(float, g), IN(float, beta),
      IN(void, dout), OUT(void, dq), OUT(void, dk), OUT(void, dv), OUT(float, dg), OUT(float, dbeta),
      OUT(float, scratch), CHECK(dt_delta_check(d)))

/** delta_forward token by token, for sequences of one or a few tokens. A row of out has the same bits for any other
 *  sequences of the call, and for any division of its sequence into calls. state is required. */
DT_OP(delta_step, DESC(dt_delta, d), IN(void, q), IN(void, k), IN(void, v), IN(float, g), IN(float, beta),
      OUT(void, out), INOUT(float, state), CHECK(dt_delta_check(d)))

/** Floats of scratch for delta_forward or delta_backward. They depend on the sizes, not on the arrays. */
DT_SIZE(int64_t, delta_scratch_elems, DESC(dt_delta, d), VAL(bool, backward))

/** See dt_delta_gates. */
DT_OP(delta_gates_forward, DESC(dt_delta_gates, d), IN(void, a), IN(void, b), IN(void, a_log), IN(void, dt_bias),
      OUT(float, g), OUT(float, beta), CHECK(dt_delta_gates_check(d)))
DT_MOVES(delta_gates_forward,
         2 * matrix_nbytes(x->d.n_rows, x->d.width, x->d.dt) + 2 * matrix_nbytes(x->d.n_rows, x->d.width, DT_F32))

/** da and db: rows like those of a and b; da may be a. g and beta: results of forward. da_log, ddt_bias (+)= per
 *  accumulate, of type gt; NULL: not computed. scratch: float [norm_scratch_elems(width)]. */
DT_OP(delta_gates_backward, DESC(dt_delta_gates, d), IN(void, a), IN(float, g), IN(float, beta), IN(void, a_log),
      IN(void, dt_bias), IN(float, dg), IN(float, dbeta), OUT(void, da), OUT(void, db), INOUT(void, da_log),
      INOUT(void, ddt_bias), VAL(dt_dtype, gt), VAL(bool, accumulate), OUT(float, scratch),
      CHECK(dt_delta_gates_check(d)))

/** y = rmsnorm(x) silu(z). norm: as rmsnorm_forward computes it, rounded to dt. Rows of z are like those of x, with
 *  group distance z_group_ld. rstd: float [n_rows]; NULL: not stored. y may be x. */
DT_OP(norm_gate_forward, DESC(dt_rmsnorm, n), IN(void, x), IN(void, weight), IN(void, z), VAL(int64_t, z_group_ld),
      OUT(void, y), OUT(float, rstd), CHECK(dt_norm_gate_check(n, z_group_ld)))
DT_MOVES(norm_gate_forward, 3 * matrix_nbytes(x->n.n_rows, x->n.width, x->n.dt) + nbytes(x->n.n_rows, DT_F32))

/** dx has x's layout, dy has y's, dz has z's. dx may be dy or x if the layouts are equal, dz may be z. dweight (+)= per
 *  accumulate; NULL: not computed. scratch: float [norm_scratch_elems(width)]. */
DT_OP(norm_gate_backward, DESC(dt_rmsnorm, n), IN(void, x), IN(void, weight), IN(void, z), VAL(int64_t, z_group_ld),
      IN(float, rstd), IN(void, dy), OUT(void, dx), OUT(void, dz), INOUT(void, dweight), VAL(dt_dtype, gt),
      VAL(bool, accumulate), OUT(float, scratch), CHECK(dt_norm_gate_check(n, z_group_ld)))

/** y = x, block by block; see dt_blocks. */
DT_OP(copy_blocks, DESC(dt_blocks, b), IN(void, x), OUT(void, y), CHECK(dt_blocks_check(b)))
DT_MOVES(copy_blocks, 2 * matrix_nbytes(x->b.n_rows, x->b.n_blocks * x->b.width, x->b.dt))

/** out = x / (1 + e^-gate), block by block: out has x's layout, gate has y's (dt_blocks). out may be x. */
DT_OP(sigmoid_gate_forward, DESC(dt_blocks, b), IN(void, x), IN(void, gate), OUT(void, out), CHECK(dt_blocks_check(b)))
DT_MOVES(sigmoid_gate_forward, 3 * matrix_nbytes(x->b.n_rows, x->b.n_blocks * x->b.width, x->b.dt))

/** dx and dout have x's layout, dgate has that of gate. dx may be dout or x, dgate may be gate. */
DT_OP(sigmoid_gate_backward, DESC(dt_blocks, b), IN(void, x), IN(void, gate), IN(void, dout), OUT(void, dx),
      OUT(void, dgate), CHECK(dt_blocks_check(b)))
DT_MOVES(sigmoid_gate_backward, 5 * matrix_nbytes(x->b.n_rows, x->b.n_blocks * x->b.width, x->b.dt))

/* ---- activations, dropout, noise --------------------------------------------------------------------------------- */

/** y = act(x). */
DT_OP_ELEMENTS(act_forward, VAL(dt_activation, act), IN(void, x), OUT(void, y), VAL(dt_dtype, dt), VAL(int64_t, n))
DT_MOVES(act_forward, 2 * nbytes(x->n, x->dt))

/** dx = dy act'(x); dx may be dy. */
DT_OP_ELEMENTS(act_backward, VAL(dt_activation, act), IN(void, x), IN(void, dy), OUT(void, dx), VAL(dt_dtype, dt),
               VAL(int64_t, n))
DT_MOVES(act_backward, 3 * nbytes(x->n, x->dt))

/** gate_up: [n_rows, 2*width], gate first. y = act(gate) * up, y [n_rows, width].
 *
 *  With a limit L > 0, gate and up alternate, and y = act(min(gate, L)) * (1 + max(-L, min(up, L))). The gradient of a
 *  value beyond its limit is 0. */
DT_OP_ROWS(glu_forward, VAL(dt_activation, act), VAL(float, limit), IN(void, gate_up), OUT(void, y), VAL(dt_dtype, dt),
           VAL(int64_t, n_rows), VAL(int64_t, width))
DT_MOVES(glu_forward, 3 * matrix_nbytes(x->n_rows, x->width, x->dt))

/** dgate_up may be gate_up. */
DT_OP_ROWS(glu_backward, VAL(dt_activation, act), VAL(float, limit), IN(void, gate_up), IN(void, dy),
           OUT(void, dgate_up), VAL(dt_dtype, dt), VAL(int64_t, n_rows), VAL(int64_t, width))
DT_MOVES(glu_backward, 5 * matrix_nbytes(x->n_rows, x->width, x->dt))

/** Inverted dropout: y[t,c] = x[t,c]/(1-p) if u(key, token_key[t], c) >= p else 0, plus addend[t,c] if addend is
 *  not NULL. Backward: the same call on gradients, without addend. u: word c%4 of philox(key, token_key[t], c/4) as
 *  dt_u32_to_unit. y may be x or addend. */
DT_OP_ROWS(dropout, IN(void, x), IN(void, addend), OUT(void, y), VAL(float, p), VAL(uint64_t, key),
           IN(uint64_t, token_key), VAL(int64_t, n_rows), VAL(int64_t, width), VAL(dt_dtype, dt),
           CHECK(dt_dropout_check(p)))
DT_MOVES(dropout, (x->addend ? 3 : 2) * matrix_nbytes(x->n_rows, x->width, x->dt))

/** x[t,c] += bound[t] (2 u - 1), with u of dropout: uniform noise from -bound[t] to bound[t]. Rounded on storing. */
DT_OP_ROWS(add_noise, INOUT(void, x), IN(float, bound), VAL(uint64_t, key), IN(uint64_t, token_key),
           VAL(int64_t, n_rows), VAL(int64_t, width), VAL(dt_dtype, dt))
DT_MOVES(add_noise, 2 * matrix_nbytes(x->n_rows, x->width, x->dt))

/* ---- classifier, token selection --------------------------------------------------------------------------------- */

/** x[r,c] = cap tanh(x[r,c] / cap), c < width; rows of x are ld apart. cap: above 0. */
DT_OP_ROWS(softcap, INOUT(float, x), VAL(float, cap), VAL(int64_t, n_rows), VAL(int64_t, width), VAL(int64_t, ld),
           CHECK(dt_softcap_check(cap, n_rows, width, ld)))
DT_MOVES(softcap, 2 * matrix_nbytes(x->n_rows, x->width, DT_F32))

/** See dt_classifier. Without weights the logits are unchanged. */
DT_OP(classifier, DESC(dt_classifier, cl), INOUT(float, logits), CHECK(dt_classifier_check(cl)))

/** Number of rows of logits [.., n_vocab] that the head should process at a time, 1 to n_tok: enough for its
 *  matmuls to run at full speed, few enough that a large micro-batch never needs all its logits in memory. */
DT_SIZE(int64_t, classifier_rows, VAL(int64_t, n_vocab), VAL(int64_t, n_tok))

/** token[r] = the result of dt_token_weights_draw for uniform[r] (NULL if greedy); -1 if an allowed logit is NaN or
 *  +inf, or none is above -inf. Sums are double: devices that add in different orders may differ if uniform[r] is
 *  within 2^-40 of a boundary. scratch: draw_scratch_nbytes(rows) bytes. See dt_token_rows and dt_choice. */
DT_OP(draw_tokens, DESC(dt_token_rows, rows), DESC(dt_choice, how), IN(float, logits), IN(double, uniform),
      OUT(int32_t, token), OUT(void, scratch), CHECK(dt_choice_check(rows, how)))
DT_MOVES(draw_tokens, matrix_nbytes(x->rows.n_rows, x->rows.n_vocab, DT_F32))

/** Bytes of scratch for draw_tokens. */
DT_SIZE(size_t, draw_scratch_nbytes, DESC(dt_token_rows, rows))

/** token[r, i], logit[r, i], i < k: the k largest allowed logits in descending order, ties by ascending id. If
 *  fewer are above -inf, the rest is -1 and -inf. If one is NaN or +inf, the row is -1 and NaN. */
DT_OP(top_tokens, DESC(dt_token_rows, rows), IN(float, logits), VAL(int64_t, k), OUT(int32_t, token), OUT(float, logit),
      CHECK(dt_token_rows_check(rows)))
DT_MOVES(top_tokens, matrix_nbytes(x->rows.n_rows, x->rows.n_vocab, DT_F32))

/** logp[r, i] = log softmax(logits[r] inv_temperature)[token[r, i]], i < k, over the whole vocabulary, whether
 *  allowed or listed or not; -inf if token[r, i] < 0; NaN if the row has no finite sum. */
DT_OP(log_softmax_at, DESC(dt_token_rows, rows), IN(float, logits), VAL(double, inv_temperature), VAL(int64_t, k),
      IN(int32_t, token), OUT(double, logp), CHECK(dt_token_rows_check(rows)))
DT_MOVES(log_softmax_at, matrix_nbytes(x->rows.n_rows, x->rows.n_vocab, DT_F32))

/** y: logits [.., n_vocab], with logits' row distance, of a distribution of which k log-probabilities are known,
 *  logp[r, i] of token[r, i], at a temperature. The other tokens have the rest of the probability, 1 - sum of e^logp
 *  but at least 1e-7, in proportion to softmax(logits inv_temperature). Entries with token[r, i] < 0 are ignored; no
 *  token occurs twice. y does not overlap logits. See dt_token_rows, of which only sizes are used. */
DT_OP(fill_rest, DESC(dt_token_rows, rows), IN(float, logits), VAL(float, inv_temperature), VAL(int64_t, k),
      IN(int32_t, token), IN(float, logp), OUT(float, y), CHECK(dt_fill_rest_check(rows, inv_temperature, k)))
DT_MOVES(fill_rest, 2 * matrix_nbytes(x->rows.n_rows, x->rows.n_vocab, DT_F32))

/* ---- optimizers and reductions. Results of reductions are device memory: copy, synchronise, then read. ----------- */

/** See dt_adamw. grad: [n] of gt; master, m, v: float [n]; param: [n] of param_dt, the rounded master, or NULL. */
DT_OP_ELEMENTS(adamw_step, DESC(dt_adamw, opt), IN(void, grad), VAL(dt_dtype, gt), INOUT(float, master),
               INOUT(float, m), INOUT(float, v), OUT(void, param), VAL(dt_dtype, param_dt), VAL(int64_t, n))
DT_MOVES(adamw_step, nbytes(x->n, x->gt) + 6 * nbytes(x->n, DT_F32) + (x->param ? nbytes(x->n, x->param_dt) : 0))

/** See dt_sgd; arguments as adamw_step. momentum: float [n]; NULL: b is g. */
DT_OP_ELEMENTS(sgd_step, DESC(dt_sgd, opt), IN(void, grad), VAL(dt_dtype, gt), INOUT(float, master),
               INOUT(float, momentum), OUT(void, param), VAL(dt_dtype, param_dt), VAL(int64_t, n))
DT_MOVES(sgd_step, nbytes(x->n, x->gt) + (x->momentum ? 4 : 2) * nbytes(x->n, DT_F32) +
                       (x->param ? nbytes(x->n, x->param_dt) : 0))

/** y[i] = x[i], rounded to bf16 up or down at random, so that its expected value is x[i]; NaN and Inf stay.
 *
 *  x is cut after its 16 leading bits. Before that, the low half of word e % 4 of philox(key, counter, e / 4) is added
 *  to its bits, with e = first + i. */
DT_OP_ELEMENTS(round_stochastic, IN(float, x), OUT(void, y), VAL(uint64_t, key), VAL(uint64_t, counter),
               VAL(uint64_t, first), VAL(int64_t, n))
DT_MOVES(round_stochastic, nbytes(x->n, DT_F32) + nbytes(x->n, DT_BF16))

/** Codes and scales of x (block8.h). codes: [n]; absmax: [ceil(n / DT_BLOCK8)]. The code is the nearest value of x /
 *  absmax, except that a negative x has a negative value. A block of zeros has absmax 0. A block with NaN has absmax
 *  NaN. positive: x is never negative. */
DT_OP(quantise_blocks, IN(float, x), OUT(uint8_t, codes), OUT(float, absmax), VAL(bool, positive), VAL(int64_t, n))
DT_MOVES(quantise_blocks, nbytes(x->n, DT_F32) + nbytes(x->n, DT_U8) + nbytes(x->n, DT_F32) / DT_BLOCK8)

/** The reverse. x: [n]. */
DT_OP(dequantise_blocks, IN(uint8_t, codes), IN(float, absmax), OUT(float, x), VAL(bool, positive), VAL(int64_t, n))
DT_MOVES(dequantise_blocks, nbytes(x->n, DT_F32) + nbytes(x->n, DT_U8) + nbytes(x->n, DT_F32) / DT_BLOCK8)

/** *result = sum of squares, summed in a fixed order; non-finite elements make it non-finite. */
DT_OP(sum_squares, IN(void, x), VAL(dt_dtype, dt), VAL(int64_t, n), OUT(double, result))

/** *result = maximum of |x|; NaN or Inf in x gives Inf. */
DT_OP(abs_max, IN(void, x), VAL(dt_dtype, dt), VAL(int64_t, n), OUT(float, result))

/** result[0..1]: the exact integer sum of (int64) rint(x^2 * 2^shift), as low and high 64 bits. It is independent of
 *  the order, and so of how x is divided. The caller chooses shift so that each term is below 2^52. */
DT_OP(sum_squares_fixed, IN(void, x), VAL(dt_dtype, dt), VAL(int64_t, n), VAL(int, shift), OUT(uint64_t, result))

#undef DT_OP
#undef DT_OP_ANY
#undef DT_OP_ELEMENTS
#undef DT_OP_ROWS
#undef DT_MOVES
#undef DT_SIZE
