/* parquet.c - DuckDB reads with one thread, one chunk at a time; its vectors are converted to JSON here.
 * DuckDB opens the file by descriptor, because it expands * in names and takes = for a partition column. */
#include "parquet.h"
#include "duckdb.h"
#include "dtrain/chat/chat.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define END_OF_SELECT "', hive_partitioning = false)"
#define BYTES_NAME "\001%zu+%zu" /* starts unlike any path: offset after the JSON + number of bytes */
enum { MAX_DEPTH = 64 };

/* Type of a column, an element or a field. */
typedef struct dt_type {
    int id;
    char *name;            /* name of a column or field */
    struct dt_type *child; /* [n]: the element of a list, the fields of a struct */
    int n;
} dt_type;

typedef struct buffer {
    char *at;
    size_t n, n_alloc;
} buffer;

typedef struct parquet {
    const duckdb_calls *duck;
    dt_input *in;
    char file[64]; /* path that DuckDB opens */
    void *database, *connection;
    dt_type row;         /* struct of all columns */
    int64_t n_rows;      /* in the file */
    int64_t n_done;      /* delivered so far */
    buffer json, binary; /* of the current row */
} parquet;

/* ---- text -------------------------------------------------------------------------------------------------------- */

static dt_err put(buffer *b, const char *text, size_t n)
{
    if (n > b->n_alloc - b->n) {
        const size_t want = 2 * b->n_alloc > b->n + n ? 2 * b->n_alloc : b->n + n + 4096;
        char *more = realloc(b->at, want);
        DT_CHECK(more, DT_ERR_MEMORY, "no memory for a row of %zu bytes", want);
        b->at = more;
        b->n_alloc = want;
    }
    if (n > 0) memcpy(b->at + b->n, text, n);
    b->n += n;
    return DT_OK;
}

static dt_err put_word(buffer *b, const char *word) { return put(b, word, strlen(word)); }

__attribute__((format(printf, 2, 3))) static dt_err put_number(buffer *b, const char *format, ...)
{
    char text[64];
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return put(b, text, (size_t)n);
}

/* Write a real so that it stays one: 1.0, not 1. */
static dt_err put_real(buffer *b, double x, int digits)
{
    if (isnan(x)) return put_word(b, "NaN");
    if (isinf(x)) return put_word(b, x > 0 ? "Infinity" : "-Infinity");
    char text[32];
    snprintf(text, sizeof text, "%.*g", digits, x);
    DT_TRY(put_word(b, text));
    return put_word(b, text[strspn(text, "-0123456789")] ? "" : ".0");
}

