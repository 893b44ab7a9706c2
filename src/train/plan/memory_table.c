/* memory_table.c - memory by category and memory space, for users: rows of 74 columns, for --plan and for the start of
 * a run. */
#include "memory_table.h"
#include "../run.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *table_bytes(double n, char out[16])
{
    static const char letters[] = "BKMGTPE";
    int i = 0;
    for (; n >= 999.5 && i < 6; i++) n /= 1000;
    snprintf(out, 16, i == 0 || n >= 99.95 ? "%.0f%c" : n >= 9.995 ? "%.1f%c" : "%.2f%c", n, letters[i]);
    return out;
}

static int width(int category)
{
    const int n = (int)strlen(dt_memcat_name((dt_memcat)category)) + 1;
    return n > 6 ? n : 6;
}

void table_head(FILE *out, const char *head)
{
    fprintf(out, "%-9s", head);
    for (int c = 0; c < DT_N_MEMCAT; c++) fprintf(out, "%*s", width(c), dt_memcat_name((dt_memcat)c));
    fprintf(out, "%6s", "total");
}

void table_row(FILE *out, const char *head, const dt_memory *m)
{
    char text[16];
    fprintf(out, "%-9s", head);
    for (int c = 0; c < DT_N_MEMCAT; c++)
        fprintf(out, "%*s", width(c), table_bytes((double)dt_memory_of(m, (dt_memcat)c), text));
    fprintf(out, "%6s", table_bytes((double)dt_memory_total(m), text));
}

void table_memspace(FILE *out, dt_memspace p, const dt_memory *m)
{
    char text[16];
    fprintf(out, "  %-7s", dt_memspace_name(p));
    for (int c = 0; c < DT_N_MEMCAT; c++)
        fprintf(out, "%*s", width(c), m->at[c][p] ? table_bytes((double)m->at[c][p], text) : "-");
    fprintf(out, "%6s", table_bytes((double)dt_memory_on(m, p), text));
}

void table_one_memory(FILE *out, const dt_memory *m)
{
    char text[16];
    for (int p = 0; p < DT_N_MEMSPACE; p++) {
        const size_t nbytes = dt_memory_on(m, (dt_memspace)p);
        if (p == DT_IN_FILE) fputs(", in one memory", out);
        if (p == DT_ON_DEVICE || nbytes)
            fprintf(out, "%s%s %s",
                    p == DT_IN_FILE ? "; "
                    : p             ? ", "
                                    : "",
                    dt_memspace_name((dt_memspace)p), table_bytes((double)nbytes, text));
    }
}

/* The total row and, if memory spaces are different memories, a row for each nonempty one. */
static void print_rows(FILE *out, const char *head, const dt_memory *m, bool by_space)
{
    table_row(out, head, m);
    fputc('\n', out);
    for (int p = 0; p < DT_N_MEMSPACE && by_space; p++) {
        if (!dt_memory_on(m, (dt_memspace)p)) continue;
        table_memspace(out, (dt_memspace)p, m);
        fputc('\n', out);
    }
}

void run_compare_plan(dt_run *run, const rank_plan *plan)
{
    char *text = NULL;
    size_t nbytes = 0;
    const bool by_space = run->dev.ops->own_memory;
    run->planned = plan->memory;
    run->allocated = run_held(run);
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) {
        DT_WARN("out of memory for the table of planned and allocated memory");
        return;
    }
    table_head(f, "per rank");
    fputc('\n', f);
    print_rows(f, "planned", &run->planned, by_space);
    print_rows(f, "allocated", &run->allocated, by_space);
    if (!by_space) {
        fputs("by memory space: ", f);
        table_one_memory(f, &run->allocated);
    }
    fclose(f);
    DT_INFO("%s", text);
    DT_INFO("model states: %.3f bytes per parameter, with %" PRId64 " elements of padding",
            plan->zero.state_bytes_per_param, plan->zero.n_padding);
    free(text);
}

/* Memory of the driver, its code and libraries is only estimated in a plan. It is known after a step has used all of
 * them. On a shared device, the value would include other ranks' memory. */
void run_say_overhead(const dt_run *run)
{
    const dt_device_ops *ops = run->dev.ops;
    const size_t own = atomic_load(&run->ledger.on_now[DT_ON_DEVICE]);
    const size_t taken = ops->memory_taken && run->max_sharing == 1 ? ops->memory_taken(&run->dev) : SIZE_MAX;
    char text[3][24];
    if (taken == SIZE_MAX || taken < own) return;
    DT_INFO("device memory after a step: %s, of which the run uses %s; driver, code and libraries use %s (planned: %s)",
            dt_format_bytes((double)taken, text[0]), dt_format_bytes((double)own, text[1]),
            dt_format_bytes((double)(taken - own), text[2]),
            dt_format_bytes((double)dt_device_overhead(&run->dev), (char[24]){0}));
}

/* The strategies that auto tried. Totals only; --plan shows memory spaces by category. */
void run_say_trials(const strategy list[], const trial *trials, int n, bool nodes)
{
    char *text = NULL, bytes[16];
    size_t nbytes = 0;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return;
    fputs("zero.stage = auto, per rank:\nstage  offload_optimizer  offload_param", f);
    for (int p = 0; p < DT_N_MEMSPACE; p++) fprintf(f, "%8s", dt_memspace_name((dt_memspace)p));
    fprintf(f, "  %9s", "sent/step");
    if (nodes) fprintf(f, "  %13s", "between nodes");
    for (int i = 0; i < n; i++) {
        const strategy *s = &list[i];
        const trial *t = &trials[i];
        fprintf(f, "\n%-6d %-18s %-13s", s->stage, run_offload_name(s->offload_optimizer),
                run_offload_name(s->offload_param));
        for (int p = 0; p < DT_N_MEMSPACE; p++)
            fprintf(f, "%8s", table_bytes((double)dt_memory_on(&t->plan.memory, (dt_memspace)p), bytes));
        fprintf(f, "  %9s", table_bytes(t->plan.sent_bytes, bytes));
        if (nodes) fprintf(f, "  %13s", table_bytes(t->plan.sent.between, bytes));
        if (t->works && t->n_experts > 0)
            fprintf(f, "  fits with zero.expert_group_size = %" PRId64, t->expert_group_size);
        else if (t->works)
            fputs("  fits", f);
        else if (t->short_of)
            fprintf(f, "  too large for the %s", t->short_of->name);
        else
            fprintf(f, "  needs zero.max_live_parameters >= %" PRId64, t->plan.needs_live);
    }
    fclose(f);
    DT_INFO("%s", text);
    free(text);
}
