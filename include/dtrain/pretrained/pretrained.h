/* pretrained.h - initial parameters of a model, from a dtrain checkpoint or a Hugging Face model directory (config.json
 * and safetensors files). */
#ifndef DTRAIN_PRETRAINED_H
#define DTRAIN_PRETRAINED_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/model/model.h"
#include "dtrain/io/safetensors.h"
#include "dtrain/tokenizer/tokenizer.h"

enum { DT_MAX_STOPS = 64 }; /* texts that end a sequence */

/** Settings of a model's generation_config.json. Lists and strings are malloc'ed. */
typedef struct dt_generation_defaults {
    bool given; /* the file exists */
    int32_t eos[DT_MAX_EOS];
    int n_eos;                                                            /* 0: not given; then config.json's apply */
    int32_t bos, pad;                                                     /* -1: not given */
    int do_sample;                                                        /* -1: not given; 0: greedy */
    double temperature, top_p, min_p, repetition_penalty;                 /* below 0: not given */
    int64_t top_k, num_beams, max_new_tokens;                             /* below 0: not given */
    double length_penalty;                                                /* NaN: not given */
    int early_stopping;                                                   /* -1: not given */
    int64_t max_length, min_new_tokens, min_length, no_repeat_ngram_size; /* below 0: not given */
    dt_ids suppress, begin_suppress;
    char **stop;
    int n_stop;
    /* names of settings that change results and are not used, separated by ", "; ignored_sampling: those that matter
     * only for sampling */
    char *ignored, *ignored_sampling;
} dt_generation_defaults;

enum { DT_MAX_ENDS = DT_MAX_EOS + 2 };
/** Tokens that end a model's text, each once: the tokenizer's end of text (own), those of generation_config.json or
 *  else config.json, and the end of a conversation turn (turn). Ids outside the vocabulary are omitted. Local.
 *
 *  own, turn  -1: none
 *  ends       out  [DT_MAX_ENDS]; ends[0] is -1 if there are none
 *
 *  Returns the number of tokens. */
int dt_ends_of_text(int32_t own, const dt_generation_defaults *from, const dt_model_config *mc, int32_t turn,
                    int32_t *ends);

/** Format of a model. */
typedef enum dt_pretrained_kind { DT_PRETRAINED_CHECKPOINT, DT_PRETRAINED_HF } dt_pretrained_kind;

/** A described model. {0} to begin; freed with dt_pretrained_free. Strings are malloc'ed. */
typedef struct dt_pretrained {
    dt_pretrained_kind kind;
    char *adapter;           /* dt_pretrained_adapt: the directory of adapters; NULL: none */
    char *path;              /* the checkpoint file, or the directory */
    char *config_name;       /* the configuration's file, for messages */
    char *model_config;      /* text of config.json */
    bool text_alone;         /* the text model of a directory with a model with images */
    char *tokenizer;         /* a directory with its files, a tokenizer.json, or "bytes"; NULL: unknown */
    char *tower, *projector; /* dt_pretrained_take_vision: separate files; NULL: none */
    dt_stored_parts parts;   /* the same */
    bool has_vision;         /* after dt_pretrained_take_vision: the model has images */
    char *chat_template;     /* recorded by a run, as dt_chat_open accepts it; NULL: none */
    dt_generation_defaults generation;
    dt_ckpt_meta meta; /* of a checkpoint; else {0} */
    /* set by the caller: keep the values of a scalar head, or of adapters, that the files lack */
    bool new_score, new_adapters;
    bool unties;          /* dt_pretrained_untie: the head starts as a copy of the embedding that the files tie it to */
    bool keeps_nonfinite; /* set by the caller: warn of NaN and Inf instead of refusing them */
    dt_base *base;        /* the caller's: receives the checksums of frozen parameters (dt_saved_model); may be NULL */
} dt_pretrained;

/** Describe the model at a path, and read everything except the tensors. A directory with config.json is a Hugging Face
 *  model; anything else is passed to dt_checkpoint_find. part: of a Hugging Face model with images. Local. DT_ERR_DATA
 *  naming path, file, key and value. DT_ERR_MEMORY. */
dt_err dt_pretrained_describe(dt_pretrained *p, const char *path, dt_model_part part);
/** Free the description. Local. Safe on {0} and after an error. */
void dt_pretrained_free(dt_pretrained *p);

