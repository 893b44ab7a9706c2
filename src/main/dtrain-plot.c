/* dtrain-plot.c - plots of a run's metrics: assigns curves to panels. */
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtrain/config/config.h"
#include "dtrain/io/io.h"
#include "dtrain/plot/panels.h"
#include "tool/tool.h"

enum { MAX_POINTS = 2000, MAX_NAMES = 6 };

/* Metrics of the preference and reinforcement learning tasks. A panel is plotted if a run has metrics with
 * these names (* matches anything but a slash). */
static const struct task_panel {
    const char *label[2]; /* of the left and the right axis; NULL: none */
    const char *names[2][MAX_NAMES];
} task_panels[] = {
    {{"reward"},
     {{"grpo/reward", "grpo/rewards/*/mean", "ppo/objective/scores", "ppo/objective/rlhf_reward", "ppo/rewards/*/mean",
       "rm/mean_reward"}}},
    {{"rewards of answers", "accuracy"},
     {{"*/rewards/chosen", "*/rewards/rejected", "*/rewards/margins", "rm/margin"},
      {"dpo/rewards/accuracies", "rm/accuracy", "rm/safety_accuracy"}}},
    {{"KL to the reference", "its coefficient"}, {{"*/kl", "*/objective/kl"}, {"*/kl_coef"}}},
    {{"lambda", "cost"}, {{"*/lambda"}, {"dpo/cost", "dpo/cost_ema", "ppo/objective/costs", "ppo/episode_cost"}}},
    {{"tokens of a completion", "share of truncated completions"},
     {{"*/completions/mean_length", "*/completions/max_length"}, {"*/completions/clipped_ratio"}}},
};
enum { N_TASK_PANELS = sizeof task_panels / sizeof task_panels[0] };

typedef struct run {
    char *title;
    dt_metrics metrics;
} run;

typedef struct options {
    const char *output; /* NULL: loss.png and loss.svg of the first run */
    char **names;       /* --metrics; NULL: the standard panels */
    int n_names;
    int64_t smooth; /* records; 0: 1/40 of them */
    dt_plot_axis axis;
    bool list, help, version;
} options;

static const char usage[] =
    "usage: dtrain-plot [options] RUN_DIR...\n"
    "Plots the metrics of one or several runs: loss, learning rate, gradient norm and throughput. For\n"
    "preference and reinforcement learning runs it also plots rewards, margins, KL, lambda and\n"
    "completion lengths. RUN_DIR is a run's output_dir, or a metrics.jsonl. Needs gnuplot.\n"
    "\n";

/* ---- the command line -------------------------------------------------------------------------------------------- */

static dt_err take_names(void *self, const tool_row *row, char *text)
{
    options *o = self;
    (void)row;
    dt_list_free(o->names, o->n_names);
    return dt_config_split(text, &o->names, &o->n_names);
}

/* clang-format off */
static const tool_row rows[] = {
    {"output", "FILE", TO(output),
     "write one plot to FILE.png or FILE.svg (default: loss.png and loss.svg in the first RUN_DIR)", .letter = 'o'},
    {"metrics", "NAME,...", CALL(take_names), "plot these metrics of metrics.jsonl instead, one panel each",
     .letter = 'm'},
    {"smooth", "W", TO(smooth),
     "smooth with a weighted mean over W records (default: a fortieth of the run's records; 1: no smoothing)", 1,
     TOOL_NO_LIMIT, .letter = 's'},
    {"x", "AXIS", WORD(axis), "x axis: step, tokens or time (seconds of training)", .words = "step,tokens,time",
     .letter = 'x'},
    {"list", NULL, TO(list), "list the metric names of these runs, and plot nothing", .letter = 'l'},
    TOOL_ROWS};
/* clang-format on */
static const tool_help help = {usage, rows, .codes = 0};

