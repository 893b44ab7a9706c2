# cuda_kernels.awk - combines the assembler's report on each kernel (BUILD/cuda/*.ptxas) with its
# PTX (BUILD/cuda/*.keep/*.ptx) into lines of
#
#   KERNEL <tab> CHIP <tab> registers <tab> stack <tab> spilled (bytes stored and loaded) <tab>
#   static shared memory <tab> threads (launch bounds, 0: none) <tab> fp64 instructions
#
# Threads and fp64 instructions are counted in the PTX. The functions that the kernels of a file call
# have one line, "functions", if they have fp64 instructions. The caller, tools/cuda_kernels.sh,
# demangles names and sorts.
FNR == 1 { file = FILENAME }
file ~ /\.ptx$/ {
    if ($0 ~ /^\.target/) { chip = $2; sub(/,.*/, "", chip); sub(/a$/, "", chip) }
    if (match($0, /\.entry [A-Za-z0-9_$]+/)) { kernel = substr($0, RSTART + 7, RLENGTH - 7); fp64[kernel, chip] += 0 }
    if ($0 ~ /^\.func /) kernel = "functions"
    if (match($0, /^\.maxntid +[0-9]+/)) { n = $2; sub(/,.*/, "", n); threads[kernel, chip] = n }
    if ($0 ~ /^\t[^.\/]*\.f64/ && $0 !~ /^\t(ld|st|mov)\./) fp64[kernel, chip]++
    next
}
/Compiling entry function/ { split($0, part, "'"); kernel = part[2]; chip = part[4]; sub(/a$/, "", chip); next }
/bytes stack frame/ { stack[kernel, chip] = $1; spilled[kernel, chip] = $5 + $9; next }
/Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/)
    seen[kernel, chip] = substr($0, RSTART + 5, RLENGTH - 5)
    shared[kernel, chip] = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
}
END {
    for (k in fp64) if (k ~ /^functions/) seen[k] = 0
    for (k in seen) {
        split(k, at, SUBSEP)
        printf "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", at[1], at[2], seen[k], stack[k], spilled[k], shared[k], threads[k], fp64[k]
    }
}
