/* test_data_files.c - dataset files of other makers and bad ones of every sort: each is refused with a message that
 * names file and dataset. */
#include "folder.h"
#include <hdf5.h>
#include <sys/stat.h>
#include "dtrain/data/data.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"

static char path[128];

/* A file to be made with HDF5 alone. NULL or 0 leaves a thing at what is right for a small sft file of two samples, 5
 * tokens each. */
typedef struct craft {
    const char *format, *kind;
    int version;
    int64_t vocab_size;
    const char *leave_out; /* an attribute or a dataset */
    hid_t token_type, offset_type, mask_type;
    int token_rank; /* dimensions */
    int n_mask, n_weights;
    uint64_t offsets[3];
    bool own_offsets;
    int n_offsets;
    uint32_t token_7;
    uint8_t mask_7;
    float weight_1;
    bool chunked, gzip, big_endian, compact, external, no_offsets, user_block, linked;
} craft;

static bool left_out(const craft *c, const char *name) { return c->leave_out && strcmp(c->leave_out, name) == 0; }

static void text_attribute(hid_t file, const craft *c, const char *name, const char *value)
{
    if (left_out(c, name)) return;
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR); /* of fixed length, as C programs write them */
    H5Tset_size(type, strlen(value));
    hid_t a = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, type, value);
    H5Aclose(a), H5Sclose(space), H5Tclose(type);
}

static void number_attribute(hid_t file, const craft *c, const char *name, int64_t value)
{
    if (left_out(c, name)) return;
    hid_t space = H5Screate(H5S_SCALAR), a = H5Acreate2(file, name, H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT64, &value);
    H5Aclose(a), H5Sclose(space);
}

