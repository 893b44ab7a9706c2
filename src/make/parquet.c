/* parquet.c - DuckDB reads with one thread, one chunk at a time; its vectors are converted to JSON here.
 * DuckDB opens the file by descriptor, because it expands * in names and takes = for a partition column. */
#include "parquet.h"
#include "duckdb.h"
#include "dtrain/chat/chat.h"
#include "dtrain/io/io.h"
#include "dtrain/text/utf8.h"
#include <inttypes.h>
#include <math.h>
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

typedef struct parquet {
    const duckdb_calls *duck;
    dt_input *in;
    char file[64]; /* path that DuckDB opens */
    void *database, *connection;
    dt_type row;          /* struct of all columns */
    int64_t n_rows;       /* in the file */
    int64_t n_done;       /* delivered so far */
    dt_text json, binary; /* of the current row */
} parquet;

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void put_word(dt_text *b, const char *word) { dt_text_append(b, word, strlen(word)); }

/* Write a real so that it stays one: 1.0, not 1. */
static void put_real(dt_text *b, double x, int digits)
{
    if (isnan(x)) return put_word(b, "NaN");
    if (isinf(x)) return put_word(b, x > 0 ? "Infinity" : "-Infinity");
    char text[32];
    snprintf(text, sizeof text, "%.*g", digits, x);
    put_word(b, text);
    put_word(b, text[strspn(text, "-0123456789")] ? "" : ".0");
}

static void put_text(dt_text *b, const char *text, size_t n)
{
    put_word(b, "\"");
    for (size_t i = 0, from = 0; i <= n; i++) {
        const unsigned char c = i < n ? (unsigned char)text[i] : '"';
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        dt_text_append(b, text + from, i - from);
        from = i + 1;
        if (i < n) dt_text_printf(b, c < 0x20 ? "\\u%04x" : "\\%c", c);
    }
    put_word(b, "\"");
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
    return dt_error_replace(
        DT_ERR_DATA,
        "%s: reading Parquet needs DuckDB's library: %s. Install the library (conda: libduckdb; Spack, "
        "Homebrew: duckdb; or from duckdb.org) and set DTRAIN_DUCKDB to its libduckdb.so or the directory "
        "of it; or convert the file to JSON lines (docs/data.md)",
        path, dt_error_message());
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
    DT_CHECK(t->child, DT_ERR_MEMORY, "out of memory for %" PRIu64 " columns", n);
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
                                            : dt_fail(DT_ERR_MEMORY, "out of memory for the names of columns");
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
        DT_COPY_TEXT(t->name, name ? name : "", "out of memory for the names of columns");
        void *type = p->duck->column_logical_type(result, (uint64_t)i);
        const dt_err err = read_type(p, type, 0, t);
        p->duck->destroy_logical_type(&type);
        DT_TRY(err);
    }
    return DT_OK;
}

/* Scalar types that are written as JSON: DuckDB's names, and how a value is stored. The others are unsupported. */
static const struct scalar {
    const char *name;
    enum { NONE, BOOL, SIGNED, UNSIGNED, REAL, TEXT, BYTES } form;
    size_t nbytes;
} scalars[] = {[DUCKDB_BOOLEAN] = {"BOOLEAN", BOOL, 1},
               [DUCKDB_TINYINT] = {"TINYINT", SIGNED, 1},
               [DUCKDB_SMALLINT] = {"SMALLINT", SIGNED, 2},
               [DUCKDB_INTEGER] = {"INTEGER", SIGNED, 4},
               [DUCKDB_BIGINT] = {"BIGINT", SIGNED, 8},
               [DUCKDB_UTINYINT] = {"UTINYINT", UNSIGNED, 1},
               [DUCKDB_USMALLINT] = {"USMALLINT", UNSIGNED, 2},
               [DUCKDB_UINTEGER] = {"UINTEGER", UNSIGNED, 4},
               [DUCKDB_UBIGINT] = {"UBIGINT", UNSIGNED, 8},
               [DUCKDB_FLOAT] = {"FLOAT", REAL, 4},
               [DUCKDB_DOUBLE] = {"DOUBLE", REAL, 8},
               [DUCKDB_VARCHAR] = {"VARCHAR", TEXT, 16},
               [DUCKDB_BLOB] = {"BLOB", BYTES, 16}};

