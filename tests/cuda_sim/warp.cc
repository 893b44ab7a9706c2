/* warp.cc - the work of a warp's lanes once they have come together, and copies that land late. */
#include "block.h"
#include "race.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

typedef __nv_bfloat16 bf16;
#include <sim_ptx.h>

/* ---- shuffles and votes ----------------------------------------------------------------------------------------- */

void sim_shuffled(void *const brought[32], uint32_t lanes)
{
    for (uint32_t left = lanes; left; left &= left - 1) {
        const sim_shuffle *mine = static_cast<sim_shuffle *>(brought[__builtin_ctz(left)]);
        if (!(lanes >> mine->source & 1)) {
            block.current = block.current / WARP * WARP + mine->caller;
            sim_wrong("a shuffle reads lane %d, which has ended or is not in the mask", mine->source);
        }
        const sim_shuffle *other = static_cast<sim_shuffle *>(brought[mine->source]);
        memcpy(mine->result, other->value, (size_t)mine->nbytes);
    }
}

void sim_voted(void *const brought[32], uint32_t lanes)
{
    uint32_t ballot = 0;
    for (uint32_t left = lanes; left; left &= left - 1) {
        const int l = __builtin_ctz(left);
        ballot |= (uint32_t) static_cast<sim_vote *>(brought[l])->predicate << l;
    }
    for (uint32_t left = lanes; left; left &= left - 1)
        static_cast<sim_vote *>(brought[__builtin_ctz(left)])->ballot = ballot;
}

void sim_nothing(void *const[32], uint32_t lanes) { race_syncwarp(block.current / WARP, lanes); }

/* ---- matmuls of fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16") ---------------------------------------- */

static void whole_warp(uint32_t lanes, const char *what)
{
    if (lanes != 0xffffffffu) sim_wrong("%s by lanes %08x: the whole warp must take part", what, lanes);
}

/* The pair of column 2 t (and the next) in row g belongs to lane 4 g + t; registers: rows g and g + 8 of A for columns
 * from 0, the same for columns from 8; of B rows 2 t from 0 and from 8 in column g. */
template <class T> static void multiply(void *const brought[32])
{
    float a[16][16], b[16][8];
    for (int l = 0; l < WARP; l++) {
        const sim_matmul *mine = static_cast<sim_matmul *>(brought[l]);
        const int g = l / 4, t = l % 4;
        T pair[2];
        for (int i = 0; i < 4; i++) {
            memcpy(pair, &mine->a[i], sizeof pair);
            for (int j = 0; j < 2; j++) a[g + i % 2 * 8][2 * t + j + i / 2 * 8] = (float)pair[j];
        }
        for (int i = 0; i < 2; i++) {
            memcpy(pair, &mine->b[i], sizeof pair);
            for (int j = 0; j < 2; j++) b[2 * t + j + i * 8][g] = (float)pair[j];
        }
    }
    for (int row = 0; row < 16; row++) {
        float sum[8];
        for (int j = 0; j < 8; j++)
            sum[j] = static_cast<sim_matmul *>(brought[row % 8 * 4 + j / 2])->d[row / 8 * 2 + j % 2];
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) sum[j] += a[row][k] * b[k][j];
        for (int j = 0; j < 8; j++)
            static_cast<sim_matmul *>(brought[row % 8 * 4 + j / 2])->d[row / 8 * 2 + j % 2] = sum[j];
    }
}

void sim_multiplied_bf16(void *const brought[32], uint32_t lanes)
{
    whole_warp(lanes, "mma_16816");
    multiply<__nv_bfloat16>(brought);
}
void sim_multiplied_half(void *const brought[32], uint32_t lanes)
{
    whole_warp(lanes, "mma_16816");
    multiply<__half>(brought);
}

/* ---- matrices from shared memory -------------------------------------------------------------------------------- */

static void load_matrices(void *const brought[32], uint32_t lanes, bool trans)
{
    uint16_t at[4][8][8];
    whole_warp(lanes, "ldmatrix_x4");
    for (int l = 0; l < WARP; l++) {
        const void *row = static_cast<sim_matrices *>(brought[l])->row;
        if (!sim_is_shared(row, 16) || (size_t)row % 16)
            sim_wrong("ldmatrix_x4: the row of lane %d, %p, is not 16 aligned bytes of shared memory", l, row);
        const int lane = block.current / WARP * WARP + l;
        race_read(row, 16, lane, block.lanes[lane].pc);
        memcpy(at[l / 8][l % 8], row, 16);
    }
    for (int l = 0; l < WARP; l++) {
        uint32_t *r = static_cast<sim_matrices *>(brought[l])->r;
        for (int i = 0; i < 4; i++) {
            const int g = l / 4, t = 2 * (l % 4);
            r[i] =
                trans ? at[i][t][g] | (uint32_t)at[i][t + 1][g] << 16 : at[i][g][t] | (uint32_t)at[i][g][t + 1] << 16;
        }
    }
}
void sim_loaded(void *const brought[32], uint32_t lanes) { load_matrices(brought, lanes, false); }
void sim_loaded_trans(void *const brought[32], uint32_t lanes) { load_matrices(brought, lanes, true); }

