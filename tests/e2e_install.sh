#!/bin/bash
# e2e_install.sh - the files that make install writes, and that programs run from the install directory; set-up; job scripts.
. "$(dirname "$0")/e2e.sh"
root=$tmp/root prefix="/opt/my programs/dtrain" version=$(sed -n 's/^VERSION *?= *//p' tools/mk/config.mk)
doc=$root$prefix/share/doc/dtrain modules=$root$prefix/share/modulefiles/dtrain

cuda=0
[ ! -e "$BUILD/libdtrain_cuda.so" ] || cuda=1
run 0 make --no-print-directory install CUDA=$cuda BUILD="$BUILD" SAN="${SAN:-}" DESTDIR="$root" PREFIX="$prefix" MODULES="gcc/12 openmpi/4.1" MAKEFLAGS=
expect_exit "make install" 0
ends_saying "a relative PREFIX is refused" 2 "PREFIX: expected an absolute path, found 'out'" run 0 make -n install CUDA=$cuda BUILD="$BUILD" PREFIX=out MAKEFLAGS=
for program in dtrain dtrain-convert dtrain-data dtrain-generate dtrain-info dtrain-plot dtrain-sid; do
    ends "$program --help, installed" 0 run 0 "$root$prefix/bin/$program" --help
done
for file in share/man/man1/dtrain.1 share/doc/dtrain/README.md share/doc/dtrain/LICENSE share/doc/dtrain/docs/keys.md share/dtrain/input/demo.ini \
    share/dtrain/input/models/qwen2.5-7b.ini share/dtrain/jobs/slurm.sh share/man/man1/dtrain-generate.1 share/dtrain/tools/wandb_offline.py share/dtrain/tools/reward_sum.py \
    share/bash-completion/completions/dtrain-info share/zsh/site-functions/_dtrain; do
    expect "$file is installed" test -s "$root$prefix/$file"
done
expect "nothing outside of the prefix" test "$(ls "$root")" = opt

