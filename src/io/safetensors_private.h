/* safetensors_private.h - what the files about safetensors share. */
#ifndef DT_IO_SAFETENSORS_PRIVATE_H
#define DT_IO_SAFETENSORS_PRIVATE_H

#include "dtrain/io/safetensors.h"
#include "dtrain/io/json.h"

#define ST_SINGLE "model.safetensors"
#define ST_INDEX "model.safetensors.index.json"

/** The tensors of one file by their place in it; malloc'ed, also after an error (free each name, and the list). */
dt_err dt_st_read_file(const char *path, dt_st_tensor **tensors, int *n);

#endif
