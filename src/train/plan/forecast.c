/* forecast.c - predict the time of a step by running it on a counting device, as rank 0 of a hypothetical job. ZeRO,
 * the model and the optimizer are those of a run. Only the data are synthetic: full rows of target tokens.
 *
 * Two steps are run, and only the second is counted, because ZeRO records the order of the units in the first. */
#include "forecast.h"
#include "dtrain/step/step.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- cost of a launch -------------------------------------------------------------------------------------------- */

/* Fractions of an H100's peak rates that single operations reached (docs/data/h100-*.csv): matmuls of 8192 tokens
 * 0.55 to 0.83 and mostly 0.7; attention of head size 64 and 128 from 1024 to 4096 tokens 0.25 to 0.39 forward and 0.17
 * to 0.35 backward; memory-bound kernels 0.8 to 0.9; copies to and from pinned memory 0.86. Links between GPUs have not
 * been measured: their fractions are published ones. */
double run_measured_fraction(const char *op, bound b)
{
    if (b == BOUND_MEMORY) return 0.85;
    if (b == BOUND_HOST) return 0.86;
    if (b != BOUND_ARITHMETIC) return dt_link_fraction(b == BOUND_NETWORK);
    if (!strcmp(op, "attention_forward")) return 0.3;
    return !strcmp(op, "attention_backward") ? 0.2 : 0.7;
}

/* The latency of an exchange passes before its last byte arrives, over either link. */
static void take_times(const dt_chip *chip, const dt_launch *l, int clock, double seconds[N_BOUNDS], double *latency)
{
    const dt_exchange_time x = dt_exchange_seconds(chip, &l->exchange, l->node, l->net, clock == AT_MEASURED);
    seconds[BOUND_ARITHMETIC] = l->flops / dt_chip_flops(chip, l->dt);
    seconds[BOUND_MEMORY] = l->memory / chip->memory_rate;
    seconds[BOUND_HOST] = l->host / chip->host_rate;
    for (int b = 0; clock == AT_MEASURED && b <= BOUND_HOST; b++) seconds[b] /= run_measured_fraction(l->op, (bound)b);
    seconds[BOUND_NVLINK] = l->node > 0 ? x.latency + x.node : 0;
    seconds[BOUND_NETWORK] = l->net > 0 ? x.latency + x.net : 0;
    *latency = l->node > 0 || l->net > 0 ? x.latency : 0;
}

/* ---- assignment to parts ----------------------------------------------------------------------------------------- */

static const char *text_of(const _Atomic(const char *) *text)
{
    const char *t = atomic_load_explicit(text, memory_order_relaxed);
    return t ? t : "";
}

static step_part part_now(const forecast *f)
{
    static const struct {
        const char *phase;
        step_part part;
    } PARTS[] = {{"forward", PART_FORWARD},
                 {"head", PART_HEAD},
                 {"backward", PART_BACKWARD},
                 {"gather", PART_EXCHANGE},
                 {"reduce", PART_EXCHANGE}};
    const char *phase = text_of(&f->phase->name);
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++)
        if (!strcmp(phase, PARTS[i].phase)) return PARTS[i].part;
    return PART_UPDATE;
}

static forecast_row *row_of(forecast *f, const char *op, step_part part)
{
    for (int i = 0; i < f->n_rows; i++)
        if (f->row[i].part == part && !strcmp(f->row[i].op, op)) return &f->row[i];
    if (f->n_rows == MAX_FORECAST_ROWS) return &f->row[MAX_FORECAST_ROWS - 1];
    f->row[f->n_rows] = (forecast_row){.op = op, .part = part};
    return &f->row[f->n_rows++];
}

/* The phase holds the pointer to the unit's name, so its address gives the unit. Experts count as their block. */
static void note_unit(forecast *f, step_part part, double seconds)
{
    const uintptr_t first = (uintptr_t)f->units[0].name, at = (uintptr_t)text_of(&f->phase->unit);
    if (at < first || (at - first) % sizeof *f->units != 0) return;
    size_t u = (at - first) / sizeof *f->units;
    if (u >= (size_t)f->n_units) return;
    while (u > 0 && f->units[u].role == DT_UNIT_EXPERTS) u--;
    f->unit_s[u][part] += f->weight * seconds;
}

