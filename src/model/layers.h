/* layers.h - what find_tensors.c finds in the units of a model: linear layers and their adapters, norms, blocks. */
#ifndef DT_MODEL_LAYERS_H
#define DT_MODEL_LAYERS_H

#include "families/family.h"

/** Location of a tensor in its unit. Its gradient is computed if it is in the trained part. */
struct tensor_at {
    int64_t offset; /* elements from the start of the part; -1: no such tensor */
    dt_part part;
};

/** Low-rank adapters of a linear layer (adapter.h): y += h Bt with h = scale D(x) At. Layers that share one matmul and
 *  have equal scales share one A, with their rows concatenated. Each has its own columns of h and of y. */
enum { MAX_LOW = 4 }; /* q, k, v; in linear attention qkv, z, b, a */
struct low_part {
    struct tensor_at b;       /* [n_out, r] */
    struct tensor_at m;       /* [n_out]: magnitudes (magnitude.c); optional */
    int64_t r, first_r;       /* columns of h */
    int64_t n_out, first_out; /* columns of y */
};
struct low_rank {
    struct tensor_at a; /* [r, n_in] */
    int64_t r;
    float scale;
    int first, n_parts; /* parts first .. first + n_parts - 1 of the linear layer */
};

/** Work space of backward for a number of rows. */
struct low_work {
    void *x; /* [rows, widest n_in with adapters]: their input after dropout; forward uses it, too */
    void *d; /* [rows, maximum r]: gradient of h */
    /* of layers with magnitudes */
    void *factor, *inverse; /* [widest n_out] in float or the type of activations: m / n, 1 / n */
    void *y;                /* [rows, widest n_out], in backward: outputs before their factors; then their gradients */
    float *ones;            /* [rows] */
};

/** Low-rank adapter of a lookup table with n_rows rows: x += h Bt with h[t, k] = scale A[k, id[t]]. Its part covers
 *  all of x. The r elements of A for a token are n_rows apart. The lookup treats A as a table of
 *  r n_rows rows with one element each. */
struct low_table {
    struct low_rank low; /* a [r, n_rows]; r 0: no adapter */
    struct low_part part;
    int64_t n_rows;
};
enum low_of { LOW_TOKENS, LOW_POSITIONS, N_LOW_TABLES };

/** y = x Wt + b, with leading dimension w_ld of W, and adapters. W is [n_out, n_in], or [n_in, n_out] (in_first). */
struct linear {
    int64_t n_in, n_out;
    struct tensor_at w, b, blocks, scale; /* all but w are optional */
    int finer;                            /* of an nf4 W (dt_scaled) */
    int64_t w_ld;
    bool in_first;
    int n_groups;   /* experts, whose matrices w (and A and B) follow one another; 0: one matrix */
    int64_t n_rows; /* of its input, per token */
    struct low_rank low[MAX_LOW];
    struct low_part part[MAX_LOW]; /* of all adapters */
    int n_low;
    int64_t low_r; /* total columns of h of all adapters; 0: no adapters */
    bool scaled;   /* they have magnitudes */
    bool in_fp32;  /* y is fp32, as for logits */
    int64_t layer;
    enum slot site;
};

/** A norm of rows. Weight and bias are optional. */
struct norm {
    struct tensor_at w, b;
    int64_t width, x_ld, y_ld; /* LayerNorm's rows are contiguous */
    float eps;
    bool rms;                   /* RMSNorm, else LayerNorm */
    bool plus_one, only_scales; /* of dt_rmsnorm */
};

/** A residual branch of a block (block.c). */
struct branch {
    enum step mixer;
    struct norm pre, post; /* before and after the mixer; either is optional */
};
enum { N_BRANCHES = 2 };

/** The matrices of some experts of a block, in a unit of their own. */
struct expert_part {
    int unit, first;      /* number of the first expert */
    struct linear linear; /* without adapters and biases, which are in the block's unit */
};

/** One block: its number and its tensors. Different tensors may be trained in different blocks. */
struct block {
    int64_t layer; /* bidirectional blocks are numbered after the causal ones */
    bool bidirectional;
    dt_layer traits;
    struct branch branch[N_BRANCHES];
    struct norm q_norm, k_norm;                        /* optional: of heads, or of whole rows */
    struct tensor_at sinks;                            /* optional */
    struct tensor_at correction;                       /* optional: of a router */
    struct tensor_at conv, dt_bias, a_log, delta_norm; /* of linear attention */
    struct linear linear[N_LINEARS];
    /* parts of SLOT_EXPERT_UP, then as many of SLOT_EXPERT_DOWN; n_parts 0: all experts are in the block's unit */
    const struct expert_part *parts;
    int n_parts;
};

/** A unit between the embedding and the head. */
struct stage {
    dt_unit_role role;
    int unit;
    int64_t set;        /* index of its set of activations for backward */
    struct block block; /* unused if its role is NORM */
    struct norm norm;   /* of role NORM */
};

#endif
