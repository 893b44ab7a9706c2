/* safetensors_private.h - shared declarations of the safetensors files. */
#ifndef DT_IO_SAFETENSORS_PRIVATE_H
#define DT_IO_SAFETENSORS_PRIVATE_H

#include "dtrain/io/safetensors.h"
#include "dtrain/io/json.h"

#define ST_SINGLE "model.safetensors"
#define ST_INDEX_ENDING ".safetensors.index.json"
#define ST_INDEX "model" ST_INDEX_ENDING

/** Read the tensors of one file, sorted by offset; malloc'ed, even after an error (free each name, and the list). */
dt_err dt_st_read_file(const char *path, dt_st_tensor **tensors, int *n);

#endif
