/* locate.h - tensors in the safetensors files of a directory. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_LOCATE_H
#define DTRAIN_PRETRAINED_LOCATE_H

#include "dtrain/stored.h"

/** A dt_stored_locator: path is the directory. */
dt_err directory_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

#endif
