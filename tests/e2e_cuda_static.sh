#!/bin/bash
# e2e_cuda_static.sh - static checks of the compiled CUDA kernels. No kernel spills registers or computes in fp64, except those listed in
# tests/data/cuda_kernels.txt. The inline assembly of cuda/ptx.cuh is emitted with the operands listed in tests/data/ptx_shapes.txt.
. "$(dirname "$0")/e2e.sh"
build=${BUILD:-build/release}
ls "$build"/cuda/*.ptxas >/dev/null 2>&1 || { skip "kernels of the CUDA device" "nvcc has not built them"; exit 0; }
kernels=$tmp/kernels allowed=tests/data/cuda_kernels.txt
tools/cuda_kernels.sh "$build" >"$kernels" 2>"$out"
expect "every kernel has its line" [ "$(wc -l <"$kernels")" -gt 300 ]

holds() { # NAME KIND COLUMN: no kernel has more there than is allowed
    awk -F'\t' -v kind="$2" -v column="$3" '
        NR == FNR { if ($1 == kind) { kernel[++n] = "^" $2 "$"; most[n] = $3 } next }
        $column > 0 {
            for (i = 1; i <= n; i++) if ($1 ~ kernel[i] && (kind != "spill" || $column <= most[i])) next
            print $1 " on " $2 ": " $column; bad = 1
        }
        END { exit bad }' $allowed "$kernels" >"$out"
    expect "$1" [ $? = 0 ]
}
holds "no kernel spills that is not named" spill 5
holds "none computes in fp64 that is not named" fp64 8

awk -f tools/ptx_shapes.awk "$build"/cuda/*.keep/*.ptx | LC_ALL=C sort -u >"$tmp/shapes"
sm_90a=$(grep -l '^\.target sm_90a' "$build"/cuda/*.keep/*.ptx | head -1)
grep -v "${sm_90a:+^$}${sm_90a:-^wgmma\|^fence.proxy}" tests/data/ptx_shapes.txt | LC_ALL=C sort >"$tmp/wanted"
diff "$tmp/wanted" "$tmp/shapes" >"$out" 2>&1
expect "inline assembly has the operands that it should have" [ $? = 0 ]
mnemonics() { sed -n 's/.*asm[a-z ]*("\({\\n[^"]*"\)\{0,1\}\(mma\|wgmma\|ldmatrix\|cp\.async\|ex2\|fence\|cvt\)\.\([a-z_]*\).*/\2.\3/p' "$@" | sort -u; }
for m in $(mnemonics cuda/*.cuh cuda/*.cu); do expect "$m of the sources is among them" grep -q "^$m" tests/data/ptx_shapes.txt; done

e2e_done
