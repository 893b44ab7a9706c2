/* dnn.c - see dnn.h. Compiled if cuDNN's headers are available (DT_HAVE_CUDNN); not linked against cuDNN. */
#ifdef DT_HAVE_CUDNN
#include "dnn.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define CUDNN_FILE "libcudnn.so.9"
enum { OLDEST = 91000 }; /* masks with -inf; older versions need the lowest float */

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* The chip for plans without a GPU, in the library's own description. */
static const char H100[] =
    "{\"cudaDeviceId\":0,\"deviceVer\":900,\"driverVer\":13000,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,"
    "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"pciDeviceId\":9008,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"totalGlobalMem\":85000000000,"
    "\"deviceName\":\"NVIDIA H100 80GB HBM3\"}";

static bool find_functions(cudnn_library *l, void *object, char *why, size_t why_size)
{
    const char *missing = NULL;
#define CUDNN_FIND(function)                                                                                           \
    *(void **)&l->function = dlsym(object, #function);                                                                 \
    if (!l->function) missing = #function;
    CUDNN_FUNCTIONS(CUDNN_FIND)
#undef CUDNN_FIND
    if (missing) snprintf(why, why_size, "%s: function %s is missing", CUDNN_FILE, missing);
    return !missing;
}

static void describe_h100(cudnn_library *l, char *why, size_t why_size)
{
    cudnnStatus_t status = l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &l->device);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnBackendSetAttribute(l->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                             sizeof H100 - 1, H100);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendFinalize(l->device);
    if (status != CUDNN_STATUS_SUCCESS)
        snprintf(why, why_size, "cuDNN does not accept an H100's properties: %s", l->cudnnGetErrorString(status));
}

bool cudnn_library_open(cudnn_library *l, bool planning, char *why, size_t why_size)
{
    *why = '\0';
    void *object = dlopen(CUDNN_FILE, RTLD_LAZY | RTLD_LOCAL); /* never closed, which the library does not support */
    if (!object) {
        snprintf(why, why_size, "%s", dlerror());
        return false;
    }
    if (!find_functions(l, object, why, why_size)) return false;
    const size_t version = l->cudnnGetVersion();
    if (version < OLDEST) {
        snprintf(why, why_size, "%s: expected cuDNN 9.10 or later, found %zu.%zu", CUDNN_FILE, version / 10000,
                 version / 100 % 100);
        return false;
    }
    if (planning) {
        describe_h100(l, why, why_size);
        return !*why;
    }
    const cudnnStatus_t status = l->cudnnCreate(&l->handle);
    if (status == CUDNN_STATUS_SUCCESS) return true;
    snprintf(why, why_size, "cudnnCreate: %s", l->cudnnGetErrorString(status));
    l->handle = NULL;
    return false;
}

