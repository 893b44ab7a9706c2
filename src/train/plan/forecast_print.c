/* forecast_print.c - the table of --plan --gpu: launches, work and time of a step by part, operation and unit, with
 * their totals. */
#include "forecast.h"
#include "memory_table.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const PART_NAMES[N_PARTS] = {"forward", "head", "backward", "update", "exchange"};
static const char *const BOUND_NAMES[N_BOUNDS] = {"arithmetic", "memory", "host link", "nvlink", "network"};
#define MS 1e3

static void print_row(FILE *out, const char *head, const forecast_row *r)
{
    fprintf(out, "%-24s%9.0f %9.4g %9.4g %9.3f %9.3f  %s\n", head, r->launches, r->flops * 1e-12, r->bytes * 1e-9,
            r->seconds[AT_PEAK] * MS, r->seconds[AT_MEASURED] * MS, BOUND_NAMES[run_forecast_bound(r)]);
}

static int longest_first(const void *a, const void *b)
{
    const forecast_row *x = a, *y = b;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return (x->seconds[AT_PEAK] < y->seconds[AT_PEAK]) - (x->seconds[AT_PEAK] > y->seconds[AT_PEAK]);
}

static void print_rows(forecast *f, FILE *out)
{
    qsort(f->row, (size_t)f->n_rows, sizeof *f->row, longest_first);
    fprintf(out, "%-24s%9s%10s%10s%10s%10s  %s\n", "", "launches", "TFLOP", "GB", "ms", "measured", "bound by");
    for (int i = 0; i < f->n_rows; i++) {
        char head[32];
        if (i == 0 || f->row[i].part != f->row[i - 1].part) {
            const forecast_row part = run_forecast_sum(f, f->row[i].part);
            print_row(out, PART_NAMES[part.part], &part);
        }
        snprintf(head, sizeof head, "  %s", f->row[i].op);
        print_row(out, head, &f->row[i]);
    }
    const forecast_row all = run_forecast_sum(f, N_PARTS);
    print_row(out, "all", &all);
}

/* Without units of experts, which share the line of their block. */
static int next_unit(const forecast *f, int u)
{
    do u++;
    while (u < f->n_units && f->units[u].role == DT_UNIT_EXPERTS);
    return u;
}

/* Adjacent blocks share a line, which shows their mean. */
static bool is_like_next(const forecast *f, int u)
{
    const int next = next_unit(f, u);
    return next < f->n_units && f->units[u].role == DT_UNIT_BLOCK && f->units[next].role == DT_UNIT_BLOCK;
}

static void print_units(const forecast *f, FILE *out)
{
    fprintf(out, "\n%-24s%9s", "ms of a unit", "units");
    for (int p = 0; p < N_PARTS; p++) fprintf(out, "%10s", PART_NAMES[p]);
    fputc('\n', out);
    for (int u = 0, end; u < f->n_units; u = end) {
        double sum[N_PARTS] = {0};
        int n = 0;
        bool more = true;
        for (end = u; more; end = next_unit(f, end), n++) {
            for (int p = 0; p < N_PARTS; p++) sum[p] += f->unit_s[end][p];
            more = is_like_next(f, end);
        }
        fprintf(out, "%-24.23s%9d", f->units[u].name, n);
        for (int p = 0; p < N_PARTS; p++) fprintf(out, "%10.3f", sum[p] / n * MS);
        fputc('\n', out);
    }
}

static void print_speed(const dt_run *run, const forecast *f, int nranks, int clock, FILE *out)
{
    char text[24];
    const double s = f->step_s[clock], rate = f->tokens / s, flops = run_flops(run, rate, f->images / s) / nranks;
    fprintf(out, "%.3f ms, %s tokens/s", f->step_s[clock] * MS, dt_format_count(rate, text));
    if (run_trains(run)) fprintf(out, ", MFU %.1f %%", 100 * flops / dt_chip_flops(f->chip, run->model_opt.dtype));
    fputc('\n', out);
}

