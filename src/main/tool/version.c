/* version.c - the only file that is recompiled when the commit or the flags change. The Makefile writes
 * build_version.h. */
#include <string.h>

#include "build_version.h"
#include "dtrain/comm/comm.h"
#include "dtrain/data/dataset.h"
#include "dtrain/device/device.h"
#include "dtrain/io/io.h"
#include "tool.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

void tool_print_version(void)
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

bool tool_answers(bool help, const char *usage, bool version)
{
    if (help) fputs(usage, stdout);
    if (version) tool_print_version();
    return help || version;
}
