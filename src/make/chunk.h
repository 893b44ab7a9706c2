/* chunk.h - unit of work of the pipeline: input text, cut into documents and records by the reader, and
 * the samples that a worker builds from them. */
#ifndef DTRAIN_DATA_MAKE_CHUNK_H
#define DTRAIN_DATA_MAKE_CHUNK_H

#include "dtrain/data/dataset.h"
#include "dtrain/text/utf8.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <jansson.h>

/** A record, a document, or a piece of a document. Plain text comes in pieces: the first has begins set,
 *  the last ends. */
typedef struct dt_chunk_item {
    size_t first, nbytes; /* in the chunk's text */
    size_t n_binary;      /* bytes after the JSON, for a Parquet row: binary values that the JSON refers to */
    int64_t line;         /* records: line where it begins; 0 for text */
    const char *path;     /* of the input; valid until the end of the run */
    bool json, begins, ends;
    /* only for recommendation data (rec.h) */
    /* the text is a row below this header, not JSON; valid until the end of the run */
    const json_t *header;
    int64_t number; /* of the row or the catalogue item */
    uint32_t tasks; /* bit mask: tasks that build a sample from it */
} dt_chunk_item;

typedef struct dt_sample {
    const dt_chunk_item *item;
    dt_dataset_kind kind; /* detected from the record, or requested */
    /* plain text: the writer applies truncation and end of text, because more pieces may follow */
    bool text;
    bool truncated, parted, too_long, has_second, is_chat;
    size_t n[DT_N_SIDES]; /* ids, contiguous in the chunk's */
    size_t n_record;      /* bytes, contiguous in the chunk's; 0: none */
    int n_images;         /* contiguous in the chunk's; of grids: cells */
    int n_whole_images;
    size_t first_pixel;   /* byte offset of the first image */
    size_t first_grid;    /* likewise in grids */
    uint64_t image_names; /* hash of the images' paths */
    dt_pair pair;
    float weight;
    uint64_t hash;  /* decides between training and validation */
    char *problem;  /* malloc'ed: why the record was rejected */
    size_t n_named; /* leading bytes of problem that name an image */
} dt_sample;

typedef struct dt_chunk {
    dt_text text;
    dt_chunk_item *items;
    int n_items;
    int64_t nbytes_read; /* of all inputs, at the time of submission */

    dt_sample *samples; /* at least one per item */
    int n_samples;
    dt_ids ids[DT_N_SIDES];
    uint8_t *mask[DT_N_SIDES]; /* as long as ids */
    dt_text records;           /* JSON objects of prompts, concatenated */
    dt_text pixels;            /* images, concatenated */
    dt_text grids;             /* uint32 of each, if images are grids */
    dt_field_counts ignored;   /* field counts of its records */
    dt_err err;                /* error that ended the work on this chunk, after its samples */
    char message[1024];
} dt_chunk;

enum {
    DT_CHUNK_NBYTES = 1 << 18, /* approximate text size of a chunk; one long record may exceed it */
    DT_CHUNK_ITEMS = 2048,
    DT_CHUNK_GRIDS = 8,       /* the same for images of about a million pixels each */
    DT_CHUNK_PIXELS = 1 << 23 /* approximate pixel bytes of a chunk, at one image per record */
};

/* fills in the item's text range */
dt_err dt_chunk_add(dt_chunk *p, const char *text, size_t nbytes, dt_chunk_item item);
/* append a zeroed sample; valid until the next call */
dt_err dt_chunk_sample(dt_chunk *p, dt_sample **s);
/** Empty the chunk for reuse. Buffers enlarged by a long record are freed. */
void dt_chunk_clear(dt_chunk *p);
void dt_chunk_free(dt_chunk *p);

#endif
