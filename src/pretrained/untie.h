/* untie.h - a head of its own for a model whose files tie it to the embedding. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_UNTIE_H
#define DTRAIN_PRETRAINED_UNTIE_H

#include "dtrain/io/safetensors.h"

/** Compare two tensors of files as fp32, which represents all types exactly. same: out. Local. */
dt_err untie_compare(const dt_safetensors *s, const dt_st_tensor *a, const dt_st_tensor *b, bool *same);

#endif
