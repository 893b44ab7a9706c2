/* test_data_megatron.c - Megatron-LM's .bin and .idx files: what its own builder wrote
 * (tests/make_megatron_fixtures.py), files of all sizes and types against HDF5 files of the same documents, and damaged
 * files. */
#include "folder.h"
#include "dtrain/data/data.h"
#include "dtrain/data/dataset.h"
#include "../src/data/file/dataset_file.h"

static char bin[128], idx[128], h5[128];

/* ---- files in memory --------------------------------------------------------------------------------------------- */

static const int sizes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2}; /* by type code */
enum { UINT8 = 1, INT8, INT16, INT32, INT64, FLOAT64, FLOAT32, UINT16 };
enum { MOST_DOCUMENTS = 60, MOST_NBYTES = 1 << 16 };

typedef struct file {
    unsigned char at[MOST_NBYTES];
    size_t n;
} file;

static void put(file *f, uint64_t x, int nbytes)
{
    for (int i = 0; i < nbytes; i++) f->at[f->n++] = (unsigned char)(x >> 8 * i);
}

static uint64_t rng_state = 3;
static uint32_t draw(uint32_t n) { return (uint32_t)(dt_mix64(rng_state++) % n); }

typedef struct documents {
    int n, n_tok;
    int start[MOST_DOCUMENTS + 1];
    int32_t id[4096];
} documents;

static void draw_documents(documents *d, int n, int longest, int32_t vocab)
{
    *d = (documents){.n = n};
    for (int i = 0; i < n; i++) {
        for (uint32_t k = draw((uint32_t)longest + 1); k > 0; k--) d->id[d->n_tok++] = (int32_t)draw((uint32_t)vocab);
        d->start[i + 1] = d->n_tok;
    }
}

/* length: of the sequences; first: the first sequence of each document, and their number. */
static void put_index(file *x, int code, int n_sequences, const int *length, int n_documents, const int *first)
{
    uint64_t pointer = 0;
    memcpy(x->at, "MMIDIDX\0\0", x->n = 9);
    put(x, 1, 8);
    put(x, (uint64_t)code, 1);
    put(x, (uint64_t)n_sequences, 8);
    put(x, (uint64_t)n_documents + 1, 8);
    for (int i = 0; i < n_sequences; i++) put(x, (uint64_t)length[i], 4);
    for (int i = 0; i < n_sequences; i++) put(x, pointer, 8), pointer += (uint64_t)(length[i] * sizes[code]);
    for (int i = 0; i <= n_documents; i++) put(x, (uint64_t)first[i], 8);
}

/* As IndexedDatasetBuilder writes them. Of a document several sequences: up to `most` tokens each. */
static void build(const documents *d, int code, int most, file *b, file *x)
{
    int length[4096], n_sequences = 0, first[MOST_DOCUMENTS + 1] = {0};
    b->n = 0;
    for (int i = 0; i < d->n; i++) {
        int left = d->start[i + 1] - d->start[i];
        do {
            length[n_sequences] = left < most ? left : most;
            left -= length[n_sequences++];
        } while (left > 0);
        first[i + 1] = n_sequences;
    }
    for (int t = 0; t < d->n_tok; t++) put(b, (uint64_t)(int64_t)d->id[t], sizes[code]);
    put_index(x, code, n_sequences, length, d->n, first);
}

static void put_file(const char *path, const file *f)
{
    FILE *to = fopen(path, "wb");
    assert_true(to && fwrite(f->at, 1, f->n, to) == f->n && fclose(to) == 0);
}

static void write_both(const file *b, const file *x)
{
    put_file(bin, b);
    put_file(idx, x);
}

static void write_h5(const documents *d, int64_t vocab)
{
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, h5, DT_DATASET_TOKENS, vocab, "", false), DT_OK);
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(dt_dataset_add(w, d->id + d->start[i], NULL, d->start[i + 1] - d->start[i]), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

/* ---- what is read ------------------------------------------------------------------------------------------------ */

/* Each line as Megatron's builder wrote it: its bytes, and 256 for the types that have it; int32 without blanks. */
TEST(files_of_megatron_are_read)
{
    static const char *const names[] = {"uint8", "int8", "int16", "int32", "int64", "uint16"};
    for (int k = 0; k < 6; k++) {
        char path[128], line[256];
        const bool ends = k > 1, joined = strcmp(names[k], "int32") == 0;
        FILE *lines = fopen("tests/data/megatron/lines.txt", "r");
        dt_dataset *d;
        snprintf(path, sizeof path, "tests/data/megatron/%s.%s", names[k], k % 2 ? "idx" : "bin");
        assert_non_null(lines);
        assert_int_equal(dt_dataset_open(&d, path), DT_OK);
        const dt_dataset_info *info = dt_dataset_get_info(d);
        assert_true(info->kind == DT_DATASET_TOKENS && info->n_documents == 40 && info->vocab_size == 0);
        assert_string_equal(info->token_type, names[k]);
        for (int i = 0; fgets(line, sizeof line, lines); i++) {
            int64_t first, n, at = 0;
            int32_t ids[256];
            assert_int_equal(dt_dataset_document(d, i, &first, &n), DT_OK);
            assert_true(n < 256);
            assert_int_equal(dt_dataset_read_tokens(d, first, n, ids), DT_OK);
            for (const char *p = line; *p != '\n'; p++)
                if (!joined || *p != ' ') assert_int_equal(ids[at++], *p);
            if (ends) assert_int_equal(ids[at++], 256);
            assert_int_equal(at, n);
        }
        assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_OK);
        dt_dataset_close(d);
        fclose(lines);
    }
}

