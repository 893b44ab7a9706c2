#!/bin/bash
# e2e_tools.sh - behaviour common to all programs: help, version, errors under their own name, a reader that closes the pipe early.
# QUICK:
. "$(dirname "$0")/e2e.sh"
programs="dtrain dtrain-convert dtrain-data dtrain-generate dtrain-info dtrain-plot dtrain-sid"

for p in $programs; do
    ends "$p --version" 0 run 0 "./$p" --version
    expect "$p says its name, version and commit first" sh -c "head -1 '$out' | grep -qE '^$p [0-9.]+ \(commit [0-9a-f]{12}(-dirty)?\)\$|^$p [0-9.]+ \(commit [^ ]+\)\$'"
    expect_text "$p says how it was built" '^built with: (gcc|clang) [0-9.]+.*, .*-std=c11'
    expect_text "$p says its libraries" '^HDF5: [0-9.]+$'
    cp "$out" "$tmp/version"
    run 0 "./$p" -V
    expect "$p -V is the same" cmp "$out" "$tmp/version"
    ends "$p --help" 0 run 0 "./$p" --help
    expect "the help of $p fits 100 columns" awk 'length($0) > 100 { print; bad = 1 } END { exit bad }' "$out"
    expect_text "the help of $p names the exit codes" '^exit codes: 0 done, 64 '
    cp "$out" "$tmp/help"
    run 0 "./$p" -h
    expect "$p -h is the same" cmp "$out" "$tmp/help"
    ends_saying "$p with an unknown option" 64 "^$p: error: --frobnicate: unknown option; see $p --help\$" run 0 "./$p" --frobnicate
    prints "$p takes no value for a switch" "^$p: error: --help: this option takes no value, found =yes" run 0 "./$p" --help=yes
    ends_saying "$p without arguments" 64 "^$p: error: expected" run 0 "./$p"
    "./$p" --help >/dev/full 2>"$out"
    code=$?
    expect_exit "$p --help to a full disk" 74
done
prints "a missing value is named" '^dtrain-data: error: -o: expected a value' run 0 ./dtrain-data -o
prints "an option cut short is completed" '^dtrain-data: error: --max: expected a value' run 0 ./dtrain-data --max
prints "an ambiguous one is refused" '^dtrain-data: error: --s: [0-9]+ options start with this' run 0 ./dtrain-data --s
prints "a word that an option does not have is refused" '^dtrain-data: error: --kind: expected tokens, sft, .* or auto, found .words.' run 0 ./dtrain-data --kind words -o a b
prints "a number with letters is refused" '^dtrain-data: error: --threads: expected a whole number from 1 to 2147483647, found .2x.' run 0 ./dtrain-data --threads 2x -o a b

# a reader that has left: no error, and no death by a signal
kept=tests/data/fuzz/checkpoint/good
for command in "./dtrain-info --tensors $(yes $kept | head -2000 | tr '\n' ' ')" "./dtrain --keys"; do
    { $command 2>"$out"; echo $? >"$tmp/code"; } | head -1 >"$tmp/first"
    code=$(cat "$tmp/code")
    expect_exit "${command%% *} to a reader that has left" 0
    expect "${command%% *} says nothing about it" test ! -s "$out"
done

# version.o alone is compiled again for another commit, and only then
make=(make --no-print-directory -s MAKEFLAGS= "BUILD=$tmp/b" "$tmp/b/build_version.h")
run 0 "${make[@]}" COMMIT=
expect "without git the commit is unknown" grep -q 'BUILD_COMMIT "unknown"' "$tmp/b/build_version.h"
touch -d '2001-01-01' "$tmp/b/build_version.h"
run 0 "${make[@]}" COMMIT=
expect "the same commit leaves the file alone" test "$tmp/b/build_version.h" -ot Makefile
run 0 "${make[@]}" COMMIT=123abc
expect "another commit does not" grep -q 'BUILD_COMMIT "123abc"' "$tmp/b/build_version.h"
e2e_done
