# sim.mk - the CUDA device on a simulator of CUDA, for tests (tests/cuda_sim/include/sim.h). It
# compiles the same sources without nvcc or CUDA's headers. matmuls of cuBLASLt are plain loops, and
# NCCL uses MPI. Multiply and add round separately. Invalid addresses, indices and shifts call the
# simulator. The second object is slower and detects races: it is compiled with -fsanitize=thread,
# whose hooks are in tests/cuda_sim/race.cc.
SIM_SRC    = $(wildcard cuda/*.cu cuda/*.c) $(wildcard tests/cuda_sim/*.cc tests/cuda_sim/*.c)
SIM_LIBS   = $(foreach s,cudasim cudasim_races,$(BUILD)/libdtrain_$(s).so $(BUILD)/tests/$(s)_wrong)
SIM_INC    = -Itests/cuda_sim/include -Iinclude -Icuda -D_GNU_SOURCE
SIM_FLAGS ?= -O2 -g1 -march=native# many kernels call fmaf
SIM_CXX    = $(CXX) $(SIM_INC) $(SIM_FLAGS) -std=c++17 -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-gnu-unique -ffp-contract=off -Wall -Wno-unknown-pragmas -MMD -MP -c -o $@
cudasim: $(SIM_LIBS)  ## build the CUDA device on a simulator, for tests (DTRAIN_DEVICE=cudasim)
define SIM_RULES
$(BUILD)/$(1)/%.cu.o: %.cu | $(BUILD)/mpi
	@mkdir -p $$(@D)
	$$(call SAY,CXX,$$@)$$(SIM_CXX) $(2) $(3) -include cuda_runtime.h -fsanitize=alignment,bounds,shift -x c++ $$<
$(BUILD)/$(1)/%.cc.o: %.cc | $(BUILD)/mpi
	@mkdir -p $$(@D)
	$$(call SAY,CXX,$$@)$$(SIM_CXX) $(2) $$<
$(BUILD)/$(1)/cuda/attention_cudnn.c.o: private override CFLAGS += -DDT_HAVE_CUDNN
$(BUILD)/$(1)/%.c.o: %.c $(BUILD)/mpi
	@mkdir -p $$(@D)
	$$(call SAY,CC,$$@)$(MPICC) $(SIM_INC) '-DDT_NVML="libdtrain_$(1).so"' $$(CFLAGS) -fPIC -MMD -MP -c -o $$@ $$<
$(BUILD)/libdtrain_$(1).so: $(SIM_SRC:%=$(BUILD)/$(1)/%.o)
	$$(call SAY,LD,$$@)$(CXX) -shared -Wl,-Bsymbolic,-soname,libdtrain_$(1).so -o $$@ $$^ -lpthread -ldl
$(BUILD)/tests/$(1)_wrong: $(patsubst %,$(BUILD)/$(1)/tests/cuda_sim/%.o,wrong.cu $(notdir $(filter-out %/cublaslt.cc,$(wildcard tests/cuda_sim/*.cc))))
	@mkdir -p $$(@D)
	$$(call SAY,LD,$$@)$(CXX) -rdynamic -o $$@ $$^ -lpthread -ldl
endef
$(eval $(call SIM_RULES,cudasim))
$(eval $(call SIM_RULES,cudasim_races,-DCUDA_SIM_RACES,-fsanitize=thread))
.PHONY: cudasim
-include $(foreach s,cudasim cudasim_races,$(patsubst %,$(BUILD)/$(s)/%.d,$(SIM_SRC) tests/cuda_sim/wrong.cu))
