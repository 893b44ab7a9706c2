# dtrain - see README.md; `make help` lists the targets, `make info` shows what was detected on this
# machine. Parts: tools/mk/*.mk
all: setup  ## build the programs, at the top of the tree
	$(MAKEAGAIN) programs
-include config.mk
include tools/mk/config.mk

setup:  ## install missing packages, or list them
	@MPICC="$(MPICC)" tools/setup.sh build
demo:  ## from a bare machine to a trained model, sampled text and a plot of its loss
	@MPICC="$(MPICC)" TEXT="$(TEXT)" tools/setup.sh demo
	$(MAKEAGAIN) $(HERE) programs
	@MPIRUN="$(MPIRUN)" TEXT="$(TEXT)" tools/demo.sh
test: test-setup  ## from a bare machine to the line "N passed, M failed, K skipped" (docs/testing.md describes the tests)
	$(MAKEAGAIN) $(HERE) check-quick
test-full: test-setup  ## run every test; forty minutes on two cores (SLICE=K/N: part K of N; CAMPAIGNS=1: also long tests with signals and bit flips)
	$(MAKEAGAIN) check benches
test-setup:
	@MPICC="$(MPICC)" tools/setup.sh test
check: programs tests-build  ## run the tests without setup (ONLY=pattern: tests whose names contain it)
	@$(FOR_TESTS) SAN=$(SAN) tests/run.sh $(ONLY)
check-quick: programs tests-quick
	@$(FOR_TESTS) SAN=$(SAN) TIER=quick tests/run.sh $(ONLY)
FOR_TESTS = BUILD=$(BUILD) MPICC="$(MPICC)" MPIRUN="$(MPIRUN)" HDF5="$(HDF5)"
bench: setup  ## run the benchmarks (the machine should be idle)
	$(MAKEAGAIN) programs benches
	@$(FOR_TESTS) tools/bench.sh $(ONLY)

