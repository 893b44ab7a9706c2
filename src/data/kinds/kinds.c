/* kinds.c - the list of kinds, and their batches. */
#include "kinds.h"

#define DT_KIND_ENTRY(upper, lower, help) [DT_DATASET_##upper] = &dt_kind_##lower,
static const dt_kind *const kinds[DT_N_DATASET_KINDS] = {DT_KIND_LIST(DT_KIND_ENTRY)};

const dt_kind *dt_kind_of(dt_dataset_kind kind) { return kinds[kind]; }
const char *dt_dataset_kind_name(dt_dataset_kind kind) { return kinds[kind]->name; }

const char *dt_kind_names(char text[DT_KIND_NAMES_SIZE])
{
    const char *name[DT_N_DATASET_KINDS];
    for (int k = 0; k < DT_N_DATASET_KINDS; k++) name[k] = kinds[k]->name;
    return dt_choices(text, DT_KIND_NAMES_SIZE, name, DT_N_DATASET_KINDS);
}

/* The extension of batches of a kind; NULL: none. */
static const dt_extension_form *extension_of(dt_dataset_kind kind)
{
    return kinds[kind]->samples ? kinds[kind]->samples->extension : NULL;
}

dt_err dt_kind_batch_alloc(dt_batch *b, const dt_kind_batch *most, dt_ledger *ledger)
{
    const dt_extension_form *extension = extension_of(most->kind);
    DT_TRY(dt_batch_alloc(b, most->max_tok, most->max_seq, ledger));
    if (extension) DT_TRY(dt_batch_extend(b, extension, NULL, ledger));
    return dt_batch_add_images(b, most->max_images, most->image_nbytes, ledger);
}

size_t dt_kind_batch_nbytes(const dt_kind_batch *most)
{
    return dt_batch_nbytes(most->max_tok, most->max_seq) +
           dt_extension_nbytes(extension_of(most->kind), NULL, most->max_seq) +
           dt_batch_images_nbytes(most->max_images, most->image_nbytes, most->max_seq);
}
