/* sources.h - the dataset files of a configuration value, opened in order. */
#ifndef DTRAIN_DATA_SOURCES_H
#define DTRAIN_DATA_SOURCES_H

#include "dtrain/data/data.h"
#include "samples/samples.h"

/* One item of the list (a path or a glob) is an entry. Weights belong to entries. Files of an entry are
 * consecutive. */
typedef struct dt_sources {
    int n_files, n_entries;
    dt_samples *samples;  /* [n_files] */
    int64_t *file_first;  /* [n_files + 1]: number of each file's first sample */
    int64_t *entry_first; /* [n_entries + 1] */
    double *weight;       /* [n_entries]; default 1 */
    bool weighted;        /* some entry has an explicit weight */
    int64_t n_samples, max_tok, max_seq, max_images;
    dt_data_info info;                  /* what the files add up to */
    const dt_dataset_info *with_images; /* first file with images; NULL: none */
    uint64_t fingerprint;
} dt_sources;

/** Open all files. On error all are closed. */
dt_err dt_sources_open(dt_sources *s, const dt_loader_options *opt);
void dt_sources_close(dt_sources *s);
/** Samples of the file that holds sample number i, and its number in that file. */
const dt_samples *dt_sources_find(const dt_sources *s, int64_t i, int64_t *in_file);

#endif
