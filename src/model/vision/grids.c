/* grids.c - images that are grids of cells: their order in the tower, and the positions of their patches and
 * placeholders.
 *
 *     cells       in the order of the batch: image by image, row by row
 *     places      the order in which the tower computes them: image by image, window by window. A window is contiguous,
 *                 so that attention within it is attention within a sequence. Without windows a place is a cell
 *     patches     of a cell: row by row, n_rows of them
 *
 * Rotary positions have several axes (dt_model_config.rope_axes), so the rows of the rotary table are those of this
 * batch: in the tower one for each patch; in the language model one for each placeholder, after the constant ones of
 * texts. There an image occupies as many positions as its longer side has cells. */
#include "vision_private.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- the images of a batch --------------------------------------------------------------------------------------- */

void dt_grids_place(const dt_model *m, struct arena *host)
{
    struct grids *g = &m->vision->grids;
    const int64_t n = m->vision->config->grids ? m->opt.max_images : 0;
    g->image = dt_take(host, n, 1, sizeof *g->image);
    g->image_of = dt_take(host, n, 1, sizeof *g->image_of);
    g->cell = dt_take(host, n, 1, sizeof *g->cell);
    g->place = dt_take(host, n, 1, sizeof *g->place);
    g->window_len = dt_take(host, n, 1, sizeof *g->window_len);
}

/* Append the window whose first cell is (row, column) of an image. */
static void add_window(struct grids *g, const struct image_grid *of, int64_t row, int64_t column, int64_t side,
                       int32_t *at)
{
    const int64_t end_row = dt_min_i64(of->rows, row + side), end_column = dt_min_i64(of->columns, column + side);
    g->window_len[g->n_windows++] = (int32_t)((end_row - row) * (end_column - column));
    for (int64_t r = row; r < end_row; r++)
        for (int64_t c = column; c < end_column; c++) {
            const int32_t cell = of->first + (int32_t)(r * of->columns + c);
            g->place[cell] = *at;
            g->cell[(*at)++] = cell;
        }
}

static void add_image(struct grids *g, const dt_vision_config *v, int32_t first, uint32_t code)
{
    const struct image_grid *of = &g->image[g->n];
    const int64_t side = v->window > 0 ? v->window : DT_MAX_GRID_SIDE;
    int32_t at = first;
    g->image[g->n] = (struct image_grid){first, (int32_t)dt_grid_rows(code), (int32_t)dt_grid_columns(code)};
    for (int64_t r = 0; r < of->rows; r += side)
        for (int64_t c = 0; c < of->columns; c += side) add_window(g, of, r, c, side, &at);
    for (int32_t i = first; i < at; i++) g->image_of[i] = g->n;
    g->n++;
}

dt_err dt_grids_read(const dt_model *m, const uint32_t *grid)
{
    struct vision *v = m->vision;
    struct grids *g = &v->grids;
    g->n = g->n_windows = 0;
    if (!v->config->grids) return DT_OK;
    for (int32_t k = 0; k < v->n_images;) {
        const int64_t rows = dt_grid_rows(grid[k]), columns = dt_grid_columns(grid[k]), n = rows * columns;
        bool whole = n > 0 && n <= v->n_images - k;
        for (int64_t c = 1; whole && c < n; c++) whole = grid[k + c] == 0;
        DT_CHECK(whole, DT_ERR_DATA,
                 "an image of %" PRId64 " x %" PRId64 " cells begins at cell %" PRId32 " of a batch with %" PRId32
                 ": expected all of its cells in the batch",
                 rows, columns, k, v->n_images);
        add_image(g, v->config, k, grid[k]);
        k += (int32_t)n;
    }
    return DT_OK;
}

void dt_grids_list_rows(const struct vision *v, int32_t *row)
{
    const int64_t n = v->config->n_rows;
    for (int64_t c = 0; c < v->n_images; c++)
        for (int64_t r = 0; r < n; r++) *row++ = (int32_t)(v->grids.place[c] * n + r);
}

void dt_grids_copy_cells(const struct vision *v, const uint8_t *cells, size_t cell_nbytes, char *to)
{
    for (int32_t at = 0; at < v->n_images; at++)
        memcpy(to + (size_t)at * cell_nbytes, cells + (size_t)v->grids.cell[at] * cell_nbytes, cell_nbytes);
}

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

/* Write the row of the table for a token with these positions, from the rows of positions first, first + 1 .. in
 * `axis`. */
static void put_row(const dt_model *m, const int64_t *pos, int64_t first, float *to)
{
    const float *axis = m->dynamic.axis;
    const int64_t width = dt_model_rotary_dim(m->mc), half = width / 2;
    for (int64_t i = 0; i < half; i++) {
        const float *from = axis + (pos[dt_model_rope_axis(m->mc, i)] - first) * width;
        to[i] = from[i];
        to[half + i] = from[half + i];
    }
}

