/* grpo_items.c - completions that are items of a catalogue: targets, distinct samples, diversity. */
#include "grpo.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Check a key that needs a catalogue, generated completions and prompts with targets. */
static dt_err check_targets(const dt_task *t, const char *key)
{
    const dt_config *cfg = t->cfg;
    DT_CONFIG_CHECK(*cfg->rec_catalogue, cfg, "rec", key, "needs rec.catalogue");
    DT_CONFIG_CHECK(!*cfg->grpo_rollouts, cfg, "rec", key,
                    "expected false with grpo.rollouts, which defines the completions");
    DT_CONFIG_CHECK(
        !t->train || dt_loader_has_answers(t->train), cfg, "rec", key,
        "expected prompts with answers (the SIDs of their targets) in data.train, found prompts without answers");
    return DT_OK;
}

dt_err grpo_check_items(const grpo *g, const dt_task *t)
{
    const dt_config *cfg = t->cfg;
    if (cfg->rec_add_ground_truth) DT_TRY(check_targets(t, "add_ground_truth"));
    if (cfg->rec_distinct_sampling) DT_TRY(check_targets(t, "distinct_sampling"));
    DT_CONFIG_CHECK(!cfg->rec_distinct_sampling || !grpo_makes_beams(cfg), cfg, "rec", "distinct_sampling",
                    "expected false with grpo.rollout = beam, whose completions are always distinct");
    const int32_t n = g->items.trie ? dt_trie_n_leaves(g->items.trie) : INT32_MAX;
    DT_CONFIG_CHECK(!grpo_makes_beams(cfg) || cfg->grpo_num_generations <= n, cfg, "grpo", "num_generations",
                    "rollout = beam needs %" PRId64
                    " different completions per prompt, but the catalogue has only %d different SIDs",
                    cfg->grpo_num_generations, (int)n);
    return DT_OK;
}

/* ---- targets ----------------------------------------------------------------------------------------------------- */

static dt_err put_targets(grpo *g, dt_task *t, int64_t first)
{
    const int n = g->rule.num_generations;
    for (int64_t last = first + n - 1; last < dt_rollout_n_rows(g->rollout); last += n) {
        char *text = NULL;
        int32_t item;
        DT_TRY(dt_fault("grpo.targets"));
        DT_TRY(
            dt_generation_items_target(&g->items, t->train, dt_rollout_row_of(g->rollout, last)->prompt, &text, &item));
        free(text);
        if (item >= 0) dt_rollout_put(g->rollout, last, g->tokens, dt_trie_ids(g->items.trie, item, g->tokens));
    }
    return DT_OK;
}

dt_err grpo_add_targets(grpo *g, dt_task *t, int64_t first)
{
    if (!t->cfg->rec_add_ground_truth) return DT_OK;
    return dt_comm_agree(t->comm, put_targets(g, t, first));
}

/* ---- selection of samples ---------------------------------------------------------------------------------------- */

static int by_round(const void *a, const void *b)
{
    const grpo_drawn *x = a, *y = b;
    if (x->copy != y->copy) return x->copy - y->copy;
    return x->n_copies != y->n_copies ? y->n_copies - x->n_copies : x->first - y->first;
}

/* Choose n of n_drawn completions, given as items. First come all copies of the target (-1: not an item). Then one of
 * each other item: more frequent items first, ties in order of sampling. Then a second one of each, and so on. order:
 * [n_drawn] scratch. chosen: [n] indices, n <= n_drawn. */
static void keep_distinct(const int32_t *item, int n_drawn, int32_t target, grpo_drawn *order, int n, int *chosen)
{
    int n_others = 0, n_chosen = 0;
    for (int i = 0; i < n_drawn; i++) {
        grpo_drawn x = {.item = item[i], .place = i, .first = i};
        for (int j = n_drawn - 1; j >= 0; j--) {
            if (item[j] != x.item) continue;
            x.n_copies++;
            x.copy += j < i;
            x.first = j;
        }
        if (x.item != target)
            order[n_others++] = x;
        else if (n_chosen < n)
            chosen[n_chosen++] = i;
    }
    qsort(order, (size_t)n_others, sizeof *order, by_round);
    for (int i = 0; n_chosen < n; i++) chosen[n_chosen++] = order[i].place;
}

static dt_err choose(void *self, dt_task *t, const dt_rollout *r, int64_t first, int *chosen)
{
    grpo *g = self;
    char *text = NULL;
    int32_t target;
    DT_TRY(dt_fault("grpo.choose"));
    DT_TRY(dt_generation_items_target(&g->items, t->train, dt_rollout_row_of(r, first)->prompt, &text, &target));
    free(text);
    for (int i = 0; i < g->n_drawn; i++) {
        const dt_rollout_row *y = dt_rollout_row_of(r, first + i);
        g->item[i] = dt_trie_item(g->items.trie, dt_rollout_ids(r, first + i) + y->n_prompt, y->n_new);
    }
    keep_distinct(g->item, g->n_drawn, target, g->drawn, g->rule.num_generations, chosen);
    return DT_OK;
}

void grpo_draw_more(grpo *g, const dt_config *cfg, dt_rollout_options *opt)
{
    if (!cfg->rec_distinct_sampling || !*cfg->rec_catalogue || opt->beams || *opt->from_file) return;
    g->n_drawn = opt->num_generations + opt->num_generations / 2;
    opt->n_drawn = g->n_drawn;
    opt->choose = choose;
    opt->choose_self = g;
}

/* ---- diversity --------------------------------------------------------------------------------------------------- */

static const int32_t *completion(const grpo *g, int64_t row, int32_t *n)
{
    const dt_rollout_row *y = dt_rollout_row_of(g->rollout, row);
    *n = y->n_new;
    return dt_rollout_ids(g->rollout, row) + y->n_prompt;
}

static bool are_equal(const grpo *g, int64_t a, int64_t b)
{
    int32_t n, m;
    const int32_t *x = completion(g, a, &n), *y = completion(g, b, &m);
    return n == m && memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

/* Number of distinct rows in a group. */
static int64_t count_distinct(const grpo *g, int64_t first)
{
    int64_t n_distinct = 0;
    for (int64_t i = first; i < first + g->rule.num_generations; i++) {
        int64_t j = first;
        while (!are_equal(g, i, j)) j++;
        n_distinct += j == i;
    }
    return n_distinct;
}

static int by_id(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void grpo_find_diversity(grpo *g)
{
    int64_t n_distinct = 0, n_tok = 0, n_distinct_tok = 0;
    const int64_t n_rows = dt_rollout_n_rows(g->rollout);
    if (!g->items.trie) return;
    for (int64_t row = 0; row < n_rows; row += g->rule.num_generations) n_distinct += count_distinct(g, row);
    for (int64_t row = 0; row < n_rows; row++) {
        int32_t n;
        const int32_t *ids = completion(g, row, &n);
        memcpy(g->tokens + n_tok, ids, (size_t)n * sizeof *ids);
        n_tok += n;
    }
    qsort(g->tokens, (size_t)n_tok, sizeof *g->tokens, by_id);
    for (int64_t i = 0; i < n_tok; i++) n_distinct_tok += i == 0 || g->tokens[i] != g->tokens[i - 1];
    g->categorical_diversity = n_rows ? (double)n_distinct / (double)n_rows : 0;
    g->token_diversity = n_tok ? (double)n_distinct_tok / (double)n_tok : 0;
}
