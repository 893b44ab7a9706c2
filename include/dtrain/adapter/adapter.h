/* adapter.h - LoRA: pairs of low-rank matrices added to the linear layers of a model whose own weights are frozen.
 *
 *     y = W x + b + s B A D(x),    A [r, in], B [out, r],    s = alpha / r, or alpha / sqrt(r) (rsLoRA)
 *
 * D is inverted dropout in training. The table of the module's unit (unit.h) describes the adapter: A and B are two
 * more trained tensors, MODULE.lora_A.weight and MODULE.lora_B.weight. Both carry s (dt_tensor.adapter_scale). An
 * embedding table E [rows, dim] has MODULE.lora_embedding_A [r, rows] and MODULE.lora_embedding_B [dim, r]:
 *
 *     y = E[x] + s B A[:, x]
 *
 * It has no dropout. A starts at zero, B with N(0, 1). A head that is tied to the table has its own adapter in the
 * head's unit (lm_head.lora_A.weight, lm_head.lora_B.weight), or none. A model that is opened with such units applies
 * them (model.h). Sharding, offload, checkpoints and plans follow from the table.
 *
 * With use_dora a linear layer also has a trained magnitude for each output, MODULE.lora_magnitude_vector [out]:
 *
 *     y_j = m_j / |W_j + s (B A)_j| (W x + s B A x)_j + b_j
 *
 * Initially m_j = |W_j|, computed once the weights are known (dt_adapters_start in pretrained.h).
 *
 * The experts of a mixture have one adapter for all matrices of a slot: PARAMETER.lora_A.weight [n r, in] and
 * PARAMETER.lora_B.weight [n out, r], with the A and B of one of n experts after the other. PARAMETER is the tensor in
 * which transformers has the matrices ("model.layers.0.mlp.experts.gate_up_proj"). They have no dropout, as in PEFT.
 *
 * The model's own matrices may be quantised: int8 with one float per row (dt_quantise_row), or nf4 (nf4.h). A weight
 * takes one byte or about half a byte, in memory and in communication. Matmuls use the dequantised weights, rounded to
 * the compute type. In the table, MODULE.weight is in the part DT_CODES, MODULE.weight_blocks (nf4) in DT_BLOCKS and
 * MODULE.weight_scale in DT_SCALES.
 *
 * Every function is Local.
 *
 * Source   Hu et al., arXiv:2106.09685; Kalajdzievski, arXiv:2312.03732 (rsLoRA). Names, defaults and pattern matching:
 *          huggingface/peft, tuners/lora and tuners_utils.py (algorithms.md 6). int8 rows: Dettmers et al.,
 *          arXiv:2208.07339 (algorithms.md 6.3), whose SCB is 127 times the scale; nf4: Dettmers et al.,
 *          arXiv:2305.14314. */
#ifndef DTRAIN_ADAPTER_H
#define DTRAIN_ADAPTER_H

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"
#include <string.h>

/** Initial values of A of a linear layer. B is zero, so that the adapted model initially equals its base. With the last
 *  two A and B are factors of the weights, of which the base keeps the rest (dt_adapters_split in pretrained.h). */
typedef enum dt_lora_init {
    DT_LORA_KAIMING,  /* U(-1/sqrt(in), 1/sqrt(in)): Kaiming's with a = sqrt(5) */
    DT_LORA_GAUSSIAN, /* N(0, (1/r)^2) */
    DT_LORA_PISSA,    /* largest singular values (Meng et al., arXiv:2404.02948) */
    DT_LORA_OLORA,    /* first columns of Q and rows of R (Büyükakyüz, arXiv:2406.01775) */
} dt_lora_init;

/** Modules of a model ("model.layers.0.self_attn.q_proj": a tensor's name without its last component). A name in the
 *  list matches all modules whose path equals it, or ends with "." and it. */
typedef struct dt_modules {
    char *pattern; /* a regular expression for whole paths, or "all-linear"; NULL: the list */
    char **list;
    int n;
} dt_modules;

/** A rank or alpha for some modules: a regular expression must match the whole path, or the rest of it after a ".". The
 *  first match is used. */
typedef struct dt_module_value {
    char *pattern;
    double value;
} dt_module_value;

#define DT_LORA_MAGNITUDE "lora_magnitude_vector" /* end of a name */