static void array(hid_t file, const craft *c, const char *name, hid_t type, hid_t mem, hsize_t n, int rank,
                  const void *data)
{
    if (left_out(c, name)) return;
    const hsize_t dims[2] = {rank == 2 ? n / 2 : n, 2}, chunk[2] = {n < 3 ? n : 3, 2};
    hid_t space = rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, dims, NULL),
          plist = H5Pcreate(H5P_DATASET_CREATE);
    if (c->chunked || c->gzip) H5Pset_chunk(plist, rank, chunk);
    if (c->gzip) H5Pset_shuffle(plist), H5Pset_deflate(plist, 6);
    if (c->compact) H5Pset_layout(plist, H5D_COMPACT);
    if (c->external) H5Pset_external(plist, "/dev/zero", 0, H5F_UNLIMITED);
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    assert_true(d >= 0);
    if (!c->external) assert_true(H5Dwrite(d, mem, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(d), H5Pclose(plist), H5Sclose(space);
}

static void make(const craft *c)
{
    uint32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, c->token_7 ? c->token_7 : 8, 9, 10};
    uint64_t offsets[3] = {0, 5, 10};
    uint8_t mask[12] = {0, 0, 1, 1, 1, 0, 1, 0, 1, 0};
    float weights[4] = {1, c->weight_1 != 0 ? c->weight_1 : 0.5f};
    if (c->own_offsets) memcpy(offsets, c->offsets, sizeof offsets);
    if (c->mask_7) mask[7] = c->mask_7;
    dt_h5_lock();
    hid_t create = H5Pcreate(H5P_FILE_CREATE);
    if (c->user_block) H5Pset_userblock(create, 512);
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, create, H5P_DEFAULT);
    assert_true(f >= 0);
    text_attribute(f, c, "format", c->format ? c->format : "dtrain-dataset");
    text_attribute(f, c, "kind", c->kind ? c->kind : "sft");
    number_attribute(f, c, "version", c->version ? c->version : 1);
    number_attribute(f, c, "vocab_size", c->vocab_size ? c->vocab_size : 100);
    const hid_t u32 = c->big_endian ? H5T_STD_U32BE : H5T_STD_U32LE;
    array(f, c, "tokens", c->token_type ? c->token_type : u32, H5T_NATIVE_UINT32, 10, c->token_rank ? c->token_rank : 1,
          tokens);
    if (!c->no_offsets)
        array(f, c, "offsets",
              c->offset_type  ? c->offset_type
              : c->big_endian ? H5T_STD_U64BE
                              : H5T_STD_U64LE,
              H5T_NATIVE_UINT64, c->n_offsets ? (hsize_t)c->n_offsets : 3, 1, offsets);
    array(f, c, "loss_mask", c->mask_type ? c->mask_type : H5T_STD_U8LE, H5T_NATIVE_UINT8,
          c->n_mask ? (hsize_t)c->n_mask : 10, 1, mask);
    array(f, c, "weights", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, c->n_weights ? (hsize_t)c->n_weights : 2, 1, weights);
    if (c->linked) {
        H5Lmove(f, "tokens", f, "elsewhere", H5P_DEFAULT, H5P_DEFAULT);
        assert_true(H5Lcreate_external(path, "/elsewhere", f, "tokens", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    }
    H5Fclose(f), H5Pclose(create);
    dt_h5_unlock();
}

static dt_loader_options options(void)
{
    return (dt_loader_options){.files = path,
                               .where = "test.ini:3: [data] train",
                               .seq_len = 4,
                               .packing = "auto",
                               .train_batch_size = 2,
                               .micro_batch_size = 2,
                               .nranks = 1,
                               .vocab_size = 100};
}

TEST(forms_that_other_programs_write_are_read_alike)
{
    const craft forms[] = {{0},
                           {.chunked = true},
                           {.gzip = true},
                           {.big_endian = true},
                           {.big_endian = true, .mask_type = H5T_STD_U8BE},
                           {.compact = true},
                           {.user_block = true},
                           {.token_type = H5T_STD_U16LE}};
    const int32_t want[] = {1, 2, 3, 4, 6, 7, 8, 9}, target[] = {-1, 3, 4, -1, 7, -1, 9, -1};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        make(&forms[i]);
        dt_dataset *d;
        assert_int_equal(dt_dataset_open(&d, path), DT_OK);
        assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_OK);
        dt_dataset_close(d);
        for (int prefetch = 0; prefetch < 3; prefetch += 2) {
            dt_loader *l;
            const dt_batch *b;
            dt_loader_options o = options();
            o.prefetch = prefetch;
            assert_int_equal(dt_loader_open(&l, &o), DT_OK);
            for (int turn = 0; turn < 3; turn++) {
                assert_int_equal(dt_loader_batch(l, turn, 0, &b), DT_OK);
                assert_int_equal(b->n_tok, 8);
                assert_memory_equal(b->token, want, sizeof want);
                assert_memory_equal(b->target, target, sizeof target);
                assert_true(b->weight[1] == 1 && b->weight[4] == 0.5f && b->weight[0] == 0);
                assert_int_equal(b->weight_fixed, (2 << 20) + (1 << 20));
            }
            dt_loader_close(l);
        }
    }
}

/* What the loss is divided by is the sum of the weights that targets have, also where these are no multiples of the
 * unit that is counted in. */
TEST(weights_add_up_to_what_was_counted)
{
    const float weights[] = {1e-3f, 0.3f, 1 / 3.0f, 17.1f, 1e6f};
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        make(&(craft){.weight_1 = weights[i]});
        dt_loader *l;
        const dt_batch *b;
        const dt_loader_options o = options();
        assert_int_equal(dt_loader_open(&l, &o), DT_OK);
        assert_int_equal(dt_loader_batch(l, 0, 0, &b), DT_OK);
        double sum = 0;
        for (int t = 0; t < b->n_tok; t++) sum += (double)b->weight[t];
        assert_true(sum == (double)b->weight_fixed * 0x1p-20);
        assert_true(fabs((double)(b->weight[4] - weights[i])) <= 0x1p-21);
        dt_loader_close(l);
    }
}

/* Opened, or else read whole: where the error must come is part of the contract only in so far as it is DT_ERR_DATA and
 * says what it must. */
static dt_err open_and_read(void)
{
    dt_loader *l;
    dt_loader_options o = options();
    dt_error_clear();
    DT_TRY(dt_loader_open(&l, &o));
    dt_err err = DT_OK;
    const dt_batch *b;
    for (int64_t s = 0; s < dt_loader_info(l)->steps_per_epoch && err == DT_OK; s++) err = dt_loader_batch(l, s, 0, &b);
    dt_loader_close(l);
    return err;
}

