/* app.h - what the files of dtrain-sid share. */
#ifndef DTRAIN_MAIN_SID_APP_H
#define DTRAIN_MAIN_SID_APP_H

#include "dtrain/process.h"
#include "dtrain/sid.h"

typedef enum sid_method { SID_RQVAE, SID_KMEANS, SID_BALANCED } sid_method;

typedef struct options {
    const char *items, *embeddings, *array, *output;
    sid_method method;
    int64_t levels, codes, kmeans_iterations, block, threads, seed;
    dt_sid_sinkhorn sinkhorn;
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
    dt_rows rows;
    dt_sid_points points; /* what the last level's codes are of */
    dt_sid_book *books;   /* [levels] */
    int32_t **code;       /* [levels][n] */
    double error;         /* mean squared distance of an item to what its codes stand for */
} app;

/* options.c */
extern const char sid_usage[];
dt_err sid_parse_options(options *o, int argc, char **argv);

/** All ranks go on, or none. After an error of communication there is no way to tell the others: main ends the job. */
static inline dt_err together(app *a, dt_err err) { return err == DT_ERR_COMM ? err : dt_comm_agree(&a->comm, err); }
#define TOGETHER(a, call) DT_TRY(together((a), (call)))

#endif
