/* test_zero_plan.c - the arithmetic of shards and of the plan: no rank, no device. */
#include "cases.h"
#include "dtrain/model/model.h"
#include "dtrain/zero/zero.h"

static const int ranks[] = {1, 2, 3, 4, 7, 16, 1024};
enum { N_RANKS = sizeof ranks / sizeof ranks[0] };

static void add(dt_unit *u, const char *name, int64_t n, bool new_group)
{
    assert_int_equal(dt_unit_add(u, name, 1, &n, new_group, true, 0.02f, 0), DT_OK);
}

/** Sizes are multiples of every rank count times the alignment, so that there is no padding and formulas hold to the
 *  last bit. */
static void make_even_units(dt_unit u[3])
{
    memset(u, 0, 3 * sizeof *u);
    for (int i = 0; i < 3; i++) snprintf(u[i].name, sizeof u[i].name, "unit.%d", i);
    add(&u[0], "a", 16 * 1024 * 21, true);
    add(&u[1], "b", 16 * 1024 * 42, true);
    add(&u[1], "c", 16 * 1024 * 21, true);
    add(&u[2], "d", 16 * 1024 * 63, true);
}

static void free_units(dt_unit *u, int n)
{
    for (int i = 0; i < n; i++) dt_unit_free(&u[i]);
}

TEST(shards_cover_and_waste_little)
{
    const int64_t lens[] = {1, 5, 15, 16, 17, 64, 4099, 123456789, INT64_C(3) << 40};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
        for (int k = 0; k < N_RANKS; k++) {
            const dt_shards s = dt_shards_of(lens[i], ranks[k], 1, DT_SHARD_ALIGN);
            assert_true(s.flat_len == lens[i] && s.padded_len == s.shard_len * ranks[k] &&
                        s.shard_len % DT_SHARD_ALIGN == 0);
            assert_true(s.flat_len <= s.padded_len && s.padded_len < s.flat_len + (int64_t)ranks[k] * DT_SHARD_ALIGN);
        }
}

static dt_zero_plan plan_of(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks)
{
    dt_zero_plan plan;
    assert_int_equal(dt_zero_plan_make(opt, units, n_units, nranks, &plan), DT_OK);
    return plan;
}

static double paper_bytes(int stage, double n)
{
    return stage == 0 ? 16 : stage == 1 ? 4 + 12 / n : stage == 2 ? 2 + 14 / n : 16 / n;
}

TEST(bytes_per_parameter_are_the_papers)
{
    dt_unit u[3];
    make_even_units(u);
    for (int k = 0; k < N_RANKS; k++)
        for (int stage = 0; stage <= 3; stage++) {
            const dt_zero_options opt = {
                .stage = stage, .param_dtype = DT_BF16, .grad_dtype = DT_BF16, .optimizer = &dt_optimizer_adamw};
            const dt_zero_plan p = plan_of(&opt, u, 3, ranks[k]);
            assert_true(fabs(p.state_bytes_per_param - paper_bytes(stage, ranks[k])) < 1e-12 * 16);
            assert_int_equal(p.n_padding, 0);
            assert_int_equal(p.n_param, 16 * 1024 * 21 * 7);
        }
    free_units(u, 3);
}

TEST(fp32_parameters_are_the_master)
{
    dt_unit u[3];
    make_even_units(u);
    const double n = 4, want[] = {16, 8 + 8 / n, 4 + 12 / n, 16 / n};
    for (int stage = 0; stage <= 3; stage++) {
        const dt_zero_options opt = {
            .stage = stage, .param_dtype = DT_F32, .grad_dtype = DT_F32, .optimizer = &dt_optimizer_adamw};
        assert_true(plan_of(&opt, u, 3, 4).state_bytes_per_param == want[stage]);
        assert_true(plan_of(&opt, u, 3, 1).state_bytes_per_param == 16);
    }
    free_units(u, 3);
}

