#!/bin/bash
# cuda_kernels.sh BUILD [--csv | --compare FILE] - registers, spills, shared memory and occupancy of
# every CUDA kernel, as reported by the assembler when BUILD was built.
#
# Without option: one line per kernel and chip, sorted by kernel, tab-separated:
# kernel, chip, registers, stack, spilled bytes, static shared memory, threads (0: no launch
# bounds), fp64 instructions.
# --csv: writes docs/data/gpu-kernels.csv, for the chips that BUILD was built for (make kernels).
# --compare FILE: fails if the kernels in FILE, such a CSV file, differ from those of BUILD.
#
# Occupancy is the number of warps, of at most 64 per multiprocessor, that fit by registers, launch
# bounds and static shared memory. A multiprocessor has 65536 registers, allocated per warp in
# multiples of 8 per thread. It runs at most 32 blocks and has 164 KB (sm_80) or 228 KB of shared
# memory. Each block uses 1 KB more than it requests.
set -u
build=$1
there=$(cd "$(dirname "$0")" && pwd)
lines() {
    for said in "$build"/cuda/*.ptxas; do
        file=$(basename "$said" .cu.o.ptxas)
        awk -f "$there/cuda_kernels.awk" "${said%.ptxas}".keep/*.ptx "$said" | c++filt | sed "s/^void //; s/^/$file: /"
    done | sed 's/(anonymous namespace):://g; s/__nv_bfloat16/bf16/g; s/__half/half/g; s/(dt_activation)/activation /g; s/([^\t]*)\t/\t/; s/ >/>/g' | LC_ALL=C sort -u
}
kernels() { lines | grep -v ': functions'$'\t'; }
compare() {
    sed -n 's/^"\([^"]*\)",.*/\1/p' "$1" | LC_ALL=C sort -u | diff - <(kernels | cut -f1 | LC_ALL=C sort -u) && return
    echo "$1 does not list the kernels of $build: run make kernels"
    return 1
}
case ${2:-} in
--csv) ;;
--compare) compare "$3"; exit ;;
*) lines; exit ;;
esac
echo "# nvcc $(${NVCC:-nvcc} --version | sed -n 's/.*release [0-9.]*, V\(.*\)/\1/p'); written by make kernels"
echo "kernel,chip,registers,spilled_bytes,static_shared_bytes,threads,warps"
kernels | awk -F'\t' '
    function warps(registers, threads, shared, chip,    each, most, per, blocks, room) {
        each = int((registers + 7) / 8) * 8; if (each < 8) each = 8
        most = int(int(65536 / (each * 32)) / 4) * 4; if (most > 64) most = 64
        per = threads ? threads / 32 : 1
        blocks = int(most / per); if (blocks > 32) blocks = 32
        room = (chip == "sm_80" ? 164 : 228) * 1024
        if (threads && shared && int(room / (shared + 1024)) < blocks) blocks = int(room / (shared + 1024))
        return threads ? blocks * per : most
    }
    { printf "\"%s\",%s,%d,%d,%d,%d,%d\n", $1, $2, $3, $5, $6, $7, warps($3, $7, $6, $2) }'
