/* model.h - layers as math over a device: GPT-2, Llama 2/3, Mistral, Qwen2/2.5, Qwen3. Knows neither MPI nor ZeRO.
 *
 * A model is a list of units ("embed", "block.0" .., "head"); parameters and gradients come through a dt_param_source,
 * so tests run it on plain buffers. Definitions: algorithms.md section 8. */
#ifndef DTRAIN_MODEL_H
#define DTRAIN_MODEL_H

#include "dtrain/core/token_batch.h"
#include "dtrain/config/config.h"
#include "dtrain/device/device.h"
#include "dtrain/core/unit.h"
#include "dtrain/model/vision.h"

/* ---- configuration ----------------------------------------------------------------------------------------------- */

typedef enum dt_family {
    DT_GPT2,
    DT_LLAMA,
    DT_MISTRAL,
    DT_QWEN2,
    DT_QWEN3,
    DT_N_FAMILY,            /* of language models */
    DT_TOWER = DT_N_FAMILY, /* the blocks of CLIP and SigLIP: dt_vision_config.blocks alone */
} dt_family;
typedef enum dt_rope_type {
    DT_ROPE_NONE,
    DT_ROPE_DEFAULT,
    DT_ROPE_LINEAR,
    DT_ROPE_DYNAMIC,
    DT_ROPE_LLAMA3,
    DT_ROPE_YARN,
    DT_N_ROPE
} dt_rope_type;
enum { DT_MAX_EOS = 16 };

/** config.json, checked and with its defaults filled in. */
typedef struct dt_model_config {
    dt_family family;
    int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    int64_t vocab_size, max_position_embeddings;
    double norm_eps, initializer_range;
    dt_activation act;
    bool gated_mlp; /* down(act(gate) * up); else down(act(up)) */
    bool rms_norm;  /* else LayerNorm with bias */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tie_word_embeddings;
    bool conv1d;   /* GPT-2: matrices stored [in, out] */
    bool *sliding; /* [num_hidden_layers]: does the block use the window? NULL: none does */
    int64_t sliding_window;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx;
    dt_rope_type rope_type;
    double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_beta_fast, rope_beta_slow;
    double rope_attention_factor, rope_mscale, rope_mscale_all_dim; /* 0: not given */
    bool rope_truncate;
    int64_t rope_original_max_position;
    double attn_pdrop, embd_pdrop, resid_pdrop;
    int32_t bos_token_id; /* -1: none */
    int32_t pad_token_id; /* whose embedding learns nothing from being looked up, as in transformers; -1: none */
    int32_t eos_token_id[DT_MAX_EOS];
    int n_eos;
    char *json;               /* the text it was made from, re-serialised: goes into checkpoints */
    dt_vision_config *vision; /* of a vision-language model, whose language model all else is; NULL: it is one alone */
} dt_model_config;

/** Parse the text of a config.json; name is what messages call it. Unknown keys are ignored; a key with an unsupported
 *  value is DT_ERR_DATA naming file, key and value. */
dt_err dt_model_config_parse(dt_model_config *mc, const char *name, const char *json_text);
/** From [model]: `config` (a file), or the inline keys; keys given inline besides `config` override it. Not for `path`.
 *  DT_ERR_USAGE / DT_ERR_DATA. */
dt_err dt_model_config_from_keys(dt_model_config *mc, const dt_config *cfg);
void dt_model_config_free(dt_model_config *mc);
/** A dropout of [model]: of attention, embedding, residual branches and projector alike; negative: the model's own
 *  stays. */
void dt_model_config_set_dropout(dt_model_config *mc, double dropout);
/** Is it the config.json of a vision-language model? What transformers' LlavaForConditionalGeneration would compute
 *  otherwise (vision_feature_norm, image_tokens, projectors of other types) is exported with a type of its own, so that
 *  its AutoModel refuses it. */
#define DT_OWN_LLAVA "dtrain_llava"
bool dt_model_is_llava(const json_t *config);

