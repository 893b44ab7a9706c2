/* version.c - the only file that is recompiled when the commit or the flags change. The Makefile writes
 * build_version.h. */
#include <string.h>

#include "build_version.h"
#include "dtrain/comm/comm.h"
#include "dtrain/config/config.h"
#include "dtrain/data/dataset.h"
#include "dtrain/device/device.h"
#include "dtrain/io/io.h"
#include "tool.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void print_version(void)
{
    char mpi[256], parquet[512];
    unsigned h5[3];
    H5get_libversion(&h5[0], &h5[1], &h5[2]);
    printf("%s %s (commit %s)\n", dt_log_program(), BUILD_VERSION, BUILD_COMMIT);
    printf("built with: %s, %s\n", COMPILER, BUILD_FLAGS);
    printf("instruction sets: %s\ndevices: %s\n", BUILD_ISAS, dt_device_backends());
    printf("MPI: %s\nHDF5: %u.%u.%u\n", dt_comm_library(mpi, sizeof mpi), h5[0], h5[1], h5[2]);
    printf("optional libraries: %s\n", BUILD_COMPONENTS);
    printf("Parquet: %s\n", dt_parquet_library(parquet, sizeof parquet));
}

static void print_row(const char *label, const char *help, int column)
{
    const int room = column - 4; /* two blanks before and after */
    printf("  %-*s", room, label);
    printf((int)strlen(label) > room ? "\n%*s" : "  ", column, "");
    dt_print_wrapped(stdout, help, column);
}

static void print_rows(const tool_row *rows)
{
    enum { COLUMN = 26 };
    char label[128] = "";
    for (const tool_row *r = rows; r->name || r->help; r++) {
        const size_t n = strlen(label);
        if (!r->name) printf("\n%s\n", r->help);
        if (!r->name || (r->help && !*r->help)) continue;
        snprintf(label + n, sizeof label - n, "%s%.*s%s--%s%s%s", n ? ", " : "", r->letter ? 2 : 0,
                 (char[]){'-', r->letter, 0}, r->letter ? ", " : "", r->name, r->value ? " " : "",
                 r->value ? r->value : "");
        if (!r->help) continue;
        print_row(label, r->help, COLUMN);
        *label = 0;
    }
}

static void print_codes(unsigned codes)
{
    char text[512] = "0 done";
    codes |= 1U << DT_ERR_USAGE | 1U << DT_ERR_DATA | 1U << DT_ERR_FAULT | 1U << DT_ERR_WRITE;
    for (int e = 1; e < DT_N_ERR; e++)
        if (codes >> e & 1)
            snprintf(text + strlen(text), sizeof text - strlen(text), ", %d %s", dt_exit_code((dt_err)e),
                     dt_error_words((dt_err)e));
    dt_print_wrapped(stdout, text, printf("\nexit codes: ") - 1);
}

bool tool_answers(const tool_help *what, bool help, bool version)
{
    if (help) {
        fputs(what->head, stdout);
        print_rows(what->rows);
        if (what->notes) fputs(what->notes, stdout);
        if (what->more) what->more();
        print_codes(what->codes);
    }
    if (version) print_version();
    return help || version;
}
