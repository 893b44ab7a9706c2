/* eval_metrics.c - metrics of a benchmark, with the definitions and standard errors of lm-evaluation-harness 0.4
 * (api/metrics.py). A metric is a row of a table. */
#include "eval_private.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Result of a metric from the scores of documents. */
typedef enum how {
    MEAN,       /* of the scores; its error is the standard deviation over sqrt(n) */
    PERPLEXITY, /* exp of minus the mean; its error is a bootstrap's */
    PER_UNIT,   /* exp of minus their sum by that of units */
    BITS        /* minus their sum by that of units, in bits */
} how;

struct eval_metric {
    const char *name; /* ends with @ if a number follows */
    eval_form form;
    bool is_default;
    how how;
    /* score of a document from the results of its requests; of generated texts logp is 1 for a correct one */
    double (*score)(const eval_bench *b, const eval_item *item, const double *logp, const double *greedy, int k);
    double (*units)(const eval_bench *b, const eval_item *item);
    bool judged; /* logp are the judge's scores of answers, greedy those of the targets */
};

#define SCORE(name)                                                                                                    \
    static double name(const eval_bench *b, const eval_item *item, const double *logp, const double *greedy, int k)

static bool is_gold(const eval_item *item, int i) { return i < 64 ? item->gold >> i & 1 : i == item->answer; }

/* The first of the largest quotients. length NULL: of the values. */
static int best(const eval_item *item, const double *logp, const int32_t *length)
{
    int at = 0;
    double most = -INFINITY;
    for (int i = 0; i < item->n; i++) {
        const double x = length ? logp[i] / length[i] : logp[i];
        if (x > most) most = x, at = i;
    }
    return at;
}

/* Number of choices that are more probable than the most probable right one. */
static int rank_of(const eval_item *item, const double *logp)
{
    double of_gold = -INFINITY;
    int rank = 0;
    for (int i = 0; i < item->n; i++)
        if (is_gold(item, i) && logp[i] > of_gold) of_gold = logp[i];
    for (int i = 0; i < item->n; i++) rank += !is_gold(item, i) && logp[i] > of_gold;
    return rank;
}

SCORE(acc) { return is_gold(item, best(item, logp, NULL)); }
SCORE(acc_norm) { return is_gold(item, best(item, logp, item->length)); }
SCORE(acc_bytes) { return is_gold(item, best(item, logp, item->length + item->n)); }
SCORE(exact_match)
{
    double any = 0;
    for (int i = 0; i < item->n; i++) any = is_gold(item, i) && greedy[i] > any ? greedy[i] : any;
    return any;
}
SCORE(first_is_correct) { return logp[0]; }
/* 1 - C(n - c, k) / C(n, k): the probability that one of k texts, of n with c correct ones, is correct. */
SCORE(pass)
{
    double c = 0, none = 1;
    for (int i = 0; i < item->n; i++) c += logp[i];
    if (item->n - c < k) return 1;
    for (double i = item->n - c + 1; i <= item->n; i++) none *= 1 - k / i;
    return 1 - none;
}
SCORE(is_safe) /* share of the answers with a positive score */
{
    double n = 0;
    for (int i = 0; i < item->n; i++) n += logp[i] > 0;
    return n / item->n;
}
SCORE(wins) /* share of the answers that score above their target; a tie is half a win */
{
    double n = 0;
    for (int i = 0; i < item->n; i++) n += logp[i] > greedy[i] ? 1 : logp[i] == greedy[i] ? 0.5 : 0;
    return n / item->n;
}
SCORE(mean_score)
{
    double all = 0;
    for (int i = 0; i < item->n; i++) all += logp[i];
    return all / item->n;
}
SCORE(mrr) { return 1.0 / (rank_of(item, logp) + 1); }
SCORE(hits) { return rank_of(item, logp) < k; }
SCORE(ndcg) { return rank_of(item, logp) < k ? 1 / log2(rank_of(item, logp) + 2.0) : 0; }
SCORE(is_greedy) { return greedy[0]; }
SCORE(sum)
{
    double all = 0;
    for (int i = 0; i < item->n; i++) all += logp[i];
    return all;
}

static double words(const eval_bench *b, const eval_item *item) { return (double)item->n_words; }
static double bytes(const eval_bench *b, const eval_item *item) { return (double)item->n_bytes; }
static double tokens(const eval_bench *b, const eval_item *item)
{
    int64_t n = 0;
    for (int i = 0; i < item->n; i++) n += b->request[item->first + i].n_continuation;
    return (double)n;
}