void cudnn_library_close(cudnn_library *l)
{
    if (l->device) l->cudnnBackendDestroyDescriptor(l->device);
    if (l->handle) l->cudnnDestroy(l->handle);
    *l = (cudnn_library){0};
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

static bool failed(const cudnn_graph *g) { return *g->why != '\0'; }

static void note(cudnn_graph *g, cudnnStatus_t status, const char *what)
{
    char text[512] = "";
    if (status == CUDNN_STATUS_SUCCESS || failed(g)) return;
    g->library->cudnnGetLastErrorString(text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    snprintf(g->why, g->why_size, "cuDNN, %s: %s%s%s", what, g->library->cudnnGetErrorString(status), *text ? ": " : "",
             text);
}

static cudnn_descriptor make(cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnn_descriptor d = NULL;
    if (failed(g)) return NULL;
    if (g->n_made == CUDNN_MAX_DESCRIPTORS) {
        snprintf(g->why, g->why_size, "a graph has more than %d descriptors", CUDNN_MAX_DESCRIPTORS);
        return NULL;
    }
    note(g, g->library->cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    if (d) g->made[g->n_made++] = d;
    return d;
}

static void set(cudnn_graph *g, cudnn_descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *value)
{
    if (!failed(g)) note(g, g->library->cudnnBackendSetAttribute(d, name, type, n, value), "an attribute");
}

static void set_descriptor(cudnn_graph *g, cudnn_descriptor d, cudnnBackendAttributeName_t name, cudnn_descriptor value)
{
    if (value || failed(g)) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalise(cudnn_graph *g, cudnn_descriptor d, const char *what)
{
    if (!failed(g)) note(g, g->library->cudnnBackendFinalize(d), what);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static cudnn_descriptor tensor(cudnn_graph *g, int64_t id, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type,
                               bool is_virtual, bool by_value)
{
    const cudnn_descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t alignment = by_value ? (int64_t)sizeof(float) : 16;
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents.n);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.n);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalise(g, d, "a tensor");
    return d;
}

cudnn_descriptor cudnn_tensor(cudnn_graph *g, int64_t id, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type)
{
    return tensor(g, id, extents, strides, type, false, false);
}

cudnn_descriptor cudnn_scalar(cudnn_graph *g, int64_t id)
{
    const cudnn_dims one = {{1, 1, 1, 1}};
    return tensor(g, id, one, one, CUDNN_DATA_FLOAT, false, true);
}

cudnn_descriptor cudnn_between_as(cudnn_graph *g, cudnn_dims extents, cudnn_dims strides, cudnnDataType_t type)
{
    enum { FIRST = 1000 };
    return tensor(g, FIRST + g->n_virtual++, extents, strides, type, true, false);
}

cudnn_descriptor cudnn_between(cudnn_graph *g, cudnn_dims e, cudnnDataType_t type)
{
    return cudnn_between_as(g, e, (cudnn_dims){{e.n[1] * e.n[2] * e.n[3], e.n[2] * e.n[3], e.n[3], 1}}, type);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void add_op(cudnn_graph *g, cudnn_descriptor op, const char *what)
{
    finalise(g, op, what);
    if (failed(g)) return;
    if (g->n_ops < CUDNN_MAX_OPS)
        g->ops[g->n_ops++] = op;
    else
        snprintf(g->why, g->why_size, "a graph has more than %d operations", CUDNN_MAX_OPS);
}

cudnn_descriptor cudnn_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t computed_in, int axis,
                                 cudnn_descriptor x, cudnn_descriptor b, cudnn_descriptor t, cudnn_descriptor y)
{
    const cudnn_descriptor how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
                           op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    const int64_t along = axis;
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &computed_in);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &along);
    finalise(g, how, "an elementwise operation");
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op, "an elementwise operation");
    return y;
}

cudnn_descriptor cudnn_matmul(cudnn_graph *g, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c)
{
    const cudnn_descriptor how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR),
                           op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_in);
    finalise(g, how, "a matmul");
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_op(g, op, "a matmul");
    return c;
}

cudnn_descriptor cudnn_reduce(cudnn_graph *g, cudnnReduceTensorOp_t reduction, cudnn_descriptor x, cudnn_descriptor y)
{
    const cudnn_descriptor how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
                           op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_in);
    finalise(g, how, "a reduction");
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_op(g, op, "a reduction");
    return y;
}

cudnn_descriptor cudnn_reshape(cudnn_graph *g, cudnn_descriptor x, cudnn_descriptor y)
{
    const cudnn_descriptor op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op, "a reshape");
    return y;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

enum { MAX_CONFIGS = 8 };

static cudnn_descriptor describe_graph(cudnn_graph *g)
{
    const cudnn_descriptor graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    if (g->library->handle) set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->library->handle);
    finalise(g, graph, "the graph");
    return graph;
}

