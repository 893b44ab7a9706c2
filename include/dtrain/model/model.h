/* model.h - the layers of a model, computed on one device, for the families in src/model/families. It depends neither
 * on MPI nor on ZeRO, only on collectives of axes (dt_model_options.mesh). Definitions: algorithms.md section 8.
 *
 * A model is a list of units ("embed", "block.0" .., "head"). It gets parameters and gradients through a
 * dt_param_source, so tests run it on plain buffers.
 *
 * Functions before dt_model_open are Local. Passes of a model acquire and release units: they are Collective if the
 * dt_param_source is, and all ranks call them in the same order, also with an empty batch. Common errors of passes:
 * DT_ERR_ARG, DT_ERR_FAULT, and those of the dt_param_source. */
#ifndef DTRAIN_MODEL_H
#define DTRAIN_MODEL_H

#include "dtrain/image/batch_images.h"
#include "dtrain/config/config.h"
#include "dtrain/device/device.h"
#include "dtrain/core/unit.h"
#include "dtrain/model/vision.h"

/* ---- configuration ----------------------------------------------------------------------------------------------- */

/** A model family, by config.json's model_type: the tables of its layers (src/model/families/). */
typedef struct dt_family dt_family;
/** Scaling rules of rotary embeddings. */
typedef enum dt_rope_type {
    DT_ROPE_NONE,
    DT_ROPE_DEFAULT,
    DT_ROPE_LINEAR,
    DT_ROPE_DYNAMIC,
    DT_ROPE_LLAMA3,
    DT_ROPE_YARN,
    DT_ROPE_LONGROPE,
    DT_N_ROPE
} dt_rope_type;
enum { DT_MAX_EOS = 16 };

/** Properties in which the layers of one model may differ. */
typedef struct dt_layer {
    bool slides;    /* attention has a window */
    bool unrotated; /* queries and keys have no positions */
    bool sparse;    /* the MLP is a mixture of experts */
    bool linear;    /* linear attention: the gated delta rule */
    bool windowed;  /* attention within windows of an image (vision.h) */
} dt_layer;

/** A validated config.json with its defaults. Freed with dt_model_config_free. Fields have config.json's names. */
typedef struct dt_model_config {
    const dt_family *family;
    int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    int64_t vocab_size, max_position_embeddings;
    /* of the layers with experts (sparse), each an MLP of moe_intermediate_size; each token uses num_experts_per_tok */
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size;
    int64_t shared_expert_intermediate_size; /* width of the MLP that all tokens use in these layers; 0: none */
    bool linear_grouped;                     /* matrices before linear attention have rows grouped by key head */
    bool norm_topk_prob;                     /* the weights of a token's experts add up to 1 */
    double router_aux_loss_coef;             /* factor of the load-balancing loss; 0: none */
    double router_z_loss_coef;               /* factor of the z-loss, which is not in config.json; 0: none */
    double swiglu_limit;                     /* of experts (glu_forward); 0: none */
    /* of the router (dt_routing); n_group 0 or 1: no groups */
    bool sigmoid_router;
    int64_t n_group, topk_group, group_best;
    double routed_scaling_factor; /* 0: 1 */
    /* of latent attention: ranks of queries (0: not compressed), and of keys and values (0: another attention). Of
     * head_dim elements of a query or key the last qk_rope_head_dim rotate, which all key heads share */
    int64_t q_lora_rank, kv_lora_rank, qk_rope_head_dim;
    bool q_compressed, q_plain; /* q_lora_rank is above 0, or 0 */
    int64_t v_head_dim;         /* of values; 0: head_dim */
    /* of the layers with linear attention */
    int64_t linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim;
    int64_t linear_conv_kernel_dim;
    bool attn_output_gate; /* the output of full attention is multiplied by the sigmoid of a gate */
    double norm_eps, initializer_range;
    /* factors of embeddings, of scores (0: by head_dim) and of each branch, before it is added; divisor of logits */
    double embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling;
    double layer_scale;                 /* initial value of the factors of a branch's elements (SLOT_SCALE1) */
    double attn_softcap, final_softcap; /* of scores and logits: x becomes cap tanh(x / cap); 0: none */
    bool embedding_multiplier_rounded;  /* to the type of the weights */
    dt_activation act;
    bool gated_mlp;     /* down(act(gate) * up); else down(act(up)) */
    bool rms_norm;      /* else LayerNorm */
    bool norm_bias;     /* of a tower whose norms may have none */
    bool norm_plus_one; /* weights of norms are stored minus 1 */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tie_word_embeddings;
    bool qk_norm_whole;     /* qk_norm is over all heads at once */
    bool conv1d;            /* matrices of blocks are stored as [in, out] */
    bool learned_positions; /* a table of max_position_embeddings rows; else the length has no limit */
    dt_layer *layers;       /* [num_hidden_layers]; NULL: all as {0} */
    int64_t sliding_window; /* of the layers that have one */
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx;
    dt_rope_type rope_type;
    double rope_local_theta; /* base of the layers with a window, without a scaling rule; 0: as the other layers */
    double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_beta_fast, rope_beta_slow;
    double rope_attention_factor, rope_mscale, rope_mscale_all_dim; /* 0: not given */
    bool rope_truncate;
    int64_t rope_original_max_position;
    double *rope_short, *rope_long; /* [rotary dimension / 2] divisors of frequencies (longrope) */
    double partial_rotary_factor;   /* heads rotate this part of their elements */
    /* Positions of images have several axes: of a tower row and column (2), of a language model time, row and column
     * (3). Each rotated pair belongs to one axis; 0: one position. mrope_section: pairs of each axis */
    int rope_axes;
    int64_t mrope_section[3];
    bool mrope_interleaved; /* axes alternate from pair to pair */
    bool rope_neighbours;   /* pairs are neighbours, else (i, i + half) */
    double q_scaling_beta;  /* queries grow with the position: algorithms.md 8.1; 0: not */
    double attn_pdrop, embd_pdrop, resid_pdrop;
    int32_t bos_token_id; /* -1: none */
    /* of architectures: ...ForTokenClassification has a bias of the score; ...Model has neither score nor vocabulary
     * head */
    bool score_bias, headless;
    int32_t pad_token_id; /* its embedding gets no gradient from lookups, as in transformers; -1: none */
    int32_t eos_token_id[DT_MAX_EOS];
    int n_eos;
    char *json; /* the source text, re-serialised, for checkpoints */
    /* tower and projector of a vision-language model, whose language model the other fields describe; NULL: a language
     * model only */
    dt_vision_config *vision;
} dt_model_config;

