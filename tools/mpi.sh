#!/bin/bash
# mpi.sh - detects the MPI of a compiler wrapper, and checks that HDF5 uses the same one.
#
#   mpi.sh kind MPICC                 prints openmpi, mpich (or a derivative) or unknown
#   mpi.sh hdf5 KIND                  prints pkg-config's name of the HDF5 for it, or nothing
#   mpi.sh check MPICC CPPFLAGS LIBS  exit 0 if a program of both has one MPI; else reports the two
set -u

# Uses the macros of mpi.h, because names of wrappers are ambiguous.
kind() {
    printf '#include <mpi.h>\n#if defined(OPEN_MPI)\nkind openmpi\n#elif defined(MPICH_VERSION) || defined(MPICH_NAME)\nkind mpich\n#endif\n' |
        "$@" -E -P -x c - 2>/dev/null | sed -n 's/^kind //p' | grep . || echo unknown
}

hdf5() { # plain "hdf5" is the one of the loaded modules
    local p
    for p in hdf5-openmpi hdf5-mpich hdf5; do
        case $p in "hdf5-$1" | hdf5) pkg-config --exists "$p" 2>/dev/null && { echo "$p"; return; } ;; esac
    done
}

# MPI libraries that a program with MPI and HDF5 is linked with.
libraries() { # MPICC CPPFLAGS LIBS
    local probe
    probe=$(mktemp) || exit 1
    printf '#include <mpi.h>\n#include <hdf5.h>\nint main(void) { return MPI_Init(0, 0) + H5Pset_fapl_mpio(0, MPI_COMM_WORLD, MPI_INFO_NULL); }\n' |
        $1 $2 -x c - -o "$probe" -x none $3 2>/dev/null && ldd "$probe" 2>/dev/null | sed -n 's/^[[:space:]]*\(libmpi\(ch\)\{0,1\}\.so\.[0-9]*\) .*/\1/p' | sort -u
    rm -f "$probe"
}

# Two MPIs are mixed if HDF5's flags find another mpi.h first, or if the program needs both
# libraries. Such a program would start as separate single-rank runs.
check() { # MPICC CPPFLAGS LIBS
    local own found
    own=$(kind $1)
    found=$(kind $1 $2)
    [ "$own" = "$found" ] || found="the headers of $found"
    if [ "$own" = "$found" ]; then
        found=$(libraries "$@")
        [ "$(printf '%s' "$found" | grep -c .)" -gt 1 ] || return 0 # none: the build reports what is missing
        found="the libraries $(echo $found)"
    fi
    {
        echo "mpi.sh: $1 is $own, but the flags of HDF5 add another MPI: $found"
        echo "mpi.sh: a program linked with two MPIs starts N separate single-rank runs. Use the HDF5 built for this MPI (Debian: libhdf5-$own-dev), load the"
        echo "mpi.sh: modules of one MPI, or choose with make MPICC=... HDF5=... (HDF5 is a pkg-config name)"
    } >&2
    return 69
}

case ${1:-} in
kind | hdf5 | check) "$@" ;;
*) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
esac
