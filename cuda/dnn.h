/* dnn.h - graphs of cuDNN's backend interface: opens the library on request, and builds executable plans from a list of
 * operations.
 *
 * The library is opened by name; without it the device works as before. A graph is built by calls that each return a
 * tensor. The first failure is recorded with the library's message, later calls do nothing, and cudnn_plan_make reports
 * it. */
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
    cudnnHandle_t handle;    /* NULL: no GPU */
    cudnn_descriptor device; /* without a GPU: the properties of an H100 */
} cudnn_library;

/** Find and open the library. planning: without a GPU, to plan for an H100. False: why contains the reason. */
bool cudnn_library_open(cudnn_library *library, bool planning, char *why, size_t why_size);
void cudnn_library_close(cudnn_library *library);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

enum { CUDNN_MAX_OPS = 32, CUDNN_MAX_DESCRIPTORS = 256 };

typedef struct cudnn_graph {
    const cudnn_library *library;
    cudnn_descriptor made[CUDNN_MAX_DESCRIPTORS], ops[CUDNN_MAX_OPS];
    int n_made, n_ops;
    int64_t n_virtual;
    char *why; /* message of the first failure; empty: none */
    size_t why_size;
} cudnn_graph;

/** Extents or strides of a tensor: sequence, head, row, column. */
typedef struct cudnn_dims {
    int64_t n[4];
} cudnn_dims;

/** A tensor in memory, aligned to 16 bytes. id: identifies its pointer when the plan runs, from 1. */
cudnn_descriptor cudnn_tensor(cudnn_graph *g, int64_t id, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type);
/** A float that is passed when the plan runs. */
cudnn_descriptor cudnn_scalar(cudnn_graph *g, int64_t id);
/** A virtual tensor between operations, without memory. */
cudnn_descriptor cudnn_between(cudnn_graph *g, cudnn_dims extents, cudnnDataType_t type); /* packed */
cudnn_descriptor cudnn_between_as(cudnn_graph *g, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type);

/** y = mode(x, b) or mode(x, b, t); unused operands are NULL. axis: of CUDNN_POINTWISE_GEN_INDEX. Returns y. */
cudnn_descriptor cudnn_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t computed_in, int axis,
                                 cudnn_descriptor x, cudnn_descriptor b, cudnn_descriptor t, cudnn_descriptor y);
/** c = a b, summed in float. */
cudnn_descriptor cudnn_matmul(cudnn_graph *g, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c);
/** y = x reduced along dimensions in which y has the extent 1 or, for heads, a divisor of x's. */
cudnn_descriptor cudnn_reduce(cudnn_graph *g, cudnnReduceTensorOp_t op, cudnn_descriptor x, cudnn_descriptor y);
/** y = x with rows and columns exchanged, according to y's extents and strides; may round. */
cudnn_descriptor cudnn_reshape(cudnn_graph *g, cudnn_descriptor x, cudnn_descriptor y);

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/** An executable graph, with its descriptors, which the library uses until the end. */
typedef struct cudnn_plan {
    cudnn_descriptor plan; /* NULL: none */
    size_t workspace_nbytes;
    int n_made;
    cudnn_descriptor *made;
} cudnn_plan;

/** Build the first proposed plan that is deterministic and needs at most workspace_nbytes. If there is none, g->why
 *  contains the reason. Ends the graph. */
void cudnn_plan_make(cudnn_graph *g, size_t workspace_nbytes, cudnn_plan *plan);
void cudnn_plan_drop(const cudnn_library *library, cudnn_plan *plan);
/** Queue the plan: pointers[i] is the tensor ids[i] (device memory), or the address of the scalar (host memory). */
dt_err cudnn_plan_run(const cudnn_library *library, const cudnn_plan *plan, int n, const int64_t *ids,
                      void *const *pointers, void *workspace, dt_stream *s);

#endif