/** Number of rotated elements of a head; 0: no rotary embedding. */
static inline int64_t dt_model_rotary_dim(const dt_model_config *mc)
{
    if (mc->qk_rope_head_dim > 0) return mc->qk_rope_head_dim;
    return (int64_t)((double)mc->head_dim * mc->partial_rotary_factor);
}
/** Width of a head's values. */
static inline int64_t dt_model_v_dim(const dt_model_config *mc)
{
    return mc->v_head_dim > 0 ? mc->v_head_dim : mc->head_dim;
}
union dt_mesh;
/** Why n ranks cannot divide the heads and the MLP of this model; NULL: they can. */
const char *dt_model_undivided(const dt_model_config *mc, int n);
/** Why ranks cannot divide the tokens of a batch of this model; NULL: they can. */
const char *dt_model_undivided_tokens(const dt_model_config *mc);
/** dt_model_make_units, or dt_model_make_value_units if n_labels is not 0, for a rank of a mesh: with its part of the
 *  tensors that the axis tp divides. mesh NULL: whole tensors. */
dt_err dt_model_make_parts(const dt_model_config *mc, int64_t n_labels, const union dt_mesh *mesh, dt_unit **units,
                           int *n_units);
/** Number of layers with linear attention. */
int64_t dt_model_n_linear(const dt_model_config *mc);
/** The number of layers with experts. */
int64_t dt_model_n_sparse(const dt_model_config *mc);
/** Do micro-steps count the load of the experts, for a loss of the routers? */
static inline bool dt_model_counts_experts(const dt_model_config *mc)
{
    return mc->router_aux_loss_coef > 0 || mc->router_z_loss_coef > 0;
}
/** Properties of layer i. */
static inline dt_layer dt_model_layer(const dt_model_config *mc, int64_t i)
{
    return mc->layers ? mc->layers[i] : (dt_layer){0};
}

/** Parse the text of a config.json. Unknown keys are ignored.
 *
 *  mc         out  freed with dt_model_config_free; {0} after an error in a value
 *  name       name of the text in messages
 *  json_text  in  0-terminated
 *
 *  DT_ERR_DATA, naming file, key and value: not JSON, or an unsupported value. DT_ERR_MEMORY. */
dt_err dt_model_config_parse(dt_model_config *mc, const char *name, const char *json_text);
/** The part of a model with images that is used. */
typedef enum dt_model_part {
    DT_MODEL_USUAL, /* the whole model, or the text model alone, as dt_tower.text_alone says */
    DT_MODEL_TEXT,
    DT_MODEL_WHOLE
} dt_model_part;
/** The configuration of [model]: `config` (a file) or inline keys; inline keys override `config`. Not for `path`. mc:
 *  out, freed with dt_model_config_free. DT_ERR_USAGE, DT_ERR_DATA. */
