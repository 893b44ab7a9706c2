/* images.c - images of a rollout's prompts. They stay in the dataset: generation reads those of a prompt once for its
 * completions, and a micro-batch once for its rows with the same prompt, so the tower computes them as often. */
#include "rollout_private.h"
#include <string.h>

bool rollout_has_cells(const dt_rollout *r, const dt_task *t)
{
    return r->max_images > 0 && t->mc->vision && dt_vision_has_cells(t->mc->vision);
}

int64_t rollout_sample_of(const dt_rollout *r, const dt_rollout_row *row)
{
    return r->replay.in ? r->replay.line[row->prompt].sample : row->prompt;
}

static int32_t cells_of(uint32_t grid) { return (int32_t)(dt_grid_rows(grid) * dt_grid_columns(grid)); }

dt_err rollout_count_images(dt_rollout *r, const dt_rollout_row *row, int32_t *n_cells, dt_sequence *q)
{
    int32_t n = 0;
    if (r->max_images == 0) return DT_OK;
    DT_TRY(dt_loader_prompt_grids(r->prompts, rollout_sample_of(r, row), r->max_images, r->grid, &n));
    q->n_images = n;
    if (!r->n_cells) return DT_OK;
    q->n_images = 0, q->n_cells = n_cells;
    for (int32_t i = 0; i < n; i += cells_of(r->grid[i])) n_cells[q->n_images++] = cells_of(r->grid[i]);
    return DT_OK;
}

dt_err rollout_image(void *of, const dt_sequence *q, int32_t k, uint8_t *to, uint32_t *grid)
{
    dt_rollout *r = of;
    const dt_rollout_row *row = &r->row[r->first_sampled + (q - r->sequence)];
    int32_t first = 0, n;
    DT_TRY(dt_loader_prompt_grids(r->prompts, rollout_sample_of(r, row), r->max_images, r->grid, &n));
    for (int32_t i = 0; i < k; i++) first += q->n_cells ? q->n_cells[i] : 1;
    n = q->n_cells ? q->n_cells[k] : 1;
    memcpy(grid, r->grid + first, (size_t)n * sizeof *grid);
    return dt_loader_prompt_images(r->prompts, rollout_sample_of(r, row), first, n, to);
}

dt_err rollout_add_images(dt_rollout *r, int64_t row)
{
    dt_batch *b = &r->batch;
    dt_batch_images *to = dt_images_of(b);
    const int64_t sample = rollout_sample_of(r, &r->row[row]);
    const int32_t s = b->n_seq - 1;
    int32_t n;
    if (!to) return DT_OK;
    for (int32_t k = 0; k < s; k++) {
        if (rollout_sample_of(r, &r->row[r->rows_of_micro[k]]) != sample) continue;
        to->first[s] = to->first[k], to->count[s] = to->count[k];
        return DT_OK;
    }
    const int32_t at = to->n;
    DT_TRY(dt_loader_prompt_grids(r->prompts, sample, r->max_images, r->grid, &n));
    uint8_t *pixels = dt_images_append(to, s, n);
    memcpy(to->grid + at, r->grid, (size_t)n * sizeof *r->grid);
    return dt_loader_prompt_images(r->prompts, sample, 0, n, pixels);
}
