/* adapter.h - LoRA: pairs of narrow matrices beside the linear layers of a model whose own weights stay as they are.
 *
 *     y = W x + b + s B A D(x),    A [r, in], B [out, r],    s = alpha / r, or alpha / sqrt(r) (rsLoRA)
 *
 * with D inverted dropout in training. What an adapter is stands in the table of its unit (unit.h): A and B are two
 * more tensors, MODULE.lora_A.weight and MODULE.lora_B.weight beside MODULE.weight, which are trained, and carry s
 * (dt_tensor.adapter_scale). A table E [rows, dim] that is looked up has MODULE.lora_embedding_A [r, rows] and
 * MODULE.lora_embedding_B [dim, r],
 *
 *     y = E[x] + s B A[:, x]
 *
 * without dropout, A zero and B ~ N(0, 1) at the start. A head that is tied to the table has an adapter of its own,
 * lm_head.lora_A.weight and lm_head.lora_B.weight in the head's unit, or none.
 * A model that is opened with such units applies them (model.h); sharding, offload,
 * checkpoints and plans follow from the table.
 *
 * The model's own matrices may be stored as int8 with a float for each row (dt_quantise_row), a byte a weight in memory
 * and on the wire, or as nf4 (nf4.h), half a byte and a little. Products work with the numbers that these are, each
 * rounded to the type that is computed in, so training is training on the matrix of these numbers. That, too, stands in
 * the table: MODULE.weight is in the part DT_CODES then, MODULE.weight_blocks (nf4) in DT_BLOCKS and
 * MODULE.weight_scale in DT_SCALES.
 *
 * Source   Hu et al., arXiv:2106.09685; Kalajdzievski, arXiv:2312.03732 (rsLoRA). Names, defaults and what patterns
 *          match: huggingface/peft, tuners/lora and tuners_utils.py (algorithms.md 6). Rows as int8: Dettmers et al.,
 *          arXiv:2208.07339 (algorithms.md 6.3), whose SCB is 127 times the scale; as nf4: Dettmers et al.,
 *          arXiv:2305.14314. */
#ifndef DTRAIN_ADAPTER_H
#define DTRAIN_ADAPTER_H

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"

/** How A of a linear layer starts; B is zero, so that the adapted model begins as the model. */
typedef enum dt_lora_init {
    DT_LORA_KAIMING,  /* U(-1/sqrt(in), 1/sqrt(in)): Kaiming's with a = sqrt(5) */
    DT_LORA_GAUSSIAN, /* N(0, (1/r)^2) */
} dt_lora_init;

/** Modules of a model ("model.layers.0.self_attn.q_proj": a tensor's name without its last part). A name of a list
 *  stands for all modules whose path is it, or ends with "." and it. */
typedef struct dt_modules {
    char *pattern; /* a regular expression for whole paths, or "all-linear"; NULL: the list */
    char **list;
    int n;
} dt_modules;

/** A rank or an alpha for some modules: those whose path, or a part of it that begins behind a ".", is matched by a
 *  regular expression to its end. Of several the first one counts. */
typedef struct dt_module_value {
    char *pattern;
    double value;
} dt_module_value;

/** What adapters a model is to have: [lora] of a configuration, or an adapter_config.json. {0}: none. */
typedef struct dt_lora {
    int64_t r; /* 0: there are none */
    double alpha, dropout;
    bool use_rslora;
    dt_lora_init init;
    dt_modules target_modules; /* empty: q_proj and v_proj, of GPT-2 c_attn */
    /* trained whole, beside the adapters, and adapted by none: of a name all modules whose path ends with its letters,
     * and what is in them */
    dt_modules modules_to_save;
    dt_module_value *rank_pattern, *alpha_pattern;
    int n_rank_pattern, n_alpha_pattern;
    dt_dtype base; /* base_quantization: DT_I8 or DT_NF4X2, DT_F32: none; a file of adapters says nothing of it */
    dt_int8_product int8; /* on where llm_int8_threshold is given */
    /* of a file: what is tied to an embedding in modules_to_save stays so, and of an embedding and its head among
     * target_modules both have adapters, of the same numbers */
    bool ties;
    bool lenient; /* of a file or a checkpoint: names that the model does not have are passed over */
} dt_lora;

/** Set the keys of [lora] to what the adapters are that training goes on from; dropout stays where it is given, and
 *  target_modules where it means the same layers of these units, which have no adapters yet. of: the file or folder
 *  that has them, for messages. Local. DT_ERR_USAGE: a key is given that says something else. DT_ERR_DATA: a name or a
 *  number cannot be the value of a key. */
dt_err dt_lora_settle_keys(dt_config *cfg, const dt_lora *l, const char *of, const dt_model_config *mc,
                           const dt_unit *units, int n_units);
/** [lora]; {0} where lora.r is 0. DT_ERR_USAGE naming the key. Local. */
dt_err dt_lora_from_keys(dt_lora *l, const dt_config *cfg);
void dt_lora_free(dt_lora *l); /* safe on {0} */

/** Parse a list of names, "all-linear" (or "all"), or a regular expression: what is not made of letters, digits, "_",
 *  "-", "." and commas. DT_ERR_DATA: no regular expression. */
