/* test_optim.c - optimizers, schedules and learning rates by name: pure functions of the configuration. */
#include "cases.h"
#include "dtrain/optim/optim.h"

static dt_config config(const char *text)
{
    dt_config cfg = {0};
    assert_int_equal(dt_config_parse(&cfg, "test.ini", text, 0, NULL), DT_OK);
    return cfg;
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

TEST(the_configuration_names_an_optimizer)
{
    const struct {
        const char *text;
        const dt_optimizer_ops *want;
    } cases[] = {{"", &dt_optimizer_adamw},
                 {"[optimizer]\ntype = AdamW\n", &dt_optimizer_adamw},
                 {"[optimizer]\ntype = adamw_torch_fused\n", &dt_optimizer_adamw},
                 {"[optimizer]\ntype = Adam\n", &dt_optimizer_adam},
                 {"[optimizer]\ntype = SGD\n", &dt_optimizer_sgd},
                 {"[optimizer]\ntype = sgd\nmomentum = 0\n", &dt_optimizer_sgd_plain}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg = config(cases[i].text);
        assert_ptr_equal(dt_optimizer_of(&cfg), cases[i].want);
        dt_config_free(&cfg);
    }
}

TEST(settings_are_those_of_the_keys)
{
    dt_optimizer_step s;
    dt_config cfg = config("[optimizer]\nbetas = 0.8,0.95\neps = 1e-7\nmomentum = 0.5\nweight_decay = 0.1\n");
    assert_int_equal(dt_optimizer_settings(&s, &cfg), DT_OK);
    assert_true(s.beta1 == 0.8 && s.beta2 == 0.95 && s.eps == 1e-7 && s.momentum == 0.5 && s.weight_decay == 0.1);
    dt_config_free(&cfg);
    const char *const bad[] = {"[optimizer]\nbetas = 0.9\n", "[optimizer]\nbetas = 0.9, 1\n",
                               "[optimizer]\nbetas = 0.9, 0.99, 0\n"};
    for (int i = 0; i < 3; i++) {
        cfg = config(bad[i]);
        assert_fails(dt_optimizer_settings(&s, &cfg), DT_ERR_USAGE, "test.ini:2: [optimizer] betas");
        dt_config_free(&cfg);
        dt_error_clear();
    }
}

static dt_adamw asked; /* of the device */

static dt_err keep_adamw(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *p, float *m,
                         float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *stream)
{
    asked = *opt;
    return DT_OK;
}

/* Of equal gradients the mean is that gradient, at any step: what is divided by fix is an average. The weight that a
 * new one has is exact in fp32, 1 - beta, and fix is rounded once, to 2^-24 of itself. */
TEST(averages_are_whole_from_the_first_step_on)
{
    const dt_device_ops ops = {.adamw_step = keep_adamw};
    const double betas[] = {0.9, 0.999, 0.99999};
    dt_device dev = {.ops = &ops};
    const dt_update_range none = {0};
    for (int k = 0; k < 3; k++) {
        double m = 0, v = 0;
        for (int t = 1; t <= 100; t++) {
            const dt_optimizer_step s = {.beta1 = betas[k], .beta2 = betas[k], .t = t};
            assert_int_equal(dt_optimizer_adamw.step(&dev, &s, &none), DT_OK);
            m = (double)asked.beta1 * m + (double)(1 - asked.beta1);
            v = (double)asked.beta2 * v + (double)(1 - asked.beta2);
            assert_true(fabs(m / (double)asked.fix1 - 1) < 0x1p-23 && fabs(v / (double)asked.fix2 - 1) < 0x1p-23);
        }
    }
}

/* ---- schedules --------------------------------------------------------------------------------------------------- */

static void assert_lr(const char *text, int64_t total, int64_t done, double want)
{
    dt_config cfg = config(text);
    dt_schedule s;
    dt_schedule_make(&s, &cfg, total, 8);
    assert_true(fabs(dt_schedule_lr(&s, cfg.optimizer_lr, done) - want) < 1e-6); /* the worked example has six digits */
    dt_config_free(&cfg);
}

TEST(schedules_give_the_values_of_the_example)
{
    const char *cosine = "[optimizer]\nlr = 1\n[scheduler]\ntype = cosine\nwarmup_steps = 10\n";
    const char *linear = "[optimizer]\nlr = 1\n[scheduler]\ntype = linear\nwarmup_steps = 10\n";
    const int64_t s[] = {0, 5, 10, 55, 99, 100};
    const double want_cosine[] = {0, 0.5, 1, 0.5, 0.000305, 0}, want_linear[] = {0, 0.5, 1, 0.5, 0.011111, 0};
    for (int i = 0; i < 6; i++) {
        assert_lr(cosine, 100, s[i], want_cosine[i]);
        assert_lr(linear, 100, s[i], want_linear[i]);
    }
    const char *wsd =
        "[optimizer]\nlr = 1\n[scheduler]\ntype = wsd\nwarmup_steps = 10\ndecay_ratio = 0.2\nmin_lr_ratio = 0.1\n";
    assert_lr(wsd, 100, 79, 1);
    assert_lr(wsd, 100, 80, 1);
    assert_lr(wsd, 100, 90, 0.55); /* half way down from 1 to 0.1 */
    assert_lr(wsd, 100, 100, 0.1);
    assert_lr("[optimizer]\nlr = 1\n[scheduler]\ntype = wsd\ndecay_ratio = 0.25\ndecay_type = sqrt\n", 100, 84,
              1 - sqrt(9.0 / 25));
    /* ceil(4.5) = 5 steps of warm-up */
    assert_lr("[optimizer]\nlr = 1\n[scheduler]\ntype = constant\nwarmup_ratio = 0.05\n", 90, 4, 0.8);
    assert_lr("[optimizer]\nlr = 0.5\nlr_scale_rule = linear\nlr_base_batch_size = 4\n[scheduler]\ntype = constant\n",
              10, 3, 1);
    assert_lr("[optimizer]\nlr = 0.5\nlr_scale_rule = sqrt\nlr_base_batch_size = 2\n[scheduler]\ntype = constant\n", 10,
              3, 1);
}

/* A run of `was` steps, extended to `total` before update `next`. */
static dt_schedule extended(const char *text, int64_t was, int64_t total, int64_t next)
{
    dt_config cfg = config(text);
    dt_schedule before, s;
    dt_schedule_make(&before, &cfg, was, 8);
    dt_schedule_make(&s, &cfg, total, 8);
    dt_schedule_extend(&s, &cfg, &before, next - 1, next);
    dt_config_free(&cfg);
    return s;
}

#define ON(how, type) "[optimizer]\nlr = 1\n[scheduler]\non_extend = " how "\ntype = " type "\n"

TEST(an_extension_gives_the_values_of_the_example)
{
    static const struct {
        const char *text;
        int64_t was, total, next, done;
        double want;
    } cases[] = {
        {ON("rescale", "linear"), 10, 20, 10, 10, 0.5},
        {ON("continue", "linear"), 10, 20, 10, 10, 0.1}, /* the rate of the last update, then a line to 0 */
        {ON("continue", "linear"), 10, 20, 10, 15, 0.05},
        {ON("continue", "linear"), 10, 20, 10, 20, 0},
        {ON("continue", "linear"), 20, 10, 5, 5, 0.8}, /* fewer steps: no jump, either */
        {ON("continue", "linear"), 20, 10, 5, 10, 0},
        {ON("continue", "cosine") "min_lr_ratio = 0.1\n", 100, 200, 51, 51, 0.55},
        {ON("continue", "cosine") "min_lr_ratio = 0.1\n", 100, 251, 51, 151, 0.325},
        {ON("continue", "cosine") "min_lr_ratio = 0.1\n", 100, 251, 51, 251, 0.1},
        {ON("continue", "constant") "warmup_ratio = 0.1\n", 10, 200, 10, 10, 1}, /* rescale warms up again */
        {ON("rescale", "constant") "warmup_ratio = 0.1\n", 10, 200, 10, 10, 0.5},
        {ON("continue", "linear") "warmup_ratio = 0.1\n", 100, 1000, 5, 5, 0.5}, /* a warm-up keeps its length */
        {ON("continue", "linear") "warmup_ratio = 0.1\n", 100, 1000, 5, 10, 1},
        {ON("continue", "wsd") "decay_ratio = 0.2\n", 100, 150, 50, 129, 1},
        {ON("continue", "wsd") "decay_ratio = 0.2\n", 100, 150, 50, 140, 0.5},
        {ON("continue", "wsd") "decay_ratio = 0.2\n", 100, 191, 91, 171, 0.5}, /* in its decay: held, then decayed */
        {ON("continue", "wsd") "decay_ratio = 0.2\n", 100, 191, 91, 181, 0.25},
        {ON("rewarm", "linear") "warmup_steps = 4\n", 14, 34, 14, 14, 0.1},
        {ON("rewarm", "linear") "warmup_steps = 4\n", 14, 34, 14, 16, 0.55},
        {ON("rewarm", "linear") "warmup_steps = 4\n", 14, 34, 14, 18, 1},
        {ON("rewarm", "linear") "warmup_steps = 4\n", 14, 34, 14, 26, 0.5},
        {ON("rewarm", "linear") "warmup_ratio = 0.1\n", 10, 50, 10, 14, 1}, /* of the steps that are left */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_schedule s = extended(cases[i].text, cases[i].was, cases[i].total, cases[i].next);
        const double lr = dt_schedule_lr(&s, 1, cases[i].done);
        if (fabs(lr - cases[i].want) > 1e-12) fail_msg("case %zu: expected %g, found %g", i, cases[i].want, lr);
    }
}

/* Extended twice: each time without a jump. */
TEST(extensions_follow_each_other)
{
    static const char *const types[] = {ON("continue", "linear"), ON("continue", "cosine"), ON("continue", "wsd"),
                                        ON("continue", "constant")};
    for (int k = 0; k < 4; k++) {
        dt_config cfg = config(types[k]);
        dt_schedule s = extended(types[k], 100, 150, 95), more;
        dt_schedule_make(&more, &cfg, 300, 8);
        dt_schedule_extend(&more, &cfg, &s, 147, 148);
        assert_true(dt_schedule_lr(&more, 1, 148) == dt_schedule_lr(&s, 1, 147));
        for (int i = 148; i < 300; i++) assert_true(dt_schedule_lr(&more, 1, i + 1) <= dt_schedule_lr(&more, 1, i));
        dt_config_free(&cfg);
    }
}

/* ---- learning rates by name -------------------------------------------------------------------------------------- */

enum { N_UNITS = 3 };

static void make_units(dt_unit units[N_UNITS])
{
    static const char *const names[N_UNITS][4] = {
        {"model.embed_tokens.weight"},
        {"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.bias",
         "model.layers.1.mlp.up_proj.weight"},
        {"model.layers.10.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"}};
    const int64_t n = 3;
    memset(units, 0, N_UNITS * sizeof *units);
    for (int u = 0; u < N_UNITS; u++)
        for (int i = 0; names[u][i]; i++)
            assert_int_equal(dt_unit_add(&units[u], names[u][i], 1, &n, true, true, 0, 0), DT_OK);
}

static dt_err assign(const char *list, dt_lr_groups *g, dt_unit *units)
{
    char text[400];
    snprintf(text, sizeof text, "[optimizer]\nlr = 0.5\nlr_groups = %s\n", list);
    dt_config cfg = config(text);
    dt_err err = dt_lr_groups_make(g, &cfg);
    if (err == DT_OK) err = dt_lr_groups_assign(g, &cfg, units, N_UNITS);
    dt_config_free(&cfg);
    return err;
}

/* The group of each tensor, in order, as a text. */
TEST(patterns_match_complete_name_components)
{
    const struct {
        const char *list, *groups;
    } cases[] = {
        {"", "0000000"},
        {"lm_head:1e-3", "0000001"},
        {"layers.1:1e-3", "0111000"}, /* not layers.10 */
        {"layers.1*:1e-3", "0111100"},
        {"layers.?.mlp:1e-3", "0001000"},
        {"weight:1e-3", "1101111"},
        {"model:1e-3", "1111110"},
        {"q_proj.weight:1e-3", "0100000"},
        {"model.norm.weight:0", "0000010"},
        {"*_proj:1e-3", "0111100"},
        {"layers.*.up_proj:1e-3", "0001100"},
        {"[e]*_tok*:1e-3", "1000000"},
        {"bias:1, q_proj:2, model:3", "3213330"}, /* the first that fits */
    };
    dt_unit units[N_UNITS];
    make_units(units);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dt_lr_groups g;
        char found[8] = "";
        assert_int_equal(assign(cases[c].list, &g, units), DT_OK);
        for (int u = 0, n = 0; u < N_UNITS; u++)
            for (int i = 0; i < units[u].n_tensors; i++) found[n++] = (char)('0' + units[u].tensors[i].lr_group);
        assert_string_equal(found, cases[c].groups);
        assert_true(g.group[0].lr == 0.5);
    }
    dt_lr_groups g;
    assert_fails(assign("a:1,b:1", &g, units), DT_ERR_USAGE, "");
    assert_int_equal(assign("bias : 1e-2, layers.1*:3", &g, units), DT_OK);
    assert_true(g.n == 3 && g.group[1].lr == 1e-2 && g.group[2].lr == 3);
    assert_string_equal(g.group[1].metric, "lr/bias");
    assert_string_equal(g.group[2].metric, "lr/layers.1*");
    for (int u = 0; u < N_UNITS; u++) dt_unit_free(&units[u]);
}

