/* self_check.h - helpers for the cases of the self-check (self_check.c). Private to them. */
#ifndef DT_DEVICE_SELF_CHECK_H
#define DT_DEVICE_SELF_CHECK_H

#include "dtrain/device/device.h"
#include <math.h>

/* A case puts its arrays into an arena. Each array has the same offset on both devices. The case runs its operations
 * on one device after the other, and compares the results:
 *
 *     begin(c, "add %s", dt_dtype_name(dt));
 *     const array x = put(c, dt, n, 1), y = result(c, "sums", EXACT, room(c, dt, n));
 *     EACH_DEVICE (c) RUN(c, add, at(c, x), at(c, x), at(c, y), dt, n);
 *     end(c);
 */
typedef struct array {
    size_t at; /* offset in the arena, in bytes */
    dt_dtype dt;
    size_t elem_size;
    int64_t n;
} array;

/** Maximum difference between two devices at an element with the CPU's value y. rms: root mean square of all elements.
 *
 *      2.5 u + (floats 2^-24 + stored u_dt) (|y| + rms)
 *
 *  u is half a unit in the last place of y in the array's type. Both devices round once, and slightly different values
 *  may round to neighbours. floats: number of float roundings, about 4 sqrt(k) for a sum of k terms. stored: number of
 *  roundings to the type of activations, dt. EXACT: equal bits. */
typedef struct tolerance {
    double floats, stored;
    dt_dtype dt;
} tolerance;
#define EXACT ((tolerance){-1, 0, DT_F32})
static inline tolerance near(double floats, double stored, dt_dtype dt) { return (tolerance){floats, stored, dt}; }
/** tolerance.floats of a sum of k terms. */
static inline double of_sum(double k) { return 8 + 4 * sqrt(k); }

/** Types of activations. */
static const dt_dtype TYPES[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof TYPES / sizeof TYPES[0] };

enum { CHECK_MAX_ARRAYS = 24 };
typedef struct check {
    dt_device *dev[2]; /* the CPU, and the device to check */
    dt_buf arena[2];
    char *before, *after[2]; /* contents of the arenas on the host: before the case, and after it on each device */
    size_t used;
    struct place {
        size_t at, nbytes;
        bool may_change;
        const char *what; /* name of a result; NULL: not one */
        array result;
        tolerance tol;
    } places[CHECK_MAX_ARRAYS];
    int n_places;
    int side; /* index of the current device */
    dt_err err;
    uint64_t draws;
    bool whole;     /* all arrays are aligned to 256 bytes, as in training */
    char what[160]; /* the variant to check */
    bool wrong;     /* a result of the variant was wrong */
    /* matmuls: the variant for which the device may stop using its library; again: the device did so, and the case runs
     * again */
    const dt_matmul *matmul;
    bool again;
    int n_forms, n_wrong, n_distrusted;
    dt_mistakes list;
} check;

void begin(check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
array put(check *c, dt_dtype dt, int64_t n, double scale); /* uniform in [-scale, scale] */
array put_bytes(check *c, const void *data, size_t elem_size, int64_t n);
array room(check *c, dt_dtype dt, int64_t n); /* results and scratch, filled with NaN */
array room_bytes(check *c, size_t elem_size, int64_t n);
array part(array a, int64_t from, int64_t n); /* n elements of a, starting at from */
void *at(const check *c, array a);            /* its address on the current device */
/** An array that operations may change, and that end() compares. what: its name ("dx"). Returns a. */
array result(check *c, const char *what, tolerance tol, array a);
/** Compare an array, or a part of one, that operations may change. */
void compare(check *c, const char *what, array a, tolerance tol);
void compare_doubles(check *c, const char *what, array a, double relative);
/** Compare the results, and check that nothing else was changed. */
void end(check *c);
/** end() for a matmul. True if the library was wrong. The case then starts again at begin(), with the device's own
 *  kernel. */
bool end_matmul(check *c);

bool check_start(check *c); /* copy the arrays to both devices; select the first */
bool check_next(check *c);  /* wait, copy the arrays to the host; select the next device */
#define EACH_DEVICE(c) for (bool go_ = check_start(c); go_; go_ = check_next(c))
#define RUN(c, op, ...)                                                                                                \
    do {                                                                                                               \
        if ((c)->err == DT_OK)                                                                                         \
            (c)->err = (c)->dev[(c)->side]->ops->op((c)->dev[(c)->side], __VA_ARGS__, (dt_stream *)NULL);              \
    } while (0)
/** The maximum of both devices' answers to a size query. */
#define LARGER_OF(c, op, ...)                                                                                          \
    dt_max_i64((int64_t)(c)->dev[0]->ops->op((c)->dev[0], __VA_ARGS__),                                                \
               (int64_t)(c)->dev[1]->ops->op((c)->dev[1], __VA_ARGS__))

/* cases, by file */
void check_rows_cases(check *c);    /* self_check_rows.c: elements, rows, norms, embedding, optimizers, sums */
void check_matrix_cases(check *c);  /* self_check_matrix.c: matmuls, attention, classifier, tokens */
void check_delta_cases(check *c);   /* self_check_delta.c: linear attention, gates */
void check_experts_cases(check *c); /* self_check_experts.c: routing, grouped matmuls */

#endif