/* Each micro-batch sends the same bytes, whatever its size. */
static void print_advice(const dt_run *run, double exposed_s, double step_s, FILE *out)
{
    const dt_batching *b = &run->batching;
    if (b->accumulation == 1 || exposed_s < 0.25 * step_s) return;
    fprintf(out,
            "communication is exposed for %.0f %% of the step, and each of the %" PRId64
            " micro-batches sends as much:\nif memory allows, raise batch.micro_batch_size and lower "
            "batch.gradient_accumulation_steps\n",
            100 * exposed_s / step_s, b->accumulation);
}

/* Lower bounds of the step time: arithmetic only, kernels in sequence, then with communication. */
static void print_sums(const dt_run *run, const forecast *f, int nranks, FILE *out)
{
    const forecast_row all = run_forecast_sum(f, N_PARTS), exchange = run_forecast_sum(f, PART_EXCHANGE);
    const double arithmetic = all.flops / dt_chip_flops(f->chip, run->model_opt.dtype),
                 kernels = all.seconds[AT_PEAK] - exchange.seconds[AT_PEAK];
    fprintf(out, "\narithmetic only         %.3f ms: all FLOPs at peak rate\n", arithmetic * MS);
    fprintf(out, "kernels in sequence     %.3f ms: %.2f times that\n", kernels * MS, kernels / arithmetic);
    if (nranks > 1)
        fprintf(out, "communication           %.3f ms, %.3f of it exposed, %.3f of it latency\n",
                exchange.seconds[AT_PEAK] * MS, (f->step_s[AT_PEAK] - kernels) * MS, exchange.latency_s * MS);
    fputs("step, at peak rates     ", out);
    print_speed(run, f, nranks, AT_PEAK, out);
    fputs("step, at measured rates ", out);
    print_speed(run, f, nranks, AT_MEASURED, out);
    fprintf(out,
            "                        %.2f times the step at peak rates. Measured on an H100, as fractions of the peak: "
            "matmuls %g,\n                        attention %g forward and %g backward, memory %g, host link %g\n",
            f->step_s[AT_MEASURED] / f->step_s[AT_PEAK], run_measured_fraction("matmul", BOUND_ARITHMETIC),
            run_measured_fraction("attention_forward", BOUND_ARITHMETIC),
            run_measured_fraction("attention_backward", BOUND_ARITHMETIC), run_measured_fraction("", BOUND_MEMORY),
            run_measured_fraction("", BOUND_HOST));
    if (nranks > 1)
        fprintf(out,
                "                        GPU links, from published figures: NVLink %g, network %g; latencies of NCCL\n"
                "                        communication slows the kernels that hide it: %.3f ms\n",
                run_measured_fraction("", BOUND_NVLINK), run_measured_fraction("", BOUND_NETWORK),
                f->interference_s * MS);
    print_advice(run, f->step_s[AT_PEAK] - kernels, f->step_s[AT_PEAK], out);
}

static void print_head(const dt_run *run, const plan_setting *with, const dt_chip *chip, FILE *out)
{
    const int n_nodes = (with->nranks + with->ranks_per_node - 1) / with->ranks_per_node;
    char what[STRATEGY_TEXT];
    fprintf(out, "\ntime of a step on %s, %s: %.0f TFLOP/s in %s, %.0f GB/s", chip->title,
            run_strategy_text(&with->strategy, what), dt_chip_flops(chip, with->model_opt.dtype) * 1e-12,
            dt_dtype_name(with->model_opt.dtype), chip->memory_rate * 1e-9);
    if (with->nranks > 1) fprintf(out, ", NVLink %.0f GB/s each way", chip->nvlink_rate * 1e-9);
    if (n_nodes > 1) fprintf(out, ", network %.0f GB/s per GPU", chip->network_rate * 1e-9);
    fputs("\n(assumes rows of full length, and host work that costs no time)\n", out);
    if (run_trains(run) && !run->task.ops->weights_known && !run->task.weights_known)
        fprintf(out, "(excludes what task %s computes with other models)\n", run->task.ops->name);
    fputc('\n', out);
}

dt_err run_print_forecast(dt_run *run, const plan_setting *with, const dt_chip *chip, FILE *out)
{
    forecast f;
    const dt_err err = run_forecast(run, with, chip, &f);
    if (err == DT_OK) {
        print_head(run, with, chip, out);
        print_rows(&f, out);
        print_units(&f, out);
        print_sums(run, &f, with->nranks, out);
    }
    run_forecast_free(&f);
    return err;
}
