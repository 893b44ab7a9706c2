/* panels.c - prepares values for gnuplot, which is available on every cluster and writes PNG and SVG from one
 * script. A plotting library would make the trainer depend on it for one tool. Ranges, units and labels are chosen
 * here, because gnuplot's own choices warn about flat curves and print exponents in tics. */
#include "dtrain/plot/panels.h"
#include "dtrain/io/io.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Okabe and Ito's palette, which readers with any colour vision can distinguish, without its yellow. */
static const char *const palette[] = {"0072B2", "D55E00", "009E73", "CC79A7", "E69F00", "56B4E9", "444444"};
enum { N_COLOURS = sizeof palette / sizeof palette[0] };
static const char *const dashes[] = {"solid", "(9,5)", "(2,4)", "(10,4,2,4)", "(16,6)", "(10,4,2,4,2,4)"};
enum { N_DASHES = sizeof dashes / sizeof dashes[0] };

dt_err dt_panel_add(dt_panel *p, dt_curve *curve, dt_look look, const char *title)
{
    dt_series s = {.curve = *curve, .look = look};
    *curve = (dt_curve){0};
    dt_err err = dt_grow(&p->series, p->n_series, sizeof s, "out of memory for %d curves", p->n_series + 1);
    if (err == DT_OK) err = dt_copy_text(&s.title, title, "out of memory for %d curves", p->n_series + 1);
    if (err == DT_OK)
        p->series[p->n_series++] = s;
    else
        dt_curve_free(&s.curve);
    return err;
}

void dt_picture_free(dt_picture *p)
{
    for (int i = 0; i < DT_MAX_PANELS; i++) {
        for (int s = 0; s < p->panels[i].n_series; s++) {
            dt_curve_free(&p->panels[i].series[s].curve);
            free(p->panels[i].series[s].title);
        }
        free(p->panels[i].series);
    }
    *p = (dt_picture){0};
}

/* ---- ranges and units -------------------------------------------------------------------------------------------- */

dt_scale dt_scale_of(double largest)
{
    static const dt_scale scales[] = {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}, {1e3, "thousand"}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (largest >= 5 * scales[i].divisor) return scales[i];
    return (dt_scale){1, ""};
}

