/* fuzz_catalogue.c - any bytes as the files of a catalogue: an info file, whose items are found again by SID and id and
 * whose trie names each SID once; a list of tokens; an item file; embeddings. An error has a reason. The first byte
 * chooses which. */
#include "dtrain/recommend/item_vectors.h"
#include "dtrain/io/matrix_file.h"
#include "dtrain/recommend/sid.h"
#include "dtrain/recommend/token_list.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/recommend/trie.h"
#include "dtrain/text/utf8.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static bool opened(dt_err err)
{
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    return err == DT_OK;
}

static void check_trie(const dt_catalogue *c)
{
    static dt_tokenizer *bytes;
    dt_trie *t;
    int32_t eos, n_leaves = 0;
    if (!bytes) must(dt_tokenizer_open(&bytes, "bytes") == DT_OK);
    eos = dt_tokenizer_get_info(bytes)->eos;
    must(dt_trie_open(&t, c, bytes, DT_TRIE_TAIL, eos, 257, NULL) == DT_OK);
    int32_t *ids = malloc((size_t)dt_trie_depth(t) * sizeof *ids);
    for (int32_t i = 0; i < dt_catalogue_n_items(c); i++) {
        const char *sid = dt_catalogue_get(c, i).sid;
        if (dt_catalogue_find(c, sid, strlen(sid)) != i) continue;
        const int32_t n = dt_trie_ids(t, i, ids);
        must(n == (int32_t)strlen(sid) + 2 && ids[n - 1] == eos && dt_trie_item(t, ids, n) == i);
        must(dt_trie_item(t, ids, n - 1) == -1);
        n_leaves++;
    }
    must(n_leaves == dt_trie_n_leaves(t) && n_leaves == dt_catalogue_n_sids(c));
    free(ids);
    dt_trie_close(t);
}

static void try_catalogue(const char *path)
{
    dt_catalogue *c;
    if (!opened(dt_catalogue_open(&c, path, NULL))) return;
    for (int32_t i = 0; i < dt_catalogue_n_items(c); i++) {
        const dt_catalogue_item x = dt_catalogue_get(c, i);
        const int32_t first = dt_catalogue_find(c, x.sid, strlen(x.sid));
        must(first >= 0 && first <= i && strcmp(dt_catalogue_get(c, first).sid, x.sid) == 0);
        must(dt_utf8_valid(x.title, strlen(x.title)) == strlen(x.title) && x.line > 0);
    }
    check_trie(c);
    dt_catalogue_close(c);
}

static void try_tokens(const char *path)
{
    dt_token_list l = {0};
    if (!opened(dt_token_list_read(&l, path))) return;
    must(l.n > 0);
    for (int32_t i = 1; i < l.n; i++) must(strcmp(l.token[i - 1], l.token[i]) < 0);
    dt_token_list_free(&l);
}

static void try_items(const char *path)
{
    dt_sid_items items = {0};
    if (opened(dt_sid_items_read(&items, path)))
        for (int64_t i = 0; i < items.n; i++) {
            char *text =
                dt_sid_item_text(&items, i, (const char *const[]){"title", "description", "brand", "categories"}, 4);
            must(text && dt_utf8_valid(text, strlen(text)) == strlen(text));
            free(text);
        }
    dt_sid_items_free(&items);
}

static void try_rows(const char *path)
{
    dt_matrix_file r = {0};
    if (opened(dt_matrix_file_open(&r, path, NULL)) && r.width < 1 << 20) {
        float *row = malloc((size_t)r.width * sizeof *row);
        for (int64_t i = 0; i < r.n && i < 100; i++)
            if (opened(dt_matrix_file_read(&r, i == 99 ? r.n - 1 : i, 1, row))) must(isfinite(row[0]));
        free(row);
    }
    dt_matrix_file_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const targets[])(const char *) = {try_catalogue, try_tokens, try_tokens, try_items, try_rows};
    char path[64];
    if (size == 0) return 0;
    const unsigned which = data[0] % 5;
    snprintf(path, sizeof path, "%s/dtrain-fuzz-%d%s", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (int)getpid(), which == 2 ? ".json" : "");
    FILE *f = fopen(path, "wb");
    must(f && fwrite(data + 1, 1, size - 1, f) == size - 1 && fclose(f) == 0);
    dt_error_clear();
    targets[which](path);
    unlink(path);
    return 0;
}
