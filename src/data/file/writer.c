/* writer.c - samples are added one by one; each array grows in a temporary file until the commit. */
#include "writer.h"
#include "../kinds/kinds.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 }; /* tokens narrowed to uint16 at a time */

static void free_writer(dt_dataset_writer *w)
{
    for (int c = 0; c < DT_N_COLUMNS; c++) dt_temp_array_close(&w->column[c]);
    free(w->path);
    free(w->tokenizer);
    free(w->chat_template);
    free((char *)w->images.preprocessor);
    free(w);
}

static dt_err open_array(dt_dataset_writer *w, dt_column c, int elem_size)
{
    const uint64_t zero = 0;
    DT_TRY(dt_temp_array_open(&w->column[c], w->path, elem_size));
    return dt_columns[c].per == DT_PER_OFFSET ? dt_temp_array_add(&w->column[c], &zero, 1) : DT_OK;
}

/* An optional array is written only when some sample has a value in it. */
static dt_err open_arrays(dt_dataset_writer *w, bool with_weights)
{
    for (int c = 0; c < DT_N_COLUMNS; c++) {
        const dt_column_form *f = &dt_columns[c];
        const struct dt_kind_column *of = &dt_kind_of(w->kind)->column[c];
        const bool weights = c == DT_COL_WEIGHTS;
        if (!of->name || f->part == DT_IMAGES || (weights && !with_weights)) continue;
        const int size = f->types == DT_ARRAY_F32                    ? 4
                         : f->types == (DT_ARRAY_U16 | DT_ARRAY_U32) ? (w->vocab_size <= 65536 ? 2 : 4)
                                                                     : f->types;
        w->wanted[c] = weights || c == DT_COL_OFFSETS || !of->optional;
        DT_TRY(open_array(w, (dt_column)c, size));
    }
    return DT_OK;
}

dt_err dt_dataset_create(dt_dataset_writer **out, const char *path, dt_dataset_kind kind, int64_t vocab_size,
                         const char *tokenizer, bool with_weights)
{
    *out = NULL;
    DT_TRY(dt_check_replaceable(path)); /* check now, not after reading all input */
    DT_CHECK(vocab_size >= 1 && vocab_size <= INT32_MAX, DT_ERR_ARG,
             "internal: dt_dataset_create: %s: vocab_size %" PRId64 " is out of range: expected 1 to %d", path,
             vocab_size, INT32_MAX);
    dt_dataset_writer *w = calloc(1, sizeof *w);
    DT_CHECK(w, DT_ERR_MEMORY, "%s: out of memory for a writer", path);
    *w = (dt_dataset_writer){.kind = kind, .vocab_size = vocab_size, .n_own = vocab_size, .largest = -1};
    w->path = strdup(path);
    w->tokenizer = strdup(tokenizer ? tokenizer : "");
    dt_err err = w->path && w->tokenizer ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for a writer", path);
    if (err == DT_OK) err = open_arrays(w, with_weights);
    if (err != DT_OK) {
        free_writer(w);
        return err;
    }
    *out = w;
    return DT_OK;
}

dt_err dt_dataset_set_template(dt_dataset_writer *w, const char *chat_template)
{
    free(w->chat_template);
    DT_COPY_TEXT(w->chat_template, chat_template, "%s: out of memory for a chat template", w->path);
    return DT_OK;
}

dt_err dt_dataset_set_images(dt_dataset_writer *w, const dt_image_form *form)
{
    DT_CHECK(w->n_documents == 0 && !w->open_document && w->images.size == 0 &&
                 dt_kind_of(w->kind)->column[DT_COL_PIXELS].name && form->size >= 1 &&
                 form->size <= DT_MAX_IMAGE_SIZE && form->n_tokens >= 1 && form->n_tokens <= DT_MAX_IMAGE_TOKENS &&
                 form->token >= 0 && form->token < w->vocab_size,
             DT_ERR_ARG,
             "internal: dt_dataset_set_images: %s: cannot store images of %" PRId64 " pixels per side as %" PRId64
             " tokens of id %" PRId32,
             w->path, form->size, form->n_tokens, form->token);
    char *text = strdup(form->preprocessor ? form->preprocessor : "");
    DT_CHECK(text, DT_ERR_MEMORY, "%s: out of memory for the text of a preprocessor", w->path);
    w->images = *form;
    w->images.preprocessor = text;
    w->wanted[DT_COL_PIXELS] = w->wanted[DT_COL_IMAGE_OFFSETS] = true;
    w->wanted[DT_COL_GRIDS] = form->grids;
    if (form->grids) DT_TRY(open_array(w, DT_COL_GRIDS, 4));
    DT_TRY(open_array(w, DT_COL_PIXELS, (int)dt_image_form_nbytes(form)));
    return open_array(w, DT_COL_IMAGE_OFFSETS, 8);
}

dt_err dt_dataset_add_images(dt_dataset_writer *w, const uint8_t *pixels, const uint32_t *grid, int64_t n)
{
    DT_CHECK(w->images.size || n == 0, DT_ERR_ARG, "internal: dt_dataset_add_images: %s: the dataset has no images",
             w->path);
    if (n == 0) return DT_OK;
    w->open_document = true;
    if (w->images.grids) DT_TRY(dt_temp_array_add(&w->column[DT_COL_GRIDS], grid, n));
    return dt_temp_array_add(&w->column[DT_COL_PIXELS], pixels, n);
}

