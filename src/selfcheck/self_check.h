/* self_check.h - helpers for the cases of the self-check (self_check.c). Private to them. */
#ifndef DT_DEVICE_SELF_CHECK_H
#define DT_DEVICE_SELF_CHECK_H

#include "dtrain/device/device.h"

/* A case puts its arrays into an arena, where each has the same place on both devices, runs its operations on one
 * device after the other, and compares:
 *
 *     begin(c, "add %s", dt_dtype_name(dt));
 *     const array x = put(c, dt, n, 1), y = room(c, dt, n);
 *     EACH_DEVICE (c) RUN(c, add, at(c, x), at(c, x), at(c, y), dt, n);
 *     compare(c, "sums", y, EXACT);
 *     end(c);
 */
typedef struct array {
    size_t at; /* bytes from the arena's begin */
    dt_dtype dt;
    size_t elem_size;
    int64_t n;
} array;

enum { CHECK_MAX_ARRAYS = 24 };
typedef struct check {
    dt_device *dev[2]; /* the CPU, and the one that is looked at */
    dt_buf arena[2];
    char *before, *after[2]; /* the arenas' contents on the host: of both, and then of each */
    size_t used;
    struct place {
        size_t at, nbytes;
        bool may_change;
    } places[CHECK_MAX_ARRAYS];
    int n_places;
    int side; /* which device works */
    dt_err err;
    uint64_t draws;
    bool whole;     /* arrays begin at multiples of 256 bytes, as those of training do; else some do not */
    char what[160]; /* the form that is being checked */
    bool wrong;     /* something of it was */
    /* matmuls: by which form the device's library may be left, and whether it was, so that the case is run again */
    const dt_matmul *matmul;
    bool again;
    int n_forms, n_wrong, n_distrusted;
    dt_mistakes list;
} check;

/** How far two devices may be apart at an element where the CPU has y, with rms the root mean square of all elements:
 *
 *      2.5 u + (floats 2^-24 + stored u_dt) (|y| + rms)
 *
 *  u is half a unit in the last place of y in the array's type: both round once, and where they begin from numbers
 *  a little apart these may round to neighbours. floats: roundings of float on the way, for a sum of k terms about
 *  4 sqrt(k); stored: roundings to the type of activations, dt, on the way. EXACT: the same bits. */
typedef struct tolerance {
    double floats, stored;
    dt_dtype dt;
} tolerance;
#define EXACT ((tolerance){-1, 0, DT_F32})

void begin(check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
array put(check *c, dt_dtype dt, int64_t n, double scale); /* uniform in [-scale, scale] */
array put_bytes(check *c, const void *data, size_t elem_size, int64_t n);
array room(check *c, dt_dtype dt, int64_t n); /* results and scratch: full of NaN */
array room_bytes(check *c, size_t elem_size, int64_t n);
array part(array a, int64_t from, int64_t n); /* its elements from ... */
void *at(const check *c, array a);            /* where it lies on the device that works */
/** Compare an array, which may then have changed. what: "dx"; NULL: there is one result. */
void compare(check *c, const char *what, array a, tolerance tol);
void compare_doubles(check *c, const char *what, array a, double relative);
void end(check *c);
/** end() for a matmul: true where a library was wrong and the device's own kernel is to be looked at, from begin()
 *  on. */
bool end_matmul(check *c);

bool check_start(check *c); /* arrays to both devices; the first works */
bool check_next(check *c);  /* wait, arrays back to the host; the next works */
#define EACH_DEVICE(c) for (bool go_ = check_start(c); go_; go_ = check_next(c))
#define RUN(c, op, ...)                                                                                                \
    do {                                                                                                               \
        if ((c)->err == DT_OK)                                                                                         \
            (c)->err = (c)->dev[(c)->side]->ops->op((c)->dev[(c)->side], __VA_ARGS__, (dt_stream *)NULL);              \
    } while (0)
/** The larger of what both devices answer to a question for a size. */
#define LARGER_OF(c, op, ...)                                                                                          \
    dt_max_i64((int64_t)(c)->dev[0]->ops->op((c)->dev[0], __VA_ARGS__),                                                \
               (int64_t)(c)->dev[1]->ops->op((c)->dev[1], __VA_ARGS__))

/* cases, by file */
void check_rows_cases(check *c);   /* self_check_rows.c: elements, rows, norms, embedding, optimizers, sums */
void check_matrix_cases(check *c); /* self_check_matrix.c: matmuls, attention, classifier, tokens */

#endif