static bound longest_of(const double seconds[N_BOUNDS])
{
    bound most = BOUND_ARITHMETIC;
    for (int b = 0; b < N_BOUNDS; b++)
        if (seconds[b] > seconds[most]) most = (bound)b;
    return most;
}

static void take(void *self, const dt_launch *l, double seconds[DT_COUNT_CLOCKS])
{
    forecast *f = self;
    double by[DT_COUNT_CLOCKS][N_BOUNDS], latency[DT_COUNT_CLOCKS];
    for (int i = 0; i < DT_COUNT_CLOCKS; i++) {
        take_times(f->chip, l, i, by[i], &latency[i]);
        seconds[i] = by[i][longest_of(by[i])];
    }
    if (f->weight == 0) return;

    const bound longest = longest_of(by[AT_PEAK]);
    const step_part part = part_now(f);
    forecast_row *row = row_of(f, l->op, part);
    const double linked[N_BOUNDS] = {l->memory, l->memory, l->host, l->node, l->net};
    row->launches += f->weight;
    row->flops += f->weight * l->flops;
    row->bytes += f->weight * linked[longest];
    row->bound_s[longest] += f->weight * seconds[AT_PEAK];
    row->latency_s += f->weight * latency[AT_PEAK];
    if (part == PART_EXCHANGE)
        f->interference_s += f->weight * dt_exchange_interference(f->chip, &l->exchange, l->node, l->net);
    for (int i = 0; i < DT_COUNT_CLOCKS; i++) row->seconds[i] += f->weight * seconds[i];
    note_unit(f, part, seconds[AT_PEAK]);
}

forecast_row run_forecast_sum(const forecast *f, step_part part)
{
    forecast_row sum = {.op = "", .part = part};
    for (int i = 0; i < f->n_rows; i++) {
        const forecast_row *r = &f->row[i];
        if (part != N_PARTS && r->part != part) continue;
        sum.launches += r->launches, sum.flops += r->flops, sum.bytes += r->bytes, sum.latency_s += r->latency_s;
        for (int k = 0; k < DT_COUNT_CLOCKS; k++) sum.seconds[k] += r->seconds[k];
        for (int b = 0; b < N_BOUNDS; b++) sum.bound_s[b] += r->bound_s[b];
    }
    return sum;
}

bound run_forecast_bound(const forecast_row *row) { return longest_of(row->bound_s); }

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/** The model that is trained, and stand-ins for the other parts of a run. */
typedef struct stand_in {
    dt_run *run;
    dt_ledger ledger;
    dt_device dev;
    dt_comm comm;
    dt_stream *compute;
    dt_trained main;
    dt_param_source source;
    dt_task task;
    dt_task_ops ops;
    dt_batch batch;
} stand_in;

static dt_err weights_of_all(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const int64_t n_values = dt_task_n_values(t);
    for (int64_t i = 0; !n_values && i < m->batch->n_target; i++) {
        w->u[i] = 1;
        if (w->entropy) w->entropy[i] = 1;
        if (w->kl) w->kl[i] = 1;
    }
    for (int64_t i = 0; i < (int64_t)m->batch->n_tok * n_values; i++) w->dvalue[i] = 1;
    return DT_OK;
}

static void collect_nothing(dt_task *t, const dt_micro *m, const dt_predictions *p) {}

