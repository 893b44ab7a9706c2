/* tower.h - the families of vision towers. They are in no list of model_types.h, because none is a whole model. */
#ifndef DT_MODEL_TOWER_H
#define DT_MODEL_TOWER_H

#include "family.h"

extern const dt_family dt_family_clip, dt_family_siglip;

#endif
