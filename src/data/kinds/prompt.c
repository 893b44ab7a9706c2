/* prompt.c - kind prompts: a prompt, optionally its answer, and the other fields of its record for reward functions. */
#include "kinds.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>

static dt_err print_prompts(dt_dataset *d)
{
    printf("answers      %s\nrecords      %s\n", dt_yes(d->info.has_answers), dt_yes(d->info.has_records));
    return DT_OK;
}

static dt_err show_prompt(const dt_view *v, int64_t i)
{
    int64_t first, n;
    DT_TRY(dt_dataset_document(v->d, i, &first, &n));
    DT_TRY(dt_print_side(v, DT_SIDE_FIRST, first, n, -1));
    if (v->d->info.has_answers) {
        DT_TRY(dt_dataset_part(v->d, DT_SIDE_SECOND, i, &first, &n));
        printf("---- answer: %" PRId64 " token%s\n", n, dt_plural(n));
        DT_TRY(dt_print_side(v, DT_SIDE_SECOND, first, n, -1));
    }
    if (!v->d->info.has_records) return DT_OK;
    printf("---- record\n");
    return dt_print_record(v, i);
}

const dt_kind dt_kind_prompts = {.name = "prompts",
                                 .wanted = "prompts (create it with dtrain-data --kind prompts)",
                                 .noun = "sample",
                                 .marks = "",
                                 .side = {"", "answer"},
                                 .column = {[DT_COL_TOKENS] = {"tokens"},
                                            [DT_COL_OFFSETS] = {"offsets"},
                                            [DT_COL_SECOND_TOKENS] = {"answers/tokens", true},
                                            [DT_COL_SECOND_OFFSETS] = {"answers/offsets", true},
                                            [DT_COL_RECORDS] = {"records/bytes", true},
                                            [DT_COL_RECORD_OFFSETS] = {"records/offsets", true},
                                            [DT_COL_PIXELS] = {"images/pixels", true},
                                            [DT_COL_IMAGE_OFFSETS] = {"images/offsets", true},
                                            [DT_COL_GRIDS] = {"images/grids", true}},
                                 .samples = &dt_samples_prompts,
                                 .print_info = print_prompts,
                                 .show = show_prompt};