static dt_scale scale_of_time(double largest)
{
    static const dt_scale scales[] = {{86400, "days"}, {3600, "hours"}, {60, "minutes"}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (largest >= 3 * scales[i].divisor) return scales[i];
    return (dt_scale){1, "seconds"};
}

typedef struct range {
    double low, high;
} range;

static void extend(range *r, double v)
{
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

static range x_range(const dt_panel *panels, int n_panels)
{
    range r = {INFINITY, -INFINITY};
    for (int p = 0; p < n_panels; p++)
        for (int s = 0; s < panels[p].n_series; s++)
            for (int64_t i = 0; i < panels[p].series[s].curve.n; i++) extend(&r, panels[p].series[s].curve.x[i]);
    if (!(r.low <= r.high)) return (range){0, 1};
    if (r.low == r.high) return (range){r.low - 0.5, r.high + 0.5};
    return r;
}

static range y_range(const dt_panel *p, bool right)
{
    range r = {INFINITY, -INFINITY};
    for (int s = 0; s < p->n_series; s++)
        for (int64_t i = 0; p->series[s].look.right == right && i < p->series[s].curve.n; i++)
            extend(&r, p->series[s].curve.y[i]);
    return r.low <= r.high ? r : (range){0, 1};
}

/* ---- the script -------------------------------------------------------------------------------------------------- */

/* gnuplot's single-quoted string: only the quote is special, and is doubled. */
static void put_quoted(FILE *f, const char *text)
{
    putc('\'', f);
    for (; *text; text++) {
        if (*text == '\'') putc('\'', f);
        putc((unsigned char)*text < 0x20 ? ' ' : *text, f);
    }
    putc('\'', f);
}

/* Write an axis: range, label and tics. Returns the divisor of its values. The unit is part of the label,
 * because gnuplot's own "k" and "M" drop digits. */
static double put_axis(FILE *f, const dt_panel *p, bool right)
{
    static const char *const superscript[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    const char *axis = right ? "y2" : "y";
    const range r = y_range(p, right);
    /* for spikes of a gradient norm; learning rates use a linear axis */
    const bool logarithmic = !right && r.low > 0 && r.high / r.low > 200;
    const int power = r.high > 0 ? (int)floor(log10(r.high)) : 0;
    const dt_scale scale = dt_scale_of(r.high);
    double divisor = 1;
    char label[256];
    snprintf(label, sizeof label, "%s", p->label[right]);
    if (!logarithmic && power <= -2 && power >= -99) {
        divisor = pow(10, power);
        snprintf(label, sizeof label, "%s (10⁻%s%s)", p->label[right], -power >= 10 ? superscript[-power / 10] : "",
                 superscript[-power % 10]);
    } else if (!logarithmic && scale.divisor > 1) {
        divisor = scale.divisor;
        snprintf(label, sizeof label, "%s %s", scale.text, p->label[right]);
    }
    if (logarithmic) {
        fprintf(f, "set logscale %s\nset %srange [%.9g:%.9g]\n", axis, axis, r.low / 1.2, r.high * 1.2);
    } else {
        const double margin = r.high > r.low ? 0.06 * (r.high - r.low) : fmax(fabs(r.high), 1e-3) * 0.1;
        const double low = r.low >= 0 && r.low < 2 * margin ? 0 : r.low - margin; /* start at zero if it is near */
        fprintf(f, "unset logscale %s\nset %srange [%.9g:%.9g]\n", axis, axis, low / divisor,
                (r.high + margin) / divisor);
    }
    fprintf(f, "set %slabel ", axis);
    put_quoted(f, label);
    fprintf(f, " offset %s\nset %stics nomirror\n", right ? "-0.5,0" : "0.5,0", axis);
    return divisor;
}

static void put_line(FILE *f, const dt_series *s)
{
    const char *colour = palette[s->look.colour % N_COLOURS];
    if (s->look.style == DT_STYLE_POINTS)
        fprintf(f, "with %s pt 7 ps 0.7 lw 1 lc rgb '#%s' ", s->curve.n > 60 ? "lines" : "linespoints", colour);
    else if (s->curve.n == 1)
        fprintf(f, "with points pt 7 ps 0.5 lc rgb '#%s' ", colour);
    else if (s->look.style == DT_STYLE_RAW)
        fprintf(f, "with lines lw 1 lc rgb '#a4%s' ", colour);
    else
        fprintf(f, "with lines lw %s dt %s lc rgb '#%s' ", s->look.style == DT_STYLE_THIN ? "1.4" : "2",
                dashes[s->look.dash % N_DASHES], colour);
}

static void put_series(FILE *f, const dt_series *s, const char *block)
{
    if (s->curve.n == 0) {
        fprintf(f, "NaN with lines lw 2 dt %s lc rgb '#444444' ", dashes[s->look.dash % N_DASHES]);
    } else {
        fprintf(f, "%s axes %s ", block, s->look.right ? "x1y2" : "x1y1");
        put_line(f, s);
    }
    if (s->title[0]) {
        fprintf(f, "title ");
        put_quoted(f, s->title);
    } else {
        fprintf(f, "notitle");
    }
}

/* True if the legend belongs at the bottom: a legend at the top would cover curves that end in the upper half. */
static bool ends_high(const dt_panel *p, range x)
{
    double sum = 0, n = 0;
    for (int s = 0; s < p->n_series; s++) {
        const dt_curve *c = &p->series[s].curve;
        const range y = y_range(p, p->series[s].look.right);
        for (int64_t i = 0; i < c->n; i++) {
            if (c->x[i] < x.low + 0.7 * (x.high - x.low) || y.high <= y.low) continue;
            sum += (c->y[i] - y.low) / (y.high - y.low);
            n++;
        }
    }
    return n > 0 && sum > 0.5 * n;
}

/* Write the curves of a panel as data blocks. Raw curves come first, to be drawn below the others. */
static void put_panel(FILE *f, const dt_panel *p, int number, double x_divisor, const double y_divisor[2])
{
    if (p->n_series == 0) {
        fprintf(f, "set label 99 'no records' at graph 0.5,0.5 center textcolor rgb '#888888'\nplot NaN notitle\nunset "
                   "label 99\n");
        return;
    }
    for (int s = 0; s < p->n_series; s++) {
        const dt_curve *c = &p->series[s].curve;
        if (c->n == 0) continue;
        fprintf(f, "$d%d_%d << EOD\n", number, s);
        for (int64_t i = 0; i < c->n; i++)
            fprintf(f, "%.9g %.9g\n", c->x[i] / x_divisor, c->y[i] / y_divisor[p->series[s].look.right]);
        fprintf(f, "EOD\n");
    }
    int put = 0;
    for (int layer = 0; layer < 2; layer++) {
        for (int s = 0; s < p->n_series; s++) {
            char block[32];
            if ((p->series[s].look.style == DT_STYLE_RAW) != (layer == 0)) continue;
            snprintf(block, sizeof block, "$d%d_%d", number, s);
            fprintf(f, "%s", put++ ? ", \\\n     " : "plot ");
            put_series(f, &p->series[s], block);
        }
    }
    fprintf(f, "\n");
}

static const char *x_label(dt_plot_axis axis, double largest, double *divisor, char *out, size_t size)
{
    dt_scale s = axis == DT_AXIS_TIME     ? scale_of_time(largest)
                 : axis == DT_AXIS_TOKENS ? dt_scale_of(largest)
                                          : (dt_scale){1, ""};
    *divisor = s.divisor;
    if (axis == DT_AXIS_TIME)
        snprintf(out, size, "training time (%s)", s.text);
    else if (axis == DT_AXIS_TOKENS)
        snprintf(out, size, "%s%stokens", s.text, s.divisor > 1 ? " " : "");
    else
        snprintf(out, size, "step");
    return out;
}

/* Sizes are pixels of a plot 1200 wide. Panels are stacked and share left and right edges. */
static void put_picture(FILE *f, const dt_picture *pic)
{
    const dt_panel *panels = pic->panels;
    const int n_panels = pic->n_panels;
    char text[128];
    double divisor, total = 0, top = 0.945;
    const range x = x_range(panels, n_panels);
    const char *label = x_label(pic->axis, x.high, &divisor, text, sizeof text);
    for (int i = 0; i < n_panels; i++) total += panels[i].height;

    fprintf(f, "set encoding utf8\nset multiplot\n"
               "set border 3 lc rgb '#666666'\nset tics nomirror scale 0.6 textcolor rgb '#333333'\n"
               "set grid lc rgb '#e4e4e4' lt 1 lw 1\nset key right noenhanced samplen 2.2 spacing 1.15 opaque fc rgb "
               "'#ffffff' noautotitle\n"
               "set lmargin at screen 0.075\nset rmargin at screen 0.935\nset format x ''\n");
    fprintf(f, "set xrange [%.9g:%.9g]\n", x.low / divisor, x.high / divisor);
    fprintf(f, "set label 1 ");
    put_quoted(f, pic->heading);
    fprintf(f, " at screen 0.075,0.972 left font ',15'\nset label 2 ");
    put_quoted(f, pic->note);
    fprintf(f, " at screen 0.935,0.972 right textcolor rgb '#555555'\n");
    const double gap = 0.035, bottom = 0.065, room = top - bottom - gap * (n_panels - 1);
    for (int i = 0; i < n_panels; i++) {
        const double height = room * panels[i].height / total;
        fprintf(f, "set tmargin at screen %.4f\nset bmargin at screen %.4f\n", top, top - height);
        top -= height + gap;
        const bool right = panels[i].label[1][0];
        double divisors[2] = {put_axis(f, &panels[i], false), 1};
        if (right) divisors[1] = put_axis(f, &panels[i], true);
        fprintf(f, "set border %d\nset key %s\n", right ? 11 : 3, ends_high(&panels[i], x) ? "bottom" : "top");
        if (i == n_panels - 1) {
            fprintf(f, "set format x '%%.10g'\nset xlabel ");
            put_quoted(f, label);
            fprintf(f, " offset 0,0.3\n");
        }
        put_panel(f, &panels[i], i, divisor, divisors);
        fprintf(f, "unset label 1\nunset label 2\n");
        if (right) fprintf(f, "unset y2tics\nunset y2label\n");
    }
    fprintf(f, "unset multiplot\n");
}

/* ---- gnuplot ----------------------------------------------------------------------------------------------------- */

/* Start gnuplot. It writes the plot to standard output and opens no file by name. */
static dt_err start_gnuplot(pid_t *pid, FILE **script, int picture)
{
    int ends[2];
    /* gnuplot 6 takes the encoding and the decimal point from the locale */
    DT_CHECK(setenv("LC_ALL", "C.UTF-8", 1) == 0, DT_ERR_MEMORY, "out of memory for gnuplot's environment");
    DT_CHECK_ERRNO(pipe(ends) == 0, DT_ERR_FAULT, "gnuplot", "cannot create a pipe to it");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, picture, STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    char *const argv[] = {"gnuplot", NULL};
    const int why = posix_spawnp(pid, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    *script = why == 0 ? fdopen(ends[1], "w") : NULL;
    if (!*script) close(ends[1]);
    DT_CHECK(why != ENOENT, DT_ERR_FAULT,
             "gnuplot is missing: install it (Debian and Ubuntu: apt install gnuplot-nox) or load its module");
    DT_CHECK(why == 0, DT_ERR_FAULT, "cannot start gnuplot: %s", strerror(why));
    DT_CHECK(*script, DT_ERR_MEMORY, "out of memory for the pipe to gnuplot");
    return DT_OK;
}

static void put_terminal(FILE *f, const char *path, int height)
{
    if (strcmp(path + strlen(path) - 4, ".svg") == 0)
        fprintf(f, "set terminal svg noenhanced size 1200,%d dynamic background '#ffffff' font 'DejaVu Sans,13'\n",
                height);
    else
        fprintf(f, "set terminal pngcairo noenhanced size 1200,%d background '#ffffff' font 'DejaVu Sans,11'\n",
                height);
}

/* Collect gnuplot's result. Its own error message is on standard error. */
static dt_err finish_gnuplot(pid_t pid, FILE *script, const char *part, const char *path)
{
    struct stat st;
    int status = 0;
    const bool sent = fclose(script) == 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    DT_CHECK(sent && status == 0 && stat(part, &st) == 0 && st.st_size > 0, DT_ERR_FAULT,
             "%s: gnuplot failed (status %d); see its own message above", path,
             WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return DT_OK;
}

static dt_err draw(const dt_picture *p, const dt_aside *a)
{
    pid_t pid;
    FILE *script;
    DT_TRY(start_gnuplot(&pid, &script, a->fd));
    put_terminal(script, a->path, p->n_panels <= 2 ? 420 + 180 * p->n_panels : 330 * p->n_panels);
    put_picture(script, p);
    return finish_gnuplot(pid, script, a->part, a->path);
}

/* The file is written under a temporary name and renamed, so that viewers never see a partial plot. */
dt_err dt_picture_draw(const dt_picture *p, const char *path)
{
    dt_aside a;
    DT_TRY(dt_make_folder_of(path));
    DT_TRY(dt_aside_open(&a, path));
    const dt_err err = draw(p, &a);
    if (err == DT_OK) return dt_aside_commit(&a);
    dt_aside_drop(&a);
    return err;
}
