/* queue.c - a device for tests that delays operations. It runs the operations of another device as late, and in as
 * unusual an order, as the contract allows.
 *
 * On the CPU device every operation is complete when the call returns, and the host can read all memory. A missing
 * event, copy or synchronisation is therefore never noticed. Here a call only appends the operation to its stream.
 *
 * DTRAIN_QUEUE_SEED selects at random when each stream runs: immediately, now and then, or only when a caller waits.
 * With seed 0 streams run only when a caller waits. Only events order two streams. Copies from and to the host read and
 * write when they run, not when they are called.
 *
 * The host cannot access device memory: addresses contain a bit that no mapping has, so an access ends the program. An
 * operation that receives host memory is refused. Fresh memory contains NaN.
 *
 * The next synchronisation returns the errors of queued operations. The program ends if memory is freed while a queued
 * operation has its address, or if a stream is destroyed with queued operations. The device counts waits of the host,
 * and copies from or to memory that is not pinned.
 *
 * The device below is the CPU, or the one that DTRAIN_QUEUE_BELOW names. Tests run CUDA's simulator below it, to delay
 * the simulator's streams.
 *
 * DTRAIN_DEVICE=queue selects it instead of the CPU device. A node has DTRAIN_QUEUE_DEVICES of it (default 1), each
 * with DTRAIN_QUEUE_MEMORY bytes (default: all free memory). The free memory of a rank is that size less the rank's own
 * allocations. Tests can set the order, and queue functions of their own (queue.h). */
#include "queue_private.h"

/* ---- descriptions: their pointers are device memory, too --------------------------------------------------------- */

/* Each description with its pointers. */
#define REACH_AT(pointer) d->pointer = queue_arg(dev, d->pointer);
#define POINTERS(type, ...)                                                                                            \
    static void reach_##type(dt_device *dev, type *d) { DT_EACH(REACH_, __VA_ARGS__) }
#define NO_POINTERS(type)                                                                                              \
    static void reach_##type(dt_device *dev, type *d) {}
POINTERS(dt_matmul, AT(bias), AT(addend), AT(aux), AT(sums), AT(a_scaled.scale), AT(b_scaled.scale),
         AT(b_scaled.blocks), AT(group_start))
POINTERS(dt_row_lengths, AT(w_scaled.scale), AT(w_scaled.blocks))
POINTERS(dt_routing, AT(correction))
POINTERS(dt_heads, AT(kv_row), AT(q_norm), AT(k_norm), AT(pos), AT(cos_sin), AT(q_cos_sin))
POINTERS(dt_latent, AT(kv_row), AT(pos), AT(cos_sin))
POINTERS(dt_attention, AT(q_start), AT(kv_start), AT(kv_len), AT(shared_start), AT(shared_len), AT(token_key),
         AT(ahead), AT(sinks), AT(dsinks))
POINTERS(dt_conv, AT(q_start), AT(state_row))
POINTERS(dt_delta, AT(q_start), AT(state_row))
POINTERS(dt_classifier, AT(target), AT(weight), AT(entropy_weight), AT(kl_weight), AT(ref_logits), AT(logp), AT(hit),
         AT(entropy), AT(kl), AT(loss), AT(log_sum_squares), AT(mean_logit))
POINTERS(dt_token_rows, AT(allowed), AT(seen), AT(list), AT(list_start), AT(list_len))
NO_POINTERS(dt_patches)
NO_POINTERS(dt_delta_gates)
NO_POINTERS(dt_blocks)
NO_POINTERS(dt_rmsnorm)
NO_POINTERS(dt_choice)
NO_POINTERS(dt_adamw)
NO_POINTERS(dt_sgd)

/* ---- operations: arguments are queued, and the call is made when the stream runs --------------------------------- */

#define REACH_IN(type, name) args.name = queue_arg(dev, args.name);
#define REACH_OUT REACH_IN
#define REACH_INOUT REACH_IN
#define REACH_DESC(type, name) reach_##type(dev, &args.name);
#define REACH_VAL(type, name)
#define REACH_CHECK(call)
#define DT_OP(op, ...)                                                                                                 \
    static dt_err run_##op(dt_device *below, const void *args)                                                         \
    {                                                                                                                  \
        const dt_##op##_args *x = args;                                                                                \
        return below->ops->op(below DT_EACH(DT_PASS_, __VA_ARGS__), NULL);                                             \
    }                                                                                                                  \
    dt_err queue_##op DT_OP_PARAMS(__VA_ARGS__)                                                                        \
    {                                                                                                                  \
        dt_##op##_args args = {DT_EACH(DT_TAKE_, __VA_ARGS__)};                                                        \
        DT_EACH(REACH_, __VA_ARGS__)                                                                                   \
        return queue_push(dev, stream, #op, run_##op, &args, sizeof args);                                             \
    }
#define DT_SIZE(type, name, ...)                                                                                       \
    type queue_##name DT_SIZE_PARAMS(__VA_ARGS__)                                                                      \
    {                                                                                                                  \
        return queue_below(dev)->ops->name(queue_below(dev) DT_EACH(DT_NAME_, __VA_ARGS__));                           \
    }
#include "dtrain/device/op_list.h"
