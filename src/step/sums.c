/* sums.c - values are stored in one list, in the format of the vote. A sum has the index of its value in the list. */
#include "dtrain/step/sums.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a sum of each kind is stored as, with the values of an empty sum. */
static const struct form {
    const char *name;
    int n_values;
    dt_vote_value empty[2];
    bool of_samples;
} FORMS[] = {[DT_SUM_UNITS] = {"units", 2, {{.kind = DT_VOTE_COUNT}, {.kind = DT_VOTE_COUNT}}, true},
             [DT_SUM_LOSS] = {"loss", 2, {{.kind = DT_VOTE_COUNT}, {.kind = DT_VOTE_COUNT}}, true},
             [DT_SUM_REAL] = {"real", 1, {{.kind = DT_VOTE_SUM, .real = 0}}, false},
             [DT_SUM_MAX] = {"maximum", 1, {{.kind = DT_VOTE_MAX, .real = -INFINITY}}, false},
             [DT_SUM_MIN] = {"minimum", 1, {{.kind = DT_VOTE_MIN, .real = INFINITY}}, false},
             [DT_SUM_MEAN] = {"mean", 2, {{.kind = DT_VOTE_SUM, .real = 0}, {.kind = DT_VOTE_COUNT}}, false}};

/* ---- declarations ------------------------------------------------------------------------------------------------ */

static void keep_error(dt_sums *s, dt_err err)
{
    if (s->err == DT_OK) s->err = err;
}

int dt_sums_find(const dt_sums *s, const char *name)
{
    for (int i = 0; i < s->n_sums; i++)
        if (!strcmp(s->sum[i].name, name)) return i;
    return -1;
}

const dt_shown *dt_sums_find_shown(const dt_sums *s, dt_show_when when, const char *name)
{
    for (int i = 0; i < s->n_shown[when]; i++)
        if (!strcmp(s->shown[when][i].name, name)) return &s->shown[when][i];
    return NULL;
}

static dt_err check_name(const char *name, bool is_new)
{
    DT_CHECK(*name && strlen(name) < DT_SUM_NAME && is_new, DT_ERR_ARG,
             "internal: dt_sums_declare: metric `%s`: expected a new name of 1 to %d characters", name,
             DT_SUM_NAME - 1);
    return DT_OK;
}

int dt_sums_declare(dt_sums *s, const char *name, dt_sum_kind kind, double unit)
{
    const dt_err err =
        s->step ? dt_fail(DT_ERR_ARG, "internal: dt_sums_declare: metric `%s` is declared after the first step", name)
                : check_name(name, dt_sums_find(s, name) < 0);
    dt_sum *sum = err == DT_OK ? realloc(s->sum, (size_t)(s->n_sums + 1) * sizeof *sum) : NULL;
    if (!sum) {
        keep_error(s, err == DT_OK ? dt_fail(DT_ERR_MEMORY, "out of memory for the metric %s", name) : err);
        return 0;
    }
    s->sum = sum;
    sum[s->n_sums] = (dt_sum){.kind = kind, .unit = unit, .at = s->n_values};
    snprintf(sum[s->n_sums].name, sizeof sum->name, "%s", name);
    s->n_values += FORMS[kind].n_values;
    return s->n_sums++;
}

/* Index of a sum that `name` is computed from; part NULL: -1. */
static int part_of(dt_sums *s, const char *name, const char *part)
{
    const int i = part ? dt_sums_find(s, part) : -1;
    if (part && i < 0)
        keep_error(s, dt_fail(DT_ERR_ARG, "internal: dt_sums_show: metric `%s` depends on `%s`, which is not declared",
                              name, part));
    return i;
}

