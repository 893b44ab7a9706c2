/* family.h - the description of a model family: how config.json maps to a configuration, the modules of each layer, and
 * the steps of a block. Units, names, loading, export, FLOPs, adapters, quantisation and plans follow from it.
 *
 * A module is a linear layer, a norm or a table. One matmul computes consecutive modules of one slot: all their weights
 * are adjacent, followed by all their biases. */
#ifndef DT_MODEL_FAMILY_H
#define DT_MODEL_FAMILY_H

#include "../config/model_config.h"

/** Location of a module in its layer. */
enum slot {
    SLOT_QKV,
    SLOT_O,
    SLOT_UP, /* gate and up, or the first layer of a plain MLP */
    SLOT_DOWN,
    SLOT_ROUTER, /* of a mixture of experts */
    SLOT_EXPERT_UP,
    SLOT_EXPERT_DOWN,
    SLOT_DELTA_IN, /* of linear attention: q, k and v, then z, b and a */
    SLOT_DELTA_OUT,
    SLOT_MLP_GATE,  /* of an MLP: one value for each token, whose sigmoid multiplies the output */
    SLOT_LATENT_IN, /* of latent attention: what keys and values come from, then what queries come from */
    SLOT_LATENT_Q,  /* from the compressed query */
    SLOT_LATENT_KV, /* from the compressed key and value */
    N_LINEARS,      /* the linear layers of a block */
    SLOT_NORM1 = N_LINEARS,
    SLOT_NORM2,
    SLOT_NORM3,
    SLOT_NORM4,
    SLOT_SCALE1, /* one factor for each element of a branch */
    SLOT_SCALE2,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    SLOT_SINKS, /* of attention */
    SLOT_CONV,  /* of linear attention */
    SLOT_DT_BIAS,
    SLOT_A_LOG,
    SLOT_DELTA_NORM,
    SLOT_CORRECTION, /* of a router: dt_routing */
    SLOT_TOKENS,     /* token embeddings; of a tower: its positions */
    SLOT_POSITIONS,
    SLOT_FINAL_NORM,
    SLOT_HEAD,
    SLOT_SCORE, /* of a scalar head */
    SLOT_CLASS, /* of a tower */
    SLOT_PATCHES,
    SLOT_PRE_NORM,
    N_SLOTS
};

/** A step of a block. A block has two branches. Each is a mixer, with a norm before it, after it, or both, and ends
 *  with STEP_ADD, which adds the residual. */
enum step {
    STEP_END,
    STEP_ATTENTION,
    STEP_MLP,
    STEP_EXPERTS, /* replaces STEP_MLP in layers with experts; with SLOT_UP, an MLP of all tokens is added */
    STEP_DELTA,   /* replaces STEP_ATTENTION in layers with linear attention */
    STEP_LATENT,  /* latent attention */
    STEP_ADD,
    STEP_NORM1, /* the norm in SLOT_NORM1, and so on */
    STEP_NORM2,
    STEP_NORM3,
    STEP_NORM4,
    STEP_SCALE1, /* the factors in SLOT_SCALE1, as a norm that only scales */
    STEP_SCALE2,
};

/** Sizes of a module, as the symbols of model_private.h. */
enum size_of {
    NO_SIZE,
    SIZE_C,
    SIZE_Q,
    SIZE_K,
    SIZE_O, /* values of all heads */
    SIZE_W,
    SIZE_F,
    SIZE_U,
    SIZE_V,
    SIZE_E,     /* num_experts */
    SIZE_X,     /* moe_intermediate_size */
    SIZE_XX,    /* gate and up of an expert */
    SIZE_HEADS, /* num_attention_heads */
    SIZE_S,     /* shared_expert_intermediate_size */
    SIZE_ONE,
    SIZE_QG,        /* queries and gates */
    SIZE_M,         /* of linear attention: q, k and v */
    SIZE_Z,         /* all values */
    SIZE_H,         /* value heads */
    SIZE_MZ,        /* q, k, v and z, grouped by key head */
    SIZE_HH,        /* b and a, likewise */
    SIZE_VALUE,     /* one value */
    SIZE_KERNEL,    /* linear_conv_kernel_dim */
    SIZE_LQ,        /* q_lora_rank */
    SIZE_LK,        /* kv_lora_rank */
    SIZE_LKR,       /* kv_lora_rank and the shared part of keys */
    SIZE_LKV,       /* keys without their shared part, and values, of all heads */
    SIZE_HEAD,      /* head_dim */
    SIZE_POSITIONS, /* max_position_embeddings */
    SIZE_LABELS     /* of a scalar head */
};

/** Condition of a tensor: a bool of dt_model_config, or always. 0: see struct module. */
#define IF(member) offsetof(dt_model_config, member)
#define UNCONDITIONAL SIZE_MAX

enum {
    ADAPT_BY_DEFAULT = 1, /* has an adapter if lora.target_modules is empty */
    IN_FIRST = 2,         /* the matrix is stored as [in, out] */
    DEPTH_SCALED = 4,     /* initial values are divided by the root of the number of residual branches */
    /* A slot may have other modules in layers with experts than in those without, not in adjacent rows of the table. */
    DENSE = 8,              /* only in layers without experts */
    SPARSE = 16,            /* only in layers with experts */
    PER_EXPERT = 32,        /* one for each expert, whose number replaces the %d in the name. In memory, an expert's
                           * modules of a slot are adjacent, and the experts follow one another */
    FULL_ATTENTION = 64,    /* only in layers with full attention */
    LINEAR_ATTENTION = 128, /* only in layers with linear attention */
    BARE = 256,             /* the name in files does not end in ".weight" */
    BATCHED = 512,          /* the tensor in files is [1, rows, width]; a vector is one row */
};

