/* sink.h - a destination of records. Each sink is a table in its own file; DT_SINKS (config_keys.h) lists them. */
#ifndef DTRAIN_REPORT_SINK_H
#define DTRAIN_REPORT_SINK_H

#include "dtrain/config/config.h"
#include "dtrain/report/report.h"
#include "lines.h"
#include <limits.h>

/** A validation after a step. */
typedef struct dt_validation {
    int64_t step;
    double loss;
    const dt_metric *more; /* [n_more] */
    int n_more;
} dt_validation;

/** A sink. self: its state of nbytes, zeroed before open. A function that is not required may be NULL. */
typedef struct dt_sink {
    const char *record; /* name of its file in run.output_dir if a resumed run truncates this file; NULL: none */
    bool needs_dir;     /* only used if there is a run.output_dir, which exists when open is called */
    size_t nbytes;
    /** Value of the key `other_key`: the file that the sink writes instead of one in run.output_dir; "": not set. NULL:
     *  no such key. */
    const char *(*other_path)(const dt_config *cfg);
    const char *other_key;
    /** Check the sink's own keys. DT_ERR_USAGE naming the key. */
    dt_err (*keys)(const dt_config *cfg);
    /** Check whether open would succeed. Nothing changes. All sinks are checked before the first is opened. */
    dt_err (*check)(const dt_report_options *opt);
    /** Required. DT_ERR_WRITE, DT_ERR_DATA (an existing file is not its own), DT_ERR_MEMORY. After an error, close is
     *  called. */
    dt_err (*open)(void *self, const dt_report_options *opt);
    /** Required. The record is in the file on return, unless the sink limits how often it is replaced. DT_ERR_WRITE,
     *  DT_ERR_MEMORY. */
    dt_err (*train)(void *self, const dt_train_record *rec);
    dt_err (*validation)(void *self, const dt_validation *v);
    /** dt_report_activity, dt_report_end_line and dt_report_last_line. */
    void (*activity)(void *self, int64_t step, const char *text);
    void (*end_line)(void *self);
    void (*last_line)(void *self);
    /** Write all records, and fsync a file that a resumed run continues. DT_ERR_WRITE. */
    dt_err (*sync)(void *self);
    /** Required. */
    void (*close)(void *self);
} dt_sink;

#define DT_SINK_TABLE(name) extern const dt_sink dt_sink_##name;
DT_SINKS(DT_SINK_TABLE, DT_SINK_TABLE)

/** The part of an existing file to keep; last_step 0: nothing, the sink starts a new file. */
dt_kept dt_sink_kept(const dt_report_options *opt);
/** sync of a sink whose state begins with a dt_record_file. */
dt_err dt_sink_sync_file(void *self);
/** Path of a file in run.output_dir. DT_ERR_WRITE: it is too long. */
dt_err dt_sink_path(const dt_report_options *opt, const char *name, char path[PATH_MAX]);
/** Memory of a record's text: records are shorter, so a step reallocates no buffer. */
enum { DT_RECORD_NBYTES = 4096 };

#endif