dt_err dt_model_config_from_keys(dt_model_config *mc, const dt_config *cfg, dt_model_part part);
/** Set the keys of [model] that select the loss of routers in the text of a config.json: the only ones that apply to a
 *  model of `path`. name: of the text in messages; json_text: replaced. DT_ERR_USAGE: its family has no such keys.
 *  DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_model_config_set_losses(const dt_config *cfg, const char *name, char **json_text);
/** Free the configuration, with its vision part. Safe on {0}; leaves {0}. */
void dt_model_config_free(dt_model_config *mc);
/** Set the dropout of attention, embedding, residual branches and projector. Negative: no change. */
void dt_model_config_set_dropout(dt_model_config *mc, double dropout);
/** Is it the config.json of a vision-language model? A model that transformers' LlavaForConditionalGeneration would
 *  compute differently (vision_feature_norm, image_tokens, other projector types) is exported as model_type
 *  DT_OWN_LLAVA, so that AutoModel refuses it. */
#define DT_OWN_LLAVA "dtrain_llava"
bool dt_model_is_llava(const json_t *config);
/** Is it the config.json of a vision-language model of any kind? */
bool dt_model_has_vision(const json_t *config);

/** Replace the config.json of a model with images by that of its text model alone, if this part is wanted, and that of
 *  a model with its own code by that of the family that computes the same. Other configurations do not change.
 *
 *  name     of the file in messages
 *  root     inout  an object that the caller owns
 *  chosen   out    it is now that of a text model alone
 *  changed  inout  set to true if it was replaced
 *
 *  DT_ERR_DATA: dtrain does not read the text model alone, or a value. DT_ERR_MEMORY. */
dt_err dt_model_choose_part(dt_model_part part, const char *name, json_t **root, bool *chosen, bool *changed);
/** The value of tie_word_embeddings in the config.json of a multimodal model, outside of text_config, or its default.
 *  The head is tied if this value or that in text_config is true. */
bool dt_model_ties_outside(const json_t *config);

/** Set the image preprocessing of a vision-language model whose configuration lacks it (vision->preprocessor), also in
 *  mc->json. json_text: a preprocessor_config.json; name: its name in messages. DT_ERR_DATA: it is invalid.
 *  DT_ERR_MEMORY. */
dt_err dt_model_config_set_preprocessor(dt_model_config *mc, const char *name, const char *json_text);
/** Called for a field that differs. */
typedef void (*dt_model_visit)(void *self, const char *name, const char *before, const char *now);
/** Call visit for each field that affects the results and differs, by its name in config.json, in the order of the
 *  struct. */
void dt_model_config_compare(const dt_model_config *before, const dt_model_config *now, dt_model_visit visit,
                             void *self);
/** Call visit for each key of [model] with a value that differs from that of `found`. before: "" if no single field has
 *  the key's name. Not for `config`. DT_ERR_MEMORY. */
dt_err dt_model_config_compare_keys(const dt_config *cfg, const dt_model_config *found, dt_model_visit visit,
                                    void *self);
/** Names as in config.json: "llama", "silu", "linear" ("none" without rotary embedding). */
const char *dt_family_name(const dt_family *family);
const char *dt_activation_name(dt_activation act);
const char *dt_rope_name(dt_rope_type type);
/** The first of config.json's architectures: "LlamaForCausalLM". */
const char *dt_model_architecture(const dt_model_config *mc);
/** Has the family a head with biases, for labels of words (...ForTokenClassification)? */
bool dt_model_has_token_classes(const dt_model_config *mc);
/** The same for a model with a scalar head: "LlamaForSequenceClassification". */
const char *dt_classifier_architecture(const dt_family *family);
/** Family number i, in the order of model_types.h; NULL after the last. */
const dt_family *dt_family_at(int i);

/** Build the units of a model, all trained (see dt_units_choose_trained). Unit 0 is the embedding; the head (final
 *  norm, and lm_head.weight unless tied) is the last unit of the language model.
 *
 *  Names are those of transformers' save_pretrained; GPT-2 has the prefix "transformer.", which the first published
 *  files lack. One group each: q, k, v weights; q, k, v biases; gate and up weights; gate and up biases. A
 *  vision-language model has the units of tower and projector after the head ("vision.embed", "vision.block.0" ..,
 *  "vision.end", "projector"), and the names of LlavaForConditionalGeneration.
 *
 *  units  out  [n_units], freed with dt_model_free_units; NULL on error
 *
 *  DT_ERR_MEMORY, DT_ERR_ARG. */
