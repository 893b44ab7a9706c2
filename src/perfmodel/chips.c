/* chips.c - the one table of chips.
 *
 * Sources, NVIDIA's: A100 Tensor Core GPU data sheet (2021); H100 Tensor Core GPU data sheet (2022; NVL: 2024); H200
 * Tensor Core GPU data sheet (2024); GH200 Grace Hopper Superchip data sheet (2023); HGX B200 data sheet (2025),
 * whose figures for eight GPUs are divided by eight. For Hopper and Blackwell, data sheets state matmuls with
 * sparsity. The dense rate is half of it. They state NVLink and PCIe for both directions. One direction is half of
 * it. Networks: DGX A100 has a 200 Gbit/s adapter for each GPU (HDR). DGX H100, H200 and B200 have one of 400 Gbit/s
 * (NDR). The same is assumed for other chips. */
#include "dtrain/perfmodel/chips.h"
#include <ctype.h>
#include <string.h>
#include <strings.h>

/* The first chip with matching words is taken. */
#define CHIPS(X)                                                                                                       \
    /* name, title, words, 16 bit, TF32, fp32 (TFLOP/s), memory (GB, GB/s), NVLink, host, network (GB/s) */            \
    X("h100-pcie", "H100 PCIe, 80 GB", "H100", "PCIe", NULL, 756, 378, 51, 80, 2000, 300, 64, 50)                      \
    X("h100-nvl", "H100 NVL, 94 GB", "H100", "NVL", NULL, 835.5, 417.5, 60, 94, 3900, 300, 64, 50)                     \
    X("h100", "H100 SXM, 80 GB", "H100", NULL, NULL, 989.4, 494.7, 66.9, 80, 3350, 450, 64, 50)                        \
    X("h200-nvl", "H200 NVL, 141 GB", "H200", "NVL", NULL, 835.5, 417.5, 60, 141, 4800, 450, 64, 50)                   \
    X("h200", "H200 SXM, 141 GB", "H200", NULL, NULL, 989.4, 494.7, 66.9, 141, 4800, 450, 64, 50)                      \
    X("gh200", "GH200, 96 GB", "GH200", NULL, NULL, 989.4, 494.7, 66.9, 96, 4000, 450, 450, 50)                        \
    X("b200", "B200 SXM, 180 GB", "B200", NULL, NULL, 2250, 1125, 75, 180, 7700, 900, 64, 50)                          \
    X("a100-40gb-pcie", "A100 PCIe, 40 GB", "A100", "PCIe", "40GB", 312, 156, 19.5, 40, 1555, 300, 32, 25)             \
    X("a100-pcie", "A100 PCIe, 80 GB", "A100", "PCIe", NULL, 312, 156, 19.5, 80, 1935, 300, 32, 25)                    \
    X("a100-40gb", "A100 SXM, 40 GB", "A100", "40GB", NULL, 312, 156, 19.5, 40, 1555, 300, 32, 25)                     \
    X("a100", "A100 SXM, 80 GB", "A100", "80GB", NULL, 312, 156, 19.5, 80, 2039, 300, 32, 25)

#define ROW(name, title, word0, word1, word2, half, tf32, fp32, size, memory, nvlink, host, network)                   \
    {name,       title,        {word0, word1, word2}, half * 1e12, tf32 * 1e12,  fp32 * 1e12,                          \
     size * 1e9, memory * 1e9, nvlink * 1e9,          host * 1e9,  network * 1e9},
static const dt_chip chips[] = {CHIPS(ROW)};
enum { N_CHIPS = sizeof chips / sizeof chips[0] };

const dt_chip *dt_chip_named(const char *name)
{
    for (int i = 0; i < N_CHIPS; i++)
        if (!strcasecmp(chips[i].name, name)) return &chips[i];
    return NULL;
}

/* Whole words must match: neither an H20 nor a GH200 is an H200. */
static bool has_word(const char *text, const char *word)
{
    const size_t len = strlen(word);
    for (const char *at = text; *at; at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !strncasecmp(at, word, len) &&
            !isalnum((unsigned char)at[len]))
            return true;
    return false;
}

bool dt_chip_is_part(const char *driver_name) { return driver_name && has_word(driver_name, "MIG"); }

/* A MIG part has other peaks. */
static bool is_called(const dt_chip *chip, const char *driver_name)
{
    if (dt_chip_is_part(driver_name)) return false;
    for (int i = 0; i < 3 && chip->words[i]; i++)
        if (!has_word(driver_name, chip->words[i])) return false;
    return true;
}

const dt_chip *dt_chip_of(const char *driver_name)
{
    for (int i = 0; driver_name && i < N_CHIPS; i++)
        if (is_called(&chips[i], driver_name)) return &chips[i];
    return NULL;
}

#define NAME(name, ...) ", " name
const char *dt_chip_names(void) { return &CHIPS(NAME)[2]; }

double dt_chip_flops(const dt_chip *chip, dt_dtype dt) { return dt == DT_F32 ? chip->float_flops : chip->half_flops; }
