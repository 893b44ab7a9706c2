#!/bin/bash
# e2e_man.sh - every program has a manual page, and the page lists exactly the options of --help.
# QUICK:
. "$(dirname "$0")/e2e.sh"
options() { grep -oE -- '(^|[^a-zA-Z-])--?[a-zA-Z][a-z-]*' | sed 's/^[^-]*//' | grep -E '^(--[a-z][a-z-]+|-[a-zA-Z])$' | sort -u; }

for p in dtrain dtrain-convert dtrain-data dtrain-generate dtrain-info dtrain-plot dtrain-sid; do
    page=docs/$p.1
    "./$p" --help | options >"$tmp/help"
    sed 's/\\-/-/g' "$page" | options >"$tmp/page"
    expect "$p --help has options" test "$(wc -l <"$tmp/help")" -ge 4
    expect "the options of --help are in $page" test -z "$(comm -23 "$tmp/help" "$tmp/page")"
    case $p in dtrain) other='^--(mpi|help)$|^-(np|n)$' ;; *) other='^--help$' ;; esac # of mpirun and srun in examples
    expect "those of $page are in --help" test -z "$(comm -13 "$tmp/help" "$tmp/page" | grep -vE "$other")"
    expect "$page names itself" grep -q "^\.SH NAME" "$page"
    [ $p = dtrain ] || expect "$page is the one that make docs writes" cmp "$page" <(tools/man.sh $p)
    if command -v mandoc >/dev/null; then
        expect "mandoc has nothing to say about $page" sh -c "! mandoc -T lint -W warning '$page' | grep -v 'missing date'"
    elif command -v man >/dev/null && man --warnings -l "$page" >"$tmp/shown" 2>"$out"; then
        expect "man shows $page without a warning" test ! -s "$out" -a -s "$tmp/shown"
    else
        skip "$page shown" "no man or mandoc here"
    fi
done
e2e_done
