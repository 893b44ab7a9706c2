# ptx_shapes.awk - lists the distinct inline assembly instructions of PTX files. Registers are
# reduced to their class (%f, %r, %rd), lists of floats to their length, wait counts to N. An
# operand that is read and written must be the same register in both places: mma lines are marked
# "same" if it is, else "other".
/begin inline asm/ { inside = 1; next }
/end inline asm/ { inside = 0; next }
!inside || !/^[ \t]*(@[^ ]+ )?(mma|wgmma|ldmatrix|cp\.async|ex2|fence|cvt\.rn\.(bf16x2|f16x2))/ { next }
{
    gsub(/^[ \t]+|[ \t]+$/, "")
    tied = ""
    if (/^mma/) {
        n = split($0, list, /[{}]/)
        tied = list[2] == list[n - 1] ? " same" : " other"
    }
    gsub(/%[a-z]+[0-9]+/, "&#")
    while (match($0, /%[a-z]+[0-9]+#/)) {
        name = substr($0, RSTART, RLENGTH)
        sub(/[0-9]+#$/, "", name)
        $0 = substr($0, 1, RSTART - 1) name substr($0, RSTART + RLENGTH)
    }
    while (match($0, /%f(,%f)+/)) $0 = substr($0, 1, RSTART - 1) (RLENGTH + 1) / 3 " floats" substr($0, RSTART + RLENGTH)
    if (/wait_group/) sub(/[0-9]+;$/, "N;")
    gsub(/[ \t]+/, " ")
    if (!seen[$0 tied]++) print $0 tied
}
