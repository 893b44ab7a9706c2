#!/bin/bash
# pack.sh [FILE] - packs everything that a bare GPU machine needs for tests and benchmarks into one
# archive: build/gpu-bundle.tar.xz.
#
# The archive contains the programs, the tests that use a device, and libdtrain_cuda.so of BUILD
# (make programs tests-build benches), and the scripts and test data of the sources. runtime/ has
# the launcher, Open MPI's plugins and texts, and all shared libraries except those that such a
# machine has: glibc, the driver, CUDA. On that machine:
#
#     tar -xJf gpu-bundle.tar.xz -C /tmp && OUT=/tmp/figures /tmp/dtrain-gpu/tools/gpu/run.sh tests
#
# It must have the same processor family and at least the same glibc version. Requires Open MPI 4
# (libopen-pal reads OPAL_PREFIX).
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
archive=$(realpath -m "${1:-build/gpu-bundle.tar.xz}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/dtrain-gpu
mpirun=$(readlink -f "$(command -v "${MPIRUN:-mpirun}")")
plugins=$(dirname "$(find -L /usr/lib /opt "${OPAL_PREFIX:-/usr/local}" -name mca_pml_ob1.so -print -quit 2>/dev/null)")
texts=$(dirname "$(find -L /usr/share/openmpi /opt "${OPAL_PREFIX:-/usr/local}" -name help-mpi-runtime.txt -print -quit 2>/dev/null)")
[ -e "$plugins/mca_pml_ob1.so" ] || { echo "pack.sh: Open MPI's plugins not found; set OPAL_PREFIX=... to its folder" >&2; exit 69; }
[ -e "$build/libdtrain_cuda.so" ] || echo "pack.sh: $build/libdtrain_cuda.so is missing: the bundle will lack CUDA" >&2

mkdir -p "$root/$build/tests" "$root"/runtime/{bin,share/openmpi,lib/openmpi/lib/openmpi3,lib-gcc}
{ git ls-files --cached --others --exclude-standard 2>/dev/null || find . -path ./build -prune -o -type f -print; } | tar -cf - --ignore-failed-read -T - | tar -xf - -C "$root"

for library in cuda nccl; do [ ! -e "$build/libdtrain_$library.so" ] || cp "$build/libdtrain_$library.so" "$root/$build/"; done
for p in "$build"/dtrain*; do
    case $p in *.d | *.o) continue ;; esac
    cp "$p" "$root/$build/"
    ln -s "$p" "$root/${p##*/}"
done
for t in $(grep -lE 'DEVICES:|TRANSPORTS:.*nccl' tests/test_*.c tests/mpi_*.c) tests/bench_*.c; do # tests that run.sh runs
    [ ! -e "$build/${t%.c}" ] || cp "$build/${t%.c}" "$root/$build/tests/"
done
for t in $mpirun orted h5diff h5dump h5ls; do cp "$(readlink -f "$(command -v "$t")")" "$root/runtime/bin/" || true; done
mv "$root/runtime/bin/$(basename "$mpirun")" "$root/runtime/bin/mpirun"

# For one machine: no plugins for networks and schedulers, which need further libraries.
for p in "$plugins"/mca_*.so; do
    case $p in *_ucx.so | *_ofi.so | *_psm*.so | *_openib.so | *_flux.so | *_monitoring.so | *_slurm.so | *_gridengine.so | *_spml_* | *_sshmem_* | *_memheap_* | *_scoll_*) ;;
    *) cp "$p" "$root/runtime/lib/openmpi/lib/openmpi3/" ;;
    esac
done
# Open MPI's configured path below the prefix.
multiarch=$(realpath --relative-to=/usr/lib "$plugins/../../..")
[ "$multiarch" = . ] || [[ $multiarch == ..* ]] || { mkdir -p "$root/runtime/lib/$multiarch"; ln -s ../openmpi "$root/runtime/lib/$multiarch/openmpi"; }
cp "$texts"/*.txt "$root/runtime/share/openmpi/"

# Libraries, under the names that programs request.
glibc='/(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|libmvec)\.so[.0-9]*$'
cuda='/(libcuda|libcudart|libcublas|libcublasLt|libnccl|libcudnn|libnvidia-.*)\.so[.0-9]*$'
find "$root" -type f \( -perm -u+x -o -name '*.so*' \) -print0 | xargs -0 ldd 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE "$glibc|$cuda" | while read -r library; do
    to=lib
    case $library in */libstdc++.so* | */libgcc_s.so* | */libgomp.so*) to=lib-gcc ;; esac # the machine's own are used if they are newer
    cp -L "$library" "$root/runtime/$to/"
done
find "$root" -type f -exec sh -c 'for f; do case $(head -c 4 "$f" | tail -c 3) in ELF) strip -s "$f" ;; esac; done' sh {} + 2>/dev/null
{ git describe --always --dirty 2>/dev/null || true; date -u +%Y-%m-%dT%H:%M:%SZ; } >"$root/runtime/packed"

mkdir -p "$(dirname "$archive")"
tar -C "$work" --sort=name --owner=0 --group=0 -cf - dtrain-gpu | xz -T0 --lzma2=preset=${XZ_PRESET:-2},dict=64MiB >"$archive.part"
mv "$archive.part" "$archive"
ls -l "$archive" | awk '{ printf "%s: %.1f MB\n", $NF, $5 / 1e6 }'