/** A vision-language model that does not know how its images are made (vision->preprocessor) takes it from this object,
 *  which becomes part of mc->json. name: what messages call it. DT_ERR_DATA: what is wrong with it; DT_ERR_MEMORY. */
dt_err dt_model_config_set_preprocessor(dt_model_config *mc, const char *name, const char *json_text);
/** Tell of each field that decides what the model computes and differs, by its name in config.json; in the order of the
 *  struct. */
typedef void (*dt_model_visit)(void *self, const char *name, const char *before, const char *now);
void dt_model_config_compare(const dt_model_config *before, const dt_model_config *now, dt_model_visit visit,
                             void *self);
/* The words of config.json: "llama", "silu", "linear" ("none" for a model without rotary embedding). */
const char *dt_family_name(dt_family family);
const char *dt_activation_name(dt_activation act);
const char *dt_rope_name(dt_rope_type type);
/** The first of config.json's architectures: "LlamaForCausalLM". */
const char *dt_model_architecture(const dt_model_config *mc);
/** The same of a model with a scalar head: "LlamaForSequenceClassification". */
const char *dt_classifier_architecture(dt_family family);

/** The units of a model, malloc'ed; free with dt_model_free_units. Unit 0 is the embedding, the last the head (final
 *  norm; lm_head.weight unless tied). All is trained until dt_units_choose_trained says otherwise. Names are those that
 *  transformers' save_pretrained writes: for GPT-2 with the prefix "transformer." (the first published files lack it).
 *  One group each: q, k, v weights; q, k, v biases; gate and up weights; gate and up biases. A vision-language model
 *  has the units of tower and projector behind the head ("vision.embed", "vision.block.0" .., "vision.end",
 *  "projector"), and all names are those that transformers' LlavaForConditionalGeneration saves. */
dt_err dt_model_make_units(const dt_model_config *mc, dt_unit **units, int *n_units);
/** The same with a scalar head of n_labels numbers for each token ("score.weight", as transformers' classifiers of
 *  sequences have it) in the place of the vocabulary product: for reward models and critics. */
dt_err dt_model_make_value_units(const dt_model_config *mc, int64_t n_labels, dt_unit **units, int *n_units);
void dt_model_free_units(dt_unit *units, int n_units);
/** Is it a matrix of the vocabulary, with a row for each token: the embedding, or a head of its own? */
bool dt_model_is_vocabulary(const dt_tensor *t);
/** The modules that have such matrices, in all families. */
enum { DT_N_VOCABULARY_MODULES = 3 };
extern const char *const dt_vocabulary_modules[DT_N_VOCABULARY_MODULES];
/** The unit whose table the vocabulary's head uses, too: the embedding of a tied model; -1: none. */
int dt_model_tied_unit(const dt_model_config *mc, const dt_unit *units, int n_units);

/** Rows of a rotary table as dt_device_ops.rope wants them (cos, then sin; algorithms.md 8.5), computed in double:
 *  those of the positions first .. first+n-1 of a sequence of `length` tokens. The dynamic rule alone looks at the
 *  length. cos_sin: [n, head_dim]. */
void dt_model_rope_rows(const dt_model_config *mc, int64_t length, int64_t first, int64_t n, float *cos_sin);

/** The longest sequence that makes sense: max_position_embeddings, stretched by the factor of the linear, dynamic and
 *  yarn rules. */
int64_t dt_model_max_length(const dt_model_config *mc);

/** Floating-point operations of forward and backward for sequences of these lengths: 6 per parameter of matrices and
 *  token, 4 where it is frozen and has no gradient (looking up an embedding costs none, a head counts also when it is
 *  tied), and attention's over the causal half of the squares. */
double dt_model_train_flops(const dt_model_config *mc, const dt_unit *units, int n_units, int64_t n_tok,
                            double sum_seq_len_squared);
/** Those of an image on its way to the language model, besides: of the tower's blocks that are used and of the
 *  projector 2 per parameter of matrices and row, 4 or 6 where the gradient passes through, and attention's over the
 *  whole square. 0 for a language model alone. features_given: without the tower's. */
