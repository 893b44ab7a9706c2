/* metrics_jsonl.h - files of JSON objects, one per line. */
#ifndef DTRAIN_REPORT_JSONL_H
#define DTRAIN_REPORT_JSONL_H

#include "lines.h"

/** Rewrite the file, through PATH.part and a rename, with the kept lines: each training step once, in order (unless
 * several lines per step are allowed). Lines that are not complete objects with a step are removed (usually a torn
 * last line). A warning reports removed lines and a missing step. A missing file stays missing. DT_ERR_DATA (cannot
 * read), DT_ERR_WRITE. */
dt_err dt_jsonl_cut(const char *path, const dt_kept *kept);

#endif
