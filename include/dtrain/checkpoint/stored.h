/* stored.h - reading tensors from files of any format: which tensors a rank needs, where each is stored, and how all
 * ranks read them. A format provides a locator: this header has that of safetensors files, checkpoint.h that of
 * checkpoints, and src/pretrained that of adapters.
 *
 * Only for these modules; all others load through checkpoint.h and pretrained.h. Functions are Local unless marked
 * Collective. */
#ifndef DTRAIN_STORED_H
#define DTRAIN_STORED_H

#include <string.h>
#include "dtrain/io/safetensors.h"
#include "dtrain/zero/zero.h"

/* bytes per transfer: fits near the second-level cache, far above a disk's optimal size */
enum { DT_STORED_BUFFER = 8 << 20 };

/** Buffers for reading and writing tensors. A run allocates them once and lends them in comm->chunks; otherwise each
 *  load, save or export allocates its own. One user at a time. */
typedef struct dt_chunks {
    char *raw, *converted; /* DT_STORED_BUFFER bytes each */
    dt_buf memory;
    bool taken;
} dt_chunks;
enum { DT_CHUNKS_NBYTES = 2 * DT_STORED_BUFFER };

/** Add what dt_chunks_open allocates to a plan: host memory, DT_MEM_STAGING. */
void dt_chunks_plan(dt_memory *memory);
/** Allocate the buffers. DT_ERR_MEMORY. */
dt_err dt_chunks_open(dt_chunks *c, dt_device *dev);
/** Free the buffers. Safe on {0}. */
void dt_chunks_close(dt_chunks *c);
/** Borrow comm->chunks, or allocate new ones on comm's device. chunks: out, returned with dt_chunks_give_back.
 *  DT_ERR_ARG: they are in use. DT_ERR_MEMORY. */
dt_err dt_chunks_take(dt_chunks **chunks, const dt_comm *comm);
/** Return or free them. Safe on NULL. */
void dt_chunks_give_back(dt_chunks *chunks, const dt_comm *comm);

/** Frozen parameters that a checkpoint omits (checkpoint.save = trainable), because another model contains them. {0}:
 *  none. */
typedef struct dt_base {
    char *path; /* full path of that model: a Hugging Face directory, or a checkpoint; malloc'ed */
    struct dt_base_tensor {
        char name[DT_NAME_MAX];
        uint64_t checksum; /* of its elements in that model */
    } * tensors;
    int n;
} dt_base;
/** Free the list. Safe on {0}. */
void dt_base_free(dt_base *b);
/** Append a tensor; name is copied. DT_ERR_MEMORY. */
dt_err dt_base_add(dt_base *b, const char *name, uint64_t checksum);
/** The tensor of this name; NULL: it is not omitted. */
const struct dt_base_tensor *dt_base_find(const dt_base *b, const char *name);

/** A vision-language model that is read from separate files: the given directory contains the language model. */
typedef struct dt_stored_parts {
    const char *tower;     /* directory of CLIP or SigLIP; NULL: the given directory contains it */
    const char *projector; /* a safetensors file, or a directory; NULL: the same */
    const char *prefix;    /* removed from tensor names in the given directory (dt_stored_strip); NULL: nothing */
    bool new_projector;    /* no file contains a projector: keep its values */
} dt_stored_parts;

/** A model that is saved or loaded together with others. */
typedef struct dt_saved_model {
    const char *name;     /* in checkpoints; NULL: the run's own model */
    dt_zero *zero;        /* NULL if only names and shapes of units are needed */
    const dt_unit *units; /* [n_units] */
    int n_units;
    bool with_states; /* with the optimizer's states */
    /* loading: keep score.weight if the file lacks it, and ignore a vocabulary's head in the file */
    bool new_score;
    bool new_adapters;    /* loading: keep adapters (unit.h) that the file lacks */
    bool new_head;        /* loading: the vocabulary's head starts as the embedding if the file lacks it */
    bool adapters_follow; /* loading: another file contains the adapters, so do not report them as new */
    /* loading: frozen parameters have their values already, and a file with other values is refused; this text, what
     * to do then, ends the message. NULL: they are read like the others */
    const char *keeps_frozen;
    bool keeps_nonfinite;  /* loading: warn of NaN and Inf, and keep them; false: refuse them */
    int64_t state_updates; /* saving: number of updates of the states */
    /* saving: frozen parameters to omit, and the model that contains them; NULL: none. Loading: receives the checksums
     * of frozen parameters; its path, if set, is where parameters that a checkpoint omits are read */
    dt_base *base;
    bool has_base;                /* loading: parameters that a checkpoint omits have their values already */
    const dt_stored_parts *parts; /* loading from directories; NULL: one contains everything */
} dt_saved_model;

