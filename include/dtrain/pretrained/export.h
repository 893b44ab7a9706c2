/* export.h - a model as a directory that other programs open: config.json, safetensors files, its tokenizer's files; or
 * its adapters alone, as PEFT keeps them: adapter_config.json, adapter_model.safetensors. */
#ifndef DTRAIN_EXPORT_H
#define DTRAIN_EXPORT_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/pretrained/new_tokens.h"
#include "dtrain/pretrained/pretrained.h"
#include "dtrain/io/safetensors.h"

typedef struct dt_export_options {
    const dt_lora *adapter; /* NULL: the model. Else what was trained beside it, dt_lora_trains */
    bool unties;            /* dt_lora_unties: the model goes out with a head of its own */
    const char *dir;        /* made when it is not there; what an earlier export left in it is replaced */
    dt_st_type dtype;       /* of every tensor */
    int64_t shard_size;     /* bytes of data in a file; 0: DT_ST_SHARD_SIZE */
    /* text of config.json; goes out with architectures, model_type and the data type as they are now. With `adapter`
     * that of adapter_config.json (dt_lora_text), as it is */
    const char *model_config;
    /* a directory, a tokenizer.json (files beside it go along), or "bytes"; NULL or "": none */
    const char *tokenizer;
    /* text of a chat_template.jinja in the place of the tokenizer's own; NULL: its own, if any */
    const char *chat_template;
    /* tokens that were added to the tokenizer; NULL: none. The model goes out with a row for each in its embedding and
     * its head, the mean of the rows of the ids before them (new_rows.h); it is without adapters */
    const dt_new_tokens *new_tokens;
    double new_rows_noise; /* normal, of this standard deviation, is added to each row; 0: they are equal */
    /* directory of a generation_config.json, for where the tokenizer has none beside it; may be NULL */
    const char *generation_from;
} dt_export_options;

/** Write the parameters of z, or its adapters. A weight that has an adapter goes out with it, W + s B A, in fp32 and
 *  rounded once: other programs open a model without adapters; one that is stored as int8 goes out as its numbers.
 *  Every rank writes the elements that it is in charge of, so no rank ever holds more of the model than before, and a
 *  few MiB, and the adapter and scales of one weight. Everything is written under .part names, synced and then renamed,
 *  its configuration last: a directory that has one is complete. Collective; all ranks return the same code.
 *  DT_ERR_WRITE (disk full, ...): the .part files are removed, and what was there before is untouched unless renaming
 *  had begun. DT_ERR_DATA: a number that is too large for the data type, or not finite with its adapter (names the
 *  tensor); the tokenizer's files cannot be read; model_config is not valid. */
dt_err dt_export(dt_comm *comm, dt_zero *z, const dt_export_options *opt, dt_phase *phase);

/** Can the tokenizer's files be found? Local. DT_ERR_DATA naming what was looked for. */
dt_err dt_export_check_tokenizer(const char *tokenizer);

#endif