static void check_same_batches(const char *packing, bool document_mask, int64_t seq_len)
{
    dt_loader *l[2];
    dt_loader_options o = {.where = "x.ini",
                           .seq_len = seq_len,
                           .packing = packing,
                           .document_mask = document_mask,
                           .shuffle = true,
                           .train_batch_size = 3,
                           .micro_batch_size = 2,
                           .nranks = 1,
                           .vocab_size = 200,
                           .verified = true};
    for (int k = 0; k < 2; k++) {
        o.files = k ? h5 : bin;
        assert_int_equal(dt_loader_open(&l[k], &o), DT_OK);
    }
    assert_int_equal(dt_loader_info(l[0])->n_samples, dt_loader_info(l[1])->n_samples);
    for (int64_t step = 0; step < dt_loader_info(l[0])->steps_per_epoch; step++)
        for (int micro = 0; micro < dt_loader_n_micro(l[0], step); micro++) {
            const dt_batch *a, *b;
            assert_int_equal(dt_loader_batch(l[0], step, micro, &a), DT_OK);
            assert_int_equal(dt_loader_batch(l[1], step, micro, &b), DT_OK);
            assert_true(a->n_tok == b->n_tok && a->n_seq == b->n_seq);
            assert_memory_equal(a->token, b->token, (size_t)a->n_tok * sizeof *a->token);
            assert_memory_equal(a->target, b->target, (size_t)a->n_tok * sizeof *a->target);
            assert_memory_equal(a->seq_start, b->seq_start, (size_t)(a->n_seq + 1) * sizeof *a->seq_start);
        }
    for (int k = 0; k < 2; k++) dt_loader_close(l[k]);
}

TEST(batches_are_those_of_an_hdf5_file)
{
    static file b, x;
    static documents d;
    static const int codes[] = {UINT8, INT16, INT32, INT64, UINT16};
    for (int k = 0; k < 5; k++)
        for (int most = 3; most <= 1000; most += 997) {
            draw_documents(&d, 40, 30, 200);
            build(&d, codes[k], most, &b, &x);
            write_both(&b, &x);
            write_h5(&d, 200);
            check_same_batches("wrapped", false, 16);
            check_same_batches("wrapped", true, 16);
            check_same_batches("bfd", true, 24);
            check_same_batches("bfd_split", true, 24);
        }
}

/* ---- untrusted input --------------------------------------------------------------------------------------------- */

/* Open and read everything. */
static dt_err read_all(int64_t vocab)
{
    dt_dataset *d;
    DT_TRY(dt_dataset_open(&d, bin));
    dt_dataset_set_vocabulary(d, vocab);
    const dt_err err = dt_dataset_verify(d, NULL, NULL);
    dt_dataset_close(d);
    return err;
}

static void set(file *f, size_t at, uint64_t x, int nbytes)
{
    for (int i = 0; i < nbytes; i++) f->at[at + (size_t)i] = (unsigned char)(x >> 8 * i);
}