static dt_err bring_rows(const dt_model *m, int64_t n_rows)
{
    const int64_t width = dt_model_rotary_dim(m->mc);
    if (n_rows == 0) return DT_OK;
    return m->ops->copy(m->dev, m->rope + m->dynamic.base_rows * width, m->dynamic.host,
                        (size_t)(n_rows * width) * sizeof(float), m->stream);
}

/* Rows of an image's placeholders, whose first position is `first`. */
static void put_image_rows(const dt_model *m, const struct image_grid *g, int64_t first, float *to)
{
    const int64_t width = dt_model_rotary_dim(m->mc);
    dt_model_rope_rows(m->mc, false, m->dynamic.base_rows, first, dt_max_i64(g->rows, g->columns), m->dynamic.axis);
    for (int64_t r = 0; r < g->rows; r++)
        for (int64_t c = 0; c < g->columns; c++, to += width)
            put_row(m, (const int64_t[]){first, first + r, first + c}, first, to);
}

/* Positions of a sequence: those of texts are shifted by the images before them, which have fewer positions than
 * placeholders. slot -1: without a cache. */
static dt_err stage_sequence(dt_model *m, const dt_batch *b, int32_t s, int32_t slot, int64_t *n_rows)
{
    const struct grids *g = &m->vision->grids;
    const int64_t width = dt_model_rotary_dim(m->mc), end = b->seq_start[s + 1];
    int32_t shift = slot >= 0 ? m->cached[slot].shift : 0;
    for (int64_t t = b->seq_start[s]; t < end;) {
        if (!dt_placeholders_is(m, b, s, (int32_t)t)) {
            m->host.pos[t] = b->pos[t] + shift;
            t++;
            continue;
        }
        const struct image_grid *of = &g->image[g->image_of[m->host.shown[t]]];
        const int32_t n = of->rows * of->columns;
        DT_CHECK(of->first == m->host.shown[t] && t + n <= end, DT_ERR_DATA,
                 "an image of %d x %d cells has placeholders that are not contiguous", of->rows, of->columns);
        DT_EXPECT(*n_rows + n <= m->dynamic.max_rows);
        put_image_rows(m, of, b->pos[t] + shift, m->dynamic.host + *n_rows * width);
        for (int32_t i = 0; i < n; i++) m->host.pos[t + i] = (int32_t)(m->dynamic.base_rows + *n_rows + i);
        *n_rows += n;
        t += n;
        shift += (int32_t)dt_max_i64(of->rows, of->columns) - n;
    }
    if (slot >= 0) m->cached[slot].next_shift = shift;
    return DT_OK;
}

dt_err dt_grids_stage_text(dt_model *m, const dt_batch *b, const int32_t *slot)
{
    int64_t n_rows = 0;
    if (!m->vision->config->grids || b->n_tok == 0) return DT_OK;
    for (int32_t s = 0; s < b->n_seq; s++) DT_TRY(stage_sequence(m, b, s, slot ? slot[s] : -1, &n_rows));
    return bring_rows(m, n_rows);
}

/* ---- the tower --------------------------------------------------------------------------------------------------- */

static bool learns_table(const dt_model *m)
{
    return m->opt.training && m->patches.config->table_side > 0 && dt_is_trained(m->wte);
}

size_t dt_grids_place_arrays(const dt_model *m, char *base, int64_t n_cells, struct grid_arrays *a)
{
    struct arena at = {.base = base};
    const int64_t T = n_cells * m->patches.config->n_rows, taps = m->patches.config->table_side > 0 ? T : 0,
                  trained = learns_table(m) ? taps : 0;
    a->window_start = dt_take(&at, n_cells + 1, 1, sizeof(int32_t));
    a->window_len = dt_take(&at, n_cells, 1, sizeof(int32_t));
    a->tap = dt_take(&at, taps, N_TAPS, sizeof(int32_t));
    a->weight = dt_take(&at, taps, N_TAPS, sizeof(float));
    a->in_order = dt_take(&at, trained, 1, sizeof(int32_t));
    for (int k = 0; k < N_TAPS; k++) {
        a->tap_of[k] = dt_take(&at, trained, 1, sizeof(int32_t));
        a->order[k] = dt_take(&at, trained, 1, sizeof(int32_t));
        a->weight_of[k] = dt_take(&at, trained, 1, sizeof(float));
    }
    return at.used;
}

/* The two neighbours of a patch in one direction of the table, and their weights, as transformers computes them. */
static void find_taps(int64_t index, int64_t size, int64_t side, int64_t tap[2], float weight[2])
{
    const float src = (float)index * (float)(side - 1) / (float)dt_max_i64(size - 1, 1), low = floorf(src);
    for (int k = 0; k < 2; k++) {
        tap[k] = dt_min_i64(dt_max_i64((int64_t)low + k, 0), side - 1);
        weight[k] = fmaxf(1 - fabsf(src - low - (float)k), 0);
    }
}

