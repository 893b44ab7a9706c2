#!/bin/bash
# probe.sh - prints this machine's features as make variables: `MPICC=mpicc tools/mk/probe.sh
# >build/release/config.mk`. tools/mk/config.mk runs it once, and again when MPICC, HDF5 or a search
# path has changed. HDF5_GIVEN is "undefined" unless the user set HDF5.
set -u
here=$(dirname "$0")
mpicc=${MPICC:-mpicc}
mpi=$("$here/../mpi.sh" kind $mpicc)
if [ "${HDF5_GIVEN:-undefined}" = undefined ]; then HDF5=$("$here/../mpi.sh" hdf5 "$mpi"); fi
flags() { [ -z "$2" ] || pkg-config "$1" "$2" 2>/dev/null; }
package() { if pkg-config --exists "$1" 2>/dev/null; then echo "$1"; fi; }
compiles() { $mpicc "$@" -E -x c /dev/null >/dev/null 2>&1; }

echo "MPI := $mpi"
# Compiling without the wrapper saves a process for each file. Only where it can tell its command.
compile=$($mpicc -show -c x.c 2>/dev/null | sed 's/ -c x\.c//')
[ "$("$here/../mpi.sh" kind ${compile:-false})" = "$mpi" ] || compile=$mpicc
echo "COMPILE := $compile"
# Other compilers have other forms of precompiled headers; ccache does not cache objects that use one.
case "$compile $($compile --version 2>/dev/null)" in
    *ccache*) echo "PRECOMPILE :=" ;;
    *"Free Software Foundation"*) echo "PRECOMPILE := gcc" ;;
esac
[ "${HDF5_GIVEN:-undefined}" != undefined ] || echo "HDF5 := $HDF5"
echo "HDF5_CFLAGS ?= $(flags --cflags "$HDF5")"
echo "HDF5_LIBS ?= $(if [ -n "$HDF5" ]; then flags --libs "$HDF5"; else echo -lhdf5; fi)"
# Optional libraries: VARIABLE PKG-CONFIG-NAME HEADER LIBS, where LIBS serve without pkg-config. The variable is empty
# where the header is not found.
while read -r variable name header libs; do
    cflags=$(flags --cflags "$name") found=
    if printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <stdio.h>\n#include <%s>\n' "$header" | $mpicc $cflags -E -x c - >/dev/null 2>&1; then
        found=$name
        if pkg-config --exists "$name" 2>/dev/null; then libs=$(flags --libs "$name"); fi
    fi
    printf '%s ?= %s\n%s_CFLAGS := %s\n%s_LIBS := %s\n' "$variable" "$found" "$variable" "$cflags" "$variable" "$libs"
done <<'END'
PCRE2 libpcre2-8 pcre2.h -lpcre2-8
UTF8PROC libutf8proc utf8proc.h -lutf8proc
LIBURING liburing liburing.h -luring
LIBEDIT libedit histedit.h -ledit
LIBJPEG libjpeg jpeglib.h -ljpeg
LIBPNG libpng png.h -lpng
LIBWEBP libwebpdemux webp/demux.h -lwebpdemux -lwebp
LIBMICROHTTPD libmicrohttpd microhttpd.h -lmicrohttpd
ONEDNN dnnl dnnl.h -ldnnl
END
machine=$($mpicc -dumpmachine 2>/dev/null)
echo "MULTIARCH := $($mpicc -print-multiarch 2>/dev/null)"

# Instruction sets that the compiler supports, and the best one of this machine.
all=base native=base
macros=$($mpicc -march=native -dM -E -x c /dev/null 2>/dev/null)
has() { grep -q "#define $1 " <<<"$macros"; }
case $machine in
x86_64-*)
    if compiles -march=x86-64-v4; then
        all='v2 v3 v4' native=v2
        if has __AVX512BW__ && has __AVX512VL__ && has __AVX512DQ__ && has __AVX512CD__; then native=v4; elif has __AVX2__ && has __FMA__; then native=v3; fi
    fi ;;
aarch64-*)
    all='neon sve' native=neon
    if has __ARM_FEATURE_SVE; then native=sve; fi
    if compiles -march=armv8.2-a+sve+bf16; then
        all="$all neon_bf16 sve_bf16"
        if has __ARM_FEATURE_BF16; then native=${native}_bf16; fi
    fi ;;
esac
echo "ISAS_ALL := $all"
echo "ISAS_NATIVE := $native"

for ld in gold lld; do
    if echo 'int main(void) { return 0; }' | $mpicc -fuse-ld=$ld -x c -o /dev/null - 2>/dev/null; then echo "TEST_LD := -fuse-ld=$ld" && break; fi
done
exit 0
