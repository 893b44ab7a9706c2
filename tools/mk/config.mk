# config.mk - compilers, libraries and flags. tools/mk/probe.sh detects the machine's features once,
# and they are kept in $(BUILD)/config.mk.
VERSION  ?= 0.1.0
MPICC    ?= mpicc
CLANG    ?= clang
MPIRUN   ?= $(if $(findstring mpicc,$(MPICC)),$(subst mpicc,mpirun,$(MPICC)),mpirun)
# of the launcher; MPICH's prints it in its second line
LAUNCHER  = $(shell $(MPIRUN) --version 2>/dev/null | awk 'NR == 1 { sub(/^mpirun[^ ]* /, ""); text = $$0 } /^ *Version:/ { text = "MPICH " $$2 } END { print text }')
PREFIX   ?= /usr/local
BUILD    ?= build/$(if $(SAN),$(if $(filter thread,$(SAN)),tsan,san),release)
,        := ,

# Whether the user set a variable: on the command line, in the environment or in config.mk at the
# top of the tree.
HDF5_GIVEN := $(if $(filter undefined,$(origin HDF5)),undefined,given)
ISAS_GIVEN := $(filter-out undefined,$(origin ISAS))
CUDA_GIVEN := $(filter-out undefined,$(origin CUDA))
CFLAGS_GIVEN := $(filter-out undefined,$(origin CFLAGS))