# Links of the documents, here and as installed.
broken_links() {
    local file link
    for file in "$1"/*.md "$1"/docs/*.md; do
        grep -o '](\([^)#]*\)[^)]*)' "$file" | sed 's/^](//; s/[#)].*//' | grep -v '^https\?:' | grep . | while read -r link; do
            [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
        done
    done
}
expect "links of the documents work" test -z "$(broken_links .)"
expect "installed pages have no broken links" test -z "$(broken_links "$doc")"
expect "all documents are indexed" sh -c 'for f in docs/*.md; do f=${f#docs/}; [ $f = README.md ] || grep -q "($f)" docs/README.md || exit 1; done'

# Modulefiles, read by stand-ins for the commands of the two languages.
cat >"$tmp/module.tcl" <<'TCL'
proc prepend-path {name value} { puts "$name $value" }
proc append-path {name value} { puts "$name behind <$value>" }
proc setenv {name value} { puts "$name $value" }
proc module-whatis {text} { puts "whatis $text" }
proc conflict {name} {}
proc module-info {what value} { return [expr {$value eq "load"}] }
proc is-loaded {name} { return [expr {$name eq "gcc/12"}] }
proc module {verb name} { puts "$verb $name" }
proc help {} { ModulesHelp }
source [lindex $argv 0]
help
TCL
cat >"$tmp/module.lua" <<'LUA'
function help(text) print(text) end
function append_path(name, value) print(name .. " behind <" .. value .. ">") end
function conflict() end
function whatis(text) print("whatis " .. text) end
function depends_on(name) print("load " .. name) end
function prepend_path(name, value) print(name .. " " .. value) end
function setenv(name, value) print(name .. " " .. value) end
dofile(arg[1])
LUA
check_module() { # language, command...
    local language=$1
    shift
    if ! command -v "$1" >/dev/null; then skip "the $language modulefile" "no $1"; return; fi
    prints "the $language modulefile puts the programs into PATH" "^PATH $prefix/bin$" run 0 "$@"
    expect_text "its man pages come before those of the system" "^MANPATH $prefix/share/man$"
    expect_text "the system's man pages are kept" '^MANPATH behind <>$'
    expect_text "its help names the modules" '^Needs these modules: gcc/12 openmpi/4.1$'
    expect_text "the module file loads the modules of the build" '^load openmpi/4.1$'
    expect_text "the module file names the modules of the build" 'whatis Built with: .*HDF5 [0-9]'
}
check_module Tcl tclsh "$tmp/module.tcl" "$modules/$version"
check_module Lua lua "$tmp/module.lua" "$modules/$version.lua"
expect "no placeholder is left" sh -c "! grep -rq '@[A-Z_]*@' '$modules'"
run 0 env LIBRARY_PATH=/opt/hdf5/lib:/usr/lib:/opt/cuda/lib64/stubs make -nB V=1 BUILD="$BUILD" MAKEFLAGS= "$BUILD/dtrain-info"
expect_text "libraries of modules are found without LD_LIBRARY_PATH" '-o [^ ]*dtrain-info .*|.*-Wl,-rpath,/opt/hdf5/lib'
expect "those of the system need no help" sh -c "! grep -qE -- '-rpath,(/usr/lib|[^ ]*stubs)' '$out'"

# The job scripts find the program: stand-ins for the schedulers' commands start it on one rank.
jobs=$root$prefix/share/dtrain/jobs
mkdir "$tmp/path" "$tmp/submit" "$tmp/tree" "$tmp/tree/jobs" "$tmp/here" "$tmp/spool"
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$tmp/path/$1" && chmod +x "$tmp/path/$1"; }
stand_in srun 'while :; do case $1 in -*) shift ;; *) break ;; esac; done; exec "$@"'
stand_in mpirun 'while :; do case $1 in --map-by) shift 2 ;; *) break ;; esac; done; exec "$@"'
stand_in scontrol '[ "$1 $2" != "show job" ] || echo "   Command=$JOB_COMMAND"; [ "$1" != requeue ] || echo "requeued $2"'
stand_in qsub 'echo "submitted again: $*"'
program() { mkdir -p "$(dirname "$1")" && printf '#!/bin/sh\necho "started %s $*"\nexit ${CODE:-0}\n' "$1" >"$1" && chmod +x "$1"; }
job() { # script, as the scheduler's copy of it
    cp "$1" "$tmp/spool/job"
    (cd "$tmp/submit" && PATH=$tmp/path:$PATH JOB_COMMAND=$1 SLURM_JOB_ID=1 SLURM_CPUS_PER_TASK=2 SLURM_SUBMIT_DIR=$tmp/submit PBS_O_WORKDIR=$tmp/submit \
        INPUT=input.ini bash "$tmp/spool/job" input.ini) >"$out" 2>&1
    code=$?
}
cp jobs/* "$tmp/tree/jobs"
for name in slurm.sh slurm-mpirun.sh pbs.sh; do
    rm -rf "$tmp/tree/dtrain" "$tmp/submit/dtrain" "$tmp/path/dtrain"
    ends_saying "$name without a program" 127 'dtrain is not .*set DTRAIN=' job "$tmp/tree/jobs/$name"
    program "$tmp/submit/dtrain"
    prints "$name starts the program of the submit directory" "^started $tmp/submit/dtrain input.ini" job "$tmp/tree/jobs/$name"
    program "$tmp/path/dtrain"
    prints "$name starts the one in PATH" "^started $tmp/path/dtrain input.ini" job "$tmp/tree/jobs/$name"
    if [ "$name" != pbs.sh ]; then # PBS does not tell where a script came from
        program "$tmp/tree/dtrain"
        prints "$name starts the one it was built with" "^started $tmp/tree/dtrain input.ini" job "$tmp/tree/jobs/$name"
    fi
    sed "s|^bin=.*|bin=$tmp/here|" "jobs/$name" >"$tmp/here/$name"
    program "$tmp/here/dtrain"
    prints "$name starts the one it was installed with" "^started $tmp/here/dtrain input.ini" job "$tmp/here/$name"
    expect "$name, installed, knows the place" grep -q "^bin='$prefix/bin'$" "$jobs/$name"
    export CODE=75
    prints "$name queues itself again after 75" '^requeued 1|^submitted again: -v INPUT,ARGS.* .*/spool/job' job "$tmp/here/$name"
    unset CODE
done
ends_saying "serve.sh without a program" 127 'dtrain-generate is not in PATH' job jobs/serve.sh
for place in submit path here; do
    program "$tmp/$place/dtrain-generate"
    sed "s|^bin=.*|bin=$([ $place != here ] || echo "$tmp/here")|" jobs/serve.sh >"$tmp/here/serve.sh"
    prints "serve.sh starts the program of $place" "^started $tmp/$place/dtrain-generate --serve .* input.ini" job "$tmp/here/serve.sh"
done
expect "serve.sh, installed, knows the place" grep -q "^bin='$prefix/bin'$" "$jobs/serve.sh"

expect "make uninstall" make --no-print-directory uninstall CUDA=0 BUILD="$BUILD" DESTDIR="$root" PREFIX="$prefix" MAKEFLAGS=
expect "make uninstall leaves no file" test -z "$(find "$root" ! -type d)"

# Recipes of package managers: readable, of this version, and with every library that set-up knows.
recipes="tools/packaging/spack/package.py tools/packaging/easybuild/dtrain-$version-*.eb"
expect "recipes are of this version" sh -c "ls $recipes && grep -q '^version: $version' CITATION.cff && grep -q '^## $version' CHANGELOG.md"
if command -v python3 >/dev/null; then
    expect "recipes are Python" python3 -c 'import ast, sys; [ast.parse(open(name).read()) for name in sys.argv[1:]]' $recipes
else
    skip "recipes are Python" "no python3"
fi
for recipe in $recipes; do
    missing=
    for library in $(sed -n 's/^build?* header:[^ ]* *[^ ]* *\([a-z0-9-]*\).*/\1/p' tools/setup.sh) hdf5; do grep -qi "'$library'\|\"$library[\"@]\|# $library is optional" "$recipe" || missing="$missing $library"; done
    if [ -z "$missing" ]; then ok "$recipe has all libraries"; else not_ok "$recipe has all libraries" "missing:$missing"; fi
done

# As a user starts it, make uses all cores; -j says otherwise, and "make clean all" goes in order.
printf 'include Makefile\nflags: ; @echo flags $(filter -j%%,$(MAKEFLAGS))\n' >"$tmp/flags.mk"
flags() { run 0 env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "$@" --no-print-directory -f "$tmp/flags.mk" flags; }
flags make
expect_text "make uses all cores" "^flags .*-j$(nproc)"
prints "or as many as -j says" '^flags .*-j3' flags make -j3
prints "on the command line or in the environment" '^flags .*-j5' flags env MAKEFLAGS=-j5 make
flags make -n clean
expect "make clean all runs in order" sh -c "! grep -q '^flags.*-j' '$out'"

prints "make help names the targets" '^ *make test .*passed' run 0 make --no-print-directory help MAKEFLAGS=
ends "set-up has nothing to do" 0 run 0 tools/setup.sh test
expect "no message is printed" test ! -s "$out"

# Without headers and without the right to install: one command for all that the build, the demo and the tests need.
stand_in id 'echo 1000'
stand_in sudo 'exit 1'
ends "set-up without the right to install" 69 run 0 env PATH="$tmp/path:$PATH" CPPFLAGS="-nostdinc" tools/setup.sh build
expect_text "names what to install elsewhere" 'libjansson-dev \(elsewhere: jansson\)'
expect_text "one command installs all packages for build, demo and tests" 'apt-get install --no-install-recommends .*libjansson-dev.* libcmocka-dev'
e2e_done
