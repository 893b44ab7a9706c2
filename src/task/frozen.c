/* frozen.c - a frozen model goes through ZeRO like one in training, so that stage, transport and checkpoint reader are the trainer's own. */
#include "dtrain/frozen.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The checkpoint of a directory, malloc'ed in *path; left alone where there is none. */
static dt_err newest_in(const char *dir, char **path)
{
    char file[PATH_MAX], name[NAME_MAX + 2] = "";
    if (snprintf(file, sizeof file, "%s/latest", dir) >= (int)sizeof file) return DT_OK;
    FILE *f = fopen(file, "re");
    if (f && fgets(name, sizeof name, f)) name[strcspn(name, "\r\n")] = 0;
    if (f) fclose(f);
    if (name[0] && snprintf(file, sizeof file, "%s/%s", dir, name) < (int)sizeof file && is_file(file)) {
        *path = strdup(file);
        return *path ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the name of %s", file);
    }
    char **paths;
    int n = 0;
    DT_TRY(dt_checkpoint_list(dir, &paths, &n));
    if (n > 0) {
        *path = paths[0];
        paths[0] = NULL;
    }
    dt_config_free_list(paths, n);
    return DT_OK;
}

static dt_err find_checkpoint(const char *model, char **path)
{
    struct stat st;
    char dir[PATH_MAX];
    DT_CHECK(stat(model, &st) == 0, DT_ERR_DATA, "%s: %s", model, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        *path = strdup(model);
        return *path ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the name of %s", model);
    }
    DT_CHECK(snprintf(dir, sizeof dir, "%s/checkpoints", model) < (int)sizeof dir, DT_ERR_DATA, "%s: the name is too long",
             model);
    DT_TRY(newest_in(dir, path));
    if (!*path) DT_TRY(newest_in(model, path));
    DT_CHECK(*path, DT_ERR_DATA, "%s: expected a checkpoint (.h5), or a directory with checkpoints; there are none in %s", model,
             dir);
    return DT_OK;
}

dt_err dt_frozen_describe(dt_frozen *f, const char *model)
{
    DT_TRY(find_checkpoint(model, &f->path));
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
