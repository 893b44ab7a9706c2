/* vision_private.h - shared declarations of the vision part and the layer loop.
 *
 * Symbols  N images of the micro-batch, P rows of an image in the tower (patches, after a class token if there is one),
 * p side of a patch in pixels, C the tower's width, R = N n_features rows of the projector, S = N n_tokens rows for the
 * language model, D its width. */
#ifndef DT_MODEL_VISION_PRIVATE_H
#define DT_MODEL_VISION_PRIVATE_H

#include "../model_private.h"

/* vision_units.c; vision NULL: no units */
int dt_vision_n_units(const dt_vision_config *v);
dt_err dt_vision_build_units(const dt_vision_config *v, dt_unit *units);
/** Index of the tower's first unit among all units of a model; n_units without a tower. */
int dt_vision_first_unit(const dt_unit *units, int n_units);

/* tower.c */
struct tower {
    const dt_unit *units; /* its own */
    int n_units;
    bool trains;
    dt_model *model;  /* if frozen, it borrows activations of the language model, or of that model's lender */
    dt_batch batch;   /* the positions of each image */
    int32_t *row;     /* device [max R, shuffle^2]: feature rows to concatenate in x */
    struct span rows; /* of grids: row, which depends on the batch */
    int32_t *square;  /* device [max N P], of a projector that averages: the row of x that a feature is part of */
    float *sum;       /* device [max R, C], of the same: sums of features */
};

/* grids.c */
/** An image of the batch. */
struct image_grid {
    int32_t first; /* cell */
    int32_t rows, columns;
};
/** The images of the batch, if they are grids of cells; on the host. */
struct grids {
    struct image_grid *image; /* [max images], n used */
    int32_t n;
    int32_t *image_of;     /* [cells] */
    int32_t *cell, *place; /* [cells]: the cell at a place, the place of a cell */
    int32_t *window_len;   /* [n_windows] in cells, in the order of places */
    int32_t n_windows;
};

/* projector.c */
enum { HIDDEN = DT_MAX_PROJECTOR_LAYERS - 1 };
/** Intermediate output of a layer; on the device. */
struct hidden {
    void *pre;  /* before the activation */
    void *act;  /* after the activation and dropout */
    void *norm; /* after the norm; equals act without a norm */
    struct norm_stats stats;
};
/** Mean of the rows of y, for images with one placeholder; on the device. */
struct pool {
    int32_t *image, *in_order; /* [R]: each row's image; 0, 1 .. */
    float *sum;                /* [N, D] */
};

struct projector {
    const dt_projector_config *config;
    int unit;
    bool trains;
    struct norm pre; /* optional */
    struct linear layer[DT_MAX_PROJECTOR_LAYERS];
    struct norm norm[HIDDEN];
    struct span features; /* precomputed; x is its device side */
    /* device */
    void *x, *dx; /* [max R, n_in]: input, and its gradient */
    void *normed; /* [R, n_in]: after pre; backward overwrites it with its gradient */
    struct norm_stats pre_stats;
    struct hidden hidden[HIDDEN];
    void *y, *out;                     /* [R, D], [S, D] */
    void *dy, *dout, *dhidden[HIDDEN]; /* gradients */
    struct pool pool;
    struct span keys; /* uint64 [R]: for dropout, also of the projectors of deepstack */
    /* of adapters: h of each layer, [R, r], and work space */
    void *low[DT_MAX_PROJECTOR_LAYERS];
    struct low_work low_work;
};

/* placeholders.c */
/** Consecutive placeholders first .. first+n-1 of the batch that refer to consecutive rows. */
struct run {
    int64_t first, row, n;
};
/** Placeholders of the batch, on the host. Their positions, rows and order by row: struct tokens. */
struct placeholders {
    int64_t n;       /* S, or more if sequences share an image */
    struct run *run; /* [max_seq], n_runs used */
    int32_t n_runs;
    int32_t *row_end; /* [max S + 1]: end of each row's tokens in shown_order */
};

struct vision {
    const dt_vision_config *config;
    struct tower tower;
    struct projector projector[1 + DT_MAX_DEEPSTACK]; /* that after the last block, then those of deepstack */
    struct placeholders placeholders;
    struct grids grids;
    int32_t n_images; /* of the batch; of grids: cells */
    dt_buf device, staging;
    void *shown; /* device [max S, D]: placeholder rows while rows of deepstack are added */
};

/** The components in order of execution. Each is described from the units (m->vision exists and is empty) and laid out
 *  in the arenas, either counted or allocated. The index lists on the device are constant. */
dt_err dt_tower_describe(const dt_model *m, const dt_unit *units, int n_units); /* the tower's own units */
void dt_tower_place(const dt_model *m, struct arena *device, struct arena *staging);
dt_err dt_tower_size(const dt_model *m, size_t *nbytes);  /* like dt_vision_size */
dt_err dt_tower_plan(const dt_model *m, dt_memory *plan); /* added to the plan, without the arenas */
dt_err dt_tower_open(dt_model *m, int first);             /* first: index of its first unit */
void dt_tower_close(dt_model *m);
/** Row (I, J) of the projector's input is the concatenation of patches (I f + a, J f + b), a outermost; without a class
 *  token. */
