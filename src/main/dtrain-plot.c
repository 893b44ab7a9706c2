/* dtrain-plot.c - pictures of a run's metrics. The numbers are prepared here and drawn by gnuplot, which is on every cluster and gives PNG and SVG from one
 * script; a plotting library would be a dependency of the trainer for the sake of a tool. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtrain/config.h"
#include "dtrain/metrics.h"

extern char **environ;

enum { MAX_POINTS = 2000, MAX_PANELS = 8, MAX_NOTES = 256 };

typedef struct run {
    char *title;
    dt_metrics metrics;
} run;

typedef struct options {
    const char *output; /* NULL: loss.png and loss.svg of the first run */
    char **names;       /* --metrics; NULL: the three standard panels */
    int n_names;
    int64_t smooth; /* records; 0: a fortieth of them */
    dt_axis axis;
} options;

/* How a curve is drawn. */
typedef enum style { RAW, SMOOTH, POINTS, DASHED } style;

typedef struct series {
    dt_curve curve;
    style style;
    int colour;
    bool right;                /* axis on the right */
    char title[PATH_MAX + 64]; /* "" keeps it out of the legend */
} series;

typedef struct panel {
    series *series;
    int n_series;
    char label[2][128]; /* of the left and the right axis; "" where there is none */
    bool logarithmic[2];
    double height; /* relative to the other panels */
} panel;

/* Okabe and Ito's palette, which people with any colour vision can tell apart, without its yellow. */
static const char *const palette[] = {"0072B2", "D55E00", "009E73", "CC79A7", "E69F00", "56B4E9", "444444"};
enum { N_COLOURS = sizeof palette / sizeof palette[0] };

static const char usage[] =
    "Usage: dtrain-plot [options] RUN_DIR...\n"
    "Draw the metrics of one or several runs: loss, learning rate and gradient norm, throughput.\n"
    "RUN_DIR is a run's output_dir, or a metrics.jsonl. Needs gnuplot.\n\n"
    "  -o, --output FILE       one picture, FILE.png or FILE.svg (default: loss.png and loss.svg in the first RUN_DIR)\n"
    "  -m, --metrics NAME,...  these numbers of metrics.jsonl instead, a panel each\n"
    "  -s, --smooth W          weighted mean over W records (default: a fortieth of a run's records; 1: none)\n"
    "  -x, --x AXIS            step, tokens or time (seconds of training)\n"
    "  -h, --help              this text\n";

/* ---- the command line ------------------------------------------------------------------------------------------------ */

static dt_err parse_axis(const char *text, dt_axis *axis)
{
    static const char *const words[] = {[DT_AXIS_STEP] = "step", [DT_AXIS_TOKENS] = "tokens", [DT_AXIS_TIME] = "time"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *axis = (dt_axis)i;
        return DT_OK;
    }
    return dt_fail(DT_ERR_USAGE, "--x: expected step, tokens or time, found '%s'", text);
}

static dt_err parse_smooth(const char *text, int64_t *smooth)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    DT_CHECK(end != text && !*end && errno == 0 && value >= 1, DT_ERR_USAGE,
             "--smooth: expected a number of records from 1 on, found '%s'", text);
    *smooth = value;
    return DT_OK;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n > k && strcmp(text + n - k, end) == 0;
}