static void must_fail(const char *says)
{
    assert_int_equal(open_and_read(), DT_ERR_DATA);
    if (!strstr(dt_error_message(), says) || !strstr(dt_error_message(), path))
        print_message("message: %s\nexpected: %s\n", dt_error_message(), says);
    assert_says(says, path);
}

TEST(bad_files_are_refused_with_the_reason)
{
    const struct {
        craft c;
        const char *says;
    } cases[] = {
        {{.format = "dtrain-checkpoint"}, "format"},
        {{.leave_out = "format"}, "format"},
        {{.leave_out = "version"}, "version"},
        {{.version = 2}, "later"},
        {{.kind = "preference"}, "chosen/tokens is missing"},
        {{.kind = "ranking"}, "preference, prompts, unpaired, labels or texts"},
        {{.leave_out = "kind"}, "kind"},
        {{.leave_out = "vocab_size"}, "vocab_size"},
        {{.vocab_size = -5}, "vocab_size"},
        {{.vocab_size = 101}, "101"}, /* more than the model's 100 */
        {{.leave_out = "tokens"}, "tokens"},
        {{.leave_out = "offsets"}, "offsets"},
        {{.leave_out = "loss_mask"}, "loss_mask"},
        {{.token_type = H5T_STD_I32LE}, "tokens: expected elements of type uint16 or uint32"},
        {{.token_type = H5T_STD_U64LE}, "uint16 or uint32"},
        {{.token_type = H5T_IEEE_F32LE}, "uint16 or uint32"},
        {{.offset_type = H5T_STD_U32LE}, "offsets: expected elements of type uint64"},
        {{.mask_type = H5T_STD_I8LE}, "loss_mask: expected elements of type uint8"},
        {{.token_rank = 2}, "one-dimensional"},
        {{.n_mask = 9}, "loss_mask"},
        {{.n_weights = 3}, "weights"},
        {{.own_offsets = true, .offsets = {1, 5, 10}}, "offsets[0]"},
        {{.own_offsets = true, .offsets = {0, 5, 9}}, "offsets[2]"},
        {{.own_offsets = true, .offsets = {0, 5, 11}}, "offsets[2]"},
        {{.own_offsets = true, .offsets = {0, 11, 10}}, "offsets[0]"},
        {{.own_offsets = true, .offsets = {0, UINT64_MAX, 10}}, "decrease"},
        {{.n_offsets = 1}, "offsets[0]"}, /* 0, but there are 10 tokens */
        {{.token_7 = 100}, "tokens[7] = 100"},
        {{.token_7 = UINT32_MAX}, "tokens[7] = 4294967295"},
        {{.mask_7 = 2}, "loss_mask[7]"},
        {{.weight_1 = -1}, "weights[1]"},
        {{.weight_1 = 0.0f / 0.0f}, "weights[1]"},
        {{.weight_1 = 9e-4f}, "weights[1]: expected 0, or 0.001 to 1e6"},
        {{.external = true}, "in this file"},
        {{.linked = true}, "tokens is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(&cases[i].c);
        must_fail(cases[i].says);
    }
}

TEST(files_that_are_no_datasets_are_refused)
{
    unlink(path);
    must_fail("No such file");
    assert_int_equal(mkdir(path, 0777), 0);
    must_fail("directory");
    rmdir(path);
    FILE *f = fopen(path, "w");
    fclose(f);
    must_fail("empty");
    f = fopen(path, "w");
    for (int i = 0; i < 1000; i++) fprintf(f, "this is text, not HDF5\n");
    fclose(f);
    must_fail("expected a dataset, found text");
    unlink(path);
}

/* Cut at every length: never a crash, and never taken for whole. */
TEST(a_file_cut_short_is_refused_at_every_length)
{
    make(&(craft){0});
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char *bytes = malloc((size_t)st.st_size);
    FILE *f = fopen(path, "r");
    assert_int_equal(fread(bytes, 1, (size_t)st.st_size, f), st.st_size);
    fclose(f);
    for (off_t n = 0; n < st.st_size; n += n < 64 ? 1 : 61) {
        f = fopen(path, "w");
        fwrite(bytes, 1, (size_t)n, f);
        fclose(f);
        assert_int_equal(open_and_read(), DT_ERR_DATA);
    }
    free(bytes);
}

TEST(an_altered_file_fails_verification)
{
    dt_dataset_writer *w;
    int32_t ids[1000];
    for (int i = 0; i < 1000; i++) ids[i] = i % 251;
    assert_int_equal(dt_dataset_create(&w, path, DT_DATASET_TOKENS, 257, "bytes", false), DT_OK);
    assert_int_equal(dt_dataset_add(w, ids, NULL, 1000), DT_OK);
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
    dt_dataset *d;
    assert_int_equal(dt_dataset_open(&d, path), DT_OK);
    assert_true(dt_dataset_get_info(d)->has_checksums);
    assert_string_equal(dt_dataset_get_info(d)->tokenizer, "bytes");
    assert_int_equal(dt_dataset_get_info(d)->n_documents, 1);
    assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_OK);
    dt_dataset_close(d);

    FILE *f = fopen(path, "r+");
    const uint16_t sought[3] = {0, 1, 2};
    uint16_t seen[3] = {9, 9, 9};
    long at = -2;
    while (memcmp(seen, sought, sizeof seen) != 0) {
        fseek(f, at += 2, SEEK_SET);
        assert_int_equal(fread(seen, sizeof seen, 1, f), 1);
    }
    fseek(f, at + 400, SEEK_SET);
    fputc(7, f);
    fclose(f);
    assert_int_equal(dt_dataset_open(&d, path), DT_OK);
    dt_error_clear();
    assert_fails(dt_dataset_verify(d, NULL, NULL), DT_ERR_DATA, "tokens: block 0 (bytes ");
    int32_t id;
    assert_int_equal(dt_dataset_read_tokens(d, 0, 1, &id), DT_ERR_DATA); /* of the same block */
    assert_says("tokens: block 0 (bytes ");
    dt_dataset_close(d);
}

