/* known.h - files of known log-probabilities: for each target of a dataset, the k most probable tokens of a teacher and
 * their log-probabilities. files.md, "Files of log-probabilities". Every function is Local.
 *
 * Targets are numbered by sample, in the order of a dt_loader with these files, and within a sample by position. */
#ifndef DTRAIN_KNOWN_H
#define DTRAIN_KNOWN_H

#include "dtrain/data/data.h"

/** The attributes of a file. */
typedef struct dt_known_info {
    int64_t n_targets, k, vocab_size;
    int64_t seq_len;    /* texts were cut at this many tokens */
    double temperature; /* divided the logits */
    uint64_t data;      /* dt_known_key of the dataset */
    uint64_t sum[2];    /* checksums of tokens and of log-probabilities (dt_checksum) */
} dt_known_info;

/** An open file. {0} to begin. */
typedef struct dt_known_file {
    char *path;
    int fd; /* valid if path is not NULL */
    dt_known_info info;
    int64_t at[2]; /* bytes from the start of the file to both arrays */
} dt_known_file;

/** Identity of the targets of a loader. */
uint64_t dt_known_key(const dt_loader *l);
/** Number of targets. first: out [n_samples + 1], targets before each sample; NULL: not computed. */
int64_t dt_known_index(const dt_loader *l, int64_t *first);

/** Turn an existing empty file into one of this size, with attributes and without values. DT_ERR_WRITE. */
dt_err dt_known_create(const char *path, const dt_known_info *info);
/** Open a created file to write values (complete false), or a complete file to read them. f: out, closed with
 *  dt_known_close, also after an error. DT_ERR_DATA naming the attribute; DT_ERR_MEMORY. */
dt_err dt_known_open(dt_known_file *f, const char *path, bool complete);
/** Write or read targets first .. first+n-1. token, logp: [n, k]. DT_ERR_WRITE, DT_ERR_DATA. */
dt_err dt_known_write(const dt_known_file *f, int64_t first, int64_t n, const int32_t *token, const float *logp);
dt_err dt_known_read(const dt_known_file *f, int64_t first, int64_t n, int32_t *token, float *logp);
/** Add the checksums of targets first .. first+n-1 to sum. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_known_sum(const dt_known_file *f, int64_t first, int64_t n, uint64_t sum[2]);
/** Complete a written file: store the checksums and seal it. The caller then renames it. DT_ERR_WRITE. */
dt_err dt_known_finish(const char *path, const uint64_t sum[2]);
/** Safe on {0}; leaves {0}. */
void dt_known_close(dt_known_file *f);

#endif