# Targets that only start another make, possibly after installing packages. No features are detected
# for them.
OUTER     = setup demo test test-setup test-full test-gpu test-mpich test-clang test-debian13 test-aarch64 bench bench-gpu gpu-bundle sanitize sanitize-threads fuzz all help clean format
ifneq ($(filter-out $(OUTER),$(or $(MAKECMDGOALS),all)),)
-include $(BUILD)/config.mk
ifeq ($(origin COMMIT),undefined)
COMMIT   := $(if $(wildcard .git),$(shell git -c safe.directory=$(CURDIR) describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
endif
endif
# An optional library that is installed or removed is noticed by the next make.
OPTIONAL_HEADERS = $(wildcard $(foreach d,/usr/include /usr/local/include,$(addprefix $(d)/,pcre2.h utf8proc.h liburing.h histedit.h jpeglib.h png.h webp/demux.h dnnl.h microhttpd.h)))
$(BUILD)/config.key: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' "$(MPICC)" "$(HDF5_GIVEN)" "$(if $(filter given,$(HDF5_GIVEN)),$(HDF5))" "$$PATH" "$$PKG_CONFIG_PATH" "$$CPATH" "$$LIBRARY_PATH" "$$OMPI_CC$$MPICH_CC" "$(OPTIONAL_HEADERS)" >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/config.mk: $(BUILD)/config.key tools/mk/probe.sh tools/mpi.sh
	@MPICC="$(MPICC)" HDF5_GIVEN=$(HDF5_GIVEN) HDF5="$(HDF5)" tools/mk/probe.sh >$@.new && mv $@.new $@

# Kernels in src/device/isa are compiled once per instruction set; a program selects one at
# start-up. ISAS=native: only this machine's. The set v2 only has to work (no AVX2): -O1.
ISAS     ?= all
ifneq ($(origin ISAS_NATIVE),undefined)# an outer make passes the word on
override ISAS := $(patsubst all,$(ISAS_ALL),$(patsubst native,$(ISAS_NATIVE),$(ISAS)))
endif
ISA_CFLAGS_v2   ?= -march=x86-64-v2 -O1
ISA_CFLAGS_v3   ?= -march=x86-64-v3
ISA_CFLAGS_v4   ?= -march=x86-64-v4 -mprefer-vector-width=512
ISA_CFLAGS_neon      ?= -march=armv8-a
ISA_CFLAGS_neon_bf16 ?= -march=armv8.2-a+bf16
ISA_CFLAGS_sve       ?= -march=armv8.2-a+sve
ISA_CFLAGS_sve_bf16  ?= -march=armv8.2-a+sve+bf16
ISA_CFLAGS_base ?=

# -g1: functions and lines, which backtraces need. For a debugger: CFLAGS="-O0 -g3".
CFLAGS   ?= -O2 -g1
WARNINGS  = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
WARNINGS += $(if $(filter mpich,$(MPI)),-Wno-stringop-overflow)# gcc takes MPICH's MPI_STATUSES_IGNORE, the address 1, for an array
CPPFLAGS += -Iinclude -D_GNU_SOURCE $(HDF5_CFLAGS)
override CFLAGS += -std=c11 $(WARNINGS) -fopenmp -fno-math-errno -fno-trapping-math $(if $(SAN),-fsanitize=$(if $(filter thread,$(SAN)),thread,address$(,)undefined) -fno-omit-frame-pointer)
LDLIBS   += $(HDF5_LIBS) -ljansson -linih $(foreach l,$(filter-out LIBEDIT LIBMICROHTTPD,$(COMPONENTS)),$($(l)_LIBS)) -lm -lpthread -ldl
# Optional libraries, which tools/mk/probe.sh looks for. An empty variable disables one (make LIBWEBP=).
OPTIONAL        = PCRE2 UTF8PROC LIBURING LIBEDIT LIBJPEG LIBPNG LIBWEBP LIBMICROHTTPD ONEDNN
COMPONENTS      = $(strip $(foreach l,$(OPTIONAL),$(if $($(l)),$(l))))
NAME_PCRE2      = PCRE2
GIVES_PCRE2     = tokenizers that split by regular expressions, patterns of [lora], the reward format
NEEDS_PCRE2     = src/text/pattern
NAME_UTF8PROC   = utf8proc
GIVES_UTF8PROC  = tokenizers with Unicode normalisation, the reward accuracy
NEEDS_UTF8PROC  = src/text/normal_form
NAME_LIBURING   = liburing
GIVES_LIBURING  = offload to NVMe by io_uring, otherwise by POSIX AIO
NEEDS_LIBURING  = src/io/swap_file src/io/swap_uring
NAME_LIBEDIT    = libedit
GIVES_LIBEDIT   = line editing in dtrain-generate --chat
NEEDS_LIBEDIT   = src/main/generate/line
NAME_LIBJPEG    = libjpeg
GIVES_LIBJPEG   = JPEG images
NEEDS_LIBJPEG   = src/image/jpeg
NAME_LIBPNG     = libpng
GIVES_LIBPNG    = PNG images, contact sheets of dtrain-data
NEEDS_LIBPNG    = src/image/png
NAME_LIBWEBP    = libwebp
GIVES_LIBWEBP   = WebP images
NEEDS_LIBWEBP   = src/image/webp
NAME_LIBMICROHTTPD  = libmicrohttpd
GIVES_LIBMICROHTTPD = dtrain-generate --serve
NEEDS_LIBMICROHTTPD = src/serve/http
NAME_ONEDNN     = oneDNN
GIVES_ONEDNN    = faster matmuls on CPUs, otherwise by kernels of dtrain
NEEDS_ONEDNN    = src/device/cpu/cpu_onednn src/device/cpu/cpu_matmul_onednn
define COMPONENT_RULE
$(NEEDS_$(1):%=$(BUILD)/%.o): private CPPFLAGS += -DDT_HAVE_$(1) $($(1)_CFLAGS)
endef
$(foreach l,$(COMPONENTS),$(eval $(call COMPONENT_RULE,$(l))))
# With other components, the files that use them are recompiled.
$(BUILD)/components: FORCE
	@mkdir -p $(@D)
	@echo $(COMPONENTS) | cmp -s - $@ || echo $(COMPONENTS) >$@
$(foreach l,$(OPTIONAL),$(NEEDS_$(l):%=$(BUILD)/%.o)): $(BUILD)/components
$(BUILD)/dtrain-generate: LDLIBS += $(if $(LIBEDIT),$(LIBEDIT_LIBS)) $(if $(LIBMICROHTTPD),$(LIBMICROHTTPD_LIBS))
# The directories of libraries from environment modules are written into the programs, so that they
# run without the modules' LD_LIBRARY_PATH. RUNPATH= disables this.
SYSTEM_LIB = /lib /lib64 /usr/lib /usr/lib64 $(foreach m,$(MULTIARCH),/lib/$(m) /usr/lib/$(m) /usr/lib/$(m)/%)
RUNPATH   ?= $(filter-out $(SYSTEM_LIB) %/stubs,$(patsubst -L%,%,$(filter -L%,$(LDFLAGS) $(LDLIBS))) $(subst :, ,$(LIBRARY_PATH)))
override LDFLAGS := $(LDFLAGS) $(RUNPATH:%=-Wl$(,)-rpath$(,)%) -rdynamic# shared objects of ours use the program's errors and log

# Use all cores unless the user gave -j, on the command line or in the environment. "make clean all"
# must run in sequence. Only at the top level: nested makes share the job count.
ifeq ($(MAKELEVEL)$(filter clean,$(MAKECMDGOALS))$(findstring j,$(shell printf %s "$$MAKEFLAGS")),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEAGAIN = +@$(MAKE) --no-print-directory
SAY       = $(if $(V),,@$(info $()  $(1) $(2)))# V=1 shows the commands
# Demo and tests compile only for this machine: its instruction set, and CUDA only with a GPU.
# Existing builds keep their configuration.
HERE      = $(if $(ISAS_GIVEN),,ISAS="$(or $(shell cat $(BUILD)/isas 2>/dev/null),native)") \
            $(if $(CUDA_GIVEN),,$(if $(wildcard /dev/nvidiactl $(BUILD)/libdtrain_cuda.so),,CUDA=0))