static dt_err parse_options(options *opt, int argc, char **argv, bool *help)
{
    static const struct option longs[] = {{"output", required_argument, 0, 'o'}, {"metrics", required_argument, 0, 'm'},
                                          {"smooth", required_argument, 0, 's'}, {"x", required_argument, 0, 'x'},
                                          {"help", no_argument, 0, 'h'},         {0}};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":o:m:s:x:h", longs, NULL)) != -1;) {
        switch (c) {
        case 'o':
            opt->output = optarg;
            break;
        case 'm':
            dt_config_free_list(opt->names, opt->n_names);
            DT_TRY(dt_config_split(optarg, &opt->names, &opt->n_names));
            break;
        case 's':
            DT_TRY(parse_smooth(optarg, &opt->smooth));
            break;
        case 'x':
            DT_TRY(parse_axis(optarg, &opt->axis));
            break;
        case 'h':
            *help = true;
            return DT_OK;
        case ':':
            return dt_fail(DT_ERR_USAGE, "%s: expected a value; see dtrain-plot --help", argv[optind - 1]);
        default:
            return dt_fail(DT_ERR_USAGE, "%s: unknown option; see dtrain-plot --help", argv[optind - 1]);
        }
    }
    DT_CHECK(optind < argc, DT_ERR_USAGE, "expected the directory of a run; see dtrain-plot --help");
    DT_CHECK(!opt->output || ends_with(opt->output, ".png") || ends_with(opt->output, ".svg"), DT_ERR_USAGE,
             "--output: expected a name that ends in .png or .svg, found '%s'", opt->output);
    DT_CHECK(!opt->names || (opt->n_names > 0 && opt->n_names <= MAX_PANELS), DT_ERR_USAGE,
             "--metrics: expected 1 to %d names, found %d", MAX_PANELS, opt->n_names);
    return DT_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static dt_err read_run(run *r, const char *path)
{
    char file[PATH_MAX];
    const int n = snprintf(file, sizeof file, is_directory(path) ? "%s/metrics.jsonl" : "%s", path);
    DT_CHECK(n < (int)sizeof file, DT_ERR_DATA, "%s: the name is too long", path);
    r->title = strdup(path);
    DT_CHECK(r->title, DT_ERR_MEMORY, "out of memory for the name of %s", path);
    for (size_t len = strlen(r->title); len > 1 && r->title[len - 1] == '/';) r->title[--len] = 0;
    return dt_metrics_read(&r->metrics, file);
}

static dt_err check_names(const options *opt, const run *runs, int n_runs)
{
    for (int i = 0; i < opt->n_names; i++) {
        bool found = false;
        for (int r = 0; r < n_runs; r++) found |= dt_metrics_column(&runs[r].metrics, opt->names[i]) != NULL;
        if (found) continue;
        char there[1024] = "";
        for (int c = 0; c < runs[0].metrics.n_columns; c++) {
            const size_t used = strlen(there);
            snprintf(there + used, sizeof there - used, "%s%s", c ? ", " : "", runs[0].metrics.names[c]);
        }
        return dt_fail(DT_ERR_USAGE, "--metrics: no run has '%s'; %s has %s", opt->names[i], runs[0].title, there);
    }
    return DT_OK;
}

/* ---- what goes into a panel ------------------------------------------------------------------------------------------ */

