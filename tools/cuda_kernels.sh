#!/bin/bash
# cuda_kernels.sh BUILD [--table | --compare FILE] - registers, spills, shared memory and occupancy of every CUDA kernel, from what the assembler said when BUILD was made.
#
# Lines: kernel, chip, registers, stack, spilled, static shared memory, threads (0: no launch bounds), fp64 instructions, between tabs, sorted by kernel.
# --table: docs/gpu-kernels.md, for the chips that BUILD was made for (make kernels). --compare: has such a table the kernels that there are?
#
# Occupancy is warps of a multiprocessor's 64 that registers, launch bounds and static shared memory leave room for: 65536 registers, given to warps in
# eights for each thread, at most 32 blocks, and 164 KB (sm_80) or 228 KB of shared memory, of which each block has 1 KB more than it asks for.
set -u
build=$1
there=$(cd "$(dirname "$0")" && pwd)
lines() {
    for said in "$build"/cuda/*.ptxas; do
        file=$(basename "$said" .cu.o.ptxas)
        awk -f "$there/cuda_kernels.awk" "${said%.ptxas}".keep/*.ptx "$said" | c++filt | sed "s/^void //; s/^/$file: /"
    done | sed 's/(anonymous namespace):://g; s/__nv_bfloat16/bf16/g; s/__half/half/g; s/(dt_activation)/activation /g; s/([^\t]*)\t/\t/; s/ >/>/g' | LC_ALL=C sort -u
}
compare() {
    sed -n 's/^| `\([^`]*\)`.*/\1/p' "$1" | LC_ALL=C sort -u | diff - <(lines | cut -f1 | LC_ALL=C sort -u) && return
    echo "$1 is out of date: its kernels differ from those of $build; run make kernels"
    return 1
}
case ${2:-} in
--table) ;;
--compare) compare "$3"; exit ;;
*) lines; exit ;;
esac
cat <<'MD'
# CUDA kernels

Of each kernel: threads of a block (its launch bounds; -: none), static shared memory, and for each chip registers of a thread, bytes spilled where there are any (+), and the warps of a
multiprocessor's 64 that these leave room for. Dynamic shared memory, which products and attention ask for when they are launched, is not in it. Written by
`make kernels` (`tools/cuda_kernels.sh`) from what the assembler says; `tests/e2e_cuda_static.sh` holds each build to it: nothing spills, and nothing computes in fp64, but what
`tests/data/cuda_kernels.txt` names with its reason.

MD
echo "nvcc $(${NVCC:-nvcc} --version | sed -n 's/.*release [0-9.]*, V\(.*\)/\1/p')."
echo
lines | awk -F'\t' '
    function warps(registers, threads, shared, chip,    each, most, per, blocks, room) {
        each = int((registers + 7) / 8) * 8; if (each < 8) each = 8
        most = int(int(65536 / (each * 32)) / 4) * 4; if (most > 64) most = 64
        per = threads ? threads / 32 : 1
        blocks = int(most / per); if (blocks > 32) blocks = 32
        room = (chip == "sm_80" ? 164 : 228) * 1024
        if (threads && shared && int(room / (shared + 1024)) < blocks) blocks = int(room / (shared + 1024))
        return threads ? blocks * per : most
    }
    { if (!($2 in chip)) { chip[$2]; n_chips++ }
      if (!($1 in threads)) name[++n] = $1
      threads[$1] = $7; shared[$1] = $6
      cell[$1, $2] = $3 ($5 ? " + " $5 : "") ", " warps($3, $7, $6, $2) }
    END { order = "sm_80 sm_90 sm_100"; k = split(order, all, " ")
          head = "| kernel | threads | shared |"; rule = "|---|---|---|"
          for (i = 1; i <= k; i++) if (all[i] in chip) { head = head " " all[i] " |"; rule = rule "---|" }
          print head; print rule
          for (j = 1; j <= n; j++) {
              row = "| `" name[j] "` | " (threads[name[j]] ? threads[name[j]] : "-") " | " (shared[name[j]] ? shared[name[j]] : "") " |"
              for (i = 1; i <= k; i++) if (all[i] in chip) row = row " " cell[name[j], all[i]] " |"
              print row
          } }'