/** A module. Its weight is a matrix [out, in], or a vector [out]. */
struct module {
    enum slot slot;
    const char *name; /* in files, after the prefix of its layer, without ".weight" */
    enum size_of out, in;
    size_t bias_if; /* 0: no bias */
    size_t only_if; /* 0: always */
    unsigned flags;
};
enum { MAX_MODULES = 32 }; /* of a layer; unused ones have no name */

/** A key of [model] and its name in config.json. */
struct family_key {
    const char *key, *name;
};
enum { MAX_RENAMED = 8 };

/** A tensor in files, by its name after the prefix of its layer, that may contain all weights of a slot: those of one
 *  expert after the other [num_experts, sum of out, in], or IN_FIRST [num_experts, in, out]. For modules without
 *  PER_EXPERT it is another name of the weight. */
struct family_fused {
    enum slot slot;
    const char *name;
    bool saved;  /* exported directories have this tensor */
    bool either; /* IN_FIRST: files may have [num_experts, out, in], too */
};
enum { MAX_FUSED = 6 };

struct dt_family {
    struct {
        const char *model_type, *architecture, *classifier;
        const char *multimodal; /* model_type of models that also have an image tower; their text model is read */
    } name;                     /* in config.json */
    bool multimodal_tied;       /* such a model's own tie_word_embeddings is true by default */
    const dt_family *plain;     /* computes the same on texts; the text model alone is of this family. NULL: itself */
    /* Defaults of missing keys. 0 means num_key_value_heads = num_attention_heads, head_dim = hidden_size /
     * num_attention_heads, and intermediate_size = 4 hidden_size. -1: no such token. */
    struct {
        int64_t hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size,
            vocab_size, max_position_embeddings;
        double norm_eps;
        int32_t bos, eos, pad;
        double rope_theta, rope_local_theta; /* 0: 10000, and that of all layers */
        dt_activation act;
        double partial_rotary_factor; /* 0: no other is supported than 1 */
        int64_t original_max_position_embeddings;
    } missing;
    bool peft_names_experts;              /* PEFT takes the names of an MLP's layers for those of experts */
    bool in_llava;                        /* may be the language model of a vision-language model */
    const char *keys;                     /* of [model], in addition to the common ones (config_inline.c); NULL: none */
    struct family_key names[MAX_RENAMED]; /* keys with other names in config.json; unused ones have none */
    /* read everything but sizes, initializer_range and token ids */
    dt_err (*read)(const dt_spec *root, dt_model_config *mc);

    const char *blocks; /* the names of a block's modules begin with this and the block's number */
    const struct module *embed, *block, *head; /* [MAX_MODULES] */
    const enum step *steps;                    /* of a block, up to STEP_END */
    struct family_fused fused[MAX_FUSED];      /* unused ones have no name */
};

/** The family of a config.json's model_type; NULL: none. */
const dt_family *dt_family_find_type(const json_t *root);
/** The name in config.json of a key of [model]. */
const char *dt_family_key_name(const dt_family *f, const char *key);
/** Does the family read this key, in addition to the common ones? */
bool dt_family_reads(const dt_family *f, const char *key);
int64_t dt_family_size(const dt_model_config *mc, enum size_of size);
/** Does the configuration meet the condition? */
static inline bool dt_family_has(const dt_model_config *mc, size_t condition)
{
    return condition == UNCONDITIONAL || (condition && *(const bool *)((const char *)mc + condition));
}
/** A norm before each mixer. */
extern const enum step dt_steps_pre_norm[];
/** A norm before and after each mixer. */
extern const enum step dt_steps_four_norms[];
/** Does a layer have the module, apart from only_if? */
static inline bool dt_module_is_in(const struct module *k, dt_layer layer)
{
    return !(k->flags & ((layer.sparse ? DENSE : SPARSE) | (layer.linear ? FULL_ATTENTION : LINEAR_ATTENTION)));
}
/** The module's name, for one of its experts. */
void dt_module_name(const struct module *k, int64_t expert, char name[64]);
/** The first module of a slot, in any layer or in this layer of a block; NULL: none. */
const struct module *dt_family_find(const struct module *of, enum slot slot);
const struct module *dt_family_find_in(const struct module *of, enum slot slot, dt_layer layer);

/** The tensor that may contain a slot's weights; NULL: none. */
const struct family_fused *dt_family_fused(const dt_family *f, enum slot slot);

/** A unit under construction. */
struct builder {
    const dt_model_config *mc;
    dt_unit *unit;
    char prefix[64];    /* of all names */
    int64_t n_labels;   /* of a scalar head; 0: vocabulary head */
    bool tower;         /* a vision tower, not a language model */
    dt_layer layer;     /* of a block */
    int64_t patch_size; /* of a tower */
    int64_t n_frames;   /* of a tower (dt_vision_config); 0: its patches have no axis of time */
};
/** Name the unit, and append the tensors of a layer's modules. units.c */
dt_err dt_units_build(const struct builder *b, dt_unit_role role, const char *name, const struct module *of);

#endif