/** Parts of a vision-language model. A model without images is a language model. */
enum { DT_LORA_TOWER = 1, DT_LORA_PROJECTOR = 2, DT_LORA_LANGUAGE = 4, DT_LORA_ALL_PARTS = 7, DT_LORA_PARTS_MAX = 24 };
/** The part that a word of lora.parts means: tower, projector or llm. False: another word. */
bool dt_lora_has_part(const char *word, unsigned *part);
/** The words, as in "tower, llm". Returns text. */
const char *dt_lora_parts_text(unsigned parts, char text[DT_LORA_PARTS_MAX]);

/** Description of a model's adapters: [lora] of a configuration, or an adapter_config.json. {0}: none. Freed with
 *  dt_lora_free. */
typedef struct dt_lora {
    int64_t r; /* 0: no adapters */
    double alpha, dropout;
    bool use_rslora, use_dora;
    dt_lora_init init;
    int init_iterations;          /* of pissa; 0: until the singular vectors no longer change */
    dt_modules target_modules;    /* empty: none with target_parameters, else q_proj and v_proj, of GPT-2 c_attn */
    dt_modules target_parameters; /* a list: of experts and routers */
    unsigned parts;               /* where target_modules selects layers; 0: in the language model */
    /* trained whole, without adapters: all modules whose path ends with the characters of a name, and modules in
     * them */
    dt_modules modules_to_save;
    dt_module_value *rank_pattern, *alpha_pattern;
    int n_rank_pattern, n_alpha_pattern;
    dt_dtype base; /* base_quantization: DT_I8 or DT_NF4X2; DT_F32: none. Not in adapter files */
    /* of a file: a head tied to an embedding in modules_to_save stays tied; an embedding and its head among
     * target_modules both have adapters with the same values */
    bool ties;
    bool lenient; /* of a file or a checkpoint: ignore names that the model does not have */
} dt_lora;

/** Set the keys of [lora] to the adapters from which training continues. A given dropout is kept. A given
 *  target_modules is kept if it selects the same layers. units: still without adapters. of: the adapters' file or
 *  directory, for messages. DT_ERR_USAGE: a given key differs. DT_ERR_DATA: a name or value cannot be a key's value. */
dt_err dt_lora_settle_keys(dt_config *cfg, const dt_lora *l, const char *of, const dt_model_config *mc,
                           const dt_unit *units, int n_units);
/** Parse [lora]. l: out, freed with dt_lora_free; {0} if lora.r is 0. DT_ERR_USAGE naming the key. DT_ERR_MEMORY. */
dt_err dt_lora_from_keys(dt_lora *l, const dt_config *cfg);
/** Free the lists. Safe on {0}; leaves {0}. */
void dt_lora_free(dt_lora *l);

/** Parse a list of names, "all-linear" (or "all"), or a regular expression: any text with characters other than
 *  letters, digits, "_", "-", "." and commas. DT_ERR_DATA: an invalid regular expression. DT_ERR_MEMORY. */
dt_err dt_modules_parse(dt_modules *m, const char *text);

/** Append the adapters' tensors to the units' tables, before the units are borrowed. The A matrices of layers that one
 *  matmul serves (q, k, v; gate, up) are one group. DT_ERR_USAGE: target_modules matches no layer, or one that cannot
 *  have adapters. DT_ERR_DATA: the adapters of a file or checkpoint belong to another model. DT_ERR_MEMORY. */
dt_err dt_lora_attach(const dt_lora *l, const dt_model_config *mc, dt_unit *units, int n_units);
/** Comparison of the meaning of two descriptions for the modules of some units: same adapted layers, same modules
 *  trained whole, and same ranks and alphas for the modules that b adapts. */
typedef struct dt_lora_alike {
    bool layers, saved, ranks, alphas;
} dt_lora_alike;
dt_lora_alike dt_lora_compare(const dt_lora *a, const dt_lora *b, const dt_model_config *mc, const dt_unit *units,
                              int n_units);
/** The parts in which it selects layers of these units. */
unsigned dt_lora_parts_of(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units);
/** Check that the names in target_parameters are of experts. DT_ERR_USAGE; DT_ERR_DATA if l is lenient. */
dt_err dt_lora_check_parameters(const dt_lora *l, const dt_unit *units, int n_units);
/** Check that every pattern of rank_pattern matches an adapter. DT_ERR_USAGE. */
dt_err dt_lora_check_ranks(const dt_lora *l, const dt_unit *units, int n_units);
/** The same for alpha_pattern. */
dt_err dt_lora_check_alphas(const dt_lora *l, const dt_unit *units, int n_units);
/** Check that every name of modules_to_save matches a module. DT_ERR_USAGE. */
dt_err dt_lora_check_saved(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units);

