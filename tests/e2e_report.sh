#!/bin/bash
# e2e_report.sh - reports of a run: log lines, closing lines, metrics.csv, metrics.prom, names in the trace.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data of the test" "dtrain-data failed"; exit 1; }
lines() { grep -cE '^step [0-9]+/[0-9]+ \([0-9]+%\)' "$out"; }

ends "a run of 300 steps" 0 train 0 plain log.report_to=stdout,jsonl run.max_steps=300 log.stdout_every=-1
expect "its log has the first ten lines and the last" test "$(lines)" -ge 11
expect "the log has at most 25 lines" test "$(lines)" -le 25
expect_text "the last step is among them" '^step 300/300 \(100%\)'
expect "the last checkpoint is logged after the last step" awk '/^step 300\/300/ { step = NR } /^checkpoint of step 300 written/ { saved = NR } END { exit !(step && saved > step) }' "$out"
expect "metrics.jsonl has all steps" test "$(wc -l <"$tmp/plain/metrics.jsonl")" = 300
expect_text "the closing line tells steps, tokens, rate and time" '^done: 300 steps \(300 of 300\), [0-9.]+k tokens, [0-9.]+k? tokens/s on average, [0-9ms]+ from start to end$'
expect_text "the last lines name the results" "^results in $tmp/plain\$"
expect_text "the last lines name the next command" "^next: dtrain-generate $tmp/plain "
train 2 every log.report_to=stdout run.max_steps=30 log.stdout_every=0
expect "log.stdout_every = 0 shows every report" test "$(lines)" = 30
expect "the closing lines come once" test "$(grep -c '^done: ' "$out")" = 1
train 0 seldom log.report_to=stdout run.max_steps=30 log.stdout_every=3600
expect "log.stdout_every = 3600 shows the first and the last" test "$(lines)" = 2
train 0 valid log.report_to=stdout data.validation="$tmp/valid.h5" data.validation_steps=2
expect_text "validation lines have units" '^step 6/6  validation loss [0-9.]+  perplexity [0-9.]+  accuracy [0-9.]+ %  entropy [0-9.]+ nats  [0-9]+ target tokens  [0-9]+ samples  in [0-9.e-]+ s$'

# CSV: whole runs and resumed ones end with the same columns and steps
csv="log.report_to=csv,jsonl data.validation=$tmp/valid.h5 data.validation_steps=2 checkpoint.save_steps=2"
train 0 whole $csv
train 0 parts $csv run.max_steps=4
ends "a resumed run continues its table" 0 train 2 parts $csv
for dir in whole parts; do
    expect "the table of $dir begins with step and loss" sh -c "head -1 $tmp/$dir/metrics.csv | grep -q '^step,loss,lr,grad_norm,tokens,samples,.*,validation_loss,'"
    expect "all rows of $dir have as many cells" awk -F, 'NR == 1 { n = NF } NF != n { exit 1 }' "$tmp/$dir/metrics.csv"
done
names() { if [ "$1" = csv ]; then head -1 "$2" | tr ',' '\n'; else grep -o '"[a-z_/0-9]*":' "$2" | tr -d '":'; fi | sort -u; }
expect "the table has every number of metrics.jsonl" \
    test -z "$(comm -13 <(names csv "$tmp/whole/metrics.csv") <(names jsonl "$tmp/whole/metrics.jsonl"))" -a -s "$tmp/whole/metrics.jsonl"
expect "the rate of operations among them" grep -q ',flops_per_second' "$tmp/whole/metrics.csv"
expect "no step is repeated or left out" test "$(cut -d, -f1 "$tmp/parts/metrics.csv" | tr '\n' ' ')" = "$(cut -d, -f1 "$tmp/whole/metrics.csv" | tr '\n' ' ')"
is "the columns of a resumed run are the same" "$(head -1 "$tmp/parts/metrics.csv")" "$(head -1 "$tmp/whole/metrics.csv")"

