/* summary.c - what dtrain-data prints: progress while it reads, then counts and warnings. */
#include "summary.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void data_show_progress(void *self, const dt_make_stats *s)
{
    meter *m = self;
    const double now_s = dt_now_s(), seconds = now_s - m->start_s + 1e-9;
    if (now_s - m->last_s < m->every_s) return;
    m->last_s = now_s;
    m->shown = m->terminal;
    char read[24], total[24], rate[24], left[24], share[48] = "", eta[40] = "", images[32] = "", line[256];
    dt_format_bytes((double)s->nbytes_read / seconds, rate);
    if (s->nbytes_total > 0 && s->nbytes_read > 0) {
        snprintf(share, sizeof share, " of %s (%.0f%%)", dt_format_bytes((double)s->nbytes_total, total),
                 100.0 * (double)s->nbytes_read / (double)s->nbytes_total);
        const double left_s = seconds * (double)(s->nbytes_total - s->nbytes_read) / (double)s->nbytes_read;
        snprintf(eta, sizeof eta, "  left %s", dt_format_duration(left_s, left));
    }
    const int64_t n = s->n_documents + s->n_validation_documents, n_tokens = s->n_tokens + s->n_validation_tokens;
    if (s->n_images > 0) snprintf(images, sizeof images, "  %" PRId64 " image%s", s->n_images, dt_plural(s->n_images));
    snprintf(line, sizeof line, "%s%s  %" PRId64 " document%s%s  %" PRId64 " token%s  %s/s%s",
             dt_format_bytes((double)s->nbytes_read, read), share, n, dt_plural(n), images, n_tokens,
             dt_plural(n_tokens), rate, eta);
    if (m->terminal)
        fprintf(stderr, "\r%s \033[K", line), fflush(stderr);
    else
        DT_INFO("%s", line);
}

static void report_problems(const dt_make_stats *s)
{
    int64_t n_listed = 0;
    if (s->n_bad) DT_WARN("%" PRId64 " malformed record%s skipped", s->n_bad, dt_plural(s->n_bad));
    for (int i = 0; i < s->n_problems; n_listed += s->problems[i++].n)
        DT_WARN("  %" PRId64 " x %s (first: %s)", s->problems[i].n, s->problems[i].reason, s->problems[i].first);
    if (n_listed < s->n_bad) DT_WARN("  %" PRId64 " for other reasons", s->n_bad - n_listed);
}

static void report_left_out(const dt_make_options *o, const dt_make_stats *s, const char *noun)
{
    if (s->n_truncated)
        DT_INFO("%" PRId64 " %s%s truncated to %" PRId64 " tokens", s->n_truncated, noun, dt_plural(s->n_truncated),
                o->max_length);
    if (s->n_too_long)
        DT_INFO("%" PRId64 " %s%s with more than %" PRId64 " tokens dropped", s->n_too_long, noun,
                dt_plural(s->n_too_long), o->max_length);
    if (s->n_images) DT_INFO("%" PRId64 " image%s", s->n_images, dt_plural(s->n_images));
    if (s->n_dropped)
        DT_INFO("%" PRId64 " record%s without %s dropped", s->n_dropped, dt_plural(s->n_dropped), s->lacking);
    if (s->n_parted)
        DT_INFO("%" PRId64
                " %s%s whose prompt and completion were encoded separately, because a token would span the boundary",
                s->n_parted, noun, dt_plural(s->n_parted));
}

/* In descending order of frequency. */
static int compare_counts(const void *a, const void *b)
{
    const dt_field_count *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->name, y->name);
}

/* Such chats remain in the dataset, but are usually a mistake in the data. */
static void report_turns(const dt_field_counts *c)
{
    char in_row[80] = "", without[80] = "";
    if (c->n_in_row) snprintf(in_row, sizeof in_row, "%" PRId64 " with two answers in a row", c->n_in_row);
    if (c->n_without_user)
        snprintf(without, sizeof without, "%" PRId64 " without a message of role user", c->n_without_user);
    if (*in_row || *without)
        DT_WARN("unusual chats were kept: %s%s%s; check them (first: %s)", in_row, *in_row && *without ? ", " : "",
                without, c->first_odd);
}

static bool has_labels(const dt_field_counts *c)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->field[i].name, "label") == 0 || strcmp(c->field[i].name, "labels") == 0) return true;
    return false;
}

static void report_ignored(const dt_make_stats *s)
{
    enum { MAX_NAMES = 20 }; /* maximum number of listed names */
    dt_field_counts c = s->ignored;
    char list[MAX_NAMES * (DT_FIELD_NAME_SIZE + 24)] = "";
    int n = 0;
    if (c.n_calls)
        DT_WARN("%" PRId64
                " message%s with tool calls written as plain text, because the chat template writes no calls, "
                "or a function_call is no JSON",
                c.n_calls, dt_plural(c.n_calls));
    if (c.n_tools)
        DT_WARN("the tools of %" PRId64
                " record%s written into the system message, because the chat template writes no "
                "tools, or they are no JSON",
                c.n_tools, dt_plural(c.n_tools));
    if (c.n_left_out)
        DT_WARN("the chat template leaves out %" PRId64
                " message%s of the roles system, user or tool; compare with dtrain-data show, and choose another "
                "template with --template if their text matters",
                c.n_left_out, dt_plural(c.n_left_out));
    if (c.n == 0) return;
    qsort(c.field, (size_t)c.n, sizeof c.field[0], compare_counts);
    for (int i = 0; i < c.n && i < MAX_NAMES; i++)
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%s (%" PRId64 ")", i ? ", " : "", c.field[i].name,
                      c.field[i].n);
    DT_INFO("ignored fields: %s%s%s", list, c.n > MAX_NAMES ? ", and others" : "",
            s->kind == DT_DATASET_TOKENS && has_labels(&c) ? "; for a classifier, use --kind labels" : "");
}

static void report_pairs(const dt_make_stats *s)
{
    if (s->equal.n)
        DT_WARN("%" PRId64 " of %" PRId64
                " pairs have equal answers after encoding, so they add nothing to the training (first: %s)",
                s->equal.n, s->n_pairs, s->equal.first);
    if (s->contradicted.n) dt_warn_contradicted(NULL, s->contradicted.n, s->n_pairs, s->contradicted.first);
}

static void report_file(const char *path, dt_dataset_kind kind, const char *noun, int64_t n, int64_t n_tokens,
                        const char *files)
{
    DT_INFO("%s: kind %s, %" PRId64 " %s%s, %" PRId64 " token%s%s", path, dt_dataset_kind_name(kind), n, noun,
            dt_plural(n), n_tokens, dt_plural(n_tokens), files);
}

void data_report(const dt_make_options *o, const dt_make_stats *s, double seconds)
{
    const char *noun = s->kind == DT_DATASET_TOKENS ? "document" : "sample";
    char text[24], rate[24], files[40] = "";
    if (o->n_shards || o->shard_nbytes)
        snprintf(files, sizeof files, " in %d file%s", s->n_shards, dt_plural(s->n_shards));
    report_file(o->output, s->kind, noun, s->n_documents, s->n_tokens, files);
    if (o->validation) report_file(o->validation, s->kind, noun, s->n_validation_documents, s->n_validation_tokens, "");
    report_left_out(o, s, noun);
    report_ignored(s);
    report_turns(&s->ignored);
    report_pairs(s);
    report_problems(s);
    DT_INFO("%s read in %.1f s, %s/s", dt_format_bytes((double)s->nbytes_read, text), seconds,
            dt_format_bytes((double)s->nbytes_read / (seconds + 1e-9), rate));
}
