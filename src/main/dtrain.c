/* dtrain.c - main program: options, MPI, one run, exit code. The run
 * itself is dt_run_main(); only this file ends the job (dt_comm_leave). */
#include "dtrain/train/train.h"
#include "dtrain/io/io.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: dtrain [options] input.ini [section.key=value ...]\n"
    "       dtrain --check section.key=value ...\n"
    "  Runs the task in the file. Settings on the command line override the file. Under mpirun or srun,\n"
    "  dtrain uses every rank that the launcher started; without a launcher it runs on one rank.\n"
    "\n"
    "  --check                 open and validate everything that the run would use, and take no step.\n"
    "                          With settings but no input file (run.device=cuda): verify the results of\n"
    "                          the device's kernels\n"
    "  --force                 take over the output_dir of another run. Use it only if that run is dead\n"
    "  --plan                  print memory per rank and communication per step for every ZeRO stage and\n"
    "                          offload, and the choice of zero.stage = auto. Options:\n"
    "      --ranks N             number of ranks (default 1)\n"
    "      --ranks-per-node N    ranks per node (default: all on one node)\n"
    "      --devices-per-node N  devices per node (default: one per rank)\n"
    "      --device-memory SIZE  memory of a device, such as 80GiB (default on CPUs: this machine's).\n"
    "                            G and GB are 10^9 bytes, GiB is 2^30 bytes\n"
    "      --host-memory SIZE    memory of a node (default: this machine's)\n"
    "      --nvme-space SIZE     free space of a node under zero.nvme_path (default: this machine's)\n"
    "      --gpu NAME            GPU model (h100, h200, a100, ...), which also sets its memory. With it\n"
    "                            dtrain also predicts the time of a step, by operation\n"
    "  --keys [section[.key]]  list configuration keys: type, default, range, unit, help\n"
    "  -h, --help              print this text\n"
    "  -V, --version           print version, commit, build, devices and libraries\n"
    "\n"
    "exit codes: 0 done, 64 usage or configuration, 65 bad data or checkpoint, 70 fault,\n"
    "            71 not finite, 74 writing failed, 75 stopped early with a checkpoint (submit again),\n"
    "            76 communication failed or timed out\n";

typedef enum action {
    ACTION_RUN,
    ACTION_CHECK,
    ACTION_PLAN,
    ACTION_KEYS,
    ACTION_MARKDOWN,
    ACTION_VERSION,
    ACTION_HELP
} action;

typedef struct options {
    action action;
    const char *asked_by, *asked_by_another; /* options that request different actions; NULL: none */
    dt_plan_request plan;
    const char *filter; /* argument of --keys */
    bool force;
    const char *plan_option; /* the last option given that only --plan accepts; NULL: none */
    const char *input;       /* NULL: --check without input tests only the device */
    int n_overrides;
    const char *const *overrides;
} options;

static dt_err parse_ranks(const char *name, const char *text, int *value)
{
    int64_t n;
    DT_TRY(tool_parse_int(name, text, 1, 10000000, &n));
    *value = (int)n;
    return DT_OK;
}

/* Values below a megabyte are rejected: a number without unit was probably meant as gigabytes. */
static dt_err parse_memory(const char *name, const char *text, uint64_t *nbytes)
{
    DT_TRY(tool_parse_bytes(name, text, nbytes));
    DT_CHECK(*nbytes >= 1000000, DT_ERR_USAGE, "--%s: %s is %" PRIu64 " bytes; did you mean %.*sG?", name, text,
             *nbytes, (int)strspn(text, "0123456789."), text);
    return DT_OK;
}

enum { ACTION = 256, RANKS = 300, PER_NODE, DEVICES, DEVICE_MEMORY, HOST_MEMORY, NVME_SPACE, GPU, FORCE };
static const struct option table[] = {
    {"check", no_argument, NULL, ACTION + ACTION_CHECK},
    {"plan", no_argument, NULL, ACTION + ACTION_PLAN},
    {"keys", no_argument, NULL, ACTION + ACTION_KEYS},
    {"keys-markdown", no_argument, NULL, ACTION + ACTION_MARKDOWN},
    {"force", no_argument, NULL, FORCE},
    {"ranks", required_argument, NULL, RANKS},
    {"ranks-per-node", required_argument, NULL, PER_NODE},
    {"devices-per-node", required_argument, NULL, DEVICES},
    {"device-memory", required_argument, NULL, DEVICE_MEMORY},
    {"host-memory", required_argument, NULL, HOST_MEMORY},
    {"nvme-space", required_argument, NULL, NVME_SPACE},
    {"gpu", required_argument, NULL, GPU},
    TOOL_OPTIONS,
    {NULL, 0, NULL, 0},
};

