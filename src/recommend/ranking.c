/* ranking.c - evaluates recommendations: a constrained beam search finds the best items for each prompt, and the rank
 * of the prompt's target gives HR@K and NDCG@K (docs/recommendation.md).
 *
 * A micro-step of the validation is a rollout. Each rank searches for its share of the prompts, and all ranks receive
 * all results. Rank 0 writes the predictions in the order of the prompts. */
#include "dtrain/recommend/ranking.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/rollout/rollout.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_K = 16 };
#define GAIN_UNIT 0x1p-40 /* gains are summed as multiples of this unit: the same bits in any order */

struct dt_ranking {
    const dt_generation_items *items;
    dt_rollout *rollout;
    int64_t n_prompts, n_groups; /* in total; per micro-step */
    int n_beams, n_k;
    int64_t k[MAX_K];
    int32_t *item; /* [n_beams] */
    bool writes;   /* writes predictions.json */
    dt_aside out;  /* rank 0 */
    char path[PATH_MAX];
    struct {
        int loss, n, outside, unknown, hit[MAX_K], gain[MAX_K];
    } sums;
};

int dt_ranking_rank(int32_t target, const int32_t *item, int n)
{
    for (int i = 0; i < n && target >= 0; i++)
        if (item[i] == target) return i;
    return -1;
}

double dt_ranking_gain(int rank, int64_t k) { return rank >= 0 && rank < k ? 1 / log2(rank + 2.0) : 0; }

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err read_top_k(dt_ranking *m, const dt_config *cfg)
{
    char **items, *end;
    int n;
    static const int64_t usual[] = {1, 3, 5, 10, 20, 50};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0] && !*cfg->rec_top_k; i++)
        if (usual[i] <= m->n_beams) m->k[m->n_k++] = usual[i];
    if (!*cfg->rec_top_k) return DT_OK;
    DT_TRY(dt_config_split(cfg->rec_top_k, &items, &n));
    bool good = n > 0 && n <= MAX_K;
    for (int i = 0; i < n && good; i++) {
        m->k[i] = strtoll(items[i], &end, 10);
        good = !*end && m->k[i] > 0 && m->k[i] <= m->n_beams;
        for (int j = 0; j < i; j++) good &= m->k[j] != m->k[i];
    }
    m->n_k = good ? n : 0;
    dt_list_free(items, n);
    DT_CONFIG_CHECK(good, cfg, "rec", "top_k",
                    "expected at most %d different numbers of items, each from 1 to rec.num_beams = %d, found %s",
                    MAX_K, m->n_beams, cfg->rec_top_k);
    return DT_OK;
}

static dt_err open_rollout(dt_ranking *m, dt_task *t)
{
    const dt_rollout_options opt = {.section = "rec",
                                    .validation = true,
                                    .n_rows = t->batching.micro_batch_size * t->data->size * m->n_beams,
                                    .num_generations = m->n_beams,
                                    .beams = true,
                                    .constraint = dt_generation_items_constraint(m->items),
                                    .max_completion = dt_generation_items_depth(m->items, DT_ITEMS_USUAL_DEPTH),
                                    .sampling = dt_sampling_default(),
                                    .from_file = ""};
    m->rollout = dt_rollout_open(t, &opt);
    if (!m->rollout) return DT_OK; /* reported */
    m->n_groups = t->batching.micro_batch_size * t->data->size;
    m->n_prompts = dt_rollout_n_prompts(m->rollout);
    t->n_validation = dt_ceil_div(m->n_prompts, m->n_groups);
    if (m->n_prompts == 0 || !t->valid) return DT_OK;
    DT_CONFIG_CHECK(dt_loader_has_answers(t->valid), t->cfg, "data", "validation",
                    "expected prompts with answers (the SIDs of their targets), found prompts without answers");
    return DT_OK;
}

