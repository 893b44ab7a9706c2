/* features.h - a cache of a frozen tower's image features in files. The key of an entry is a hash of the image's
 * content, and a hash of everything that determines the tower's output. Equal images of any dataset share an entry.
 * Every function is Local.
 *
 * A file is written under a temporary name and never changed. DIR/features-TOWER-IMAGES.bin contains one tower's
 * features of the images that it lists. Several runs may read and add files concurrently. Files are untrusted: header,
 * list and each entry have checksums. An entry is verified when it is read. */
#ifndef DTRAIN_FEATURES_H
#define DTRAIN_FEATURES_H

#include "dtrain/core/core.h"

/** A hash of an image's bytes; not cryptographic. */
typedef struct dt_image_hash {
    uint64_t word[2];
} dt_image_hash;
/** Hash of an image. */
dt_image_hash dt_image_hash_of(const uint8_t *pixels, size_t nbytes);
int dt_image_hash_compare(const dt_image_hash *a, const dt_image_hash *b); /* as memcmp */

/** Read the hashes of a dataset's n images from DIR/images-KEY.list, so that the images need not be read again. images:
 *  out [n]. False: no complete list of n. */
bool dt_image_list_read(const char *dir, uint64_t key, dt_image_hash *images, int64_t n);
/** Write such a list. Called by one process. DT_ERR_WRITE. */
dt_err dt_image_list_write(const char *dir, uint64_t key, const dt_image_hash *images, int64_t n);

/** Kind of features. */
typedef struct dt_feature_kind {
    uint64_t tower; /* hash of everything that determines an image's features */
    dt_dtype dtype;
    int64_t n_rows, width; /* of an image */
} dt_feature_kind;
static inline size_t dt_feature_nbytes(const dt_feature_kind *k)
{
    return (size_t)(k->n_rows * k->width) * dt_dtype_size(k->dtype);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct dt_features dt_features;
/** Location of an image's features. */
typedef struct dt_feature_slot {
    int32_t file, row; /* file -1: none */
    uint64_t checksum;
} dt_feature_slot;

/** Names of a directory's files of this kind, "DIR/NAME\n" each: malloc'ed, "" if there is no directory. DT_ERR_DATA:
 *  it cannot be read. DT_ERR_MEMORY. */
dt_err dt_features_list(const char *dir, const dt_feature_kind *kind, char **names);
/** Open these files. f: out, closed with dt_features_close. DT_ERR_DATA naming a file: truncated, altered, or of
 *  another kind. DT_ERR_MEMORY. */
dt_err dt_features_open(dt_features **f, const dt_feature_kind *kind, const char *names);
/** Location of an image's features. */
dt_feature_slot dt_features_find(const dt_features *f, const dt_image_hash *image);
/** Free the lists of images, after the last dt_features_find. */
void dt_features_forget(dt_features *f);
/** Read an entry. features: out [n_rows, width]. Any thread. DT_ERR_DATA: the checksum does not match. */
dt_err dt_features_read(const dt_features *f, const dt_feature_slot *at, void *features);
/** Close the files. Safe on NULL. */
void dt_features_close(dt_features *f);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/** A file whose entries are written by several processes. Initialise to {0}. */
typedef struct dt_feature_file {
    dt_feature_kind kind;
    int64_t n;  /* images */
    char *part; /* its temporary name */
    int fd;
    bool made; /* created by this process, which publishes or removes it */
} dt_feature_file;

/** Create a file for n images, with its space reserved, and remove files that killed processes left. Called by one
 *  process. DT_ERR_WRITE. */
dt_err dt_feature_file_create(dt_feature_file *f, const dt_feature_kind *kind, const char *dir, int64_t n);
/** Open the file in another process. part: its temporary name, copied. DT_ERR_WRITE. */
dt_err dt_feature_file_join(dt_feature_file *f, const dt_feature_kind *kind, const char *part, int64_t n);
/** Write entry `row`, the features of an image. checksum: out, for dt_feature_file_publish. DT_ERR_WRITE. */
dt_err dt_feature_file_write(const dt_feature_file *f, int64_t row, const dt_image_hash *image, const void *features,
                             uint64_t *checksum);
/** fsync the file. DT_ERR_WRITE. */
dt_err dt_feature_file_sync(const dt_feature_file *f);
/** Write the list and rename the file, after all processes have written and synced. Called by the process that created
 *  it. DT_ERR_WRITE. */
dt_err dt_feature_file_publish(dt_feature_file *f, const char *dir, const dt_image_hash *images,
                               const uint64_t *checksums);
/** Close the file, and remove it if this process created it and did not publish it. Safe on {0}. */
void dt_feature_file_close(dt_feature_file *f);

#endif