void dt_tower_list_rows(const struct vision *v, int64_t n_images, int32_t *row);
void dt_tower_list_squares(const struct vision *v, int64_t n_images, int32_t *square);
/** Compute x from the tower's pixels, for n_images images whose copy to the device is queued. shown_by: the batch with
 *  the placeholders; NULL: none, and no dropout. All ranks call it at the same point, with or without images. */
dt_err dt_tower_forward(dt_model *m, const dt_batch *shown_by);
dt_err dt_tower_backward(const dt_model *m); /* input: dx */

/** Output x of the tower's block: rows for the deepstack projectors. No operation without one for this block. */
dt_err dt_tower_after_block(const dt_model *tower, const struct stage *s, const void *x);
/** Their gradients, added to s.dx before the block's backward. */
dt_err dt_tower_before_backward(const dt_model *tower, const struct stage *s);

dt_err dt_projector_describe(const dt_model *m, const dt_unit *u, int unit, struct projector *j);
void dt_projector_place(const dt_model *m, struct projector *j, struct arena *device, struct arena *staging);
void dt_projector_list_images(const struct vision *v, int64_t n_images, int32_t *image); /* image index of each row */
void dt_projector_list_in_order(const struct vision *v, int64_t n_images, int32_t *row);
dt_err dt_projector_stage(dt_model *m, const dt_batch *b);
/** x -> out, dout -> dx */
dt_err dt_projector_forward(const dt_model *m, const struct projector *j, const dt_param_view *w);
dt_err dt_projector_backward(const dt_model *m, const struct projector *j, const dt_param_view *w,
                             const dt_grad_view *g);

void dt_placeholders_place(const dt_model *m, struct arena *host);
/** DT_ERR_DATA: the number of placeholders of a sequence does not match its images. */
dt_err dt_placeholders_find(dt_model *m, const dt_batch *b);
bool dt_placeholders_is(const dt_model *m, const dt_batch *b, int32_t s, int32_t t); /* token t of sequence s */
int32_t dt_placeholders_first(const dt_model *m, int64_t row); /* the first token that refers to a row of out */
dt_err dt_placeholders_scatter(const dt_model *m, void *x);    /* copy out to the placeholder rows of x [T, D] */
/** Sum the gradients of placeholders in s.dx [T, D] into dout. If the table has an adapter, clears their rows of
 *  s.dx. */
dt_err dt_placeholders_gather(const dt_model *m);
/** Add a deepstack projector's out to the placeholder rows of x; sum the gradients in s.dx into its dout. */
dt_err dt_placeholders_add(const dt_model *m, const struct projector *j, void *x);
dt_err dt_placeholders_collect(const dt_model *m, const struct projector *j);

void dt_grids_place(const dt_model *m, struct arena *host);
/** Read the grids of the images. grid: as in dt_batch_images. DT_ERR_DATA. No operation for images of one size. */
dt_err dt_grids_read(const dt_model *m, const uint32_t *grid);
/** The feature rows of each cell in the tower's order: [n_images, n_rows]. */
void dt_grids_list_rows(const struct vision *v, int32_t *row);
/** Copy the cells in the order of the tower. */
void dt_grids_copy_cells(const struct vision *v, const uint8_t *cells, size_t cell_nbytes, char *to);
/** Set the positions of the batch, whose placeholders are known: rows of the rotary table. DT_ERR_DATA. */
dt_err dt_grids_stage_text(dt_model *m, const dt_batch *b, const int32_t *slot);
/** Stage positions and windows of a tower's batch. */
dt_err dt_grids_stage_tower(dt_model *tower);
/** Lay out the arrays that depend on the grids, starting at base (NULL: count only). Returns the bytes used. */
size_t dt_grids_place_arrays(const dt_model *tower, char *base, int64_t n_cells, struct grid_arrays *a);

/* vision.c */
/** Open tower and projector of a model that is being opened; no operation without such units. first: index of the
 *  tower's first unit. */
dt_err dt_vision_open(dt_model *m, const dt_unit *units, int n_units, int first);
/** Activations that the tower borrows from the model or its lender. A frozen tower borrows all: its features have
 *  become projector rows before the embedding starts. */
dt_err dt_vision_size(const dt_model *m, const dt_unit *units, int n_units, int first, size_t *nbytes);
/** Add the allocations of dt_vision_open to the plan. */
dt_err dt_vision_plan(const dt_model *m, const dt_unit *units, int n_units, int first, dt_memory *plan);
void dt_vision_close(dt_model *m);
/** The part of dt_model_stage_batch for a model with a vision part: find the placeholders of a batch, and queue the
 *  copies of its images. DT_ERR_DATA. */
dt_err dt_vision_stage(dt_model *m, const dt_batch *b, const int32_t *slot);
/** After the forward of the language model's block, and before its backward: rows of deepstack, and their gradients. x:
 *  the block's output. */
dt_err dt_vision_after_block(const dt_model *m, const struct stage *s, void *x);
dt_err dt_vision_before_backward(const dt_model *m, const struct stage *s);
/** Compute the language model's rows from the batch's images. All ranks call it at the same point of a pass: always in
 *  training, otherwise if batches can have images, which is the same on all ranks. */
dt_err dt_vision_forward(dt_model *m, const dt_batch *b);
dt_err dt_vision_backward(dt_model *m);
/** Does any part of tower or projector have gradients? */
bool dt_vision_trains(const dt_model *m);
int64_t dt_vision_max_rows(const dt_model *m);  /* the largest R */
int64_t dt_vision_rows(const struct vision *v); /* R */

#endif
