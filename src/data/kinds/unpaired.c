/* unpaired.c - kind unpaired: a prompt, an answer, and whether the answer is good. For KTO. */
#include "kinds.h"
#include <inttypes.h>

static dt_err print_answers(dt_dataset *d)
{
    int64_t n_prompt = 0, n_good = 0;
    for (int64_t i = 0; i < d->info.n_documents; i++) {
        dt_pair answer;
        DT_TRY(dt_dataset_read_pair(d, i, &answer));
        n_prompt += answer.prompt_length[0];
        n_good += answer.good;
    }
    printf("prompts      %" PRId64 " tokens\nlabels       %" PRId64 " good, %" PRId64 " bad\n", n_prompt, n_good,
           d->info.n_documents - n_good);
    return DT_OK;
}

static dt_err show_answer(const dt_view *v, int64_t i)
{
    int64_t first, n;
    dt_pair answer;
    DT_TRY(dt_dataset_read_pair(v->d, i, &answer));
    DT_TRY(dt_dataset_document(v->d, i, &first, &n));
    printf("label %s\n", answer.good ? "true" : "false");
    return dt_print_side(v, DT_SIDE_FIRST, first, n, answer.prompt_length[0]);
}

const dt_kind dt_kind_unpaired = {.name = "unpaired",
                                  .wanted = "unpaired (records with prompt, completion and label)",
                                  .noun = "sample",
                                  .marks = ", completions",
                                  .side = {"", ""},
                                  .column = {[DT_COL_TOKENS] = {"tokens"},
                                             [DT_COL_OFFSETS] = {"offsets"},
                                             [DT_COL_PROMPT] = {"prompt_length"},
                                             [DT_COL_FLAGS] = {"labels"},
                                             [DT_COL_PIXELS] = {"images/pixels", true},
                                             [DT_COL_IMAGE_OFFSETS] = {"images/offsets", true},
                                             [DT_COL_GRIDS] = {"images/grids", true}},
                                  .samples = &dt_samples_answers,
                                  .n_sequences = 1,
                                  .answers = true,
                                  .print_info = print_answers,
                                  .show = show_answer};