static dt_err parse_options(options *opt, int argc, char **argv)
{
    DT_TRY(tool_parse(rows, opt, argc, argv));
    if (opt->help || opt->version) return DT_OK;
    DT_CHECK(optind < argc, DT_ERR_USAGE, "expected the directory of a run; see dtrain-plot --help");
    DT_CHECK(!opt->output || dt_has_ending(opt->output, ".png") || dt_has_ending(opt->output, ".svg"), DT_ERR_USAGE,
             "--output: expected a name that ends in .png or .svg, found '%s'", opt->output);
    DT_CHECK(!opt->names || (opt->n_names > 0 && opt->n_names <= DT_MAX_PANELS), DT_ERR_USAGE,
             "--metrics: expected 1 to %d names, found %d", DT_MAX_PANELS, opt->n_names);
    return DT_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static dt_err read_run(run *r, const char *path, const char *output)
{
    char file[PATH_MAX];
    const int n = snprintf(file, sizeof file, dt_is_directory(path) ? "%s/metrics.jsonl" : "%s", path);
    DT_CHECK(n < (int)sizeof file, DT_ERR_DATA, "%s: the name is too long", path);
    const char *const input = file;
    /* a plot may be overwritten, but never an input */
    if (output) DT_TRY(dt_check_output(output, true, &input, 1));
    DT_COPY_TEXT(r->title, path, "out of memory for the name of %s", path);
    for (size_t len = strlen(r->title); len > 1 && r->title[len - 1] == '/';) r->title[--len] = 0;
    return dt_metrics_read(&r->metrics, file);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool has(const run *runs, int n_runs, const char *name)
{
    for (int r = 0; r < n_runs; r++)
        if (dt_metrics_column(&runs[r].metrics, name)) return true;
    return false;
}

/* Iterates over the metric names of all runs, each once: the next one after run *r, column *c; NULL after the last.
 * Start with {0, -1}. */
static const char *next_name(const run *runs, int n_runs, int *r, int *c)
{
    for (; *r < n_runs; ++*r, *c = -1)
        while (++*c < runs[*r].metrics.n_columns)
            if (!has(runs, *r, runs[*r].metrics.names[*c])) return runs[*r].metrics.names[*c];
    return NULL;
}

static void list_names(const run *runs, int n_runs)
{
    int r = 0, c = -1;
    for (const char *name; (name = next_name(runs, n_runs, &r, &c));) puts(name);
}

/* Distance of a name from the requested one. Names that contain it come first, shortest first; the others
 * are ordered by edit distance to the whole name or to the part after its last slash. INT_MAX: too
 * different. */
static int distance(const char *asked, const char *name)
{
    const char *slash = strrchr(name, '/');
    const int len = (int)strlen(asked), whole = dt_edit_distance(asked, name),
              last = slash ? dt_edit_distance(asked, slash + 1) : whole, least = whole < last ? whole : last;
    if (strstr(name, asked)) return (int)strlen(name) - len;
    return 3 * least <= len ? 1000 + least : INT_MAX;
}

/* The nearest names, as "grpo/reward, grpo/reward_std"; "": none. */
static void suggest(const run *runs, int n_runs, const char *asked, char *out, size_t size)
{
    enum { SHOWN = 4 };
    const char *near[SHOWN] = {0};
    int far[SHOWN], n = 0, r = 0, c = -1;
    for (const char *name; (name = next_name(runs, n_runs, &r, &c));) {
        const int d = distance(asked, name);
        int at = n;
        while (at > 0 && far[at - 1] > d) at--;
        if (d == INT_MAX || at == SHOWN) continue;
        if (n < SHOWN) n++;
        for (int k = n - 1; k > at; k--) near[k] = near[k - 1], far[k] = far[k - 1];
        near[at] = name, far[at] = d;
    }
    *out = 0;
    for (int k = 0; k < n; k++) {
        const size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", k ? ", " : "", near[k]);
    }
}

static dt_err check_names(const options *opt, const run *runs, int n_runs)
{
    char near[512];
    for (int i = 0; i < opt->n_names; i++) {
        if (has(runs, n_runs, opt->names[i])) continue;
        suggest(runs, n_runs, opt->names[i], near, sizeof near);
        return dt_fail(DT_ERR_USAGE, "--metrics: no run has '%s'%s%s; dtrain-plot --list %s lists all names",
                       opt->names[i], *near ? "; similar names: " : "", near, runs[0].title);
    }
    return DT_OK;
}

/* ---- curves of a panel ------------------------------------------------------------------------------------------- */

/* Add the raw records of a metric as a faint curve, and their moving mean above it. */
static dt_err add_smoothed(dt_panel *p, const run *r, const char *name, const options *opt, dt_look look,
                           const char *title)
{
    dt_curve raw, smooth;
    DT_TRY(dt_curve_extract(&raw, &r->metrics, name, opt->axis));
    if (raw.n == 0) {
        dt_curve_free(&raw);
        return DT_OK;
    }
    const int64_t window = opt->smooth ? opt->smooth : raw.n / 40;
    dt_err err = dt_curve_smooth(&smooth, &raw, window, MAX_POINTS);
    dt_curve_thin(&raw, MAX_POINTS);
    if (err == DT_OK) err = dt_panel_add(p, &smooth, look, title);
    look.style = DT_STYLE_RAW;
    if (err == DT_OK && window > 1) return dt_panel_add(p, &raw, look, "");
    dt_curve_free(&raw);
    return err;
}

static dt_err add_plain(dt_panel *p, const run *r, const char *name, const options *opt, dt_look look,
                        const char *title)
{
    dt_curve curve;
    DT_TRY(dt_curve_extract(&curve, &r->metrics, name, opt->axis));
    if (curve.n > 0) {
        dt_curve_thin(&curve, MAX_POINTS);
        return dt_panel_add(p, &curve, look, title);
    }
    dt_curve_free(&curve);
    return DT_OK;
}

/* "training", or "runs/a: training" with several runs. */
static const char *series_title(const run *r, int n_runs, const char *what, char *out, size_t size)
{
    if (n_runs == 1)
        snprintf(out, size, "%s", what);
    else
        snprintf(out, size, "%s%s%s", r->title, *what ? ": " : "", what);
    return out;
}

static dt_look line_of(int colour) { return (dt_look){.style = DT_STYLE_LINE, .colour = colour}; }

static dt_err fill_loss(dt_panel *p, const run *runs, int n_runs, const options *opt)
{
    char title[PATH_MAX + 64];
    p->height = 2;
    snprintf(p->label[0], sizeof p->label[0], "loss");
    for (int i = 0; i < n_runs; i++) {
        DT_TRY(add_smoothed(p, &runs[i], "loss", opt, line_of(i),
                            series_title(&runs[i], n_runs, n_runs == 1 ? "training" : "", title, sizeof title)));
        const int colour = n_runs == 1 ? 1 : i;
        DT_TRY(add_plain(p, &runs[i], "validation_loss", opt, (dt_look){.style = DT_STYLE_POINTS, .colour = colour},
                         series_title(&runs[i], n_runs, "validation", title, sizeof title)));
    }
    return DT_OK;
}

static dt_err fill_optimizer(dt_panel *p, const run *runs, int n_runs, const options *opt)
{
    p->height = 1.1;
    snprintf(p->label[0], sizeof p->label[0], "gradient norm");
    snprintf(p->label[1], sizeof p->label[1], "learning rate");
    for (int i = 0; i < n_runs; i++) {
        const dt_look lr = {.style = DT_STYLE_THIN, .colour = n_runs == 1 ? 6 : i, .dash = 1, .right = true};
        DT_TRY(
            add_smoothed(p, &runs[i], "grad_norm", opt, line_of(n_runs == 1 ? 2 : i), i == 0 ? "gradient norm" : ""));
        DT_TRY(add_plain(p, &runs[i], "lr", opt, lr, i == 0 ? "learning rate" : ""));
    }
    return DT_OK;
}

static dt_err fill_one(dt_panel *p, const char *name, const run *runs, int n_runs, const options *opt)
{
    char title[PATH_MAX + 64];
    snprintf(p->label[0], sizeof p->label[0], "%.120s", name);
    p->height = 1;
    for (int i = 0; i < n_runs; i++) {
        series_title(&runs[i], n_runs, n_runs == 1 ? name : "", title, sizeof title);
        DT_TRY(strcmp(name, "validation_loss") == 0
                   ? add_plain(p, &runs[i], name, opt, (dt_look){.style = DT_STYLE_POINTS, .colour = i}, title)
                   : add_smoothed(p, &runs[i], name, opt, line_of(i), title));
    }
    return DT_OK;
}

/* Index of this title in the panel. With one run, each name has its own colour. With several runs, each run has its own
 * colour in all panels, and names differ by dashes. */
static int number_of(const dt_panel *p, const char *title, bool *is_new)
{
    int k = 0, s = 0;
    for (; s < p->n_series && strcmp(p->series[s].title, title) != 0; s++) k += p->series[s].title[0] != 0;
    *is_new = s == p->n_series;
    return k;
}

static dt_err add_one(dt_panel *p, const run *r, int n_runs, int number, const char *name, bool right,
                      const options *opt)
{
    bool is_new;
    const char *title = strchr(name, '/') + 1;
    const int k = number_of(p, title, &is_new);
    dt_look look = {.style = right ? DT_STYLE_THIN : DT_STYLE_LINE, .colour = k, .dash = right, .right = right};
    if (n_runs > 1) {
        look.colour = number, look.dash = k;
        if (is_new) DT_TRY(dt_panel_add(p, &(dt_curve){0}, look, title));
        title = "";
    }
    return right ? add_plain(p, r, name, opt, look, title) : add_smoothed(p, r, name, opt, look, title);
}

/* Add the metrics of a run whose names match one of the patterns, on one axis. */
static dt_err add_matching(dt_panel *p, const struct task_panel *what, const run *r, int n_runs, int number, bool right,
                           const options *opt)
{
    for (int k = 0; k < MAX_NAMES && what->names[right][k]; k++)
        for (int c = 0; c < r->metrics.n_columns; c++) {
            const char *name = r->metrics.names[c];
            if (!strchr(name, '/') || fnmatch(what->names[right][k], name, FNM_PATHNAME) != 0) continue;
            DT_TRY(add_one(p, r, n_runs, number, name, right, opt));
        }
    return DT_OK;
}

static dt_err fill_task(dt_picture *pic, const struct task_panel *what, const run *runs, int n_runs, const options *opt)
{
    dt_panel *p = &pic->panels[pic->n_panels];
    p->height = 1.1;
    for (int right = 0; right < 2; right++) {
        const int before = p->n_series;
        for (int i = 0; i < n_runs; i++) DT_TRY(add_matching(p, what, &runs[i], n_runs, i, right, opt));
        if (p->n_series > before) snprintf(p->label[right], sizeof p->label[right], "%s", what->label[right]);
    }
    pic->n_panels += p->n_series > 0;
    return DT_OK;
}

static dt_err fill_panels(dt_picture *pic, const run *runs, int n_runs, const options *opt)
{
    for (int i = 0; i < opt->n_names; i++)
        DT_TRY(fill_one(&pic->panels[pic->n_panels++], opt->names[i], runs, n_runs, opt));
    if (opt->n_names > 0) return DT_OK;
    DT_TRY(fill_loss(&pic->panels[pic->n_panels++], runs, n_runs, opt));
    for (int i = 0; i < N_TASK_PANELS; i++) DT_TRY(fill_task(pic, &task_panels[i], runs, n_runs, opt));
    DT_TRY(fill_optimizer(&pic->panels[pic->n_panels++], runs, n_runs, opt));
    dt_panel *last = &pic->panels[pic->n_panels++];
    DT_TRY(fill_one(last, "tokens_per_second", runs, n_runs, opt));
    snprintf(last->label[0], sizeof last->label[0], "tokens/s, all ranks");
    /* earlier panels name the colours */
    for (int i = 0; i < last->n_series; i++) last->series[i].title[0] = 0;
    return DT_OK;
}

static double last_value(const run *r, const char *name, bool least)
{
    const double *column = dt_metrics_column(&r->metrics, name);
    double value = NAN;
    for (int64_t i = 0; column && i < r->metrics.n_rows; i++)
        if (isfinite(column[i]) && !(least && value <= column[i])) value = column[i];
    return value;
}

/* "2,000 steps · 16.4 million tokens · last loss 1.2345 · best validation loss 1.3456" */
static void describe(const run *r, char *out, size_t size)
{
    const double step = last_value(r, "step", false), tokens = last_value(r, "tokens", false);
    const double loss = last_value(r, "loss", false), best = last_value(r, "validation_loss", true);
    int n = snprintf(out, size, "%.0f step%s", step, step == 1 ? "" : "s");
    if (isfinite(tokens)) {
        const dt_scale s = dt_scale_of(tokens);
        n += snprintf(out + n, size - (size_t)n, "  ·  %.*f%s%s tokens", s.divisor > 1 ? 1 : 0, tokens / s.divisor,
                      s.divisor > 1 ? " " : "", s.text);
    }
    if (isfinite(loss)) n += snprintf(out + n, size - (size_t)n, "  ·  last loss %.4f", loss);
    if (isfinite(best)) snprintf(out + n, size - (size_t)n, "  ·  best validation loss %.4f", best);
}

static dt_err draw_all(const run *runs, int n_runs, const char *first, const options *opt)
{
    const char *const suffix[] = {"png", "svg"};
    const char *slash = strrchr(first, '/');
    const int dir_len = dt_is_directory(first) ? (int)strlen(first) : slash ? (int)(slash - first) : 1;
    const char *dir = dt_is_directory(first) || slash ? first : ".";
    dt_picture picture = {.axis = opt->axis};
    if (n_runs == 1) {
        snprintf(picture.heading, sizeof picture.heading, "%s", runs[0].title);
        describe(&runs[0], picture.note, sizeof picture.note);
    } else {
        snprintf(picture.heading, sizeof picture.heading, "%d runs", n_runs);
    }
    dt_err err = fill_panels(&picture, runs, n_runs, opt);
    for (int i = 0; err == DT_OK && i < (opt->output ? 1 : 2); i++) {
        char path[PATH_MAX];
        if (opt->output)
            snprintf(path, sizeof path, "%s", opt->output);
        else
            snprintf(path, sizeof path, "%.*s/loss.%s", dir_len, dir, suffix[i]);
        err = dt_picture_draw(&picture, path);
        if (err == DT_OK) printf("%s\n", path);
    }
    dt_picture_free(&picture);
    return err;
}

static dt_err plot(int argc, char **argv, options *opt, run **runs, int *n_runs)
{
    DT_TRY(parse_options(opt, argc, argv));
    if (tool_answers(&help, opt->help, opt->version)) return DT_OK;
    *runs = calloc((size_t)(argc - optind), sizeof **runs);
    DT_CHECK(*runs, DT_ERR_MEMORY, "out of memory for %d runs", argc - optind);
    for (int i = optind; i < argc; i++) DT_TRY(read_run(&(*runs)[(*n_runs)++], argv[i], opt->output));
    if (opt->list) list_names(*runs, *n_runs);
    if (opt->list) return DT_OK;
    DT_TRY(check_names(opt, *runs, *n_runs));
    return draw_all(*runs, *n_runs, argv[optind], opt);
}

int main(int argc, char **argv)
{
    options opt = {0};
    run *runs = NULL;
    int n_runs = 0;
    tool_start("dtrain-plot"); /* gnuplot's failure is detected by its exit status, not by SIGPIPE */
    const dt_err err = plot(argc, argv, &opt, &runs, &n_runs);
    for (int i = 0; i < n_runs; i++) {
        dt_metrics_free(&runs[i].metrics);
        free(runs[i].title);
    }
    free(runs);
    dt_list_free(opt.names, opt.n_names);
    return tool_end(err);
}