dt_err dt_model_make_units(const dt_model_config *mc, dt_unit **units, int *n_units);
enum {
    DT_HIDDEN_STATES = -2
}; /* instead of n_labels: the values of a token are its hidden state after the final norm */
/** As dt_model_make_units, with a scalar head of n_labels values per token instead of the vocabulary's ("score.weight",
 *  as transformers' sequence classifiers): for reward models and critics. */
dt_err dt_model_make_value_units(const dt_model_config *mc, int64_t n_labels, dt_unit **units, int *n_units);
/** Free the units and their tables. Safe on NULL. */
void dt_model_free_units(dt_unit *units, int n_units);
#define DT_LANGUAGE_PREFIX "language_model." /* of all tensors of the language model in a vision-language model */
/** The name without this prefix. */
const char *dt_model_of_language(const char *name);
/** Is it a matrix with one row per token of the vocabulary: the embedding, or an untied head? */
bool dt_model_is_vocabulary(const dt_tensor *t);
/** Module number i with such a matrix, of any family: "lm_head". Names occur several times. NULL after the last. */
const char *dt_vocabulary_module(int i);
/** Number of the layer that a tensor of the language model belongs to, by its name in a text model; -1: none. */
int64_t dt_model_layer_of(const dt_model_config *mc, const char *name);
/** Index of the unit whose table the vocabulary's head also uses: the embedding of a tied model; -1: none. */
int dt_model_tied_unit(const dt_model_config *mc, const dt_unit *units, int n_units);

/** The axis that rotated pair i belongs to (rope_axes). */
int dt_model_rope_axis(const dt_model_config *mc, int64_t i);
/** Rows of a rotary table for dt_heads.cos_sin (cos, then sin; algorithms.md 8.5), computed in double: positions first
 *  .. first+n-1 of a sequence of `length` tokens. Only the rules dynamic and longrope depend on the length. of_q: for
 *  dt_heads.q_cos_sin. cos_sin: out [n, dt_model_rotary_dim], host. */
void dt_model_rope_rows(const dt_model_config *mc, bool of_q, int64_t length, int64_t first, int64_t n, float *cos_sin);
/** The length up to which the rules dynamic and longrope do not depend on it; other rules: INT64_MAX. */
int64_t dt_model_rope_constant_length(const dt_model_config *mc);

/** The length beyond which generation computes the cache of a text again, as in transformers: that of longrope, if a
 *  text of `longest` tokens exceeds it. 0: none. */
int32_t dt_model_recompute_length(const dt_model_config *mc, int64_t longest);

/** Maximum useful sequence length: max_position_embeddings, times the factor of the linear, dynamic and yarn rules. */
int64_t dt_model_max_length(const dt_model_config *mc);

/** Floating-point operations of forward and backward of n_tok tokens: per token 6 for each matrix parameter, 4 if it is
 *  frozen and has no gradient, and attention over the causal half of the squares. Embedding lookups count 0; a tied
 *  head counts. Of experts, those count that a token uses. sum_seq_len_squared: over the sequences. */
double dt_model_train_flops(const dt_model_config *mc, const dt_unit *units, int n_units, int64_t n_tok,
                            double sum_seq_len_squared);
/** Parameters that a token uses: all, but of the experts of a layer only num_experts_per_tok. */
int64_t dt_model_n_active(const dt_model_config *mc, const dt_unit *units, int n_units);
/** Additional operations of one image, or of one cell of a grid: per row 2 for each matrix parameter of the tower's
 *  used blocks and the projector, 4 or 6 if the gradient passes through, and attention over the whole square. 0 for a
 *  language model only. features_given: without the tower's. */
double dt_model_image_flops(const dt_model_config *mc, const dt_unit *units, int n_units, bool features_given);

/* ---- forward, backward and generation ---------------------------------------------------------------------------- */

typedef struct dt_model dt_model;

/** Activations that blocks discard after forward and recompute in backward, with the same bits. */
typedef enum dt_recompute {
    DT_RECOMPUTE_NONE,
    DT_RECOMPUTE_SELECTIVE, /* cheap ones: norms, including those of heads, rotary embedding, activation functions */
    DT_RECOMPUTE_BLOCK,     /* all except the block's input */
} dt_recompute;

/** Optional results of a vocabulary's head, which cost memory (dt_model_options.head); see dt_head_pass and
 *  dt_head_results. */
