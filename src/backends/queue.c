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

#define REACH(pointer) ((pointer) = queue_arg(dev, pointer))

static void reach_dt_matmul(dt_device *dev, dt_matmul *d)
{
    REACH(d->bias);
    REACH(d->addend);
    REACH(d->aux);
    REACH(d->sums);
    REACH(d->a_scaled.scale);
    REACH(d->b_scaled.scale);
    REACH(d->b_scaled.blocks);
    REACH(d->group_start);
}

static void reach_dt_heads(dt_device *dev, dt_heads *d)
{
    REACH(d->kv_row);
    REACH(d->q_norm);
    REACH(d->k_norm);
    REACH(d->pos);
    REACH(d->cos_sin);
    REACH(d->q_cos_sin);
}

static void reach_dt_latent(dt_device *dev, dt_latent *d)
{
    REACH(d->kv_row);
    REACH(d->pos);
    REACH(d->cos_sin);
}

static void reach_dt_attention(dt_device *dev, dt_attention *d)
{
    REACH(d->q_start);
    REACH(d->kv_start);
    REACH(d->kv_len);
    REACH(d->shared_start);
    REACH(d->shared_len);
    REACH(d->token_key);
    REACH(d->ahead);
    REACH(d->sinks);
    REACH(d->dsinks);
}

static void reach_dt_classifier(dt_device *dev, dt_classifier *d)
{
    REACH(d->target);
    REACH(d->weight);
    REACH(d->entropy_weight);
    REACH(d->kl_weight);
    REACH(d->ref_logits);
    REACH(d->logp);
    REACH(d->hit);
    REACH(d->entropy);
    REACH(d->kl);
    REACH(d->loss);
    REACH(d->log_sum_squares);
    REACH(d->mean_logit);
}

static void reach_dt_token_rows(dt_device *dev, dt_token_rows *d)
{
    REACH(d->allowed);
    REACH(d->seen);
    REACH(d->list);
    REACH(d->list_start);
    REACH(d->list_len);
}

static void reach_dt_routing(dt_device *dev, dt_routing *d) { REACH(d->correction); }
static void reach_dt_patches(dt_device *dev, dt_patches *d) {}
static void reach_dt_conv(dt_device *dev, dt_conv *d)
{
    REACH(d->q_start);
    REACH(d->state_row);
}

static void reach_dt_delta(dt_device *dev, dt_delta *d)
{
    REACH(d->q_start);
    REACH(d->state_row);
}

static void reach_dt_delta_gates(dt_device *dev, dt_delta_gates *d) {}
static void reach_dt_row_lengths(dt_device *dev, dt_row_lengths *d)
{
    REACH(d->w_scaled.scale);
    REACH(d->w_scaled.blocks);
}

static void reach_dt_blocks(dt_device *dev, dt_blocks *d) {}
static void reach_dt_rmsnorm(dt_device *dev, dt_rmsnorm *d) {}
static void reach_dt_choice(dt_device *dev, dt_choice *d) {}
static void reach_dt_adamw(dt_device *dev, dt_adamw *d) {}
static void reach_dt_sgd(dt_device *dev, dt_sgd *d) {}

/* ---- operations: arguments are queued, and the call is made when the stream runs --------------------------------- */

#define REACH_IN(type, name) REACH(args.name);
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
