/* open_dataset.c - opens a dataset file with open(2), to read arrays with pread, and with HDF5, to locate them.
 * If every array is contiguous, the HDF5 handle is closed again. A training run then holds one descriptor
 * per file and never takes HDF5's lock. */
#include "dataset_file.h"
#include "blocks.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORMAT_VERSION = 1 };

static const char *const kind_names[DT_N_DATASET_KINDS] = {"tokens", "sft", "preference", "prompts"};
const char *dt_dataset_kind_name(dt_dataset_kind kind) { return kind_names[kind]; }

void dt_dataset_arrays(const dt_dataset *d, const dt_array *all[DT_N_ARRAYS])
{
    const dt_array *list[DT_N_ARRAYS] = {
        &d->tokens,        &d->offsets,        &d->loss_mask,        &d->weights,
        &d->second_tokens, &d->second_offsets, &d->prompt_length[0], &d->prompt_length[1],
        &d->margins,       &d->safety[0],      &d->safety[1],        &d->ties,
        &d->records,       &d->record_offsets, &d->pixels,           &d->image_offsets};
    memcpy(all, list, sizeof list);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Text and JSON have no zero byte at the beginning; an HDF5 file has one within nine bytes. */
static dt_err refuse_text(const dt_dataset *d)
{
    char head[256];
    DT_TRY(dt_refuse_stand_in_file(d->path, d->fd));
    const ssize_t n = pread(d->fd, head, sizeof head, 0);
    DT_CHECK(n <= 0 || memchr(head, 0, (size_t)n), DT_ERR_DATA,
             "%s: expected a dataset, found text; convert it with `dtrain-data -o train.h5 %s` (add --tokenizer MODEL "
             "for a model's tokens)",
             d->path, d->path);
    return DT_OK;
}

static dt_err open_plain(dt_dataset *d)
{
    d->fd = open(d->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    DT_CHECK_ERRNO(d->fd >= 0, DT_ERR_DATA, d->path, "cannot open dataset");
    struct stat st;
    DT_CHECK_ERRNO(fstat(d->fd, &st) == 0, DT_ERR_DATA, d->path, NULL);
    DT_CHECK(S_ISREG(st.st_mode), DT_ERR_DATA, "%s: expected a dataset file, found a %s", d->path,
             S_ISDIR(st.st_mode) ? "folder" : "special file");
    DT_CHECK(st.st_size > 0, DT_ERR_DATA, "%s: the file is empty", d->path);
    d->file_nbytes = (int64_t)st.st_size;
    return refuse_text(d);
}

static dt_err read_kind(dt_dataset *d)
{
    char *text = NULL;
    DT_TRY(dt_h5_read_text(d->file, d->path, "kind", &text));
    int k = 0;
    while (k < DT_N_DATASET_KINDS && strcmp(text, kind_names[k]) != 0) k++;
    dt_err err = DT_OK;
    if (k == DT_N_DATASET_KINDS)
        err = dt_fail(DT_ERR_DATA, "%s: attribute kind: expected tokens, sft, preference or prompts, found \"%s\"",
                      d->path, text);
    else
        d->info.kind = (dt_dataset_kind)k;
    free(text);
    return err;
}

static dt_err read_attributes(dt_dataset *d)
{
    char *format = NULL;
    DT_CHECK(dt_h5_has(d->file, "format"), DT_ERR_DATA,
             "%s: attribute format is missing, so this is not a dataset of dtrain; create one with dtrain-data",
             d->path);
    DT_TRY(dt_h5_read_text(d->file, d->path, "format", &format));
    dt_err err = DT_OK;
    if (strcmp(format, "dtrain-dataset") != 0)
        err = dt_fail(DT_ERR_DATA, "%s: attribute format: expected \"dtrain-dataset\", found \"%s\"", d->path, format);
    free(format);
    if (err != DT_OK) return err;

    int64_t version = 0;
    DT_TRY(dt_h5_read_i64(d->file, d->path, "version", &version));
    DT_CHECK(version == FORMAT_VERSION, DT_ERR_DATA, "%s: attribute version: expected %d, found %" PRId64 "%s", d->path,
             FORMAT_VERSION, version, version > FORMAT_VERSION ? " (written by a later dtrain)" : "");
    DT_TRY(read_kind(d));
    DT_TRY(dt_h5_read_i64(d->file, d->path, "vocab_size", &d->info.vocab_size));
    DT_CHECK(d->info.vocab_size >= 1 && d->info.vocab_size <= INT32_MAX, DT_ERR_DATA,
             "%s: attribute vocab_size: expected 1 to %d, found %" PRId64, d->path, INT32_MAX, d->info.vocab_size);
    if (dt_h5_has(d->file, "tokenizer")) DT_TRY(dt_h5_read_text(d->file, d->path, "tokenizer", &d->tokenizer));
    if (dt_h5_has(d->file, "chat_template"))
        DT_TRY(dt_h5_read_text(d->file, d->path, "chat_template", &d->chat_template));
    return DT_OK;
}

static dt_err read_image_attributes(dt_dataset *d)
{
    dt_image_form *form = &d->info.images;
    int64_t token = -1;
    DT_TRY(dt_h5_read_i64(d->file, d->path, "image_token", &token));
    DT_CHECK(token >= 0 && token < d->info.vocab_size, DT_ERR_DATA,
             "%s: attribute image_token: expected a token id below vocab_size = %" PRId64 ", found %" PRId64, d->path,
             d->info.vocab_size, token);
    form->token = (int32_t)token;
    DT_TRY(dt_h5_read_i64(d->file, d->path, "image_tokens", &form->n_tokens));
    DT_CHECK(form->n_tokens >= 1 && form->n_tokens <= DT_MAX_IMAGE_TOKENS, DT_ERR_DATA,
             "%s: attribute image_tokens: expected 1 to %d, found %" PRId64, d->path, DT_MAX_IMAGE_TOKENS,
             form->n_tokens);
    if (dt_h5_has(d->file, "preprocessor")) DT_TRY(dt_h5_read_text(d->file, d->path, "preprocessor", &d->preprocessor));
    return DT_OK;
}

/* Optional attributes: only newer versions of dtrain-data write them. */
static dt_err read_pair_counts(dt_dataset *d)
{
    dt_dataset_info *i = &d->info;
    i->n_equal_pairs = i->n_contradicted_pairs = -1;
    if (i->kind != DT_DATASET_PREFERENCE || !dt_h5_has(d->file, "equal_pairs")) return DT_OK;
    DT_TRY(dt_h5_read_i64(d->file, d->path, "equal_pairs", &i->n_equal_pairs));
    return dt_h5_has(d->file, "contradicted_pairs")
               ? dt_h5_read_i64(d->file, d->path, "contradicted_pairs", &i->n_contradicted_pairs)
               : DT_OK;
}

static bool has_array(const dt_dataset *d, const char *name)
{
    const char *slash = strchr(name, '/');
    char group[32];
    if (slash &&
        (snprintf(group, sizeof group, "%.*s", (int)(slash - name), name), H5Lexists(d->file, group, H5P_DEFAULT) <= 0))
        return false;
    return H5Lexists(d->file, name, H5P_DEFAULT) > 0;
}

static bool has_array_locked(const dt_dataset *d, const char *name)
{
    dt_h5_lock();
    const bool has = has_array(d, name);
    dt_h5_unlock();
    return has;
}

/* Must be called with the HDF5 lock held. Also reports which optional arrays exist. */
static dt_err open_head(dt_dataset *d, bool *has_offsets)
{
    dt_dataset_info *i = &d->info;
    DT_TRY(dt_h5_open(d->path, &d->file, &i->sealed));
    DT_TRY(read_attributes(d));
    DT_TRY(read_pair_counts(d));
    *has_offsets = has_array(d, "offsets");
    i->has_weights = i->kind == DT_DATASET_SFT && has_array(d, "weights");
    i->has_margins = i->kind == DT_DATASET_PREFERENCE && has_array(d, "margins");
    i->has_safety =
        i->kind == DT_DATASET_PREFERENCE && (has_array(d, "chosen/safety") || has_array(d, "rejected/safety"));
    i->has_ties = i->kind == DT_DATASET_PREFERENCE && has_array(d, "ties");
    i->has_answers =
        i->kind == DT_DATASET_PROMPTS && (has_array(d, "answers/tokens") || has_array(d, "answers/offsets"));
    i->has_records =
        i->kind == DT_DATASET_PROMPTS && (has_array(d, "records/bytes") || has_array(d, "records/offsets"));
    i->has_images = has_array(d, "images/pixels") || has_array(d, "images/offsets");
    return i->has_images ? read_image_attributes(d) : DT_OK;
}

static dt_err open_one(dt_dataset *d, dt_array *a, const char *name, int types)
{
    return dt_array_open(a, d->file, d->fd, d->file_nbytes, d->path, name, types);
}

static dt_err check_offset_ends(const dt_dataset *d, const dt_array *offsets, const dt_array *tokens)
{
    DT_CHECK(offsets->n_elems >= 1, DT_ERR_DATA, "%s: %s: expected at least one element, found none", d->path,
             offsets->name);
    uint64_t first = 0, last = 0;
    DT_TRY(dt_array_read(offsets, 0, 1, &first));
    DT_TRY(dt_array_read(offsets, offsets->n_elems - 1, 1, &last));
    DT_CHECK(first == 0, DT_ERR_DATA, "%s: %s[0]: expected 0, found %" PRIu64, d->path, offsets->name, first);
    DT_CHECK(last == (uint64_t)tokens->n_elems, DT_ERR_DATA,
             "%s: %s[%" PRId64 "]: expected the number of %s, %" PRId64 ", found %" PRIu64, d->path, offsets->name,
             offsets->n_elems - 1,
             tokens == &d->records  ? "bytes"
             : tokens == &d->pixels ? "images"
                                    : "tokens",
             tokens->n_elems, last);
    return DT_OK;
}

static dt_err check_length(const dt_dataset *d, const dt_array *a, int64_t n, const char *of)
{
    DT_CHECK(a->n_elems == n, DT_ERR_DATA, "%s: %s: expected one element for each of %" PRId64 " %s, found %" PRId64,
             d->path, a->name, n, of, a->n_elems);
    return DT_OK;
}

/* Open an array with one element per sample. */
static dt_err open_column(dt_dataset *d, dt_array *a, const char *name, int types)
{
    DT_TRY(open_one(d, a, name, types));
    return check_length(d, a, d->info.n_documents, "samples");
}

static dt_err open_side(dt_dataset *d, const char *tokens_name, const char *offsets_name, dt_array *tokens,
                        dt_array *offsets)
{
    DT_TRY(open_one(d, tokens, tokens_name, DT_ARRAY_U16 | DT_ARRAY_U32));
    DT_TRY(open_one(d, offsets, offsets_name, DT_ARRAY_U64));
    return check_offset_ends(d, offsets, tokens);
}

static dt_err open_pairs(dt_dataset *d)
{
    DT_TRY(open_side(d, "chosen/tokens", "chosen/offsets", &d->tokens, &d->offsets));
    d->info.n_documents = d->offsets.n_elems - 1;
    DT_TRY(open_side(d, "rejected/tokens", "rejected/offsets", &d->second_tokens, &d->second_offsets));
    DT_TRY(check_length(d, &d->second_offsets, d->offsets.n_elems, "chosen/offsets"));
    DT_TRY(open_column(d, &d->prompt_length[0], "chosen/prompt_length", DT_ARRAY_U32));
    DT_TRY(open_column(d, &d->prompt_length[1], "rejected/prompt_length", DT_ARRAY_U32));
    if (d->info.has_margins) DT_TRY(open_column(d, &d->margins, "margins", DT_ARRAY_F32));
    if (d->info.has_ties) DT_TRY(open_column(d, &d->ties, "ties", DT_ARRAY_U8));
    if (!d->info.has_safety) return DT_OK;
    DT_TRY(open_column(d, &d->safety[0], "chosen/safety", DT_ARRAY_U8));
    return open_column(d, &d->safety[1], "rejected/safety", DT_ARRAY_U8);
}

static dt_err open_prompts(dt_dataset *d)
{
    if (d->info.has_answers) {
        DT_TRY(open_side(d, "answers/tokens", "answers/offsets", &d->second_tokens, &d->second_offsets));
        DT_TRY(check_length(d, &d->second_offsets, d->offsets.n_elems, "offsets"));
    }
    if (!d->info.has_records) return DT_OK;
    DT_TRY(open_one(d, &d->records, "records/bytes", DT_ARRAY_U8));
    DT_TRY(open_one(d, &d->record_offsets, "records/offsets", DT_ARRAY_U64));
    DT_TRY(check_offset_ends(d, &d->record_offsets, &d->records));
    return check_length(d, &d->record_offsets, d->offsets.n_elems, "offsets");
}

static dt_err open_images(dt_dataset *d)
{
    if (!d->info.has_images) return DT_OK;
    DT_CHECK(d->info.kind != DT_DATASET_TOKENS, DT_ERR_DATA,
             "%s: images need kind sft, which does not cut samples; found kind tokens", d->path);
    DT_TRY(open_one(d, &d->pixels, "images/pixels", DT_ARRAY_IMAGES));
    DT_TRY(open_one(d, &d->image_offsets, "images/offsets", DT_ARRAY_U64));
    DT_TRY(check_offset_ends(d, &d->image_offsets, &d->pixels));
    d->info.images.size = d->pixels.image_size;
    d->info.n_images = d->pixels.n_elems;
    return check_length(d, &d->image_offsets, d->info.n_documents + 1, "offsets");
}

static dt_err open_texts(dt_dataset *d, bool has_offsets)
{
    const dt_dataset_kind kind = d->info.kind;
    DT_TRY(open_one(d, &d->tokens, "tokens", DT_ARRAY_U16 | DT_ARRAY_U32));
    if (has_offsets || kind != DT_DATASET_TOKENS) {
        DT_TRY(open_one(d, &d->offsets, "offsets", DT_ARRAY_U64));
        DT_TRY(check_offset_ends(d, &d->offsets, &d->tokens));
        d->info.n_documents = d->offsets.n_elems - 1;
    }
    if (kind == DT_DATASET_SFT) {
        DT_TRY(open_one(d, &d->loss_mask, "loss_mask", DT_ARRAY_U8));
        DT_TRY(check_length(d, &d->loss_mask, d->tokens.n_elems, "tokens"));
    }
    if (d->info.has_weights) DT_TRY(open_column(d, &d->weights, "weights", DT_ARRAY_F32));
    return kind == DT_DATASET_PROMPTS ? open_prompts(d) : DT_OK;
}

/* If the file has block checksums, every array is verified as it is read. */
static dt_err attach_blocks(dt_dataset *d, const dt_array *arrays[DT_N_ARRAYS])
{
    d->info.has_block_checksums = has_array_locked(d, "block_checksums");
    if (!d->info.has_block_checksums) return DT_OK;
    dt_array sums;
    dt_err err = open_one(d, &sums, "block_checksums", DT_ARRAY_U64);
    for (int i = 0; i < DT_N_ARRAYS && err == DT_OK; i++)
        if (arrays[i]->path) {
            err = dt_blocks_attach((dt_array *)arrays[i], &sums);
            d->info.has_block_checksums &= arrays[i]->verified || arrays[i]->n_elems == 0;
        }
    dt_array_close(&sums);
    return err;
}

static void close_hdf5(dt_dataset *d)
{
    dt_h5_lock();
    if (d->file >= 0) H5Fclose(d->file);
    dt_h5_unlock();
    d->file = H5I_INVALID_HID;
}

static dt_err open_all(dt_dataset *d)
{
    DT_TRY(open_plain(d));
    bool has_offsets = false;
    dt_h5_lock();
    const dt_err err = open_head(d, &has_offsets);
    dt_h5_unlock();
    DT_TRY(err);
    DT_TRY(d->info.kind == DT_DATASET_PREFERENCE ? open_pairs(d) : open_texts(d, has_offsets));
    DT_TRY(open_images(d));

    const dt_array *arrays[DT_N_ARRAYS];
    dt_dataset_arrays(d, arrays);
    DT_TRY(attach_blocks(d, arrays));
    bool needs_hdf5 = false;
    d->info.has_checksums = true;
    for (int i = 0; i < DT_N_ARRAYS; i++) {
        if (!arrays[i]->path) continue;
        needs_hdf5 |= arrays[i]->offset < 0;
        d->info.has_checksums &= arrays[i]->has_checksum;
    }
    if (!needs_hdf5) close_hdf5(d);
    d->info.n_tokens = d->tokens.n_elems;
    d->info.token_nbytes = d->tokens.elem_size;
    d->info.n_second_tokens = d->second_tokens.n_elems;
    d->info.n_record_nbytes = d->records.n_elems;
    d->info.path = d->path;
    d->info.tokenizer = d->tokenizer ? d->tokenizer : "";
    d->info.chat_template = d->chat_template ? d->chat_template : "";
    d->info.images.preprocessor = d->preprocessor ? d->preprocessor : "";
    return DT_OK;
}

dt_err dt_dataset_open(dt_dataset **out, const char *path)
{
    *out = NULL;
    dt_dataset *d = calloc(1, sizeof *d);
    char *copy = strdup(path);
    if (!d || !copy) {
        free(d);
        free(copy);
        return dt_fail(DT_ERR_MEMORY, "%s: no memory to open the dataset", path);
    }
    d->path = copy;
    d->fd = d->placeholder = -1;
    d->file = H5I_INVALID_HID;
    d->info.n_documents = -1;
    const dt_err err = open_all(d);
    if (err != DT_OK) {
        dt_dataset_close(d);
        return dt_trace(err, __FILE__, __LINE__, "open_all");
    }
    *out = d;
    return DT_OK;
}

void dt_dataset_close(dt_dataset *d)
{
    if (!d) return;
    const dt_array *arrays[DT_N_ARRAYS];
    dt_dataset_arrays(d, arrays);
    for (int i = 0; i < DT_N_ARRAYS; i++) dt_array_close((dt_array *)arrays[i]);
    if (d->file >= 0) close_hdf5(d);
    if (d->fd >= 0) close(d->fd);
    free(d->tokenizer);
    free(d->chat_template);
    free(d->preprocessor);
    free(d->path);
    free(d);
}

const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d) { return &d->info; }
