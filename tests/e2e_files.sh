#!/bin/bash
# e2e_files.sh - output files: programs never write through planted links, over an input or into a pipe, and they report a closed output.
# QUICK:
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
ends "a run among planted links" 0 train 2 planted log.trace=true checkpoint.export=hf
expect "a run writes no file through a link" kept
expect "the output files exist and are no links" no_links "$tmp/planted"
ln -s "$tmp/precious" "$tmp/d.h5.part"
ends "a dataset next to a planted link" 0 run 0 ./dtrain-data -o "$tmp/d.h5" "$tmp/text.txt"
if command -v gnuplot >/dev/null; then
    for f in loss.png.part loss.svg.part; do ln -s "$tmp/precious" "$tmp/planted/$f"; done
    ends "plots next to planted links" 0 run 0 ./dtrain-plot "$tmp/planted"
    expect "the pictures are files" no_links "$tmp/planted"
    ln "$tmp/planted/metrics.jsonl" "$tmp/run.svg"
    ends "a picture is not drawn over the metrics" 64 run 0 ./dtrain-plot -o "$tmp/run.svg" "$tmp/planted"
else
    skip "plots next to planted links" "gnuplot is not installed"
fi
ln -s "$tmp/precious" "$tmp/c.h5.part"
ends "a checkpoint next to a planted link" 0 run 0 ./dtrain-convert "$tmp/planted/hf" "$tmp/c.h5"
expect "the tools write no file through a link" kept

for to in "$tmp/planted/hf" "$tmp/planted/hf/model.safetensors"; do
    run 0 ./dtrain-convert --force --to $([ -d "$to" ] && echo hf || echo checkpoint) "$tmp/planted/hf" "$to"
    expect_exit "dtrain-convert never replaces what it reads ($(basename "$to"))" 64
done
expect "the model is whole" ./dtrain-convert "$tmp/planted/hf" "$tmp/again.h5"

