/* tokens.c - kind tokens: a stream of documents, which may be cut anywhere. For pre-training. */
#include "kinds.h"

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
