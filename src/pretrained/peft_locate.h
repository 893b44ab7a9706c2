/* peft_locate.h - tensors in the file of an adapter. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_PEFT_LOCATE_H
#define DTRAIN_PRETRAINED_PEFT_LOCATE_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/stored.h"

/** A dt_stored_locator: path is a directory as PEFT writes it. All adapters of the slots' units, and what
 *  modules_to_save names of them, must be there; the base model's own tensors stay as they are. */
dt_err peft_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

#endif