# ---- a bit that changed: dtrain-info and training agree, in headers always, in data when training is asked to look
flip() { # OUT BYTE BIT
    local byte
    cp "$tmp/train.h5" "$1"
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf "\\x$(printf %02x $((byte ^ (1 << $3))))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
agree() { # NAME FROM UNTIL N TRAINING-ARGS...: N flips in that part of the file
    local name=$1 from=$2 until=$3 n=$4 at bit info bad=0 k
    shift 4
    for k in $(seq "$n"); do
        at=$((from + k * 7919 % (until - from))) bit=$((k % 8))
        flip "$tmp/flipped.h5" $at $bit
        run 0 ./dtrain-info "$tmp/flipped.h5"
        info=$code
        rm -rf "$tmp/flip"
        train 0 flip run.max_steps=1 data.train="$tmp/flipped.h5" "$@"
        [ "$info" = 65 ] && [ "$code" = 65 ] || { bad=1; echo "    bit $bit of byte $at: dtrain-info $info, dtrain $code"; }
    done
    if [ $bad = 0 ]; then ok "$name"; else not_ok "$name" "see above"; fi
}
nbytes=$(stat -c %s "$tmp/train.h5")
prints "dtrain-info says that the header has a checksum" "header +verified" run 0 ./dtrain-info "$tmp/train.h5"
agree "changed bits of the header are refused by both" 0 800 12
agree "and those of the end" $((nbytes - 48)) "$nbytes" 8
agree "changed bits anywhere, with data.verify" 0 "$nbytes" 12 data.verify=true
agree "changed bits anywhere, where training reads them" 0 "$nbytes" 24
flip "$tmp/flipped.h5" $((nbytes / 2)) 3
for np in 2 3; do
    rm -rf "$tmp/flip"
    ends "a damaged block on $np ranks: 65" 65 train $np flip run.max_steps=1 data.train="$tmp/flipped.h5" comm.timeout=20
done
for np in 1 2 3; do
    ends "data.verify of good files on $np ranks" 0 train $np verified$np run.max_steps=1 data.verify=true data.validation="$tmp/valid.h5" comm.timeout=5
    DTRAIN_FAULT=data.verify:$((np - 1)):1:error train $np verify-fault run.max_steps=1 data.verify=true
    expect_exit "one of $np ranks fails there: all end with 70" 70
done
RUN_TIMEOUT=60 DTRAIN_FAULT=data.verify:1:1:hang train 3 verify-hang run.max_steps=1 data.verify=true comm.timeout=2
expect_exit "one rank hangs while the data is verified: 76" 76
expect_text "each rank reports its phase" "rank 0 .*no progress.*phase (verify|agree)"
RUN_TIMEOUT=60 DTRAIN_FAULT=report:0:2:hang ends "rank 0 hangs while it reports: 76" 76 train 2 report-hang log.logging_steps=1 comm.timeout=2
expect_text "the watchdog reports the phase report" "rank 0 .*no progress.*phase report"

full_only

# a directory that is moved away while a run is at work in it
for np in 0 2; do
    DTRAIN_FAULT=step.begin:0:3:stop start $np moved checkpoint.save_steps=1
    wait_until_stopped moved 1
    mv "$tmp/moved" "$tmp/kept"
    kill -CONT $(ranks_of moved)
    ends_saying "a directory that was moved: 74 ($np)" 74 "moved/run.lock was taken over by another run, moved or removed" finish moved
    expect "nothing is written under its old name ($np)" test ! -e "$tmp/moved"
    ends "the run resumes under the new one ($np)" 0 train 0 kept
    rm -rf "$tmp/kept"
done
if [ -x /usr/bin/h5dump ]; then
    expect "HDF5's own tools read the file" h5dump -H "$tmp/train.h5"
fi

# ---- dtrain-data: an existing file, an input
for f in one two; do echo "this is book $f" >"$tmp/$f.txt"; done
before=$(cat "$tmp/one.txt")
ends_saying "a forgotten name of the output: a text is not replaced" 64 "one.txt: exists; .*--force" run 0 ./dtrain-data -o "$tmp/one.txt" "$tmp/two.txt"
ln "$tmp/one.txt" "$tmp/hard.h5"
ln -s one.txt "$tmp/soft.h5"
cp "$tmp/one.txt" "$tmp/x.h5.part"
for o in one.txt hard.h5 soft.h5 x.h5; do
    in=$tmp/one.txt
    [ $o != x.h5 ] || in=$tmp/x.h5.part
    ends_saying "an input is never the output ($o)" 64 "is an input .*another name" run 0 ./dtrain-data --force -o "$tmp/$o" "$in"
done
ends "standard input is an input" 64 run 0 sh -c "./dtrain-data --force -o '$tmp/one.txt' - <'$tmp/one.txt'"
ends "the validation file is no input" 64 run 0 ./dtrain-data --force -o "$tmp/v.h5" --validation "$tmp/one.txt" --validation-fraction 0.5 "$tmp/one.txt"
expect "the text is as it was" test "$(cat "$tmp/one.txt")" = "$before"
./dtrain-data -q -o "$tmp/sh.h5" --shards 2 --documents lines "$tmp/text.txt" >/dev/null
ends "shards that exist are not replaced" 64 run 0 ./dtrain-data -q -o "$tmp/sh.h5" --shards 2 --documents lines "$tmp/text.txt"
ends "shards are replaced with --force" 0 run 0 ./dtrain-data -q --force -o "$tmp/sh.h5" --shards 2 --documents lines "$tmp/text.txt"

# ---- a pipe with the name of the metrics; a reader that leaves
mkdir "$tmp/pipe"
mkfifo "$tmp/pipe/metrics.jsonl"
ends_saying "a pipe as metrics.jsonl ends the run" 74 "metrics.jsonl: expected a regular file or no file" train 2 pipe
rm -rf "$tmp/pipe/checkpoints"
mkdir "$tmp/ev" && mkfifo "$tmp/ev/metrics.jsonl"
ends "an evaluation with closed output ends with 74" 74 train 1 ev run.task=eval model.path="$tmp/planted/hf" data.validation="$tmp/valid.h5"

# the reader is gone before the run has a line to print
timeout 120 bash -c "./dtrain '$tmp/tiny.ini' run.output_dir='$tmp/closed' log.report_to=stdout,jsonl log.logging_steps=1 2>'$tmp/closed.err' | true; exit \${PIPESTATUS[0]}" >"$out" 2>&1
code=$?
cat "$tmp/closed.err" >>"$out"
expect_exit "a closed standard output does not end a run" 0
expect "the closed output is reported once" test "$(grep -c 'cannot write to standard output' "$tmp/closed.err")" = 1
expect "all steps are in the metrics" test "$(wc -l <"$tmp/closed/metrics.jsonl")" = 6
e2e_done
