/* print_sample.c - one sample of a dataset file as text, with its targets marked. */
#include "../kinds/kinds.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_TOKENS = 1024 }; /* tokens shown of a file without document boundaries */

/* Control characters are printed as \xNN. */
static void print_bytes(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

/* Print special tokens by name. Unknown ids, and all ids without a tokenizer, are printed as numbers. */
static void print_token(const dt_view *v, int32_t id)
{
    size_t nbytes = 0;
    const char *bytes = v->t ? dt_tokenizer_bytes(v->t, id, &nbytes) : "",
               *name = v->t && !nbytes ? dt_tokenizer_token(v->t, id) : NULL;
    if (nbytes)
        print_bytes(bytes, nbytes);
    else if (name)
        print_bytes(name, strlen(name));
    else
        printf("<%" PRId32 ">", id);
}

static void print_tokens(const dt_view *v, const int32_t *ids, const uint8_t *mask, int64_t n)
{
    bool on = false;
    for (int64_t i = 0; i < n; i++) {
        const bool target = mask && mask[i];
        if (target != on) fputs(target ? v->on : v->off, stdout);
        on = target;
        print_token(v, ids[i]);
    }
    if (on) fputs(v->off, stdout);
    putchar('\n');
}

dt_err dt_print_side(const dt_view *v, dt_side side, int64_t first, int64_t n, int64_t n_prompt)
{
    const bool masked = v->d->column[DT_COL_MASK].path;
    int32_t *ids = malloc((size_t)(n + 1) * sizeof *ids);
    uint8_t *mask = calloc((size_t)n + 1, 1);
    dt_err err =
        ids && mask ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " tokens", v->d->path, n);
    if (err == DT_OK) err = dt_dataset_read_side(v->d, side, first, n, ids);
    if (err == DT_OK && masked) err = dt_dataset_read_mask(v->d, first, n, mask);
    if (err == DT_OK && n_prompt >= 0) memset(mask + n_prompt, 1, (size_t)(n - n_prompt));
    if (err == DT_OK) print_tokens(v, ids, mask, n);
    free(ids);
    free(mask);
    return err;
}

dt_err dt_print_record(const dt_view *v, int64_t i)
{
    char *json;
    DT_TRY(dt_dataset_read_record(v->d, i, &json));
    print_bytes(json, strlen(json));
    putchar('\n');
    free(json);
    return DT_OK;
}

/* The range of sample i, or the first tokens of a file without document boundaries. */
static dt_err find_range(const dt_view *v, int64_t i, int64_t *first, int64_t *n)
{
    *first = 0, *n = dt_min_i64(v->d->info.n_tokens, HEAD_TOKENS);
    return v->d->info.n_documents >= 0 ? dt_dataset_document(v->d, i, first, n) : DT_OK;
}

static dt_err show_text(const dt_view *v, int64_t i)
{
    int64_t first, n;
    DT_TRY(find_range(v, i, &first, &n));
    return dt_print_side(v, DT_SIDE_FIRST, first, n, -1);
}

static dt_err print_head(const dt_view *v, int64_t i)
{
    const dt_dataset_info *info = &v->d->info;
    const dt_kind *kind = v->d->kind;
    int64_t first, n;
    float weight = 1;
    DT_CHECK(info->n_documents >= 0 || i == 0, DT_ERR_USAGE,
             "%s: documents are not separated, so only sample 0, the first tokens, can be shown", info->path);
    DT_TRY(find_range(v, i, &first, &n));
    if (info->has_weights) DT_TRY(dt_dataset_read_weights(v->d, i, 1, &weight));
    printf("%s %" PRId64 " of %" PRId64 ": tokens %" PRId64 " to %" PRId64, kind->noun, i,
           info->n_documents < 0 ? 1 : info->n_documents, first, first + n - 1);
    if (info->has_weights) printf(", weight %g", (double)weight);
    printf("%s%s\n", kind->marks, !*kind->marks ? "" : v->on[0] == '{' ? " in {+ +}" : " in colour");
    if (!v->t)
        printf("(token ids, made with the tokenizer %s; --tokenizer DIRECTORY shows text)\n",
               info->tokenizer[0] ? info->tokenizer : "not named");
    return DT_OK;
}

static dt_err open_tokenizer(dt_view *v, const char *name)
{
    const char *made_with = v->d->info.tokenizer;
    if (!name) return strcmp(made_with, "bytes") == 0 ? dt_tokenizer_open(&v->t, made_with) : DT_OK;
    DT_TRY(dt_tokenizer_open(&v->t, name));
    const char *found = dt_tokenizer_get_info(v->t)->name;
    DT_CHECK(!made_with[0] || strcmp(found, made_with) == 0, DT_ERR_USAGE,
             "%s: created with the tokenizer %s, but %s is %s", v->d->path, made_with, name, found);
    return DT_OK;
}

dt_err dt_dataset_print_sample(dt_dataset *d, int64_t i, const char *tokenizer, bool colour)
{
    dt_view v = {.d = d, .on = colour ? "\033[7;32m" : "{+", .off = colour ? "\033[0m" : "+}"};
    dt_err err = open_tokenizer(&v, tokenizer);
    if (err == DT_OK) err = print_head(&v, i);
    if (err == DT_OK) err = (d->kind->show ? d->kind->show : show_text)(&v, i);
    dt_tokenizer_close(v.t);
    return err;
}
