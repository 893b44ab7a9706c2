#!/bin/bash
# e2e_files.sh - what is written, and where it is never written: through links that somebody planted, over an input, into a pipe, to a closed output.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
kept() { [ "$(cat "$tmp/precious")" = precious ]; }
no_links() { ! find "$@" -type l ! -name '*.part' | grep -q .; } # a name that this run had no use for keeps its link

# ---- links with the names that files have while they are written, and with their final names
echo precious >"$tmp/precious"
mkdir -p "$tmp/planted/checkpoints" "$tmp/planted/hf"
for f in config.ini.part metrics.jsonl metrics.jsonl.part trace.json.part checkpoints/latest.part checkpoints/latest \
    checkpoints/step-00000006.h5.part hf/config.json.part hf/model.safetensors.part; do
    ln -s "$tmp/precious" "$tmp/planted/$f"
done
train 2 planted log.trace=true checkpoint.export=hf
expect_exit "a run among planted links" 0
expect "no file of a run goes through a link" kept
expect "the files themselves are there" no_links "$tmp/planted"
ln -s "$tmp/precious" "$tmp/d.h5.part"
run 0 ./dtrain-data -o "$tmp/d.h5" "$tmp/text.txt"
expect_exit "a dataset beside a planted link" 0
if command -v gnuplot >/dev/null; then
    for f in loss.png.part loss.svg.part; do ln -s "$tmp/precious" "$tmp/planted/$f"; done
    run 0 ./dtrain-plot "$tmp/planted"
    expect_exit "pictures beside planted links" 0
    expect "the pictures are files" no_links "$tmp/planted"
else
    skip "pictures beside planted links" "gnuplot is not installed"
fi
ln -s "$tmp/precious" "$tmp/c.h5.part"
run 0 ./dtrain-convert "$tmp/planted/hf" "$tmp/c.h5"
expect_exit "a checkpoint beside a planted link" 0
expect "no file of the tools goes through a link" kept

for to in "$tmp/planted/hf" "$tmp/planted/hf/model.safetensors"; do
    run 0 ./dtrain-convert --force --to $([ -d "$to" ] && echo hf || echo checkpoint) "$tmp/planted/hf" "$to"
    expect_exit "dtrain-convert never replaces what it reads ($(basename "$to"))" 64
done
expect "the model is whole" ./dtrain-convert "$tmp/planted/hf" "$tmp/again.h5"

# ---- dtrain-data: an existing file, an input
for f in one two; do echo "this is book $f" >"$tmp/$f.txt"; done
before=$(cat "$tmp/one.txt")
run 0 ./dtrain-data -o "$tmp/one.txt" "$tmp/two.txt"
expect_exit "a forgotten name of the output: a text is not replaced" 64
expect_text "and the way out is named" "one.txt: exists; .*--force"
ln "$tmp/one.txt" "$tmp/hard.h5"
ln -s one.txt "$tmp/soft.h5"
cp "$tmp/one.txt" "$tmp/x.h5.part"
for o in one.txt hard.h5 soft.h5 x.h5; do
    in=$tmp/one.txt
    [ $o != x.h5 ] || in=$tmp/x.h5.part
    run 0 ./dtrain-data --force -o "$tmp/$o" "$in"
    expect_exit "an input is never the output ($o)" 64
    expect_text "an input is never the output ($o): said" "is an input .*another name"
done
run 0 sh -c "./dtrain-data --force -o '$tmp/one.txt' - <'$tmp/one.txt'"
expect_exit "standard input is an input" 64
run 0 ./dtrain-data --force -o "$tmp/v.h5" --validation "$tmp/one.txt" --validation-fraction 0.5 "$tmp/one.txt"
expect_exit "the validation file is no input" 64
expect "the text is as it was" test "$(cat "$tmp/one.txt")" = "$before"
./dtrain-data -q -o "$tmp/sh.h5" --shards 2 --documents lines "$tmp/text.txt" >/dev/null
run 0 ./dtrain-data -q -o "$tmp/sh.h5" --shards 2 --documents lines "$tmp/text.txt"
expect_exit "shards that exist are not replaced" 64
run 0 ./dtrain-data -q --force -o "$tmp/sh.h5" --shards 2 --documents lines "$tmp/text.txt"
expect_exit "shards are replaced with --force" 0

# ---- a pipe with the name of the metrics; a reader that leaves
mkdir "$tmp/pipe"
mkfifo "$tmp/pipe/metrics.jsonl"
RUN_TIMEOUT=60 train 2 pipe
expect_exit "a pipe as metrics.jsonl ends the run" 74
expect_text "a pipe as metrics.jsonl is named" "metrics.jsonl: expected a file or nothing there"
rm -rf "$tmp/pipe/checkpoints"
mkdir "$tmp/ev" && mkfifo "$tmp/ev/metrics.jsonl"
RUN_TIMEOUT=60 train 1 ev run.task=eval model.path="$tmp/planted/hf" data.validation="$tmp/valid.h5"
expect_exit "and an evaluation" 74

# the reader is gone before the run has a line to print
timeout 120 bash -c "./dtrain '$tmp/tiny.ini' run.output_dir='$tmp/closed' log.report_to=stdout,jsonl log.logging_steps=1 2>'$tmp/closed.err' | true; exit \${PIPESTATUS[0]}" >"$out" 2>&1
code=$?
cat "$tmp/closed.err" >>"$out"
expect_exit "a closed standard output does not end a run" 0
expect "that is said once" test "$(grep -c 'standard output cannot be written' "$tmp/closed.err")" = 1
expect "and all steps are in the metrics" test "$(wc -l <"$tmp/closed/metrics.jsonl")" = 6
e2e_done
