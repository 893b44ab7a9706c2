/* export.h - export of a model as a directory for other programs: config.json, safetensors files, tokenizer files; or
 * only its adapters in PEFT's format: adapter_config.json, adapter_model.safetensors. */
#ifndef DTRAIN_EXPORT_H
#define DTRAIN_EXPORT_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/pretrained/new_tokens.h"
#include "dtrain/pretrained/pretrained.h"
#include "dtrain/io/safetensors.h"

/** Options of dt_export. Strings are borrowed. */
typedef struct dt_export_options {
    /* export only these adapters and what was trained with them (dt_lora_trains); NULL: the model */
    const dt_lora *adapter;
    bool subtracts;     /* export W - s B A, the rest of weights from which A and B were split */
    bool unties;        /* dt_lora_unties: export an untied head */
    const char *dir;    /* created if missing; an earlier export in it is replaced */
    dt_st_type dtype;   /* of every tensor */
    int64_t shard_size; /* bytes of data in a file; 0: DT_ST_SHARD_SIZE */
    /* text of config.json; architectures, model_type and data type are updated. With `adapter`: text of
     * adapter_config.json (dt_lora_text), unchanged */
    const char *model_config;
    /* a directory, a tokenizer.json (with the files next to it), or "bytes"; NULL or "": none */
    const char *tokenizer;
    /* text of a chat_template.jinja to replace the tokenizer's own; NULL: its own, if any */
    const char *chat_template;
    /* tokens added to the tokenizer; NULL: none. The exported embedding and head get a row for each: the mean of the
     * rows of all earlier ids (new_rows.h). Only without adapters */
    const dt_new_tokens *new_tokens;
    double new_rows_noise; /* standard deviation of normal noise added to each new row; 0: none */
    /* directory of a generation_config.json, if there is none next to the tokenizer; may be NULL */
    const char *generation_from;
} dt_export_options;

/** Write the parameters of z, or its adapters. Collective, agreed. Every rank writes the elements that it owns.
 *  It needs only a few MiB more, and the adapter and scales of one weight.
 *
 *  A weight with an adapter is exported as W + s B A, computed in fp32 and rounded once. A quantised weight is
 *  dequantised. Files are written under .part names, synced and then renamed, the configuration last: a directory with
 *  a configuration is complete.
 *
 *  DT_ERR_WRITE (disk full, ...): the .part files are removed; existing files are unchanged, unless renaming had begun.
 *  DT_ERR_DATA: a value is too large for the data type, or not finite with its adapter (names the tensor); the
 *  tokenizer's files cannot be read; model_config is invalid. DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_export(dt_comm *comm, dt_zero *z, const dt_export_options *opt, dt_phase *phase);

/** Check that the tokenizer's files exist. Local. DT_ERR_DATA naming the missing file. */
dt_err dt_export_check_tokenizer(const char *tokenizer);

#endif
