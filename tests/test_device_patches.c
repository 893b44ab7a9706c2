/* test_device_patches.c - images as rows of normalised patches: bit-identical to the contract for all shapes and types.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

static uint8_t *random_pixels(int64_t n, uint64_t seed)
{
    uint8_t *pixels = malloc((size_t)n + 1);
    assert_non_null(pixels);
    for (int64_t i = 0; i < n; i++) pixels[i] = (uint8_t)dt_mix64(dt_mix64(seed) + (uint64_t)i);
    return pixels;
}

static ref_array room(const dt_patches *p)
{
    return ref_new(p->dt, p->n_images * dt_patches_rows(p) * dt_patches_width(p));
}

/* Each number of a small image is a word for its place: 100 y + 10 x + c. */
TEST(patch_elements_are_in_the_right_positions)
{
    fixture *f = *state;
    uint8_t pixels[3 * 3 * 3];
    for (int y = 0; y < 3; y++)
        for (int x = 0; x < 3; x++)
            for (int c = 0; c < 3; c++) pixels[(y * 3 + x) * 3 + c] = (uint8_t)(100 * y + 10 * x + c);
    const dt_patches ones = {
        .n_images = 1, .size = 3, .patch = 1, .lead = 1, .scale = {1, 2, -1}, .shift = {0, 0.5f, 0}, .dt = DT_F32};
    const float want_ones[10][3] = {{0, 0, 0},           {0, 2.5f, -2},       {10, 22.5f, -12},    {20, 42.5f, -22},
                                    {100, 202.5f, -102}, {110, 222.5f, -112}, {120, 242.5f, -122}, {200, 402.5f, -202},
                                    {210, 422.5f, -212}, {220, 442.5f, -222}};
    float got[10][3] = {{0}};
    RUN(patches, &ones, ARR(pixels, 27), ARR(&got[0][0], 30));
    assert_memory_equal(got, want_ones, sizeof got);

    /* one patch; the third line and column are in none */
    const dt_patches two = {.n_images = 1, .size = 3, .patch = 2, .scale = {1, 1, 1}, .dt = DT_F32};
    const float want_two[12] = {0, 10, 100, 110, 1, 11, 101, 111, 2, 12, 102, 112};
    RUN(patches, &two, ARR(pixels, 27), ARR(&got[0][0], 12));
    assert_memory_equal(got, want_two, sizeof want_two);
}

TEST(all_shapes_have_the_bits_of_the_contract)
{
    fixture *f = *state;
    static const struct {
        int64_t n_images, size, patch;
    } shapes[] = {{1, 1, 1},  {3, 7, 2},   {2, 13, 3},  {2, 29, 14},  {1, 40, 20}, {2, 33, 16},
                  {4, 32, 8}, {1, 70, 14}, {1, 65, 32}, {1, 129, 64}, {5, 5, 5},   {0, 28, 14}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int way = 0; way < 2 * N_TYPES; way++) {
            const dt_patches p = {.n_images = shapes[s].n_images,
                                  .size = shapes[s].size,
                                  .patch = shapes[s].patch,
                                  .lead = way % 2,
                                  .scale = {0.014598426f, -0.015007764f, 1.0f / 255},
                                  .shift = {-1.7922626f, 1.7520971f, -0.5f},
                                  .dt = types[way / 2]};
            const int64_t n_pixels = p.n_images * p.size * p.size * 3;
            uint8_t *pixels = random_pixels(n_pixels, s);
            ref_array out = room(&p), want = room(&p);
            float *exact = malloc(((size_t)want.n + 1) * sizeof *exact);
            assert_non_null(exact);
            ref_patches(&p, pixels, exact);
            for (int64_t i = 0; i < want.n; i++) dt_set_element(want.p, p.dt, i, exact[i]);
            RUN(patches, &p, ARR(pixels, n_pixels), ON(out));
            assert_memory_equal(out.p, want.p, ref_bytes(&want));
            ref_drop(&out), ref_drop(&want), free(exact), free(pixels);
        }
}

/* scale and shift nearly cancel: the remainder is the matmul's last bits, which two roundings would have lost. */
TEST(a_number_is_rounded_once)
{
    fixture *f = *state;
    uint8_t pixels[3] = {251, 127, 3};
    dt_patches p = {.n_images = 1, .size = 1, .patch = 1, .scale = {1.0f / 3, 1.0f / 255, 0.1f}, .dt = DT_F32};
    float got[3] = {0};
    for (int c = 0; c < 3; c++) p.shift[c] = -((float)pixels[c] * p.scale[c]);
    RUN(patches, &p, ARR(pixels, 3), ARR(got, 3));
    for (int c = 0; c < 3; c++) {
        const double left = (double)pixels[c] * (double)p.scale[c] + (double)p.shift[c]; /* exact */
        assert_true(left != 0 && (double)got[c] == left);
    }
}

TEST(inconsistent_values_are_refused)
{
    fixture *f = *state;
    uint8_t pixels[4 * 4 * 3] = {0};
    float out[60] = {0};
    for (int i = 0; i < 8; i++) {
        dt_patches p = {.n_images = 1, .size = 4, .patch = 2, .lead = 1, .scale = {1, 1, 1}, .dt = DT_F32};
        if (i == 0) p.n_images = -1;
        if (i == 1) p.patch = 0;
        if (i == 2) p.patch = 5;
        if (i == 3) p.size = 0;
        if (i == 4) p.size = DT_MAX_IMAGE_SIZE + 1;
        if (i == 5) p.lead = 2;
        if (i == 6) p.lead = -1;
        if (i == 7) p.dt = DT_I8;
        assert_fails(TRY(patches, &p, ARR(pixels, 48), ARR(out, 60)), DT_ERR_ARG, i == 7 ? "int8" : "patches");
    }
}

int main(void) { return run_listed(NULL, open_device, close_device); }