static void show(dt_sums *s, dt_show_when when, const char *name, dt_shown what)
{
    const dt_err err = check_name(name, !dt_sums_find_shown(s, when, name));
    if (s->err != DT_OK) return;
    dt_shown *shown = err == DT_OK ? realloc(s->shown[when], (size_t)(s->n_shown[when] + 1) * sizeof *shown) : NULL;
    if (!shown) {
        keep_error(s, err == DT_OK ? dt_fail(DT_ERR_MEMORY, "out of memory for the metric %s", name) : err);
        return;
    }
    s->shown[when] = shown;
    shown += s->n_shown[when]++;
    *shown = what;
    snprintf(shown->name, sizeof shown->name, "%s", name);
}

void dt_sums_show(dt_sums *s, dt_show_when when, const char *name, const char *top, const char *bottom,
                  double (*map)(double))
{
    const int above = part_of(s, name, top), below = part_of(s, name, bottom);
    show(s, when, name, (dt_shown){.top = above, .bottom = below, .mean = -1, .less = -1, .map = map});
}

int dt_sums_metric(dt_sums *s, dt_show_when when, const char *name, dt_sum_kind kind, const char *bottom)
{
    const int sum = dt_sums_declare(s, name, kind, 1);
    dt_sums_show(s, when, name, name, bottom, NULL);
    return sum;
}

void dt_sums_show_variance(dt_sums *s, dt_show_when when, const char *name, const char *squares, const char *sum,
                           const char *n)
{
    const int above = part_of(s, name, squares), below = part_of(s, name, n), mean = part_of(s, name, sum);
    show(s, when, name, (dt_shown){.top = above, .bottom = below, .mean = mean, .less = -1});
}

void dt_sums_show_difference(dt_sums *s, dt_show_when when, const char *name, const char *first, const char *second)
{
    const dt_shown *a = dt_sums_find_shown(s, when, first), *b = dt_sums_find_shown(s, when, second);
    if (!a || !b || a->bottom < 0 || b->bottom < 0) {
        keep_error(s, dt_fail(DT_ERR_ARG, "internal: dt_sums: metric %s is a difference of unknown quotients", name));
        return;
    }
    dt_shown what = *a;
    what.less = b->top, what.less_bottom = b->bottom;
    show(s, when, name, what);
}

