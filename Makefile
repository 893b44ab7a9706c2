# dtrain - see README.md; `make help` lists the targets, `make info` what was found on this machine
-include config.mk
VERSION  ?= 0.1.0
MPICC    ?= mpicc
CLANG    ?= clang
MPIRUN   ?= $(if $(findstring mpicc,$(MPICC)),$(subst mpicc,mpirun,$(MPICC)),mpirun)
MPI      := $(shell tools/mpi.sh kind $(MPICC))# openmpi, mpich or unknown
ifeq ($(origin HDF5),undefined)
HDF5     := $(shell tools/mpi.sh hdf5 $(MPI))# pkg-config's name of the one that was made for this MPI
endif
HDF5_CFLAGS := $(if $(HDF5),$(shell pkg-config --cflags $(HDF5)))
HDF5_LIBS   := $(if $(HDF5),$(shell pkg-config --libs $(HDF5)),-lhdf5)
PREFIX   ?= /usr/local
COMMIT   ?= $(if $(wildcard .git),$(shell git -c safe.directory=$(CURDIR) describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
BUILD    ?= build/$(if $(SAN),$(if $(filter thread,$(SAN)),tsan,san),release)
CFLAGS   ?= -O2 -g
WARNINGS  = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
WARNINGS += $(if $(filter mpich,$(MPI)),-Wno-stringop-overflow)# gcc takes MPICH's MPI_STATUSES_IGNORE, the address 1, for an array
CPPFLAGS += -Iinclude -D_GNU_SOURCE $(ISAS:%=-DDT_HAVE_ISA_%) $(HDF5_CFLAGS)
override CFLAGS += -std=c11 $(WARNINGS) -fopenmp -fno-math-errno -fno-trapping-math $(if $(SAN),-fsanitize=$(if $(filter thread,$(SAN)),thread,address$(,)undefined) -fno-omit-frame-pointer)
# Files of offloaded states go through io_uring where liburing is, else through the C library's POSIX AIO. LIBURING= leaves it out.
LIBURING ?= $(shell pkg-config --exists liburing 2>/dev/null && echo liburing)
LDLIBS   += $(HDF5_LIBS) $(if $(LIBURING),$(shell pkg-config --libs $(LIBURING))) -ljansson -linih -lpcre2-8 -lutf8proc -ldnnl -ljpeg -lpng -lwebpdemux -lwebp -lm -lpthread -ldl
,        := ,
# Libraries of modules are found without the modules' LD_LIBRARY_PATH: the folders that were searched are written into the programs. RUNPATH= turns it off.
SYSTEM_LIB = /lib /lib64 /usr/lib /usr/lib64 $(foreach m,$(shell $(MPICC) -print-multiarch 2>/dev/null),/lib/$(m) /usr/lib/$(m) /usr/lib/$(m)/%)
RUNPATH   ?= $(filter-out $(SYSTEM_LIB) %/stubs,$(patsubst -L%,%,$(filter -L%,$(LDFLAGS) $(LDLIBS))) $(subst :, ,$(LIBRARY_PATH)))
override LDFLAGS := $(LDFLAGS) $(RUNPATH:%=-Wl$(,)-rpath$(,)%) -rdynamic# shared objects of ours use the program's errors and log
# All cores, where the user gave no -j: a -j on the command line wins over this line, one in the environment is looked for. Not with
# "make clean all", which must go in order. Only at the top: a make below takes part in the count of the one above.
ifeq ($(MAKELEVEL)$(filter clean,$(MAKECMDGOALS))$(findstring j,$(shell printf %s "$$MAKEFLAGS")),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEAGAIN = +@$(MAKE) --no-print-directory
SAY       = $(if $(V),,@echo "  $(1) $(2)"; )# V=1 shows the commands

# Kernels in src/device/isa are compiled once for each instruction set and chosen when the program runs. DT_ISA is the name of the set.
TARGET   := $(firstword $(subst -, ,$(shell $(MPICC) -dumpmachine 2>/dev/null)))
compiles  = $(shell $(MPICC) $(1) -E -x c /dev/null >/dev/null 2>&1 && echo yes)
ISAS_x86_64  = $(if $(call compiles,-march=x86-64-v4),v2 v3 v4)
ISAS_aarch64 = neon sve $(if $(call compiles,-march=armv8.2-a+sve+bf16),neon_bf16 sve_bf16)
ISAS     ?= $(or $(strip $(ISAS_$(TARGET))),base)
ISA_CFLAGS_v2   ?= -march=x86-64-v2
ISA_CFLAGS_v3   ?= -march=x86-64-v3
ISA_CFLAGS_v4   ?= -march=x86-64-v4 -mprefer-vector-width=512
ISA_CFLAGS_neon      ?= -march=armv8-a
ISA_CFLAGS_neon_bf16 ?= -march=armv8.2-a+bf16
ISA_CFLAGS_sve       ?= -march=armv8.2-a+sve
ISA_CFLAGS_sve_bf16  ?= -march=armv8.2-a+sve+bf16
ISA_CFLAGS_base ?=

TOOL      = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/tool/*.c))
INFO      = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/info/*.c))
GENERATE  = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/generate/*.c))
SID       = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/sid/*.c))
ROOMS     = core device optim comm io text image process zero model adapter data checkpoint pretrained report draw sid generate catalogue step rollout reward task train
ISA_SRC   = $(wildcard src/device/isa/*.c)
LIB_SRC   = $(foreach r,$(ROOMS),$(wildcard src/$(r)/*.c) $(filter-out $(ISA_SRC),$(wildcard src/$(r)/*/*.c)))
LIB_OBJ   = $(LIB_SRC:%.c=$(BUILD)/%.o) $(foreach i,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/%.$(i).o))
LIB       = $(BUILD)/libdtrain.a
PROGRAMS  = $(patsubst src/main/%.c,%,$(wildcard src/main/*.c))
TEST_SRC  = $(wildcard tests/test_*.c tests/mpi_*.c)
TESTS     = $(TEST_SRC:%.c=$(BUILD)/%)
TEST_SUP  = $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/ref_*.c))
FUZZ      = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES   = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench_*.c))

all: setup  ## the programs, at the top of the tree
	$(MAKEAGAIN) programs
setup:  ## install the packages that are missing, or say which they are
	@MPICC="$(MPICC)" tools/setup.sh build
demo:  ## from a bare machine to a trained model, some text by it and a picture of its loss
	@MPICC="$(MPICC)" TEXT="$(TEXT)" tools/setup.sh demo
	$(MAKEAGAIN) programs
	@MPIRUN="$(MPIRUN)" TEXT="$(TEXT)" tools/demo.sh
test: test-setup  ## from a bare machine to the line "N passed, M failed, K skipped"
	$(MAKEAGAIN) check
test-setup:
	@MPICC="$(MPICC)" tools/setup.sh test
check: programs tests-build  ## the tests alone (ONLY=pattern runs those whose name contains it)
	@$(FOR_TESTS) SAN=$(SAN) tests/run.sh $(ONLY)
FOR_TESTS = BUILD=$(BUILD) MPICC="$(MPICC)" MPIRUN="$(MPIRUN)" HDF5="$(HDF5)"
test-full: test-setup  ## make test, then the campaigns (tests/full_*.sh): signals at random moments, every flipped bit of a file (an hour or more)
	$(MAKEAGAIN) full
full: programs tests-build
	@$(FOR_TESTS) SAN=$(SAN) FULL=1 tests/run.sh $(ONLY)
bench: setup  ## tables of figures (the machine should be idle)
	$(MAKEAGAIN) programs benches
	@$(FOR_TESTS) tools/bench.sh $(ONLY)

# The CUDA device: a shared object that a program opens where a GPU is asked for (src/core/object.c). CUDA=0 leaves it out.
CUDA_HOME  ?= $(firstword $(wildcard $(CUDA_PATH) $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)) /usr/local/cuda))
NVCC       ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA       ?= $(if $(NVCC),1,0)
CUDA_ARCHS ?= 80 90 100# chips that machine code is made for; PTX of the last one serves later chips
CUDA_GENCODE = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(,)code=sm_$(a)) $(foreach a,$(lastword $(CUDA_ARCHS)),-gencode arch=compute_$(a)$(,)code=compute_$(a))
NVCCFLAGS  ?= -O3 --threads 2
override NVCCFLAGS += -std=c++17 $(CUDA_GENCODE) -Xcompiler -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall
CUDA_SRC   = $(filter-out $(NCCL_SRC),$(wildcard cuda/*.cu cuda/*.c))
CUDA_OBJ   = $(CUDA_SRC:%=$(BUILD)/%.o)
CUDA_LIB   = $(if $(filter-out 0,$(CUDA)),$(BUILD)/libdtrain_cuda.so $(if $(NCCL_HOME),$(BUILD)/libdtrain_nccl.so))
# The transport between GPUs, where NCCL is: another object, so that GPUs serve without it, too.
NCCL_HOME  ?= $(patsubst %/include/nccl.h,%,$(firstword $(wildcard $(addsuffix /include/nccl.h,$(CUDA_HOME) /usr/local /usr))))
NCCL_SRC   = $(wildcard cuda/nccl*.cu cuda/nccl*.c)
NCCL_OBJ   = $(NCCL_SRC:%=$(BUILD)/%.o)
# cuDNN's attention: its headers are looked for here, the library when it is asked for.
CUDNN_HOME ?= $(patsubst %/cudnn.h,%,$(firstword $(wildcard $(addsuffix /cudnn.h,$(CUDA_HOME)/include /usr/local/include /usr/include /usr/include/x86_64-linux-gnu))))
# Like the CPU's kernels: products are fused where it is written, and nowhere else.
$(BUILD)/cuda/optimizer.cu.o $(BUILD)/cuda/classifier.cu.o: NVCCFLAGS += -fmad=false
# Products of four warps are code of sm_90a, which runs on sm_90 alone.
$(BUILD)/cuda/attention_hopper.cu.o: NVCCFLAGS += $(if $(filter 90,$(CUDA_ARCHS)),-DDT_SM_90A)
$(BUILD)/cuda/attention_hopper.cu.o: CUDA_GENCODE = $(patsubst %,-gencode arch=compute_%,$(foreach a,$(CUDA_ARCHS:90=90a),$a$(,)code=sm_$a))
# Beside each object stays what the assembler says of its kernels (.ptxas: registers, spills), and their PTX: tests/e2e_cuda_static.sh looks at both.
$(BUILD)/cuda/%.cu.o: cuda/%.cu | $(BUILD)/mpi
	@rm -rf $@.keep && mkdir -p $@.keep
	$(call SAY,NVCC,$@)$(NVCC) -Iinclude -Icuda $(NVCCFLAGS) -Xptxas -v --keep --keep-dir $@.keep -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$@.ptxas || { cat $@.ptxas >&2; exit 1; }
	@grep -v '^ptxas info\|bytes stack frame' $@.ptxas >&2 || true
	@find $@.keep -type f ! -name '*.ptx' -delete
$(BUILD)/cuda/%.c.o: cuda/%.c $(BUILD)/mpi
	@mkdir -p $(@D)
	$(call SAY,CC,$@)$(MPICC) -Iinclude -Icuda -D_GNU_SOURCE '-DDT_CUDA_ARCHS="$(CUDA_ARCHS)"' -isystem $(CUDA_HOME)/include $(CFLAGS) -fPIC -MMD -MP -c -o $@ $<
$(BUILD)/cuda/dnn.c.o $(BUILD)/cuda/attention_cudnn.c.o: private override CFLAGS += $(if $(CUDNN_HOME),-DDT_HAVE_CUDNN -isystem $(CUDNN_HOME))
$(BUILD)/libdtrain_cuda.so: $(CUDA_OBJ)
	$(call SAY,LD,$@)$(MPICC) -shared -o $@ $^ -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -Wl,--as-needed -lcublasLt -lcudart_static -lrt -lpthread -ldl
$(BUILD)/cuda/nccl.c.o: private CPPFLAGS += -isystem $(NCCL_HOME)/include
$(BUILD)/libdtrain_nccl.so: $(NCCL_OBJ)
	$(call SAY,LD,$@)$(MPICC) -shared -o $@ $^ $(foreach d,$(CUDA_HOME)/lib64 $(NCCL_HOME)/lib,-L$d -Wl$(,)-rpath$(,)$d) -Wl,--as-needed -lnccl -lcudart_static -lrt -lpthread -ldl

# The same sources on a simulator of CUDA, for tests (tests/cuda_sim/include/sim.h): neither nvcc nor CUDA's headers are needed,
# cuBLASLt's products are plain loops, NCCL goes over MPI. A product and a sum are two roundings; what an address, an index or a shift does wrong calls the simulator. The second object
# is slower and looks for races: -fsanitize=thread without its library calls tests/cuda_sim/race.cc.
SIM_SRC    = $(wildcard cuda/*.cu cuda/*.c) $(wildcard tests/cuda_sim/*.cc tests/cuda_sim/*.c)
SIM_LIBS   = $(foreach s,cudasim cudasim_races,$(BUILD)/libdtrain_$(s).so $(BUILD)/tests/$(s)_wrong)
SIM_INC    = -Itests/cuda_sim/include -Iinclude -Icuda -D_GNU_SOURCE
SIM_FLAGS ?= -O2 -g -march=native# many kernels call fmaf
SIM_CXX    = $(CXX) $(SIM_INC) $(SIM_FLAGS) -std=c++17 -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-gnu-unique -ffp-contract=off -Wall -Wno-unknown-pragmas -MMD -MP -c -o $@
cudasim: $(SIM_LIBS)  ## the CUDA device on a simulator, for tests (DTRAIN_DEVICE=cudasim)
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

# What the program and the shared objects must have in common: an object that was compiled from other headers is refused (src/core/object.c).
INTERFACE  = $(addprefix include/dtrain/,core.h int8.h device.h device_ops.h device_check.h gpu_sizes.h comm.h)
INTERFACE_SUM := $(shell cat $(INTERFACE) | cksum | tr ' ' -)
INTERFACE_OBJ  = $(BUILD)/src/core/object.o $(foreach d,. cudasim cudasim_races,$(BUILD)/$(d)/cuda/device.c.o $(BUILD)/$(d)/cuda/nccl.c.o)
$(INTERFACE_OBJ:$(BUILD)/./%=$(BUILD)/%): $(INTERFACE)
$(INTERFACE_OBJ:$(BUILD)/./%=$(BUILD)/%): private override CFLAGS += -DDT_INTERFACE='"$(INTERFACE_SUM)"'

# Those at the top of the tree are of the usual build: sanitizers and experiments in folders of their own do not replace them.
programs: $(if $(filter $(abspath build/release),$(abspath $(BUILD))),$(PROGRAMS),$(PROGRAMS:%=$(BUILD)/%)) $(CUDA_LIB)
$(PROGRAMS): %: $(BUILD)/% FORCE
	@cmp -s $< $@ || { cp $< $@.new && mv -f $@.new $@; }
$(PROGRAMS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/src/main/%.o $(LIB)
	$(call SAY,LD,$@)$(MPICC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(LDLIBS)
$(PROGRAMS:%=$(BUILD)/%): $(TOOL)
$(BUILD)/dtrain-generate: $(GENERATE)
$(BUILD)/src/io/swap_%.o: CPPFLAGS += $(if $(LIBURING),-DDT_HAVE_LIBURING $(shell pkg-config --cflags $(LIBURING)))
# Editing of lines in --chat, where libedit is.
LIBEDIT  ?= $(shell pkg-config --exists libedit 2>/dev/null && echo libedit)
$(BUILD)/src/main/generate/line.o: CPPFLAGS += $(if $(LIBEDIT),-DDT_HAVE_LIBEDIT $(shell pkg-config --cflags $(LIBEDIT)))
$(BUILD)/dtrain-generate: LDLIBS += $(if $(LIBEDIT),$(shell pkg-config --libs $(LIBEDIT)))
$(BUILD)/dtrain-info: $(INFO)
$(BUILD)/dtrain-sid: $(SID)
# What --version says. The file keeps its time while its text is the same, so that nothing is compiled again for it. COMMIT=... where there is no .git.
$(BUILD)/build_version.h: FORCE
	@mkdir -p $(@D)
	@{ echo '#define BUILD_VERSION "$(VERSION)"'; echo '#define BUILD_COMMIT "$(or $(COMMIT),unknown)"'; \
	   echo '#define BUILD_FLAGS "$(subst ",\",$(filter-out -W%,$(CFLAGS)))"'; echo '#define BUILD_ISAS "$(ISAS)"'; } >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/src/main/tool/version.o: $(BUILD)/build_version.h
$(BUILD)/src/main/tool/version.o: CPPFLAGS += -I$(BUILD)
$(BUILD)/src/data/make/rec_default.o: input/minionerec.json # is in it
FORCE:
$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(call SAY,AR,$@)ar rcs $@ $^
	@echo "$$LOADEDMODULES" | tr : ' ' > $(BUILD)/modules # for make install
# What all objects were compiled for. Another MPI or HDF5 in the same folder: everything is compiled again. Two MPIs at a time: refused.
$(BUILD)/mpi: FORCE
	@mkdir -p $(@D)
	@echo "$(MPI) $(HDF5)" | cmp -s - $@ || { tools/mpi.sh check "$(MPICC)" "$(CPPFLAGS)" "$(HDF5_LIBS)" && echo "$(MPI) $(HDF5)" >$@; }
$(BUILD)/%.o: %.c $(BUILD)/mpi
	@mkdir -p $(@D)
	$(call SAY,CC,$@)$(MPICC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
define ISA_RULE
$(BUILD)/src/device/isa/%.$(1).o: src/device/isa/%.c $(BUILD)/mpi
	@mkdir -p $$(@D)
	$$(call SAY,CC,$$@)$(MPICC) $(CPPFLAGS) $(CFLAGS) -O3 -ffp-contract=off $(ISA_CFLAGS_$(1)) -DDT_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call ISA_RULE,$(i))))
tests-build: $(TESTS) $(FUZZ) $(SIM_LIBS)
benches: $(BENCHES)
$(FUZZ): $(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(if $(FUZZER),,$(BUILD)/tests/fuzz/replay.o) $(LIB)
	$(call SAY,LD,$@)$(MPICC) $(CFLAGS) $(FUZZER) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/tests/mpi_memory: override LDFLAGS += -Wl,--wrap=dt_ledger_add# tests/memory_guard.h
$(BUILD)/tests/test_data_make_images: override LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
$(BUILD)/tests/fuzz/fuzz_image: override LDFLAGS += -Wl,--wrap=dt_image_alloc
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_SUP) $(LIB)
	$(call SAY,LD,$@)$(MPICC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(TEST_SUP) $(LIB) -lcmocka $(LDLIBS)

check-queue: programs tests-build  ## the tests on the device whose streams run late and out of order (tests/run.sh), programs with twenty seeds
	@BUILD=$(BUILD) QUEUE_ONLY=1 QUEUE_SEEDS="$(shell seq 0 19)" tests/run.sh $(ONLY)
SIM_TESTS = test_zero_streams test_model_ mpi_zero mpi_checkpoint mpi_run mpi_generate
test-cudasim: programs tests-build  ## all operations of the CUDA device on the simulator of CUDA, then looking for races, of streams in SIM_TESTS, too (SIM_SEED=1; hours)
	@for d in cudasim cudasim_races; do $(ON_SIM) DTRAIN_DEVICE=$$d tests/run.sh $(or $(ONLY),test_device_) || exit 1; done
	@for t in $(if $(ONLY),,$(SIM_TESTS)); do $(ON_SIM) DTRAIN_DEVICE=cudasim_races NP="$(or $(NP),1 2)" tests/run.sh $$t || exit 1; done
ON_SIM = DTRAIN_SIM_SEED=$(or $(SIM_SEED),1) TEST_TIMEOUT=3600 BUILD=$(BUILD)
test-reproducible: programs  ## run.reproducible on every layout: all ranks x stages x offloads x threads of each model (MODELS="plain tied"; an hour)
	@$(FOR_TESTS) REPRODUCIBLE=full MODELS="$(MODELS)" bash tests/e2e_reproducible.sh
mutants: mutants-host mutants-cuda  ## make each line of two kinds wrong in turn: one of the tests must fail (docs/testing.md has the last tables; hours)
mutants-host:  ## each wait and each copy left out
	@$(FOR_TESTS) tests/mutants.sh
mutants-cuda:  ## each barrier, shuffle, guard, event, stride and the like of the CUDA device made wrong, on the simulator
	@$(FOR_TESTS) tests/mutants_cuda.sh
sanitize: test-setup  ## the tests under the address and undefined-behaviour sanitizers, then each fuzz target for FUZZ_SECONDS
	$(MAKEAGAIN) SAN=1 CUDA=0 check
	$(MAKEAGAIN) fuzz
# Writers of checkpoints, transfers of swap files, readers ahead, signals, watchdogs, and two ranks as threads. One rank of one OpenMP thread
# each: the thread sanitizer does not see what libgomp orders.
WITH_THREADS = test_swap_file test_data_loader test_data_make test_data_make_images test_zero_streams test_zero_overlap test_signals mpi_checkpoint_async mpi_zero_offload mpi_run
sanitize-threads: test-setup  ## the tests of what runs beside each other in one process under the thread sanitizer
	$(MAKEAGAIN) SAN=thread CUDA=0 FUZZ= SIM_LIBS= TEST_SRC="$(WITH_THREADS:%=tests/%.c)" OMP_NUM_THREADS=1 NP=1 check ONLY="$(WITH_THREADS)"
fuzz:  ## run each fuzz target for FUZZ_SECONDS (default 60; clang)
	@tools/setup.sh fuzz
	+@OMPI_CC=$(CLANG) MPICH_CC=$(CLANG) $(MAKE) --no-print-directory BUILD=build/fuzz SAN=1 CUDA=0 CFLAGS="-O1 -g -fsanitize=fuzzer-no-link -Wno-pass-failed" \
	  FUZZER=-fsanitize=fuzzer fuzz-build
	@tests/fuzz/fuzz.sh build/fuzz/tests/fuzz $(or $(FUZZ_SECONDS),60)
fuzz-build: $(FUZZ)
# A machine with a GPU; docs/testing.md has one that lacks MPI and all else.
test-gpu: test-setup  ## the tests with the GPU in the place of the CPU, and trainings on it against the CPU's
	$(MAKEAGAIN) programs tests-build
	@$(FOR_TESTS) tools/gpu/run.sh suite
bench-gpu: setup  ## figures of the GPU, beside PyTorch's where that is found (PARTS="steps=all grpo": tools/gpu/bench.sh has the list)
	$(MAKEAGAIN) programs benches
	@$(FOR_TESTS) tools/gpu/run.sh bench $(PARTS)
gpu-bundle: test-setup  ## build/gpu-bundle.tar.xz: what these need on a bare GPU machine
	$(MAKEAGAIN) programs tests-build benches
	@$(FOR_TESTS) tools/gpu/pack.sh
valgrind: programs tests-build  ## the tests under valgrind (slow)
	@$(FOR_TESTS) VALGRIND=1 tests/run.sh $(ONLY)
# Other compilers, libraries and machines: docs/portability.md.
ELSEWHERE = BUILD=build/$(1) CUDA=0 FUZZ= TEST_SRC="$(or $(wildcard tests/*$(or $(ONLY),$(2))*.c),$(TEST_SRC))" check ONLY="$(or $(ONLY),$(2))"
test-mpich:  ## build with MPICH and its HDF5, run the tests of several ranks (ONLY=pattern for others)
	@MPICC=mpicc.mpich tools/setup.sh test
	+@$(MAKE) --no-print-directory MPICC=mpicc.mpich $(call ELSEWHERE,mpich,mpi_)
test-clang:  ## build with clang, run the tests of the kernels (ONLY=pattern for others)
	@tools/setup.sh clang
	+@OMPI_CC=$(CLANG) MPICH_CC=$(CLANG) $(MAKE) --no-print-directory CFLAGS="-O2 -g -Wno-pass-failed" $(call ELSEWHERE,clang,test_device)
test-debian13:  ## make test in a chroot of Debian 13, that is gcc 14, Open MPI 5, HDF5 1.14, oneDNN 3 (root, debootstrap)
	@ONLY="$(ONLY)" tools/chroot.sh trixie amd64 make test
test-aarch64:  ## make test in a chroot of Debian 12 for arm64, by qemu where the machine is another (root, debootstrap)
	@ONLY="$(ONLY)" QEMU_CPU=$(or $(QEMU_CPU),max) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) tools/chroot.sh bookworm arm64 make test
docs: $(BUILD)/tests/test_config programs  ## write docs/keys.md from the table of keys, tables of docs/memory.md, manual pages from --help
	@mkdir -p docs && $(BUILD)/tests/test_config --markdown > docs/keys.md
	@tools/plan_tables.sh > $(BUILD)/plan_tables && sed -i '/^<!-- tools\/plan_tables.sh/q' docs/memory.md && cat $(BUILD)/plan_tables >> docs/memory.md
	@for p in $(filter-out dtrain,$(PROGRAMS)); do tools/man.sh $$p > docs/$$p.1; done
kernels:  ## write docs/gpu-kernels.md: registers, spills and occupancy of the CUDA kernels, for all chips (nvcc; some minutes)
	+@$(MAKE) --no-print-directory BUILD=build/kernels CUDA_ARCHS="80 90 100" build/kernels/libdtrain_cuda.so build/kernels/libdtrain_nccl.so
	@NVCC=$(NVCC) tools/cuda_kernels.sh build/kernels --table > docs/gpu-kernels.md
lint:  ## clang-tidy and cppcheck; do comments cite pages and sections that exist? has docs/gpu-kernels.md the kernels that were built?
	@tools/check_citations.sh
	@if ls $(BUILD)/cuda/*.ptxas >/dev/null 2>&1; then tools/cuda_kernels.sh $(BUILD) --compare docs/gpu-kernels.md; fi
	@cppcheck -q --std=c11 --enable=warning,portability --inline-suppr --suppress=invalidPointerCast -Iinclude -D_GNU_SOURCE --error-exitcode=1 src
	@clang-tidy --quiet $(LIB_SRC) -- $(CPPFLAGS) $(shell $(MPICC) --showme:compile 2>/dev/null) -std=c11 -fopenmp
format:  ## clang-format in place
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc')

DEST      = $(DESTDIR)$(PREFIX)
DOCUMENTS = README.md LICENSE CHANGELOG.md CITATION.cff CONTRIBUTING.md
BUILT_WITH = $(firstword $(notdir $(MPICC))), $(shell $(MPICC) --version 2>/dev/null | head -1), $(shell $(MPIRUN) --version 2>/dev/null | sed -n "1s/^mpirun //p"), HDF5 $(or $(shell pkg-config --modversion $(HDF5) 2>/dev/null),unknown)
MODULES   ?= $(shell cat $(BUILD)/modules 2>/dev/null)# environment modules that the installed one asks for: those loaded when this was built
install: all  ## to PREFIX (DESTDIR honoured): programs, man pages, documentation, examples, job scripts, modulefiles
	install -d $(addprefix $(DEST)/,bin share/man/man1 share/doc/dtrain/docs share/dtrain/input/models share/dtrain/jobs share/dtrain/tools share/bash-completion/completions share/zsh/site-functions share/modulefiles/dtrain)
	install -m 755 $(PROGRAMS:%=$(BUILD)/%) $(DEST)/bin
	$(if $(CUDA_LIB),install -d $(DEST)/lib/dtrain && install -m 755 $(CUDA_LIB) $(DEST)/lib/dtrain)
	install -m 644 $(wildcard docs/*.1) $(DEST)/share/man/man1
	install -m 644 $(DOCUMENTS) $(DEST)/share/doc/dtrain
	install -m 644 $(wildcard docs/*.md docs/*.svg) $(DEST)/share/doc/dtrain/docs
	install -m 644 $(wildcard input/*.ini input/*.json input/*.jsonl) $(DEST)/share/dtrain/input
	for p in $(PROGRAMS); do install -m 644 tools/completion/dtrain.bash $(DEST)/share/bash-completion/completions/$$p || exit 1; done
	install -m 644 tools/completion/_dtrain $(DEST)/share/zsh/site-functions
	install -m 755 tools/wandb_offline.py $(wildcard tools/reward_*) $(DEST)/share/dtrain/tools
	install -m 644 $(wildcard input/models/*) $(DEST)/share/dtrain/input/models
	for job in $(wildcard jobs/*); do sed 's|^bin=.*|bin=$(PREFIX)/bin|' $$job > $(DEST)/share/dtrain/$$job && chmod 644 $(DEST)/share/dtrain/$$job || exit 1; done
	for form in '' .lua; do sed -e 's|@PREFIX@|$(PREFIX)|g; s|@VERSION@|$(VERSION)|g; s|@MODULES@|$(MODULES)|g; s|@BUILT_WITH@|$(BUILT_WITH)|g' \
	  tools/modulefile$$form.in > $(DEST)/share/modulefiles/dtrain/$(VERSION)$$form || exit 1; done
info:  ## what was found and what it turns on
	@echo "version    $(VERSION)"
	@echo "compiler   $(shell $(MPICC) --version 2>/dev/null | head -1)"
	@echo "MPI        $(shell command -v $(MPICC) || echo missing) ($(MPI)); started by $(MPIRUN): $(shell $(MPIRUN) --version 2>/dev/null | head -1)"
	@echo "HDF5       $(or $(HDF5),missing) $(shell pkg-config --modversion $(HDF5) 2>/dev/null)"
	@tools/mpi.sh check "$(MPICC)" "$(CPPFLAGS)" "$(HDF5_LIBS)" || true
	@echo "CPU sets   $(ISAS)"
	@echo "CUDA       $(if $(CUDA_LIB),$(NVCC) $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') for $(CUDA_ARCHS:%=sm_%),$(if $(NVCC),left out,no nvcc))"
	@echo "flags      $(CFLAGS)"
	@echo "libraries  $(LDLIBS)"
	@echo "run path   $(or $(RUNPATH),that of the system)"
	@echo "build      $(BUILD)"
help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*##/\1:/p' Makefile | awk -F':  *' '{ printf "  make %-13s %s\n", $$1, $$2 }'
clean:  ## remove all that was built
	rm -rf build $(PROGRAMS)
.PHONY: all setup demo test test-setup test-full full check check-queue test-cudasim test-reproducible test-gpu bench-gpu gpu-bundle mutants mutants-host mutants-cuda bench programs cudasim tests-build benches sanitize sanitize-threads fuzz fuzz-build valgrind test-mpich test-clang test-debian13 test-aarch64 docs kernels lint format install info help clean FORCE
.SECONDARY:
-include $(LIB_OBJ:.o=.d) $(PROGRAMS:%=$(BUILD)/src/main/%.d) $(GENERATE:.o=.d) $(SID:.o=.d) $(TOOL:.o=.d) $(INFO:.o=.d) $(TEST_SRC:%.c=$(BUILD)/%.d) $(TEST_SUP:.o=.d) $(CUDA_OBJ:.o=.d) $(NCCL_OBJ:.o=.d) $(foreach s,cudasim cudasim_races,$(patsubst %,$(BUILD)/$(s)/%.d,$(SIM_SRC) tests/cuda_sim/wrong.cu)) $(FUZZ:=.d) $(BENCHES:=.d)
