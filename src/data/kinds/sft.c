/* sft.c - kind sft: a text, and which of its tokens are targets. For fine-tuning. */
#include "kinds.h"
#include <inttypes.h>

static dt_err print_targets(dt_dataset *d)
{
    const int64_t n = d->info.n_tokens;
    int64_t n_target;
    DT_TRY(dt_count_mask(d, &n_target));
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
                                        [DT_COL_IMAGE_OFFSETS] = {"images/offsets", true},
                                        [DT_COL_GRIDS] = {"images/grids", true}},
                             .print_info = print_targets};
