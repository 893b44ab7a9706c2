/* graphs.h - what a stream is given while a graph is captured from it is kept, and done when the graph is launched. */
#ifndef CUDA_SIM_GRAPHS_H
#define CUDA_SIM_GRAPHS_H

#include <cuda_runtime_api.h>
#include <functional>
#include <sim.h>

/** Is a graph captured from the stream? Waits and events are refused then. */
bool sim_is_captured(cudaStream_t stream);
/** Does this thread capture a graph? Then it may not allocate. */
bool sim_captures();
/** Keep what a captured stream is given: false for others. */
bool sim_keep(cudaStream_t stream, const std::function<void()> &work);
/** The same for a launch, whose kernel's arguments are copied. */
bool sim_keep_launch(const sim_launch &launch);

#endif