TEST(volume_is_two_or_three_times_the_parameters)
{
    dt_unit u[3];
    make_even_units(u);
    const double once = sizeof(uint16_t) * 16 * 1024 * 21 * 7 * 3.0 / 4;
    for (int stage = 0; stage <= 3; stage++) {
        dt_zero_options opt = {
            .stage = stage, .param_dtype = DT_BF16, .grad_dtype = DT_BF16, .optimizer = &dt_optimizer_adamw};
        dt_zero_plan p = plan_of(&opt, u, 3, 4);
        assert_true(p.sent_bytes_per_micro_step + p.sent_bytes_per_step == (stage == 3 ? 3 : 2) * once);
        assert_true(p.sent_bytes_per_micro_step == (stage < 2 ? 0 : stage == 2 ? 1 : 3) * once);
        opt.reproducible = true; /* reduces in every micro-step */
        p = plan_of(&opt, u, 3, 4);
        assert_true(p.sent_bytes_per_micro_step == (stage < 3 ? 1 : 3) * once);
        const int n = stage == 0 || stage == 3 ? 3 : 2; /* stage 0 gathers sums in fp32 */
        assert_true(p.sent_bytes_per_micro_step + p.sent_bytes_per_step == n * once);
        p = plan_of(&opt, u, 3, 1);
        assert_true(p.sent_bytes_per_micro_step == 0 && p.sent_bytes_per_step == 0);
    }
    free_units(u, 3);
}

TEST(frozen_models_hold_only_parameters)
{
    dt_unit u[3];
    make_even_units(u);
    for (int stage = 0; stage <= 3; stage++) {
        const dt_zero_options opt = {.stage = stage, .param_dtype = DT_BF16, .grad_dtype = DT_BF16};
        const dt_zero_plan p = plan_of(&opt, u, 3, 4);
        assert_true(p.state_bytes_per_param == (stage == 3 ? 0.5 : 2.0));
        assert_true(p.memory.at[DT_MEM_GRADS][DT_ON_DEVICE] == 0 && p.memory.at[DT_MEM_OPTIMIZER][DT_ON_DEVICE] == 0);
    }
    free_units(u, 3);
}

static bool is_c(void *self, const dt_tensor *t) { return t->name[0] == 'c'; }

/* One tensor of 21 parts in 147 is trained. Frozen tensors cost only their parameters, and are sent only at stage 3. */
TEST(frozen_parts_have_neither_gradients_nor_states)
{
    dt_unit u[3];
    make_even_units(u);
    dt_units_choose_trained(u, 3, is_c, NULL);
    const double part = 16 * 1024 * 21, frozen = 6 * part, once = sizeof(uint16_t) * 0.75;
    for (int stage = 0; stage <= 3; stage++) {
        const dt_zero_options opt = {
            .stage = stage, .param_dtype = DT_BF16, .grad_dtype = DT_BF16, .optimizer = &dt_optimizer_adamw};
        const dt_zero_plan p = plan_of(&opt, u, 3, 4);
        const double params = stage == 3 ? 0.5 : 2, grads = stage < 2 ? 2 : 0.5, states = stage == 0 ? 12 : 3;
        assert_true((double)dt_memory_of(&p.memory, DT_MEM_PARAMS) == params * 7 * part);
        assert_true((double)dt_memory_of(&p.memory, DT_MEM_GRADS) == grads * part);
        assert_true((double)dt_memory_of(&p.memory, DT_MEM_OPTIMIZER) == states * part);
        assert_true(p.n_padding == 0 && p.n_param == 7 * 16 * 1024 * 21);
        const double gathered = stage == 3 ? 2 * once * frozen : 0;
        assert_true(p.sent_bytes_per_micro_step + p.sent_bytes_per_step ==
                    (stage == 3 ? 3 : 2) * once * part + gathered);
    }
    dt_zero_options opt = {.stage = 3, .param_dtype = DT_BF16, .grad_dtype = DT_BF16, .optimizer = &dt_optimizer_adamw};
    opt.param_persistence_threshold = 16 * 1024 * 21 + 1; /* the trained part, and unit 0: the rest stays in shards */
    const dt_zero_plan p = plan_of(&opt, u, 3, 4);
    assert_int_equal(dt_memory_of(&p.memory, DT_MEM_PARAMS), 2 * 16 * 1024 * (21 + 21) + 2 * 16 * 1024 * 105 / 4);
    free_units(u, 3);
}

/* A master and n states, all fp32, in addition to bf16 parameters and gradients. */
TEST(bytes_follow_from_the_optimizers_states)
{
    dt_unit u[3];
    make_even_units(u);
    for (int n = 0; n <= DT_MAX_STATES + 1; n++) {
        const dt_optimizer_ops optimizer = {.name = "toy", .n_states = n};
        dt_zero_options opt = {.param_dtype = DT_BF16, .grad_dtype = DT_BF16, .optimizer = &optimizer};
        for (opt.stage = 0; n <= DT_MAX_STATES && opt.stage <= 3; opt.stage++) {
            const double kept = 4 + 4 * n, want[] = {4 + kept, 4 + kept / 4, 2 + (2 + kept) / 4, (4 + kept) / 4};
            const dt_zero_plan p = plan_of(&opt, u, 3, 4);
            assert_true(p.state_bytes_per_param == want[opt.stage]);
        }
        dt_zero_plan p;
        if (n > DT_MAX_STATES) assert_int_equal(dt_zero_plan_make(&opt, u, 3, 4, &p), DT_ERR_ARG);
        dt_error_clear();
    }
    free_units(u, 3);
}