/* Add the images of a micro-batch if its sequences are long enough for their placeholders. */
static dt_err put_images(stand_in *s, int64_t seq_len)
{
    dt_batch *b = &s->batch;
    const dt_vision_config *v = s->run->mc.vision;
    const int32_t most = s->task.model_opt->max_images, V = (int32_t)s->run->mc.vocab_size;
    for (int32_t i = 0; v && i < b->n_tok; i++)
        if (b->token[i] == v->image_token) b->token[i] = (v->image_token + 1) % V;
    if (!v || most == 0) return DT_OK;
    DT_TRY(dt_batch_add_images(b, most, dt_task_image_nbytes(&s->run->task), &s->ledger));
    dt_batch_images *images = dt_images_of(b);
    for (int32_t q = 0; q < b->n_seq; q++) {
        int32_t n = (int32_t)dt_min_i64(most - images->n, seq_len / v->n_tokens);
        const int32_t rows = (int32_t)sqrt((double)n), at = images->n;
        if (v->grids && n > 0) n = rows * (n / rows); /* one image, almost a square */
        for (int64_t t = q * seq_len; t < q * seq_len + n * v->n_tokens; t++)
            b->token[t] = v->image_token, b->target[t] = -1, b->weight[t] = 0;
        dt_images_append(images, q, n);
        if (v->grids && n > 0) images->grid[at] = dt_grid_code(rows, n / rows);
    }
    return DT_OK;
}

static dt_err make_rows(stand_in *s, int64_t n_rows, int64_t seq_len)
{
    dt_batch *b = &s->batch;
    DT_TRY(dt_batch_alloc(b, (int32_t)(n_rows * seq_len), (int32_t)n_rows, &s->ledger));
    b->n_seq = (int32_t)n_rows, b->n_tok = (int32_t)(n_rows * seq_len);
    for (int32_t i = 0; i < b->n_tok; i++) {
        b->token[i] = (int32_t)(dt_mix64((uint64_t)i) % (uint64_t)s->run->mc.vocab_size);
        b->target[i] = b->token[i];
        b->pos[i] = (int32_t)(i % seq_len);
        b->weight[i] = 1;
    }
    DT_TRY(put_images(s, seq_len));
    for (int32_t r = 0; r <= b->n_seq; r++) b->seq_start[r] = (int32_t)(r * seq_len);
    dt_batch_finish(b);
    return DT_OK;
}

static dt_err open_stand_in(stand_in *s, const plan_setting *with, const dt_count_sink *sink, const forecast *f)
{
    dt_run *run = s->run;
    dt_task *t = &s->task;
    DT_TRY(dt_count_open(&s->dev, sink, &s->ledger));
    const dt_mesh_shape mesh = run_mesh(run, &with->strategy);
    DT_TRY(dt_comm_open_counted(&s->comm, &s->dev, with->nranks, with->ranks_per_node, &mesh));
    DT_TRY(dt_stream_open(&s->dev, &s->compute, "compute"));
    s->main = run->main;
    s->main.zero_opt = run_zero_options(with, &run->main);
    DT_TRY(dt_zero_open(&s->main.zero, &s->main.zero_opt, f->units, f->n_units, &s->comm, &s->dev, s->compute,
                        &run->phase));
    s->source = dt_zero_source(s->main.zero);
    *t = run->task;
    s->ops = *run->task.ops;
    t->sums = NULL; /* nothing is counted */
    s->ops.weights = weights_of_all, s->ops.collect = collect_nothing, s->ops.train_auxiliary = NULL;
    t->ops = &s->ops, t->zero = s->main.zero, t->main = &s->main, t->compute = s->compute;
    dt_model_options opt = with->model_opt;
    opt.mesh = &s->comm.mesh;
    DT_TRY(
        dt_model_open(&t->model, &run->mc, &opt, f->units, f->n_units, &s->dev, &s->source, s->compute, &run->phase));
    DT_TRY(dt_task_buffers_alloc(&t->buffers, &with->model_opt, dt_task_n_values(t), &s->ledger));
    return make_rows(s, with->batching.micro_batch_size, run->cfg.data_seq_len);
}

static void close_stand_in(stand_in *s)
{
    dt_batch_free(&s->batch, &s->ledger);
    dt_task_buffers_free(&s->task.buffers, &s->ledger);
    dt_model_close(s->task.model);
    dt_zero_close(s->main.zero);
    if (s->compute) dt_stream_close(&s->dev, s->compute);
    dt_comm_close(&s->comm);
    dt_device_close(&s->dev);
}

/* All micro-steps except the first and the last are alike, so a few represent all. */
enum { MOST_MICRO = 64 };

