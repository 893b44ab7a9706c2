/* closing.c - the final messages of a run. */
#include "run.h"
#include "dtrain/report/report.h"
#include <inttypes.h>

static void say_steps(const dt_run *run, const progress *from, const progress *to, double loop_s)
{
    char took[24], tokens[24], rate[24];
    const int64_t n_tok = to->tokens - from->tokens, n_steps = to->step - from->step;
    DT_INFO("%s: %" PRId64 " step%s (%" PRId64 " of %" PRId64
            "), %s tokens, %s tokens/s on average%s, %s from start to end",
            to->step >= run->total_steps ? "done" : "stopped", n_steps, n_steps == 1 ? "" : "s", to->step,
            run->total_steps, dt_format_count((double)n_tok, tokens),
            dt_format_count(loop_s > 0 ? (double)n_tok / loop_s : 0, rate),
            dt_comm_ranks(run->comm) > 1 ? " (all ranks together)" : "",
            dt_format_duration(dt_now_s() - run->start_s, took));
}

void run_say_closing(const dt_run *run, const progress *from, const progress *to, double loop_s)
{
    const char *dir = run->cfg.run_output_dir;
    const bool eval = !run_trains(run);
    const bool on_chats = run->task.train && *dt_loader_info(run->task.train)->chat_template;
    char took[24];
    dt_evals_say(run->evals);
    if (eval)
        DT_INFO("done: evaluated in %s", dt_format_duration(dt_now_s() - run->start_s, took));
    else if (to->step > from->step)
        say_steps(run, from, to, loop_s);
    if (!*dir) return;
    DT_INFO("results in %s", dir);
    if (eval || to->step < run->total_steps) return;
    if (run->task.n_labels)
        DT_INFO("next: dtrain-generate --score %s --answers FILE.jsonl, dtrain-plot %s, dtrain-info %s", dir, dir, dir);
    else
        DT_INFO("next: dtrain-generate %s %s, dtrain-plot %s, dtrain-info %s", dir,
                on_chats ? "--chat" : "--prompt TEXT", dir, dir);
}
