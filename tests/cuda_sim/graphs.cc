/* graphs.cc - twins of CUDA's graphs: see graphs.h. */
#include "faults.h"
#include "graphs.h"
#include <map>
#include <mutex>
#include <vector>

typedef std::vector<std::function<void()>> work_list;
struct cudaGraphOfSim {
    work_list work;
};
struct cudaGraphExecOfSim {
    work_list work;
};

static std::mutex graphs_lock;
static std::map<cudaStream_t, cudaGraph_t> captured;
static thread_local int n_captured;

bool sim_is_captured(cudaStream_t stream)
{
    const std::lock_guard<std::mutex> lock(graphs_lock);
    return captured.count(stream) > 0;
}
bool sim_captures() { return n_captured > 0; }

bool sim_keep(cudaStream_t stream, const std::function<void()> &work)
{
    const std::lock_guard<std::mutex> lock(graphs_lock);
    const auto found = captured.find(stream);
    if (found == captured.end()) return false;
    found->second->work.push_back(work);
    return true;
}

bool sim_keep_launch(const sim_launch &launch)
{
    if (!sim_is_captured(launch.stream)) return false;
    const char *from = static_cast<const char *>(launch.context);
    std::vector<char> context(from, from + launch.context_nbytes);
    sim_launch mine = launch;
    return sim_keep(launch.stream, [mine, context]() mutable {
        mine.context = context.data();
        sim_run(mine);
    });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    SIM_PASSES("cudaStreamBeginCapture");
    const std::lock_guard<std::mutex> lock(graphs_lock);
    if (!stream || captured.count(stream)) return cudaErrorInvalidResourceHandle;
    captured[stream] = new cudaGraphOfSim;
    n_captured++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    const std::lock_guard<std::mutex> lock(graphs_lock);
    const auto found = captured.find(stream);
    if (found == captured.end()) return cudaErrorInvalidResourceHandle;
    *graph = found->second;
    captured.erase(found);
    n_captured--;
    return sim_passes("cudaStreamEndCapture");
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    SIM_PASSES("cudaGraphInstantiateWithFlags");
    *exec = new cudaGraphExecOfSim{graph->work};
    return cudaSuccess;
}

/* What it holds is of the stream that it was captured from, on which this device launches it. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    SIM_PASSES("cudaGraphLaunch");
    if (sim_is_captured(stream)) return cudaErrorStreamCaptureUnsupported;
    for (const auto &work : exec->work) work();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