static dt_err micro_steps(stand_in *s, forecast *f, int64_t n_micro, double more_s[DT_COUNT_CLOCKS])
{
    const int n = (int)dt_min_i64(n_micro, MOST_MICRO);
    const double middle = n > 2 ? (double)(n_micro - 2) / (n - 2) : 1, weight = f->weight;
    const dt_micro m = {.batch = &s->batch, .n_micro = n, .inv_norm = 1};
    double begin_s[DT_COUNT_CLOCKS], end_s[DT_COUNT_CLOCKS];
    for (int a = 0; a < n; a++) {
        f->weight = a > 0 && a < n - 1 ? weight * middle : weight;
        if (a == 1) dt_count_now(&s->dev, begin_s);
        if (a == n - 1) dt_count_now(&s->dev, end_s);
        dt_zero_begin_micro(s->main.zero, a, n);
        DT_TRY(dt_task_micro_step(&s->task, &m, 0));
    }
    f->weight = weight;
    for (int i = 0; i < DT_COUNT_CLOCKS; i++) more_s[i] = n > 2 ? (middle - 1) * (end_s[i] - begin_s[i]) : 0;
    return DT_OK;
}

static dt_err step(stand_in *s, forecast *f, int64_t n_micro)
{
    double begin_s[DT_COUNT_CLOCKS], more_s[DT_COUNT_CLOCKS] = {0}, squares;
    dt_optimizer_step update = s->run->main.settings;
    update.lr = update.grad_scale = 1, update.t = 1;
    dt_count_now(&s->dev, begin_s);
    if (run_trains(s->run)) {
        DT_TRY(micro_steps(s, f, n_micro, more_s));
        dt_phase_enter(&s->run->phase, "norm", "");
        DT_TRY(run_grad_sum_squares(s->run, s->main.zero, &squares));
        DT_TRY(dt_zero_update(s->main.zero, &update, NULL));
    } else {
        DT_TRY(dt_task_forward(&s->task, &s->batch));
    }
    dt_count_now(&s->dev, f->step_s);
    for (int i = 0; i < DT_COUNT_CLOCKS; i++) f->step_s[i] += more_s[i] - begin_s[i];
    return DT_OK;
}

/* Only exchanges that kernels hide slow kernels. */
static double hidden_share(const forecast *f)
{
    const double exchange = run_forecast_sum(f, PART_EXCHANGE).seconds[AT_MEASURED],
                 kernels = run_forecast_sum(f, N_PARTS).seconds[AT_MEASURED] - exchange,
                 exposed = f->step_s[AT_MEASURED] - kernels;
    return exchange > 0 ? fmin(fmax(1 - exposed / exchange, 0), 1) : 0;
}

dt_err run_forecast(dt_run *run, const plan_setting *with, const dt_chip *chip, forecast *f)
{
    stand_in s = {.run = run};
    const int64_t n_micro = run_trains(run) ? with->batching.accumulation : 1;
    *f = (forecast){.chip = chip, .phase = &run->phase};
    const int n_data = run_planned_data(run, with);
    f->tokens = (double)with->batching.micro_batch_size * (double)n_micro * n_data * (double)run->cfg.data_seq_len;
    DT_TRY(dt_units_group_experts(run->units, run->n_units, with->strategy.expert_group_size, &f->units, &f->n_units));
    f->unit_s = calloc((size_t)f->n_units, sizeof *f->unit_s);
    DT_CHECK(f->unit_s, DT_ERR_MEMORY, "out of memory for the times of %d units", f->n_units);
    dt_err err = open_stand_in(&s, with, &(dt_count_sink){take, f}, f);
    const dt_batch_images *images = dt_images_of(&s.batch);
    f->images = (images ? (double)images->n : 0) * (double)n_micro * n_data;
    for (int i = 0; i < 2 && err == DT_OK; i++) {
        f->weight = i;
        err = step(&s, f, n_micro);
    }
    f->weight = 0;
    f->interference_s *= hidden_share(f);
    f->step_s[AT_MEASURED] += f->interference_s;
    close_stand_in(&s);
    return err;
}

void run_forecast_free(forecast *f)
{
    free(f->unit_s);
    dt_units_free(f->units, f->n_units);
    *f = (forecast){0};
}