static dt_err put_text(buffer *b, const char *text, size_t n)
{
    DT_TRY(put(b, "\"", 1));
    for (size_t i = 0, from = 0; i <= n; i++) {
        const unsigned char c = i < n ? (unsigned char)text[i] : '"';
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        DT_TRY(put(b, text + from, i - from));
        from = i + 1;
        if (i < n) DT_TRY(c < 0x20 ? put_number(b, "\\u%04x", c) : put(b, c == '"' ? "\\\"" : "\\\\", 2));
    }
    return put(b, "\"", 1);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* First line of DuckDB's message, with our file name instead of the path that DuckDB was given. */
static dt_err refuse(const parquet *p, const char *message)
{
    char text[512] = "";
    size_t n = 0;
    const size_t n_file = strlen(p->file);
    if (!message || !message[0]) message = "DuckDB gives no reason";
    while (*message && *message != '\n' && n < sizeof text - 1) {
        const bool file = strncmp(message, p->file, n_file) == 0;
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", file ? 1 << 20 : 1, file ? p->in->path : message);
        message += file ? n_file : 1;
    }
    if (p->n_done == 0) return dt_fail(DT_ERR_DATA, "%s: cannot be read as Parquet: %s", p->in->path, text);
    return dt_fail(DT_ERR_DATA, "%s: cannot be read as Parquet after row %" PRId64 ": %s", p->in->path, p->n_done,
                   text);
}

static dt_err no_library(const char *path)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", dt_error_message());
    dt_error_clear();
    return dt_fail(DT_ERR_DATA,
                   "%s: reading Parquet needs DuckDB's library: %s. Install the library (conda: libduckdb; Spack, "
                   "Homebrew: duckdb; or from duckdb.org) and set DTRAIN_DUCKDB to its libduckdb.so or the directory "
                   "of it; or convert the file to JSON lines (docs/data.md)",
                   path, why);
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static void free_type(dt_type *t)
{
    for (int i = 0; i < t->n; i++) free_type(&t->child[i]);
    free(t->child);
    free(t->name);
    *t = (dt_type){0};
}

static dt_err add_children(dt_type *t, uint64_t n)
{
    t->child = n <= INT32_MAX ? calloc(n ? n : 1, sizeof *t->child) : NULL;
    DT_CHECK(t->child, DT_ERR_MEMORY, "no memory for %" PRIu64 " columns", n);
    t->n = (int)n;
    return DT_OK;
}

static dt_err read_type(const parquet *p, void *type, int depth, dt_type *t)
{
    const duckdb_calls *d = p->duck;
    t->id = type ? d->get_type_id(type) : 0;
    if (t->id != DUCKDB_LIST && t->id != DUCKDB_STRUCT) return DT_OK;
    DT_CHECK(depth < MAX_DEPTH, DT_ERR_DATA, "%s: columns are nested more than %d levels deep", p->in->path, MAX_DEPTH);
    DT_TRY(add_children(t, t->id == DUCKDB_LIST ? 1 : d->struct_type_child_count(type)));
    for (int i = 0; i < t->n; i++) {
        void *child =
            t->id == DUCKDB_LIST ? d->list_type_child_type(type) : d->struct_type_child_type(type, (uint64_t)i);
        char *name = t->id == DUCKDB_LIST ? NULL : d->struct_type_child_name(type, (uint64_t)i);
        t->child[i].name = strdup(name ? name : "");
        const dt_err err = t->child[i].name ? read_type(p, child, depth + 1, &t->child[i])
                                            : dt_fail(DT_ERR_MEMORY, "no memory for the names of columns");
        if (name) d->free(name);
        d->destroy_logical_type(&child);
        DT_TRY(err);
    }
    return DT_OK;
}

static dt_err read_columns(parquet *p, duckdb_result *result)
{
    DT_TRY(add_children(&p->row, p->duck->column_count(result)));
    for (int i = 0; i < p->row.n; i++) {
        const char *name = p->duck->column_name(result, (uint64_t)i);
        dt_type *t = &p->row.child[i];
        t->name = strdup(name ? name : "");
        DT_CHECK(t->name, DT_ERR_MEMORY, "no memory for the names of columns");
        void *type = p->duck->column_logical_type(result, (uint64_t)i);
        const dt_err err = read_type(p, type, 0, t);
        p->duck->destroy_logical_type(&type);
        DT_TRY(err);
    }
    return DT_OK;
}

/* DuckDB's name of a scalar type that is written as JSON; NULL: unsupported. */
static const char *known_name(int id)
{
    static const char *const names[] = {[DUCKDB_BOOLEAN] = "BOOLEAN",
                                        [DUCKDB_TINYINT] = "TINYINT",
                                        [DUCKDB_SMALLINT] = "SMALLINT",
                                        [DUCKDB_INTEGER] = "INTEGER",
                                        [DUCKDB_BIGINT] = "BIGINT",
                                        [DUCKDB_UTINYINT] = "UTINYINT",
                                        [DUCKDB_USMALLINT] = "USMALLINT",
                                        [DUCKDB_UINTEGER] = "UINTEGER",
                                        [DUCKDB_UBIGINT] = "UBIGINT",
                                        [DUCKDB_FLOAT] = "FLOAT",
                                        [DUCKDB_DOUBLE] = "DOUBLE",
                                        [DUCKDB_VARCHAR] = "VARCHAR",
                                        [DUCKDB_BLOB] = "BLOB"};
    return id >= 0 && (size_t)id < sizeof names / sizeof names[0] ? names[id] : NULL;
}

static bool is_known(const dt_type *t)
{
    for (int i = 0; i < t->n; i++)
        if (!is_known(&t->child[i])) return false;
    return known_name(t->id) || t->id == DUCKDB_LIST || t->id == DUCKDB_STRUCT;
}

/* Replace unsupported types: wide numbers by reals, all others by texts. */
static void make_known(dt_type *t)
{
    for (int i = 0; i < t->n; i++) make_known(&t->child[i]);
    const bool number = t->id == DUCKDB_DECIMAL || t->id == DUCKDB_HUGEINT || t->id == DUCKDB_UHUGEINT;
    if (!is_known(t)) t->id = number ? DUCKDB_DOUBLE : DUCKDB_VARCHAR;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static dt_err put_bytes(parquet *p, const duckdb_string *s)
{
    const size_t n = s->near.nbytes, first = p->binary.n;
    char name[64];
    snprintf(name, sizeof name, BYTES_NAME, first, n);
    DT_TRY(put(&p->binary, n <= sizeof s->near.bytes ? s->near.bytes : s->far.bytes, n));
    DT_TRY(put_word(&p->json, "{\"" DT_IMAGE_OF_ROW "\":"));
    DT_TRY(put_text(&p->json, name, strlen(name)));
    return put_word(&p->json, "}");
}

static dt_err put_scalar(parquet *p, int id, const void *data, uint64_t row)
{
    const duckdb_string *s = (const duckdb_string *)data + row;
    buffer *b = &p->json;
    switch (id) {
    case DUCKDB_BOOLEAN:
        return put_word(b, ((const bool *)data)[row] ? "true" : "false");
    case DUCKDB_TINYINT:
        return put_number(b, "%d", ((const int8_t *)data)[row]);
    case DUCKDB_SMALLINT:
        return put_number(b, "%d", ((const int16_t *)data)[row]);
    case DUCKDB_INTEGER:
        return put_number(b, "%" PRId32, ((const int32_t *)data)[row]);
    case DUCKDB_BIGINT:
        return put_number(b, "%" PRId64, ((const int64_t *)data)[row]);
    case DUCKDB_UTINYINT:
        return put_number(b, "%u", ((const uint8_t *)data)[row]);
    case DUCKDB_USMALLINT:
        return put_number(b, "%u", ((const uint16_t *)data)[row]);
    case DUCKDB_UINTEGER:
        return put_number(b, "%" PRIu32, ((const uint32_t *)data)[row]);
    case DUCKDB_UBIGINT:
        return put_number(b, "%" PRIu64, ((const uint64_t *)data)[row]);
    case DUCKDB_FLOAT:
        return put_real(b, (double)((const float *)data)[row], 9);
    case DUCKDB_DOUBLE:
        return put_real(b, ((const double *)data)[row], 17);
    case DUCKDB_BLOB:
        return put_bytes(p, s);
    default:
        return put_text(b, s->near.nbytes <= sizeof s->near.bytes ? s->near.bytes : s->far.bytes, s->near.nbytes);
    }
}

static dt_err put_value(parquet *p, const dt_type *t, void *vector, uint64_t row);

static dt_err put_list(parquet *p, const dt_type *t, void *vector, duckdb_list_entry entry)
{
    void *elements = p->duck->list_vector_get_child(vector);
    DT_TRY(put_word(&p->json, "["));
    for (uint64_t i = 0; i < entry.length; i++) {
        if (i > 0) DT_TRY(put_word(&p->json, ","));
        DT_TRY(put_value(p, t->child, elements, entry.offset + i));
    }
    return put_word(&p->json, "]");
}

static dt_err put_key(parquet *p, const dt_type *t, int i)
{
    if (i > 0) DT_TRY(put_word(&p->json, ","));
    DT_TRY(put_text(&p->json, t->name, strlen(t->name)));
    return put_word(&p->json, ":");
}

static dt_err put_struct(parquet *p, const dt_type *t, void *vector, uint64_t row)
{
    DT_TRY(put_word(&p->json, "{"));
    for (int i = 0; i < t->n; i++) {
        DT_TRY(put_key(p, &t->child[i], i));
        DT_TRY(put_value(p, &t->child[i], p->duck->struct_vector_get_child(vector, (uint64_t)i), row));
    }
    return put_word(&p->json, "}");
}

static dt_err put_value(parquet *p, const dt_type *t, void *vector, uint64_t row)
{
    const uint64_t *valid = p->duck->vector_get_validity(vector);
    if (valid && !(valid[row / 64] >> row % 64 & 1)) return put_word(&p->json, "null");
    if (t->id == DUCKDB_STRUCT) return put_struct(p, t, vector, row);
    const void *data = p->duck->vector_get_data(vector);
    return t->id == DUCKDB_LIST ? put_list(p, t, vector, ((const duckdb_list_entry *)data)[row])
                                : put_scalar(p, t->id, data, row);
}

static dt_err put_row(parquet *p, void *chunk, uint64_t row)
{
    p->json.n = p->binary.n = 0;
    DT_TRY(put_word(&p->json, "{"));
    for (int i = 0; i < p->row.n; i++) {
        DT_TRY(put_key(p, &p->row.child[i], i));
        DT_TRY(put_value(p, &p->row.child[i], p->duck->data_chunk_get_vector(chunk, (uint64_t)i), row));
    }
    return put_word(&p->json, "}");
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Disable access to other files and hosts, and use one thread. */
static dt_err open_database(parquet *p)
{
    static const char *const settings[][2] = {
        {"threads", "1"}, {"autoinstall_known_extensions", "false"}, {"autoload_known_extensions", "false"}};
    const duckdb_calls *d = p->duck;
    void *config = NULL;
    char *why = NULL;
    bool ok = d->create_config(&config) == 0;
    for (size_t i = 0; ok && i < sizeof settings / sizeof settings[0]; i++)
        ok = d->set_config(config, settings[i][0], settings[i][1]) == 0;
    ok = ok && d->open_ext(NULL, &p->database, config, &why) == 0;
    ok = ok && d->connect(p->database, &p->connection) == 0;
    const dt_err err = ok ? DT_OK : refuse(p, why ? why : "cannot start DuckDB");
    if (why) d->free(why);
    d->destroy_config(&config);
    return err;
}

typedef dt_err result_fn(parquet *p, duckdb_result *result);

static dt_err with_result(parquet *p, const char *sql, result_fn *fn)
{
    duckdb_result result = {0};
    const bool ok = p->duck->query(p->connection, sql, &result) == 0;
    const dt_err err = !ok ? refuse(p, p->duck->result_error(&result)) : fn ? fn(p, &result) : DT_OK;
    p->duck->destroy_result(&result);
    return err;
}

static dt_err take_count(parquet *p, duckdb_result *result)
{
    void *chunk = p->duck->fetch_chunk(*result);
    const int64_t *n = chunk ? p->duck->vector_get_data(p->duck->data_chunk_get_vector(chunk, 0)) : NULL;
    if (n) p->n_rows = *n;
    if (chunk) p->duck->destroy_data_chunk(&chunk);
    return n ? DT_OK : refuse(p, p->duck->result_error(result));
}

static dt_err put_name(buffer *sql, const char *name)
{
    DT_TRY(put_word(sql, "\""));
    for (; *name; name++) DT_TRY(*name == '"' ? put_word(sql, "\"\"") : put(sql, name, 1));
    return put_word(sql, "\"");
}

/* Append a supported type in SQL. */
static dt_err put_type(buffer *sql, const dt_type *t)
{
    if (t->id != DUCKDB_LIST && t->id != DUCKDB_STRUCT) return put_word(sql, known_name(t->id));
    if (t->id == DUCKDB_LIST) {
        DT_TRY(put_type(sql, t->child));
        return put_word(sql, "[]");
    }
    DT_TRY(put_word(sql, "STRUCT"));
    for (int i = 0; i < t->n; i++) {
        DT_TRY(put_word(sql, i > 0 ? "," : "("));
        DT_TRY(put_name(sql, t->child[i].name));
        DT_TRY(put_word(sql, " "));
        DT_TRY(put_type(sql, &t->child[i]));
    }
    return put_word(sql, ")");
}

/* Cast columns that contain unsupported types. Their supported parts keep their types. */
static dt_err write_select(const parquet *p, buffer *sql)
{
    for (int i = 0; i < p->row.n; i++) {
        dt_type *t = &p->row.child[i];
        const bool cast = !is_known(t);
        DT_TRY(put_word(sql, i > 0 ? "," : "SELECT "));
        DT_TRY(put_word(sql, cast ? "CAST(" : ""));
        DT_TRY(put_name(sql, t->name));
        if (!cast) continue;
        make_known(t);
        DT_TRY(put_word(sql, " AS "));
        DT_TRY(put_type(sql, t));
        DT_TRY(put_word(sql, ")"));
    }
    DT_TRY(put_word(sql, " FROM read_parquet('"));
    DT_TRY(put_word(sql, p->file));
    return put(sql, END_OF_SELECT, sizeof END_OF_SELECT);
}

static dt_err each_row_of_chunk(parquet *p, void *chunk, dt_row_fn *fn, void *self)
{
    const uint64_t n = p->duck->data_chunk_get_size(chunk);
    for (uint64_t i = 0; i < n; i++) {
        DT_TRY(put_row(p, chunk, i));
        const size_t nbytes = p->json.n;
        DT_TRY(put(&p->json, p->binary.at, p->binary.n));
        DT_TRY(fn(self, p->json.at, nbytes, p->binary.n, ++p->n_done));
    }
    return DT_OK;
}

/* Progress counts the file's bytes in proportion to the rows read. */
static dt_err each_chunk(parquet *p, duckdb_result *result, dt_row_fn *fn, void *self)
{
    dt_input *in = p->in;
    struct stat st;
    DT_CHECK_ERRNO(fstat(in->fd, &st) == 0, DT_ERR_DATA, in->path, "cannot be read");
    const int64_t before = *in->n_read - (int64_t)in->end;
    for (void *chunk; (chunk = p->duck->fetch_chunk(*result));) {
        const dt_err err = in->stopped && in->stopped(in->stopped_self)
                               ? dt_fail(DT_ERR_STOP, "%s: stopped while reading", in->path)
                               : each_row_of_chunk(p, chunk, fn, self);
        p->duck->destroy_data_chunk(&chunk);
        DT_TRY(err);
        if (p->n_rows > 0) *in->n_read = before + (int64_t)((double)st.st_size * (double)p->n_done / (double)p->n_rows);
    }
    const char *why = p->duck->result_error(result);
    if (why && why[0]) return refuse(p, why);
    if (p->n_done != p->n_rows) return refuse(p, "the file has fewer rows than its metadata states");
    *in->n_read = before + (int64_t)st.st_size;
    return DT_OK;
}

static dt_err read_rows(parquet *p, const char *sql, dt_row_fn *fn, void *self)
{
    const duckdb_calls *d = p->duck;
    void *statement = NULL;
    duckdb_result result = {0};
    dt_err err = d->prepare(p->connection, sql, &statement) == 0 ? DT_OK : refuse(p, d->prepare_error(statement));
    if (err == DT_OK) {
        const bool ok = d->execute_prepared_streaming(statement, &result) == 0;
        err = ok ? each_chunk(p, &result, fn, self) : refuse(p, d->result_error(&result));
        d->destroy_result(&result);
    }
    d->destroy_prepare(&statement);
    return err;
}

static dt_err read_file(parquet *p, buffer *sql, dt_row_fn *fn, void *self)
{
    char first[160];
    DT_TRY(open_database(p));
    /* The buffer size counts pointers, not the bytes they refer to. Without this setting, a file of images
     * would be loaded into memory whole. */
    DT_TRY(with_result(p, "SET streaming_buffer_size = '1KB'", NULL));
    snprintf(first, sizeof first, "SELECT count(*) FROM read_parquet('%s" END_OF_SELECT, p->file);
    DT_TRY(with_result(p, first, take_count));
    snprintf(first, sizeof first, "SELECT * FROM read_parquet('%s" END_OF_SELECT " LIMIT 0", p->file);
    DT_TRY(with_result(p, first, read_columns));
    DT_TRY(write_select(p, sql));
    return read_rows(p, sql->at, fn, self);
}

dt_err dt_parquet_each_row(dt_input *in, dt_row_fn *fn, void *self)
{
    parquet p = {.in = in};
    buffer sql = {0};
    if (dt_duckdb_open(&p.duck) != DT_OK) return no_library(in->path);
    snprintf(p.file, sizeof p.file, "/proc/self/fd/%d", in->fd);
    const dt_err err = read_file(&p, &sql, fn, self);
    p.duck->disconnect(&p.connection);
    p.duck->close(&p.database);
    free_type(&p.row);
    free(p.json.at);
    free(p.binary.at);
    free(sql.at);
    return err;
}

bool dt_is_parquet(const dt_input *in)
{
    static const char magic[] = {'P', 'A', 'R', '1'};
    struct stat st;
    if (fstat(in->fd, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    const bool begins = in->end - in->at >= sizeof magic && memcmp(in->buffer + in->at, magic, sizeof magic) == 0;
    return begins || dt_has_ending(in->path, ".parquet");
}

bool dt_row_bytes(const char *name, size_t n_binary, size_t *first, size_t *nbytes)
{
    int end = 0;
    if (sscanf(name, BYTES_NAME "%n", first, nbytes, &end) != 2 || name[end]) return false;
    return *first <= n_binary && *nbytes <= n_binary - *first;
}
