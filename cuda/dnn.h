/* dnn.h - graphs of cuDNN's backend interface: the library, found when it is asked for, and the way from a list of
 * operations to a plan that can be run.
 *
 * The library is opened by its name: without it the device is as it was. A graph is built by calls that each return a
 * tensor; the first that fails is remembered with the library's own words, the rest do nothing, and cudnn_plan_make
 * tells. */
#ifndef DTRAIN_CUDA_DNN_H
#define DTRAIN_CUDA_DNN_H

#include "cuda.h"
#include <cudnn.h>

typedef cudnnBackendDescriptor_t cudnn_descriptor;

#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

typedef struct cudnn_library {
#define CUDNN_FIELD(function) __typeof__(function) *function;
    CUDNN_FUNCTIONS(CUDNN_FIELD)
#undef CUDNN_FIELD
    cudnnHandle_t handle;    /* NULL: there is no GPU */
    cudnn_descriptor device; /* without a GPU: the properties of an H100 */
} cudnn_library;

/** Find and open the library; planning: without a GPU, to ask what it would do on an H100. False: why says what is
 *  missing. */
bool cudnn_library_open(cudnn_library *library, bool planning, char *why, size_t why_size);
void cudnn_library_close(cudnn_library *library);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

enum { CUDNN_MAX_OPS = 32, CUDNN_MAX_DESCRIPTORS = 256 };

typedef struct cudnn_graph {
    const cudnn_library *library;
    cudnn_descriptor made[CUDNN_MAX_DESCRIPTORS], ops[CUDNN_MAX_OPS];
    int n_made, n_ops;
    int64_t n_virtual;
    char *why; /* of the first failure; empty: none */
    size_t why_size;
} cudnn_graph;

/** Extents or strides of a tensor: sequence, head, row, column. */
typedef struct cudnn_dims {
    int64_t n[4];
} cudnn_dims;

/** A tensor in memory, at a multiple of 16 bytes; id: which pointer it is when the plan runs, from 1. */
cudnn_descriptor cudnn_tensor(cudnn_graph *g, int64_t id, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type);
/** A float that is given when the plan runs. */
cudnn_descriptor cudnn_scalar(cudnn_graph *g, int64_t id);
/** A tensor between operations, which lies nowhere. */
cudnn_descriptor cudnn_between(cudnn_graph *g, cudnn_dims extents, cudnnDataType_t type); /* packed */
cudnn_descriptor cudnn_between_as(cudnn_graph *g, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type);

/** y = mode(x, b), or (x, b, t); operands that there are not are NULL. axis: of CUDNN_POINTWISE_GEN_INDEX. Returns
 *  y. */
cudnn_descriptor cudnn_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t computed_in, int axis,
                                 cudnn_descriptor x, cudnn_descriptor b, cudnn_descriptor t, cudnn_descriptor y);
/** c = a b, summed in float. */
cudnn_descriptor cudnn_product(cudnn_graph *g, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c);
/** y = x reduced along where y has the extent 1, or, for heads, a divisor. */
cudnn_descriptor cudnn_reduce(cudnn_graph *g, cudnnReduceTensorOp_t op, cudnn_descriptor x, cudnn_descriptor y);
/** y = x with rows and columns exchanged, as y's extents and strides say; it may round. */
cudnn_descriptor cudnn_reshape(cudnn_graph *g, cudnn_descriptor x, cudnn_descriptor y);

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/** A graph that can be run, with its descriptors, which the library looks at until the end. */
typedef struct cudnn_plan {
    cudnn_descriptor plan; /* NULL: there is none */
    size_t workspace_nbytes;
    int n_made;
    cudnn_descriptor *made;
} cudnn_plan;

/** The first plan that the library proposes which computes the same bits each time and takes at most workspace_nbytes.
 *  None: g->why says why. Ends the graph. */
void cudnn_plan_make(cudnn_graph *g, size_t workspace_nbytes, cudnn_plan *plan);
void cudnn_plan_drop(const cudnn_library *library, cudnn_plan *plan);
/** Queue the plan: pointers[i] is the tensor ids[i] (device memory), or the address of the scalar (host memory). */
dt_err cudnn_plan_run(const cudnn_library *library, const cudnn_plan *plan, int n, const int64_t *ids,
                      void *const *pointers, void *workspace, dt_stream *s);

#endif
