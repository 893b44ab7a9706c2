/* features.h - what a frozen tower makes of images, kept in files: found by what is in an image, so that equal images
 * of any dataset share an entry, and by all that decides what the tower makes of it.
 *
 * A file is written aside, whole, and never changed. DIR/features-TOWER-IMAGES.bin has features of one tower for the
 * images that it lists. Several runs may read and add files at the same time. What is in a file is not trusted: its
 * head and list have a checksum, and so has each entry, which is looked at when it is read. */
#ifndef DTRAIN_FEATURES_H
#define DTRAIN_FEATURES_H

#include "dtrain/core/core.h"

/** A hash of an image's bytes; not cryptographic. */
typedef struct dt_image_hash {
    uint64_t word[2];
} dt_image_hash;
dt_image_hash dt_image_hash_of(const uint8_t *pixels, size_t nbytes);
int dt_image_hash_compare(const dt_image_hash *a, const dt_image_hash *b); /* as memcmp */

/** Hashes of the n images of a dataset, kept in DIR/images-KEY.list so that they need not be read again: into images.
 *  false: there is no whole list of so many. Local. */
bool dt_image_list_read(const char *dir, uint64_t key, dt_image_hash *images, int64_t n);
/** One process. DT_ERR_WRITE. */
dt_err dt_image_list_write(const char *dir, uint64_t key, const dt_image_hash *images, int64_t n);

typedef struct dt_feature_kind {
    uint64_t tower; /* hash of all that decides the features of an image */
    dt_dtype dtype;
    int64_t n_rows, width; /* of an image */
} dt_feature_kind;
static inline size_t dt_feature_nbytes(const dt_feature_kind *k)
{
    return (size_t)(k->n_rows * k->width) * dt_dtype_size(k->dtype);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct dt_features dt_features;
/** Where an image's features are. */
typedef struct dt_feature_place {
    int32_t file, row; /* file -1: nowhere */
    uint64_t checksum;
} dt_feature_place;

/** Names of the files of this kind in a directory, "DIR/NAME\n" each: malloc'ed, "" where there is no directory. Local.
 *  DT_ERR_DATA: it cannot be read. */
dt_err dt_features_list(const char *dir, const dt_feature_kind *kind, char **names);
/** Open these. Local. DT_ERR_DATA naming a file: cut short, altered, of another kind. */
dt_err dt_features_open(dt_features **f, const dt_feature_kind *kind, const char *names);
dt_feature_place dt_features_find(const dt_features *f, const dt_image_hash *image);
/** What images are where is not asked for again. */
void dt_features_forget(dt_features *f);
/** features [n_rows, width] of an entry. Local, from any thread. DT_ERR_DATA: they are not what was written. */
dt_err dt_features_read(const dt_features *f, const dt_feature_place *at, void *features);
void dt_features_close(dt_features *f);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/** A file that is being made by several processes, each of which writes some of its entries. {0} to start from. */
typedef struct dt_feature_file {
    dt_feature_kind kind;
    int64_t n;  /* images */
    char *part; /* its name until it is whole */
    int fd;
    bool made; /* by this process, which publishes or removes it */
} dt_feature_file;

/** Make an empty one in a directory with room for n images reserved, and remove what killed processes have left. One
 *  process. DT_ERR_WRITE. */
dt_err dt_feature_file_create(dt_feature_file *f, const dt_feature_kind *kind, const char *dir, int64_t n);
/** The others: part is its name, copied. */
dt_err dt_feature_file_join(dt_feature_file *f, const dt_feature_kind *kind, const char *part, int64_t n);
/** Entry `row`: features of an image; its checksum is for dt_feature_file_publish. */
dt_err dt_feature_file_write(const dt_feature_file *f, int64_t row, const dt_image_hash *image, const void *features,
                             uint64_t *checksum);
dt_err dt_feature_file_sync(const dt_feature_file *f);
/** By the process that made it, when all have written and synced: it gets its name. */
dt_err dt_feature_file_publish(dt_feature_file *f, const char *dir, const dt_image_hash *images,
                               const uint64_t *checksums);
/** Close it; one that was made and not published is removed. Safe on {0}. */
void dt_feature_file_close(dt_feature_file *f);

#endif