TEST(lora_plus_multiplies_the_rates_of_b_and_of_vectors)
{
    static const char *const names[] = {"q.lora_A.weight", "q.lora_B.weight", "embed.lora_embedding_B", "norm.weight"};
    static const char *const groups[] = {"lr", "lr/lora_B", "lr/embed", "lr/lora_B"};
    const int64_t shape[] = {2, 3};
    const double lr[] = {0.5, 2, 1e-2, 2};
    dt_unit unit = {0};
    dt_lr_groups g;
    dt_config cfg = config("[optimizer]\nlr = 0.5\nlr_groups = embed:1e-2\n[lora]\nr = 2\nlr_ratio = 4\n");
    for (int i = 0; i < 4; i++)
        assert_int_equal(dt_unit_add(&unit, names[i], i < 3 ? 2 : 1, shape, true, true, 0, 0), DT_OK);
    assert_int_equal(dt_lr_groups_make(&g, &cfg), DT_OK);
    assert_int_equal(dt_lr_groups_assign(&g, &cfg, &unit, 1), DT_OK);
    assert_int_equal(g.n, 3);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(g.group[unit.tensors[i].lr_group].metric, groups[i]);
        assert_true(g.group[unit.tensors[i].lr_group].lr == lr[i]);
    }
    dt_unit_free(&unit);
    dt_config_free(&cfg);
}

