/* fuzz_dataset.c - any bytes as a dataset file, and any contents in a well-formed one: an error, or batches of the
 * right form whose counts are those that were announced.
 *
 * An input that begins as HDF5 files do is taken for the file. Any other one is a recipe: its first bytes choose kind,
 * sizes and options, the rest fills the arrays. */
#include "dtrain/data/data.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_STEPS = 200, VOCAB = 300 };

static void must(bool holds)
{
    if (!holds) abort();
}

typedef struct bytes {
    const uint8_t *at;
    size_t left;
} bytes;

static unsigned next(bytes *b)
{
    if (b->left == 0) return 0;
    b->left--;
    return *b->at++;
}

/* ---- a file by recipe -------------------------------------------------------------------------------------------- */

static void attribute(hid_t file, const char *name, int64_t value)
{
    must(dt_h5_write_i64(file, "fuzz", name, value) == DT_OK);
}

static void array(hid_t file, const char *name, hid_t type, hid_t mem, size_t n, bool chunked, const void *values)
{
    const hsize_t dims = n, chunk = 4;
    const hid_t space = H5Screate_simple(1, &dims, (const hsize_t[]){chunked ? H5S_UNLIMITED : n}),
                plist = H5Pcreate(H5P_DATASET_CREATE);
    if (chunked) H5Pset_chunk(plist, 1, &chunk);
    const hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    must(d >= 0 && (n == 0 || H5Dwrite(d, mem, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0));
    H5Dclose(d);
    H5Pclose(plist);
    H5Sclose(space);
}

static void group(hid_t file, const char *name)
{
    const hid_t g = H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    must(g >= 0);
    H5Gclose(g);
}

/* Mostly small steps upwards, now and then anything. */
static uint64_t next_offset(bytes *b, uint64_t before)
{
    const unsigned c = next(b);
    return c < 240 ? before + c % 16 : c < 250 ? before - c % 4 : (uint64_t)next(b) << (8 * (c % 8));
}

/* Arrays of samples with two texts; both sides say the same, which is as good as any. */
static void write_sides(hid_t f, bytes *b, bool pairs, bool chunked, size_t n, const uint32_t *tokens,
                        size_t n_documents, const uint64_t *offsets, const float *margins)
{
    uint32_t prompt[64];
    uint8_t safety[64];
    for (size_t i = 0; i < n_documents; i++) {
        const uint64_t len = offsets[i + 1] - offsets[i];
        const unsigned c = next(b);
        prompt[i] = c == 255 ? 1u << 31 : (uint32_t)(len ? c % len : 0);
        safety[i] = c % 64 == 63 ? 3 : c % 3;
    }
    const char *const names[] = {pairs ? "chosen" : "answers", "rejected"};
    for (int s = 0; s < (pairs ? 2 : 1); s++) {
        char name[64];
        group(f, names[s]);
        snprintf(name, sizeof name, "%s/tokens", names[s]);
        array(f, name, H5T_STD_U16LE, H5T_NATIVE_UINT32, n, chunked, tokens);
        snprintf(name, sizeof name, "%s/offsets", names[s]);
        array(f, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, n_documents + 1, chunked, offsets);
        snprintf(name, sizeof name, "%s/prompt_length", names[s]);
        array(f, name, H5T_STD_U32LE, H5T_NATIVE_UINT32, n_documents, chunked, prompt);
        snprintf(name, sizeof name, "%s/safety", names[s]);
        array(f, name, H5T_STD_U8LE, H5T_NATIVE_UINT8, n_documents, chunked, safety);
    }
    array(f, "margins", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, n_documents, chunked, margins);
}

/* Records of which each is what an offset says of the bytes that are left. */
static void write_records(hid_t f, bytes *b, bool chunked, size_t n_documents, const uint64_t *offsets)
{
    group(f, "records");
    const size_t n = offsets[n_documents] < b->left ? (size_t)offsets[n_documents] : b->left;
    array(f, "records/bytes", H5T_STD_U8LE, H5T_NATIVE_UINT8, n, chunked, b->at);
    array(f, "records/offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, n_documents + 1, chunked, offsets);
}

static void write_recipe(const char *path, bytes *b, unsigned flags)
{
    uint32_t tokens[512];
    uint64_t offsets[65] = {0};
    uint8_t mask[512];
    float weights[64];
    const size_t n_documents = next(b) % 64, n_mask_off = next(b) == 255;
    size_t n = next(b) * 2u;
    for (size_t i = 0; i < n_documents; i++) offsets[i + 1] = next_offset(b, offsets[i]);
    if (flags & 4)
        offsets[n_documents] = n; /* as a rule the ends fit */
    else if (offsets[n_documents] <= 512)
        n = (size_t)offsets[n_documents];
    for (size_t i = 0; i < n; i++) {
        const unsigned c = next(b);
        tokens[i] = c == 255 ? (uint32_t)next(b) << 24 : c;
        mask[i] = c == 254 ? 2 : c & 1;
    }
    for (size_t i = 0; i < n_documents; i++) weights[i] = (float)next(b) / 16 - (next(b) == 255);
    const bool two = flags & 32, sft = flags & 1 && !two, chunked = flags & 2;
    const char *kind = two ? flags & 1 ? "preference" : "prompts" : sft ? "sft" : "tokens";
    dt_h5_lock();
    const hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    must(f >= 0);
    must(dt_h5_write_text(f, path, "format", "dtrain-dataset") == DT_OK &&
         dt_h5_write_text(f, path, "kind", kind) == DT_OK);
    attribute(f, "version", 1);
    attribute(f, "vocab_size", VOCAB);
    array(f, "tokens", flags & 8 ? H5T_STD_U16LE : H5T_STD_U32LE, H5T_NATIVE_UINT32, n, chunked, tokens);
    array(f, "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, n_documents + 1, chunked, offsets);
    if (sft) array(f, "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, n_mask_off && n ? n - 1 : n, chunked, mask);
    if (sft && flags & 16) array(f, "weights", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, n_documents, chunked, weights);
    if (two) write_sides(f, b, flags & 1, chunked, n, tokens, n_documents, offsets, weights);
    if (two && flags & 64) write_records(f, b, chunked, n_documents, offsets);
    H5Fclose(f);
    dt_h5_unlock();
}

/* ---- what must hold ---------------------------------------------------------------------------------------------- */

static void check_batch(const dt_batch *b)
{
    must(b->n_tok >= 0 && b->n_tok <= b->max_tok && b->n_seq >= 0 && b->n_seq <= b->max_seq && b->seq_start[0] == 0 &&
         b->seq_start[b->n_seq] == b->n_tok);
    for (int32_t s = 0; s < b->n_seq; s++) {
        must(b->seq_start[s] < b->seq_start[s + 1]);
        for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) must(b->pos[t] == t - b->seq_start[s]);
    }
    for (int32_t t = 0; t < b->n_tok; t++)
        must(b->token[t] >= 0 && b->token[t] < VOCAB && b->target[t] >= -1 && b->target[t] < VOCAB &&
             b->weight[t] >= 0);
}

static void read_steps(dt_loader *l)
{
    const int64_t n = dt_loader_info(l)->steps_per_epoch;
    for (int64_t step = 0; step < n && step < MAX_STEPS; step++) {
        dt_step_counts want, got = {0};
        must(dt_loader_step_counts(l, step, &want) == DT_OK);
        for (int a = 0; a < dt_loader_n_micro(l, step); a++) {
            const dt_batch *b;
            const dt_err err = dt_loader_batch(l, step, a, &b);
            must(err == DT_OK || err == DT_ERR_DATA);
            if (err != DT_OK) return;
            check_batch(b);
            got.n_tok += b->n_tok;
            got.n_target += b->n_target;
            got.n_samples += b->n_samples;
            got.weight += (double)b->weight_fixed * 0x1p-20;
        }
        must(memcmp(&want, &got, sizeof want) == 0);
    }
}

/* HDF5 1.10 itself reads out of bounds on a damaged heap of variable-length text (H5HG_read); nothing above it can see
 * that coming, so such files are left out here. */
static bool has_variable_text(const char *path)
{
    static const char *const names[] = {"format", "kind", "tokenizer"};
    bool variable = false;
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    for (size_t i = 0; file >= 0 && i < sizeof names / sizeof names[0]; i++) {
        const hid_t attribute = H5Aexists(file, names[i]) > 0 ? H5Aopen(file, names[i], H5P_DEFAULT) : H5I_INVALID_HID;
        const hid_t type = attribute >= 0 ? H5Aget_type(attribute) : H5I_INVALID_HID;
        variable = variable || (type >= 0 && H5Tis_variable_str(type) > 0);
        if (type >= 0) H5Tclose(type);
        if (attribute >= 0) H5Aclose(attribute);
    }
    if (file >= 0) H5Fclose(file);
    return variable;
}

/* What verifies can be read, every sample of it. */
static void look(const char *path, int64_t seq_len)
{
    dt_dataset *d;
    if (dt_dataset_open(&d, path) == DT_OK) {
        const bool good = dt_dataset_verify(d, NULL, NULL) == DT_OK;
        const dt_dataset_info *info = dt_dataset_get_info(d);
        const bool pairs = info->kind == DT_DATASET_PREFERENCE;
        for (int64_t i = 0; i < info->n_documents && i < 64; i++) {
            dt_pair pair;
            int64_t first, n;
            const dt_err err = pairs ? dt_dataset_read_pair(d, i, &pair) : DT_OK;
            must(!good || err == DT_OK);
            char *json = NULL;
            if (info->kind == DT_DATASET_PROMPTS) must(dt_dataset_read_record(d, i, &json) == DT_OK || !good);
            free(json);
            if (pairs || info->has_answers) must(dt_dataset_part(d, DT_SIDE_SECOND, i, &first, &n) == DT_OK || !good);
        }
        static const char *const names[] = {"none", "wrapped", "bfd", "bfd_split"};
        dt_packing_info rows;
        for (int k = 0; k < 4; k++)
            if (dt_dataset_packing(d, names[k], seq_len, &rows) == DT_OK)
                must(rows.n_tok <= rows.n_rows * seq_len && rows.n_target <= rows.n_tok);
    }
    dt_dataset_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t magic[4] = {0x89, 'H', 'D', 'F'};
    static const char *const packings[] = {"auto", "auto", "bfd", "bfd_split"};
    char path[] = "/tmp/dtrain-fuzz-XXXXXX"; /* a plain file: HDF5 resolves names */
    const int fd = mkstemp(path);
    must(fd >= 0);
    bytes b = {data, size};
    unsigned options = 0, seq_len = 8;
    if (size >= 4 && memcmp(data, magic, 4) == 0) {
        must(write(fd, data, size) == (ssize_t)size);
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
        if (has_variable_text(path)) {
            close(fd), unlink(path);
            return 0;
        }
        options = data[size - 1];
    } else {
        const unsigned flags = next(&b);
        options = next(&b);
        seq_len = 1 + next(&b) % 40;
        write_recipe(path, &b, flags);
    }
    const dt_loader_options o = {.files = path,
                                 .where = "fuzz",
                                 .seq_len = seq_len,
                                 .packing = packings[options % 4],
                                 .document_mask = options & 4,
                                 .shuffle = options & 8,
                                 .drop_last = options & 16,
                                 .prefetch = options & 32 ? 2 : 0,
                                 .train_batch_size = 5,
                                 .micro_batch_size = 2,
                                 .nranks = 1,
                                 .vocab_size = VOCAB};
    dt_error_clear();
    dt_loader *l;
    if (dt_loader_open(&l, &o) == DT_OK) {
        read_steps(l);
        dt_loader_close(l);
    }
    look(path, seq_len);
    close(fd);
    unlink(path);
    return 0;
}