/* ---- matmuls of a group of four warps --------------------------------------------------------------------------- */

/* Element (row, column) of a matrix that begins at p: rows of 128 bytes, chunks of 16 of them xored with the number of
 * the row, which is that of the address. */
template <class T> static float element(const void *p, int row, int column, const char *what)
{
    size_t at = (size_t)p + (size_t)row * 128 + (size_t)column * 2;
    at ^= at / 128 % 8 * 16;
    T x;
    if (!sim_is_shared((const void *)at, 2)) sim_wrong("%s: %p is not in shared memory", what, (const void *)at);
    race_read((const void *)at, 2, block.current, block.lanes[block.current].pc);
    memcpy(&x, (const void *)at, 2);
    return (float)x;
}

/* A matmul that was asked for, by the warp's lanes. */
struct queued_matmul {
    sim_group_matmul of[WARP];
    uint32_t a[WARP][4];      /* as it was: it must not change */
    float before[WARP][8][4]; /* what it adds to, where no other matmul to the same registers is in flight */
    bool behind_another;
    int group, warp;
    void (*compute)(const queued_matmul &);
};
struct matmul_queue {
    std::vector<queued_matmul> all;
    int n_groups; /* that were closed */
    bool open;
};
static matmul_queue queues[MAX_WARPS];

static bool is_nan_of_ours(const float *x)
{
    uint32_t u;
    memcpy(&u, x, sizeof u);
    return u == 0xffffffffu;
}

/* This warp's 16 rows. B is [64 rows][16] where A is in shared memory, else [16 rows][64]. */
template <class T> static void compute_matmul(const queued_matmul &p)
{
    static float a[16][16], b[16][64];
    const sim_group_matmul *one = &p.of[0];
    for (int l = 0; l < WARP && one->a; l++)
        for (int i = 0; i < 4; i++) {
            T pair[2];
            memcpy(pair, &p.a[l][i], sizeof pair);
            for (int j = 0; j < 2; j++) a[l / 4 + i % 2 * 8][l % 4 * 2 + j + i / 2 * 8] = (float)pair[j];
        }
    for (int i = 0; i < 16 && one->a_at; i++)
        for (int k = 0; k < 16; k++) a[i][k] = element<T>(one->a_at, p.warp % 4 * 16 + i, k, "group_multiply");
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < 64; j++)
            b[k][j] =
                one->a_at ? element<T>(one->b_at, j, k, "group_multiply") : element<T>(one->b_at, k, j, "group_add");
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 64; j++) {
            const int lane = i % 8 * 4 + j % 8 / 2, e = i / 8 * 2 + j % 2;
            float *d = &p.of[lane].d[j / 8][e];
            float sum = !one->add ? 0.0f : p.behind_another ? *d : p.before[lane][j / 8][e];
            for (int k = 0; k < 16; k++) sum += a[i][k] * b[k][j];
            *d = sum;
        }
}

/* No register may be accessed while a matmul is in flight. */
static void check_registers(const queued_matmul &p)
{
    for (int l = 0; l < WARP; l++) {
        for (int i = 0; i < 32 && !p.behind_another; i++)
            if (!is_nan_of_ours(&p.of[l].d[i / 4][i % 4]))
                sim_wrong("lane %d writes a sum of a matmul of its group before it has waited for that", l);
        if (p.of[l].a && memcmp(p.of[l].a, p.a[l], sizeof p.a[l]) != 0)
            sim_wrong("lane %d changes the left operand of a matmul of its group before it has waited for that", l);
    }
}

