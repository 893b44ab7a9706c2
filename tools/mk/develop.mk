# develop.mk - generated documentation, static checks, formatting.
docs: $(BUILD)/tests/test_config programs  ## write docs/keys.md from the table of keys, the tables of docs/memory.md, and manual pages from --help
	@mkdir -p docs && $(BUILD)/tests/test_config --markdown > docs/keys.md
	@tools/plan_tables.sh > $(BUILD)/plan_tables && sed -i '/^<!-- tools\/plan_tables.sh/q' docs/memory.md && cat $(BUILD)/plan_tables >> docs/memory.md
	@for p in $(filter-out dtrain,$(PROGRAMS)); do tools/man.sh $$p > docs/$$p.1; done
kernels:  ## write docs/data/gpu-kernels.csv: registers, spills and occupancy of the CUDA kernels, for all chips (nvcc; some minutes)
	+@$(MAKE) --no-print-directory BUILD=build/kernels CUDA_ARCHS="80 90 100" build/kernels/libdtrain_cuda.so build/kernels/libdtrain_nccl.so
	@NVCC=$(NVCC) tools/cuda_kernels.sh build/kernels --csv > docs/data/gpu-kernels.csv
# unknownMacro, internalAstError: lists of macros and compound literals that it cannot parse;
# ctuuninitvar: reports arrays that the called function fills.
CPPCHECK_SKIPS = invalidPointerCast unknownMacro internalAstError ctuuninitvar
lint:  ## clang-tidy and cppcheck; check citations in comments, and the list of kernels in docs/data/gpu-kernels.csv
	@tools/check_citations.sh
	@if ls $(BUILD)/cuda/*.ptxas >/dev/null 2>&1; then tools/cuda_kernels.sh $(BUILD) --compare docs/data/gpu-kernels.csv; fi
	@cppcheck -q --std=c11 --enable=warning,portability --inline-suppr $(CPPCHECK_SKIPS:%=--suppress=%) -Iinclude -D_GNU_SOURCE '-D_Noreturn=__attribute__((noreturn))' --error-exitcode=1 src
	@clang-tidy --quiet $(LIB_SRC) -- $(CPPFLAGS) $(shell $(MPICC) --showme:compile 2>/dev/null) -std=c11 -fopenmp '-DDT_INTERFACE=""'
format:  ## clang-format in place
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc')
