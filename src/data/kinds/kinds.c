/* kinds.c - the list of kinds, and those of plain texts. */
#include "kinds.h"
#include <inttypes.h>
#include <string.h>

#define DT_KIND_ENTRY(upper, lower) [DT_DATASET_##upper] = &dt_kind_##lower,
static const dt_kind *const kinds[DT_N_DATASET_KINDS] = {DT_KIND_LIST(DT_KIND_ENTRY)};

const dt_kind *dt_kind_of(dt_dataset_kind kind) { return kinds[kind]; }
const char *dt_dataset_kind_name(dt_dataset_kind kind) { return kinds[kind]->name; }

const char *dt_kind_names(char text[DT_KIND_NAMES_SIZE])
{
    const char *name[DT_N_DATASET_KINDS];
    for (int k = 0; k < DT_N_DATASET_KINDS; k++) name[k] = kinds[k]->name;
    return dt_choices(text, DT_KIND_NAMES_SIZE, name, DT_N_DATASET_KINDS);
}

/* What the samples of a kind add to batches; NULL: nothing. */
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

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static dt_err refuse_images(dt_dataset *d, hid_t file)
{
    DT_CHECK(H5Lexists(file, "images", H5P_DEFAULT) <= 0, DT_ERR_DATA,
             "%s: images need kind sft, which does not cut samples; found kind tokens", d->path);
    return DT_OK;
}

const dt_kind dt_kind_tokens = {.name = "tokens",
                                .wanted = "tokens or sft",
                                .noun = "document",
                                .marks = "",
                                .side = {"", ""},
                                .column = {[DT_COL_TOKENS] = {"tokens"}, [DT_COL_OFFSETS] = {"offsets", true}},
                                .read_head = refuse_images};

static dt_err print_targets(dt_dataset *d)
{
    uint8_t chunk[1 << 16];
    const int64_t n = d->info.n_tokens;
    int64_t n_target = 0;
    for (int64_t first = 0; first < n; first += (int64_t)sizeof chunk) {
        const int64_t k = n - first < (int64_t)sizeof chunk ? n - first : (int64_t)sizeof chunk;
        DT_TRY(dt_dataset_read_mask(d, first, k, chunk));
        for (int64_t i = 0; i < k; i++) n_target += chunk[i];
    }
    printf("targets      %" PRId64 " (%.1f %% of the tokens)\nweights      %s\n", n_target,
           n ? 100.0 * (double)n_target / (double)n : 0.0, dt_yes(d->info.has_weights));
    return DT_OK;
}

const dt_kind dt_kind_sft = {.name = "sft",
                             .wanted = "tokens or sft",
                             .noun = "sample",
                             .marks = ", targets",
                             .side = {"", ""},
                             .column = {[DT_COL_TOKENS] = {"tokens"},
                                        [DT_COL_OFFSETS] = {"offsets"},
                                        [DT_COL_MASK] = {"loss_mask"},
                                        [DT_COL_WEIGHTS] = {"weights", true},
                                        [DT_COL_PIXELS] = {"images/pixels", true},
                                        [DT_COL_IMAGE_OFFSETS] = {"images/offsets", true}},
                             .print_info = print_targets};
