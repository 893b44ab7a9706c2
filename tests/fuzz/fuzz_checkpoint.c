/* fuzz_checkpoint.c - any bytes given as a checkpoint file: the readers refuse or read, in bounded time and memory.
 *
 * The bytes become a file in memory (HDF5 asks for the real path of what it opens, so memfd_create does not serve).
 * Attributes, every array of the file and one tensor of a model are read. */
#include "../../src/checkpoint/file.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    setenv("DTRAIN_LOG", "error", 0);
    dt_log_open(0, 1, "fuzz");
    return 0;
}

/* What loading does on rank 0, and then the elements, through HDF5 and at the offset. */
static void read_tensor(const char *path, int fd)
{
    const dt_tensor tensor = {.name = "w", .n_dims = 2, .shape = {3, 5}, .n_elems = 15};
    const dt_saved_model model = {0};
    const dt_unit unit = {0};
    const dt_stored_slot slot = {.of = &model, .state = DT_STATE_PARAM, .unit = &unit, .tensor = &tensor};
    dt_stored_location location;
    dt_stored_map map = {.locations = &location};
    hid_t file;
    float x[15];
    if (dt_checkpoint_locate(path, &slot, 1, &map) == DT_OK) {
        dt_h5_array a;
        if (location.offset >= 0)
            (void)dt_read_at(fd, path, location.offset, x, 15 * dt_st_type_size((dt_st_type)location.type));
        dt_h5_lock();
        if (ckpt_file_open(path, &file) == DT_OK) {
            hid_t d = dt_h5_open_array(file, "/model/w");
            if (dt_h5_inspect(d, path, "w", &a) == DT_OK) (void)dt_h5_read_run(d, path, "w", &a, 2, 11, x);
            H5Dclose(d);
            H5Fclose(file);
        }
        dt_h5_unlock();
    }
    free(map.files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64] = "/dev/shm/dtrain-fuzz-XXXXXX";
    dt_ckpt_meta meta;
    int fd = mkstemp(path);
    if (fd < 0) fd = mkstemp(strcpy(path, "/tmp/dtrain-fuzz-XXXXXX"));
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    if (dt_checkpoint_read_meta(path, &meta) == DT_OK) {
        if (!meta.config || !meta.model_config || meta.step < 0) abort();
        dt_ckpt_meta_free(&meta);
    }
    (void)dt_checkpoint_verify(path, NULL);
    read_tensor(path, fd);
    close(fd);
    unlink(path);
    dt_error_clear();
    return 0;
}