typedef struct places {
    int64_t from[8], until[8];
    int n;
} places;

static dt_err note_place(hid_t dset, const char *name, void *ctx)
{
    places *p = ctx;
    dt_h5_array a;
    if (strcmp(name, "block_checksums") == 0) return DT_OK; /* the seal covers them */
    DT_TRY(dt_h5_inspect(dset, path, name, &a));
    p->from[p->n] = a.offset;
    p->until[p->n++] = a.offset + a.n_elems * (int64_t)a.elem_size;
    return DT_OK;
}

static places places_of_arrays(void)
{
    places p = {0};
    hid_t file;
    dt_h5_lock();
    assert_int_equal(dt_h5_open(path, &file, NULL), DT_OK);
    assert_int_equal(dt_h5_each_array(file, path, note_place, &p), DT_OK);
    H5Fclose(file);
    dt_h5_unlock();
    return p;
}

static bool is_in_array(const places *p, int64_t at)
{
    for (int i = 0; i < p->n; i++)
        if (at >= p->from[i] && at < p->until[i]) return true;
    return false;
}

/* One bit of each byte in turn: outside of the arrays opening refuses it, inside the full check. */
TEST(every_altered_bit_is_detected)
{
    dt_dataset_writer *w;
    const int32_t ids[] = {1, 2, 3, 4, 5};
    const uint8_t mask[] = {0, 1, 0, 1, 1};
    assert_int_equal(dt_dataset_create(&w, path, DT_DATASET_SFT, 257, "bytes", true), DT_OK);
    assert_int_equal(dt_dataset_add(w, ids, mask, 5), DT_OK);
    assert_int_equal(dt_dataset_end_document(w, 0.5f), DT_OK);
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
    const places arrays = places_of_arrays();
    assert_int_equal(arrays.n, 4);
    FILE *f = fopen(path, "r+");
    setbuf(f, NULL);
    fseek(f, 0, SEEK_END);
    const long nbytes = ftell(f);
    for (long at = 0; at < nbytes; at++) {
        fseek(f, at, SEEK_SET);
        const int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ 1 << (at * 5 + at / 8) % 8, f);
        dt_dataset *d;
        dt_err err = dt_dataset_open(&d, path);
        if (!is_in_array(&arrays, at) && err != DT_ERR_DATA)
            fail_msg("byte %ld of %ld: a changed bit was not noticed", at, nbytes);
        if (err == DT_OK) err = dt_dataset_verify(d, NULL, NULL), dt_dataset_close(d);
        if (err != DT_ERR_DATA) fail_msg("byte %ld of %ld: a changed bit of an array was not noticed", at, nbytes);
        dt_error_clear();
        fseek(f, at, SEEK_SET);
        fputc(byte, f);
    }
    fclose(f);
    dt_dataset *d;
    assert_int_equal(dt_dataset_open(&d, path), DT_OK);
    assert_true(dt_dataset_get_info(d)->sealed);
    dt_dataset_close(d);
    assert_int_equal(truncate(path, nbytes - 8), 0);
    must_fail("the checksum of the header is missing");
}

