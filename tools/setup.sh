#!/bin/bash
# setup.sh [build|test|fuzz|clang|demo] - checks that the packages a target needs are installed;
# those of the build are always checked. If all are, it prints nothing. Otherwise, on Debian and
# Ubuntu, as root or with passwordless sudo, it installs the missing ones. Elsewhere it lists them,
# prints one command that installs everything for make demo and make test, and exits with 69.
set -eu
stage=${1:-build}
mpicc=${MPICC:-mpicc}
mpirun=${MPIRUN:-mpirun}
case ${mpicc##*/} in *mpicc*) mpirun=${MPIRUN:-${mpicc/%${mpicc##*/}/$(sed s/mpicc/mpirun/ <<<"${mpicc##*/}")}} ;; esac

# stage ("?": optional, features that need it are skipped without it), test, Debian package, common
# names of modules or packages elsewhere
needed='
build command:cc       build-essential     gcc
build command:make     build-essential     make
build command:pkg-config pkg-config        pkgconf
build command:MPIRUN   openmpi-bin         openmpi, mpich
build command:MPICC    libopenmpi-dev      openmpi, mpich
build hdf5             libhdf5-openmpi-dev hdf5-parallel, phdf5, hdf5/openmpi
build header:jansson.h libjansson-dev      jansson
build header:ini.h     libinih-dev         inih
build? header:pcre2.h   libpcre2-dev       pcre2
build? header:utf8proc.h libutf8proc-dev   utf8proc
build? header:dnnl.h    libdnnl-dev         onednn, dnnl
build? header:jpeglib.h libjpeg-dev libjpeg-turbo
build? header:png.h     libpng-dev          libpng
build? header:webp/demux.h libwebp-dev      libwebp
build? header:histedit.h libedit-dev       libedit
build? header:microhttpd.h libmicrohttpd-dev libmicrohttpd
build? header:liburing.h liburing-dev      liburing
test  header:cmocka.h  libcmocka-dev       cmocka
test  command:g++      g++                 gcc-c++
test  command:pgrep    procps              procps-ng
test? command:h5dump   hdf5-tools          hdf5
test? command:gnuplot  gnuplot-nox         gnuplot
test? command:lua      lua5.4              lua
test? command:python3  python3             python3
test? command:mandoc   mandoc              mandoc
test? command:zsh      zsh                 zsh
fuzz  command:clang    clang               llvm
clang command:clang    clang               llvm
clang clang-openmp     libomp-dev          llvm
clang? command:clang-format clang-format   llvm
fuzz  libfuzzer        libclang-rt-dev     llvm
demo  command:bible    bible-kjv           (none; see tools/demo.sh)
demo  command:gnuplot  gnuplot-nox         gnuplot
'

has_header() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' "$1" | ${CC:-cc} -E -x c ${CPPFLAGS:-} - >/dev/null 2>&1; }
# HDF5 is found as in the Makefile: with pkg-config, else in the compiler's default paths (CPATH of
# a module). A serial HDF5 is not accepted, nor one whose flags bring the headers of another MPI.
has_parallel_hdf5() {
    local flags mpi kind
    mpi=$(dirname "$0")/mpi.sh
    kind=$("$mpi" kind $mpicc)
    flags=$(pkg-config --cflags "$("$mpi" hdf5 "$kind")" 2>/dev/null)
    printf '#include <hdf5.h>\n#ifndef H5_HAVE_PARALLEL\n#error serial\n#endif\n' | "$mpicc" -E -x c $flags ${CPPFLAGS:-} - >/dev/null 2>&1 &&
        [ "$("$mpi" kind $mpicc $flags)" = "$kind" ]
}
has() {
    case $1 in
    command:MPIRUN) command -v "$mpirun" >/dev/null ;;
    command:MPICC) command -v "$mpicc" >/dev/null ;;
    command:*) command -v "${1#command:}" >/dev/null ;;
    hdf5) has_parallel_hdf5 ;;
    header:*) has_header "${1#header:}" ;;
    clang-openmp) echo '#include <omp.h>' | clang -fopenmp -E -x c - >/dev/null 2>&1 ;;
    libfuzzer) echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return 0; }' | clang -fsanitize=fuzzer,address -x c -o /dev/null - >/dev/null 2>&1 ;;
    esac
}

# For Debian's mpicc.mpich: MPICH's packages instead of Open MPI's.
case ${mpicc##*/} in *mpich*) needed=$(sed 's/openmpi-bin /mpich /; s/libopenmpi-dev /libmpich-dev /; s/libhdf5-openmpi-dev /libhdf5-mpich-dev /' <<<"$needed") ;; esac

packages='' names='' wanted='' together='' # together: missing for build, test and demo
add() { case " ${!1} " in *" $2 "*) ;; *) printf -v "$1" '%s %s' "${!1}" "$2" ;; esac; }
while read -r when probe package elsewhere; do
    [ -n "$when" ] || continue
    case $when in fuzz | clang | clang\?) [ "$stage" = "${when%\?}" ] || continue ;; esac
    [ "$probe" != command:bible ] || [ -z "${TEXT:-}" ] || continue # the user supplies a text
    has "$probe" && continue
    add together "$package"
    case $when in build | build\? | "$stage" | "$stage?") ;; *) continue ;; esac
    add packages "$package"
    case $when in
    *\?) wanted="$wanted $package" ;;
    *) names="$names
    $package (elsewhere: $elsewhere)" ;;
    esac
done <<<"$needed"
[ -n "$packages" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then sudo="sudo -n"; $sudo true 2>/dev/null || sudo=none; fi
if [ "$sudo" != none ] && command -v apt-get >/dev/null; then
    echo "setup: installing$packages"
    log=$(mktemp)
    if $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q update >"$log" 2>&1 </dev/null &&
       $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $packages >>"$log" 2>&1 </dev/null; then
        rm -f "$log" build/*/config.mk # make's record of what was missing
        exit 0
    fi
    tail -20 "$log" >&2
    rm -f "$log"
    echo "setup: apt-get could not install$packages" >&2
fi
if [ -z "$names" ]; then
    echo "setup: continues without$wanted; features that need it are not built" >&2
    exit 0
fi
{
    echo "setup: these are missing (Debian names):$names"
    echo "setup: this command installs them, and everything else that make demo and make test need:"
    echo "    sudo apt-get install --no-install-recommends$together"
    echo "setup: on a cluster, load the modules of these names (module avail, module load); headers are searched in CPATH, libraries in LIBRARY_PATH"
} >&2
exit 69
