/* dtrain.c - main program: options, MPI, one run, exit code. The run
 * itself is dt_run_main(); only this file ends the job (dt_comm_leave). */
#include "dtrain/train/train.h"
#include "dtrain/io/io.h"
#include "tool/ranks.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum action { ACTION_RUN, ACTION_CHECK, ACTION_PLAN, ACTION_KEYS } action;

typedef struct options {
    action action;
    const char *asked_by, *asked_by_another; /* options that request different actions; NULL: none */
    dt_plan_request plan;
    const char *filter; /* argument of --keys */
    bool force, help, version;
    const char *plan_option; /* the last option given that only --plan accepts; NULL: none */
    const char *input;       /* NULL: --check without input tests only the device */
    int n_overrides;
    const char *const *overrides;
} options;

static dt_err choose_action(void *self, const tool_row *row, char *text)
{
    options *o = self;
    const action asked = (action)row->low;
    (void)text;
    if (o->asked_by && asked != o->action) o->asked_by_another = row->name;
    if (!o->asked_by) o->action = asked, o->asked_by = row->name;
    return DT_OK;
}

/* Values below a megabyte are rejected: a number without unit was probably meant as gigabytes. */
#define MEMORY .low = 1e6
#define RANKS .low = 1, .high = 1e7
#define PLANS .given = offsetof(options, plan_option)

/* clang-format off */
static const char usage[] =
    "usage: dtrain [options] input.ini [section.key=value ...]\n"
    "       dtrain --check section.key=value ...\n"
    "       dtrain --keys [section[.key]]\n"
    "  Runs the task in the file. Settings on the command line override the file. Under mpirun or srun,\n"
    "  dtrain uses every rank that the launcher started; without a launcher it runs on one rank.\n"
    "\n";

static const tool_row rows[] = {
    {"check", NULL, CALL(choose_action),
     "open and validate everything that the run would use, and take no step. With settings but no input file "
     "(run.device=cuda): verify the results of the device's kernels", ACTION_CHECK},
    {"force", NULL, TO(force), "take over the output_dir of another run. Use it only if that run is dead"},
    {"keys", NULL, CALL(choose_action), "list configuration keys: type, default, range, unit, help", ACTION_KEYS},
    {"plan", NULL, CALL(choose_action),
     "print memory per rank and communication per step for every ZeRO stage and offload, and the choice of "
     "zero.stage = auto", ACTION_PLAN},
    {HEADING("Options of --plan")},
    {"ranks", "N", TO(plan.nranks), "number of ranks (default 1)", RANKS, PLANS},
    {"ranks-per-node", "N", TO(plan.ranks_per_node), "ranks per node (default: all on one node)", RANKS, PLANS},
    {"devices-per-node", "N", TO(plan.devices_per_node), "devices per node (default: one per rank)", RANKS, PLANS},
    {"device-memory", "SIZE", BYTES(plan.device_memory),
     "memory of a device, such as 80GiB (default on CPUs: this machine's). G and GB are 10^9 bytes, GiB is 2^30 bytes",
     MEMORY, PLANS},
    {"host-memory", "SIZE", BYTES(plan.host_memory), "memory of a node (default: this machine's)", MEMORY, PLANS},
    {"nvme-space", "SIZE", BYTES(plan.nvme_space),
     "free space of a node under zero.nvme_path (default: this machine's)", MEMORY, PLANS},
    {"gpu", "NAME", TO(plan.gpu),
     "GPU model (h100, h200, a100, ...), which also sets its memory. With it dtrain also predicts the time of a step, "
     "by operation", PLANS},
    {HEADING("Other options")}, TOOL_ROWS};
/* clang-format on */
static const tool_help help = {usage, rows, .codes = 1U << DT_ERR_NONFINITE | 1U << DT_ERR_STOP | 1U << DT_ERR_COMM};

static bool is_setting(const char *text) { return strchr(text, '=') && access(text, F_OK) != 0; }

static dt_err take_arguments(options *o, int argc, char **argv)
{
    if (o->action == ACTION_KEYS) {
        if (argc > 0) o->filter = argv[0];
        DT_CHECK(argc <= 1, DT_ERR_USAGE, "--keys takes at most one section or section.key");
    } else if (o->action <= ACTION_PLAN) {
        DT_CHECK(argc >= 1, DT_ERR_USAGE, "expected an input file (see dtrain --help)");
        const bool alone = o->action == ACTION_CHECK && is_setting(argv[0]);
        o->input = alone ? NULL : argv[0];
        o->n_overrides = argc - !alone, o->overrides = (const char *const *)argv + !alone;
    }
    return DT_OK;
}

static dt_err parse_options(int argc, char **argv, options *o)
{
    *o = (options){.plan = {.nranks = 1}, .filter = ""};
    DT_TRY(tool_parse(rows, o, argc, argv));
    if (o->help || o->version) return DT_OK;
    DT_CHECK(!o->asked_by_another, DT_ERR_USAGE, "--%s and --%s exclude each other: give one of them", o->asked_by,
             o->asked_by_another);
    DT_CHECK(!o->plan_option || o->action >= ACTION_PLAN, DT_ERR_USAGE,
             "--%s needs --plan; to set the number of ranks of a run, use mpirun or srun", o->plan_option);
    return take_arguments(o, argc - optind, argv + optind);
}

static dt_err print_plan(const options *o)
{
    char *text = NULL;
    dt_run run = {0};
    dt_err err = dt_config_read_file(o->input, &text);
    if (err == DT_OK)
        err = dt_config_read(&run.cfg, o->input, text, o->n_overrides, o->overrides, DT_VARIABLES_MAY_BE_UNSET,
                             &run.mistakes);
    if (err == DT_OK) err = dt_plan_print(&run, &o->plan, stdout);
    dt_run_close(&run);
    dt_device_close(&run.dev);
    free(text);
    return err;
}