/* One line per declaration. */
static char *describe(const dt_sums *s)
{
    static const char *const when[DT_N_SHOW] = {"", " in a validation"};
    char *text = NULL;
    size_t nbytes = 0;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return NULL;
    for (int i = 0; i < s->n_sums; i++)
        fprintf(f, "`%s` (%s of %g)\n", s->sum[i].name, FORMS[s->sum[i].kind].name, s->sum[i].unit);
    for (int w = 0; w < DT_N_SHOW; w++)
        for (int i = 0; i < s->n_shown[w]; i++) {
            const dt_shown *what = &s->shown[w][i];
            fprintf(f, "`%s`%s = %s / %s%s%s%s%s\n", what->name, when[w], s->sum[what->top].name,
                    what->bottom < 0 ? "1" : s->sum[what->bottom].name, what->mean < 0 ? "" : " less that squared of ",
                    what->mean < 0 ? "" : s->sum[what->mean].name, what->less < 0 ? "" : " less ",
                    what->less < 0 ? "" : s->sum[what->less].name);
        }
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

/* Report the first line in which two descriptions differ. */
static dt_err compare(const char *mine, const char *first)
{
    for (int line = 1;; line++) {
        const size_t a = strcspn(mine, "\n"), b = strcspn(first, "\n");
        const char *const here = a ? mine : "nothing", *const there = b ? first : "nothing";
        DT_CHECK(a == b && !memcmp(mine, first, a), DT_ERR_FAULT,
                 "internal: dt_sums: metric %d of this rank is %.*s, but rank 0 has %.*s: all ranks must declare the "
                 "same metrics",
                 line, a ? (int)a : 7, here, b ? (int)b : 7, there);
        if (!mine[a]) return DT_OK;
        mine += a + 1, first += b + 1;
    }
}

static dt_err compare_ranks(const char *mine, dt_comm *comm)
{
    char *first = dt_comm_first(comm) ? (char *)mine : NULL;
    DT_TRY(dt_comm_share_text(comm, &first, NULL));
    const dt_err err = dt_comm_agree(comm, compare(mine, first));
    if (!dt_comm_first(comm)) free(first);
    return err;
}

static dt_err prepare(dt_sums *s, dt_comm *comm, char **text)
{
    DT_TRY(s->err);
    const size_t n = (size_t)s->n_values + 1;
    s->step = calloc(n, sizeof *s->step);
    s->total = calloc(n, sizeof *s->total);
    *text = describe(s);
    DT_CHECK(s->step && s->total && *text, DT_ERR_MEMORY, "out of memory for %d metrics", s->n_sums);
    return comm ? dt_comm_vote_reserve(comm, s->n_values) : DT_OK;
}

dt_err dt_sums_settle(dt_sums *s, dt_comm *comm)
{
    char *text = NULL;
    dt_err err = prepare(s, comm, &text);
    if (comm) err = dt_comm_agree(comm, err);
    if (err == DT_OK && comm) err = compare_ranks(text, comm);
    free(text);
    DT_TRY(err);
    dt_sums_clear(s);
    dt_sums_clear_total(s);
    return DT_OK;
}

void dt_sums_close(dt_sums *s)
{
    for (int w = 0; w < DT_N_SHOW; w++) free(s->shown[w]);
    free(s->sum);
    free(s->step);
    free(s->total);
    *s = (dt_sums){0};
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void clear(const dt_sums *s, dt_vote_value *values)
{
    for (int i = 0; i < s->n_sums; i++) {
        const struct form *f = &FORMS[s->sum[i].kind];
        memcpy(values + s->sum[i].at, f->empty, (size_t)f->n_values * sizeof *values);
    }
}

void dt_sums_clear(dt_sums *s)
{
    clear(s, s->step);
    s->nonfinite = false;
}

void dt_sums_clear_total(dt_sums *s)
{
    clear(s, s->total);
    s->total_nonfinite = false;
    s->n_steps = 0;
}

/* Add to a sum, maximum or minimum. */
static void add_real(dt_vote_value *v, double x)
{
    if (v->kind == DT_VOTE_SUM)
        v->real += x;
    else if (isnan(x) || (v->kind == DT_VOTE_MAX ? x > v->real : x < v->real))
        v->real = x;
}

static void add_loss(dt_sums *s, dt_vote_value *v, double loss)
{
    if (!(fabs(loss) < 0x1p50)) {
        s->nonfinite = true;
        return;
    }
    const double high = floor(loss / DT_LOSS_HIGH);
    v[0].count += llrint((loss - high * DT_LOSS_HIGH) / DT_LOSS_UNIT);
    v[1].count += (int64_t)high;
}

/* Stores the low 32 bits and the rest separately: the sum of weights of a whole dataset overflows an int64_t. */
static void add_units(dt_vote_value *v, int64_t n)
{
    v[0].count += n & UINT32_MAX;
    v[1].count += (n - (n & UINT32_MAX)) / (INT64_C(1) << 32);
}

void dt_sums_add(dt_sums *s, int sum, double x)
{
    dt_vote_value *v = s->step + s->sum[sum].at;
    switch (s->sum[sum].kind) {
    case DT_SUM_LOSS:
        add_loss(s, v, x);
        break;
    case DT_SUM_UNITS:
        if (isfinite(x)) add_units(v, llrint(x / s->sum[sum].unit));
        break;
    case DT_SUM_REAL:
    case DT_SUM_MAX:
    case DT_SUM_MIN:
        add_real(v, x);
        break;
    case DT_SUM_MEAN:
        if (!isnan(x)) v[0].real += x, v[1].count++;
        break;
    }
}

void dt_sums_count(dt_sums *s, int sum, int64_t n_units) { add_units(s->step + s->sum[sum].at, n_units); }

/* The ranks of a team compute the same for a sample, and the first of them counts it. */
static void count_samples_once(const dt_sums *s, const dt_comm *comm)
{
    for (int i = 0; i < s->n_sums && !dt_comm_first_of_team(comm); i++) {
        const struct form *f = &FORMS[s->sum[i].kind];
        if (f->of_samples) memcpy(s->step + s->sum[i].at, f->empty, (size_t)f->n_values * sizeof *s->step);
    }
}

dt_err dt_sums_vote(dt_sums *s, dt_comm *comm, dt_vote *vote)
{
    count_samples_once(s, comm);
    if (s->nonfinite) vote->nonfinite = DT_NONFINITE_LOSS;
    vote->values = s->step;
    vote->n_values = s->n_values;
    DT_TRY(dt_comm_vote(comm, vote));
    s->nonfinite = vote->nonfinite == DT_NONFINITE_LOSS;
    return DT_OK;
}

void dt_sums_add_to_total(dt_sums *s)
{
    for (int i = 0; i < s->n_values; i++) {
        if (s->total[i].kind == DT_VOTE_COUNT)
            s->total[i].count += s->step[i].count;
        else
            add_real(&s->total[i], s->step[i].real);
    }
    s->total_nonfinite |= s->nonfinite;
    s->n_steps++;
}

/* ---- displayed values -------------------------------------------------------------------------------------------- */

static double value_of(const dt_sum *sum, const dt_vote_value *values, bool nonfinite)
{
    const dt_vote_value *v = values + sum->at;
    if (sum->kind == DT_SUM_UNITS) /* rounded once, regardless of how the value is split */
        return (double)((__int128)v[1].count * (INT64_C(1) << 32) + v[0].count) * sum->unit;
    if (sum->kind == DT_SUM_MEAN) return v[1].count ? v[0].real / (double)v[1].count : NAN;
    if (sum->kind != DT_SUM_LOSS) return v->real;
    return nonfinite ? NAN : (double)v[1].count * DT_LOSS_HIGH + (double)v[0].count * DT_LOSS_UNIT;
}

static double quotient(double top, double bottom) { return isnan(top) || bottom != 0 ? top / bottom : 0; }

static double shown_of(const dt_sums *s, const dt_shown *what, const dt_vote_value *values, bool nonfinite, double n)
{
    const dt_sum *sum = &s->sum[what->top];
    double x = value_of(sum, values, nonfinite);
    if (what->bottom >= 0) {
        const double bottom = value_of(&s->sum[what->bottom], values, nonfinite);
        x = quotient(x, bottom);
        if (what->less >= 0)
            x -= quotient(value_of(&s->sum[what->less], values, nonfinite),
                          value_of(&s->sum[what->less_bottom], values, nonfinite));
        if (what->mean >= 0 && bottom != 0) {
            const double mean = value_of(&s->sum[what->mean], values, nonfinite) / bottom;
            x = x > mean * mean ? x - mean * mean : isnan(x) ? x : 0;
        }
    } else if (sum->kind == DT_SUM_REAL || sum->kind == DT_SUM_LOSS || sum->kind == DT_SUM_UNITS) {
        x /= n;
    }
    return what->map ? what->map(x) : x;
}

double dt_sums_value(const dt_sums *s, int sum) { return value_of(&s->sum[sum], s->step, s->nonfinite); }

double dt_sums_shown(const dt_sums *s, const dt_shown *what) { return shown_of(s, what, s->step, s->nonfinite, 1); }

double dt_sums_total(const dt_sums *s, int sum) { return value_of(&s->sum[sum], s->total, s->total_nonfinite); }

double dt_sums_shown_of_total(const dt_sums *s, const dt_shown *what)
{
    return shown_of(s, what, s->total, s->total_nonfinite, s->n_steps > 0 ? (double)s->n_steps : 1);
}