static void declare(dt_ranking *m, dt_sums *s)
{
    char hit[DT_SUM_NAME], gain[DT_SUM_NAME], shown[DT_SUM_NAME];
    m->sums.n = dt_sums_declare(s, "rec/n", DT_SUM_UNITS, 1);
    m->sums.loss = dt_sums_declare(s, "rec/loss", DT_SUM_UNITS, GAIN_UNIT);
    m->sums.outside = dt_sums_declare(s, "rec/outside", DT_SUM_UNITS, 1);
    m->sums.unknown = dt_sums_declare(s, "rec/unknown", DT_SUM_UNITS, 1);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_loss", "rec/loss", "rec/n", NULL);
    for (int i = 0; i < m->n_k; i++) {
        snprintf(hit, sizeof hit, "rec/hits@%" PRId64, m->k[i]);
        snprintf(gain, sizeof gain, "rec/gain@%" PRId64, m->k[i]);
        m->sums.hit[i] = dt_sums_declare(s, hit, DT_SUM_UNITS, 1);
        m->sums.gain[i] = dt_sums_declare(s, gain, DT_SUM_UNITS, GAIN_UNIT);
        snprintf(shown, sizeof shown, "rec/hr@%" PRId64, m->k[i]);
        dt_sums_show(s, DT_SHOW_VALIDATION, shown, hit, "rec/n", NULL);
        snprintf(shown, sizeof shown, "rec/ndcg@%" PRId64, m->k[i]);
        dt_sums_show(s, DT_SHOW_VALIDATION, shown, gain, "rec/n", NULL);
    }
    dt_sums_show(s, DT_SHOW_VALIDATION, "rec/outside_catalogue", "rec/outside", NULL, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "rec/unknown_targets", "rec/unknown", NULL, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "rec/n", NULL, NULL);
}

/* ---- a part of the task, like its rollout ------------------------------------------------------------------------ */

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_ranking *m = self;
    size_t used = 0;
    (void)t;
    m->item = dt_carve(block, &used, m->n_beams, sizeof *m->item);
    return used;
}

static dt_err begin(void *self, dt_task *t)
{
    dt_ranking *m = self;
    const bool fits = dt_join_path(m->path, t->cfg->run_output_dir, "predictions.json", "");
    return dt_comm_agree(t->comm,
                         fits ? DT_OK : dt_fail(DT_ERR_USAGE, "%s: the path is too long", t->cfg->run_output_dir));
}

static void close_ranking(void *self, dt_task *t)
{
    dt_ranking *m = self;
    (void)t;
    dt_aside_drop(&m->out);
    free(m);
}

static const dt_task_part_ops part = {.lay_out = lay_out, .begin = begin, .close = close_ranking};

dt_ranking *dt_ranking_open(dt_task *t, const dt_generation_items *items, bool writes)
{
    dt_ranking *m = calloc(1, sizeof *m);
    if (!m) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for the task"));
        return NULL;
    }
    dt_task_hold(t, &part, m);
    m->items = items;
    m->writes = writes;
    m->n_beams = (int)t->cfg->rec_num_beams;
    dt_mistakes_add(t->mistakes, read_top_k(m, t->cfg));
    dt_mistakes_add(t->mistakes, open_rollout(m, t));
    declare(m, t->sums);
    return m;
}

/* ---- a group ----------------------------------------------------------------------------------------------------- */

/* The items of a group's rows, best first. Returns their number. n_outside: number of rows that are not items. */
static int find_items(const dt_ranking *m, int64_t group, int *n_outside)
{
    int n = 0;
    *n_outside = 0;
    for (int64_t row = group * m->n_beams; row < (group + 1) * m->n_beams; row++) {
        const dt_rollout_row *y = dt_rollout_row_of(m->rollout, row);
        if (y->n_new == 0) continue; /* the search found fewer */
        m->item[n] = dt_trie_item(m->items->trie, dt_rollout_ids(m->rollout, row) + y->n_prompt, y->n_new);
        *n_outside += m->item[n++] < 0;
    }
    return n;
}

