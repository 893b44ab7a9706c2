/* store.h - a file format of datasets, as a table of functions. The code that builds samples and batches is independent
 * of the format. A new format is one file here and an entry of the list in open_dataset.c. */
#ifndef DTRAIN_DATA_STORE_H
#define DTRAIN_DATA_STORE_H

#include "dataset_file.h"

typedef struct dt_store {
    bool foreign; /* of another program: dtrain-data accepts such files as inputs */
    /** True if the file has this format. head: its first n_head bytes. */
    bool (*is)(const char *path, const char *head, size_t n_head);
    /** Set the kind, attributes and columns of a dataset whose path, fd and size are set. After an error the caller
     *  calls close. DT_ERR_DATA naming file and field. */
    dt_err (*open)(dt_dataset *d);
    /** Free d->store_self; safe if open failed. The columns are already closed. */
    void (*close)(dt_dataset *d);
    /** Make the checks that reading tokens and offsets does not make. poll: as dt_dataset_verify. NULL: none. */
    dt_err (*verify)(const dt_dataset *d, dt_err (*poll)(void *arg), void *arg);
} dt_store;

#endif
