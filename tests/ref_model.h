/* ref_model.h - a model on plain buffers, for tests: every unit whole in memory, a parameter source that also checks
 * how it is called, weights and tokens from the formula of make_model_fixtures.py, AdamW as the fixtures use it. */
#ifndef REF_MODEL_H
#define REF_MODEL_H

#include "dtrain/model/model.h"

typedef struct ref_model {
    dt_ledger ledger;
    dt_device dev;
    dt_model_config mc;
    dt_model_options opt;
    dt_unit *units;
    int n_units;
    dt_model *model;
    dt_param_source source;
    dt_buf *params, *grads;           /* [n_units], on the device */
    void **host_params, **host_grads; /* [n_units][flat_len]: what the tests read and write; frozen after trained */
    bool *params_changed;             /* on the host, since the device had them */
    bool grads_changed;               /* on the device, since the host had them */
    float **master, **m, **v;         /* [n_units][flat_len]: AdamW's, allocated by the first ref_model_adamw */
    int64_t n_updates;
    int *param_holds, *grad_holds;
    bool *grads_fresh; /* nothing is in the gradients yet */
    char *calls;       /* the order of acquires and releases, as text */
    size_t calls_len;
    bool misused;
    bool guest; /* on another's device */
} ref_model;

/** Options for tests: one batch of max_tok tokens, training, gradients fp32. */
dt_model_options ref_options(int32_t max_tok, int32_t max_pos, dt_dtype dtype);

/** Open on the CPU device with the formula's weights, rounded to opt->dtype. */
dt_err ref_model_open(ref_model *r, const char *name, const char *config_json, const dt_model_options *opt);
/** The same with some tensors frozen. */
dt_err ref_model_open_part(ref_model *r, const char *name, const char *config_json, const dt_model_options *opt,
                           dt_trains trained, void *self);
/** The same with units of the test's own making. */
typedef dt_err (*ref_build)(const dt_model_config *mc, dt_unit **units, int *n_units);
dt_err ref_model_open_built(ref_model *r, const char *name, const char *config_json, const dt_model_options *opt,
                            ref_build build);
/** A second model on r's device, with other weights: it may borrow r's activations. Closed before r. */
dt_err ref_model_open_beside(ref_model *q, ref_model *r, const char *config_json, const dt_model_options *opt);
void ref_model_close(ref_model *r);
/** Bytes still counted after ref_model_close: 0, or a leak. */
size_t ref_model_left(const ref_model *r);

/** Forget gradients: fills them with NaN, so that a tensor that is not written shows. */
void ref_model_forget_grads(ref_model *r);
/** The same with any value for every element, padding included. */
void ref_model_fill_grads(ref_model *r, double value);
double ref_grad(ref_model *r, int unit, int64_t i); /* waits for the device where it has newer ones */
/** Where a tensor begins among a unit's parameters, for the next two; its offset where all is trained. */
int64_t ref_at(const ref_model *r, int unit, const dt_tensor *t);
double ref_param(const ref_model *r, int unit, int64_t i);
void ref_set_param(ref_model *r, int unit, int64_t i, double value);
/** The last norm of all gradients, and AdamW with clipping, decay groups. Returns the norm. */
double ref_model_adamw(ref_model *r, double lr, double weight_decay, double clip);

/** Number i that belongs to a name, in [-1/2, 1/2). */
double ref_number(const char *name, int64_t i);
/** Element i of a tensor by the formula. */
double ref_weight(const dt_tensor *t, int64_t i);

/** Batch k of sequences of these lengths; all tokens but `without_target` in every so many (0: none) have targets. */
void ref_batch_fill(dt_batch *b, int64_t n_vocab, int64_t k, int n_seq, const int32_t *lens, int without_target_every);

/** Mean over targets of -logp, with its per-token values (NULL: not wanted), by forward (train) and the logp-only head;
 *  in training plus the losses of routers. */
dt_err ref_model_loss(ref_model *r, const dt_batch *b, bool train, int64_t step, double *loss, float *logp);
/** Forward, head, backward with u = scale / (targets of b); loss as above. */
dt_err ref_model_grads(ref_model *r, const dt_batch *b, int64_t step, double scale, double *loss);

/** The text of tests/data/model/NAME.json and of others; malloc'ed, NULL when missing. */
char *ref_read_file(const char *path);

#endif
