/* chunk.h - what goes through the threads: some text cut into documents and records by the reader, and the samples
 * that a worker makes of them. */
#ifndef DTRAIN_DATA_MAKE_CHUNK_H
#define DTRAIN_DATA_MAKE_CHUNK_H

#include "dtrain/data/dataset.h"
#include "dtrain/tokenizer/tokenizer.h"

/** A record, or a document or piece of one. Plain text comes in pieces: the first begins it, the last ends it. */
typedef struct dt_chunk_item {
    size_t first, nbytes; /* in the chunk's text */
    size_t n_behind;      /* bytes behind it, of a row of a Parquet file: what its JSON refers to */
    int64_t line;         /* records: where it begins; 0 for text */
    const char *path;     /* of the input: lives as long as the making */
    bool json, begins, ends;
    /* of recommendation data (rec.h) */
    const struct dt_csv_header *header; /* the text is a row below it, not JSON; lives as long as the making */
    int64_t number;                     /* of the row, or of the item of the catalogue */
    uint32_t tasks;                     /* bits: the tasks that make a sample of it */
} dt_chunk_item;

typedef struct dt_sample {
    const dt_chunk_item *item;
    dt_dataset_kind kind; /* what the record is by its form, or what was asked for */
    /* plain text: truncation and end of text are still to come, because it may have other pieces */
    bool text;
    bool truncated, parted, too_long, has_second, is_chat;
    size_t n[DT_N_SIDES]; /* ids, in a row in the chunk's */
    size_t n_record;      /* bytes, in a row in the chunk's; 0: there is none */
    int n_images;         /* in a row in the chunk's */
    size_t first_pixel;   /* where they begin, in bytes */
    uint64_t image_names; /* a hash of their paths */
    dt_pair pair;
    float weight;
    uint64_t hash;  /* of what decides between training and validation */
    char *problem;  /* malloc'ed: why this is no sample */
    size_t n_named; /* bytes at its beginning that name an image */
} dt_sample;

typedef struct dt_chunk {
    char *text;
    size_t n_text, text_alloc;
    dt_chunk_item *items;
    int n_items, items_alloc;
    int64_t nbytes_read; /* of all inputs, when this was handed over */

    dt_sample *samples; /* one for each item */
    int n_samples, samples_alloc;
    dt_ids ids[DT_N_SIDES];
    uint8_t *mask[DT_N_SIDES]; /* as long as ids */
    char *records;             /* JSON objects of prompts, one after the other */
    size_t n_records, records_alloc;
    uint8_t *pixels;               /* images, one after the other */
    size_t n_pixels, pixels_alloc; /* bytes */
    dt_field_counts ignored;       /* of its records */
    dt_err err;                    /* after the samples: what ended the work on this chunk */
    char message[1024];
} dt_chunk;

enum {
    DT_CHUNK_NBYTES = 1 << 18, /* text of a chunk, about: one long record may have more */
    DT_CHUNK_ITEMS = 2048,
    DT_CHUNK_PIXELS = 1 << 23 /* bytes of a chunk, about: as many records as have so much with one image each */
};

dt_err dt_chunk_add(dt_chunk *p, const char *text, size_t nbytes, dt_chunk_item item); /* item's place is filled in */
/* one more, zeroed; valid until the next */
dt_err dt_chunk_sample(dt_chunk *p, dt_sample **s);
/** Room for nbytes of pixels behind those there are. DT_ERR_MEMORY. */
dt_err dt_chunk_reserve_pixels(dt_chunk *p, size_t nbytes);
/** Append the record of a sample. */
dt_err dt_chunk_add_record(dt_chunk *p, dt_sample *s, const char *json);
/** Empty, ready for the next turn; what one long record has made large is given back. */
void dt_chunk_clear(dt_chunk *p);
void dt_chunk_free(dt_chunk *p);

#endif
