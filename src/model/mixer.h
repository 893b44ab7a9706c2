/* mixer.h - the part of a branch between its norms: attention, an MLP, or a mixture of experts. Private to the files of
 * blocks. */
#ifndef DT_MODEL_MIXER_H
#define DT_MODEL_MIXER_H

#include "model_private.h"

/** A mixer, in a file of its own. It starts and ends with a linear layer. block.c computes the last layer's forward,
 *  and everything outside of the two. */
struct mixer {
    unsigned reads; /* the slots of the layers that read the branch's input: bits */
    enum slot last;
    enum dropout_site site; /* of the branch */
    /* inner: out, the input of the last layer, from the input x. cache: keys and values of the tokens so far; NULL:
     * without */
    dt_err (*forward)(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                      const void *x, void *cache, const void **inner);
    /* s.dnorm: out, the gradient of branch i's input, from dy, that of the last layer's output */
    dt_err (*backward)(const dt_model *m, const struct block *b, int i, const dt_param_view *w, const dt_grad_view *g,
                       const struct block_acts *a, const void *dy);
    /* y = the output of the last layer, from `inner`, plus addend (NULL: 0), which may be y. y NULL: only what backward
     * needs. finish NULL: block.c calls dt_linear_forward */
    dt_err (*finish)(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                     const void *addend, void *y);
    /* instead of forward and backward, on a rank without tokens whose calls other ranks wait for; NULL: nothing.
     * want_output false: `finish` is not called */
    dt_err (*skip)(const dt_model *m, const struct block *b, bool want_output);
    dt_err (*skip_backward)(const dt_model *m, const struct block *b);
};
extern const struct mixer dt_attention_mixer, dt_mlp_mixer, dt_delta_mixer, dt_latent_mixer, dt_experts_mixer;

/** The layer of a slot for all tokens, with its adapters. x, y, dy and dx have rows of the layer's widths. */
dt_err dt_slot_forward(const dt_model *m, const struct block *b, enum slot slot, const dt_param_view *w,
                       const struct block_acts *a, const void *x, void *y);
dt_err dt_slot_backward(const dt_model *m, const struct block *b, enum slot slot, const dt_param_view *w,
                        const dt_grad_view *g, const struct block_acts *a, const void *x, const void *dy, void *dx);
/** The input of branch i's mixer. */
const void *dt_mixer_input(const struct block *b, int i, const struct block_acts *a);
/** Recompute it, if backward needs it again. */
dt_err dt_mixer_remake_input(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                             const struct block_acts *a);

#endif
