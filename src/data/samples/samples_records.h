/* samples_records.h - which records of a file are samples and which are dropped. sft: records with a
 * target, used as samples or packed into rows. preference: pairs. */
#ifndef DTRAIN_DATA_SAMPLES_RECORDS_H
#define DTRAIN_DATA_SAMPLES_RECORDS_H

#include "samples.h"

typedef struct dt_record_len {
    uint32_t n_tok, n_target; /* after the cut at T */
} dt_record_len;

typedef struct dt_records {
    dt_record_len *len; /* [n_alloc], n used: kept records in file order */
    float *weight;      /* likewise; NULL if the file has no weights */
    uint32_t *n_images; /* likewise; NULL if the file has no images */
    int64_t n, n_alloc;
    int64_t *dropped; /* [n_dropped], ascending: numbers of records without a target or with an image that is cut */
    int64_t n_dropped, dropped_alloc;
    int64_t n_cut; /* dropped because an image is cut */
} dt_records;

/** Drop the record with this number. Numbers must be ascending. */
dt_err dt_records_drop(dt_records *r, dt_samples *set, int64_t number);
/** Read all masks once, with OpenMP threads. dt_samples_close frees the memory, or dt_records_free earlier. */
dt_err dt_records_scan(dt_records *r, dt_samples *set);
/** Fill n_images if the file has images. Call it after all records to be dropped are known. *most: maximum
 *  per record. */
dt_err dt_records_scan_images(dt_records *r, dt_samples *set, int64_t *most);
void dt_records_free(dt_records *r, dt_samples *set);
/** Number in the file of the k-th kept record. */
int64_t dt_records_number(const dt_records *r, int64_t k);

#endif
