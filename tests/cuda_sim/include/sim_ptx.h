/* sim_ptx.h - twins of the instructions in cuda/ptx.cuh, which says what they do. */
#ifndef CUDA_SIM_PTX_H
#define CUDA_SIM_PTX_H

struct sim_matmul {
    float *d;
    const uint32_t *a, *b;
};
sim_together sim_multiplied_bf16, sim_multiplied_half;
static inline void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16)
{
    sim_matmul mine = {d, a, b};
    sim_meet(sim_multiplied_bf16, "mma_16816", 0xffffffffu, &mine);
}
static inline void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], __half)
{
    sim_matmul mine = {d, a, b};
    sim_meet(sim_multiplied_half, "mma_16816", 0xffffffffu, &mine);
}

struct sim_matrices {
    uint32_t *r;
    const void *row;
};
sim_together sim_loaded, sim_loaded_trans;
static inline void ldmatrix_x4(uint32_t r[4], const void *row)
{
    sim_matrices mine = {r, row};
    sim_meet(sim_loaded, "ldmatrix_x4", 0xffffffffu, &mine);
}
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    sim_matrices mine = {r, row};
    sim_meet(sim_loaded_trans, "ldmatrix_x4_trans", 0xffffffffu, &mine);
}

/** The copy lands at a wait, or by chance before it. */
void sim_copy_async(void *shared, const void *src, bool valid, size_t nbytes);
static inline void copy_async_16(void *shared, const void *src, bool valid) { sim_copy_async(shared, src, valid, 16); }
static inline void copy_async_8(void *shared, const void *src, bool valid) { sim_copy_async(shared, src, valid, 8); }
void copy_async_commit();
void sim_copy_async_wait(int left);
template <int left> static inline void copy_async_wait() { sim_copy_async_wait(left); }

/* Matmuls of a group, a warp's part of them: computed when the warp waits for them, from what lies in shared memory
 * then. Until then their registers are NaN, and those of their left operand must stay as they are. */
struct sim_group_matmul {
    float (*d)[4];
    const uint32_t *a; /* in registers, or */
    const void *a_at, *b_at;
    bool add;
};
sim_together sim_group_multiplied_bf16, sim_group_multiplied_half;
static inline void sim_group(sim_group_matmul mine, __nv_bfloat16)
{
    sim_meet(sim_group_multiplied_bf16, "group_multiply", 0xffffffffu, &mine);
}
static inline void sim_group(sim_group_matmul mine, __half)
{
    sim_meet(sim_group_multiplied_half, "group_multiply", 0xffffffffu, &mine);
}
template <class T> static inline void group_multiply(float (&d)[8][4], const T *a, const T *b, bool add)
{
    sim_group({d, nullptr, a, b, add}, T());
}
template <class T> static inline void group_add(float (&d)[8][4], const uint32_t (&a)[4], const T *b)
{
    sim_group({d, a, nullptr, b, true}, T());
}
sim_together sim_group_opened, sim_group_closed, sim_group_waited;
static inline void group_open() { sim_meet(sim_group_opened, "group_open", 0xffffffffu, nullptr); }
static inline void group_close() { sim_meet(sim_group_closed, "group_close", 0xffffffffu, nullptr); }
template <int left> static inline void group_wait()
{
    int groups = left;
    sim_meet(sim_group_waited, "group_wait", 0xffffffffu, &groups);
}
void sim_show_to_matmuls();
static inline void show_to_matmuls() { sim_show_to_matmuls(); }
template <class Registers> static inline void hold(Registers &) {}

#endif
