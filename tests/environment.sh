# environment.sh - sourced by what starts MPI programs in tests, demo and benchmarks: more ranks than cores, as root in a container, no
# binding (else the threads of a rank share one core), and waiting ranks that leave the core to others. Open MPI 5 asks its launcher, PRRTE,
# by variables of that one; MPICH needs none of them.
export MPIRUN=${MPIRUN:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
# One node: shared memory only, which also starts three times as fast. Outside of tests the program's launcher decides.
if [ -z "${OMPI_MCA_btl:-}" ]; then export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_osc=^ucx; fi
export OMPI_MCA_odls_base_sigkill_timeout=0 PRTE_MCA_odls_base_sigkill_timeout=0 # a run that ends with an error ends at once: by default mpirun waits a second for ranks that have ended
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none} # containers forbid CMA; it warns
export ASAN_OPTIONS=fast_unwind_on_malloc=0 LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

# The launcher's session directory: shared with other jobs, the end of one may remove that of another.
keep_mpi_files_in() { export OMPI_MCA_orte_tmpdir_base=$1 PRTE_MCA_prte_tmpdir_base=$1; }
