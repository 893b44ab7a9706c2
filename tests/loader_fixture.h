/* loader_fixture.h - datasets of drawn documents in the test's folder, and a loader of them. */
#ifndef DTRAIN_TESTS_LOADER_FIXTURE_H
#define DTRAIN_TESTS_LOADER_FIXTURE_H

#include "folder.h"
#include "dtrain/data/data.h"
#include "dtrain/data/dataset.h"

static inline const char *path_of(int i)
{
    static char paths[8][128];
    snprintf(paths[i], sizeof paths[i], "%s/file-%d.h5", folder, i);
    return paths[i];
}

/* A dataset in memory: what the tests compare with. */
typedef struct document {
    int n;
    int32_t id[64];
    uint8_t mask[64];
    float weight;
} document;

static uint64_t rng_state = 7;
static inline uint32_t draw(uint32_t n) { return (uint32_t)(dt_mix64(rng_state++) % n); }

static inline void draw_documents(document *d, int n_documents, int longest, int32_t vocab, uint32_t target_chance)
{
    for (int i = 0; i < n_documents; i++) {
        d[i].n = (int)draw((uint32_t)longest + 1);
        d[i].weight = (float)draw(5) * 0.25f;
        for (int t = 0; t < d[i].n; t++) {
            d[i].id[t] = (int32_t)draw((uint32_t)vocab);
            d[i].mask[t] = draw(100) < target_chance;
        }
    }
}

static inline void write_documents(const char *path, dt_dataset_kind kind, int64_t vocab, const document *d,
                                   int n_documents, bool weights)
{
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, path, kind, vocab, "test", weights), DT_OK);
    for (int i = 0; i < n_documents; i++) {
        const int half = d[i].n / 2; /* in two pieces: adding resumes where it stopped */
        const bool sft = kind == DT_DATASET_SFT;
        assert_int_equal(dt_dataset_add(w, d[i].id, sft ? d[i].mask : NULL, half), DT_OK);
        assert_int_equal(dt_dataset_add(w, d[i].id + half, sft ? d[i].mask + half : NULL, d[i].n - half), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, d[i].weight), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

static inline dt_loader_options options(const char *files, int64_t seq_len, int64_t G, int64_t m)
{
    return (dt_loader_options){.files = files,
                               .where = "test.ini:3: [data] train",
                               .seq_len = seq_len,
                               .packing = "auto",
                               .train_batch_size = G,
                               .micro_batch_size = m,
                               .nranks = 1,
                               .seed = 5,
                               .vocab_size = 100000};
}

static inline dt_loader *open_loader(const dt_loader_options *o)
{
    dt_loader *l = NULL;
    const dt_err err = dt_loader_open(&l, o);
    if (err != DT_OK) print_message("%s\n", dt_error_message());
    assert_int_equal(err, DT_OK);
    return l;
}

#endif