static bool is_no_head(void *self, const dt_tensor *t) { return strcmp(t->name, "lm_head.weight") != 0; }

TEST(a_group_without_tensors_names_the_nearest)
{
    const struct {
        const char *list, *must_say;
    } cases[] = {
        {"lm_haed:1",
         "test.ini:3: [optimizer] lr_groups: 'lm_haed' matches no trained tensor; the nearest names are lm_head, "},
        {"proj:1", "'proj' matches no trained tensor; the nearest names are "},
        {"lm:1", "the nearest names are lm_head, "}, /* a part of it, though a slip of wte is fewer letters away */
        {"layers.2:1", "the nearest names are layers.1, "},
        {"layers:1, layers.1:2", "every tensor that 'layers.1' matches belongs to an earlier group"},
        {"lm_head", "expected pattern:rate with a rate from 0 to 10, such as lm_head:1e-4, found 'lm_head'"},
        {"lm_head:", "found 'lm_head:'"},
        {":1", "found ':1'"},
        {"lm_head:11", "found 'lm_head:11'"},
        {"lm_head:-1", "found 'lm_head:-1'"},
        {"lm_head:1x", "found 'lm_head:1x'"},
        {"lm_head:nan", "found 'lm_head:nan'"},
        {"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1,k:1,l:1,m:1,n:1,o:1,p:1",
         "expected at most 15 groups, found more at 'p:1'"},
    };
    dt_unit units[N_UNITS];
    make_units(units);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dt_lr_groups g;
        assert_int_equal(assign(cases[c].list, &g, units), DT_ERR_USAGE);
        if (!strstr(dt_error_message(), cases[c].must_say)) fail_msg("%s", dt_error_message());
        dt_error_clear();
    }
    dt_lr_groups g;
    dt_units_choose_trained(units, N_UNITS, is_no_head, NULL);
    assert_fails(assign("lm_head:1", &g, units), DT_ERR_USAGE, "'lm_head' matches only frozen tensors");
    assert_int_equal(assign("weight:1", &g, units), DT_OK);
    assert_int_equal(units[2].tensors[2].lr_group, 0);
    for (int u = 0; u < N_UNITS; u++) dt_unit_free(&units[u]);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
