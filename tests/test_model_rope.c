/* test_model_rope.c - rotary tables (algorithms.md 8.5): where the rules change. Their values in a model:
 * test_model_reference.c. */

#include "cases.h"
#include "config_fixture.h"

/* Frequency i and the scale of the table, read back from row 1: angles below 1 at position 1, so the arc tangent is
 * unique. */
static double frequency(const dt_model_config *mc, int64_t i, int64_t n_pos, double *scale)
{
    const int64_t d = mc->head_dim;
    float *table = calloc((size_t)(n_pos * d), sizeof *table);
    assert_non_null(table);
    dt_model_rope_rows(mc, false, n_pos, 0, n_pos, table);
    const double c = (double)table[d + i], s = (double)table[d + d / 2 + i];
    free(table);
    *scale = hypot(c, s);
    return atan2(s, c);
}

TEST(llama3_frequencies_are_the_worked_ones)
{
    dt_model_config mc = parsed(
        "{'model_type': 'llama', 'head_dim': 64, 'rope_theta': 500000.0, 'rope_scaling': {'rope_type': 'llama3', "
        "'factor': 32.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}}");
    static const struct {
        int i;
        double ratio;
    } WORKED[] = {{0, 1}, {14, 1}, {15, 0.605573}, {16, 0.303743}, {17, 0.103448}, {18, 0.03125}, {31, 0.03125}};
    for (size_t k = 0; k < sizeof WORKED / sizeof WORKED[0]; k++) {
        double scale;
        const double f = frequency(&mc, WORKED[k].i, 2, &scale), base = pow(5e5, -2.0 * WORKED[k].i / 64);
        assert_true(fabs(f / base - WORKED[k].ratio) < 1e-6);
        assert_true(fabs(scale - 1) < 1e-6);
    }
    dt_model_config_free(&mc);
}

TEST(longrope_chooses_its_divisors_by_the_length)
{
    dt_model_config mc =
        parsed("{'model_type': 'phi3', 'head_dim': 8, 'partial_rotary_factor': 0.5, "
               "'max_position_embeddings': 64, 'original_max_position_embeddings': 16, 'rope_scaling': "
               "{'type': 'longrope', 'short_factor': [1, 2], 'long_factor': [3, 4]}}");
    double scale;
    assert_true(dt_model_rope_constant_length(&mc) == 16 && dt_model_max_length(&mc) == 64);
    mc.head_dim = 4, mc.partial_rotary_factor = 1; /* the same table */
    assert_true(fabs(frequency(&mc, 0, 16, &scale) - 1) < 1e-7 && fabs(frequency(&mc, 1, 16, &scale) - 0.005) < 1e-7);
    assert_true(fabs(frequency(&mc, 0, 17, &scale) - 1.0 / 3) < 1e-7 &&
                fabs(frequency(&mc, 1, 17, &scale) - 0.0025) < 1e-7);
    assert_true(fabs(scale - sqrt(1.5)) < 1e-6); /* 1 + ln 4 / ln 16 */
    dt_model_config_free(&mc);
}

TEST(rotary_rows_of_a_piece_match_the_whole_table)
{
    enum { D = 8, N = 12 };
    static const char *const RULES[] = {"dynamic", "linear"};
    for (int k = 0; k < 2; k++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{'model_type': 'llama', 'head_dim': 8, 'max_position_embeddings': 5, 'rope_scaling': {'type': '%s', "
                 "'factor': 3}}",
                 RULES[k]);
        dt_model_config mc = parsed(text);
        float whole[N * D], piece[N * D], shorter[N * D];
        dt_model_rope_rows(&mc, false, N, 0, N, whole);
        dt_model_rope_rows(&mc, false, N, 4, 3, piece);
        assert_memory_equal(piece, &whole[4 * D], 3 * D * sizeof(float));
        dt_model_rope_rows(&mc, false, N - 1, 0, N, shorter); /* the dynamic rule looks at the length, no other does */
        assert_int_equal(memcmp(shorter, whole, sizeof whole) != 0, k == 0);
        dt_model_config_free(&mc);
    }
}

TEST(a_stretched_model_takes_longer_sequences)
{
    static const struct {
        const char *rope;
        int64_t longest;
    } CASES[] = {{"null", 64},
                 {"{'type': 'linear', 'factor': 4}", 256},
                 {"{'type': 'linear', 'factor': 0.5}", 64},
                 {"{'type': 'dynamic', 'factor': 2.5}", 160},
                 {"{'type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 16}", 64},
                 {"{'type': 'yarn', 'factor': 4}", 256},
                 {"{'type': 'linear', 'factor': 1e9}", INT32_MAX / 2},
                 {"{'type': 'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4}", 64}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "{'model_type': 'llama', 'max_position_embeddings': 64, 'rope_scaling': %s}",
                 CASES[i].rope);
        dt_model_config mc = parsed(text);
        assert_int_equal(dt_model_max_length(&mc), CASES[i].longest);
        dt_model_config_free(&mc);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
