/* vision_private.h - what the files of a vision-language model share with the layer loop.
 *
 * Symbols  N images of the micro-batch, P rows of an image in the tower (patches, behind a class token where there is
 *          one), p side of a patch in pixels, C the tower's width, R = N n_features rows of the projector, S = N
 *          n_tokens rows that the language model gets, D its width. */
#ifndef DT_MODEL_VISION_PRIVATE_H
#define DT_MODEL_VISION_PRIVATE_H

#include "../model_private.h"

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

/* tower.c */
/** The units of a source from `first` on, counted from 0. */
struct shifted_source {
    const dt_param_source *of;
    int first;
};

struct tower {
    const dt_unit *units; /* its own */
    int n_units;
    bool trains;
    struct tower_norm norm_stage;
    struct shifted_source shifted;
    dt_param_source source;
    dt_model *model; /* not trained, it borrows activations of the language model, or of the one that lends to it */
    dt_batch batch;  /* the positions of each image */
    int32_t *row;    /* device [max R, shuffle^2]: which rows of the features stand side by side in x */
};

/* projector.c */
enum { HIDDEN = DT_MAX_PROJECTOR_LAYERS - 1 };
/** A layer's output, on its way to the next; on the device. */
struct hidden {
    void *pre;          /* before the activation */
    void *act;          /* behind it and dropout */
    void *norm;         /* behind the norm; act where there is none */
    float *mean, *rstd; /* [R] */
};
/** From rows of y to their mean, where an image has one placeholder; on the device. */
struct pool {
    int32_t *image, *in_order; /* [R]: each row's image; 0, 1 .. */
    float *sum;                /* [N, D] */
};

struct projector {
    int unit;
    bool trains;
    struct linear layer[DT_MAX_PROJECTOR_LAYERS];
    struct norm norm[HIDDEN];
    /* device */
    struct hidden hidden[HIDDEN];
    void *y, *out;                     /* [R, D], [S, D] */
    void *dy, *dout, *dhidden[HIDDEN]; /* their gradients */
    struct pool pool;
    struct span keys; /* uint64 [R]: for dropout */
};

/* placeholders.c */
/** Consecutive placeholders of the batch, first .. first+n-1, that show consecutive rows. */
struct run {
    int64_t first, row, n;
};
/** Of the batch, on the host. Where each placeholder is, what it shows, and their order by that: struct image. */
struct placeholders {
    int64_t n;       /* S, or more where sequences share an image */
    struct run *run; /* [max_seq], n_runs of them used */
    int32_t n_runs;
    int32_t *row_end; /* [max S + 1]: where each row's tokens end in shown_order */
};

struct vision {
    const dt_vision_config *config;
    struct tower tower;
    struct projector projector;
    struct placeholders placeholders;
    int32_t n_images; /* of the batch */
    dt_buf device, staging;
    void *x, *dx;         /* device [max R, n_in]: what the projector reads, and its gradient */
    struct span features; /* where they are given; x is their device end */
};

/** The parts, in the order of a pass. Each is described from the units (m->vision is there, empty) and laid out in the
 *  arenas, to be counted or allocated. The lists stay on the device as they are. */
dt_err dt_tower_describe(const dt_model *m, const dt_unit *units, int n_units); /* the tower's own */
void dt_tower_place(const dt_model *m, struct arena *device);
dt_err dt_tower_size(const dt_model *m, size_t *nbytes);  /* as dt_vision_size */
dt_err dt_tower_plan(const dt_model *m, dt_memory *plan); /* adds to it, without what is laid out */
dt_err dt_tower_open(dt_model *m, int first);             /* of all units its first */
void dt_tower_close(dt_model *m);
/** Row (I, J) of what the projector gets has the patches (I f + a, J f + b), a first; without a class token. */
void dt_tower_list_rows(const struct vision *v, int64_t n_images, int32_t *row);
/** pixels [n_images, S, S, 3] on the host -> x. shown_by: the batch that shows them, NULL: none does, and nothing is
 *  dropped. All ranks at the same point, with images or not. */
dt_err dt_tower_forward(dt_model *m, const uint8_t *pixels, const dt_batch *shown_by);
dt_err dt_tower_backward(const dt_model *m); /* from dx */

dt_err dt_projector_describe(const dt_model *m, const dt_unit *u, int unit);
void dt_projector_place(const dt_model *m, struct arena *device, struct arena *staging);
void dt_projector_list_images(const struct vision *v, int64_t n_images, int32_t *image); /* of each row */
void dt_projector_list_in_order(const struct vision *v, int64_t n_images, int32_t *row);
dt_err dt_projector_stage(dt_model *m, const dt_batch *b);
dt_err dt_projector_forward(const dt_model *m, const dt_param_view *w);                         /* x -> out */
dt_err dt_projector_backward(const dt_model *m, const dt_param_view *w, const dt_grad_view *g); /* dout -> dx */

void dt_placeholders_place(const dt_model *m, struct arena *host);
/** DT_ERR_DATA: a sequence has more or fewer of them than its images want. */
dt_err dt_placeholders_find(dt_model *m, const dt_batch *b);
int32_t dt_placeholders_first(const dt_model *m, int64_t row); /* the first token that shows a row of out */
dt_err dt_placeholders_scatter(const dt_model *m, void *x);    /* out to their rows of x [T, D] */
/** Gradients out of s.dx [T, D] to dout; where the table has an adapter, zeros go to their rows. */
dt_err dt_placeholders_gather(const dt_model *m);

/* vision.c */
/** Tower and projector of a model that is being opened, which has none where its list has no such units. first: the
 *  tower's first unit. */
dt_err dt_vision_open(dt_model *m, const dt_unit *units, int n_units, int first);
/** Activations that the tower borrows, from the model or from the one that lends to it: all of a frozen one, whose
 *  features are rows of the projector's by the time that the embedding begins. */
dt_err dt_vision_size(const dt_model *m, const dt_unit *units, int n_units, int first, size_t *nbytes);
/** What dt_vision_open allocates is added to the plan. */
dt_err dt_vision_plan(const dt_model *m, const dt_unit *units, int n_units, int first, dt_memory *plan);
void dt_vision_close(dt_model *m);
/** Find the placeholders of a batch and bring what goes ahead of a pass. DT_ERR_DATA. */
dt_err dt_vision_stage(dt_model *m, const dt_batch *b);
/** From the batch's images to rows of the language model. All ranks at the same point of a pass: in training always,
 *  else where batches have room for images, on all ranks alike. */
dt_err dt_vision_forward(dt_model *m, const dt_batch *b);
dt_err dt_vision_backward(dt_model *m);
/** Does anything of tower or projector have gradients? */
bool dt_vision_trains(const dt_model *m);
int64_t dt_vision_max_rows(const dt_model *m);  /* the largest R */
int64_t dt_vision_rows(const struct vision *v); /* R */

#endif