/* The library's proposals, best first; returns their number. */
static int ask(cudnn_graph *g, cudnn_descriptor graph, cudnn_descriptor configs[MAX_CONFIGS])
{
    const cudnn_descriptor answers = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    set_descriptor(g, answers, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, answers, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (g->library->device) set_descriptor(g, answers, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->library->device);
    finalise(g, answers, "the choice of an engine");
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (failed(g)) return 0;
    note(g,
         g->library->cudnnBackendGetAttribute(answers, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              MAX_CONFIGS, &n, configs),
         "the choice of an engine");
    return failed(g) ? 0 : (int)n;
}

static bool is_repeatable(cudnn_graph *g, cudnn_descriptor config)
{
    enum { MAX_NOTES = 16 };
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    cudnn_descriptor engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    if (failed(g) ||
        g->library->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                             &engine) != CUDNN_STATUS_SUCCESS ||
        g->library->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                             MAX_NOTES, &n, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n && i < MAX_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* Build a proposal's plan. Returns the bytes of its workspace; negative: it cannot be built. Without a GPU nothing is
 * compiled, so a proposal counts as possible. */
static int64_t plan_of(cudnn_graph *g, cudnn_descriptor config, cudnn_descriptor *plan)
{
    const cudnn_library *l = g->library;
    int64_t nbytes = -1, n = 0;
    *plan = config;
    if (!l->handle) return 0;
    *plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (failed(g)) return -1;
    set_descriptor(g, *plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    set(g, *plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &l->handle);
    if (failed(g) || l->cudnnBackendFinalize(*plan) != CUDNN_STATUS_SUCCESS ||
        l->cudnnBackendGetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                    &nbytes) != CUDNN_STATUS_SUCCESS)
        return -1;
    return nbytes;
}

static void choose(cudnn_graph *g, size_t workspace_nbytes, cudnn_plan *plan)
{
    cudnn_descriptor configs[MAX_CONFIGS], made;
    const int n = ask(g, describe_graph(g), configs);
    int n_varying = 0;
    int64_t least = -1;
    for (int i = 0; i < n && !plan->plan; i++) {
        if (!is_repeatable(g, configs[i])) {
            n_varying++;
            continue;
        }
        const int64_t nbytes = plan_of(g, configs[i], &made);
        if (nbytes >= 0 && (least < 0 || nbytes < least)) least = nbytes;
        if (nbytes < 0 || (size_t)nbytes > workspace_nbytes) continue;
        plan->plan = made;
        plan->workspace_nbytes = (size_t)nbytes;
    }
    if (plan->plan || failed(g)) return;
    if (least >= 0)
        snprintf(g->why, g->why_size, "cuDNN needs a workspace of %lld MiB", (long long)(least + (1 << 20) - 1) >> 20);
    else
        snprintf(g->why, g->why_size, "cuDNN has no engine for this graph%s",
                 n_varying ? " with bit-identical results in repeated calls" : "");
}

void cudnn_plan_make(cudnn_graph *g, size_t workspace_nbytes, cudnn_plan *plan)
{
    *plan = (cudnn_plan){0};
    if (!failed(g)) choose(g, workspace_nbytes, plan);
    plan->made = calloc((size_t)g->n_made + 1, sizeof *plan->made);
    if (!plan->made) {
        snprintf(g->why, g->why_size, "out of memory for a plan");
        for (int i = g->n_made - 1; i >= 0; i--) g->library->cudnnBackendDestroyDescriptor(g->made[i]);
        *plan = (cudnn_plan){0};
        return;
    }
    memcpy(plan->made, g->made, (size_t)g->n_made * sizeof *plan->made);
    plan->n_made = g->n_made;
    if (!plan->plan) cudnn_plan_drop(g->library, plan);
}

void cudnn_plan_drop(const cudnn_library *library, cudnn_plan *plan)
{
    for (int i = plan->n_made - 1; i >= 0; i--) library->cudnnBackendDestroyDescriptor(plan->made[i]);
    free(plan->made);
    *plan = (cudnn_plan){0};
}

static cudnnStatus_t run(const cudnn_library *l, const cudnn_plan *plan, cudnn_descriptor pack, int n,
                         const int64_t *ids, void *const *pointers, void *workspace, dt_stream *s)
{
    cudnnStatus_t status = l->cudnnSetStream(l->handle, s->handle);
    if (!status)
        status = l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    if (!status)
        status =
            l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    if (!status)
        status =
            l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!status) status = l->cudnnBackendFinalize(pack);
    return status ? status : l->cudnnBackendExecute(l->handle, plan->plan, pack);
}

dt_err cudnn_plan_run(const cudnn_library *l, const cudnn_plan *plan, int n, const int64_t *ids, void *const *pointers,
                      void *workspace, dt_stream *s)
{
    cudnn_descriptor pack = NULL;
    char text[512] = "";
    cudnnStatus_t status = l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (!status) status = run(l, plan, pack, n, ids, pointers, workspace, s);
    if (status) l->cudnnGetLastErrorString(text, sizeof text);
    if (pack) l->cudnnBackendDestroyDescriptor(pack);
    if (!status) return DT_OK;
    return dt_fail(DT_ERR_FAULT, "cuDNN: %s%s%s", l->cudnnGetErrorString(status), *text ? ": " : "", text);
}
#else
typedef int cudnn_is_not_here; /* ISO C requires a declaration in a file */
#endif