TEST(damaged_files_are_refused)
{
    static file b, x, good_b, good_x;
    static documents d;
    draw_documents(&d, 20, 9, 100);
    d.start[20] = d.n_tok;
    build(&d, INT32, 1000, &good_b, &good_x);
    const size_t lengths = 34, pointers = lengths + 4 * 20, entries = pointers + 8 * 20;
    const uint64_t after = 4 * (uint64_t)(d.start[5] - d.start[4]) + 4 * (uint64_t)d.start[4];
    const struct {
        bool tokens; /* of the .bin */
        size_t at;
        uint64_t value;
        int nbytes;
        const char *want;
    } cases[] = {
        {false, 0, 'X', 1, "expected the index of a Megatron dataset, which begins with MMIDIDX"},
        {false, 8, 1, 1, "which begins with MMIDIDX"},
        {false, 9, 2, 8, "version: expected 1, found 2"},
        {false, 9, UINT64_MAX, 8, "version: expected 1, found 18446744073709551615"},
        {false, 17, 0, 1, "type code: expected 1 to 5 or 8 (integers), found 0"},
        {false, 17, FLOAT64, 1, "found 6, float64"},
        {false, 17, FLOAT32, 1, "found 7, float32"},
        {false, 17, 9, 1, "found 9"},
        {false, 17, INT64, 1, "the files do not belong together, or one was cut short"},
        {false, 18, 21, 8, "bytes for 21 sequences and 21 document entries, found"},
        {false, 18, UINT64_MAX, 8, "18446744073709551615 sequences and 21 document entries do not fit"},
        {false, 18, UINT64_MAX / 4 + 2, 8, "do not fit"},
        {false, 26, UINT64_MAX, 8, "do not fit"},
        {false, 26, 0, 8, "bytes for 20 sequences and 0 document entries, found"},
        {false, lengths + 4 * 19, UINT32_MAX, 4, "the files do not belong together"},
        {false, lengths + 4 * 4, UINT32_MAX, 4, "length of sequence 4: expected 0 to"},
        {false, lengths + 4 * 4, (uint64_t)(d.start[5] - d.start[4] + 1), 4, "pointer of sequence 5: expected"},
        {false, pointers + 8 * 5, after + 2, 8, "pointer of sequence 5: expected"},
        {false, pointers + 8 * 5, UINT64_MAX, 8, "pointer of sequence 5: expected"},
        {false, entries, 1, 8, "document index: expected 0 to 20, the number of sequences, found 1 to 20"},
        {false, entries + 8 * 20, 19, 8, "found 0 to 19"},
        {false, entries + 8 * 7, 21, 8, "document 7: expected a sequence up to 20, found 21"},
        {false, entries + 8 * 7, UINT64_MAX, 8, "document 7: expected a sequence up to 20, found -1"},
        {false, entries + 8 * 7, 20, 8, "offsets must not decrease"},
        {true, 4 * 3, UINT32_MAX, 4, "token 3 = -1: expected a token id"},
        {true, 4 * 3, 100, 4, "tokens[3] = 100, expected a token id below vocab_size = 100"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        b = good_b, x = good_x;
        set(cases[k].tokens ? &b : &x, cases[k].at, cases[k].value, cases[k].nbytes);
        write_both(&b, &x);
        assert_fails(read_all(100), DT_ERR_DATA, cases[k].want);
    }
    write_both(&good_b, &good_x);
    assert_int_equal(read_all(100), DT_OK);
    assert_int_equal(unlink(idx), 0);
    assert_fails(read_all(100), DT_ERR_DATA, "data.idx: cannot open the index of a Megatron dataset");
    put_file(idx, &good_x);
    assert_int_equal(unlink(bin), 0);
    dt_dataset *opened;
    assert_fails(dt_dataset_open(&opened, idx), DT_ERR_DATA, "cannot open the tokens of a Megatron dataset");
    build(&d, INT64, 1000, &b, &x);
    set(&b, 8 * 2, UINT64_C(1) << 33, 8);
    write_both(&b, &x);
    assert_fails(read_all(100), DT_ERR_DATA, "token 2 = 8589934592: expected a token id");
}

/* Every length of either file, and changed bytes: read or refused, never more. */
TEST(any_bytes_are_read_or_refused)
{
    static file b, x, good_b, good_x;
    static documents d;
    draw_documents(&d, 12, 9, 100);
    build(&d, UINT16, 4, &good_b, &good_x);
    for (size_t n = 0; n < good_x.n; n++) {
        x = good_x, x.n = n;
        write_both(&good_b, &x);
        assert_int_equal(read_all(100), DT_ERR_DATA);
    }
    for (size_t n = 0; n < good_b.n; n++) {
        b = good_b, b.n = n;
        write_both(&b, &good_x);
        assert_int_equal(read_all(100), DT_ERR_DATA);
    }
    int n_refused = 0;
    for (int k = 0; k < 3000; k++) {
        x = good_x;
        for (uint32_t n = 1 + draw(3); n > 0; n--) x.at[draw((uint32_t)x.n)] ^= (unsigned char)(1 << draw(8));
        write_both(&good_b, &x);
        const dt_err err = read_all(100);
        assert_true(err == DT_OK || err == DT_ERR_DATA);
        n_refused += err == DT_ERR_DATA;
    }
    assert_true(n_refused > 2000);
}

TEST(the_model_sets_the_limit_of_ids)
{
    static file b, x;
    static documents d;
    dt_loader *l;
    const dt_batch *batch;
    draw_documents(&d, 20, 9, 100);
    d.id[7] = 150;
    build(&d, UINT16, 1000, &b, &x);
    write_both(&b, &x);
    dt_loader_options o = {.files = bin,
                           .where = "x.ini",
                           .seq_len = 8,
                           .train_batch_size = 1,
                           .micro_batch_size = 1,
                           .nranks = 1,
                           .vocab_size = 150,
                           .verified = true};
    assert_int_equal(dt_loader_open(&l, &o), DT_OK);
    assert_fails(dt_loader_batch(l, 0, 0, &batch), DT_ERR_DATA,
                 "tokens[7] = 150, expected a token id below vocab_size = 150");
    dt_loader_close(l);
    o.vocab_size = 151;
    assert_int_equal(dt_loader_open(&l, &o), DT_OK);
    assert_int_equal(dt_loader_batch(l, 0, 0, &batch), DT_OK);
    dt_loader_close(l);
}

static uint64_t fingerprint(const char *path)
{
    dt_dataset *d;
    uint64_t hash;
    assert_int_equal(dt_dataset_open(&d, path), DT_OK);
    assert_int_equal(dt_dataset_fingerprint(d, &hash), DT_OK);
    dt_dataset_close(d);
    return hash;
}

TEST(the_fingerprint_covers_both_files)
{
    static file b, x, good_b, good_x;
    static documents d;
    draw_documents(&d, 20, 9, 100);
    d.start[20] = d.n_tok;
    build(&d, UINT16, 1, &good_b, &good_x);
    const size_t entries = good_x.n - 8 * 21, last = 2 * (size_t)(d.n_tok - 1);
    write_both(&good_b, &good_x);
    const uint64_t good = fingerprint(bin);
    assert_true(fingerprint(idx) == good);
    b = good_b, x = good_x;
    x.at[entries + 8 * 9] = x.at[entries + 8 * 8]; /* document 8 becomes empty, document 9 longer */
    write_both(&good_b, &x);
    assert_true(fingerprint(bin) != good && fingerprint(idx) != good);
    b.at[last] ^= 1;
    write_both(&b, &good_x);
    assert_true(fingerprint(bin) != good && fingerprint(idx) != good);
    write_both(&good_b, &good_x);
    assert_true(fingerprint(bin) == good);
}

/* Copied in chunks of 65536 tokens, which end within documents: the choice between training and validation depends on a
 * document alone. */
TEST(equal_documents_are_on_one_side_of_the_split)
{
    enum { N = 330, LEN = 997, KINDS = 8 };
    static file x;
    static int length[N], first[N + 1];
    char held_out[128];
    int n[2][KINDS] = {{0}};
    FILE *to = fopen(bin, "wb");
    for (int i = 0; i < N; i++) length[i] = LEN, first[i + 1] = i + 1;
    for (int i = 0; i < N * LEN; i++) fputc(i / LEN % KINDS, to);
    assert_int_equal(fclose(to), 0);
    put_index(&x, UINT8, N, length, N, first);
    put_file(idx, &x);
    snprintf(held_out, sizeof held_out, "%s", in_folder("held_out.h5"));
    const char *const inputs[] = {bin};
    dt_make_options o = {.output = h5,
                         .validation = held_out,
                         .validation_fraction = 0.5,
                         .inputs = inputs,
                         .n_inputs = 1,
                         .kind = DT_ANY_KIND,
                         .format = DT_INPUT_AUTO,
                         .documents = DT_DOCUMENTS_FILES,
                         .tokenizer = "bytes",
                         .chat_template = "auto",
                         .mask = DT_MASK_AUTO,
                         .prefer = DT_PREFER_BETTER,
                         .truncate = DT_TRUNCATE_AUTO,
                         .force = true};
    dt_make_stats stats;
    assert_int_equal(dt_make_datasets(&o, &stats), DT_OK);
    for (int side = 0; side < 2; side++) {
        dt_dataset *d;
        int32_t id;
        assert_int_equal(dt_dataset_open(&d, side ? held_out : h5), DT_OK);
        for (int64_t i = 0, at, len; i < dt_dataset_get_info(d)->n_documents; i++) {
            assert_int_equal(dt_dataset_document(d, i, &at, &len), DT_OK);
            assert_int_equal(dt_dataset_read_tokens(d, at, 1, &id), DT_OK);
            assert_int_equal(len, LEN);
            n[side][id]++;
        }
        dt_dataset_close(d);
    }
    for (int k = 0; k < KINDS; k++) assert_true(n[0][k] == 0 || n[1][k] == 0);
}

static int open_files(void **state)
{
    if (make_folder(state) != 0) return -1;
    strcpy(bin, in_folder("data.bin")), strcpy(idx, in_folder("data.idx")), strcpy(h5, in_folder("data.h5"));
    return 0;
}

int main(void) { return run_listed(NULL, open_files, remove_folder); }