/* Row and column of a patch in its image: patch r of the cell at a place. */
struct patch_at {
    int64_t row, column;
};
static struct patch_at patch_of(const struct grids *g, const dt_vision_config *v, int64_t place, int64_t r)
{
    const int32_t cell = g->cell[place];
    const struct image_grid *of = &g->image[g->image_of[cell]];
    const int64_t f = v->n_side, in = cell - of->first;
    return (struct patch_at){in / of->columns * f + r / f, in % of->columns * f + r % f};
}

static void put_taps(const struct grids *g, const dt_vision_config *v, const struct grid_arrays *a, int64_t place,
                     int64_t r)
{
    const struct image_grid *of = &g->image[g->image_of[g->cell[place]]];
    const struct patch_at p = patch_of(g, v, place, r);
    const int64_t t = place * v->n_rows + r;
    int64_t row[2], column[2];
    float of_row[2], of_column[2];
    find_taps(p.row, of->rows * v->n_side, v->table_side, row, of_row);
    find_taps(p.column, of->columns * v->n_side, v->table_side, column, of_column);
    for (int k = 0; k < N_TAPS; k++) {
        a->tap[t * N_TAPS + k] = (int32_t)(row[k / 2] * v->table_side + column[k % 2]);
        a->weight[t * N_TAPS + k] = of_row[k / 2] * of_column[k % 2];
    }
}

/* The same by neighbour, for backward. */
static void turn_taps(const dt_model *m, const struct grid_arrays *a, int64_t T)
{
    for (int64_t t = 0; t < T; t++) a->in_order[t] = (int32_t)t;
    for (int k = 0; k < N_TAPS; k++) {
        for (int64_t t = 0; t < T; t++) {
            a->tap_of[k][t] = a->tap[t * N_TAPS + k];
            a->weight_of[k][t] = a->weight[t * N_TAPS + k];
        }
        dt_sort_tokens(a->tap_of[k], m->V, NULL, T, m->patches.tap_end, a->order[k]);
    }
}

static void stage_windows(dt_model *m)
{
    const struct grids *g = m->grids;
    const struct grid_arrays *a = &m->patches.host_arrays;
    const int32_t n = (int32_t)m->patches.config->n_rows;
    m->n_windows = g->n_windows;
    m->longest_window = 0;
    a->window_start[0] = 0;
    for (int32_t w = 0; w < g->n_windows; w++) {
        a->window_len[w] = g->window_len[w] * n;
        a->window_start[w + 1] = a->window_start[w] + a->window_len[w];
        if (a->window_len[w] > m->longest_window) m->longest_window = a->window_len[w];
    }
}

/* Rows of the rotary table of all patches of an image; its places are contiguous. */
static void put_patch_rows(const dt_model *m, const struct image_grid *of)
{
    const dt_vision_config *v = m->patches.config;
    const int64_t width = dt_model_rotary_dim(m->mc), n = (int64_t)of->rows * of->columns;
    dt_model_rope_rows(m->mc, false, 1, 0, dt_max_i64(of->rows, of->columns) * v->n_side, m->dynamic.axis);
    for (int64_t place = of->first; place < of->first + n; place++)
        for (int64_t r = 0; r < v->n_rows; r++) {
            const struct patch_at p = patch_of(m->grids, v, place, r);
            put_row(m, (const int64_t[]){p.row, p.column}, 0, m->dynamic.host + (place * v->n_rows + r) * width);
        }
}

dt_err dt_grids_stage_tower(dt_model *m)
{
    struct tower_input *k = &m->patches;
    const int64_t n = k->config->n_rows, n_cells = m->n_tok / n;
    const size_t nbytes = dt_grids_place_arrays(m, k->arrays.host, n_cells, &k->host_arrays);
    dt_grids_place_arrays(m, k->arrays.device, n_cells, &k->device_arrays);
    stage_windows(m);
    for (int32_t i = 0; i < m->grids->n; i++) put_patch_rows(m, &m->grids->image[i]);
    for (int64_t t = 0; t < m->n_tok; t++) m->host.pos[t] = (int32_t)t;
    if (k->config->table_side > 0)
        for (int64_t t = 0; t < m->n_tok; t++) put_taps(m->grids, k->config, &k->host_arrays, t / n, t % n);
    if (learns_table(m)) turn_taps(m, &k->host_arrays, m->n_tok);
    DT_TRY(bring_rows(m, m->n_tok));
    return dt_span_ahead(m, &k->arrays, nbytes);
}