/** A state of a tensor that a file should contain. The list is the same on all ranks, in file order. */
typedef struct dt_stored_slot {
    const dt_saved_model *of;
    dt_state state;
    const char *state_name; /* the optimizer's name; NULL for parameters */
    const dt_slice *slice;  /* the range that this rank is in charge of; NULL without zero */
    const dt_slice *owned;  /* the range that it owns, and so reads; NULL without zero */
    const dt_unit *unit;
    const dt_tensor *tensor; /* the whole tensor */
    const dt_tensor *held;   /* what this rank has of it: slices count its elements */
} dt_stored_slot;

/** Make the slots of all models, which are borrowed: parameters, and optimizer states if with_states. slots: out,
 *  malloc'ed. DT_ERR_MEMORY. */
dt_err dt_stored_slots(const dt_saved_model *models, int n_models, dt_stored_slot **slots, int *n_slots);

/** The slot as a file of plain weights stores it: for codes, blocks and scales the weight that they represent, else the
 *  slot itself. tensor: storage for the result, the caller's. */
dt_stored_slot dt_stored_plain(const dt_stored_slot *s, dt_tensor *tensor);

/** A tensor [..., n_rows, n_cols] of codes in a file, with one scale for each block of a matrix. Blocks at the ends of
 *  rows and columns may be smaller. PLAIN: values without scales, in transposed matrices. INT8, NF4, FP4: those of
 *  bitsandbytes. PAIRS: scales of groups of nf4, as nf4.h stores them. decode_packed.c */
typedef enum dt_packed_form {
    DT_PACKED_NOT,
    DT_PACKED_PLAIN,
    DT_PACKED_MXFP4,
    DT_PACKED_FP8,
    DT_PACKED_INT8,
    DT_PACKED_NF4,
    DT_PACKED_FP4,
    DT_PACKED_PAIRS
} dt_packed_form;
enum { DT_PACKED_MAP = 256 }; /* values of a map of double quantisation */
typedef struct dt_packed {
    int64_t first; /* element of this tensor with which the slot's tensor begins; PAIRS: the block */
    /* block_rows 0: a block is block_cols consecutive elements of the tensor, of one row or several */
    int64_t n_rows, n_cols, block_rows, block_cols;
    int64_t scales;                   /* offset of all scales, in bytes */
    int32_t form, bits;               /* dt_packed_form; bits of a code */
    int32_t scales_file, scales_type; /* index in dt_stored_map, dt_st_type */
    int32_t turned;                   /* the slot's tensor is the transpose */
    /* double quantisation: a scale is map[code] * scale of its group + mean. group: scales that share one; 0: scales
     * are values. group_scales, map: offsets of F32 values, in bytes */
    int64_t group, group_scales, map;
    int32_t group_file, map_file, is_nf4_map; /* is_nf4_map: the map has the values of nf4.h */
    int32_t finer;                            /* of PAIRS */
    float mean;
} dt_packed;

/** Location of a slot's elements. Rank 0 sends it to the other ranks as bytes. */
typedef struct dt_stored_location {
    int64_t offset; /* bytes; -1: not contiguous, read through HDF5 */
    uint64_t checksum;
    int32_t type; /* dt_st_type */
    int32_t has_checksum;
    int32_t file;      /* index in dt_stored_map */
    int32_t absent;    /* a state of a tensor that was frozen when the file was written: zero */
    int32_t kept;      /* dt_saved_model.new_...: not in the file, keep its value */
    int32_t quantise;  /* of codes, blocks or scales: the file contains the plain weight (dt_stored_plain) */
    int32_t elsewhere; /* it has its value already: the files contain part of the model */
    /* of a matrix [n out, r]: the file has [out, r n], with column j n + e that of matrix e and column j; 0: not */
    int32_t n_alternating;
    int32_t left_out;    /* dt_base: it is in another model's file */
    int32_t as_slot;     /* 1 + index of the slot whose tensor in the file this one starts as (new_head); 0: its own */
    dt_packed packed;    /* `type` is that of the decoded values */
    int64_t run, stride; /* as in dt_fused */
} dt_stored_location;

/** Locations of all slots of a list. */
typedef struct dt_stored_map {
    dt_stored_location *locations; /* [n_slots], the caller's */
    char *files;                   /* malloc'ed: consecutive 0-terminated paths */
    size_t files_len;
    int32_t embed;    /* slot of the embedding to which a head may be tied; -1: none */
    int32_t has_head; /* the file contains lm_head.weight, although the model is tied */
    dt_stored_location head;
} dt_stored_map;
#define DT_STORED_HEAD "lm_head.weight"
#define DT_STORED_SCORE "score.weight"
/** Is it the weight or the bias of a scalar head? */
static inline bool dt_stored_is_score(const char *name) { return strncmp(name, "score.", 6) == 0; }