TEST(padding_is_reported)
{
    dt_unit u = {.name = "odd"};
    add(&u, "a", 1, true);
    add(&u, "b", 4099, true); /* at 64: 63 elements of padding before it */
    const dt_zero_options opt = {
        .stage = 3, .param_dtype = DT_BF16, .grad_dtype = DT_BF16, .optimizer = &dt_optimizer_adamw};
    const dt_zero_plan p = plan_of(&opt, &u, 1, 3);
    const int64_t shard = 1392; /* ceil(4163 / 3) = 1388, up to a multiple of 16 */
    assert_int_equal(p.n_param, 4100);
    assert_int_equal(p.n_padding, shard - 4100 / 3);
    assert_int_equal(p.memory.at[DT_MEM_PARAMS][DT_ON_DEVICE], 2 * shard);
    assert_int_equal(p.memory.at[DT_MEM_GRADS][DT_ON_DEVICE], 2 * shard);
    assert_int_equal(p.memory.at[DT_MEM_OPTIMIZER][DT_ON_DEVICE], 12 * shard);
    dt_unit_free(&u);
}

TEST(too_few_live_parameters_name_the_minimum)
{
    dt_unit u[3];
    make_even_units(u);
    const int64_t need = 16 * 1024 * (63 + 21); /* unit.1 or unit.2 plus unit.0, which a tied head would hold */
    dt_zero_options opt = {.stage = 3,
                           .param_dtype = DT_BF16,
                           .grad_dtype = DT_BF16,
                           .optimizer = &dt_optimizer_adamw,
                           .max_live_parameters = need - 1};
    dt_zero_plan p;
    char number[32];
    dt_error_clear();
    assert_int_equal(dt_zero_plan_make(&opt, u, 3, 4, &p), DT_ERR_USAGE);
    snprintf(number, sizeof number, "%lld", (long long)need);
    assert_says(number, "unit.1");
    dt_error_clear();
    opt.max_live_parameters = need;
    assert_int_equal(dt_zero_plan_make(&opt, u, 3, 4, &p), DT_OK);
    opt.stage = 2; /* the limit is about gathered parameters */
    opt.max_live_parameters = 1;
    assert_int_equal(dt_zero_plan_make(&opt, u, 3, 4, &p), DT_OK);
    free_units(u, 3);
}

TEST(prefetch_costs_a_pair_where_the_limits_allow_it)
{
    dt_unit u[3];
    make_even_units(u);
    dt_zero_options opt = {.stage = 3, .param_dtype = DT_BF16, .grad_dtype = DT_BF16, .tied_unit = -1};
    const size_t alone = plan_of(&opt, u, 3, 4).memory.at[DT_MEM_STAGING][DT_ON_DEVICE];
    opt.overlap_comm = true;
    opt.prefetch_bucket_size = INT64_C(1) << 40;
    const size_t pair = plan_of(&opt, u, 3, 4).memory.at[DT_MEM_STAGING][DT_ON_DEVICE];
    assert_int_equal(pair - alone, 2 * 16 * 1024 * 63); /* units 1 and 2 instead of one of these */
    opt.max_live_parameters = 16 * 1024 * 126 - 1;
    assert_int_equal(plan_of(&opt, u, 3, 4).memory.at[DT_MEM_STAGING][DT_ON_DEVICE], alone);
    opt.max_live_parameters = 0;
    opt.prefetch_bucket_size = 16 * 1024 * 21; /* only unit 0 may be prefetched, next to unit 1: 84 of 1024 * 16 */
    assert_int_equal(plan_of(&opt, u, 3, 4).memory.at[DT_MEM_STAGING][DT_ON_DEVICE] - alone, 2 * 16 * 1024 * 21);
    free_units(u, 3);
}

TEST(small_units_persist)
{
    dt_unit u[3];
    make_even_units(u);
    const dt_zero_options opt = {.stage = 3,
                                 .param_dtype = DT_BF16,
                                 .grad_dtype = DT_BF16,
                                 .optimizer = &dt_optimizer_adamw,
                                 .param_persistence_threshold = 16 * 1024 * 21 + 1};
    const dt_zero_plan p = plan_of(&opt, u, 3, 4);
    assert_int_equal(p.memory.at[DT_MEM_PARAMS][DT_ON_DEVICE],
                     2 * 16 * 1024 * (21 + 126 / 4 /* = 31 */) + 2 * 16 * 1024 / 2);
    const double once = sizeof(uint16_t) * 16 * 1024 * 0.75;
    assert_true(p.sent_bytes_per_micro_step == once * (2 * 126 + 147) && p.sent_bytes_per_step == once * 21);
    free_units(u, 3);
}

