#!/bin/bash
# e2e_builds.sh - builds in addition to the default one: which programs they leave at the top of the tree, and which programs the tests run.
. "$(dirname "$0")/e2e.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL
top() { env -u BUILD make -n programs MAKEFLAGS= "$@" 2>/dev/null | grep -c 'cp .* dtrain.new'; }
expect "make replaces the programs at the top of the tree" test "$(top BUILD=build/release)" -gt 0
expect "make SAN=1 does not" test "$(top SAN=1)" = 0
expect "a build in another folder does not" test "$(top BUILD=build/other)" = 0
mkdir "$tmp/a tree" && ln -s "$PWD"/* "$tmp/a tree/"
for build in SAN=1 BUILD=build/other; do expect "nor does make $build in a folder with a blank" test "$(top -C "$tmp/a tree" $build)" = 0; done
expect "make in a folder with a blank does" test "$(top -C "$tmp/a tree" BUILD=build/release)" -gt 0
devices() { env -u BUILD -u CUDA make -n programs MAKEFLAGS= NVCC=/none/nvcc BUILD="$tmp/empty" "$@" 2>/dev/null | grep -c 'libdtrain_cuda.so'; }
expect "make builds the CUDA device where nvcc is" test "$(devices)" -gt 0
expect "make CUDA=0 does not" test "$(devices CUDA=0)" = 0
for isas in native all; do # an outer make passes the word on: what it names is known to the inner one only
    expect "make leaves ISAS=$isas of the environment as it is" test "$(ISAS=$isas make -pn clean MAKEFLAGS= 2>/dev/null | grep '^ISAS ')" = "ISAS = $isas"
done

# another program under the name: the tests take that of their build
mkdir -p "$tmp/top/tests" "$tmp/b"
cp tests/e2e.sh tests/environment.sh "$tmp/top/tests"
printf '#!/bin/sh\necho old\n' >"$tmp/top/dtrain"
printf '#!/bin/sh\necho new\n' >"$tmp/b/dtrain"
chmod +x "$tmp/top/dtrain" "$tmp/b/dtrain"
printf '. "$(dirname "$0")/e2e.sh"\n./dtrain; [ -f tests/e2e.sh ]\n' >"$tmp/top/tests/e2e_x.sh"
ends_saying "a test runs in a folder of links" 0 '^new$' run 0 env BUILD="$tmp/b" bash "$tmp/top/tests/e2e_x.sh"
expect "those at the top are left alone" grep -q old "$tmp/top/dtrain"
e2e_done