/* Actions that do not need MPI. */
static dt_err run_alone(const options *o)
{
    return o->action == ACTION_KEYS ? dt_config_print_keys(stdout, o->filter) : print_plan(o);
}

/* Users set NCCL_TIMEOUT in seconds to limit time without progress. NCCL itself does not read it. */
static dt_err adopt_timeout(dt_config *cfg)
{
    const char *text = getenv("NCCL_TIMEOUT");
    return text && *text && !dt_config_given(cfg, "comm", "timeout") ? dt_config_set(cfg, "comm", "timeout", text)
                                                                     : DT_OK;
}

/* This variable makes PyTorch check that all ranks call the same collectives. */
static dt_err adopt_check(dt_config *cfg)
{
    const char *text = getenv("TORCH_DISTRIBUTED_DEBUG");
    return text && !strcasecmp(text, "DETAIL") && !dt_config_given(cfg, "comm", "check")
               ? dt_config_set(cfg, "comm", "check", "true")
               : DT_OK;
}

/* Rank 0 reads and resolves the configuration (with its environment for ${NAME}); the other ranks parse
 * the resolved text. Errors are collected in run, so that all are reported together. */
static dt_err share_config(const options *o, dt_comm *comm, dt_run *run)
{
    dt_config *cfg = &run->cfg;
    const char *name = o->input ? o->input : "no input file";
    char *text = NULL;
    dt_err err = DT_OK;
    if (comm->rank == 0) {
        char *input = NULL;
        if (o->input) err = dt_config_read_file(o->input, &input);
        if (err == DT_OK)
            err = dt_config_read(cfg, name, input ? input : "", o->n_overrides, o->overrides, DT_VARIABLES_MUST_BE_SET,
                                 &run->mistakes);
        if (err == DT_OK) dt_mistakes_add(&run->mistakes, adopt_timeout(cfg));
        if (err == DT_OK) dt_mistakes_add(&run->mistakes, adopt_check(cfg));
        if (err == DT_OK && !(text = dt_config_given_text(cfg)))
            err = dt_fail(DT_ERR_MEMORY, "out of memory for the configuration");
        free(input);
    }
    if ((err = dt_comm_agree(comm, err)) != DT_OK) goto done;
    if ((err = dt_comm_share_text(comm, &text, NULL)) != DT_OK) goto done;
    if (comm->rank) err = dt_config_parse(cfg, name, text, 0, NULL);
    err = dt_comm_agree(comm, err);
done:
    free(text);
    return err;
}

/* Before the configuration is known, a rank that stops would keep the others waiting: only its default limits them. */
static double first_timeout(void)
{
    enum { DEFAULT_TIMEOUT_S = 1800 }; /* of comm.timeout */
    const char *text = getenv("NCCL_TIMEOUT");
    const double given = text ? strtod(text, NULL) : 0;
    return given >= 1 ? given : DEFAULT_TIMEOUT_S;
}

static dt_err share_config_in_time(const options *o, dt_comm *comm, dt_run *run)
{
    dt_watchdog *watchdog;
    comm->timeout_s = first_timeout();
    dt_phase_enter(&run->phase, "start", "configuration");
    DT_TRY(dt_watchdog_start(&watchdog, &run->phase, comm, comm->timeout_s));
    const dt_err err = share_config(o, comm, run);
    dt_watchdog_stop(&watchdog);
    return err;
}

/* A requested stop is not an error for the user. A run does not end because standard output is lost. */
static int end(dt_err err)
{
    if (err != DT_OK)
        dt_log(err == DT_ERR_STOP ? DT_LOG_WARN : DT_LOG_ERROR, "%s",
               *dt_error_message() ? dt_error_message() : "failed without a message");
    return dt_exit_code(err);
}

static dt_mode mode_of(const options *o)
{
    return o->action == ACTION_RUN ? DT_MODE_RUN : o->input ? DT_MODE_CHECK : DT_MODE_CHECK_DEVICE;
}

typedef struct program {
    options opt;
    dt_comm comm;
    dt_run run;
} program;

static dt_err run_ranks(void *self, dt_err parsed)
{
    program *p = self;
    DT_TRY(parsed);
    DT_TRY(dt_comm_open(&p->comm));
    dt_log_open(p->comm.rank, p->comm.nranks, p->comm.host);
    if (!p->comm.threads)
        DT_WARN("this MPI does not provide MPI_THREAD_MULTIPLE, so the watchdog may be unable to end a hung job");
    DT_TRY(share_config_in_time(&p->opt, &p->comm, &p->run));
    return dt_run_main(&p->run, &p->comm, mode_of(&p->opt));
}

static void close_run(void *self) { dt_run_close(&((program *)self)->run); }

int main(int argc, char **argv)
{
    program p = {.run = {.start_s = dt_now_s()}};
    tool_start("dtrain");
    const dt_err parsed = parse_options(argc, argv, &p.opt);
    if (parsed != DT_OK || tool_answers(&help, p.opt.help, p.opt.version)) return tool_end(parsed);
    if (p.opt.action > ACTION_CHECK) return tool_end(run_alone(&p.opt));
    if (p.opt.action == ACTION_RUN) dt_signals_hold(); /* keeps signals pending, also if it executes itself */
    tool_wait_fairly(argv);
    /* a request during start-up takes effect after the first step */
    if (p.opt.action == ACTION_RUN && dt_signals_install() != DT_OK) return end(DT_ERR_FAULT);
    p.run.force = p.opt.force;
    return ranks_main(&p.comm, &p.run.dev, &p, DT_OK, run_ranks, close_run, end);
}