enum {
    DT_HEAD_ENTROPY_WEIGHT = 1,
    DT_HEAD_SUM_SQUARES = 2,
    DT_HEAD_MEAN_LOGIT = 4,
    DT_HEAD_DIVERGENCE = 8, /* KL divergence from a reference: value and gradient */
};

/** Options of dt_model_open and dt_model_plan. */
typedef struct dt_model_options {
    dt_dtype dtype;
    dt_dtype grad_dtype; /* of the views of grads_acquire */
    int32_t max_tok;     /* maximum number of tokens of a micro-batch */
    int32_t max_seq;     /* maximum number of sequences of a micro-batch */
    /* maximum sequence length, cached tokens included: positions are below it. GPT-2: at most
     * max_position_embeddings */
    int32_t max_pos;
    /* The ranks of a team have the same batches and divide the work on them (comm.h). Each rank gets the results of all
     * tokens, and the gradients of what it computed. NULL: each rank has batches of its own. Borrowed. A plan needs
     * only sizes */
    const union dt_mesh *mesh;
    bool training; /* keep what backward needs */
    dt_recompute recompute;
    /* results do not depend on what is recomputed, even if that is slower (dt_matmul.act_of_aux) */
    bool reproducible;
    /* if all sequences of a batch have the same length, use the device's attention library, if it was prepared
     * (dt_model_prepare_attention): its bits differ from the device's own kernels */
    bool library_attention;
    /* KV cache: number of sequences, and tokens of each; 0: none. In training it shares memory with what backward
     * needs: a training forward clears the cache, and generation discards what was kept for backward */
    int32_t cache_seqs, cache_len;
    /* additional cache slots for prompts that sequences share, and tokens of each; 0: none. Only with
     * batch_invariant */
    int32_t cache_prompts, cache_prompt_len;
    /* record repeated steps of generation as graphs, if the device has them, while parameters are resident: same
     * results, fewer calls */
    bool graphs;
    int32_t max_top;    /* maximum of dt_top.k (beam search) */
    int32_t max_known;  /* dt_head_pass.known, dt_model_tops: maximum k; 0: none */
    int32_t max_listed; /* maximum number of tokens of dt_model_set_lists */
    int32_t max_images; /* maximum number of images (of grids: of cells) of a micro-batch; 0: none */
    /* batches contain features (dt_vision_feature_nbytes) instead of pixels; the tower, which is frozen, only serves
     * dt_model_features */
    bool features_given;
    /* the bits of a token's logits and values depend neither on the rest of the batch nor on how its sequence was
     * divided into passes; only passes without backward */
    bool batch_invariant;
    /* set by vision.c for a vision tower: its configuration, else NULL; number of its unit 0 in the dt_param_source */
    const dt_vision_config *tower;
    int first_unit;
    unsigned head; /* optional results of the vocabulary's head: a sum of DT_HEAD_... */
    /* factor of the loss, read when the head runs; NULL: 1. Borrowed for the model's life */
    const double *loss_scale;
    uint64_t seed; /* for dropout */
    /* ignore the low-rank adapters in the units' tables (unit.h) */
    bool no_adapters;
    float adapter_dropout; /* dropout of adapters' inputs, in training */
    float neftune_alpha;   /* in training, noise on embeddings: uniform within neftune_alpha / sqrt(length * width) */
    /* Activation memory shared by several models that run in turn. The lender owns at least lend_nbytes. The others
     * borrow them and do not train; their `lender` is set when they are opened. A pass of one model discards the
     * results of the others. The lender is closed last. */
    size_t lend_nbytes;
    bool borrows;
    /* hidden states and the head's workspace have their own memory, so that the head works after another model used the
     * activations. For dt_head_pass.reference */
    bool keeps_hidden;
    struct dt_model *lender;
} dt_model_options;

/** Bytes of keys and values, and of the states of linear attention, of cache_seqs sequences and cache_prompts prompts.
 *  They are part of the activations. In training they share memory with the activations that backward needs. */
size_t dt_model_cache_nbytes(const dt_model_config *mc, const dt_model_options *opt);
/** Count the bytes that dt_model_open will allocate, with the same code: activations with the cache, pinned staging,
 *  the batch on the device (DT_MEM_DATA), the rotary table (DT_MEM_OTHER). Local.
 *
 *  dev   may be opened to plan
 *  plan  out  overwritten
 *
 *  DT_ERR_ARG: options or units. DT_ERR_USAGE: as dt_model_open. DT_ERR_MEMORY. */
dt_err dt_model_plan(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units, int n_units,
                     const dt_device *dev, dt_memory *plan);