TOOL      = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/tool/*.c))
DATA      = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/data/*.c))
INFO      = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/info/*.c))
GENERATE  = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/generate/*.c))
SID       = $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/main/sid/*.c))
ROOMS     = core config device perfmodel backends selfcheck optim comm io text tokenizer jinja chat image process zero model adapter data make checkpoint pretrained report plot generate serve step rollout recommend reward eval task train
ISA_SRC   = $(wildcard src/device/isa/*.c)
LIB_SRC   = $(foreach r,$(ROOMS),$(wildcard src/$(r)/*.c) $(filter-out $(ISA_SRC),$(wildcard src/$(r)/*/*.c)))
LIB_OBJ   = $(LIB_SRC:%.c=$(BUILD)/%.o) $(foreach i,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/%.$(i).o))
LIB       = $(BUILD)/libdtrain.a
PROGRAMS  = $(patsubst src/main/%.c,%,$(wildcard src/main/*.c))

# The folders are compared as text: in a path with blanks, words of it would match those of any other.
programs: $(if $(subst :$(abspath build/release):,,:$(abspath $(BUILD)):),$(PROGRAMS:%=$(BUILD)/%),$(PROGRAMS))
$(PROGRAMS): %: $(BUILD)/% FORCE
	@cmp -s $< $@ || { cp $< $@.new && mv -f $@.new $@; }
$(PROGRAMS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/src/main/%.o $(LIB)
	$(call SAY,LD,$@)$(MPICC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(LDLIBS)
$(PROGRAMS:%=$(BUILD)/%): $(TOOL)
$(BUILD)/dtrain-generate: $(GENERATE)
$(BUILD)/dtrain-data: $(DATA)
$(BUILD)/dtrain-info: $(INFO)
$(BUILD)/dtrain-sid: $(SID)
# Version information. The file's time stamp changes only with its content, to avoid recompiling.
# Without .git set COMMIT=...
$(BUILD)/build_version.h: FORCE
	@mkdir -p $(@D)
	@{ echo '#define BUILD_VERSION "$(VERSION)"'; echo '#define BUILD_COMMIT "$(or $(COMMIT),unknown)"'; \
	   echo '#define BUILD_FLAGS "$(subst ",\",$(patsubst -O2,-O2$(if $(CFLAGS_GIVEN),,/-O1),$(filter-out -W%,$(CFLAGS))))"'; echo '#define BUILD_ISAS "$(ISAS)"'; \
	   echo '#define BUILD_COMPONENTS "$(if $(COMPONENTS),$(foreach l,$(COMPONENTS),$(NAME_$(l))),none)"'; } >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/src/main/tool/version.o: $(BUILD)/build_version.h
$(BUILD)/src/main/tool/version.o: private CPPFLAGS += -I$(BUILD)
$(BUILD)/src/make/rec/rec_default.o: input/minionerec.json # is embedded
FORCE:
$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(call SAY,AR,$@)ar rcs $@ $(LIB_OBJ)
	@echo "$$LOADEDMODULES" | tr : ' ' > $(BUILD)/modules # for make install
# MPI and HDF5 that all objects were compiled for. A change recompiles everything. A mix of two MPIs
# is refused.
$(BUILD)/mpi: FORCE
	@mkdir -p $(@D)
	@echo "$(MPI) $(HDF5)" | cmp -s - $@ || { tools/mpi.sh check "$(MPICC)" "$(CPPFLAGS)" "$(HDF5_LIBS)" && echo "$(MPI) $(HDF5)" >$@; }
# Rooms that read settings, set up and report: with -O1 they compile a third faster. Flags of the
# user are used as they are.
COLD      = adapter chat checkpoint config eval jinja main make perfmodel plot pretrained process report reward selfcheck serve task train
O2_OR_O1  = $(if $(CFLAGS_GIVEN),-O2,$(if $(filter $(COLD),$(word 2,$(subst /, ,$<))),-O1,-O2))
# The headers that most files include are parsed once per optimisation level (gcc only). This saves a seventh of the
# compile time. The copy of the header serves compilers that reject the precompiled form. gcc 12 crashes on a form that
# was compiled with other flags, so a change of flags recompiles everything.
PRECOMPILED     = $(if $(PRECOMPILE),$(patsubst %,$(BUILD)/precompiled/%/precompiled.h.gch,O1 O2))
PRECOMPILED_FOR = $(if $(PRECOMPILE),-I$(BUILD)/precompiled/$(1:-%=%) -include precompiled.h)
FLAGS_USED      = '$(subst ','\'',$(COMPILE) $(CPPFLAGS) $(CFLAGS))'
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo $(FLAGS_USED) | cmp -s - $@ || echo $(FLAGS_USED) >$@
$(BUILD)/precompiled/%/precompiled.h.gch: src/precompiled.h $(BUILD)/mpi $(BUILD)/flags
	@mkdir -p $(@D) && cp $< $(@D)
	$(call SAY,CC,$@)$(COMPILE) $(CPPFLAGS) $(patsubst -O2,-$*,$(CFLAGS)) -MMD -MP -x c-header -o $@ $<
$(BUILD)/%.o: %.c $(BUILD)/mpi $(PRECOMPILED)
	@mkdir -p $(@D)
	$(call SAY,CC,$@)$(COMPILE) $(CPPFLAGS) $(call PRECOMPILED_FOR,$(O2_OR_O1)) $(patsubst -O2,$(O2_OR_O1),$(CFLAGS)) -MMD -MP -c -o $@ $<
# Kernels are compiled once per instruction set. DT_ISA is the name of the set.
define ISA_RULE
$(BUILD)/src/device/isa/%.$(1).o: src/device/isa/%.c $(BUILD)/mpi
	@mkdir -p $$(@D)
	$$(call SAY,CC,$$@)$(COMPILE) $(CPPFLAGS) $(CFLAGS) -O3 -ffp-contract=off $(ISA_CFLAGS_$(1)) -DDT_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call ISA_RULE,$(i))))
# Instruction sets of the programs. When they change, the code that selects one is recompiled.
$(BUILD)/isas: FORCE
	@mkdir -p $(@D)
	@echo $(ISAS) | cmp -s - $@ || echo $(ISAS) >$@
$(BUILD)/src/device/cpu/cpu.o: private CPPFLAGS += $(ISAS:%=-DDT_HAVE_ISA_%)
$(BUILD)/src/device/cpu/cpu.o $(LIB): $(BUILD)/isas

include $(addprefix tools/mk/,cuda.mk sim.mk tests.mk install.mk develop.mk)

info:  ## show what was detected and enabled
	@echo "version    $(VERSION)"
	@echo "compiler   $(shell $(MPICC) --version 2>/dev/null | head -1)"
	@echo "MPI        $(shell command -v $(MPICC) || echo missing) ($(MPI)); started by $(MPIRUN): $(LAUNCHER)"
	@echo "HDF5       $(or $(HDF5),missing) $(shell pkg-config --modversion $(HDF5) 2>/dev/null)"
	@tools/mpi.sh check "$(MPICC)" "$(CPPFLAGS)" "$(HDF5_LIBS)" || true
	@echo "CPU sets   $(ISAS)"
	@echo "CUDA       $(if $(CUDA_LIB),$(NVCC) $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') for $(CUDA_ARCHS:%=sm_%),$(if $(NVCC),left out,no nvcc))"
	@$(foreach l,$(OPTIONAL),echo "$(NAME_$(l))" | awk '{ printf "%-10s %s: %s\n", $$1, "$(if $($(l)),found,missing)", "$(GIVES_$(l))" }';)
	@echo "flags      $(CFLAGS)"
	@echo "libraries  $(LDLIBS)"
	@echo "run path   $(or $(RUNPATH),that of the system)"
	@echo "build      $(BUILD)"
help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## */\1\t/p' $(filter Makefile tools/%,$(MAKEFILE_LIST)) | awk -F'\t' '{ printf "  make %-17s %s\n", $$1, $$2 }'
clean:  ## remove all build output
	rm -rf build $(PROGRAMS)
.PHONY: all setup demo test test-full test-setup check check-quick bench programs docs kernels lint format info help clean FORCE
.SECONDARY:
-include $(LIB_OBJ:.o=.d) $(PRECOMPILED:.gch=.d) $(PROGRAMS:%=$(BUILD)/src/main/%.d) $(DATA:.o=.d) $(GENERATE:.o=.d) $(SID:.o=.d) $(TOOL:.o=.d) $(INFO:.o=.d)
