/* fuzz_safetensors.c - any bytes as a safetensors file: refused with a reason, or every element of every tensor can be
 * read and no byte belongs to two. */
#include "dtrain/io/safetensors.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void read_all(const dt_safetensors *s, const dt_st_tensor *t)
{
    enum { SOME = 100 };
    float x[SOME];
    for (int64_t at = 0; at < t->n_elems; at += SOME) {
        const int64_t n = t->n_elems - at < SOME ? t->n_elems - at : SOME;
        must(dt_safetensors_read(s, t, at, n, at % 200 ? DT_F32 : DT_BF16, x) ==
             (t->type == DT_ST_OTHER ? DT_ERR_DATA : DT_OK));
        if (t->type == DT_ST_OTHER) break;
    }
    must(dt_safetensors_read(s, t, t->n_elems, 1, DT_F32, x) == DT_ERR_ARG);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    dt_safetensors s = {0};
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    must(write(fd, data, size) == (ssize_t)size);
    dt_error_clear();
    const dt_err err = dt_safetensors_open(&s, path);
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    int64_t nbytes = 0;
    for (int i = 0; i < s.n_tensors && err == DT_OK; i++) {
        const dt_st_tensor *t = &s.tensors[i];
        must(t->offset >= 8 && t->nbytes >= 0 && t->offset + t->nbytes <= (int64_t)size &&
             dt_safetensors_find(&s, t->name) == t);
        nbytes += t->nbytes;
        read_all(&s, t);
    }
    must(err != DT_OK || nbytes <= (int64_t)size - 10);
    dt_safetensors_close(&s);
    close(fd);
    return 0;
}