/** Check that the device's library supports this model's attention (library_attention), whether it is available or not.
 *  Local. dev may be opened to plan. DT_ERR_USAGE, with the reason. */
dt_err dt_model_check_attention(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                                int n_units, const dt_device *dev);

/** Prepare the device's library for attention of max_tok / max_pos sequences of max_pos tokens (library_attention).
 *  Local. Call it before dt_model_open, whose memory it uses for trials. Partial support is logged. DT_ERR_USAGE, with
 *  the reason: the library supports none of it. */
dt_err dt_model_prepare_attention(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                                  int n_units, dt_device *dev);

/** Open a model and allocate its activations. Local, synchronous.
 *
 *  m                       out  closed with dt_model_close; NULL on error
 *  mc, units, dev, source  borrowed until dt_model_close
 *  compute                 stream of all passes
 *  phase                   may be NULL
 *
 *  DT_ERR_ARG: options or units. DT_ERR_USAGE: a configuration that the model does not support. DT_ERR_MEMORY,
 *  DT_ERR_FAULT. */
dt_err dt_model_open(dt_model **m, const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                     int n_units, dt_device *dev, const dt_param_source *source, dt_stream *compute, dt_phase *phase);
/** Wait for queued work and free the model. Local. Safe on NULL. */
void dt_model_close(dt_model *m);

/* A training micro-step is forward, head, backward, results; all also with an empty batch (n_tok 0), which passes
 * through every unit and contributes zero. Units are acquired and released in the same order for every batch. The first
 * three queue their work and return, so the host can wait for the results while the device computes backward. */

/** Compute embedding and blocks. The hidden states stay on the device; the final norm belongs to the head, which
 *  applies it to rows with a target. Asynchronous on the compute stream.
 *
 *  b      in  host; reusable on return
 *  train  use dropout, and keep what backward needs; clears the KV cache
 *  step   key of dropout and noise, with the seed and b->token_key
 *
 *  DT_ERR_DATA: a token outside the vocabulary, or a position outside max_pos. DT_ERR_ARG: train, but the model was not
 *  opened for training. */
dt_err dt_model_forward(dt_model *m, const dt_batch *b, bool train, int64_t step);

/** k log-probabilities of each target's distribution, at the temperature of the pass: [n_target, k], host memory. The
 *  other tokens have the rest of the probability in proportion to p (fill_rest in op_list.h). token -1: none. */
typedef struct dt_known {
    int32_t k;
    int32_t *token;
    float *logp;
} dt_known;

/** A pass of a vocabulary's head over the tokens that have a target. For a token with logits z, target v and
 *  temperature T
 *
 *      s = z/T        p = softmax(s)        logp = log p_v        entropy H = - sum over the vocabulary of p log p
 *
 *  and, with the distribution q of a reference model, K = KL(p || q) = sum of p (log p - log q), or with kl_mix a > 0
 *
 *      m = a p + (1 - a) q        K = a KL(p || m) + (1 - a) KL(q || m), and KL(q || p) for a = 1
 *
 *  dt_model_head computes the gradient
 *  of
 *
 *      L = sum over tokens of  - u_t logp_t - entropy_weight_t H_t + kl_weight_t K_t
 *
 *  With weight_by_p the weight is u_t p_v instead of u_t, where p_v counts as a constant. Arrays are host memory,
 *  [n_target], in the order of b->target_row. */
typedef struct dt_head_pass {
    float inv_temperature; /* 1/T, usually 1 */
    bool weight_by_p;
    const float *u;              /* required by dt_model_head only */
    const float *entropy_weight; /* NULL: 0. Needs DT_HEAD_ENTROPY_WEIGHT */
    const float *kl_weight;      /* NULL: 0. Needs DT_HEAD_DIVERGENCE and a reference */
    float kl_mix;                /* a, from 0 to 1 */
    /* the reference: a model on the same device and stream, with the same max_tok and vocabulary, whose last forward
     * was of this batch. Its head's units are acquired as well. NULL: none; the same on all ranks */
    dt_model *reference;
    /* instead of a reference: what is known of its distributions. Needs max_known. NULL: none; the same on all ranks */
    const dt_known *known;
} dt_head_pass;

/** Results per target: [n_target], in the order of b->target_row, host memory, the caller's. NULL: not computed. */
typedef struct dt_head_results {
    float *logp;
    uint8_t *hit; /* the target is the most probable token (ties: the lowest id) */
    float *entropy;
    float *log_sum_squares; /* log sum over the vocabulary of p^2. Needs DT_HEAD_SUM_SQUARES */
    float *mean_logit;      /* of s, over the vocabulary. Needs DT_HEAD_MEAN_LOGIT */
    float *kl;              /* K. Needs DT_HEAD_DIVERGENCE and a reference */
} dt_head_results;

