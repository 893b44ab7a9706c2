/* cudnn.h - what cuda/attention_cudnn.c names of cuDNN, for the simulator of CUDA; cuda/dnn.h's functions are
 * cudnn_twin.c's. */
#ifndef CUDA_SIM_CUDNN_H
#define CUDA_SIM_CUDNN_H

#include <stddef.h>

typedef void *cudnnBackendDescriptor_t, *cudnnHandle_t;
typedef enum {
    CUDNN_DATA_FLOAT,
    CUDNN_DATA_HALF,
    CUDNN_DATA_BFLOAT16,
    CUDNN_DATA_INT32,
    CUDNN_DATA_BOOLEAN
} cudnnDataType_t;
typedef enum {
    CUDNN_POINTWISE_ADD,
    CUDNN_POINTWISE_BINARY_SELECT,
    CUDNN_POINTWISE_CMP_GE,
    CUDNN_POINTWISE_DIV,
    CUDNN_POINTWISE_EXP,
    CUDNN_POINTWISE_GEN_INDEX,
    CUDNN_POINTWISE_LOG,
    CUDNN_POINTWISE_MUL,
    CUDNN_POINTWISE_SUB
} cudnnPointwiseMode_t;
typedef enum { CUDNN_REDUCE_TENSOR_ADD, CUDNN_REDUCE_TENSOR_MAX } cudnnReduceTensorOp_t;

size_t cudnnGetVersion(void);
/* The simulator never calls these. */
int cudnnGetErrorString(void), cudnnGetLastErrorString(void), cudnnCreate(void), cudnnDestroy(void),
    cudnnSetStream(void), cudnnBackendCreateDescriptor(void), cudnnBackendDestroyDescriptor(void),
    cudnnBackendSetAttribute(void), cudnnBackendGetAttribute(void), cudnnBackendFinalize(void),
    cudnnBackendExecute(void);

#endif
