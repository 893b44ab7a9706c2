#!/bin/bash
# e2e_style.sh - the style of the sources: layout and length of lines, pages that comments cite, and rooms (docs/architecture.md). Calls and
# includes go down, private headers stay inside their room, and only comm calls MPI.
# QUICK:
. "$(dirname "$0")/e2e.sh"
cd "$(realpath tests)/.." || exit 1 # e2e.sh may be in a folder of links, which find does not follow
build=${BUILD:-build/release}
find include src cuda tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' | sort >"$tmp/sources"
expect "there are sources" test "$(wc -l <"$tmp/sources")" -gt 500

xargs awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' <"$tmp/sources" >"$out"
expect "no line of C or CUDA has more than 120 columns" test ! -s "$out"

# Prose of the documentation has lines of at most 100 characters; tables, links and examples (indented, or between fences) may be wider.
for page in README.md CHANGELOG.md CONTRIBUTING.md docs/*.md; do
    sed '/^ *```/,/^ *```/s/.*//' "$page" | LC_ALL=C.UTF-8 grep -nE '^.{101,}' | grep -vE '^[0-9]+:(\||\[|    )|https?:' | sed "s|^|$page:|"
done >"$out"
expect "no line of the documentation has more than 100 characters" test ! -s "$out"
# Words that hide who acts (CONTRIBUTING.md, "Rules"). Tests may quote them.
riddles='whoever|nobody|everybody|somebody|(is|are) told|held (to|against)|under way|beside|believed'
grep -nEi "\\b($riddles)\\b" README.md CHANGELOG.md CONTRIBUTING.md docs/*.md include/dtrain/*/*.h >"$out"
expect "documentation and headers say who does what" test ! -s "$out"

# Versions of clang-format lay out differently: Debian 12's is the one that counts.
format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ $format && $($format --version) == *"version 14."* ]]; then
    xargs $format --dry-run <"$tmp/sources" >"$out" 2>&1
    expect "clang-format would change nothing (make format)" test ! -s "$out"
else
    skip "clang-format would change nothing" "no clang-format 14 here"
fi

tools/check_citations.sh >"$out"
expect "pages and sections that comments cite exist" test ! -s "$out"

# Symbols of each room's objects: what a room uses of another must be of a room before it in the Makefile's list.
rooms=$(sed -n 's/^ROOMS *= *//p' Makefile)
level=0
for room in $rooms; do
    level=$((level + 1))
    find "src/$room" -name '*.c' | sed "s|^\(.*\)\.c$|$build/\1|" | while read -r object; do
        for o in "$object".o "$object".*.o; do [ ! -e "$o" ] || echo "$o"; done
    done | xargs nm -A | awk -v room="$room" -v level=$level '{ file = $1; sub(/:.*/, "", file); print $(NF - 1), $NF, room, level, file }'
done >"$tmp/symbols"
expect "there are objects of all rooms" test "$(cut -d' ' -f3 "$tmp/symbols" | sort -u | wc -l)" = "$(wc -w <<<"$rooms")"
awk '$1 ~ /^[TDRBV]$/ { room[$2] = $3; at[$2] = $4 } { line[NR] = $0 }
     END { for (i = 1; i <= NR; i++) { split(line[i], f, " ")
           if (f[1] == "U" && at[f[2]] > f[4] + 0) print f[5] ": calls " f[2] " of the room " room[f[2]] ", which is above" } }' "$tmp/symbols" >"$out"
expect "calls between rooms go down" test ! -s "$out"

# What a room includes must not be of a room above.
grep -rnE '#include "dtrain/' src include --include='*.[ch]' --exclude=precompiled.h | sed -E 's|^([^:]*):([0-9]+):.*"dtrain/([a-z_]+)/([a-z_0-9]+\.h)".*|\1 \2 \3 \4|' | awk -v rooms="$rooms main" '
    BEGIN { n = split(rooms, list, " "); for (i = 1; i <= n; i++) at[list[i]] = i }
    { split($1, path, "/"); room = path[1] == "src" ? path[2] : path[3]
      if (!($3 in at)) print $1 ":" $2 ": includes " $3 ", which is no room"
      else if (at[$3] > at[room]) print $1 ":" $2 ": includes " $4 " of the room " $3 ", which is above" }' >"$out"
expect "includes between rooms go down" test ! -s "$out"

ls -d src/*/ | xargs -n1 basename | grep -vx main | sort >"$tmp/folders"
ls -d include/dtrain/*/ | xargs -n1 basename | comm -23 - <(tr ' ' '\n' <<<"$rooms" | sort) >"$out"
expect "every folder of headers is a room" test ! -s "$out"
grep -E '^(src|include|cuda)/' "$tmp/sources" | xargs -n1 basename | sort | uniq -d >"$out"
expect "no two files share a name" test ! -s "$out"
expect "every folder of src is a room of the Makefile" cmp "$tmp/folders" <(tr ' ' '\n' <<<"$rooms" | sort)