double dt_model_image_flops(const dt_model_config *mc, const dt_unit *units, int n_units, bool features_given);

/* ---- the model --------------------------------------------------------------------------------------------------- */

typedef struct dt_model dt_model;

/** What blocks do not keep for backward: it is computed again there, to the same bits. */
typedef enum dt_recompute {
    DT_RECOMPUTE_NONE,
    DT_RECOMPUTE_SELECTIVE, /* what is cheap: norms, of heads too, with the rotation behind them; activations */
    DT_RECOMPUTE_BLOCK,     /* all but the block's input */
} dt_recompute;

/** What a stage of the caller's own works with: a unit of role DT_UNIT_OWN, between the embedding and the head. Work is
 *  queued on stream; nothing is called for an empty batch. */
typedef struct dt_stage_pass {
    dt_device *dev;
    dt_stream *stream;
    dt_dtype dtype;
    int64_t n_tok, width;
    const dt_unit *unit;
    const dt_param_view *w;
    const dt_grad_view *g; /* backward: data NULL where nothing of the unit is trained */
    const void *x;         /* [n_tok, width]: the residual stream before the stage */
    void *y;               /* forward [n_tok, width]: behind it; may be x */
    void *dx;              /* backward [n_tok, width]: in the gradient of y, out that of x */
} dt_stage_pass;
typedef struct dt_stage_ops {
    dt_err (*forward)(void *self, const dt_stage_pass *p);
    dt_err (*backward)(void *self, const dt_stage_pass *p); /* writes every tensor of the trained part */
} dt_stage_ops;

/** What a vocabulary's head can be asked for at the price of memory (dt_model_options.head); see dt_head_pass and
 *  dt_head_results. */
enum {
    DT_HEAD_ENTROPY_WEIGHT = 1,
    DT_HEAD_SUM_SQUARES = 2,
    DT_HEAD_MEAN_LOGIT = 4,
    DT_HEAD_DIVERGENCE = 8, /* from a reference: its value and its gradient */
};

typedef struct dt_model_options {
    dt_dtype dtype;
    dt_dtype grad_dtype; /* of the views that grads_acquire gives */
    int32_t max_tok;     /* tokens of a micro-batch (rank), at most */
    int32_t max_seq;     /* sequences of a micro-batch, at most */
    /* longest sequence, a cached one included: positions are below it. GPT-2: at most max_position_embeddings */
    int32_t max_pos;
    bool training; /* keep what backward needs */
    dt_recompute recompute;
    /* the same bits whatever is recomputed, also on a device that is faster where the bits of an activation depend on
     * that (dt_matmul.act_of_aux) */
    bool reproducible;
    /* attention of batches whose sequences all have one length is left to the device's library where it was made ready
     * (dt_model_prepare_attention): other bits than the device's own kernels */
    bool library_attention;
    /* key-value cache for generation: sequences and tokens each; 0: none. In training it shares its place with what
     * backward needs: a training forward forgets it, and generating ends what was kept for a backward */
    int32_t cache_seqs, cache_len;
    /* slots behind those, for prompts that sequences of the cache go on from, and tokens of each; 0: none. Batch-
     * invariant models alone */
    int32_t cache_prompts, cache_prompt_len;
    /* steps of generation that come again and again are recorded as graphs, where the device has them, while
     * parameters are resident: the same results, with fewer calls */
    bool graphs;
    int32_t max_top;    /* tokens of a sequence that dt_model_top is asked for at most (beam search) */
    int32_t max_listed; /* tokens that dt_model_set_lists gives at most */
    int32_t max_images; /* of a micro-batch; 0: there are none, and a tower works for empty batches alone */
    /* batches bring what the projector reads of an image in the place of its pixels (dt_vision_feature_nbytes); the
     * tower, which is not trained, makes features for dt_model_features alone */
    bool features_given;
    /* logits and values of a token have the same bits whatever else is in the batch and however its sequence was cut;
     * passes without backward alone */
    bool batch_invariant;
    const dt_stage_ops *own_stage; /* of units with role DT_UNIT_OWN; NULL: there are none */
    void *own_stage_self;
    const dt_vision_config *tower; /* it is the tower of this: vision.c opens it so; else NULL */
    unsigned head; /* what a vocabulary's head is asked for besides logp, hit and entropy: a sum of DT_HEAD_... */
    /* gradients are those of the loss times this, as it is when the head runs; NULL: 1. The caller's, for the model's
     * life */
    const double *loss_scale;
    uint64_t seed; /* for dropout */
    /* low-rank adapters are those of the units' tables (unit.h); no_adapters: as if there were none */
    bool no_adapters;
    float adapter_dropout; /* of their input, in training */
    /* Activations that several models use by turns: one has the memory, at least lend_nbytes of it; the others borrow
     * it from there (lender: when they are opened), and do not train. What a model has computed is gone when another
     * begins a pass. The lender is closed last. */
    size_t lend_nbytes;
    bool borrows;
    /* hidden states of the last forward and the work space of the head have memory of their own: the head still works
     * when another model uses the activations. For a model that others' heads compare with (dt_head_pass.reference) */
    bool keeps_hidden;
    struct dt_model *lender;
} dt_model_options;

