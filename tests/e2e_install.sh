#!/bin/bash
# e2e_install.sh - what make install leaves, and that it runs from there.
. "$(dirname "$0")/e2e.sh"
root=$tmp/root prefix=/opt/dtrain

run 0 make --no-print-directory install BUILD="$BUILD" SAN="${SAN:-}" DESTDIR="$root" PREFIX=$prefix MAKEFLAGS=
expect_exit "make install" 0
for program in dtrain dtrain-convert dtrain-data dtrain-generate dtrain-info dtrain-plot; do
    run 0 "$root$prefix/bin/$program" --help
    expect_exit "$program --help, installed" 0
done
for file in share/man/man1/dtrain.1 share/doc/dtrain/README.md share/doc/dtrain/keys.md share/dtrain/input/demo.ini share/dtrain/jobs/slurm.sh; do
    expect "$file is installed" test -s "$root$prefix/$file"
done
expect "the modulefile names the prefix" grep -rq "prepend-path PATH *\"$prefix/bin\"" "$root$prefix/share/modulefiles/dtrain"
expect "nothing outside of the prefix" test "$(ls "$root")" = opt
run 0 make --no-print-directory help MAKEFLAGS=
expect_text "make help names the targets" '^ *make test .*passed'
run 0 tools/setup.sh test
expect_exit "set-up has nothing to do" 0
expect "and says nothing" test ! -s "$out"
e2e_done