static dt_err add_series(panel *p, const dt_curve *curve, style st, int colour, bool right, const char *title)
{
    series *grown = realloc(p->series, ((size_t)p->n_series + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "out of memory for %d curves", p->n_series + 1);
    p->series = grown;
    series *s = &p->series[p->n_series++];
    *s = (series){.curve = *curve, .style = st, .colour = colour, .right = right};
    snprintf(s->title, sizeof s->title, "%s", title);
    return DT_OK;
}

/* The records of a name as they are, faint, and their mean over a window on top of them. */
static dt_err add_smoothed(panel *p, const run *r, const char *name, const options *opt, int colour, bool right,
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
    if (err == DT_OK) err = add_series(p, &smooth, SMOOTH, colour, right, title);
    if (err == DT_OK && window > 1) return add_series(p, &raw, RAW, colour, right, "");
    dt_curve_free(&raw);
    return err;
}

static dt_err add_plain(panel *p, const run *r, const char *name, const options *opt, style st, int colour, bool right,
                        const char *title)
{
    dt_curve curve;
    DT_TRY(dt_curve_extract(&curve, &r->metrics, name, opt->axis));
    if (curve.n > 0) {
        dt_curve_thin(&curve, MAX_POINTS);
        return add_series(p, &curve, st, colour, right, title);
    }
    dt_curve_free(&curve);
    return DT_OK;
}

/* "training" alone, or "runs/a: training" among several runs. */
static const char *series_title(const run *r, int n_runs, const char *what, char *out, size_t size)
{
    if (n_runs == 1)
        snprintf(out, size, "%s", what);
    else
        snprintf(out, size, "%s%s%s", r->title, *what ? ": " : "", what);
    return out;
}

static dt_err fill_loss(panel *p, const run *runs, int n_runs, const options *opt)
{
    char title[PATH_MAX + 64];
    p->height = 2;
    snprintf(p->label[0], sizeof p->label[0], "loss");
    for (int i = 0; i < n_runs; i++) {
        DT_TRY(add_smoothed(p, &runs[i], "loss", opt, i, false,
                            series_title(&runs[i], n_runs, n_runs == 1 ? "training" : "", title, sizeof title)));
        const int colour = n_runs == 1 ? 1 : i;
        DT_TRY(add_plain(p, &runs[i], "validation_loss", opt, POINTS, colour, false,
                         series_title(&runs[i], n_runs, "validation", title, sizeof title)));
    }
    return DT_OK;
}

static dt_err fill_optimizer(panel *p, const run *runs, int n_runs, const options *opt)
{
    p->height = 1.1;
    snprintf(p->label[0], sizeof p->label[0], "gradient norm");
    snprintf(p->label[1], sizeof p->label[1], "learning rate");
    for (int i = 0; i < n_runs; i++) {
        DT_TRY(add_smoothed(p, &runs[i], "grad_norm", opt, n_runs == 1 ? 2 : i, false, i == 0 ? "gradient norm" : ""));
        DT_TRY(add_plain(p, &runs[i], "lr", opt, DASHED, n_runs == 1 ? 6 : i, true, i == 0 ? "learning rate" : ""));
    }
    return DT_OK;
}

static dt_err fill_one(panel *p, const char *name, const run *runs, int n_runs, const options *opt)
{
    char title[PATH_MAX + 64];
    snprintf(p->label[0], sizeof p->label[0], "%.120s", name);
    p->height = 1;
    for (int i = 0; i < n_runs; i++) {
        series_title(&runs[i], n_runs, n_runs == 1 ? name : "", title, sizeof title);
        DT_TRY(strcmp(name, "validation_loss") == 0 ? add_plain(p, &runs[i], name, opt, POINTS, i, false, title)
                                                    : add_smoothed(p, &runs[i], name, opt, i, false, title));
    }
    return DT_OK;
}

static dt_err fill_panels(panel *panels, int *n_panels, const run *runs, int n_runs, const options *opt)
{
    for (int i = 0; i < opt->n_names; i++) DT_TRY(fill_one(&panels[(*n_panels)++], opt->names[i], runs, n_runs, opt));
    if (opt->n_names > 0) return DT_OK;
    *n_panels = 3;
    DT_TRY(fill_loss(&panels[0], runs, n_runs, opt));
    DT_TRY(fill_optimizer(&panels[1], runs, n_runs, opt));
    DT_TRY(fill_one(&panels[2], "tokens_per_second", runs, n_runs, opt));
    snprintf(panels[2].label[0], sizeof panels[2].label[0], "tokens/s");
    for (int i = 0; i < panels[2].n_series; i++) panels[2].series[i].title[0] = 0;
    return DT_OK;
}

/* ---- the script ------------------------------------------------------------------------------------------------------ */

/* Numbers are divided by a power of 1000 (or another unit), which goes into the label: gnuplot's own "k" and "M" round away the digits between. */
typedef struct scale {
    double divisor;
    const char *text;
} scale;

static scale scale_of(double largest)
{
    static const scale scales[] = {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}, {1e3, "thousand"}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (largest >= 5 * scales[i].divisor) return scales[i];
    return (scale){1, ""};
}

static scale scale_of_time(double largest)
{
    static const scale scales[] = {{86400, "days"}, {3600, "hours"}, {60, "minutes"}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (largest >= 3 * scales[i].divisor) return scales[i];
    return (scale){1, "seconds"};
}

typedef struct range {
    double low, high;
} range;

static void extend(range *r, double v)
{
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

static range x_range(const panel *panels, int n_panels)
{
    range r = {INFINITY, -INFINITY};
    for (int p = 0; p < n_panels; p++)
        for (int s = 0; s < panels[p].n_series; s++)
            for (int64_t i = 0; i < panels[p].series[s].curve.n; i++) extend(&r, panels[p].series[s].curve.x[i]);
    if (!(r.low <= r.high)) return (range){0, 1};
    if (r.low == r.high) return (range){r.low - 0.5, r.high + 0.5};
    return r;
}

static range y_range(const panel *p, bool right)
{
    range r = {INFINITY, -INFINITY};
    for (int s = 0; s < p->n_series; s++)
        for (int64_t i = 0; p->series[s].right == right && i < p->series[s].curve.n; i++) extend(&r, p->series[s].curve.y[i]);
    return r.low <= r.high ? r : (range){0, 1};
}

/* gnuplot's single-quoted string: nothing is special in it but the quote, which is doubled. */
static void put_quoted(FILE *f, const char *text)
{
    putc('\'', f);
    for (; *text; text++) {
        if (*text == '\'') putc('\'', f);
        putc((unsigned char)*text < 0x20 ? ' ' : *text, f);
    }
    putc('\'', f);
}

static void put_axis(FILE *f, panel *p, bool right)
{
    static const char *const superscript[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    const char *axis = right ? "y2" : "y";
    range r = y_range(p, right);
    char label[256];
    double divisor = 1;
    snprintf(label, sizeof label, "%s", p->label[right]);

    p->logarithmic[right] =
        !right && r.low > 0 && r.high / r.low > 200; /* spikes of a gradient norm; a learning rate is read linearly */
    const int power = r.high > 0 ? (int)floor(log10(r.high)) : 0;
    if (!p->logarithmic[right] && power <= -2 && power >= -99) {
        divisor = pow(10, power);
        const char *tens = -power >= 10 ? superscript[-power / 10] : "";
        snprintf(label, sizeof label, "%s (10⁻%s%s)", p->label[right], tens, superscript[-power % 10]);
    } else if (!p->logarithmic[right] && scale_of(r.high).divisor > 1) {
        divisor = scale_of(r.high).divisor;
        snprintf(label, sizeof label, "%s %s", scale_of(r.high).text, p->label[right]);
    }
    if (p->logarithmic[right]) {
        fprintf(f, "set logscale %s\nset %srange [%.9g:%.9g]\n", axis, axis, r.low / 1.2, r.high * 1.2);
    } else {
        const double margin = r.high > r.low ? 0.06 * (r.high - r.low) : fmax(fabs(r.high), 1e-3) * 0.1;
        const double low = r.low >= 0 && r.low < 2 * margin ? 0 : r.low - margin; /* begin at zero where it is near */
        fprintf(f, "unset logscale %s\nset %srange [%.9g:%.9g]\n", axis, axis, low / divisor, (r.high + margin) / divisor);
    }
    fprintf(f, "set %slabel ", axis);
    put_quoted(f, label);
    fprintf(f, " offset %s\nset %stics nomirror\n", right ? "-0.5,0" : "0.5,0", axis);
    for (int s = 0; s < p->n_series; s++)
        for (int64_t i = 0; p->series[s].right == right && i < p->series[s].curve.n; i++) p->series[s].curve.y[i] /= divisor;
}

static void put_series(FILE *f, const series *s, const char *block)
{
    const char *colour = palette[s->colour % N_COLOURS];
    fprintf(f, "%s axes %s ", block, s->right ? "x1y2" : "x1y1");
    if (s->style == POINTS)
        fprintf(f, "with %s pt 7 ps 0.7 lw 1 lc rgb '#%s' ", s->curve.n > 60 ? "lines" : "linespoints", colour);
    else if (s->curve.n == 1)
        fprintf(f, "with points pt 7 ps 0.5 lc rgb '#%s' ", colour);
    else if (s->style == RAW)
        fprintf(f, "with lines lw 1 lc rgb '#a4%s' ", colour);
    else
        fprintf(f, "with lines lw %s lc rgb '#%s' ", s->style == DASHED ? "1.4 dt (9,5)" : "2", colour);
    if (s->title[0]) {
        fprintf(f, "title ");
        put_quoted(f, s->title);
    } else {
        fprintf(f, "notitle");
    }
}

/* The curves of a panel as data blocks; raw ones come first, so that they lie beneath. */
static void put_panel(FILE *f, panel *p, int number, double x_divisor)
{
    if (p->n_series == 0) {
        fprintf(f,
                "set label 99 'no records' at graph 0.5,0.5 center textcolor rgb '#888888'\nplot NaN notitle\nunset label 99\n");
        return;
    }
    for (int s = 0; s < p->n_series; s++) {
        fprintf(f, "$d%d_%d << EOD\n", number, s);
        for (int64_t i = 0; i < p->series[s].curve.n; i++)
            fprintf(f, "%.9g %.9g\n", p->series[s].curve.x[i] / x_divisor, p->series[s].curve.y[i]);
        fprintf(f, "EOD\n");
    }
    int put = 0;
    for (int layer = 0; layer < 2; layer++) {
        for (int s = 0; s < p->n_series; s++) {
            char block[32];
            if ((p->series[s].style == RAW) != (layer == 0)) continue;
            snprintf(block, sizeof block, "$d%d_%d", number, s);
            fprintf(f, "%s", put++ ? ", \\\n     " : "plot ");
            put_series(f, &p->series[s], block);
        }
    }
    fprintf(f, "\n");
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
        const scale s = scale_of(tokens);
        n += snprintf(out + n, size - (size_t)n, "  ·  %.*f%s%s tokens", s.divisor > 1 ? 1 : 0, tokens / s.divisor,
                      s.divisor > 1 ? " " : "", s.text);
    }
    if (isfinite(loss)) n += snprintf(out + n, size - (size_t)n, "  ·  last loss %.4f", loss);
    if (isfinite(best)) snprintf(out + n, size - (size_t)n, "  ·  best validation loss %.4f", best);
}

static void put_heading(FILE *f, const run *runs, int n_runs)
{
    char text[MAX_NOTES];
    fprintf(f, "set label 1 ");
    if (n_runs == 1) {
        put_quoted(f, runs[0].title);
        describe(&runs[0], text, sizeof text);
    } else {
        snprintf(text, sizeof text, "%d runs", n_runs);
        put_quoted(f, text);
        text[0] = 0;
    }
    fprintf(f, " at screen 0.075,0.972 left font ',15'\nset label 2 ");
    put_quoted(f, text);
    fprintf(f, " at screen 0.935,0.972 right textcolor rgb '#555555'\n");
}

static const char *x_label(dt_axis axis, double largest, double *divisor, char *out, size_t size)
{
    scale s = axis == DT_AXIS_TIME ? scale_of_time(largest) : axis == DT_AXIS_TOKENS ? scale_of(largest) : (scale){1, ""};
    *divisor = s.divisor;
    if (axis == DT_AXIS_TIME)
        snprintf(out, size, "time of training (%s)", s.text);
    else if (axis == DT_AXIS_TOKENS)
        snprintf(out, size, "%s%stokens", s.text, s.divisor > 1 ? " " : "");
    else
        snprintf(out, size, "step");
    return out;
}

/* Sizes are pixels of a picture 1200 wide; the plots lie above one another, with common left and right edges. */
static void put_picture(FILE *f, panel *panels, int n_panels, const run *runs, int n_runs, dt_axis axis)
{
    char text[128];
    double divisor, total = 0, top = 0.945;
    const range x = x_range(panels, n_panels);
    const char *label = x_label(axis, x.high, &divisor, text, sizeof text);
    for (int i = 0; i < n_panels; i++) total += panels[i].height;

    fprintf(f, "set encoding utf8\nset multiplot\n"
               "set border 3 lc rgb '#666666'\nset tics nomirror scale 0.6 textcolor rgb '#333333'\n"
               "set grid lc rgb '#e4e4e4' lt 1 lw 1\nset key top right noenhanced samplen 2.2 spacing 1.15 opaque fc rgb "
               "'#ffffff' noautotitle\n"
               "set lmargin at screen 0.075\nset rmargin at screen 0.935\nset format x ''\n");
    fprintf(f, "set xrange [%.9g:%.9g]\n", x.low / divisor, x.high / divisor);
    put_heading(f, runs, n_runs);
    const double gap = 0.035, bottom = 0.065, room = top - bottom - gap * (n_panels - 1);
    for (int i = 0; i < n_panels; i++) {
        const double height = room * panels[i].height / total;
        fprintf(f, "set tmargin at screen %.4f\nset bmargin at screen %.4f\n", top, top - height);
        top -= height + gap;
        const bool right = panels[i].label[1][0];
        put_axis(f, &panels[i], false);
        if (right) put_axis(f, &panels[i], true);
        fprintf(f, "set border %d\n", right ? 11 : 3);
        if (i == n_panels - 1) {
            fprintf(f, "set format x '%%.10g'\nset xlabel ");
            put_quoted(f, label);
            fprintf(f, " offset 0,0.3\n");
        }
        put_panel(f, &panels[i], i, divisor);
        fprintf(f, "unset label 1\nunset label 2\n");
        if (right) fprintf(f, "unset y2tics\nunset y2label\n");
    }
    fprintf(f, "unset multiplot\n");
}

/* ---- gnuplot --------------------------------------------------------------------------------------------------------- */

static dt_err start_gnuplot(pid_t *pid, FILE **script)
{
    int ends[2];
    DT_CHECK(pipe(ends) == 0, DT_ERR_FAULT, "cannot make a pipe to gnuplot: %s", strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    char *const argv[] = {"gnuplot", NULL};
    const int why = posix_spawnp(pid, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    *script = why == 0 ? fdopen(ends[1], "w") : NULL;
    if (!*script) close(ends[1]);
    DT_CHECK(why != ENOENT, DT_ERR_FAULT,
             "gnuplot is not there: install it (Debian and Ubuntu: apt install gnuplot-nox), or load its module");
    DT_CHECK(why == 0, DT_ERR_FAULT, "cannot start gnuplot: %s", strerror(why));
    DT_CHECK(*script, DT_ERR_MEMORY, "out of memory for the pipe to gnuplot");
    return DT_OK;
}

static void put_terminal(FILE *f, const char *path, int height)
{
    if (ends_with(path, ".svg"))
        fprintf(f, "set terminal svg noenhanced size 1200,%d dynamic background '#ffffff' font 'DejaVu Sans,13'\n", height);
    else
        fprintf(f, "set terminal pngcairo noenhanced size 1200,%d background '#ffffff' font 'DejaVu Sans,11'\n", height);
}

/* Drawn beside its place and renamed, so that a viewer never sees half a picture. */
static dt_err draw(const char *path, const panel *panels, int n_panels, const run *runs, int n_runs, const options *opt)
{
    char part[PATH_MAX];
    DT_CHECK(snprintf(part, sizeof part, "%s.part", path) < (int)sizeof part, DT_ERR_WRITE, "%s: the name is too long", path);
    FILE *probe = fopen(part, "we"); /* gnuplot's own message would not tell a full disk from a fault */
    DT_CHECK(probe, DT_ERR_WRITE, "%s: cannot write: %s", path, strerror(errno));
    fclose(probe);

    pid_t pid;
    FILE *script;
    dt_err err = start_gnuplot(&pid, &script);
    if (err == DT_OK) {
        put_terminal(script, path, n_panels <= 2 ? 420 + 180 * n_panels : 330 * n_panels);
        fprintf(script, "set output ");
        put_quoted(script, part);
        fprintf(script, "\n");
        put_picture(script, (panel *)panels, n_panels, runs, n_runs, opt->axis);
        const bool sent = fclose(script) == 0;
        int status = 0;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
        struct stat st;
        if (!sent || status != 0 || stat(part, &st) != 0 || st.st_size == 0)
            err = dt_fail(DT_ERR_FAULT, "%s: gnuplot failed (status %d); its own message stands above", path,
                          WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    if (err == DT_OK && rename(part, path) != 0) err = dt_fail(DT_ERR_WRITE, "%s: cannot write: %s", path, strerror(errno));
    if (err != DT_OK)
        unlink(part);
    else
        printf("%s\n", path);
    return err;
}

static dt_err draw_all(const run *runs, int n_runs, const char *first, const options *opt)
{
    const char *const suffix[] = {"png", "svg"};
    const int n_pictures = opt->output ? 1 : 2;
    dt_err err = DT_OK;
    for (int i = 0; err == DT_OK && i < n_pictures; i++) {
        char path[PATH_MAX];
        panel panels[MAX_PANELS] = {0};
        int n_panels = 0;
        const char *slash = strrchr(first, '/');
        const int dir_len = is_directory(first) ? (int)strlen(first) : slash ? (int)(slash - first) : 1;
        const char *dir = is_directory(first) || slash ? first : ".";
        if (opt->output)
            snprintf(path, sizeof path, "%s", opt->output);
        else
            snprintf(path, sizeof path, "%.*s/loss.%s", dir_len, dir, suffix[i]);
        err = fill_panels(panels, &n_panels, runs, n_runs, opt);
        if (err == DT_OK) err = draw(path, panels, n_panels, runs, n_runs, opt);
        for (int p = 0; p < MAX_PANELS; p++) {
            for (int s = 0; s < panels[p].n_series; s++) dt_curve_free(&panels[p].series[s].curve);
            free(panels[p].series);
        }
    }
    return err;
}

static dt_err plot(int argc, char **argv, options *opt, run **runs, int *n_runs)
{
    bool help = false;
    DT_TRY(parse_options(opt, argc, argv, &help));
    if (help) {
        fputs(usage, stdout);
        return DT_OK;
    }
    *runs = calloc((size_t)(argc - optind), sizeof **runs);
    DT_CHECK(*runs, DT_ERR_MEMORY, "out of memory for %d runs", argc - optind);
    for (int i = optind; i < argc; i++) DT_TRY(read_run(&(*runs)[(*n_runs)++], argv[i]));
    DT_TRY(check_names(opt, *runs, *n_runs));
    return draw_all(*runs, *n_runs, argv[optind], opt);
}

int main(int argc, char **argv)
{
    options opt = {0};
    run *runs = NULL;
    int n_runs = 0;
    signal(SIGPIPE, SIG_IGN); /* gnuplot's end is seen in its status */
    const dt_err err = plot(argc, argv, &opt, &runs, &n_runs);
    for (int i = 0; i < n_runs; i++) {
        dt_metrics_free(&runs[i].metrics);
        free(runs[i].title);
    }
    free(runs);
    dt_config_free_list(opt.names, opt.n_names);
    if (err != DT_OK) fprintf(stderr, "dtrain-plot: %s\n", dt_error_message());
    return dt_exit_code(err);
}
