/* duckdb.h - the subset of DuckDB's C API that reads Parquet files. The library is loaded when the first
 * such file is read. Programs therefore build and start without it.
 *
 * Source  duckdb.h of DuckDB 1.1 to 2.0, which keep these functions, types and constants unchanged. */
#ifndef DTRAIN_DATA_MAKE_DUCKDB_H
#define DTRAIN_DATA_MAKE_DUCKDB_H

#include "dtrain/core/core.h"

/* duckdb_type: the types used here */
enum {
    DUCKDB_BOOLEAN = 1,
    DUCKDB_TINYINT,
    DUCKDB_SMALLINT,
    DUCKDB_INTEGER,
    DUCKDB_BIGINT,
    DUCKDB_UTINYINT,
    DUCKDB_USMALLINT,
    DUCKDB_UINTEGER,
    DUCKDB_UBIGINT,
    DUCKDB_FLOAT,
    DUCKDB_DOUBLE,
    DUCKDB_HUGEINT = 16,
    DUCKDB_VARCHAR = 17,
    DUCKDB_BLOB = 18,
    DUCKDB_DECIMAL = 19,
    DUCKDB_LIST = 24,
    DUCKDB_STRUCT = 25,
    DUCKDB_UHUGEINT = 32
};

/** A result; passed by value where the API does so. */
typedef struct duckdb_result {
    uint64_t old_counts[3];
    void *old_columns;
    char *old_error;
    void *internal;
} duckdb_result;

/** A text or blob: up to 12 bytes are inlined, longer ones are referenced by pointer. */
typedef union duckdb_string {
    struct {
        uint32_t nbytes;
        char bytes[12];
    } near;
    struct {
        uint32_t nbytes;
        char prefix[4];
        const char *bytes;
    } far;
} duckdb_string;

typedef struct duckdb_list_entry {
    uint64_t offset, length;
} duckdb_list_entry;

/* X(return type, name, arguments). Handles are void *; functions that free them take their address. int: 0
 * is success. */
#define DUCKDB_CALLS(X)                                                                                                \
    X(const char *, library_version, (void))                                                                           \
    X(int, create_config, (void **config))                                                                             \
    X(int, set_config, (void *config, const char *name, const char *value))                                            \
    X(void, destroy_config, (void **config))                                                                           \
    X(int, open_ext, (const char *path, void **database, void *config, char **error))                                  \
    X(void, close, (void **database))                                                                                  \
    X(int, connect, (void *database, void **connection))                                                               \
    X(void, disconnect, (void **connection))                                                                           \
    X(int, query, (void *connection, const char *sql, duckdb_result *result))                                          \
    X(int, prepare, (void *connection, const char *sql, void **statement))                                             \
    X(const char *, prepare_error, (void *statement))                                                                  \
    X(void, destroy_prepare, (void **statement))                                                                       \
    X(int, execute_prepared_streaming, (void *statement, duckdb_result *result))                                       \
    X(const char *, result_error, (duckdb_result * result))                                                            \
    X(void, destroy_result, (duckdb_result * result))                                                                  \
    X(uint64_t, column_count, (duckdb_result * result))                                                                \
    X(const char *, column_name, (duckdb_result * result, uint64_t column))                                            \
    X(void *, column_logical_type, (duckdb_result * result, uint64_t column))                                          \
    X(int, get_type_id, (void *type))                                                                                  \
    X(void *, list_type_child_type, (void *type))                                                                      \
    X(uint64_t, struct_type_child_count, (void *type))                                                                 \
    X(char *, struct_type_child_name, (void *type, uint64_t child))                                                    \
    X(void *, struct_type_child_type, (void *type, uint64_t child))                                                    \
    X(void, destroy_logical_type, (void **type))                                                                       \
    X(void *, fetch_chunk, (duckdb_result result))                                                                     \
    X(uint64_t, data_chunk_get_size, (void *chunk))                                                                    \
    X(void *, data_chunk_get_vector, (void *chunk, uint64_t column))                                                   \
    X(void, destroy_data_chunk, (void **chunk))                                                                        \
    X(const void *, vector_get_data, (void *vector))                                                                   \
    X(const uint64_t *, vector_get_validity, (void *vector))                                                           \
    X(void *, list_vector_get_child, (void *vector))                                                                   \
    X(void *, struct_vector_get_child, (void *vector, uint64_t child))                                                 \
    X(void, free, (void *memory))

#define DUCKDB_FIELD(returns, name, arguments) returns(*name) arguments;
typedef struct duckdb_calls {
    DUCKDB_CALLS(DUCKDB_FIELD)
} duckdb_calls;
#undef DUCKDB_FIELD

/** Load the library: DTRAIN_DUCKDB (a file or its folder), else libduckdb.so from the system's search
 *  path. DT_ERR_DATA says why loading failed. Not thread-safe. */
dt_err dt_duckdb_open(const duckdb_calls **calls);

#endif