template <class T> static void queue_matmul(void *const brought[32], uint32_t lanes)
{
    whole_warp(lanes, "group_multiply");
    matmul_queue *queue = &queues[block.current / WARP];
    const sim_group_matmul *one = static_cast<sim_group_matmul *>(brought[0]);
    queued_matmul p = {};
    p.group = queue->n_groups, p.warp = block.current / WARP, p.compute = compute_matmul<T>;
    if (!queue->open) sim_wrong("a matmul of a group without group_open since the last wait");
    for (int i = 0; i < block.launch->threads; i++)
        if (block.lanes[i].hides_copies)
            sim_wrong("a matmul of a group, and what thread %d copied to shared memory was not shown to matmuls", i);
    for (const queued_matmul &q : queue->all) p.behind_another |= q.of[0].d == one->d;
    for (int l = 0; l < WARP; l++) {
        const sim_group_matmul *mine = static_cast<sim_group_matmul *>(brought[l]);
        if (mine->a_at != one->a_at || mine->b_at != one->b_at || !mine->a != !one->a || mine->add != one->add)
            sim_wrong("group_multiply: lanes of a warp want different matmuls");
        p.of[l] = *mine;
        if (mine->a) memcpy(p.a[l], mine->a, sizeof p.a[l]);
        if (p.behind_another) continue;
        memcpy(p.before[l], mine->d, sizeof p.before[l]);
        memset(mine->d, 0xff, sizeof p.before[l]);
    }
    queue->all.push_back(p);
}
void sim_group_multiplied_bf16(void *const brought[32], uint32_t lanes) { queue_matmul<bf16>(brought, lanes); }
void sim_group_multiplied_half(void *const brought[32], uint32_t lanes) { queue_matmul<__half>(brought, lanes); }

void sim_group_opened(void *const[32], uint32_t lanes)
{
    whole_warp(lanes, "group_open");
    queues[block.current / WARP].open = true;
}
void sim_group_closed(void *const[32], uint32_t lanes)
{
    whole_warp(lanes, "group_close");
    queues[block.current / WARP].n_groups++;
}
void sim_group_waited(void *const brought[32], uint32_t lanes)
{
    matmul_queue *queue = &queues[block.current / WARP];
    const int end = queue->n_groups - *static_cast<int *>(brought[0]);
    size_t n = 0;
    whole_warp(lanes, "group_wait");
    while (n < queue->all.size() && queue->all[n].group < end) n++;
    for (size_t i = 0; i < n; i++) check_registers(queue->all[i]);
    for (size_t i = 0; i < n; i++) queue->all[i].compute(queue->all[i]);
    queue->all.erase(queue->all.begin(), queue->all.begin() + (ptrdiff_t)n);
    queue->open = false;
}

void sim_show_to_matmuls() { block.lanes[block.current].hides_copies = false; }

void sim_matmuls_end(int warp)
{
    if (!queues[warp].all.empty()) sim_wrong("a lane ends, and matmuls of its group are under way");
    queues[warp].n_groups = 0;
    queues[warp].open = false;
}

/* ---- asynchronous copies ----------------------------------------------------------------------------------------- */

static void land(const pending_copy *copy)
{
    if (copy->landed) return;
    if (copy->valid)
        memcpy(copy->dst, copy->src, copy->nbytes);
    else
        memset(copy->dst, 0, copy->nbytes);
}

/* All copies of the groups before this one; those of a group in any order, here that of the program. */
static void land_before(pending_copies *copies, int group)
{
    while (copies->first < copies->n && copies->all[copies->first].group < group) {
        const pending_copy *copy = &copies->all[copies->first++];
        land(copy);
        race_copy_ended(copy->dst, copy->nbytes, block.current);
        block.lanes[block.current].hides_copies = true;
    }
    if (copies->first == copies->n) copies->first = copies->n = 0;
}

void sim_copy_async(void *shared, const void *src, bool valid, size_t nbytes)
{
    pending_copies *copies = &block.lanes[block.current].copies;
    if ((size_t)shared % nbytes || !sim_is_shared(shared, nbytes))
        sim_wrong("copy_async_%zu to %p, which is not %zu aligned bytes of shared memory", nbytes, shared, nbytes);
    if ((size_t)src % nbytes) sim_wrong("copy_async_%zu from %p, which is not a multiple of %zu", nbytes, src, nbytes);
    if (copies->n == copies->room) {
        copies->room = copies->room ? 2 * copies->room : 16;
        copies->all = static_cast<pending_copy *>(realloc(copies->all, (size_t)copies->room * sizeof *copies->all));
    }
    pending_copy copy = {shared, src, nbytes, valid, false, copies->n_groups};
    const void *pc = __builtin_return_address(0);
    if (valid) race_read(src, nbytes, block.current, pc);
    race_copy_begins(shared, nbytes, block.current, pc);
    if (sim_random() % 4 == 0) {
        land(&copy);
        copy.landed = true;
    }
    copies->all[copies->n++] = copy;
}

void copy_async_commit() { block.lanes[block.current].copies.n_groups++; }

void sim_copy_async_wait(int left)
{
    pending_copies *copies = &block.lanes[block.current].copies;
    land_before(copies, copies->n_groups - left);
}

void sim_copies_forget(pending_copies *copies) { copies->first = copies->n = copies->n_groups = 0; }
