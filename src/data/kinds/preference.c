/* preference.c - kind preference: a chosen and a rejected text with the same prompt, each a sequence of a batch. */
#include "kinds.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- pairs without signal ---------------------------------------------------------------------------------------- */

/* Optional attributes: only newer versions of dtrain-data write them. */
static dt_err read_counts(dt_dataset *d, hid_t file)
{
    dt_dataset_info *i = &d->info;
    if (!dt_h5_has(file, "equal_pairs")) return DT_OK;
    DT_TRY(dt_h5_read_i64(file, d->path, "equal_pairs", &i->n_equal_pairs));
    return dt_h5_has(file, "contradicted_pairs")
               ? dt_h5_read_i64(file, d->path, "contradicted_pairs", &i->n_contradicted_pairs)
               : DT_OK;
}

/* Count the file's pairs with equal texts and those contradicted by their scores. */
static dt_err write_counts(const dt_dataset_writer *w, int64_t first, int64_t n, hid_t file, const char *path)
{
    uint8_t marks[4096];
    int64_t n_equal = 0, n_contradicted = 0;
    for (int64_t done = 0; done < n; done += (int64_t)sizeof marks) {
        const int64_t k = dt_min_i64((int64_t)sizeof marks, n - done);
        DT_TRY(dt_temp_array_read(&w->column[DT_COL_PAIR_MARKS], first + done, k, marks));
        for (int64_t i = 0; i < k; i++) {
            n_equal += (marks[i] & DT_MARK_EQUAL) != 0;
            n_contradicted += (marks[i] & DT_MARK_CONTRADICTED) != 0;
        }
    }
    DT_TRY(dt_h5_write_i64(file, path, "equal_pairs", n_equal));
    return dt_h5_write_i64(file, path, "contradicted_pairs", n_contradicted);
}

typedef struct texts {
    int32_t *ids[DT_N_SIDES];
    int64_t n_alloc;
} texts;

/* Check whether pair i has equal texts without being a tie. */
static dt_err compare_texts(dt_dataset *d, int64_t i, texts *t, bool *same)
{
    int64_t first[DT_N_SIDES], n[DT_N_SIDES];
    dt_pair pair;
    *same = false;
    for (int s = 0; s < DT_N_SIDES; s++) DT_TRY(dt_dataset_part(d, s, i, &first[s], &n[s]));
    DT_TRY(dt_dataset_read_pair(d, i, &pair));
    if (n[0] != n[1] || n[0] == 0 || pair.tie) return DT_OK;
    for (int s = 0; s < DT_N_SIDES && n[0] > t->n_alloc; s++)
        DT_RESIZE(t->ids[s], n[0], "%s: no memory to compare texts of %" PRId64 " tokens", d->path, n[0]);
    t->n_alloc = dt_max_i64(t->n_alloc, n[0]);
    for (int s = 0; s < DT_N_SIDES; s++) DT_TRY(dt_dataset_read_side(d, (dt_side)s, first[s], n[s], t->ids[s]));
    *same = memcmp(t->ids[0], t->ids[1], (size_t)n[0] * sizeof *t->ids[0]) == 0;
    return DT_OK;
}

dt_err dt_dataset_count_equal(dt_dataset *d, dt_err (*poll)(void *arg), void *arg, int64_t *n)
{
    texts t = {0};
    dt_err err = DT_OK;
    *n = 0;
    for (int64_t i = 0; i < d->info.n_documents && err == DT_OK; i++) {
        bool same = false;
        if (poll && i % 4096 == 0) err = poll(arg);
        if (err == DT_OK) err = compare_texts(d, i, &t, &same);
        *n += same;
    }
    for (int s = 0; s < DT_N_SIDES; s++) free(t.ids[s]);
    return err;
}

void dt_warn_contradicted(const char *path, int64_t n_contradicted, int64_t n_pairs, const char *first)
{
    DT_WARN("%s%s%" PRId64 " of %" PRId64
            " pairs prefer the answer with the lower score, or have a negative margin%s%s%s%s",
            path ? path : "", path ? ": " : "", n_contradicted, n_pairs, first ? " (first: " : "", first ? first : "",
            first ? ")" : "", 2 * n_contradicted > n_pairs ? ": are chosen and rejected swapped?" : "");
}

static dt_err check_counts(const dt_dataset *d, int64_t n_equal, int64_t n_contradicted, bool quiet)
{
    const int64_t n = d->info.n_documents;
    DT_CHECK(n_equal <= 0 || n_equal < n, DT_ERR_DATA,
             "%s: every pair has equal texts (%" PRId64
             "), so there is no training signal: expected different texts in chosen and rejected",
             d->path, n);
    if (n_equal > 0 && !quiet)
        DT_WARN("%s: the texts of %" PRId64 " of %" PRId64 " pairs are equal, which gives no training signal", d->path,
                n_equal, n);
    if (n_contradicted > 0 && !quiet) dt_warn_contradicted(d->path, n_contradicted, n, NULL);
    return DT_OK;
}

