/* events.h - TensorBoard event files: framed protocol buffers. */
#ifndef DTRAIN_REPORT_EVENTS_H
#define DTRAIN_REPORT_EVENTS_H

#include "record.h"

/** CRC-32C (Castagnoli), as TFRecord wants it before masking. */
uint32_t dt_crc32c(const void *data, size_t nbytes);

typedef struct dt_events {
    dt_record_file file;
    dt_text value, summary, event, frame; /* from the inside to the outside */
    int64_t step;
} dt_events;

/** Create a file DIR/events.out.tfevents.TIME.HOST.PID that sorts after the existing ones. Its first record says that
 * steps from first_step on are (re)started here, so TensorBoard drops earlier records of them. first_step < 0: no
 * step is repeated, and there is no such record. DT_ERR_WRITE. */
dt_err dt_events_open(dt_events *e, const char *dir, int64_t first_step);
/** One event: begin, any number of values, end. */
void dt_events_begin(dt_events *e, int64_t step);
void dt_events_add(dt_events *e, const char *tag, double value);
dt_err dt_events_end(dt_events *e);
/** The configuration (INI text) as a text. DT_ERR_WRITE. */
dt_err dt_events_config(dt_events *e, int64_t step, const char *ini);
dt_err dt_events_sync(dt_events *e);
void dt_events_close(dt_events *e);

#endif