dt_err dt_modules_parse(dt_modules *m, const char *text);

/** Add the adapters' tensors to the tables of a model's units, behind their own; before anyone borrows them. The A of
 *  layers that one product serves (q, k, v; gate, up) are one group. DT_ERR_USAGE: target_modules names no layer, or
 *  one that can have no adapter. DT_ERR_DATA: adapters of a file or checkpoint are of another model. Local. */
dt_err dt_lora_attach(const dt_lora *l, const dt_model_config *mc, dt_unit *units, int n_units);
/** Do the target_modules of both, beside their modules_to_save, stand for the same layers of these units? Local. */
bool dt_lora_same_layers(const dt_lora *a, const dt_lora *b, const dt_model_config *mc, const dt_unit *units,
                         int n_units);
/** What two descriptions of adapters say of the modules of these units: do they adapt the same, train the same ones
 *  whole, and do their patterns give the same ranks and alphas to those that b adapts? However it is written. Local. */
typedef struct dt_lora_alike {
    bool layers, saved, ranks, alphas;
} dt_lora_alike;
dt_lora_alike dt_lora_compare(const dt_lora *a, const dt_lora *b, const dt_model_config *mc, const dt_unit *units,
                              int n_units);
/** Does every pattern of rank_pattern, and of alpha_pattern, stand for an adapter that is there? Local.
 *  DT_ERR_USAGE. */
dt_err dt_lora_check_ranks(const dt_lora *l, const dt_unit *units, int n_units);
dt_err dt_lora_check_alphas(const dt_lora *l, const dt_unit *units, int n_units);
/** Does every name of modules_to_save stand for something? Local. DT_ERR_USAGE. */
dt_err dt_lora_check_saved(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units);

/** Where base_quantization asks for it, let the matrices of blocks of which these adapters train nothing be codes with
 *  scales; after dt_units_choose_trained, before anyone borrows the units. Embeddings, norms, heads, biases and
 *  adapters stay as they are. DT_ERR_USAGE: there is nothing to store so, what one product serves cannot be one matrix
 *  of nf4, or a matrix has too many inputs for products in int8 (DT_INT8_MOST_K). Local. */
dt_err dt_lora_store_base(const dt_lora *l, const dt_model_config *mc, dt_unit *units, int n_units);
/** The same of the matrices that are codes in the units of another model of that shape. Local. */
dt_err dt_lora_store_like(const dt_unit *like, int n_like, const dt_model_config *mc, dt_unit *units, int n_units);

/** Is a head that is tied to the embedding another matrix than that with its own adapters: has one of them an adapter?
 *  As PEFT has it, each has its own or none. */
bool dt_lora_unties(const dt_model_config *mc, const dt_unit *units, int n_units);

/** Does modules_to_save name the module of this tensor? */
bool dt_lora_saves(const dt_lora *l, const dt_tensor *t);
/** Is this tensor trained beside a base that is not: an adapter, the score of a scalar head, or one of
 *  modules_to_save? */
bool dt_lora_trains(const dt_lora *l, const dt_tensor *t);

/** Of one module, by its path. */
int64_t dt_lora_rank(const dt_lora *l, const char *module);
double dt_lora_scale(const dt_lora *l, const char *module); /* s */

/* ---- adapter_config.json, as PEFT has it ------------------------------------------------------------------------- */

#define DT_PEFT_CONFIG "adapter_config.json"
#define DT_PEFT_TENSORS "adapter_model.safetensors"
#define DT_PEFT_PREFIX "base_model.model." /* of the name that a tensor of a unit has in DT_PEFT_TENSORS */
/** What stands behind it: the name, or module, as PEFT has it. In a vision-language model those are the paths of its
 *  modules, not the names under which it is saved. */
enum { DT_PEFT_NAME_MAX = DT_NAME_MAX + 16 };
void dt_peft_name(const char *name, char out[DT_PEFT_NAME_MAX]);

/** What adapters DIR/adapter_config.json describes. Local. {0} to start from. DT_ERR_DATA naming file and key: a value
 *  that means nothing; a kind of adapter that this program does not have. Keys that are not known are passed over. */
dt_err dt_lora_read(dt_lora *l, const char *dir);
/** The same, and attach them. DT_ERR_DATA, too, where they do not fit this model. */
dt_err dt_lora_attach_read(dt_lora *l, const char *dir, const dt_model_config *mc, dt_unit *units, int n_units);

/** The same as text, malloc'ed: what PEFT opens beside DT_PEFT_TENSORS. base: the name of the model that they are for;
 *  NULL: not known. The units have the adapters attached. */
dt_err dt_lora_text(const dt_lora *l, const char *base, const dt_model_config *mc, const dt_unit *units, int n_units,
                    char **text);

/** One adapted module of a list of units. */
typedef struct dt_adapted {
    char module[DT_NAME_MAX];
    int next_unit, next_tensor; /* where the search goes on */
} dt_adapted;
/** The next one, from {0} on; false: there are no more. */
bool dt_adapted_next(dt_adapted *at, const dt_unit *units, int n_units);

#endif