/** Compute the head's results without gradients, from the hidden states of the last forward. Synchronous: host and
 *  device wait for each other, so in training it is only used for objectives whose weights depend on the
 *  predictions. */
dt_err dt_model_predict(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *out);
/** As dt_model_predict, for log-probabilities; hit and entropy may be NULL. */
dt_err dt_model_logp(dt_model *m, const dt_batch *b, float inv_temperature, float *logp, uint8_t *hit, float *entropy);

/** Compute the k most probable tokens of each target's distribution and their log-probabilities, from the hidden states
 *  of the last forward, with k at most max_known. top: its arrays are out, in descending order. Synchronous. */
dt_err dt_model_tops(dt_model *m, const dt_batch *b, float inv_temperature, const dt_known *top);

/** Compute forward and backward of the head in one pass, for known weights: adds the head's parameter gradients, and
 *  leaves the gradient of the hidden states for dt_model_backward. Asynchronous.
 *
 *  With a tied embedding it holds the embedding's gradients until dt_model_backward has added its own.
 *
 *  b, pass  in  reusable on return
 *  wanted   its non-NULL fields select the results that dt_model_results returns, in addition to logp; not written */
dt_err dt_model_head(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *wanted);

/** Copy the results of the last dt_model_head that were wanted and are not NULL in out, until the next forward. Waits
 *  for the head only: call it after dt_model_backward was queued. */
dt_err dt_model_results(dt_model *m, const dt_head_results *out);

/** Compute a scalar head: value [n_tok, n_labels] = norm(x) score^T, of the hidden states of the last forward. value:
 *  out, host. Synchronous. */
dt_err dt_model_values(dt_model *m, const dt_batch *b, float *value);
/** Compute the backward of a scalar head: adds its parameter gradients, and leaves the gradient of the hidden states
 *  for dt_model_backward. dvalue: in [n_tok, n_labels] dL/dvalue, host, reusable on return. Asynchronous. */
dt_err dt_model_value_head(dt_model *m, const dt_batch *b, const float *dvalue);

/** Copy the load of the experts in the last forward, which was for training, of a model with dt_model_counts_experts.
 *  load: out [2 num_experts + 1], over all layers: the number of tokens that used each expert, then the sum of its
 *  probabilities (with router_aux_loss_coef), then that of squares of log sum of e^logit (with router_z_loss_coef).
 *  Synchronous. */
dt_err dt_model_expert_load(dt_model *m, double *load);
/** The load-balancing loss of a load, before router_aux_loss_coef. dprob: out [num_experts], scale times the derivative
 *  of router_aux_loss_coef times this loss by each token's probability of an expert, in each layer; NULL: not computed.
 *  Local. */
double dt_model_balance_loss(const dt_model_config *mc, const double *load, double scale, float *dprob);
/** The z-loss of a load before router_z_loss_coef, summed over layers. dsquare: out, as dprob, the derivative by each
 *  token's square. Local. */
double dt_model_z_loss(const dt_model_config *mc, const double *load, double scale, float *dsquare);
/** Add these derivatives in the next dt_model_backward. dload: in [num_experts + 1], dprob and dsquare, host, reusable
 *  on return. Asynchronous. */
dt_err dt_model_balance(dt_model *m, const float *dload);

/** Compute the backward of blocks and embedding, after dt_model_head or dt_model_value_head. Asynchronous. */
dt_err dt_model_backward(dt_model *m, const dt_batch *b);

/** Compute the logits of the last token of each sequence, after forward or decode. logits: out float [n_seq,
 *  vocab_size], host; zeros for a sequence without tokens. Synchronous. */
dt_err dt_model_last_logits(dt_model *m, const dt_batch *b, float *logits);

/** Copy the hidden states after the final norm, after a forward of a model with a vocabulary's head. hidden: out float
 *  [n_tok, hidden_size], host. Synchronous. */
dt_err dt_model_hidden_states(dt_model *m, const dt_batch *b, float *hidden);

/** Run new tokens through the model with the KV cache. Then call dt_model_draw, dt_model_top or dt_model_last_logits.
 *  Asynchronous.
 *
 *  b     in  tokens to append to each sequence; b->pos continues the cached positions
 *  slot  in  [n_seq] cache slot of each sequence or prompt */
dt_err dt_model_decode(dt_model *m, const dt_batch *b, const int32_t *slot);

