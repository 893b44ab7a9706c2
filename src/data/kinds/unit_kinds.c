/* unit_kinds.c - kinds labels and texts: words with labels or texts of a group, as units of a sample
 * (samples_units.c). For classifiers and embeddings. */
#include "kinds.h"
#include <inttypes.h>

static dt_err print_units(dt_dataset *d)
{
    int64_t n_units;
    DT_TRY(dt_count_mask(d, &n_units));
    if (d->info.kind == DT_DATASET_TEXTS)
        printf("texts        %" PRId64 "\n", n_units + d->info.n_documents);
    else
        printf("words        %" PRId64 "\n", n_units);
    return DT_OK;
}

static dt_err show_units(const dt_view *v, int64_t i)
{
    int64_t first, n;
    if (v->d->info.has_records) DT_TRY(dt_print_record(v, i));
    DT_TRY(dt_dataset_document(v->d, i, &first, &n));
    return dt_print_side(v, DT_SIDE_FIRST, first, n, -1);
}

#define COLUMNS(starts)                                                                                                \
    {                                                                                                                  \
        [DT_COL_TOKENS] = {"tokens"}, [DT_COL_OFFSETS] = {"offsets"}, [DT_COL_MASK] = {starts},                        \
        [DT_COL_RECORDS] = {"records/bytes", true}, [DT_COL_RECORD_OFFSETS] = {                                        \
            "records/offsets",                                                                                         \
            true                                                                                                       \
        }                                                                                                              \
    }

const dt_kind dt_kind_labels = {.name = "labels",
                                .wanted = "labels (create it with dtrain-data --kind labels)",
                                .noun = "sample",
                                .marks = ", first tokens of words",
                                .side = {"", ""},
                                .column = COLUMNS("word_starts"),
                                .samples = &dt_samples_units,
                                .n_sequences = 1,
                                .print_info = print_units,
                                .show = show_units};

const dt_kind dt_kind_texts = {.name = "texts",
                               .wanted = "texts (create it with dtrain-data --kind texts)",
                               .noun = "sample",
                               .marks = ", first tokens of texts",
                               .side = {"", ""},
                               .column = COLUMNS("text_starts"),
                               .samples = &dt_samples_units,
                               .n_sequences = 1,
                               .print_info = print_units,
                               .show = show_units};