TEST(options_that_do_not_fit_the_file_are_refused)
{
    const struct {
        craft c;
        const char *packing;
        bool document_mask;
        dt_err err;
        const char *says;
    } cases[] = {
        {{0}, "wrapped", false, DT_ERR_USAGE, "wrapped"},
        {{0}, "bfd_split", false, DT_ERR_USAGE, "bfd_split"},
        {{.kind = "tokens"}, "none", false, DT_ERR_USAGE, "none"},
        {{.kind = "tokens", .no_offsets = true}, "bfd", false, DT_ERR_DATA, "offsets"},
        {{.kind = "tokens", .no_offsets = true}, "auto", true, DT_ERR_DATA, "offsets"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(&cases[i].c);
        dt_loader *l;
        dt_loader_options o = options();
        o.packing = cases[i].packing;
        o.document_mask = cases[i].document_mask;
        dt_error_clear();
        assert_int_equal(dt_loader_open(&l, &o), cases[i].err);
        assert_says(cases[i].says, cases[i].err == DT_ERR_USAGE ? "test.ini:3" : "");
    }
    make(&(craft){.kind = "tokens"});
    dt_loader *l;
    dt_loader_options o = options();
    o.seq_len = 10; /* 10 tokens make no row of 10 with its targets */
    dt_error_clear();
    assert_fails(dt_loader_open(&l, &o), DT_ERR_DATA, "no sample");
    o.seq_len = 9;
    o.micro_batch_size = 2;
    o.drop_last = true;
    dt_error_clear();
    assert_fails(dt_loader_open(&l, &o), DT_ERR_DATA, "drop_last");
    o.micro_batch_size = INT32_MAX;
    dt_error_clear();
    assert_int_equal(dt_loader_open(&l, &o), DT_ERR_USAGE);

    char list[300];
    snprintf(list, sizeof list, "%s, %s.2", path, path);
    char keep[128];
    strcpy(keep, path);
    snprintf(path, sizeof path, "%.100s.2", keep);
    make(&(craft){0}); /* the other kind */
    o = options();
    o.files = list;
    dt_error_clear();
    assert_fails(dt_loader_open(&l, &o), DT_ERR_DATA, "the same kind");
    unlink(path);
    strcpy(path, keep);
}

TEST(a_failed_writer_leaves_the_old_file)
{
    make(&(craft){0});
    dt_dataset_writer *w;
    const int32_t bad = 300, good = 3;
    assert_int_equal(dt_dataset_create(&w, path, DT_DATASET_TOKENS, 257, "bytes", false), DT_OK);
    assert_int_equal(dt_dataset_add(w, &bad, NULL, 1), DT_ERR_ARG);
    assert_int_equal(dt_dataset_add(w, &good, NULL, 1), DT_OK);
    dt_dataset_discard(w);
    dt_dataset *d;
    assert_int_equal(dt_dataset_open(&d, path), DT_OK);
    assert_int_equal(dt_dataset_get_info(d)->n_tokens, 10);
    dt_dataset_close(d);
    dt_error_clear();
    assert_int_equal(dt_dataset_create(&w, "/nonexistent/folder/x.h5", DT_DATASET_TOKENS, 257, "bytes", false),
                     DT_ERR_WRITE);
}

static int open_file(void **state)
{
    H5open();
    if (make_folder(state) != 0) return -1;
    strcpy(path, in_folder("data.h5"));
    return 0;
}

int main(void) { return run_listed(NULL, open_file, remove_folder); }