static const eval_metric metrics[] = {
    {"acc", EVAL_CHOICES, true, MEAN, acc, NULL, false},
    {"acc_norm", EVAL_CHOICES, true, MEAN, acc_norm, NULL, false},
    {"acc_bytes", EVAL_CHOICES, false, MEAN, acc_bytes, NULL, false},
    {"exact_match", EVAL_CHOICES, false, MEAN, exact_match, NULL, false},
    {"mrr", EVAL_CHOICES, false, MEAN, mrr, NULL, false},
    {"hits@", EVAL_CHOICES, false, MEAN, hits, NULL, false},
    {"ndcg@", EVAL_CHOICES, false, MEAN, ndcg, NULL, false},
    {"exact_match", EVAL_GENERATE, true, MEAN, first_is_correct, NULL, false},
    {"pass@", EVAL_GENERATE, false, MEAN, pass, NULL, false},
    {"safety_rate", EVAL_GENERATE, false, MEAN, is_safe, NULL, true},
    {"win_rate", EVAL_GENERATE, false, MEAN, wins, NULL, true},
    {"judge_score", EVAL_GENERATE, false, MEAN, mean_score, NULL, true},
    {"perplexity", EVAL_LIKELIHOOD, true, PERPLEXITY, sum, NULL, false},
    {"acc", EVAL_LIKELIHOOD, true, MEAN, is_greedy, NULL, false},
    {"word_perplexity", EVAL_ROLLING, true, PER_UNIT, sum, words, false},
    {"byte_perplexity", EVAL_ROLLING, true, PER_UNIT, sum, bytes, false},
    {"bits_per_byte", EVAL_ROLLING, true, BITS, sum, bytes, false},
    {"token_perplexity", EVAL_ROLLING, true, PER_UNIT, sum, tokens, false},
};
enum { N_METRICS = sizeof metrics / sizeof metrics[0] };

/* ---- declaration ------------------------------------------------------------------------------------------------- */

static bool has_error(const eval_metric *m) { return m->how == MEAN || m->how == PERPLEXITY; }

/* The sum "eval/BENCHMARK/METRIC", of a metric with its number and filter. */
static dt_err add_sum(const eval_bench *b, const char *metric, dt_sums *s, int *sum)
{
    char name[2 * DT_SUM_NAME];
    const int n = snprintf(name, sizeof name, "eval/%.99s/%s", b->name, metric);
    if (n >= DT_SUM_NAME)
        return eval_fail(b, EVAL_metrics, "expected at most %d characters in the name of a metric, found %s",
                         DT_SUM_NAME - 1, name);
    if (dt_sums_find_shown(s, DT_SHOW_VALIDATION, name))
        return eval_fail(b, EVAL_metrics, "expected different metrics and filters, found %s twice", name);
    *sum = dt_sums_metric(s, DT_SHOW_VALIDATION, name, DT_SUM_MAX, NULL);
    return DT_OK;
}

static dt_err add_filtered(eval_bench *b, const eval_metric *m, int k, int filter, dt_sums *s)
{
    char name[2 * DT_SUM_NAME];
    const char *of = b->form == EVAL_GENERATE && !m->judged ? b->filter[filter].name : NULL;
    DT_GROW(b->result, b->n_results, "out of memory for metrics");
    eval_result *r = &b->result[b->n_results++];
    *r = (eval_result){.metric = m, .k = k, .filter = filter, .value = NAN, .error = NAN};
    for (int error = 0; error <= has_error(m); error++) {
        snprintf(name, sizeof name, "%s%.0d%s%s%.90s", m->name, k, error ? "_stderr" : "", of ? "," : "", of ? of : "");
        DT_TRY(add_sum(b, name, s, error ? &r->sum_of_error : &r->sum));
        if (!error) memcpy(r->name, name, sizeof r->name);
    }
    return DT_OK;
}

/* A metric of generated texts exists for each filter. */
static dt_err add(eval_bench *b, const eval_metric *m, int k, dt_sums *s)
{
    if (k > 0 && b->form == EVAL_GENERATE && k > b->n_repeats)
        return eval_fail(b, EVAL_repeats, "expected at least %d because of the metric %s%d, found %d", k, m->name, k,
                         b->n_repeats);
    b->is_judged |= m->judged;
    for (int f = 0; f < (b->form == EVAL_GENERATE && !m->judged ? b->n_filters : 1); f++)
        DT_TRY(add_filtered(b, m, k, f, s));
    return DT_OK;
}