/** Keys and values of cache_seqs sequences, cache_prompts prompts: a part of the activations, where training keeps what
 *  backward needs. Local. */
size_t dt_model_cache_nbytes(const dt_model_config *mc, const dt_model_options *opt);
/** What dt_model_open will allocate (activations with the cache, pinned staging, the batch on the device as data, the
 *  rotary table as other). Same arithmetic as the allocation. */
dt_err dt_model_plan(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units, int n_units,
                     const dt_device *dev, dt_memory *plan);

/** Local. DT_ERR_USAGE says what the device's library, be it there or not, does not take of this model's attention
 *  (library_attention). dev may be one to plan with. */
dt_err dt_model_check_attention(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                                int n_units, const dt_device *dev);

/** Local. Makes the device's library ready for attention of max_tok / max_pos sequences of max_pos tokens
 *  (library_attention); before dt_model_open, whose memory it tries the library in. DT_ERR_USAGE says why the library
 *  takes none of it, what dt_model_check_attention refuses included; what it takes in part is in the log. */
dt_err dt_model_prepare_attention(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                                  int n_units, dt_device *dev);

/** Local. Allocates activations for max_tok. mc, units, dev and source are borrowed for the model's life. phase may be
 *  NULL. */
dt_err dt_model_open(dt_model **m, const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                     int n_units, dt_device *dev, const dt_param_source *source, dt_stream *compute, dt_phase *phase);
void dt_model_close(dt_model *m);

/* A training micro-step is forward, head, backward, results; all also with an empty batch (n_tok 0), which passes
 * through every unit and contributes zero. Units are acquired and released in the same order whatever the batch. The
 * first three queue their work and return: when the host waits for the results, the device still has backward to do. */

/** Embedding and blocks: leaves the hidden states on the device (the final norm belongs to the head, which applies it
 *  to the rows that have a target). train: dropout on, keep what backward needs. step keys dropout, with the seed and
 *  b->token_key. b is free again on return. DT_ERR_DATA: a token outside the vocabulary, a position outside max_pos. */
dt_err dt_model_forward(dt_model *m, const dt_batch *b, bool train, int64_t step);

/** A pass of a vocabulary's head over the tokens that have a target. With the logits z of a token, its target v and the
 *  temperature T
 *
 *      s = z/T        p = softmax(s)        logp = log p_v        entropy H = - sum over the vocabulary of p log p
 *
 *  and with the distribution q that a reference has at the same token and temperature K = sum of p (log p - log q). The
 *  gradient that dt_model_head makes is that of
 *
 *      L = sum over tokens of  - u_t logp_t - entropy_weight_t H_t + kl_weight_t K_t
 *
 *  Arrays are the host's, [n_tok]; what they hold of tokens without a target is not looked at. */
