/* test_loss_scale.c - the loss scale of fp16: the trace of algorithms.md's appendix, a transcription of 9.3 on random
 * overflows, and a state that is saved and resumed anywhere. */
#include "cases.h"
#include "dtrain/optim/optim.h"

static dt_loss_scale scale_of(const char *keys)
{
    char text[512];
    dt_config cfg = {0};
    dt_loss_scale s;
    snprintf(text, sizeof text, "[precision]\ndtype = fp16\n%s", keys);
    assert_int_equal(dt_config_parse(&cfg, "test.ini", text, 0, NULL), DT_OK);
    assert_int_equal(dt_loss_scale_make(&s, &cfg), DT_OK);
    dt_config_free(&cfg);
    return s;
}

TEST(the_keys_are_deepspeeds)
{
    dt_loss_scale s = scale_of("");
    assert_true(s.scaled && s.dynamic && s.scale == 65536 && s.window == 1000 && s.hysteresis == 2 && s.least == 1 &&
                !s.consecutive && s.iter == 0 && s.last == -1);
    s = scale_of("loss_scale = 128\n");
    assert_true(s.scaled && !s.dynamic && s.scale == 128);
    dt_config cfg = {0};
    assert_int_equal(dt_config_parse(&cfg, "test.ini", "[precision]\ndtype = bf16\nloss_scale = 4\n", 0, NULL), DT_OK);
    assert_int_equal(dt_loss_scale_make(&s, &cfg), DT_OK);
    assert_true(!s.scaled && s.scale == 1);
    dt_config_free(&cfg);
    assert_int_equal(dt_config_parse(&cfg, "test.ini",
                                     "[precision]\ndtype = fp16\ninitial_scale_power = 2\nmin_loss_scale = 8\n", 0,
                                     NULL),
                     DT_OK);
    assert_fails(dt_loss_scale_make(&s, &cfg), DT_ERR_USAGE, "min_loss_scale");
    dt_config_free(&cfg);
}

TEST(the_worked_example)
{
    static const double after[12] = {65536, 32768, 32768, 32768, 32768,  32768,
                                     65536, 65536, 65536, 65536, 131072, 131072};
    dt_loss_scale s = scale_of("loss_scale_window = 4\n");
    for (int i = 0; i < 12; i++) {
        assert_true(dt_loss_scale_next(&s, i == 0 || i == 1 || i == 11));
        assert_true(s.scale == after[i]);
        if (i == 0 || i == 11) assert_int_equal(s.overflows_left, 1);
    }
}

TEST(a_static_scale_stays)
{
    dt_loss_scale s = scale_of("loss_scale = 1000\nloss_scale_window = 1\n");
    for (int i = 0; i < 10; i++) assert_true(dt_loss_scale_next(&s, i % 3 == 0) && s.scale == 1000);
}

TEST(the_smallest_scale_cannot_be_lowered)
{
    dt_loss_scale s = scale_of("initial_scale_power = 3\nmin_loss_scale = 3\nhysteresis = 1\n");
    assert_true(dt_loss_scale_next(&s, true) && s.scale == 4);
    assert_true(dt_loss_scale_next(&s, true) && s.scale == 3);
    assert_false(dt_loss_scale_next(&s, true));
    assert_true(s.scale == 3);
}

/* Section 9.3, word by word. */
typedef struct plain {
    double scale, min;
    int64_t iter, last, hyst, h, window;
    bool consecutive;
} plain;

static bool plain_next(plain *p, bool overflow)
{
    bool stop = false;
    if (overflow) {
        if (p->h == 1 || p->hyst == 1) {
            if (p->scale == p->min)
                stop = true;
            else
                p->scale = p->scale / 2 > p->min ? p->scale / 2 : p->min;
        } else {
            p->hyst = p->hyst - 1;
        }
        p->last = p->iter;
    } else {
        if (p->consecutive) p->hyst = p->h;
        const int64_t k = p->iter - p->last - 1;
        if (k > 0 && k % p->window == 0) {
            p->scale = 2 * p->scale;
            p->hyst = p->h;
        }
    }
    p->iter = p->iter + 1;
    return !stop;
}

/* Each run is also saved and resumed after every seventh step. */
TEST(random_overflows_follow_the_definition)
{
    uint64_t draw = 0;
    for (int run = 0; run < 400; run++) {
        const int window = 1 + (int)(dt_mix64(++draw) % 6), h = 1 + (int)(dt_mix64(++draw) % 4),
                  power = (int)(dt_mix64(++draw) % 20), rare = 1 + (int)(dt_mix64(++draw) % 8);
        const bool consecutive = dt_mix64(++draw) & 1;
        char keys[256];
        snprintf(keys, sizeof keys,
                 "loss_scale_window = %d\nhysteresis = %d\ninitial_scale_power = %d\nconsecutive_hysteresis = %s\n",
                 window, h, power, consecutive ? "true" : "false");
        dt_loss_scale s = scale_of(keys);
        plain p = {ldexp(1, power), 1, 0, -1, h, h, window, consecutive};
        for (int i = 0; i < 100; i++) {
            const bool overflow = dt_mix64(++draw) % (uint64_t)rare == 0, want = plain_next(&p, overflow);
            assert_int_equal(dt_loss_scale_next(&s, overflow), want);
            assert_true(s.scale == p.scale && s.iter == p.iter && s.last == p.last && s.overflows_left == p.hyst);
            if (!want) break;
            if (i % 7) continue;
            const dt_loss_scale saved = {
                .scale = s.scale, .iter = s.iter, .last = s.last, .overflows_left = s.overflows_left};
            s = scale_of(keys);
            dt_loss_scale_resume(&s, &saved);
        }
    }
}

TEST(a_run_without_a_dynamic_scale_leaves_none)
{
    const dt_loss_scale none = {.scale = 1, .last = -1}, dynamic = {32, .iter = 9, .last = 3, .overflows_left = 1};
    dt_loss_scale s = scale_of("");
    dt_loss_scale_resume(&s, &none);
    assert_true(s.scale == 65536 && s.overflows_left == 2);
    s = scale_of("loss_scale = 8\n");
    dt_loss_scale_resume(&s, &dynamic);
    assert_true(s.scale == 8);
    s = scale_of("min_loss_scale = 64\nhysteresis = 1\n");
    dt_loss_scale_resume(&s, &dynamic);
    assert_true(s.scale == 64 && s.iter == 9 && s.last == 3 && s.overflows_left == 1);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
