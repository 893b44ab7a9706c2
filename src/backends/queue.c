/* queue.c - a device that is honest about time, for tests: another's operations, run as late and in as odd an order as
 * the contract allows.
 *
 * On the CPU device all is done when a call returns, and the host can read what it likes, so a missing event, copy or
 * synchronisation never shows. Here an operation only joins its stream. Streams run by turns drawn from
 * DTRAIN_QUEUE_SEED: at once, now and then, or not before somebody waits; with seed 0 never before somebody waits. An
 * event is the only order between two of them. Copies from and to the host read and write when they run, not when they
 * are called. Device memory is out of the host's reach: addresses carry a bit that no mapping has, so touching one
 * ends the program, and an operation that is handed host memory is refused. Fresh memory is full of NaN. What fails in
 * a queue is returned by the next synchronisation. Memory that is freed while a queued operation has its address ends
 * the program, and so does a stream that is destroyed with operations on it. Waits of the host, and copies that are not
 * from or to pinned memory, are counted.
 *
 * The device below is the CPU, or the one that DTRAIN_QUEUE_BELOW names: CUDA's simulator gets late streams so.
 *
 * DTRAIN_DEVICE=queue puts it in the place of the CPU device. A node has DTRAIN_QUEUE_DEVICES of it (1), each with
 * DTRAIN_QUEUE_MEMORY bytes (as much as is free): a rank gets no more than what it does not hold itself. Tests may give
 * it an order, and work of their own (queue.h). */
#include "queue_private.h"

/* ---- descriptions: what they point to is device memory, too ------------------------------------------------------ */

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
}

static void reach_dt_heads(dt_device *dev, dt_heads *d)
{
    REACH(d->kv_row);
    REACH(d->q_norm);
    REACH(d->k_norm);
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

static void reach_dt_patches(dt_device *dev, dt_patches *d) {}
static void reach_dt_choice(dt_device *dev, dt_choice *d) {}
static void reach_dt_adamw(dt_device *dev, dt_adamw *d) {}
static void reach_dt_sgd(dt_device *dev, dt_sgd *d) {}

/* ---- operations: the arguments join the stream, and the call is made when its turn comes ------------------------- */

#define REACH_IN(type, name) REACH(args.name);
#define REACH_OUT REACH_IN
#define REACH_INOUT REACH_IN
#define REACH_DESC(type, name) reach_##type(dev, &args.name);
#define REACH_VAL(type, name)
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