typedef struct dt_head_pass {
    float inv_temperature;       /* 1/T, as a rule 1 */
    const float *u;              /* for dt_model_head, which needs it */
    const float *entropy_weight; /* NULL: 0. Needs DT_HEAD_ENTROPY_WEIGHT */
    const float *kl_weight;      /* NULL: 0. Needs DT_HEAD_DIVERGENCE and a reference */
    /* another model on the same device and stream, opened for the same max_tok and vocabulary, whose last forward was
     * of this batch: its head's units are acquired, with those of this model. NULL: there is none; the same on all
     * ranks */
    dt_model *reference;
} dt_head_pass;

/** What it computes of each token: [n_tok], host memory, 0 where there is no target. NULL: not wanted. */
typedef struct dt_head_results {
    float *logp;
    uint8_t *hit; /* the target is the most probable token, of equal ones the one with the lowest id */
    float *entropy;
    float *log_sum_squares; /* log sum over the vocabulary of p^2. Needs DT_HEAD_SUM_SQUARES */
    float *mean_logit;      /* of s, over the vocabulary. Needs DT_HEAD_MEAN_LOGIT */
    float *kl;              /* K. Needs DT_HEAD_DIVERGENCE and a reference */
} dt_head_results;

/** A pass without gradient, of the hidden states of the last forward. The host waits, and the device then for the host:
 *  in a training micro-step only for objectives whose weights depend on what it predicts. */
dt_err dt_model_predict(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *out);
/** The same for log-probabilities; hit and entropy may be NULL. */
dt_err dt_model_logp(dt_model *m, const dt_batch *b, float inv_temperature, float *logp, uint8_t *hit, float *entropy);

/** The head, forward and backward in one pass, for known weights (the caller's again on return, as b). Computes logp
 *  and what else is not NULL in `wanted`, which nobody writes to, for dt_model_results; adds the head's parameter
 *  gradients, leaves the gradient of the hidden states for dt_model_backward. Does not wait. Tied: holds the gradients
 *  of the embedding from here until dt_model_backward has added the embedding's. */
dt_err dt_model_head(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *wanted);

/** What the last dt_model_head computed, of it what is not NULL in out and was wanted; until the next forward. Waits
 *  for the head alone: best called when backward is queued. */
dt_err dt_model_results(dt_model *m, const dt_head_results *out);

/** What a scalar head makes of each token: value [n_tok, n_labels] = norm(x) score^T, of the hidden states of the last
 *  forward. Host array. Synchronous. */
dt_err dt_model_values(dt_model *m, const dt_batch *b, float *value);
/** The backward of a scalar head for dvalue = dL/dvalue (host [n_tok, n_labels], the caller's again on return): adds
 *  the head's parameter gradients and leaves the gradient of the hidden states for dt_model_backward. */
dt_err dt_model_value_head(dt_model *m, const dt_batch *b, const float *dvalue);

/** Blocks and embedding backward. After dt_model_head or dt_model_value_head. Does not wait. */
dt_err dt_model_backward(dt_model *m, const dt_batch *b);

/** Logits of the last token of each sequence (host, float [n_seq, vocab_size]; zeros for a sequence without tokens),
 *  after forward or decode. Synchronous. */
dt_err dt_model_last_logits(dt_model *m, const dt_batch *b, float *logits);

/** What the last block leaves of each token, behind the final norm (host, float [n_tok, hidden_size]), after a forward;
 *  of a model with a vocabulary's head. Synchronous. */
dt_err dt_model_hidden_states(dt_model *m, const dt_batch *b, float *hidden);

/** Generation: run new tokens through the model with the key-value cache. Sequence s of b is cache slot slot[s], that
 *  of a sequence or of a prompt; its tokens are appended behind those that are there (b->pos must continue from there).
 *  Then dt_model_draw or dt_model_last_logits. */
dt_err dt_model_decode(dt_model *m, const dt_batch *b, const int32_t *slot);

