/* megatron_store.c - Megatron-LM's indexed datasets: PREFIX.bin holds tokens, PREFIX.idx the starts of sequences and
 * documents. Both are read with pread, so memory does not grow with the file.
 *
 * PREFIX.idx, little-endian: "MMIDIDX\0\0", uint64 version 1, uint8 type code, uint64 S sequences, uint64 D entries of
 * the document index, int32 lengths [S] in tokens, int64 pointers [S] in bytes, int64 documents [D]: number of the
 * first sequence of each document, and S. With images, int8 modes [S] follow, which are ignored.
 *
 * Source   NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.
 *
 * Files are untrusted: sizes must match exactly, sequences must follow each other without gaps, and an id outside the
 * vocabulary is refused when it is read. */
#include "store.h"
#include "../kinds/kinds.h"
#include "dtrain/io/io.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_NBYTES = 9, HEAD_NBYTES = 34, CHUNK = 4096 };
static const char magic[MAGIC_NBYTES] = "MMIDIDX\0"; /* two zero bytes at the end */

/* Indexed by type code; size 0: not a type of token ids. */
static const struct {
    const char *name;
    int size;
    bool is_signed;
} types[] = {{"", 0, false},     {"uint8", 1, false},  {"int8", 1, true},    {"int16", 2, true},  {"int32", 4, true},
             {"int64", 8, true}, {"float64", 0, true}, {"float32", 0, true}, {"uint16", 2, false}};
enum { N_TYPES = sizeof types / sizeof types[0] };

typedef struct megatron {
    char *bin, *idx; /* paths */
    int bin_fd, idx_fd;
    int code; /* index in types */
    int64_t n_sequences, n_documents, n_tokens;
    int64_t lengths, pointers, documents; /* byte offsets in the index */
} megatron;

static char *sibling(const char *path, const char *ending)
{
    char *other = NULL;
    return asprintf(&other, "%.*s%s", (int)strlen(path) - 4, path, ending) < 0 ? NULL : other;
}

