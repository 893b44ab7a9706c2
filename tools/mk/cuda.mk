# cuda.mk - the CUDA device and the transport between GPUs: shared objects that a program opens
# (src/core/object.c). CUDA=0 disables them.
CUDA_HOME  ?= $(firstword $(wildcard $(CUDA_PATH) $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)) /usr/local/cuda))
NVCC       ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA       ?= $(if $(NVCC),1,0)
CUDA_ARCHS ?= 80 90 100# chips that machine code is made for, oldest first
# nvcc translates to PTX once, for the oldest chip, because a translation for each chip takes long.
# Machine code of every chip is made from this PTX, which also serves later chips.
CUDA_OLDEST  = $(firstword $(CUDA_ARCHS))
CUDA_GENCODE = $(foreach a,$(CUDA_ARCHS:%=sm_%) compute_$(CUDA_OLDEST),-gencode arch=compute_$(CUDA_OLDEST)$(,)code=$a)
NVCCFLAGS  ?= -O3 --threads 2
override NVCCFLAGS += -std=c++17 $(CUDA_GENCODE) -Xcompiler -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall
CUDA_SRC   = $(filter-out $(NCCL_SRC),$(wildcard cuda/*.cu cuda/*.c))
CUDA_OBJ   = $(CUDA_SRC:%=$(BUILD)/%.o)
CUDA_LIB   = $(if $(filter-out 0,$(CUDA)),$(BUILD)/libdtrain_cuda.so $(if $(NCCL_HOME),$(BUILD)/libdtrain_nccl.so))
# The transport between GPUs, if NCCL exists: a separate object, so that GPUs also work without
# NCCL.
NCCL_HOME  ?= $(patsubst %/include/nccl.h,%,$(firstword $(wildcard $(addsuffix /include/nccl.h,$(CUDA_HOME) /usr/local /usr))))
NCCL_SRC   = $(wildcard cuda/nccl*.cu cuda/nccl*.c)
NCCL_OBJ   = $(NCCL_SRC:%=$(BUILD)/%.o)
# Attention of cuDNN: only headers are needed here; the library is loaded on demand.
CUDNN_HOME ?= $(patsubst %/cudnn.h,%,$(firstword $(wildcard $(addsuffix /cudnn.h,$(CUDA_HOME)/include /usr/local/include /usr/include /usr/include/x86_64-linux-gnu))))
# As in the CPU's kernels, multiply-adds are fused only where the source says so.
$(BUILD)/cuda/optimizer.cu.o $(BUILD)/cuda/classifier.cu.o: NVCCFLAGS += -fmad=false
# Warp-group matmuls (wgmma) need code for sm_90a, which only runs on sm_90.
ifneq ($(filter 90,$(CUDA_ARCHS)),)
$(BUILD)/cuda/attention_hopper.cu.o: NVCCFLAGS += -DDT_SM_90A
$(BUILD)/cuda/attention_hopper.cu.o: CUDA_GENCODE = -gencode arch=compute_90a,code=sm_90a
endif
# The assembler's report on each object's kernels (.ptxas: registers, spills) and their PTX are kept
# for tests/e2e_cuda_static.sh.
$(BUILD)/cuda/%.cu.o: cuda/%.cu | $(BUILD)/mpi
	@rm -rf $@.keep && mkdir -p $@.keep
	$(call SAY,NVCC,$@)$(NVCC) -Iinclude -Icuda $(NVCCFLAGS) -Xptxas -v --keep --keep-dir $@.keep -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$@.ptxas || { cat $@.ptxas >&2; exit 1; }
	@grep -v '^ptxas info\|bytes stack frame' $@.ptxas >&2 || true
	@find $@.keep -type f ! -name '*.ptx' -delete
$(BUILD)/cuda/%.c.o: cuda/%.c $(BUILD)/mpi
	@mkdir -p $(@D)
	$(call SAY,CC,$@)$(MPICC) -Iinclude -Icuda -D_GNU_SOURCE '-DDT_CUDA_ARCHS="$(CUDA_ARCHS)"' -isystem $(CUDA_HOME)/include $(CFLAGS) -fPIC -MMD -MP -c -o $@ $<
$(BUILD)/cuda/dnn.c.o $(BUILD)/cuda/attention_cudnn.c.o: private override CFLAGS += $(if $(CUDNN_HOME),-DDT_HAVE_CUDNN -isystem $(CUDNN_HOME))
programs: $(CUDA_LIB)
$(BUILD)/libdtrain_cuda.so: $(CUDA_OBJ)
	$(call SAY,LD,$@)$(MPICC) -shared -o $@ $^ -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -Wl,--as-needed -lcublasLt -lcudart_static -lrt -lpthread -ldl
$(BUILD)/cuda/nccl.c.o: private CPPFLAGS += -isystem $(NCCL_HOME)/include
$(BUILD)/libdtrain_nccl.so: $(NCCL_OBJ)
	$(call SAY,LD,$@)$(MPICC) -shared -o $@ $^ $(foreach d,$(CUDA_HOME)/lib64 $(NCCL_HOME)/lib,-L$d -Wl$(,)-rpath$(,)$d) -Wl,--as-needed -lnccl -lcudart_static -lrt -lpthread -ldl


# Checksum of the headers that program and shared objects share. An object compiled from other
# headers is refused (src/core/object.c).
INTERFACE  = $(addprefix include/dtrain/,core/core.h device/device.h device/device_ops.h device/op_args.h device/op_list.h device/device_check.h device/gpu_sizes.h comm/comm.h)
INTERFACE_SUM := $(shell cat $(INTERFACE) | cksum | tr ' ' -)
INTERFACE_OBJ  = $(BUILD)/src/core/object.o $(foreach d,. cudasim cudasim_races,$(BUILD)/$(d)/cuda/cuda_device.c.o $(BUILD)/$(d)/cuda/nccl.c.o)
$(INTERFACE_OBJ:$(BUILD)/./%=$(BUILD)/%): $(INTERFACE)
$(INTERFACE_OBJ:$(BUILD)/./%=$(BUILD)/%): private override CFLAGS += -DDT_INTERFACE='"$(INTERFACE_SUM)"'
-include $(CUDA_OBJ:.o=.d) $(NCCL_OBJ:.o=.d)