static dt_err check_stored(const dt_dataset *d, bool quiet)
{
    return check_counts(d, d->info.n_equal_pairs, d->info.n_contradicted_pairs, quiet);
}

static dt_err count_and_check(dt_dataset *d, dt_err (*poll)(void *arg), void *arg, bool quiet)
{
    int64_t n_equal = -1;
    if (d->info.n_equal_pairs >= 0) return DT_OK; /* checked when opened */
    DT_TRY(dt_dataset_count_equal(d, poll, arg, &n_equal));
    return check_counts(d, n_equal, -1, quiet);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static dt_err print_pairs(dt_dataset *d)
{
    int64_t n_prompt[DT_N_SIDES] = {0};
    for (int64_t i = 0; i < d->info.n_documents; i++) {
        dt_pair pair;
        DT_TRY(dt_dataset_read_pair(d, i, &pair));
        for (int s = 0; s < DT_N_SIDES; s++) n_prompt[s] += pair.prompt_length[s];
    }
    printf("chosen       %" PRId64 " tokens, %" PRId64 " of them prompt\nrejected     %" PRId64 " tokens, %" PRId64
           " of them prompt\n",
           d->info.n_tokens, n_prompt[0], d->info.n_second_tokens, n_prompt[1]);
    printf("margins      %s\nsafety       %s\nties         %s\n", dt_yes(d->info.has_margins),
           dt_yes(d->info.has_safety), dt_yes(d->info.has_flags));
    const int64_t n_equal = d->info.n_equal_pairs, n_contradicted = d->info.n_contradicted_pairs;
    if (n_equal > 0) printf("equal        %" PRId64 " pair%s of equal texts\n", n_equal, dt_plural(n_equal));
    if (n_contradicted > 0)
        printf("contradicted %" PRId64 " pair%s, by their scores\n", n_contradicted, dt_plural(n_contradicted));
    return DT_OK;
}

static dt_err show_pair(const dt_view *v, int64_t i)
{
    static const char *const safety[] = {"", ", safe", ", unsafe"};
    dt_pair pair;
    DT_TRY(dt_dataset_read_pair(v->d, i, &pair));
    if (v->d->info.has_margins) printf("margin %g\n", (double)pair.margin);
    if (pair.tie) printf("a tie\n");
    for (int s = 0; s < DT_N_SIDES; s++) {
        int64_t first, n;
        DT_TRY(dt_dataset_part(v->d, s, i, &first, &n));
        printf("---- %s: %" PRId64 " token%s, %" PRIu32 " of them prompt%s\n", v->d->kind->side[s], n, dt_plural(n),
               pair.prompt_length[s], safety[pair.safety[s]]);
        DT_TRY(dt_print_side(v, (dt_side)s, first, n, pair.prompt_length[s]));
    }
    return DT_OK;
}

const dt_kind dt_kind_preference = {.name = "preference",
                                    .wanted = "preference (records with chosen and rejected)",
                                    .noun = "sample",
                                    .marks = ", completions",
                                    .side = {"chosen", "rejected"},
                                    .column = {[DT_COL_TOKENS] = {"chosen/tokens"},
                                               [DT_COL_OFFSETS] = {"chosen/offsets"},
                                               [DT_COL_SECOND_TOKENS] = {"rejected/tokens"},
                                               [DT_COL_SECOND_OFFSETS] = {"rejected/offsets"},
                                               [DT_COL_PROMPT] = {"chosen/prompt_length"},
                                               [DT_COL_SECOND_PROMPT] = {"rejected/prompt_length"},
                                               [DT_COL_MARGINS] = {"margins", true},
                                               [DT_COL_SAFETY] = {"chosen/safety", true},
                                               [DT_COL_SECOND_SAFETY] = {"rejected/safety", true},
                                               [DT_COL_FLAGS] = {"ties", true},
                                               [DT_COL_PIXELS] = {"images/pixels", true},
                                               [DT_COL_IMAGE_OFFSETS] = {"images/offsets", true},
                                               [DT_COL_GRIDS] = {"images/grids", true},
                                               [DT_COL_PAIR_MARKS] = {"", true}},
                                    .samples = &dt_samples_answers,
                                    .n_sequences = 2,
                                    .answers = true,
                                    .read_head = read_counts,
                                    .write_head = write_counts,
                                    .check_signal = check_stored,
                                    .read_signal = count_and_check,
                                    .print_info = print_pairs,
                                    .show = show_pair};
