/* stored.h - tensors in files, whatever the format of the files: which ones a rank asks for, where each lies, and how
 * all ranks read them. A format adds a locator: here is that of safetensors files, checkpoint.h has that of
 * checkpoints, the room pretrained one for adapters.
 *
 * For those two rooms; everybody else loads through checkpoint.h and pretrained.h. */
#ifndef DTRAIN_STORED_H
#define DTRAIN_STORED_H

#include "dtrain/io/safetensors.h"
#include "dtrain/zero/zero.h"

/* bytes moved at a time: inside the second cache's reach, far above a disk's favourite size */
enum { DT_STORED_BUFFER = 8 << 20 };

/** The memory through which tensors pass on their way to files and from them. A run has it from its start to its
 *  end and lends it in its communicator; where nothing is lent, who loads, saves or exports has one for as long. One at
 *  a time. */
typedef struct dt_chunks {
    char *raw, *converted; /* DT_STORED_BUFFER bytes each */
    dt_buf memory;
    bool taken;
} dt_chunks;
enum { DT_CHUNKS_NBYTES = 2 * DT_STORED_BUFFER };

/** Add what dt_chunks_open allocates: host memory, DT_MEM_STAGING. */
void dt_chunks_plan(dt_memory *memory);
dt_err dt_chunks_open(dt_chunks *c, dt_device *dev);
void dt_chunks_close(dt_chunks *c); /* safe on {0} */
/** Those of comm->chunks, or new ones on comm's device. Local. DT_ERR_ARG: they are in use. */
dt_err dt_chunks_take(dt_chunks **chunks, const dt_comm *comm);
void dt_chunks_give_back(dt_chunks *chunks, const dt_comm *comm); /* safe on NULL */

/** Frozen parameters that a checkpoint leaves out (checkpoint.save = trainable), since they are those of another model.
 *  {0}: none are. */
typedef struct dt_base {
    char *path; /* full path of that model: a Hugging Face directory, or a checkpoint; malloc'ed */
    struct dt_base_tensor {
        char name[DT_NAME_MAX];
        uint64_t checksum; /* of its elements as they stand there */
    } * tensors;
    int n;
} dt_base;
void dt_base_free(dt_base *b); /* safe on {0} */
/** DT_ERR_MEMORY. */
dt_err dt_base_add(dt_base *b, const char *name, uint64_t checksum);
const struct dt_base_tensor *dt_base_find(const dt_base *b, const char *name); /* NULL: it is not left out */

/** A vision-language model that is read from the files of its parts: the directory that is named has the language
 *  model. */
typedef struct dt_stored_parts {
    const char *tower;     /* directory of CLIP or SigLIP; NULL: the directory that is named has it, too */
    const char *projector; /* a safetensors file, or a directory; NULL: the same */
    const char *prefix;    /* left out of the names of tensors in the directory that is named (dt_stored_strip); NULL */
    bool new_projector;    /* no file has one: it keeps the values it has */
} dt_stored_parts;

/** One of several models that are saved together. */
typedef struct dt_saved_model {
    const char *name;     /* in checkpoints; NULL: the run's own model */
    dt_zero *zero;        /* NULL where only names and shapes are looked at: then of these units */
    const dt_unit *units; /* [n_units] */
    int n_units;
    bool with_states;     /* the optimizer's states, too */
    bool new_score;       /* loaded: a score.weight that is not in the file stays as it is, and a vocabulary's head that
                            * the file has instead is passed over */
    bool new_adapters;    /* loaded: so do adapters (unit.h) */
    bool adapters_follow; /* loaded: another file has them, and nothing is said of their being new */
    bool keeps_frozen;    /* loaded: what is frozen has its values already, and a file that has others is refused */
    bool keeps_nonfinite; /* loaded: NaN and Inf are warned of, and kept as they are; else they are refused */
    int64_t state_updates; /* saved: the updates that these have seen */
    /* saved: frozen parameters are left out, and are there; NULL: none are. Loaded: takes the checksums of frozen
     * parameters as they stand in the files; where it has a path, what a checkpoint leaves out is looked for there */
    dt_base *base;
    bool has_base;                /* loaded: what a checkpoint leaves out has its values already */
    const dt_stored_parts *parts; /* loaded from directories: NULL: one has all */
} dt_saved_model;

/** A tensor of one state that a file should have. The list is the same on all ranks, in the order of the file. */
typedef struct dt_stored_slot {
    const dt_saved_model *of;
    dt_state state;
    const char *state_name; /* the optimizer's; NULL for parameters */
    const dt_piece *piece;  /* what this rank is in charge of, of it; NULL without zero */
    const dt_piece *owned;  /* what it has of it: all that it reads; NULL without zero */
    const dt_unit *unit;
    const dt_tensor *tensor;
} dt_stored_slot;

/** The slots of all models, which are borrowed: parameters, and what else a model is to be saved or loaded with.
 *  malloc'ed. */
dt_err dt_stored_slots(const dt_saved_model *models, int n_models, dt_stored_slot **slots, int *n_slots);

