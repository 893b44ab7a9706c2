/* columns.c - the arrays of a dataset file, for the code that reads and the code that writes it. */
#include "dataset_file.h"

enum {
    OF_TOKENS = 1 << DT_DATASET_TOKENS,
    OF_SFT = 1 << DT_DATASET_SFT,
    OF_PAIRS = 1 << DT_DATASET_PREFERENCE,
    OF_PROMPTS = 1 << DT_DATASET_PROMPTS,
    OF_ALL = OF_TOKENS | OF_SFT | OF_PAIRS | OF_PROMPTS,
    IDS = DT_ARRAY_U16 | DT_ARRAY_U32
};

const dt_column_form dt_columns[DT_N_COLUMNS] = {
    [DT_COL_TOKENS] = {"tokens", "chosen/tokens", DT_PER_TOKEN, DT_SIDE_FIRST, IDS, OF_ALL, 0},
    [DT_COL_OFFSETS] = {"offsets", "chosen/offsets", DT_PER_OFFSET, DT_SIDE_FIRST, DT_ARRAY_U64, OF_ALL, OF_TOKENS},
    [DT_COL_MASK] = {"loss_mask", NULL, DT_PER_TOKEN, DT_SIDE_FIRST, DT_ARRAY_U8, OF_SFT, 0},
    [DT_COL_WEIGHTS] = {"weights", NULL, DT_PER_SAMPLE, DT_SIDE_FIRST, DT_ARRAY_F32, OF_SFT, OF_SFT},
    [DT_COL_SECOND_TOKENS] = {"answers/tokens", "rejected/tokens", DT_PER_TOKEN, DT_SIDE_SECOND, IDS,
                              OF_PAIRS | OF_PROMPTS, OF_PROMPTS},
    [DT_COL_SECOND_OFFSETS] = {"answers/offsets", "rejected/offsets", DT_PER_OFFSET, DT_SIDE_SECOND, DT_ARRAY_U64,
                               OF_PAIRS | OF_PROMPTS, OF_PROMPTS},
    [DT_COL_PROMPT] = {NULL, "chosen/prompt_length", DT_PER_SAMPLE, DT_SIDE_FIRST, DT_ARRAY_U32, OF_PAIRS, 0},
    [DT_COL_SECOND_PROMPT] = {NULL, "rejected/prompt_length", DT_PER_SAMPLE, DT_SIDE_SECOND, DT_ARRAY_U32, OF_PAIRS, 0},
    [DT_COL_MARGINS] = {NULL, "margins", DT_PER_SAMPLE, DT_SIDE_FIRST, DT_ARRAY_F32, OF_PAIRS, OF_PAIRS},
    [DT_COL_SAFETY] = {NULL, "chosen/safety", DT_PER_SAMPLE, DT_SIDE_FIRST, DT_ARRAY_U8, OF_PAIRS, OF_PAIRS},
    [DT_COL_SECOND_SAFETY] = {NULL, "rejected/safety", DT_PER_SAMPLE, DT_SIDE_SECOND, DT_ARRAY_U8, OF_PAIRS, OF_PAIRS},
    [DT_COL_TIES] = {NULL, "ties", DT_PER_SAMPLE, DT_SIDE_FIRST, DT_ARRAY_U8, OF_PAIRS, OF_PAIRS},
    [DT_COL_RECORDS] = {"records/bytes", NULL, DT_PER_TOKEN, DT_RECORDS, DT_ARRAY_U8, OF_PROMPTS, OF_PROMPTS},
    [DT_COL_RECORD_OFFSETS] = {"records/offsets", NULL, DT_PER_OFFSET, DT_RECORDS, DT_ARRAY_U64, OF_PROMPTS,
                               OF_PROMPTS},
    [DT_COL_PIXELS] = {"images/pixels", "images/pixels", DT_PER_TOKEN, DT_IMAGES, DT_ARRAY_IMAGES, OF_ALL, OF_ALL},
    [DT_COL_IMAGE_OFFSETS] = {"images/offsets", "images/offsets", DT_PER_OFFSET, DT_IMAGES, DT_ARRAY_U64, OF_ALL,
                              OF_ALL},
    [DT_COL_PAIR_MARKS] = {NULL, NULL, DT_PER_SAMPLE, DT_SIDE_FIRST, DT_ARRAY_U8, OF_PAIRS, OF_PAIRS}};