static void count(const dt_ranking *m, dt_sums *s, int32_t target, int n_items, int n_outside)
{
    const int rank = dt_ranking_rank(target, m->item, n_items);
    dt_sums_count(s, m->sums.n, 1);
    dt_sums_count(s, m->sums.outside, n_outside);
    dt_sums_count(s, m->sums.unknown, target < 0);
    dt_sums_add(s, m->sums.loss, -dt_ranking_gain(rank, m->n_beams));
    for (int i = 0; i < m->n_k; i++) {
        dt_sums_count(s, m->sums.hit[i], rank >= 0 && rank < m->k[i]);
        dt_sums_add(s, m->sums.gain[i], dt_ranking_gain(rank, m->k[i]));
    }
}

/* ---- predictions.json -------------------------------------------------------------------------------------------- */

static dt_err write_group(dt_ranking *m, int64_t group, const char *target, int n_items, bool first)
{
    const char *input = dt_rollout_text(m->rollout, group * m->n_beams, DT_PART_PROMPT, DT_WITH_SPECIAL);
    json_t *predict = json_array(), *record = json_pack("{ssss}", "input", input ? input : "", "output", target);
    for (int i = 0; i < n_items && predict; i++)
        json_array_append_new(predict,
                              json_string(m->item[i] < 0 ? "" : dt_catalogue_get(m->items->catalogue, m->item[i]).sid));
    char *text = NULL;
    if (record && predict && json_object_set(record, "predict", predict) == 0) text = json_dumps(record, 0);
    json_decref(predict);
    json_decref(record);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for a record of %s", m->path);
    dt_err err = dt_aside_write(&m->out, first ? "[\n" : ",\n", 2);
    if (err == DT_OK) err = dt_aside_write(&m->out, text, strlen(text));
    free(text);
    return err;
}

static dt_err end_file(dt_ranking *m)
{
    DT_TRY(dt_aside_write(&m->out, "\n]\n", 3));
    return dt_aside_commit(&m->out);
}

/* ---- a micro-step ------------------------------------------------------------------------------------------------ */

/* Rank 0 processes all groups, because it writes them. Each rank counts only its own. */
static dt_err look_at(dt_ranking *m, dt_task *t, int64_t micro)
{
    const int64_t n = dt_min_i64(m->n_groups, m->n_prompts - micro * m->n_groups);
    const bool writes = m->writes && dt_comm_first(t->comm) && *t->cfg->run_output_dir;
    const int64_t from = dt_rollout_first_of(n, t->data->rank, t->data->size),
                  end = dt_rollout_first_of(n, t->data->rank + 1, t->data->size);
    DT_TRY(dt_fault("recommend.look"));
    if (writes && micro == 0) DT_TRY(dt_aside_open(&m->out, m->path));
    for (int64_t group = writes ? 0 : from; group < (writes ? n : end); group++) {
        char *target = NULL;
        int32_t item = -1;
        int n_outside = 0;
        const int64_t prompt = dt_rollout_row_of(m->rollout, group * m->n_beams)->prompt;
        DT_TRY(dt_generation_items_target(m->items, t->valid, prompt, &target, &item));
        const int n_items = find_items(m, group, &n_outside);
        if (group >= from && group < end) count(m, t->sums, item, n_items, n_outside);
        const dt_err err = writes ? write_group(m, group, target, n_items, micro == 0 && group == 0) : DT_OK;
        free(target);
        DT_TRY(err);
    }
    return writes && micro == t->n_validation - 1 ? end_file(m) : DT_OK;
}

dt_err dt_ranking_evaluate(dt_ranking *m, dt_task *t, int64_t micro)
{
    if (micro == 0) dt_rollout_rewind(m->rollout, 0);
    dt_rollout_start(m->rollout, micro);
    DT_TRY(dt_rollout_fill(m->rollout, t));
    dt_phase_enter(t->phase, "rollout", "rank");
    return dt_comm_agree(t->comm, look_at(m, t, micro));
}