/** Apply base_quantization: store the matrices of blocks that stay frozen with these adapters as codes with scales.
 *  After dt_units_choose_trained, before the units are borrowed. Embeddings, norms, heads, biases and adapters are
 *  unchanged. DT_ERR_USAGE: no such matrix, or matrices of one matmul cannot be one nf4 matrix. DT_ERR_MEMORY. */
dt_err dt_lora_store_base(const dt_lora *l, dt_unit *units, int n_units);
/** The same for the matrices that are quantised in the units of another model with the same shape. */
dt_err dt_lora_store_like(const dt_unit *like, int n_like, dt_unit *units, int n_units);

/** Do adapters make a tied head differ from its embedding? True if one of the two has an adapter, because they do not
 *  share adapters (as in PEFT). */
bool dt_lora_unties(const dt_model_config *mc, const dt_unit *units, int n_units);

/** Does modules_to_save match the module of this tensor? */
bool dt_lora_saves(const dt_lora *l, const dt_tensor *t);
/** Is this tensor trained while the base is frozen: an adapter, the score of a scalar head, or a module of
 *  modules_to_save? */
bool dt_lora_trains(const dt_lora *l, const dt_tensor *t);

/* ---- adapter_config.json in PEFT's format ------------------------------------------------------------------------ */

#define DT_PEFT_CONFIG "adapter_config.json"
#define DT_PEFT_TENSORS "adapter_model.safetensors"
#define DT_PEFT_PREFIX "base_model.model." /* prefix of tensor names in DT_PEFT_TENSORS */
/** The rest of the name of a tensor or module in PEFT's format. In a vision-language model these are module paths, not
 *  the names in saved files. */
enum { DT_PEFT_NAME_MAX = DT_NAME_MAX + 16 };
void dt_peft_name(const char *name, char out[DT_PEFT_NAME_MAX]);
/** The rest of such a name in a model without a head: PEFT then omits the first part, "model." or "transformer.".
 *  Local. */
const char *dt_peft_headless(const char *name);

/** The name of a tensor in PEFT's format, and its shape there. The adapters of several parameters of a module are
 *  nested: MODULE.lora_A.weight, MODULE.base_layer.lora_A.weight. */
void dt_peft_tensor_name(const dt_tensor *t, char out[DT_PEFT_NAME_MAX]);
/** PEFT stores the B of experts as [out, r n]: element [o, j n + e] is that of expert e, row o, column j. */
static inline bool dt_peft_alternates(const dt_tensor *t)
{
    return t->adapter_experts > 0 && strstr(t->name, ".lora_B.") != NULL;
}
dt_tensor dt_peft_shaped(const dt_tensor *t);

/** Read DIR/adapter_config.json. Unknown keys are ignored. l: out, freed with dt_lora_free. DT_ERR_DATA naming file and
 *  key: an invalid value, or an unsupported kind of adapter. DT_ERR_MEMORY. */
dt_err dt_lora_read(dt_lora *l, const char *dir);
/** dt_lora_read, then dt_lora_attach. DT_ERR_DATA: also if they do not fit this model. */
dt_err dt_lora_attach_read(dt_lora *l, const char *dir, const dt_model_config *mc, dt_unit *units, int n_units);

/** The description as the text of adapter_config.json, for PEFT. base: name of the base model; NULL: unknown. The units
 *  have the adapters attached. text: out, malloc'ed. DT_ERR_MEMORY. */
dt_err dt_lora_text(const dt_lora *l, const char *base, const dt_model_config *mc, const dt_unit *units, int n_units,
                    char **text);

/** Iterator over the adapted modules of units. {0} to begin. */
typedef struct dt_adapted {
    char module[DT_NAME_MAX];    /* or the parameter */
    char path[DT_PEFT_NAME_MAX]; /* in PEFT's format */
    bool of_parameter;
    int next_unit, next_tensor; /* where the search continues */
} dt_adapted;
/** Find the next adapted module. False: there are no more. */
bool dt_adapted_next(dt_adapted *at, const dt_unit *units, int n_units);

#endif
