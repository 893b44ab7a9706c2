/* samples_records.h - the records of a file that are samples, and those that are left out: of an sft file those that
 * have a target, samples by themselves or what rows are packed of; of a preference file the pairs. */
#ifndef DTRAIN_DATA_SAMPLES_RECORDS_H
#define DTRAIN_DATA_SAMPLES_RECORDS_H

#include "samples.h"

typedef struct dt_record_len {
    uint32_t n_tok, n_target; /* after the cut at T */
} dt_record_len;

typedef struct dt_records {
    dt_record_len *len; /* [n_alloc], n of them used: kept records in the order of the file */
    float *weight;      /* the same, NULL when the file has none */
    uint32_t *n_images; /* the same, NULL when the file has none */
    int64_t n, n_alloc;
    int64_t *dropped; /* [n_dropped], ascending: numbers of records without any target, or with an image that is cut */
    int64_t n_dropped, dropped_alloc;
    int64_t n_cut; /* of them those with an image that is cut */
} dt_records;

/** Note that the record of this number is left out; numbers come ascending. */
dt_err dt_records_drop(dt_records *r, dt_samples *set, int64_t number);
/** Read all masks once, with OpenMP's threads. Memory is counted to set. Free (also after an error) with
 *  dt_records_free. */
dt_err dt_records_scan(dt_records *r, dt_samples *set);
/** Fill n_images, of a file that has any, behind everything that leaves records out. *most: of one record. */
dt_err dt_records_scan_images(dt_records *r, dt_samples *set, int64_t *most);
void dt_records_free(dt_records *r, dt_samples *set);
/** Number in the file of the k-th kept record. */
int64_t dt_records_number(const dt_records *r, int64_t k);

#endif
