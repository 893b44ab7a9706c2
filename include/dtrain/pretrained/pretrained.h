/* pretrained.h - where a model's parameters come from: a checkpoint of ours, or a Hugging Face model directory
 * (config.json and safetensors files). */
#ifndef DTRAIN_PRETRAINED_H
#define DTRAIN_PRETRAINED_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/model/model.h"
#include "dtrain/io/safetensors.h"
#include "dtrain/tokenizer/tokenizer.h"

enum { DT_MAX_STOPS = 64 }; /* texts that end a sequence */

/** What a model's generation_config.json asks for. Lists and strings are malloc'ed. */
typedef struct dt_generation_defaults {
    bool given; /* the file exists */
    int32_t eos[DT_MAX_EOS];
    int n_eos;                                            /* 0: not given there; then config.json's hold */
    int32_t bos, pad;                                     /* -1: not given */
    int do_sample;                                        /* -1: not given; 0: greedy */
    double temperature, top_p, min_p, repetition_penalty; /* below 0: not given */
    int64_t top_k, num_beams, max_new_tokens;             /* below 0: not given */
    double length_penalty;                                /* NaN: not given */
    int early_stopping;                                   /* -1: not given */
    int64_t max_length, min_new_tokens, min_length, no_repeat_ngram_size; /* below 0: not given */
    dt_ids suppress, begin_suppress;
    char **stop;
    int n_stop;
    /* names of the settings in the file that change results and are not used, separated by ", "; of these
     * ignored_sampling only when tokens are sampled */
    char *ignored, *ignored_sampling;
} dt_generation_defaults;

/** The tokens that end what a model writes, each once: the tokenizer's, with which dtrain-data ends texts (own), those
 *  of generation_config.json or else config.json, and what ends a turn of a conversation (turn). own, turn: -1: none.
 *  Ids beyond the vocabulary are left out. ends: [DT_MAX_ENDS]; ends[0] is -1 where there are none. Returns how many.
 *  Local. */
enum { DT_MAX_ENDS = DT_MAX_EOS + 2 };
int dt_ends_of_text(int32_t own, const dt_generation_defaults *from, const dt_model_config *mc, int32_t turn,
                    int32_t *ends);

typedef enum dt_pretrained_kind { DT_PRETRAINED_CHECKPOINT, DT_PRETRAINED_HF } dt_pretrained_kind;

/** {0} to start from. Strings are malloc'ed. */
typedef struct dt_pretrained {
    dt_pretrained_kind kind;
    char *adapter;           /* dt_pretrained_adapt: the directory of adapters; NULL: there is none */
    char *path;              /* the checkpoint file, or the directory */
    char *config_name;       /* what messages call the configuration: the file it is in */
    char *model_config;      /* text of config.json */
    char *tokenizer;         /* a directory with its files, a tokenizer.json, or "bytes"; NULL: not known */
    char *tower, *projector; /* dt_pretrained_take_vision: of other files; NULL: there are none */
    dt_stored_parts parts;   /* the same */
    bool has_vision;         /* after dt_pretrained_take_vision: the model has images */
    char *chat_template;     /* what a run recorded, as dt_chat_open takes it; NULL: nothing */
    dt_generation_defaults generation;
    dt_ckpt_meta meta; /* of a checkpoint; else zeros */
    /* the caller's: a scalar head, or adapters, that are not there keep the values they have */
    bool new_score, new_adapters;
    bool keeps_nonfinite; /* loading warns of NaN and Inf, instead of refusing them */
    dt_base *base;        /* the caller's: takes the checksums of what is frozen (dt_saved_model); NULL: not needed */
} dt_pretrained;

/** Find out what a path means and read all but the tensors: a directory with config.json is a Hugging Face model;
 *  anything else is for dt_checkpoint_find. Local. DT_ERR_DATA naming path, file, key and value. */
dt_err dt_pretrained_describe(dt_pretrained *p, const char *path);
void dt_pretrained_free(dt_pretrained *p); /* safe on {0} and after an error */

/** [vision]: join a language model with a tower and a projector, whose weights then are read from their own files; or,
 *  of a model that has images, make sure that the keys say nothing else. model_config is afterwards the text of a
 *  config.json of llava with the keys projector_type, projector_hidden_size, projector_shuffle, projector_dropout and
 *  preprocessor_config besides llava's own. Without [vision] and without images nothing changes. Reads texts alone, no
 *  weights. Local. DT_ERR_USAGE naming the key; DT_ERR_DATA naming file and key. */
dt_err dt_pretrained_take_vision(dt_pretrained *p, const dt_config *cfg);

/** Is there a scalar head in the files, those of the adapter's directory (NULL: none) or the model's? Local.
 *  DT_ERR_DATA. */
dt_err dt_pretrained_is_scored(const dt_pretrained *p, const char *adapter, bool *is);

/** What adapters a checkpoint has, as the run that wrote it recorded; r = 0: none, or not known (of another version).
 *  lora: out, the caller's (dt_lora_free). Local. */
dt_err dt_pretrained_recorded(const dt_pretrained *p, dt_lora *lora);

/** What comes from `path` has adapters from another directory, as PEFT writes it: read what they are, attach them to
 *  the tables of the units, and load them when the model is loaded. lora: out, the caller's (dt_lora_free). Local.
 *  DT_ERR_DATA naming file and key. */
dt_err dt_pretrained_adapt(dt_pretrained *p, const char *dir, dt_lora *lora, const dt_model_config *mc, dt_unit *units,
                           int n_units);

/** Fill the parameters of z. Every rank reads the elements that it is in charge of, and no others. Collective; all
 *  ranks return the same code; on failure z's contents are undefined. DT_ERR_DATA naming file and tensor: missing, of
 *  another shape or type, altered (checkpoints), one that this model does not have (rotary_emb.inv_freq, attn.bias and
 *  attn.masked_bias apart), or an lm_head.weight that differs from the embedding where the two are tied. */
dt_err dt_pretrained_load(dt_comm *comm, dt_zero *z, const dt_pretrained *p, dt_phase *phase);

/** The same into a model that has no adapters, of a checkpoint that has these: W + s B A, formed in fp32.
 *  like: what z was opened with. Collective and errors as of dt_pretrained_load. */
dt_err dt_pretrained_load_merged(dt_comm *comm, dt_zero *z, const dt_pretrained *p, const dt_lora *lora,
                                 const dt_model_config *mc, const dt_zero_options *like, dt_device *dev,
                                 dt_stream *compute, dt_phase *phase);

/** The type of all weights in a Hugging Face directory; DT_ST_OTHER when they have several, and for a checkpoint. Reads
 *  headers. Local. DT_ERR_DATA. */
dt_err dt_pretrained_type(const dt_pretrained *p, dt_st_type *type);

/** All that can be known without a model: every tensor of the units is there with its shape and no other is; all values
 *  are finite; a head next to a tied embedding equals it; a checkpoint's checksums. Reads all weights. Local.
 *  DT_ERR_DATA. */
dt_err dt_pretrained_verify(const dt_pretrained *p, const dt_unit *units, int n_units, dt_phase *phase);

#endif
