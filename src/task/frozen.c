/* frozen.c - a frozen model goes through ZeRO like one in training, so that stage, transport and checkpoint reader are the trainer's own. */
#include "dtrain/frozen.h"

#include <stdlib.h>

dt_err dt_frozen_describe(dt_frozen *f, const char *model)
{
    DT_TRY(dt_checkpoint_find(model, &f->path));
    DT_TRY(dt_checkpoint_read_meta(f->path, &f->meta));
    DT_CHECK(f->meta.model_config && f->meta.model_config[0], DT_ERR_DATA, "%s: attribute model_config is empty", f->path);
    DT_TRY(dt_model_config_parse(&f->mc, f->path, f->meta.model_config));
    return dt_model_make_units(&f->mc, &f->units, &f->n_units);
}

dt_err dt_frozen_load(dt_frozen *f, dt_comm *comm, dt_device *dev, int stage, dt_dtype dtype)
{
    const dt_zero_options opt = {.stage = stage,
                                 .param_dtype = dtype,
                                 .grad_dtype = dtype,
                                 .frozen = true,
                                 .untied = !f->mc.tie_word_embeddings,
                                 .overlap_comm = true,
                                 .prefetch_bucket_size = INT64_MAX};
    const dt_err err = dt_zero_open(&f->zero, &opt, f->units, f->n_units, comm, dev, NULL, NULL);
    DT_TRY(err == DT_ERR_COMM ? err : dt_comm_agree(comm, err));
    f->source = dt_zero_source(f->zero);
    return dt_checkpoint_load(comm, f->zero, f->path, false, NULL);
}

void dt_frozen_close(dt_frozen *f)
{
    dt_zero_close(f->zero);
    dt_model_free_units(f->units, f->n_units);
    dt_model_config_free(&f->mc);
    dt_ckpt_meta_free(&f->meta);
    free(f->path);
    *f = (dt_frozen){0};
}
