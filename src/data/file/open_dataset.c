/* open_dataset.c - opens a dataset file of any format. The functions of the format fill its columns. */
#include "dataset_file.h"
#include "../kinds/kinds.h"
#include "store.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first format that matches a file is used. */
#define STORES(STORE) STORE(megatron) STORE(hdf5)
#define STORE_TABLE(name) extern const dt_store dt_store_##name;
STORES(STORE_TABLE)
#define STORE_ENTRY(name) &dt_store_##name,
static const dt_store *const stores[] = {STORES(STORE_ENTRY)};
enum { N_STORES = sizeof stores / sizeof stores[0] };

/* Find the format by the file's name and first bytes. */
static dt_err find_store(dt_dataset *d)
{
    char head[256];
    DT_TRY(dt_refuse_stand_in_file(d->path, d->fd));
    const ssize_t n = pread(d->fd, head, sizeof head, 0);
    for (int i = 0; i < N_STORES && !d->store; i++)
        if (stores[i]->is(d->path, head, n > 0 ? (size_t)n : 0)) d->store = stores[i];
    DT_CHECK(d->store, DT_ERR_DATA,
             "%s: expected a dataset, found text; convert it with `dtrain-data -o train.h5 %s` (add --tokenizer MODEL "
             "for a model's tokens)",
             d->path, d->path);
    return DT_OK;
}

bool dt_dataset_is_foreign(const char *path)
{
    char head[256];
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : pread(fd, head, sizeof head, 0);
    bool is = false;
    if (fd >= 0) close(fd);
    for (int i = 0; i < N_STORES && n > 0; i++) is |= stores[i]->foreign && stores[i]->is(path, head, (size_t)n);
    return is;
}

static dt_err open_plain(dt_dataset *d)
{
    d->fd = open(d->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    DT_CHECK_ERRNO(d->fd >= 0, DT_ERR_DATA, d->path, "cannot open dataset");
    struct stat st;
    DT_CHECK_ERRNO(fstat(d->fd, &st) == 0, DT_ERR_DATA, d->path, NULL);
    DT_CHECK(S_ISREG(st.st_mode), DT_ERR_DATA, "%s: expected a dataset file, found a %s", d->path,
             S_ISDIR(st.st_mode) ? "folder" : "special file");
    DT_CHECK(st.st_size > 0, DT_ERR_DATA, "%s: the file is empty", d->path);
    d->file_nbytes = (int64_t)st.st_size;
    return find_store(d);
}

static dt_err open_all(dt_dataset *d)
{
    DT_TRY(open_plain(d));
    DT_TRY(d->store->open(d));
    d->info.images.size = d->column[DT_COL_PIXELS].image_size;
    d->info.n_images = d->column[DT_COL_PIXELS].n_elems;
    d->info.n_tokens = d->column[DT_COL_TOKENS].n_elems;
    d->info.n_second_tokens = d->column[DT_COL_SECOND_TOKENS].n_elems;
    d->info.path = d->path;
    d->info.tokenizer = d->tokenizer ? d->tokenizer : "";
    d->info.chat_template = d->chat_template ? d->chat_template : "";
    d->info.images.preprocessor = d->preprocessor ? d->preprocessor : "";
    return DT_OK;
}

void dt_dataset_set_vocabulary(dt_dataset *d, int64_t vocab_size)
{
    if (d->info.vocab_size == 0) d->info.vocab_size = vocab_size;
}

dt_err dt_dataset_open(dt_dataset **out, const char *path)
{
    *out = NULL;
    dt_dataset *d = calloc(1, sizeof *d);
    char *copy = strdup(path);
    if (!d || !copy) {
        free(d);
        free(copy);
        return dt_fail(DT_ERR_MEMORY, "%s: no memory to open the dataset", path);
    }
    d->path = copy;
    d->fd = d->placeholder = -1;
    d->info.n_equal_pairs = d->info.n_contradicted_pairs = -1;
    d->info.n_documents = -1;
    const dt_err err = open_all(d);
    if (err != DT_OK) {
        dt_dataset_close(d);
        return dt_trace(err, __FILE__, __LINE__, "open_all");
    }
    *out = d;
    return DT_OK;
}

void dt_dataset_close(dt_dataset *d)
{
    if (!d) return;
    for (int c = 0; c < DT_N_ARRAYS; c++) dt_array_close(&d->column[c]);
    if (d->store) d->store->close(d);
    if (d->fd >= 0) close(d->fd);
    free(d->tokenizer);
    free(d->chat_template);
    free(d->preprocessor);
    free(d->path);
    free(d);
}

const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d) { return &d->info; }