/* The number after a metric's name; 0: it has none; -1: not this metric. */
static int number_after(const eval_metric *m, const char *word)
{
    char *end;
    const size_t n = strlen(m->name);
    if (m->name[n - 1] != '@') return strcmp(word, m->name) ? -1 : 0;
    if (strncmp(word, m->name, n) != 0) return -1;
    const long k = strtol(word + n, &end, 10);
    return *end || k < 1 || k > 1000000 ? -1 : (int)k;
}

static dt_err add_named(eval_bench *b, const char *word, dt_sums *s)
{
    char names[300] = "";
    for (int i = 0; i < N_METRICS; i++) {
        if (metrics[i].form != b->form) continue;
        const int k = number_after(&metrics[i], word);
        if (k >= 0) return add(b, &metrics[i], k, s);
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s%s", n ? ", " : "", metrics[i].name,
                 metrics[i].name[strlen(metrics[i].name) - 1] == '@' ? "N" : "");
    }
    return eval_fail(b, EVAL_metrics, "expected metrics among %s, found '%s'", names, word);
}

dt_err eval_declare(eval_bench *b, dt_sums *s)
{
    char **words;
    int n;
    DT_TRY(dt_config_split(eval_text(b, EVAL_metrics), &words, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) err = add_named(b, words[i], s);
    for (int i = 0; i < N_METRICS && n == 0 && err == DT_OK; i++)
        if (metrics[i].form == b->form && metrics[i].is_default) err = add(b, &metrics[i], 0, s);
    dt_list_free(words, n);
    return err;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static double mean_of(const double *x, int64_t n)
{
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += x[i];
    return all / (double)n;
}

/* Standard deviation of a sample. NaN for one value. */
static double deviation(const double *x, int64_t n)
{
    const double mean = mean_of(x, n);
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(all / (double)(n - 1)) : NAN;
}

/* Standard deviation of the perplexities of samples with replacement. Each block of samples has its own random
 * numbers. */
static dt_err bootstrap(const double *x, int64_t n, int64_t n_samples, double *error)
{
    const int64_t block = dt_min_i64(1000, n_samples), n_blocks = block ? n_samples / block : 0;
    double *sample;
    *error = NAN;
    if (n_blocks * block < 2) return DT_OK;
    DT_ALLOC(sample, n_blocks * block, "out of memory for a bootstrap");
    for (int64_t i = 0; i < n_blocks; i++) {
        python_random random;
        python_random_seed(&random, (uint32_t)i);
        for (int64_t j = 0; j < block; j++) {
            double all = 0;
            for (int64_t k = 0; k < n; k++) all += x[(int64_t)(python_random_real(&random) * (double)n)];
            sample[i * block + j] = exp(-all / (double)n);
        }
    }
    *error = deviation(sample, n_blocks * block);
    free(sample);
    return DT_OK;
}

static dt_err compute(eval_bench *b, eval_result *r, const dt_config *cfg)
{
    const eval_metric *m = r->metric;
    const int64_t n = b->docs.n;
    const double *results = m->judged                  ? b->judged
                            : b->form == EVAL_GENERATE ? b->correct + r->filter * b->n_requests
                                                       : b->logp;
    const double *others = m->judged ? b->judged + b->n_requests : b->greedy;
    double all = 0, units = 0;
    for (int64_t i = 0; i < n; i++) {
        const eval_item *item = &b->item[i];
        all += b->score[i] = m->score(b, item, results + item->first, others + item->first, r->k);
        if (m->units) units += m->units(b, item);
    }
    const double mean = all / (m->units ? units : (double)n);
    r->value = m->how == MEAN ? mean : m->how == BITS ? -mean / log(2) : exp(-mean);
    r->error = m->how == MEAN ? deviation(b->score, n) / sqrt((double)n) : NAN;
    return m->how == PERPLEXITY ? bootstrap(b->score, n, cfg->eval_bootstrap_iters, &r->error) : DT_OK;
}

dt_err eval_compute(eval_bench *b, const dt_config *cfg)
{
    for (int i = 0; i < b->n_results; i++) DT_TRY(compute(b, &b->result[i], cfg));
    return DT_OK;
}
