/* test_chips.c - the table of chips: names that drivers give find their row, others find none. */

#include "cases.h"
#include "dtrain/perfmodel/chips.h"

TEST(a_driver_s_name_finds_its_chip)
{
    static const char *const known[][2] = {{"NVIDIA H100 80GB HBM3", "h100"},
                                           {"NVIDIA H100 PCIe", "h100-pcie"},
                                           {"NVIDIA H100 NVL", "h100-nvl"},
                                           {"NVIDIA H200", "h200"},
                                           {"NVIDIA H200 NVL", "h200-nvl"},
                                           {"NVIDIA GH200 480GB", "gh200"},
                                           {"NVIDIA B200", "b200"},
                                           {"NVIDIA A100-SXM4-80GB", "a100"},
                                           {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                                           {"NVIDIA A100 80GB PCIe", "a100-pcie"},
                                           {"NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const dt_chip *chip = dt_chip_of(known[i][0]);
        assert_non_null(chip);
        assert_string_equal(chip->name, known[i][1]);
        assert_ptr_equal(chip, dt_chip_named(known[i][1]));
        assert_non_null(strstr(dt_chip_names(), known[i][1]));
    }
}

/* Neither a chip that is not in the table nor a part of one has the peaks of another. */
TEST(other_names_find_none)
{
    static const char *const unknown[] = {"",
                                          "NVIDIA H20",
                                          "NVIDIA GeForce RTX 4090",
                                          "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                                          "NVIDIA A100-SXM-64GB",
                                          "CUDA simulator"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) assert_null(dt_chip_of(unknown[i]));
    assert_null(dt_chip_of(NULL));
    assert_true(dt_chip_is_part("NVIDIA A100-SXM4-40GB MIG 3g.20gb"));
    assert_false(dt_chip_is_part("NVIDIA A100-SXM4-40GB") || dt_chip_is_part(NULL));
    assert_null(dt_chip_named("h10"));
}

/* fp32 matmuls are not rounded to TF32, so their peak is that of the processors. */
TEST(the_peak_is_that_of_the_type)
{
    const dt_chip *h100 = dt_chip_named("H100");
    assert_true(dt_chip_flops(h100, DT_BF16) == 989.4 * 1e12 && dt_chip_flops(h100, DT_F16) == 989.4 * 1e12);
    assert_true(dt_chip_flops(h100, DT_F32) == 66.9 * 1e12);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
