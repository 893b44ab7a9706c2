/* cudnn_twin.c - a cuDNN that has a plan for everything, for the simulator of CUDA: there where CUDA_SIM_CUDNN is set.
 * Its plans cannot be run, or, where that is "idle", run and compute nothing. What the library computes is for a GPU to
 * show. */
#include "dnn.h"
#include <stdlib.h>
#include <string.h>

size_t cudnnGetVersion(void) { return 91000; }

bool cudnn_library_open(cudnn_library *library, bool planning, char *why, size_t why_size)
{
    const bool is_there = getenv("CUDA_SIM_CUDNN") != NULL;
    *library = (cudnn_library){.cudnnGetVersion = cudnnGetVersion};
    snprintf(why, why_size, "%s", is_there ? "" : "the simulator's cuDNN is not there");
    return is_there;
}
void cudnn_library_close(cudnn_library *library) { *library = (cudnn_library){0}; }

/* Tensors are anything but NULL. */
cudnn_descriptor cudnn_tensor(cudnn_graph *g, int64_t id, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type)
{
    return g;
}
cudnn_descriptor cudnn_scalar(cudnn_graph *g, int64_t id) { return g; }
cudnn_descriptor cudnn_between(cudnn_graph *g, cudnn_dims extents, cudnnDataType_t type) { return g; }
cudnn_descriptor cudnn_between_as(cudnn_graph *g, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type)
{
    return g;
}
cudnn_descriptor cudnn_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t computed_in, int axis,
                                 cudnn_descriptor x, cudnn_descriptor b, cudnn_descriptor t, cudnn_descriptor y)
{
    return y;
}
cudnn_descriptor cudnn_matmul(cudnn_graph *g, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c) { return c; }
cudnn_descriptor cudnn_reduce(cudnn_graph *g, cudnnReduceTensorOp_t op, cudnn_descriptor x, cudnn_descriptor y)
{
    return y;
}
cudnn_descriptor cudnn_reshape(cudnn_graph *g, cudnn_descriptor x, cudnn_descriptor y) { return y; }

void cudnn_plan_make(cudnn_graph *g, size_t workspace_nbytes, cudnn_plan *plan)
{
    static int made;
    *plan = (cudnn_plan){.plan = &made};
}
void cudnn_plan_drop(const cudnn_library *library, cudnn_plan *plan) { *plan = (cudnn_plan){0}; }
dt_err cudnn_plan_run(const cudnn_library *library, const cudnn_plan *plan, int n, const int64_t *ids,
                      void *const *pointers, void *workspace, dt_stream *s)
{
    const char *how = getenv("CUDA_SIM_CUDNN");
    return how && !strcmp(how, "idle") ? DT_OK : dt_fail(DT_ERR_FAULT, "cuDNN: CUDNN_STATUS_EXECUTION_FAILED");
}