/** Locate every slot's tensor, and check that the file contains no other tensors. map: out. Local. DT_ERR_DATA naming
 *  file and tensor. */
typedef dt_err (*dt_stored_locator)(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);
/** Locator of the safetensors files of a directory. */
dt_err dt_stored_locate_directory(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

/** Load all models: rank 0 locates the tensors, and every rank reads only its slices. Collective, agreed. On error the
 *  models' contents are undefined. Errors as dt_checkpoint_load_all. */
dt_err dt_stored_load(dt_comm *comm, const dt_saved_model *models, int n_models, const char *path,
                      dt_stored_locator locate, dt_phase *phase);
/** Check names, shapes, values, a tied head and omitted parameters as loading would, without a model. Reads every
 *  tensor. DT_ERR_DATA, DT_ERR_BASE. */
dt_err dt_stored_verify(const char *path, dt_stored_locator locate, dt_stored_slot *slots, int n_slots,
                        dt_phase *phase);

/** The name without "transformer."; NULL: it does not begin with that. */
const char *dt_stored_bare_name(const char *name);
/** Is it of SigLIP's attention pooling, which no supported model uses? */
bool dt_stored_is_pooling(const char *name);
/** Is it a buffer that is not a weight? */
bool dt_stored_is_ignored(const char *name);
/** Is it a tensor of DT_EXACT, by its name? It is float in files of every type. */
bool dt_stored_is_exact(const char *name);
/** Does it belong to the vision tower or the multi-token prediction of a multimodal model of which dtrain reads the
 *  text model only? Such tensors are ignored. */
bool dt_stored_is_not_text(const char *name);
/** Is it a tensor of CLIP, SigLIP or llava-hf outside of the tower: a text or language model, projection, pooling, or a
 *  buffer? */
bool dt_stored_is_outside_tower(const char *name);
/** Find a tensor by dtrain's name, or by a name that other programs use for it. */
const dt_st_tensor *dt_stored_find(const dt_safetensors *s, const char *name);
/** Remove a prefix from the names of a file's tensors: at the start; if it begins with "_", as for wrapped modules,
 *  also after any ".". DT_ERR_DATA: no name has it, or two names become equal. */
dt_err dt_stored_strip(dt_safetensors *s, const char *prefix);
/** Is it the name of a PEFT adapter inside a model? */
bool dt_stored_is_unmerged(const char *name);
/** The name without a vision-language model's prefix of its language model. */
const char *dt_stored_of_language(const char *name);
/** Is a tensor one of codes of bitsandbytes, or does it belong to one? */
bool dt_stored_is_bitsandbytes(const dt_safetensors *s, const char *name);
/** Has a tensor codes of 8 bits, and is it one with the scales of such a tensor? */
bool dt_stored_is_fp8(const dt_st_tensor *t);
bool dt_stored_is_scale(const dt_safetensors *s, const char *name);
/** The scales of an FP8 tensor; NULL: there are none. */
const dt_st_tensor *dt_stored_find_scales(const dt_safetensors *s, const dt_st_tensor *codes);
/** The name of the head that belongs to an embedding. */
void dt_stored_name_head(const dt_tensor *embed, char name[DT_NAME_MAX]);
/** The part of a vision-language model that a tensor belongs to, by any of its names in files; LANGUAGE for other
 *  models. */
typedef enum dt_stored_section { DT_STORED_LANGUAGE, DT_STORED_TOWER, DT_STORED_PROJECTOR } dt_stored_section;
dt_stored_section dt_stored_section_of(const char *name);
/** "[768, 3072]". Returns out. */
char *dt_stored_shape_text(int n_dims, const int64_t *shape, char *out, size_t out_size);
/** DT_ERR_DATA naming file and tensor: the shape is not the tensor's. */
dt_err dt_stored_check_shape(const char *path, const char *name, const dt_tensor *t, int n_dims, const int64_t *shape);
/** Slot of the embedding to which the model's head is tied; -1: the model has its own or a scalar head. */
int32_t dt_stored_tied_embedding(const dt_stored_slot *slots, int n_slots);
/** May this parameter be missing in the file? May this tensor of the file be ignored? See dt_saved_model.new_... */
bool dt_stored_may_stay(const dt_stored_slot *s);
bool dt_stored_is_replaced(const dt_stored_slot *slots, int n_slots, const char *name);
/** Explanation to end a message with, if a model has another head than requested; "" otherwise. name: a tensor that is
 *  missing or unexpected; has_score: the files contain score.weight. */
const char *dt_stored_head_hint(const char *name, bool has_score);
/** Append a file to the map. DT_ERR_MEMORY. */
dt_err dt_stored_add_file(dt_stored_map *map, const char *path);
/** Number of files of the map. */
int dt_stored_n_files(const dt_stored_map *map);

#endif
