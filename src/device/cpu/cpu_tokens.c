/* cpu_tokens.c - token selection on the CPU: one thread processes a row of logits. */
#include "cpu.h"
#include "dtrain/device/logits.h"
#include <math.h>
#include <string.h>

static int64_t n_pieces(const cpu_state *cpu, const dt_token_rows *rows)
{
    return dt_min_i64(cpu->n_threads, rows->n_rows > 0 ? rows->n_rows : 0);
}

static const uint32_t *row_of_mask(const uint32_t *mask, int64_t ld, int64_t r) { return mask ? mask + r * ld : NULL; }
static const uint32_t *allowed_of(const dt_token_rows *rows, int64_t r)
{
    return row_of_mask(rows->allowed, rows->allowed_ld, r);
}

/* Bytes of a mask, rounded up to 64, which keeps the data after it aligned. */
static size_t mask_nbytes(int64_t n_vocab) { return (size_t)((n_vocab + 511) / 512) * 64; }

/* The candidates of a row as a mask: written to `room` if the row has a list. */
static const uint32_t *mask_of(const dt_token_rows *rows, int64_t r, uint32_t *room)
{
    const uint32_t *allowed = allowed_of(rows, r);
    if (!rows->list) return allowed;
    const int32_t *list = rows->list + rows->list_start[r];
    memset(room, 0, mask_nbytes(rows->n_vocab));
    for (int32_t i = 0; i < rows->list_len[r]; i++)
        if (!allowed || allowed[list[i] / 32] >> (list[i] % 32) & 1) room[list[i] / 32] |= 1u << (list[i] % 32);
    return room;
}

/* Scratch of a thread: a mask, and the scratch of dt_token_weights_of. */
static size_t piece_nbytes(int64_t n_vocab) { return mask_nbytes(n_vocab) + dt_token_weights_scratch(n_vocab); }

size_t cpu_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows)
{
    return (size_t)n_pieces(cpu_of(dev), rows) * piece_nbytes(rows->n_vocab);
}

CPU_OP(draw_tokens)
{
    const dt_token_rows *rows = &x->rows;
    const dt_choice *how = &x->how;
    const int64_t pieces = n_pieces(cpu, rows);
    const size_t nbytes = piece_nbytes(rows->n_vocab);
    CPU_PARALLEL_FOR (cpu, piece, pieces) {
        char *own = (char *)x->scratch + (size_t)piece * nbytes;
        for (int64_t r = piece; r < rows->n_rows; r += pieces) {
            dt_token_weights w;
            const bool any = dt_token_weights_of(
                how, x->logits + r * rows->logits_ld, mask_of(rows, r, (uint32_t *)(void *)own),
                row_of_mask(rows->seen, rows->seen_ld, r), rows->n_vocab, own + mask_nbytes(rows->n_vocab), &w);
            x->token[r] = any ? dt_token_weights_draw(&w, how->greedy ? 0 : x->uniform[r]) : -1;
        }
    }
    return DT_OK;
}

/* ---- largest logits ---------------------------------------------------------------------------------------------- */

/* True if a precedes b in descending order of logits (ties: the lower id). */
static bool before(const float *z, int32_t a, int32_t b) { return z[a] > z[b] || (a < b && z[a] == z[b]); }

/* Restore the heap [n] below `at`. The token that is last in descending order is on top. */
static void sift_down(const float *z, int32_t *heap, int64_t n, int64_t at)
{
    const int32_t id = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(z, heap[child], heap[child + 1])) child++;
        if (!before(z, id, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* Put the k largest candidates into a heap. Returns their number, or -1 if a candidate's logit is NaN or +inf. */
static int64_t collect(const dt_token_rows *rows, int64_t r, const float *z, int64_t k, int32_t *heap)
{
    const uint32_t *allowed = allowed_of(rows, r);
    const int32_t *list = rows->list ? rows->list + rows->list_start[r] : NULL;
    const int64_t n_choices = list ? rows->list_len[r] : rows->n_vocab;
    int64_t n = 0;
    for (int64_t c = 0; c < n_choices; c++) {
        const int32_t v = list ? list[c] : (int32_t)c;
        if (allowed && !(allowed[v / 32] >> (v % 32) & 1)) continue;
        if (!(z[v] < INFINITY)) return -1;
        if (z[v] == -INFINITY || (n == k && !before(z, v, heap[0]))) continue;
        if (n < k) {
            heap[n++] = v;
            for (int64_t at = n / 2; n == k && at-- > 0;) sift_down(z, heap, n, at);
        } else {
            heap[0] = v;
            sift_down(z, heap, n, 0);
        }
    }
    for (int64_t at = n / 2; n < k && at-- > 0;) sift_down(z, heap, n, at);
    return n;
}

CPU_OP(top_tokens)
{
    const dt_token_rows *rows = &x->rows;
    DT_EXPECT(x->k > 0 && x->k <= rows->n_vocab);
    CPU_PARALLEL_FOR (cpu, r, rows->n_rows) {
        const float *z = x->logits + r * rows->logits_ld;
        int32_t *first = x->token + r * x->k;
        const int64_t found = collect(rows, r, z, x->k, first), n = found < 0 ? 0 : found;
        for (int64_t i = n; i < x->k; i++) first[i] = -1, x->logit[r * x->k + i] = found < 0 ? NAN : -INFINITY;
        for (int64_t left = n; left-- > 0;) { /* the smallest remaining goes to the end */
            const int32_t last = first[0];
            first[0] = first[left];
            if (left > 0) sift_down(z, first, left, 0);
            first[left] = last;
            x->logit[r * x->k + left] = z[last];
        }
    }
    return DT_OK;
}

CPU_OP(log_softmax_at)
{
    const dt_token_rows *rows = &x->rows;
    DT_EXPECT(x->inv_temperature > 0 && x->k >= 0);
    CPU_PARALLEL_FOR (cpu, r, rows->n_rows) {
        const float *z = x->logits + r * rows->logits_ld;
        const double sum = dt_logits_log_sum_exp(z, rows->n_vocab, x->inv_temperature);
        for (int64_t i = r * x->k; i < (r + 1) * x->k; i++) {
            const double of_token = x->token[i] < 0 ? -INFINITY : (double)z[x->token[i]] * x->inv_temperature - sum;
            x->logp[i] = fabs(sum) < INFINITY ? of_token : NAN;
        }
    }
    return DT_OK;
}