/** A token for each sequence of a batch. Host arrays. */
typedef struct dt_draw {
    dt_choice how;
    const double *uniform; /* [n_seq] NULL where greedy */
    const uint32_t *seen;  /* [n_seq, (vocab_size + 31) / 32] bits of the tokens that the penalty is for; NULL: none */
    const uint32_t *allowed; /* [n_seq, (vocab_size + 31) / 32] bits of the tokens that may be drawn; NULL: all */
    int32_t *token;          /* [n_seq] -1 where a logit is NaN or +inf or none is above -inf, and without tokens */
    double *logp;            /* [n_seq] by the logits as the model gave them; NULL: not wanted */
    double logp_temperature; /* they are divided by it for logp; 0: by 1 */
    /* [n_seq] NULL, or sequence s is given one of the tokens list_start[s] .. list_start[s] + list_len[s] - 1 of
     * dt_model_set_lists; logp stays that among the whole vocabulary */
    const int32_t *list_start, *list_len;
} dt_draw;

/** The next token of each sequence of b, at most cache_seqs of them, drawn on the device; after dt_model_decode.
 *  Synchronous. */
dt_err dt_model_draw(dt_model *m, const dt_batch *b, const dt_draw *d);

/** The most probable next tokens of each sequence of a batch, of equal ones those with lower ids: one list, or with
 *  `seen` two, of the tokens that are not seen and of those that are. Host arrays. */
typedef struct dt_top {
    int32_t k;               /* of a list, at most max_top */
    const uint32_t *seen;    /* [n_seq, (vocab_size + 31) / 32] bits; NULL: one list of all tokens */
    const uint32_t *allowed; /* as in dt_draw: other tokens are in no list */
    int32_t *token;          /* [n_seq, lists, k] by falling logit; -1 where no more are possible, and without tokens */
    /* [n_seq, lists, k] log-probabilities by the logits divided by logp_temperature (0: by 1); NaN in all of a sequence
     * where a logit is NaN or +inf or none is above -inf */
    double *logp;
    double logp_temperature;
    const int32_t *list_start, *list_len; /* as in dt_draw */
} dt_top;

/** Lists of the tokens that sequences may be given, all in one array of n <= max_listed ids, on the host: each ascends.
 *  It is copied. Synchronous. DT_ERR_ARG: an id outside the vocabulary. */
dt_err dt_model_set_lists(dt_model *m, const int32_t *token, int32_t n);

/** As dt_model_draw. */
dt_err dt_model_top(dt_model *m, const dt_batch *b, const dt_top *t);

/** What the projector would read of images, by the tower of a vision-language model alone: pixels [n, S, S, 3] ->
 *  features [n, n_features, projector.n_in] of the activations' type, both in host memory; 0 <= n <= max_images.
 *  Without dropout; where the model is reproducible and does not train the tower, with the same bits whatever other
 *  images they are made with. Acquires and releases the tower's units: all ranks at the same point. What the model has
 *  computed is gone. Synchronous. */
dt_err dt_model_features(dt_model *m, const uint8_t *pixels, int32_t n, void *features);

/** Forget the contents of cache slots (all: slot -1). */
void dt_model_cache_clear(dt_model *m, int32_t slot);
/** Forget all but the first n_tok tokens of a slot. */
void dt_model_cache_keep(dt_model *m, int32_t slot, int32_t n_tok);
/** The slot of prompt i, from 0 to cache_prompts - 1. */
int32_t dt_model_cache_prompt(const dt_model *m, int32_t i);
/** From now on a sequence's slot holds the first n_tok tokens of a prompt's slot, which stay where they are and must
 *  stay there as long as the sequence is decoded. Local. DT_ERR_ARG: no such slots, or fewer tokens. */
dt_err dt_model_cache_share(dt_model *m, int32_t slot, int32_t prompt, int32_t n_tok);
/** Sequence slots dst[i] become what src[i] are, for all i < n at once: no slot is both, none is dst twice. What a
 *  sequence shares is not moved. After the reading of what was decoded (draw, top, last_logits), which it ends. Does
 *  not wait. DT_ERR_ARG: no such slots. */
dt_err dt_model_cache_move(dt_model *m, int32_t n, const int32_t *src, const int32_t *dst);

#endif
