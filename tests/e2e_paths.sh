#!/bin/bash
# e2e_paths.sh - paths in a configuration: relative to home, with variables, and from another folder.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
here=$PWD
mkdir -p "$tmp/first" "$tmp/second" "$tmp/home"
cp "$tmp/train.h5" "$tmp/first"
in_folder() { local dir=$1; shift; (cd "$tmp/$dir" && HOME=$tmp/home "$@") >"$out" 2>&1; code=$?; }

ends "a run with relative paths" 0 in_folder first "$here/dtrain" ../tiny.ini run.output_dir=runs/a data.train=./train.h5 run.max_steps=2
ends "its config.ini from another folder: --check passes" 0 in_folder second "$here/dtrain" --check ../first/runs/a/config.ini
prints "a run in another folder resumes" "resumed from $tmp/first/runs/a/checkpoints/step-00000002.h5" in_folder second "$here/dtrain" ../first/runs/a/config.ini run.max_steps=4
expect_text "the spelling of paths is no change" "continues with the new ones: run.max_steps: 2 -> 4$"
expect "nothing is written in the other folder" test -z "$(ls "$tmp/second")"
in_folder first "$here/dtrain" ../tiny.ini run.output_dir=runs/a data.train=train.h5 run.max_steps=4
expect "the first command again: no change" sh -c "! grep -q 'other settings' '$out'"

# Folders with odd names: full paths where they can be read back, else a warning.
for name in 'a b' 'a;b' 'a #b' "it's [a] *" 'a,b'; do
    mkdir "$tmp/$name" && cp "$tmp/train.h5" "$tmp/$name"
    ends "a run in '$name'" 0 in_folder "$name" "$here/dtrain" ../tiny.ini run.output_dir=runs/a data.train=train.h5 run.max_steps=1
    case $name in
    *,* | *\'*) expect_text "data.train stays relative, with a warning" "config.ini stores relative paths, such as that of train, .* start the run again only from this folder" ;;
    *)
        in_folder second "$here/dtrain" "../$name/runs/a/config.ini" run.max_steps=2
        expect_text "its config.ini from another folder continues the run" "resumed from .*$tmp/.*/runs/a/checkpoints/step-00000001.h5"
        ;;
    esac
    expect "nothing is written in the other folder" test -z "$(ls "$tmp/second")"
done

in_folder second "$here/dtrain" ../tiny.ini 'run.output_dir=~/b' run.max_steps=1
expect "~/ is the home directory" test -f "$tmp/home/b/config.ini"
expect "no directory of the name ~" test -z "$(ls "$tmp/second")"
ends "\$NAME: 64" 64 in_folder second "$here/dtrain" ../tiny.ini 'run.output_dir=$SCRATCH/b' run.max_steps=1
expect_text "with the key and the right form" 'run.output_dir: .SCRATCH in a path is not expanded: expected ..SCRATCH., found'
in_folder second "$here/dtrain-data" --documents lines -o '~/x.h5' ../text.txt
expect "dtrain-data -o '~/x.h5'" test -f "$tmp/home/x.h5"
ends "a variable in quotes: 64" 64 in_folder second "$here/dtrain-data" --documents lines '--output=$SCRATCH/x.h5' ../text.txt
expect "no file is written to the second folder" test -z "$(ls "$tmp/second")"
in_folder second "$here/dtrain-data" --documents separator --separator '$END' -o '~/y.h5' ../text.txt
expect "a text that begins with a dollar sign is no path" test -f "$tmp/home/y.h5"

ln -s "$tmp/gone" "$tmp/link"
ends "output_dir is a dangling link: 64" 64 train 1 link run.max_steps=1
expect_text "the error names the link and its target" "run.output_dir: $tmp/link is a symbolic link to $tmp/gone, which does not exist"
e2e_done
