/* sources.h - the files of a configuration value, opened, one after the other. */
#ifndef DTRAIN_DATA_SOURCES_H
#define DTRAIN_DATA_SOURCES_H

#include "dtrain/data/data.h"
#include "samples/samples.h"

/* One item of the list (a path or a glob) is an entry: what a weight belongs to. Its files follow each other. */
typedef struct dt_sources {
    int n_files, n_entries;
    dt_samples *samples;  /* [n_files] */
    int64_t *file_first;  /* [n_files + 1]: number of a file's first sample */
    int64_t *entry_first; /* [n_entries + 1] */
    double *weight;       /* [n_entries], 1 where none was given */
    bool weighted;        /* some entry has a weight */
    int64_t n_samples, n_tokens, n_dropped, n_too_long, n_ties, n_packed, max_tok, max_seq, max_images;
    bool has_margins, has_safety;       /* of some file */
    const dt_dataset_info *with_images; /* the first file that has any; NULL: none has */
    uint64_t fingerprint;
} dt_sources;

/** On error nothing stays open. */
dt_err dt_sources_open(dt_sources *s, const dt_loader_options *opt);
void dt_sources_close(dt_sources *s);
/** Layout that holds sample number i, and its number there. */
const dt_samples *dt_sources_find(const dt_sources *s, int64_t i, int64_t *in_file);

/** Pairs of a file that teach nothing: a warning on rank 0, or DT_ERR_DATA where all of its pairs are equal. n_equal
 *  and n_contradicted as in dt_dataset_info. */
dt_err dt_sources_judge_pairs(const dt_dataset *d, int64_t n_equal, int64_t n_contradicted, bool quiet);

/** "PATH:NUMBER": cut the number off item and give it. 0 when there is none. DT_ERR_USAGE (headed by where) for one
 *  that is no weight. */
dt_err dt_sources_split_weight(char *item, const char *where, double *weight);

#endif
