/* memory_table.h - rows of a table of memory (memory_table.c). Private to src/train. */
#ifndef DTRAIN_TRAIN_TABLE_H
#define DTRAIN_TRAIN_TABLE_H

#include "dtrain/core/core.h"

/** Three digits and a suffix for a power of 1000, as on the command line: 1.25G, 816M. */
const char *table_bytes(double n, char out[16]);
/** The category names after `head`, and the values of a row below them, without the end of the line. */
void table_head(FILE *out, const char *head);
void table_row(FILE *out, const char *head, const dt_memory *m);
/** The part of m in one memory space, below the total row. */
void table_memspace(FILE *out, dt_memspace p, const dt_memory *m);
/** "device 8.13M, pinned 310K, host 1.20M, in one memory; file 42.5M" */
void table_one_memory(FILE *out, const dt_memory *m);

#endif
