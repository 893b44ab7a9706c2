/* sid_app.h - shared declarations of dtrain-sid. */
#ifndef DTRAIN_MAIN_SID_APP_H
#define DTRAIN_MAIN_SID_APP_H

#include "../tool/ranks.h"
#include "../tool/tool.h"
#include "dtrain/process/process.h"
#include "dtrain/recommend/sid.h"

#include <limits.h>

typedef enum sid_method { SID_RQVAE, SID_KMEANS, SID_BALANCED, SID_KMEANS_PLUS } sid_method;

enum { MAX_HIDDEN = 31 };

typedef struct options {
    const char *items, *embeddings, *array, *output, *model, *tokenizer, *fields;
    dt_dtype dtype;
    int64_t max_length, pass;
    sid_method method;
    int64_t levels, codes, kmeans_iterations, block, threads, seed;
    dt_sid_sinkhorn sinkhorn;
    struct {
        dt_rqvae_options net;
        int64_t hidden[MAX_HIDDEN], epochs, batch, warmup_epochs, evaluate_every;
    } rqvae;
    const char *device;
    double timeout_s;
    bool force, help, version;
} options;

typedef struct app {
    options opt;
    dt_comm comm;
    dt_phase phase;
    dt_watchdog *watchdog;
    dt_ledger ledger;
    dt_device dev;
    dt_sid sid;
    dt_sid_items items;
    char embeddings[PATH_MAX]; /* path of the embeddings file */
    dt_matrix_file rows;
    dt_sid_points points; /* input of the last level */
    dt_sid_book *books;   /* [levels] */
    int32_t **code;       /* [levels][n] */
} app;

/* sid_options.c */
extern const tool_help sid_help;
dt_err sid_parse_options(options *o, int argc, char **argv);

/* embed_items.c */
/** Write PREFIX.emb.npy: for each item, the mean over its tokens of the hidden states after the final
 *  norm. Items must have been read. Collective. */
dt_err sid_embed(app *a, const char *path);

/* codes.c */
/** Compute books, code and points with the selected method. Collective. */
dt_err sid_make_codes(app *a);
/** Fraction of items that are not the first with their SID. Local. */
dt_err sid_collision_rate(const app *a, double *rate);

#endif
