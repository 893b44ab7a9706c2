# tests.mk - the test programs, and ways to run them besides make test.
TEST_SRC  = $(wildcard tests/test_*.c tests/mpi_*.c)
TESTS     = $(TEST_SRC:%.c=$(BUILD)/%)
TEST_SUP  = $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/ref_*.c))
FUZZ      = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES   = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench_*.c))

# Test programs are linked often and run seldom: use an optimisation level that compiles fast, and
# the fast linker if there is one. They leave out debug information, which is four fifths of their
# size; their symbols name the functions of a backtrace. TEST_STRIP= keeps it.
TEST_CFLAGS = $(patsubst -O2,-O1,$(CFLAGS)) $(if $(SAN),,$(TEST_LD))
TEST_STRIP = $(if $(SAN),,-Wl,-S)
$(TEST_SUP) $(BENCHES:=.o): TEST_CFLAGS = $(CFLAGS)# references and benchmarks compute
tests-build: $(TESTS) $(FUZZ) $(SIM_LIBS)
tests-quick: $(TESTS) $(FUZZ) $(filter %/libdtrain_cudasim.so,$(SIM_LIBS))
benches: $(BENCHES)
$(FUZZ): $(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(if $(FUZZER),,$(BUILD)/tests/fuzz/replay.o) $(LIB)
	$(call SAY,LD,$@)$(MPICC) $(CFLAGS) $(FUZZER) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/tests/mpi_memory: override LDFLAGS += -Wl,--wrap=dt_ledger_add# tests/memory_guard.h
$(BUILD)/tests/test_data_make_images: override LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
$(BUILD)/tests/fuzz/fuzz_image: override LDFLAGS += -Wl,--wrap=dt_image_alloc
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_SUP) $(LIB)
	$(call SAY,LD,$@)$(MPICC) $(TEST_CFLAGS) $(TEST_STRIP) $(LDFLAGS) -o $@ $< $(TEST_SUP) $(LIB) -lcmocka $(LDLIBS)
$(BUILD)/tests/%.o: tests/%.c $(BUILD)/mpi $(PRECOMPILED)
	@mkdir -p $(@D)
	$(call SAY,CC,$@)$(COMPILE) $(CPPFLAGS) $(call PRECOMPILED_FOR,$(or $(filter -O2,$(TEST_CFLAGS)),-O1)) $(TEST_CFLAGS) -MMD -MP -c -o $@ $<

check-queue: programs tests-build  ## run the tests on the device with delayed, reordered streams (tests/run.sh); programs with twenty seeds
	@BUILD=$(BUILD) QUEUE_ONLY=1 QUEUE_SEEDS="$(shell seq 0 19)" tests/run.sh $(ONLY)
SIM_TESTS = test_zero_streams test_model_ mpi_zero mpi_checkpoint mpi_run mpi_generate
test-cudasim: programs tests-build  ## test all CUDA operations on the simulator of CUDA, then detect races, also between streams in SIM_TESTS (SIM_SEED=1; hours)
	@for d in cudasim cudasim_races; do $(ON_SIM) DTRAIN_DEVICE=$$d tests/run.sh $(or $(ONLY),test_device_) || exit 1; done
	@for t in $(if $(ONLY),,$(SIM_TESTS)); do $(ON_SIM) DTRAIN_DEVICE=cudasim_races NP="$(or $(NP),1 2)" tests/run.sh $$t || exit 1; done
ON_SIM = DTRAIN_SIM_SEED=$(or $(SIM_SEED),1) TEST_TIMEOUT=3600 BUILD=$(BUILD)
test-reproducible: programs  ## test run.reproducible on every layout: all ranks x stages x offloads x threads of each model (MODELS="plain tied"; an hour)
	@$(FOR_TESTS) REPRODUCIBLE=full MODELS="$(MODELS)" bash tests/e2e_reproducible.sh
mutants: mutants-host mutants-cuda  ## mutation testing: break one line at a time; some test must fail (verdicts: tests/mutants_*.csv; hours)
mutants-host:  ## skip one wait or copy at a time
	@$(FOR_TESTS) tests/mutants.sh
mutants-cuda:  ## break one barrier, shuffle, guard, event, stride or similar of the CUDA device at a time, on the simulator
	@$(FOR_TESTS) tests/mutants_cuda.sh
sanitize: test-setup  ## run the tests under the address and undefined-behaviour sanitizers, then each fuzz target for FUZZ_SECONDS
	$(MAKEAGAIN) SAN=1 CUDA=0 check
	$(MAKEAGAIN) fuzz
