/* vision_private.h - what the files of a vision-language model share with the layer loop.
 *
 * Symbols  N images of the micro-batch, P rows of an image in the tower (patches, behind a class token where there is
 *          one), p side of a patch in pixels, C the tower's width, R = N n_features rows of the projector, S = N
 *          n_tokens rows that the language model gets, D its width. */
#ifndef DT_MODEL_VISION_PRIVATE_H
#define DT_MODEL_VISION_PRIVATE_H

#include "model_private.h"

/* vision_units.c; vision NULL: there are none */
int dt_vision_n_units(const dt_vision_config *v);
dt_err dt_vision_build_units(const dt_vision_config *v, dt_unit *units);
/** The tower's first unit, of all units of a model; n_units where it has none. */
int dt_vision_first_unit(const dt_unit *units, int n_units);

/* tower_norm.c */
/** The stage of a tower whose features have a norm (dt_vision_config.feature_norm), and what it works with; on the
 *  device. */
struct tower_norm {
    float eps;
    float *mean, *rstd; /* [N P] */
    float *scratch;     /* of backward */
};
extern const dt_stage_ops dt_tower_norm; /* self: struct tower_norm */
/** m: the language model. trains: is the tower trained? */
void dt_tower_norm_place(struct tower_norm *n, const dt_model *m, bool trains, struct arena *device);

/* vision.c */
/** Tower and projector of a model that is being opened, which has none where its list has no such units. first: the
 *  tower's first unit. */
dt_err dt_vision_open(dt_model *m, const dt_unit *units, int n_units, int first);
/** Activations that the tower borrows, from the model or from the one that lends to it: all of a frozen one, whose
 *  features are rows of the projector's by the time that the embedding begins. */
dt_err dt_vision_size(const dt_model *m, const dt_unit *units, int n_units, int first, size_t *nbytes);
/** What that allocates. */
dt_err dt_vision_plan(const dt_model *m, const dt_unit *units, int n_units, int first, dt_memory *plan);
void dt_vision_close(dt_model *m);
/** From the batch's images to rows of the language model, which dt_vision_put brings to their places. All ranks at the
 *  same point of a pass: in training always, else where batches have room for images, on all ranks alike. */
dt_err dt_vision_forward(dt_model *m, const dt_batch *b);
dt_err dt_vision_put(const dt_model *m, void *x); /* x [T, D] */
/** Their gradients out of s.dx [T, D], for dt_vision_backward; where the table has an adapter, zeros go to their
 *  places. */
dt_err dt_vision_take(const dt_model *m);
dt_err dt_vision_backward(dt_model *m);
/** Does anything of tower or projector have gradients? */
bool dt_vision_trains(const dt_model *m);
/** Find the placeholders of a batch: places, and that there are as many as its images want. DT_ERR_DATA. */
dt_err dt_vision_stage(dt_model *m, const dt_batch *b);

#endif
