/* graph.c - CUDA graphs: operations recorded from a stream, and queued again with one call. */
#include "cuda.h"
#include <stdlib.h>

struct dt_graph {
    cudaGraphExec_t exec;
    dt_stream *stream;
};

static dt_stream *stream_of(const dt_device *dev, dt_stream *stream) { return stream ? stream : &cuda_of(dev)->first; }

/* Thread-local capture: other threads, which read data or write checkpoints, may call the runtime meanwhile. */
dt_err cuda_graph_begin(dt_device *dev, dt_stream *stream)
{
    DT_CUDA(cudaStreamBeginCapture(stream_of(dev, stream)->handle, cudaStreamCaptureModeThreadLocal));
    return DT_OK;
}

static dt_err make(dt_graph **graph, cudaGraph_t recorded, dt_stream *s)
{
    dt_graph *g = *graph = calloc(1, sizeof *g);
    DT_CHECK(g, DT_ERR_MEMORY, "out of memory for a graph");
    g->stream = s;
    const cudaError_t error = cudaGraphInstantiateWithFlags(&g->exec, recorded, 0);
    if (error == cudaSuccess) return DT_OK;
    (void)cudaGetLastError(); /* the caller can continue without a graph: not an error of the next operation */
    return cuda_fail(error, "cudaGraphInstantiate", __FILE__, __LINE__);
}

dt_err cuda_graph_end(dt_device *dev, dt_stream *stream, dt_graph **graph)
{
    dt_stream *s = stream_of(dev, stream);
    cudaGraph_t recorded = NULL;
    const cudaError_t ended = cudaStreamEndCapture(s->handle, &recorded);
    dt_err err = DT_OK;
    if (graph) {
        *graph = NULL;
        err = ended == cudaSuccess ? make(graph, recorded, s)
                                   : cuda_fail(ended, "cudaStreamEndCapture", __FILE__, __LINE__);
        if (err != DT_OK) {
            cuda_graph_destroy(dev, *graph);
            *graph = NULL;
        }
    } else {
        (void)cudaGetLastError(); /* not an error of the next operation */
    }
    if (recorded) cudaGraphDestroy(recorded);
    return err;
}

dt_err cuda_graph_launch(dt_device *dev, dt_graph *graph, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "a graph");
    DT_CHECK(s == graph->stream, DT_ERR_ARG, "internal: graph_launch: the graph belongs to another stream");
    DT_CUDA(cudaGraphLaunch(graph->exec, s->handle));
    return DT_OK;
}

void cuda_graph_destroy(dt_device *dev, dt_graph *graph)
{
    if (!graph) return;
    if (graph->exec && !dt_device_failure()) cudaGraphExecDestroy(graph->exec);
    free(graph);
}