static bool is_megatron(const char *path, const char *head, size_t n_head)
{
    if (n_head >= MAGIC_NBYTES && memcmp(head, magic, MAGIC_NBYTES) == 0) return true;
    if (dt_has_ending(path, ".idx")) return true;
    if (!dt_has_ending(path, ".bin")) return false;
    char *idx = sibling(path, ".idx");
    const bool is = idx && access(idx, F_OK) == 0, hdf5 = n_head >= 4 && memcmp(head, "\x89HDF", 4) == 0;
    free(idx);
    return is || (!hdf5 && memchr(head, 0, n_head)); /* binary, but its index is missing: open reports this */
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The integer of size bytes stored at p. */
static uint64_t number_at(const unsigned char *p, int size)
{
    uint64_t x = 0;
    for (int i = 0; i < size; i++) x |= (uint64_t)p[i] << 8 * i;
    return x;
}

/* Read token ids as uint32; the caller checks them against the vocabulary. */
static dt_err read_tokens(const dt_array *a, int64_t first, int64_t n, void *out)
{
    const megatron *m = a->self;
    const int size = types[m->code].size, unused = 64 - 8 * size; /* upper bits of a shorter integer */
    unsigned char chunk[8 * CHUNK];
    uint32_t *ids = out;
    for (int64_t done = 0; done < n; done += CHUNK) {
        const int64_t k = dt_min_i64(CHUNK, n - done);
        DT_TRY(dt_read_at(m->bin_fd, m->bin, (first + done) * size, chunk, (size_t)(k * size)));
        for (int64_t i = 0; i < k; i++) {
            const uint64_t x = number_at(chunk + i * size, size);
            const int64_t id = types[m->code].is_signed ? (int64_t)(x << unused) >> unused : (int64_t)x;
            DT_CHECK(id >= 0 && id <= INT32_MAX, DT_ERR_DATA,
                     "%s: token %" PRId64 " = %" PRId64 ": expected a token id", m->bin, first + done + i, id);
            ids[done + i] = (uint32_t)id;
        }
    }
    return DT_OK;
}

static dt_err read_i64(const megatron *m, int64_t at, int64_t i, int64_t n, int64_t *out)
{
    return dt_read_at(m->idx_fd, m->idx, at + 8 * i, out, (size_t)(8 * n));
}

/* Index of the first token of sequence i. */
static dt_err token_of(const megatron *m, int64_t i, int64_t pointer, uint64_t *token)
{
    const int size = types[m->code].size;
    DT_CHECK(pointer >= 0 && pointer % size == 0 && pointer / size <= m->n_tokens, DT_ERR_DATA,
             "%s: pointer of sequence %" PRId64 ": expected a multiple of %d up to %" PRId64 ", found %" PRId64, m->idx,
             i, size, m->n_tokens * size, pointer);
    *token = (uint64_t)(pointer / size);
    return DT_OK;
}

/* Offsets of documents: the pointers of their first sequences. In most files every document is one sequence. Their
 * pointers are adjacent and are read together. */
static dt_err read_offsets(const dt_array *a, int64_t first, int64_t n, void *out)
{
    const megatron *m = a->self;
    int64_t sequence[CHUNK], pointer[CHUNK];
    uint64_t *offset = out;
    for (int64_t done = 0; done < n; done += CHUNK) {
        const int64_t k = dt_min_i64(CHUNK, n - done);
        DT_TRY(read_i64(m, m->documents, first + done, k, sequence));
        for (int64_t i = 0, base = 0, n_read = 0; i < k; i++) {
            const int64_t s = sequence[i];
            DT_CHECK(s >= 0 && s <= m->n_sequences, DT_ERR_DATA,
                     "%s: document %" PRId64 ": expected a sequence up to %" PRId64 ", found %" PRId64, m->idx,
                     first + done + i, m->n_sequences, s);
            offset[done + i] = (uint64_t)m->n_tokens;
            if (s == m->n_sequences) continue;
            if (s < base || s >= base + n_read) {
                base = s, n_read = dt_min_i64(k - i, m->n_sequences - s);
                DT_TRY(read_i64(m, m->pointers, base, n_read, pointer));
            }
            DT_TRY(token_of(m, s, pointer[s - base], &offset[done + i]));
        }
    }
    return DT_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err open_file(const char *path, const char *what, int *fd, int64_t *nbytes)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    DT_CHECK_ERRNO(*fd >= 0, DT_ERR_DATA, path, what);
    DT_CHECK_ERRNO(fstat(*fd, &st) == 0, DT_ERR_DATA, path, NULL);
    DT_CHECK(S_ISREG(st.st_mode), DT_ERR_DATA, "%s: expected a file of a Megatron dataset, found a %s", path,
             S_ISDIR(st.st_mode) ? "folder" : "special file");
    *nbytes = (int64_t)st.st_size;
    return dt_refuse_stand_in_file(path, *fd);
}

/* Read the sizes of the arrays, which must fill the index. */
static dt_err read_head(megatron *m, int64_t nbytes)
{
    unsigned char head[HEAD_NBYTES];
    DT_CHECK(nbytes >= HEAD_NBYTES, DT_ERR_DATA,
             "%s: expected the index of a Megatron dataset, at least %d bytes, found %" PRId64, m->idx, HEAD_NBYTES,
             nbytes);
    DT_TRY(dt_read_at(m->idx_fd, m->idx, 0, head, sizeof head));
    DT_CHECK(memcmp(head, magic, MAGIC_NBYTES) == 0, DT_ERR_DATA,
             "%s: expected the index of a Megatron dataset, which begins with MMIDIDX", m->idx);
    const uint64_t version = number_at(head + 9, 8), n_sequences = number_at(head + 18, 8),
                   n_documents = number_at(head + 26, 8);
    m->code = head[17];
    DT_CHECK(version == 1, DT_ERR_DATA, "%s: version: expected 1, found %" PRIu64, m->idx, version);
    DT_CHECK(m->code >= 1 && m->code < N_TYPES && types[m->code].size, DT_ERR_DATA,
             "%s: type code: expected 1 to 5 or 8 (integers), found %d%s%s", m->idx, m->code,
             m->code > 0 && m->code < N_TYPES ? ", " : "", m->code > 0 && m->code < N_TYPES ? types[m->code].name : "");
    const uint64_t most = (uint64_t)nbytes / 8;
    DT_CHECK(n_sequences <= most && n_documents <= most, DT_ERR_DATA,
             "%s: %" PRIu64 " sequences and %" PRIu64 " document entries do not fit into its %" PRId64 " bytes", m->idx,
             n_sequences, n_documents, nbytes);
    m->n_sequences = (int64_t)n_sequences;
    m->n_documents = (int64_t)n_documents - 1;
    m->lengths = HEAD_NBYTES;
    m->pointers = m->lengths + 4 * m->n_sequences;
    m->documents = m->pointers + 8 * m->n_sequences;
    const int64_t end = m->documents + 8 * (int64_t)n_documents;
    DT_CHECK(nbytes == end || nbytes == end + m->n_sequences, DT_ERR_DATA,
             "%s: expected %" PRId64 " bytes for %" PRIu64 " sequences and %" PRIu64 " document entries, found %" PRId64
             ": the file was cut short or damaged",
             m->idx, end, n_sequences, n_documents, nbytes);
    DT_CHECK(m->n_documents >= 0, DT_ERR_DATA, "%s: document index: expected at least one entry, found none", m->idx);
    return DT_OK;
}

/* Check the first and last entries of the arrays; megatron_verify checks all. */
static dt_err check_ends(const megatron *m, int64_t bin_nbytes)
{
    const int size = types[m->code].size;
    int64_t first = 0, last = 0, pointer = 0;
    int32_t length = 0;
    DT_TRY(read_i64(m, m->documents, 0, 1, &first));
    DT_TRY(read_i64(m, m->documents, m->n_documents, 1, &last));
    DT_CHECK(first == 0 && last == m->n_sequences, DT_ERR_DATA,
             "%s: document index: expected 0 to %" PRId64 ", the number of sequences, found %" PRId64 " to %" PRId64,
             m->idx, m->n_sequences, first, last);
    if (m->n_sequences > 0) {
        DT_TRY(read_i64(m, m->pointers, m->n_sequences - 1, 1, &pointer));
        DT_TRY(dt_read_at(m->idx_fd, m->idx, m->lengths + 4 * (m->n_sequences - 1), &length, sizeof length));
    }
    DT_CHECK(length >= 0 && pointer >= 0 && pointer <= bin_nbytes && bin_nbytes - pointer == (int64_t)length * size,
             DT_ERR_DATA,
             "%s: expected %" PRId64 " + %" PRId32 " x %d bytes, the end of the last sequence in %s, found %" PRId64
             ": the files do not belong together, or one was cut short",
             m->bin, pointer, length, size, m->idx, bin_nbytes);
    return DT_OK;
}

static void add_array(dt_dataset *d, int column, const char *name, int64_t n, int elem_size,
                      dt_err (*read)(const dt_array *, int64_t, int64_t, void *))
{
    d->column[column] = (dt_array){.path = d->path,
                                   .name = name,
                                   .self = d->store_self,
                                   .read = read,
                                   .n_elems = n,
                                   .type = elem_size,
                                   .elem_size = elem_size};
}

static dt_err open_files(dt_dataset *d, megatron *m)
{
    int64_t idx_nbytes, bin_nbytes;
    DT_CHECK(m->bin && m->idx, DT_ERR_MEMORY, "%s: no memory to open the dataset", d->path);
    DT_TRY(open_file(m->idx, "cannot open the index of a Megatron dataset", &m->idx_fd, &idx_nbytes));
    DT_TRY(open_file(m->bin, "cannot open the tokens of a Megatron dataset", &m->bin_fd, &bin_nbytes));
    DT_TRY(read_head(m, idx_nbytes));
    m->n_tokens = bin_nbytes / types[m->code].size;
    return check_ends(m, bin_nbytes);
}

static dt_err megatron_open(dt_dataset *d)
{
    DT_CHECK(dt_has_ending(d->path, ".bin") || dt_has_ending(d->path, ".idx"), DT_ERR_DATA,
             "%s: expected a name that ends with .idx for the index of a Megatron dataset", d->path);
    megatron *m = calloc(1, sizeof *m);
    DT_CHECK(m, DT_ERR_MEMORY, "%s: no memory to open the dataset", d->path);
    d->store_self = m;
    *m = (megatron){.bin = sibling(d->path, ".bin"), .idx = sibling(d->path, ".idx"), .bin_fd = -1, .idx_fd = -1};
    DT_TRY(open_files(d, m));
    d->info.kind = DT_DATASET_TOKENS;
    d->kind = dt_kind_of(DT_DATASET_TOKENS);
    d->info.token_type = types[m->code].name;
    d->info.n_documents = m->n_documents;
    add_array(d, DT_COL_TOKENS, "tokens", m->n_tokens, 4, read_tokens);
    add_array(d, DT_COL_OFFSETS, "documents", m->n_documents + 1, 8, read_offsets);
    return DT_OK;
}

static void megatron_close(dt_dataset *d)
{
    megatron *m = d->store_self;
    if (!m) return;
    if (m->bin_fd >= 0) close(m->bin_fd);
    if (m->idx_fd >= 0) close(m->idx_fd);
    free(m->bin);
    free(m->idx);
    free(m);
}

/* Check that each sequence begins at the end of the previous one. */
static dt_err megatron_verify(const dt_dataset *d, dt_err (*poll)(void *arg), void *arg)
{
    const megatron *m = d->store_self;
    const int size = types[m->code].size;
    int32_t length[CHUNK];
    int64_t pointer[CHUNK], end = 0;
    for (int64_t first = 0; first < m->n_sequences; first += CHUNK) {
        const int64_t k = dt_min_i64(CHUNK, m->n_sequences - first);
        if (poll) DT_TRY(poll(arg));
        DT_TRY(dt_read_at(m->idx_fd, m->idx, m->lengths + 4 * first, length, (size_t)(4 * k)));
        DT_TRY(read_i64(m, m->pointers, first, k, pointer));
        for (int64_t i = 0; i < k; i++) {
            DT_CHECK(pointer[i] == end, DT_ERR_DATA,
                     "%s: pointer of sequence %" PRId64 ": expected %" PRId64
                     ", the end of the sequence before it, found "
                     "%" PRId64,
                     m->idx, first + i, end, pointer[i]);
            DT_CHECK(length[i] >= 0 && length[i] <= m->n_tokens - end / size, DT_ERR_DATA,
                     "%s: length of sequence %" PRId64 ": expected 0 to %" PRId64 " tokens, found %" PRId32, m->idx,
                     first + i, m->n_tokens - end / size, length[i]);
            end += (int64_t)length[i] * size;
        }
    }
    return DT_OK;
}

const dt_store dt_store_megatron = {
    .foreign = true, .is = is_megatron, .open = megatron_open, .close = megatron_close, .verify = megatron_verify};