# An include that leaves its room names a file in include/.
grep -rnE '#include "(\.\./)+' src --include='*.[ch]' | while IFS=: read -r file line text; do
    path=$(realpath -m --relative-to=. "$(dirname "$file")/$(sed 's/.*"\(.*\)".*/\1/' <<<"$text")")
    [ "$(cut -d/ -f2 <<<"$path")" = "$(cut -d/ -f2 <<<"$file")" ] || echo "$file:$line: includes $path of another room"
done >"$out"
grep -rnE '#include "src/' src --include='*.[ch]' >>"$out"
expect "no room includes another's private header" test ! -s "$out"

grep -rhoE '^\} dt_[a-z0-9_]+;' include src --include='*.[ch]' | sort | uniq -d >"$out"
expect "no type's name has two meanings" test ! -s "$out"

# Modules ask for an axis of the mesh. The ranks and nodes of the whole run are known to comm and main. comm.h has functions for what does not
# depend on axes, such as the resources of a node; each says what it is for.
grep -rnE '(\bcomm(->|\.)|world\.)(rank|nranks|size|local_rank|local_nranks|node|n_nodes)\b|MPI_COMM_WORLD|mesh\.world|dt_comm_all\([^,;]*\)->' src include --include='*.[ch]' | grep -vE '^(src/(comm|main)|include/dtrain/comm)/' >"$out"
expect "comm and main alone know the ranks and nodes of the run" test ! -s "$out"

grep -rlE '#include <mpi\.h>' src include --include='*.[ch]' | grep -v '^src/comm/' >"$out"
expect "mpi.h is included by comm alone" test ! -s "$out"
# A model family is named by its own file, and by the list of families (docs/architecture.md). Tokenizers and chat templates have families of
# their own.
families=$(grep -oE 'TYPE\([a-z0-9_]+\)' include/dtrain/config/model_types.h | sed 's/TYPE(\(.*\))/\1/' | paste -sd'|')
expect "there are families" test -n "$families"
grep -rnE "family *[!=]=|dt_family_($families)|\"($families)\"|tower *[!=]= *&" src include cuda | grep -vE '^src/(model/families|tokenizer|chat)/|^src/io/hub\.c:|^[^:]*:[0-9]*:(/\*| \*)' >"$out"
expect "nothing but its file and the list names a model family" test ! -s "$out"

# Operations of devices (CONTRIBUTING.md, "Adding a device operation").
sed -nE 's/^DT_OP[A-Z_]*\(([a-z0-9_]+),.*/\1/p' include/dtrain/device/op_list.h >"$tmp/operations"
expect "there are operations" test "$(wc -l <"$tmp/operations")" -gt 30
without_comments() { sed -zE 's@/\*([^*]|\*+[^*/])*\*+/@@g; s@//[^\n]*@@g' "$@" | sed '/^ *# *if 0/,/^ *# *endif/d'; }
missing_runs() { # FOLDER with tests and src: operations that nothing runs
    local op
    without_comments $(ls "$1"/tests/test_device_*.c | grep -v nothing) >"$tmp/loops"
    without_comments "$1"/src/selfcheck/*.c >"$tmp/cases"
    while read -r op; do
        grep -q "RUN($op," "$tmp/loops" || echo "$op: no RUN($op, ...) in tests/test_device_*.c"
        grep -q "RUN(c, $op," "$tmp/cases" || echo "$op: no case in src/selfcheck"
    done <"$tmp/operations"
}
missing_runs . >"$out"
expect "every operation is compared with a plain loop, and by the self-check" test ! -s "$out"

mkdir -p "$tmp/less/tests" "$tmp/less/src"
cp tests/test_device_*.c "$tmp/less/tests"
cp -r src/selfcheck "$tmp/less/src"
sed -i -E -e 's@^.*RUN\(c, softcap,@// &@' -e 's@^( *)(RUN\(c, top_tokens,)@\1/* \2@' -e '/RUN\(c, log_softmax_at,/s@$@ */@' \
    -e 's@^.*RUN\(c, classifier,.*@#if 0\n&\n#endif@' "$tmp"/less/src/selfcheck/*.c
sed -i -E 's@^( *)(RUN\(abs_max,.*)@\1/* \2 */@' "$tmp"/less/tests/test_device_*.c
missing_runs "$tmp/less" >"$tmp/.less"
expect "a case that is commented out is missing" test "$(cut -d' ' -f1-4 "$tmp/.less" | sort | paste -sd,)" = \
    "abs_max: no RUN(abs_max, ...),classifier: no case in,log_softmax_at: no case in,softcap: no case in,top_tokens: no case in"
e2e_done