/** Apply [vision]: join a language model with a tower and a projector, whose weights are then read from their own
 *  files; for a model with images, check that the keys agree. Without [vision] and without images nothing changes.
 *  Reads no weights. Local.
 *
 *  model_config becomes the text of a llava config.json, with the additional keys projector_type,
 *  projector_hidden_size, projector_shuffle, projector_dropout and preprocessor_config.
 *
 *  DT_ERR_USAGE naming the key; DT_ERR_DATA naming file and key. DT_ERR_MEMORY. */
dt_err dt_pretrained_take_vision(dt_pretrained *p, const dt_config *cfg);

/** The labels of the scalar head in the files of the adapter's directory (NULL: none) or of the model; 0: they have
 *  none. n: out. Local. DT_ERR_DATA. */
dt_err dt_pretrained_n_labels(const dt_pretrained *p, const char *adapter, int64_t *n);
/** Give a model whose files tie the head to the embedding a head of its own: model_config gets tie_word_embeddings =
 *  false. Without a tied head nothing changes. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_pretrained_untie(dt_pretrained *p);
/** Does an adapter of PEFT give a tied model a head of its own? It trains the embedding or the head as a whole
 *  (modules_to_save), and the two differ in its file. unties: out. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_adapter_unties(const char *dir, bool *unties);

/** The adapters of a checkpoint, as its run recorded them; r = 0: none, or unknown (another version). lora: out, freed
 *  with dt_lora_free. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_pretrained_recorded(const dt_pretrained *p, dt_lora *lora);

/** Add adapters from a directory that PEFT wrote: read their description, attach them to the units' tables, and load
 *  them when the model is loaded. lora: out, freed with dt_lora_free. Local. DT_ERR_DATA naming file and key. */
dt_err dt_pretrained_adapt(dt_pretrained *p, const char *dir, dt_lora *lora, const dt_model_config *mc, dt_unit *units,
                           int n_units);

/** Load the parameters into z. Every rank reads only the elements that it owns. Collective, agreed. On error the
 *  content of z is undefined. phase: may be NULL.
 *
 *  DT_ERR_DATA naming file and tensor: missing, of another shape or type, altered (checkpoints), a tensor that this
 *  model does not have (except rotary_emb.inv_freq, attn.bias and attn.masked_bias), or an lm_head.weight that differs
 *  from a tied embedding. DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_pretrained_load(dt_comm *comm, dt_zero *z, const dt_pretrained *p, dt_phase *phase);

/** Set the magnitudes of new adapters to the lengths of the weights' rows. The adapted model then equals its base.
 *  Collective, agreed. DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_adapters_start(dt_comm *comm, dt_zero *z);
/** Set the new adapters of linear layers to factors of the weights, by l->init: pissa or olora. The ranks divide the
 *  weights; a rank needs memory for a few of them. The weights are unchanged: the base of these adapters is W - s B A
 *  (dt_export_options.subtracts). The factors have the same bits on any number of ranks. Collective, agreed.
 *  DT_ERR_USAGE: another module has an adapter, or a rank exceeds a weight's. DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_adapters_split(dt_comm *comm, dt_zero *z, const dt_lora *l);
/** Convert an adapter of split weights to one of the original model, with twice the rank. from: directory of the
 *  trained adapter; initial: that of the adapter it started from; to: the directory to write. Local. DT_ERR_DATA,
 *  DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_adapter_plain(const char *from, const char *initial, const char *to);

/** Load a checkpoint with adapters into a model without them: W + s B A, computed in fp32. like: the options of z.
 *  Collective; errors as dt_pretrained_load. */
dt_err dt_pretrained_load_merged(dt_comm *comm, dt_zero *z, const dt_pretrained *p, const dt_lora *lora,
                                 const dt_model_config *mc, const dt_zero_options *like, dt_device *dev,
                                 dt_stream *compute, dt_phase *phase);

/** The type of all weights in a Hugging Face directory; DT_ST_OTHER if they differ, and for a checkpoint. Reads headers
 *  only. type: out. Local. DT_ERR_DATA. */
dt_err dt_pretrained_type(const dt_pretrained *p, dt_st_type *type);

/** Verify the files without a model: every tensor of the units exists with its shape, and no other; all values are
 *  finite; a head next to a tied embedding equals it; a checkpoint's checksums match. Reads all weights. Local.
 *  DT_ERR_DATA. */
dt_err dt_pretrained_verify(const dt_pretrained *p, const dt_unit *units, int n_units, dt_phase *phase);

#endif
