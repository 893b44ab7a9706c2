#!/bin/bash
# e2e_mpi.sh - the MPI and HDF5 that a build selects, with stand-ins for two of them: headers, wrappers and pkg-config files.
. "$(dirname "$0")/e2e.sh"
unset MPICC MPIRUN HDF5 MAKEFLAGS MFLAGS MAKELEVEL
mkdir "$tmp/pc"
for mpi in openmpi mpich other; do
    case $mpi in openmpi) macro=OPEN_MPI ;; mpich) macro=MPICH_VERSION ;; *) macro=ANOTHER ;; esac
    mkdir "$tmp/$mpi"
    echo "#define $macro 1" >"$tmp/$mpi/mpi.h"
    echo >"$tmp/$mpi/hdf5.h"
    printf '#!/bin/sh\nexec gcc "$@" -I%s\n' "$tmp/$mpi" >"$tmp/mpicc.$mpi"
    printf 'Name: hdf5\nDescription: a stand-in\nVersion: 1\nCflags: -I%s\nLibs: -lm\n' "$tmp/$mpi" >"$tmp/pc/hdf5-$mpi.pc"
done
chmod +x "$tmp"/mpicc.*
export PKG_CONFIG_LIBDIR=$tmp/pc
for mpi in openmpi mpich; do
    expect "mpi.h tells $mpi" test "$(tools/mpi.sh kind "$tmp/mpicc.$mpi")" = $mpi
    expect "HDF5 goes with $mpi" test "$(tools/mpi.sh hdf5 $mpi)" = hdf5-$mpi
    ends "$mpi and its HDF5 go together" 0 run 0 tools/mpi.sh check "$tmp/mpicc.$mpi" "-I$tmp/$mpi" -lm
done
expect "another MPI is not guessed" test "$(tools/mpi.sh kind "$tmp/mpicc.other")" = unknown
ends "two MPIs are refused" 2 run 0 make programs BUILD="$tmp/build" MPICC="$tmp/mpicc.mpich" HDF5=hdf5-openmpi
expect_text "the message names both MPIs" 'mpicc.mpich is mpich, but the flags of HDF5 add another MPI: the headers of openmpi'
expect_text "the message names the package to install" 'libhdf5-mpich-dev'
expect "before anything is compiled" test -z "$(find "$tmp/build" -name '*.o')"
prints "make info shows it" 'add another MPI' run 0 make info MPICC="$tmp/mpicc.mpich" HDF5=hdf5-openmpi
prints "make info names the launcher" 'started by .*/mpirun.mpich' run 0 make info MPICC="$tmp/mpicc.mpich"
expect_text "the HDF5 is reported" '^HDF5 +hdf5-mpich'

# The plain name of pkg-config may be the HDF5 of another MPI: set-up then installs the right one.
mv "$tmp/pc/hdf5-openmpi.pc" "$tmp/pc/hdf5.pc" && rm "$tmp/pc/hdf5-mpich.pc"
echo '#define H5_HAVE_PARALLEL 1' >"$tmp/openmpi/hdf5.h"
mkdir "$tmp/path"
printf '#!/bin/sh\necho 1000\n' >"$tmp/path/id"
printf '#!/bin/sh\nexit 1\n' >"$tmp/path/sudo"
chmod +x "$tmp"/path/*
ends "set-up misses the HDF5 of the MPI" 69 run 0 env PATH="$tmp/path:$PATH" MPICC="$tmp/mpicc.mpich" MPIRUN=true tools/setup.sh build
expect_text "it is named" 'libhdf5-mpich-dev'
run 0 env PATH="$tmp/path:$PATH" MPICC="$tmp/mpicc.openmpi" MPIRUN=true tools/setup.sh build || true
expect "with the other MPI nothing is missing" sh -c "! grep -q hdf5 '$out'"
e2e_done