static const char *known_name(int id)
{
    return id >= 0 && (size_t)id < sizeof scalars / sizeof scalars[0] ? scalars[id].name : NULL;
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

static void put_bytes(parquet *p, const char *bytes, size_t n)
{
    char name[64];
    snprintf(name, sizeof name, BYTES_NAME, p->binary.n, n);
    dt_text_append(&p->binary, bytes, n);
    put_word(&p->json, "{\"" DT_IMAGE_OF_ROW "\":");
    put_text(&p->json, name, strlen(name));
    put_word(&p->json, "}");
}

static void put_string(parquet *p, bool text, const duckdb_string *s)
{
    const char *bytes = s->near.nbytes <= sizeof s->near.bytes ? s->near.bytes : s->far.bytes;
    if (text)
        put_text(&p->json, bytes, s->near.nbytes);
    else
        put_bytes(p, bytes, s->near.nbytes);
}

static void put_scalar(parquet *p, int id, const void *data, uint64_t row)
{
    const struct scalar *type = &scalars[id];
    const void *at = (const char *)data + row * type->nbytes;
    const int unused = 64 - 8 * (int)type->nbytes; /* upper bits of a shorter integer */
    uint64_t x = 0;
    if (type->form >= TEXT) return put_string(p, type->form == TEXT, at);
    if (id == DUCKDB_FLOAT) return put_real(&p->json, (double)*(const float *)at, 9);
    if (id == DUCKDB_DOUBLE) return put_real(&p->json, *(const double *)at, 17);
    memcpy(&x, at, type->nbytes);
    if (type->form == BOOL)
        put_word(&p->json, x ? "true" : "false");
    else if (type->form == UNSIGNED)
        dt_text_printf(&p->json, "%" PRIu64, x);
    else
        dt_text_printf(&p->json, "%" PRId64, (int64_t)(x << unused) >> unused);
}

static void put_value(parquet *p, const dt_type *t, void *vector, uint64_t row);

static void put_list(parquet *p, const dt_type *t, void *vector, duckdb_list_entry entry)
{
    void *elements = p->duck->list_vector_get_child(vector);
    put_word(&p->json, "[");
    for (uint64_t i = 0; i < entry.length; i++) {
        if (i > 0) put_word(&p->json, ",");
        put_value(p, t->child, elements, entry.offset + i);
    }
    put_word(&p->json, "]");
}

/* vector_of: gives the vector of field i of a struct, or of column i of a chunk. */
static void put_fields(parquet *p, const dt_type *t, void *of, void *(*vector_of)(void *, uint64_t), uint64_t row)
{
    put_word(&p->json, "{");
    for (int i = 0; i < t->n; i++) {
        if (i > 0) put_word(&p->json, ",");
        put_text(&p->json, t->child[i].name, strlen(t->child[i].name));
        put_word(&p->json, ":");
        put_value(p, &t->child[i], vector_of(of, (uint64_t)i), row);
    }
    put_word(&p->json, "}");
}

static void put_value(parquet *p, const dt_type *t, void *vector, uint64_t row)
{
    const uint64_t *valid = p->duck->vector_get_validity(vector);
    if (valid && !(valid[row / 64] >> row % 64 & 1)) return put_word(&p->json, "null");
    if (t->id == DUCKDB_STRUCT) return put_fields(p, t, vector, p->duck->struct_vector_get_child, row);
    const void *data = p->duck->vector_get_data(vector);
    return t->id == DUCKDB_LIST ? put_list(p, t, vector, ((const duckdb_list_entry *)data)[row])
                                : put_scalar(p, t->id, data, row);
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

static void put_name(dt_text *sql, const char *name)
{
    put_word(sql, "\"");
    for (; *name; name++) put_word(sql, *name == '"' ? "\"\"" : (char[]){*name, 0});
    put_word(sql, "\"");
}

/* Append a supported type in SQL. */
static void put_type(dt_text *sql, const dt_type *t)
{
    if (t->id != DUCKDB_LIST && t->id != DUCKDB_STRUCT) return put_word(sql, known_name(t->id));
    if (t->id == DUCKDB_LIST) {
        put_type(sql, t->child);
        return put_word(sql, "[]");
    }
    put_word(sql, "STRUCT");
    for (int i = 0; i < t->n; i++) {
        put_word(sql, i > 0 ? "," : "(");
        put_name(sql, t->child[i].name);
        put_word(sql, " ");
        put_type(sql, &t->child[i]);
    }
    put_word(sql, ")");
}

/* Cast columns that contain unsupported types. Their supported parts keep their types. */
static void write_select(const parquet *p, dt_text *sql)
{
    for (int i = 0; i < p->row.n; i++) {
        dt_type *t = &p->row.child[i];
        const bool cast = !is_known(t);
        put_word(sql, i > 0 ? "," : "SELECT ");
        put_word(sql, cast ? "CAST(" : "");
        put_name(sql, t->name);
        if (!cast) continue;
        make_known(t);
        put_word(sql, " AS ");
        put_type(sql, t);
        put_word(sql, ")");
    }
    put_word(sql, " FROM read_parquet('");
    put_word(sql, p->file);
    put_word(sql, END_OF_SELECT);
}

static dt_err each_row_of_chunk(parquet *p, void *chunk, dt_json_fn *fn, void *self)
{
    const uint64_t n = p->duck->data_chunk_get_size(chunk);
    for (uint64_t i = 0; i < n; i++) {
        p->json.n = p->binary.n = 0;
        put_fields(p, &p->row, chunk, p->duck->data_chunk_get_vector, i);
        const size_t nbytes = p->json.n;
        if (p->binary.n > 0) dt_text_append(&p->json, p->binary.bytes, p->binary.n);
        DT_CHECK(!p->json.failed && !p->binary.failed, DT_ERR_MEMORY, "out of memory for a row of %zu bytes",
                 p->json.n);
        DT_TRY(fn(self, p->json.bytes, nbytes, p->binary.n, ++p->n_done));
    }
    return DT_OK;
}

/* Progress counts the file's bytes in proportion to the rows read. */
static dt_err each_chunk(parquet *p, duckdb_result *result, dt_json_fn *fn, void *self)
{
    dt_input *in = p->in;
    struct stat st;
    DT_CHECK_ERRNO(fstat(in->fd, &st) == 0, DT_ERR_DATA, in->path, "cannot be read");
    const int64_t before = *in->n_read - (int64_t)in->end;
    for (void *chunk; (chunk = p->duck->fetch_chunk(*result));) {
        const dt_err err = in->stop && atomic_load(in->stop)
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

static dt_err read_rows(parquet *p, const char *sql, dt_json_fn *fn, void *self)
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

static dt_err read_file(parquet *p, dt_text *sql, dt_json_fn *fn, void *self)
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
    write_select(p, sql);
    DT_CHECK(!sql->failed, DT_ERR_MEMORY, "out of memory for the names of columns");
    return read_rows(p, sql->bytes, fn, self);
}

dt_err dt_parquet_each_row(dt_input *in, dt_json_fn *fn, void *self)
{
    parquet p = {.in = in};
    dt_text sql = {0};
    if (dt_duckdb_open(&p.duck) != DT_OK) return no_library(in->path);
    snprintf(p.file, sizeof p.file, "/proc/self/fd/%d", in->fd);
    const dt_err err = read_file(&p, &sql, fn, self);
    p.duck->disconnect(&p.connection);
    p.duck->close(&p.database);
    free_type(&p.row);
    dt_text_free(&p.json);
    dt_text_free(&p.binary);
    dt_text_free(&sql);
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