# Tests of checkpoint writers, swap file transfers, prefetching, signals, watchdogs, and two ranks
# as threads. They use one rank with one OpenMP thread, because the thread sanitizer does not know
# libgomp's synchronisation.
WITH_THREADS = test_swap_file test_data_loader test_data_make test_data_make_images test_zero_streams test_zero_overlap test_signals mpi_checkpoint_async mpi_zero_offload mpi_run
sanitize-threads: test-setup  ## run the multi-threaded tests under the thread sanitizer
	$(MAKEAGAIN) SAN=thread CUDA=0 FUZZ= SIM_LIBS= TEST_SRC="$(WITH_THREADS:%=tests/%.c)" OMP_NUM_THREADS=1 NP=1 check ONLY="$(WITH_THREADS)"
fuzz:  ## run each fuzz target for FUZZ_SECONDS (default 60; clang)
	@tools/setup.sh fuzz
	+@OMPI_CC=$(CLANG) MPICH_CC=$(CLANG) $(MAKE) --no-print-directory BUILD=build/fuzz SAN=1 CUDA=0 CFLAGS="-O1 -g -fsanitize=fuzzer-no-link -Wno-pass-failed" \
	  FUZZER=-fsanitize=fuzzer fuzz-build
	@tests/fuzz/fuzz.sh build/fuzz/tests/fuzz $(or $(FUZZ_SECONDS),60)
fuzz-build: $(FUZZ)
# Needs a machine with a GPU; docs/testing.md describes a machine that lacks MPI and other packages.
test-gpu: test-setup  ## run the tests on the GPU instead of the CPU, and compare trainings on both
	$(MAKEAGAIN) programs tests-build
	@$(FOR_TESTS) tools/gpu/run.sh suite
bench-gpu: setup  ## run the benchmarks of the GPU, also with PyTorch if found (PARTS="steps=all grpo": see tools/gpu/bench.sh)
	$(MAKEAGAIN) programs benches
	@$(FOR_TESTS) tools/gpu/run.sh bench $(PARTS)
gpu-bundle: test-setup  ## pack build/gpu-bundle.tar.xz: everything for test-gpu and bench-gpu on a bare GPU machine
	$(MAKEAGAIN) programs tests-build benches
	@$(FOR_TESTS) tools/gpu/pack.sh
valgrind: programs tests-build  ## run the tests under valgrind (slow)
	@$(FOR_TESTS) VALGRIND=1 tests/run.sh $(ONLY)
# Other compilers, libraries and machines: docs/portability.md.
ELSEWHERE = BUILD=build/$(1) CUDA=0 FUZZ= TEST_SRC="$(or $(wildcard tests/*$(or $(ONLY),$(2))*.c),$(TEST_SRC))" check ONLY="$(or $(ONLY),$(2))"
test-mpich:  ## build with MPICH and its HDF5, run the tests with several ranks (ONLY=pattern: others)
	@MPICC=mpicc.mpich tools/setup.sh test
	+@$(MAKE) --no-print-directory MPICC=mpicc.mpich $(call ELSEWHERE,mpich,mpi_)
test-clang:  ## build with clang, run the tests of the kernels (ONLY=pattern: others)
	@tools/setup.sh clang
	+@OMPI_CC=$(CLANG) MPICH_CC=$(CLANG) $(MAKE) --no-print-directory CFLAGS="-O2 -g -Wno-pass-failed" $(call ELSEWHERE,clang,test_device)
test-bare:  ## build without any optional library, train a model and run the tests of matmuls
	+@$(MAKE) --no-print-directory $(OPTIONAL:%=%=) $(call ELSEWHERE,bare,test_device_matmul) ONLY="$(or $(ONLY),test_device_matmul e2e_components)"
test-debian13:  ## run make test-full in a chroot of Debian 13, with gcc 14, Open MPI 5, HDF5 1.14, oneDNN 3 (root, debootstrap)
	@ONLY="$(ONLY)" tools/chroot.sh trixie amd64 make test-full
test-aarch64:  ## run make test-full in a chroot of Debian 12 for arm64, under qemu on other machines (root, debootstrap)
	@ONLY="$(ONLY)" QEMU_CPU=$(or $(QEMU_CPU),max) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) tools/chroot.sh bookworm arm64 make test-full
.PHONY: tests-build tests-quick benches check-queue test-cudasim test-reproducible test-gpu bench-gpu gpu-bundle mutants mutants-host mutants-cuda sanitize sanitize-threads fuzz fuzz-build valgrind test-mpich test-clang test-bare test-debian13 test-aarch64
-include $(TEST_SRC:%.c=$(BUILD)/%.d) $(TEST_SUP:.o=.d) $(FUZZ:=.d) $(BENCHES:=.d)