/** The slot as a file of plain weights has it: of codes, and of their scales, the weight that they stand for, else the
 *  slot itself. tensor: of the result, the caller's. */
dt_stored_slot dt_stored_plain(const dt_stored_slot *s, dt_tensor *tensor);

/** Where a slot's elements are. Plain bytes: rank 0 sends it to the others. */
typedef struct dt_stored_location {
    int64_t offset; /* bytes; -1: not in one piece, ask HDF5 */
    uint64_t checksum;
    int32_t type; /* dt_st_type */
    int32_t has_checksum;
    int32_t file;      /* of dt_stored_map */
    int32_t bare;      /* found without "transformer." */
    int32_t absent;    /* a state of a tensor that was frozen when the file was written: it starts at zero */
    int32_t kept;      /* dt_saved_model.new_...: not in the file */
    int32_t quantise;  /* codes, or scales: it is the plain weight that they are made of (dt_stored_plain) */
    int32_t elsewhere; /* it has its values already: the files are not of the whole model */
    int32_t left_out;  /* dt_base: it is in a file of another model */
} dt_stored_location;

/** Where all tensors of a list of slots are. */
typedef struct dt_stored_map {
    dt_stored_location *locations; /* [n_slots], the caller's */
    char *files;                   /* malloc'ed: paths, each with its 0, one after the other */
    size_t files_len;
    int32_t embed;    /* slot of the embedding, -1: there is none that a head could be tied to */
    int32_t has_head; /* lm_head.weight is there, though the model is tied */
    dt_stored_location head;
} dt_stored_map;
#define DT_STORED_HEAD "lm_head.weight"
#define DT_STORED_SCORE "score.weight"

/** Locate every slot's tensor, and make sure that no tensor is there that no slot asks for. Local. DT_ERR_DATA naming
 *  file and tensor. */
typedef dt_err (*dt_stored_locator)(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);
/** A locator: in the safetensors files of a directory. */
dt_err dt_stored_locate_directory(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

/** Fill all models: rank 0 locates, every rank reads its pieces and no other elements. Collective; all ranks return the
 *  same code; on failure their contents are undefined. */
dt_err dt_stored_load(dt_comm *comm, const dt_saved_model *models, int n_models, const char *path,
                      dt_stored_locator locate, dt_phase *phase);
/** What loading would find wrong with names, shapes, values, a tied head and what a checkpoint leaves out, without a
 *  model. Reads every tensor. Local. */
dt_err dt_stored_verify(const char *path, dt_stored_locator locate, dt_stored_slot *slots, int n_slots,
                        dt_phase *phase);

/* For locators. GPT-2's tensors may lack "transformer." in files; some buffers of older models are no weights. */
const char *dt_stored_bare_name(const char *name); /* NULL: it has no prefix to leave out */
bool dt_stored_is_ignored(const char *name);
/** What a directory of CLIP, SigLIP or llava-hf has besides the tower: a text or language model, projections and
 *  pooling, and buffers. */
bool dt_stored_is_beside_tower(const char *name);
/** A tensor by the name that it has here, or else by one that other programs give it in their files. */
const dt_st_tensor *dt_stored_find(const dt_safetensors *s, const char *name);
/** Leave a prefix out of the names of a file's tensors: at the start; of one that begins with "_", as parts of
 *  models are wrapped, after any ".", too. DT_ERR_DATA: no name has it, or two become one. */
dt_err dt_stored_strip(dt_safetensors *s, const char *prefix);
/** Does the name tell of an adapter of PEFT in the model? */
bool dt_stored_is_unmerged(const char *name);
/** The name without what a vision-language model puts before its language model's. */
const char *dt_stored_of_language(const char *name);
/** The name of the head beside an embedding. */
void dt_stored_name_head(const dt_tensor *embed, char name[DT_NAME_MAX]);
/** What of a vision-language model a tensor is, by any of its names in the files of one; of another model: LANGUAGE. */
typedef enum dt_stored_section { DT_STORED_LANGUAGE, DT_STORED_TOWER, DT_STORED_PROJECTOR } dt_stored_section;
dt_stored_section dt_stored_section_of(const char *name);
char *dt_stored_shape_text(int n_dims, const int64_t *shape, char *out, size_t out_size); /* "[768, 3072]" */
dt_err dt_stored_check_shape(const char *path, const char *name, const dt_tensor *t, int n_dims, const int64_t *shape);
/** Look for the embedding that the model's vocabulary product is tied to; -1: it has a head of its own, or a scalar
 *  one. */
int32_t dt_stored_tied_embedding(const dt_stored_slot *slots, int n_slots);
/** May this parameter be missing in the file? May this tensor of the file be passed over? dt_saved_model.new_... */
bool dt_stored_may_stay(const dt_stored_slot *s);
bool dt_stored_is_replaced(const dt_stored_slot *slots, int n_slots, const char *name);
/** What a model is whose head is not the one asked for, to end a message with: name is a tensor that its files lack, or
 *  have and should not, has_score whether they have a score.weight. "" where that says nothing. */
const char *dt_stored_head_hint(const char *name, bool has_score);
dt_err dt_stored_add_file(dt_stored_map *map, const char *path);

#endif