/* Add ids as uint16, one buffer at a time. */
static dt_err add_narrow(dt_temp_array *s, const int32_t *ids, int64_t n)
{
    uint16_t chunk[CHUNK];
    for (int64_t first = 0; first < n; first += CHUNK) {
        const int64_t k = n - first < CHUNK ? n - first : CHUNK;
        for (int64_t i = 0; i < k; i++) chunk[i] = (uint16_t)ids[first + i];
        DT_TRY(dt_temp_array_add(s, chunk, k));
    }
    return DT_OK;
}

static dt_err add_ids(dt_dataset_writer *w, dt_column c, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        DT_CHECK(ids[i] >= 0 && ids[i] < w->vocab_size, DT_ERR_ARG,
                 "internal: add_ids: %s: token id %" PRId32 " is out of range: expected 0 to %" PRId64, w->path, ids[i],
                 w->vocab_size - 1);
        if (ids[i] > w->largest) w->largest = ids[i];
    }
    dt_temp_array *s = &w->column[c];
    w->open_document = true;
    return s->elem_size == 2 ? add_narrow(s, ids, n) : dt_temp_array_add(s, ids, n);
}

void dt_dataset_set_own(dt_dataset_writer *w, int64_t n_own) { w->n_own = dt_min_i64(n_own, w->vocab_size); }

dt_err dt_dataset_add(dt_dataset_writer *w, const int32_t *ids, const uint8_t *mask, int64_t n)
{
    DT_CHECK((mask != NULL) == (w->column[DT_COL_MASK].path != NULL) || n == 0, DT_ERR_ARG,
             "internal: dt_dataset_add: %s: kind %s cannot have %s loss mask", w->path, dt_dataset_kind_name(w->kind),
             mask ? "a" : "no");
    DT_TRY(add_ids(w, DT_COL_TOKENS, ids, n));
    return mask ? dt_temp_array_add(&w->column[DT_COL_MASK], mask, n) : DT_OK;
}

dt_err dt_dataset_add_side(dt_dataset_writer *w, dt_side side, const int32_t *ids, int64_t n)
{
    const dt_column c = dt_part_elements((int)side);
    DT_CHECK(w->column[c].path && !w->column[DT_COL_MASK].path, DT_ERR_ARG,
             "internal: dt_dataset_add_side: %s: kind %s has only one side", w->path, dt_dataset_kind_name(w->kind));
    if (side == DT_SIDE_SECOND) w->wanted[c] = w->wanted[DT_COL_SECOND_OFFSETS] = true;
    return add_ids(w, c, ids, n);
}

dt_err dt_dataset_add_record(dt_dataset_writer *w, const char *json, size_t nbytes)
{
    DT_CHECK(w->column[DT_COL_RECORDS].path, DT_ERR_ARG, "internal: dt_dataset_add_record: %s: kind %s has no records",
             w->path, dt_dataset_kind_name(w->kind));
    w->wanted[DT_COL_RECORDS] = w->wanted[DT_COL_RECORD_OFFSETS] = true;
    w->open_document = true;
    return dt_temp_array_add(&w->column[DT_COL_RECORDS], json, (int64_t)nbytes);
}

static dt_err end_part(dt_dataset_writer *w, int part)
{
    const uint64_t end = (uint64_t)w->column[dt_part_elements(part)].n_elems;
    dt_temp_array *offsets = &w->column[dt_part_offsets(part)];
    return offsets->path ? dt_temp_array_add(offsets, &end, 1) : DT_OK;
}

dt_err dt_dataset_end_document(dt_dataset_writer *w, float weight)
{
    w->open_document = false;
    w->n_documents++;
    for (int part = 0; part < DT_N_DATA_PARTS; part++) DT_TRY(end_part(w, part));
    return w->column[DT_COL_WEIGHTS].path ? dt_temp_array_add(&w->column[DT_COL_WEIGHTS], &weight, 1) : DT_OK;
}

/* Add the sample's element to a column, if the kind has it. */
static dt_err add_value(dt_dataset_writer *w, int c, const void *value)
{
    return w->column[c].path ? dt_temp_array_add(&w->column[c], value, 1) : DT_OK;
}

dt_err dt_dataset_end_pair(dt_dataset_writer *w, const dt_pair *pair)
{
    DT_CHECK(dt_kind_of(w->kind)->answers, DT_ERR_ARG, "internal: dt_dataset_end_pair: %s: kind %s has no pairs",
             w->path, dt_dataset_kind_name(w->kind));
    const uint8_t flag = pair->flag, marks = pair->tie ? 0
                                                       : (uint8_t)((pair->equal ? DT_MARK_EQUAL : 0) |
                                                                   (pair->contradicted ? DT_MARK_CONTRADICTED : 0));
    w->wanted[DT_COL_MARGINS] |= pair->margin != 0;
    w->wanted[DT_COL_FLAGS] |= pair->flag;
    if (pair->safety[0] || pair->safety[1]) w->wanted[DT_COL_SAFETY] = w->wanted[DT_COL_SECOND_SAFETY] = true;
    for (int s = 0; s < DT_N_SIDES; s++) {
        const uint8_t safety = (uint8_t)pair->safety[s];
        DT_TRY(add_value(w, DT_COL_PROMPT + s, &pair->prompt_length[s]));
        DT_TRY(add_value(w, DT_COL_SAFETY + s, &safety));
    }
    DT_TRY(add_value(w, DT_COL_FLAGS, &flag));
    DT_TRY(add_value(w, DT_COL_PAIR_MARKS, &marks));
    DT_TRY(add_value(w, DT_COL_MARGINS, &pair->margin));
    return dt_dataset_end_document(w, 1);
}

void dt_dataset_discard(dt_dataset_writer *w)
{
    if (w) free_writer(w);
}
