/* copy_documents.c - documents of datasets that other programs wrote. They are token ids already: nothing is encoded,
 * and no end of text is added. */
#include "copy_documents.h"
#include "record_kinds.h"
#include "dtrain/data/dataset.h"
#include <sys/stat.h>

enum { MOST_IDS = 1 << 16 }; /* of a chunk */

typedef struct copy {
    const dt_copy_job *job;
    dt_chunk chunk;
    const char *path;
    int64_t nbytes_read; /* of the files before this one, and of this one in proportion to its documents */
} copy;

/* Write the chunk and empty it. Samples refer to items, whose addresses are final only now. */
static dt_err hand_over(copy *c)
{
    dt_chunk *p = &c->chunk;
    for (int i = 0; i < p->n_samples; i++) p->samples[i].item = &p->items[i];
    p->nbytes_read = c->nbytes_read;
    DT_TRY(dt_outputs_write(c->job->outputs, p));
    dt_chunk_clear(p);
    return c->job->tick(c->job->self);
}

/* Add n ids of a document, starting at token `first` of the file. */
static dt_err add(copy *c, dt_dataset *d, int64_t first, int64_t n, bool begins, bool ends)
{
    dt_chunk *p = &c->chunk;
    dt_ids *ids = &p->ids[0];
    const dt_rules *rules = &c->job->outputs->recipe->rules;
    dt_sample *s;
    DT_TRY(dt_ids_reserve(ids, (size_t)n));
    DT_TRY(dt_dataset_read_tokens(d, first, n, ids->id + ids->n));
    DT_TRY(dt_chunk_add(p, "", 0, (dt_chunk_item){.path = c->path, .begins = begins, .ends = ends}));
    DT_TRY(dt_chunk_sample(p, &s));
    s->text = true;
    s->kind = rules->opt->kind == DT_ANY_KIND ? DT_DATASET_TOKENS : rules->opt->kind;
    s->n[0] = (size_t)n;
    if (begins) s->hash = dt_hash_bytes(ids->id + ids->n, (size_t)n * sizeof *ids->id);
    ids->n += (size_t)n;
    return DT_OK;
}

/* A document may be longer than a chunk. Its first part, which is hashed, does not depend on earlier documents. */
static dt_err copy_document(copy *c, dt_dataset *d, int64_t i)
{
    int64_t first, n;
    DT_TRY(dt_dataset_document(d, i, &first, &n));
    for (int64_t done = 0, k; done == 0 || done < n; done += k) {
        k = dt_min_i64(n - done, MOST_IDS);
        if (c->chunk.n_items == DT_CHUNK_ITEMS || (int64_t)c->chunk.ids[0].n + k > MOST_IDS) DT_TRY(hand_over(c));
        DT_TRY(add(c, d, first + done, k, done == 0, done + k == n));
        if (n == 0) break;
    }
    return DT_OK;
}

static dt_err copy_all(copy *c, dt_dataset *d)
{
    const int64_t n = dt_dataset_get_info(d)->n_documents, before = c->nbytes_read;
    struct stat st;
    const double nbytes = stat(c->path, &st) == 0 ? (double)st.st_size : 0;
    dt_dataset_set_vocabulary(d, dt_tokenizer_get_info(c->job->outputs->recipe->tokenizer)->vocab_size);
    DT_TRY(dt_dataset_verify(d, c->job->tick, c->job->self));
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(copy_document(c, d, i));
        c->nbytes_read = before + (int64_t)(nbytes * (double)(i + 1) / (double)n);
    }
    return hand_over(c);
}

static dt_err copy_inputs(copy *c)
{
    const dt_rules *rules = &c->job->outputs->recipe->rules;
    DT_CHECK(rules->opt->kind == DT_ANY_KIND || dt_record_is_text(rules->opt->kind), DT_ERR_USAGE,
             "kind: expected tokens or sft for the documents of %s, found %s", c->job->paths[0],
             dt_dataset_kind_name(rules->opt->kind));
    for (int i = 0; i < c->job->n_paths; i++) {
        dt_dataset *d;
        c->path = c->job->paths[i];
        DT_CHECK(dt_dataset_is_foreign(c->path), DT_ERR_USAGE,
                 "%s: expected a Megatron dataset, because the first input is one (%s)", c->path, c->job->paths[0]);
        DT_TRY(dt_dataset_open(&d, c->path));
        const dt_err err = copy_all(c, d);
        dt_dataset_close(d);
        DT_TRY(err);
    }
    return DT_OK;
}

dt_err dt_copy_documents(const dt_copy_job *job)
{
    copy c = {.job = job};
    const dt_err err = copy_inputs(&c);
    dt_chunk_free(&c.chunk);
    return err;
}