/** Arguments of dt_model_draw. Host arrays. */
typedef struct dt_draw {
    dt_choice how;
    const double *uniform; /* in [n_seq] from [0, 1); NULL if greedy */
    const uint32_t *seen;  /* in [n_seq, (vocab_size + 31) / 32] bits of tokens with a repetition penalty; NULL: none */
    const uint32_t *allowed; /* in [n_seq, (vocab_size + 31) / 32] bits of allowed tokens; NULL: all */
    /* out [n_seq]; -1 if a logit is NaN or +inf, none is above -inf, or the sequence has no tokens */
    int32_t *token;
    double *logp;            /* out [n_seq] by the model's logits; NULL: not computed */
    double logp_temperature; /* divides the logits for logp; 0: 1 */
    /* in [n_seq] candidates of sequence s: tokens list_start[s] .. list_start[s] + list_len[s] - 1 of
     * dt_model_set_lists; NULL: all. logp is relative to the whole vocabulary */
    const int32_t *list_start, *list_len;
} dt_draw;

/** Sample the next token of each sequence of b on the device, at most cache_seqs of them, after dt_model_decode.
 *  Synchronous. */
dt_err dt_model_draw(dt_model *m, const dt_batch *b, const dt_draw *d);

/** Arguments of dt_model_top: the most probable next tokens of each sequence, ties by lower id. One list, or with
 *  `seen` two: tokens that are not seen, and tokens that are. Host arrays. */
typedef struct dt_top {
    int32_t k;               /* length of a list, at most max_top */
    const uint32_t *seen;    /* [n_seq, (vocab_size + 31) / 32] bits; NULL: one list of all tokens */
    const uint32_t *allowed; /* as in dt_draw */
    int32_t *token;          /* out [n_seq, lists, k] in descending order; -1 after the last possible token */
    /* out [n_seq, lists, k] log-probabilities, of logits divided by logp_temperature (0: 1); all NaN for a sequence if
     * a logit is NaN or +inf, or none is above -inf */
    double *logp;
    double logp_temperature;
    const int32_t *list_start, *list_len; /* as in dt_draw */
} dt_top;

/** Set the lists of candidate tokens, all in one array of n <= max_listed ids, each ascending. token: in, host, copied.
 *  Local, synchronous. DT_ERR_ARG: an id outside the vocabulary. */
dt_err dt_model_set_lists(dt_model *m, const int32_t *token, int32_t n);

/** Find the most probable next tokens; otherwise as dt_model_draw. */
dt_err dt_model_top(dt_model *m, const dt_batch *b, const dt_top *t);

/** Compute the projector's input from images, with the tower only and without dropout. Synchronous. Discards the
 *  model's results. Acquires and releases the tower's units: all ranks call it at the same point.
 *
 *  If the model is reproducible and its tower frozen, the features of an image do not depend on the other images.
 *
 *  pixels    in  [n, S, S, 3], host; 0 <= n <= max_images
 *  grid      in  [n] of images that are grids of cells (dt_batch_images); all cells of an image. Else unused
 *  features  out  [n, dt_vision_feature_elems] of the activations' type, host */
dt_err dt_model_features(dt_model *m, const uint8_t *pixels, const uint32_t *grid, int32_t n, void *features);

/** Clear a cache slot; -1: all slots. Local. */
void dt_model_cache_clear(dt_model *m, int32_t slot);
/** Remove all but the first n_tok tokens of a slot. Returns the number of tokens that remain: n_tok, or 0, because the
 *  states of linear attention cannot be shortened. Local. */
int32_t dt_model_cache_keep(dt_model *m, int32_t slot, int32_t n_tok);
/** The slot of prompt i, 0 <= i < cache_prompts. Local. */
int32_t dt_model_cache_prompt(const dt_model *m, int32_t i);
/** Make a sequence's slot share the first n_tok tokens of a prompt's slot, without a copy: they must stay unchanged
 *  while the sequence is decoded. Local. DT_ERR_ARG: no such slots, or fewer tokens. */
dt_err dt_model_cache_share(dt_model *m, int32_t slot, int32_t prompt, int32_t n_tok);
/** Copy slot src[i] to slot dst[i], for all i < n at once: no slot is in both, and none twice in dst. Shared tokens are
 *  not copied. Call it after the results of the last decode were read (draw, top, last_logits); they are discarded.
 *  Local, asynchronous. DT_ERR_ARG: no such slots. */
dt_err dt_model_cache_move(dt_model *m, int32_t n, const int32_t *src, const int32_t *dst);

#endif
