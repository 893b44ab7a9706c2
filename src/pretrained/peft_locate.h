/* peft_locate.h - locate tensors in an adapter's file. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_PEFT_LOCATE_H
#define DTRAIN_PRETRAINED_PEFT_LOCATE_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/stored.h"
#include <limits.h>

/** Open the tensors of an adapter in PEFT's format. path: out, of the file. Closed with dt_safetensors_close.
 *  DT_ERR_DATA. */
dt_err peft_open(dt_safetensors *s, const char *dir, char path[PATH_MAX]);
/** A dt_stored_locator: path is a directory in PEFT's format. It must contain all adapters of the slots' units and the
 *  tensors that modules_to_save names. The base model's other tensors keep their values. */
dt_err peft_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

#endif