/* Help and version override all other actions. */
static void choose_action(options *o, action asked, const char *name)
{
    if (o->asked_by && asked != o->action) o->asked_by_another = name;
    if (!o->asked_by || asked >= ACTION_VERSION) o->action = asked, o->asked_by = name;
}

/* c: an option of the table, or a letter. */
static dt_err take_option(options *o, int c, const char *name)
{
    if (c >= RANKS && c <= GPU) o->plan_option = name;
    switch (c) {
    case RANKS:
        return parse_ranks(name, optarg, &o->plan.nranks);
    case PER_NODE:
        return parse_ranks(name, optarg, &o->plan.ranks_per_node);
    case DEVICES:
        return parse_ranks(name, optarg, &o->plan.devices_per_node);
    case DEVICE_MEMORY:
        return parse_memory(name, optarg, &o->plan.device_memory);
    case HOST_MEMORY:
        return parse_memory(name, optarg, &o->plan.host_memory);
    case NVME_SPACE:
        return parse_memory(name, optarg, &o->plan.nvme_space);
    case GPU:
        o->plan.gpu = optarg;
        break;
    case FORCE:
        o->force = true;
        break;
    case 'V':
        choose_action(o, ACTION_VERSION, "version");
        break;
    case 'h':
        choose_action(o, ACTION_HELP, "help");
        break;
    default:
        choose_action(o, (action)(c - ACTION), name);
        break;
    }
    return DT_OK;
}

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
    for (int c, at;;) {
        DT_TRY(tool_option(argc, argv, ":" TOOL_LETTERS, table, &c, &at));
        if (c == -1) break;
        DT_TRY(take_option(o, c, at >= 0 ? table[at].name : ""));
    }
    DT_CHECK(!o->asked_by_another || o->action >= ACTION_VERSION, DT_ERR_USAGE,
             "--%s and --%s exclude each other: give one of them", o->asked_by, o->asked_by_another);
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
    dt_err err = DT_OK;
    switch (o->action) {
    case ACTION_HELP:
        fputs(usage, stdout);
        break;
    case ACTION_VERSION:
        tool_print_version();
        break;
    case ACTION_KEYS:
        err = dt_config_print_keys(stdout, o->filter);
        break;
    case ACTION_MARKDOWN:
        dt_config_print_markdown(stdout);
        break;
    default:
        err = print_plan(o);
        break;
    }
    return err;
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

/* Print an error message once, on the rank that reports. A requested stop is not an error for the user. */
static void tell(dt_err err, bool speaks)
{
    if (err == DT_OK || !speaks) return;
    dt_log(err == DT_ERR_STOP ? DT_LOG_WARN : DT_LOG_ERROR, "%s",
           *dt_error_message() ? dt_error_message() : "failed without a message");
}

static void close_together(dt_run *run, dt_comm *comm)
{
    dt_watchdog *watchdog = dt_watchdog_of_closing(comm);
    dt_run_close(run);
    dt_comm_close(comm);
    dt_device_close(&run->dev);
    dt_comm_stop();
    dt_watchdog_stop(watchdog);
}

static dt_mode mode_of(const options *o)
{
    return o->action == ACTION_RUN ? DT_MODE_RUN : o->input ? DT_MODE_CHECK : DT_MODE_CHECK_DEVICE;
}

static int run_ranks(const options *o)
{
    dt_comm comm = {0};
    dt_run run = {.start_s = dt_now_s(), .force = o->force};
    /* a request during start-up takes effect after the first step */
    dt_err err = o->action == ACTION_RUN ? dt_signals_install() : DT_OK;
    if (err != DT_OK) return tell(err, true), dt_exit_code(err);
    if ((err = dt_comm_start(&comm)) != DT_OK) return tell(err, true), dt_exit_code(err);
    err = dt_comm_open(&comm);
    if (err == DT_OK) dt_log_open(comm.rank, comm.nranks, comm.host);
    if (err == DT_OK && !comm.threads)
        DT_WARN("this MPI does not provide MPI_THREAD_MULTIPLE, so the watchdog may be unable to end a hung job");
    if (err == DT_OK) err = share_config(o, &comm, &run);
    if (err == DT_OK) err = dt_run_main(&run, &comm, mode_of(o));

    tell(err, dt_comm_speaks(&comm));
    dt_comm_leave(&comm, err);
    close_together(&run, &comm);
    return dt_exit_code(err);
}

int main(int argc, char **argv)
{
    options o;
    tool_start("dtrain");
    const dt_err parsed = parse_options(argc, argv, &o);
    if (parsed != DT_OK) return tool_end(parsed);
    if (o.action == ACTION_RUN) dt_signals_hold(); /* keeps signals pending, also if it executes itself */
    if (o.action <= ACTION_CHECK) tool_wait_fairly(argv);
    return o.action <= ACTION_CHECK ? run_ranks(&o) : tool_end(run_alone(&o));
}