/* ---- the default keys -------------------------------------------------------------------------------------------- */

static const char *const MODELS[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32, "
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256}",
    "{\"model_type\": \"qwen3\", \"hidden_size\": 5120, \"intermediate_size\": 25600, \"num_hidden_layers\": 64, "
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 151936}",
    "{\"model_type\": \"llama\", \"hidden_size\": 8192, \"intermediate_size\": 28672, \"num_hidden_layers\": 80, "
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"vocab_size\": 128256}"};

static dt_zero_options default_options(void)
{
    dt_config cfg;
    assert_int_equal(dt_config_parse(&cfg, "test", "", 0, NULL), DT_OK);
    const dt_zero_options opt = {.stage = 3,
                                 .param_dtype = DT_BF16,
                                 .grad_dtype = DT_BF16,
                                 .optimizer = &dt_optimizer_adamw,
                                 .overlap_comm = cfg.zero_overlap_comm,
                                 .tied_unit = -1,
                                 .reduce_bucket_size = cfg.zero_reduce_bucket_size,
                                 .allgather_bucket_size = cfg.zero_allgather_bucket_size,
                                 .prefetch_bucket_size = cfg.zero_prefetch_bucket_size,
                                 .param_persistence_threshold = cfg.zero_param_persistence_threshold,
                                 .max_live_parameters = cfg.zero_max_live_parameters};
    dt_config_free(&cfg);
    return opt;
}

/* Llama 3 8B, Qwen3 32B and Llama 3 70B: parameters and gradients of two neighbours, a block and the head, stand on the
 * device, a block is fetched while the one before it computes, and no collective is cut: the table of
 * docs/algorithms.md 9.2. What is left is a line of 16 bytes for each tensor's sum of squares. */
TEST(default_keys_suit_models_from_7b_to_70b)
{
    static const int RANKS[] = {8, 64, 1024};
    for (int k = 0; k < 9; k++) {
        dt_model_config mc;
        dt_unit *units;
        int n;
        assert_int_equal(dt_model_config_parse(&mc, "test", MODELS[k / 3]), DT_OK);
        assert_int_equal(dt_model_make_units(&mc, &units, &n), DT_OK);
        const dt_zero_options opt = default_options();
        const dt_zero_plan p = plan_of(&opt, units, n, RANKS[k % 3]);
        const int64_t pair = units[1].flat_len[DT_TRAINED] + units[n - 1].flat_len[DT_TRAINED];
        const double staging = (double)p.memory.at[DT_MEM_STAGING][DT_ON_DEVICE];
        const int64_t padding = 2 * RANKS[k % 3] * DT_SHARD_ALIGN + 2 * DT_GROUP_ALIGN; /* of the two units */
        assert_true(staging >= 4 * (double)pair && staging <= 4 * (double)(pair + padding) + 16 * 16 * n);
        assert_true(p.least_live_parameters < opt.max_live_parameters / 2);
        dt_model_free_units(units, n);
        dt_model_config_free(&mc);
    }
}

TEST(wrong_tables_are_refused)
{
    dt_unit u[3];
    make_even_units(u);
    dt_zero_plan p;
    const dt_zero_options opt = {.param_dtype = DT_F32, .grad_dtype = DT_F32, .optimizer = &dt_optimizer_adamw};
    u[1].tensors[1].offset -= 1;
    dt_error_clear();
    assert_fails(dt_zero_plan_make(&opt, u, 3, 4, &p), DT_ERR_ARG, "tensor c");
    u[1].tensors[1].offset += 1;
    static const dt_row_range wrong[][2] = {
        {{1, 1}, {2, 3}}, {{1, 2}, {2, 3}}, {{2, 3}, {0, 1}}, {{0, 1}, {2, 1 << 30}}};
    for (int k = 0; k < 5; k++) {
        u[1].tensors[1].row_ranges = wrong[k % 4];
        u[1].tensors[1].n_row_ranges = k < 4 ? 2 : 0;
        assert_int_equal(dt_zero_plan_make(&opt, u, 3, 4, &p), k < 4 ? DT_ERR_ARG : DT_OK);
        dt_error_clear();
    }
    free_units(u, 3);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