# Prometheus: the last step is in the file when the run has ended
prom="log.report_to=prometheus data.validation=$tmp/valid.h5 data.validation_steps=2"
ends "a run for Prometheus" 0 train 2 prom $prom
expect "its file has the last step" grep -q "^dtrain_step{output_dir=\"$(realpath "$tmp/prom")\"} 6\$" "$tmp/prom/metrics.prom"
expect "and the validation, and that the run has ended" test "$(grep -c '^dtrain_validation_loss{\|^dtrain_running{.*} 0$' "$tmp/prom/metrics.prom")" = 2
ends "a run for a collector" 0 train 1 prom2 $prom log.prometheus_path="$tmp/node.prom"
expect "leaves no file to it" test ! -e "$tmp/node.prom" -a ! -e "$tmp/node.prom.part" -a ! -e "$tmp/prom2/metrics.prom"
ends_saying "a name that it would not read: 64" 64 'prometheus_path: expected the name of a file that ends in .prom' train 0 prom3 $prom --check log.prometheus_path="$tmp/node"
eval_alone() { run 2 ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$(newest plain)" data.validation="$tmp/valid.h5" "$@"; }
ends "an evaluation without a directory" 0 eval_alone log.report_to=stdout,csv,prometheus
expect_text "warns of a sink that writes nothing" 'report_to: prometheus writes nothing; set run.output_dir or log.prometheus_path$'
is "once for each sink" "$(grep -c 'writes nothing' "$out")" 2
ends "with a path of its own" 0 eval_alone log.report_to=stdout,prometheus log.prometheus_path="$tmp/eval.prom"
expect "there is no warning" sh -c '! grep -q "writes nothing" "$1"' sh "$out"
mkdir "$tmp/node.prom"
ends_saying "a file that cannot be written: 74" 74 'node.prom: ' train 2 prom4 $prom log.prometheus_path="$tmp/node.prom"

for mode in --check ''; do
    ends "wandb is refused before the first step ($mode)" 64 run 0 ./dtrain $mode "$tmp/tiny.ini" run.output_dir="$tmp/none" log.report_to=jsonl,wandb
    expect_text "and the message says how ($mode)" 'report_to: the run itself does not write to wandb.*wandb_offline.py OUTPUT_DIR'
done

train 2 traced log.trace=true log.wall_clock_breakdown=true run.max_steps=2 zero.stage=2
for rank in 0 1; do
    expect "the trace names rank $rank and its host" grep -q "\"process_name\",\"ph\":\"M\",\"pid\":$rank,\"args\":{\"name\":\"rank $rank on $(hostname)\"}" "$tmp/traced/trace.json"
    expect "and puts rank $rank in its place" grep -q "\"process_sort_index\",\"ph\":\"M\",\"pid\":$rank,\"args\":{\"sort_index\":$rank}" "$tmp/traced/trace.json"
done
expect "the trace is what streams can have done" python3 tests/check_trace.py "$tmp/traced/trace.json" 2 host compute communication
for group in data forward backward comm_exposed comm_hidden update copies agree; do
    expect "milliseconds of $group: the least, the mean and the largest of the ranks" python3 - "$tmp/traced/metrics.jsonl" "ms/$group" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert lines
for line in lines:
    least, mean, most = (line[f"{sys.argv[2]}_{what}"] for what in ("min", "mean", "max"))
    assert 0 <= least <= most and least <= mean * (1 + 1e-8) and mean <= most * (1 + 1e-8), line  # 9 digits are written
    # the CPU hides nothing, and the vote of a step is in the figures of the next
    assert most > 0 or sys.argv[2] in ("ms/copies", "ms/comm_hidden") or (sys.argv[2] == "ms/agree" and line["step"] == 1), line
PY
done
expect "without a peak there is no utilisation" sh -c "! grep -q mfu '$tmp/traced/metrics.jsonl'"

# The same on a device whose streams run late and out of order, with states that come and go.
for seed in 0 1 2; do
    DTRAIN_DEVICE=queue DTRAIN_QUEUE_SEED=$seed train 2 "late$seed" log.trace=true run.max_steps=2 zero.stage=$((seed ? 3 : 2)) \
        zero.offload_optimizer=cpu batch.train_batch_size=4 zero.param_persistence_threshold=0
    expect_exit "late streams, seed $seed: a run with a trace" 0
    expect "late streams, seed $seed: nothing begins before what it waits for" \
        python3 tests/check_trace.py "$tmp/late$seed/trace.json" 2 host compute communication copies
done

# ranks that call different collectives
DTRAIN_FAULT=comm.check:1:60:error ends "comm.check: a rank that calls something else ends the run" 76 train 2 unequal comm.check=true
expect_text "and is named with host, phase and both calls" "rank 1 on host $(hostname) issued number [0-9]+: .* in phase .*; rank 0 on host $(hostname) issued number [0-9]+: "
expect "once" test "$(grep -c 'ranks issued different collectives' "$out")" = 1
ends "comm.check: equal ranks train" 0 train 2 equal comm.check=true run.max_steps=2 model.tie_word_embeddings=true
ends "comm.check: a rank may have no part of the last tensor" 0 train 3 equal comm.check=true run.max_steps=3 model.tie_word_embeddings=true
TORCH_DISTRIBUTED_DEBUG=DETAIL train 1 adopted run.max_steps=1
expect "TORCH_DISTRIBUTED_DEBUG=DETAIL means comm.check" grep -q '^check = true' "$tmp/adopted/config.ini"

# an edited file of metrics, and a resumed run
train 1 edited run.max_steps=4 log.report_to=jsonl,csv,stdout
sed -i '2d; 4p' "$tmp/edited/metrics.jsonl"
sed -i '3p' "$tmp/edited/metrics.csv"
ends "a run with edited metrics resumes" 0 train 1 edited run.max_steps=6 log.report_to=jsonl,csv,stdout
expect_text "the step that is missing is named with its line" 'edited/metrics.jsonl:2: the record of step 2 is missing before this line, which has step 3'
expect_text "in the table, too" 'edited/metrics.csv: removed 1 duplicate record'
expect_text "removed duplicate records are reported" 'edited/metrics.jsonl: removed 1 duplicate record'
steps_of() { grep -o "$1" "$2" | grep -o '[0-9]*' | tr '\n' ' '; }
expect "each other step is recorded once" test "$(steps_of '"step": [0-9]*, "loss"' "$tmp/edited/metrics.jsonl")" = "1 3 4 5 6 "
expect "in the table, too" test "$(cut -d, -f1,2 "$tmp/edited/metrics.csv" | grep -c "^2,[0-9]")" = 1
sed -i '1,2d' "$tmp/edited/metrics.jsonl"
sed -i '4d' "$tmp/edited/metrics.csv"
train 1 edited run.max_steps=8 log.report_to=jsonl,csv,stdout
expect_text "a missing beginning is named" 'edited/metrics.jsonl:1: the record of step 1 is missing before this line, which has step 4'
expect_text "a hole in the table is named with its line" 'edited/metrics.csv:4: the record of step 3 is missing before this line, which has step 4'
train 1 ended run.max_steps=2
sed -i '$d' "$tmp/ended/metrics.jsonl"
prints "and a missing end" 'ended/metrics.jsonl:1: the record of step 2 is missing after this last line' train 1 ended run.max_steps=3
rm "$tmp/ended/metrics.jsonl"
prints "a file that is gone" 'ended/metrics.jsonl does not exist or is empty: the records of steps 1 to 3 are missing; a new file is started' train 1 ended run.max_steps=4
e2e_done
