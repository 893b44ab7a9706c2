#!/bin/bash
# e2e_info.sh - dtrain-info in scripts: its output and exit status for valid, foreign and damaged files.
# QUICK:
. "$(dirname "$0")/e2e.sh"
kept=tests/data/fuzz/checkpoint

ends "info shows a checkpoint" 0 run 0 ./dtrain-info "$kept/good"
expect_text "info says step, model and verdict" 'step +7 '
expect_text "info counts parameters" 'gpt2, 17 parameters'
expect_text "info verifies what carries a checksum" '2 of 3 arrays verified, 0 altered, 1 without'
prints "info lists tensors" 'model/w +3 x 5 +fp32 +60 B +ok' run 0 ./dtrain-info --tensors --config "$kept/good"
expect_text "info shows the configuration" '^seed = 1$'
prints "info leaves the data alone when asked to" 'not verified' run 0 ./dtrain-info --no-verify "$kept/good"
ends_saying "info writes JSON" 0 '"ok":true.*"step":7.*"seed":"18446744073709551610".*"parameters":17' run 0 ./dtrain-info --json "$kept/good"
for how in gzip half bf16 vlen; do
    ends "info verifies a file with $how" 0 run 0 ./dtrain-info "$kept/$how"
done

# a byte of the data changed
cp "$kept/good" "$tmp/altered.h5"
at=$(LC_ALL=C grep -abo -P '\x00\x00\xe0\xc0\x00\x00\xc0\xc0' "$tmp/altered.h5" | head -1 | cut -d: -f1)
printf '\x01' | dd of="$tmp/altered.h5" bs=1 seek="$at" conv=notrunc 2>/dev/null
ends_saying "info notices an altered byte" 65 'w.* was altered' run 0 ./dtrain-info "$tmp/altered.h5"
for how in cut empty text later flipped0; do
    ends "info refuses a file that is $how" 65 run 0 ./dtrain-info "$kept/$how"
done
ends_saying "one bad file among good ones" 65 'gpt2' run 0 ./dtrain-info "$tmp/missing.h5" "$kept/good"
ends "info without a file" 64 run 0 ./dtrain-info
ends "info with an unknown option" 64 run 0 ./dtrain-info --frobnicate "$kept/good"
ends "info --help" 0 run 0 ./dtrain-info --help

# a run's directory
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data of the test" "dtrain-data failed"; exit 1; }
train 0 run run.max_steps=6 checkpoint.save_steps=2 data.validation="$tmp/valid.h5" data.validation_steps=2
ends "info shows a run" 0 run 0 ./dtrain-info "$tmp/run"
expect_text "its task" '^  task +pretrain$'
expect_text "its model" '^  model +LlamaForCausalLM, 2 layers, hidden 32, 4 heads, vocabulary 257, 39648 parameters$'
expect_text "the state of a finished run" '^  state +done, metrics written [0-9]+s ago$'
expect_text "its steps" '^  steps +6 of 6 \(100%\), 4.61k tokens$'
expect_text "its last metrics" '^  training +step 6: loss [0-9.]+, '
expect_text "its validation" '^  validation +step 6: loss ([0-9.]+); best \1 at step 6$'
expect_text "its checkpoints" "^  checkpoints +3 in $tmp/run/checkpoints, "
expect_text "the one to go on from" '^  latest +step-00000006.h5$'
expect_text "the best checkpoint" '^  best +step-00000006.h5 \(validation loss '
cp "$out" "$tmp/text"
run 0 ./dtrain-info "$tmp/run/checkpoints"
is "the folder of checkpoints tells the same" "$(grep -E "task|model|steps|training|latest" "$out")" "$(grep -E "task|model|steps|training|latest" "$tmp/text")"
mkdir "$tmp/run/hf" && echo '{}' >"$tmp/run/hf/config.json"
ends "an exported directory is not a run" 65 run 0 ./dtrain-info "$tmp/run/hf"
expect_text "by name" "$tmp/run/hf: expected the directory of a run, found an exported model or adapter"
prints "the checkpoint that latest names" 'step-00000006.h5' run 0 ./dtrain-info "$tmp/run/checkpoints/latest"
run 0 ./dtrain-info --json "$tmp/run"
expect_text "as JSON" '"kind":"run","ok":true,"task":"pretrain","model":"LlamaForCausalLM","parameters":39648,"state":"done","run_by":null,"step":6,"total_steps":6,'
sed -i 's/^max_steps = 6/max_steps = 600/' "$tmp/run/config.ini"
touch -d '1 hour ago' "$tmp/run/metrics.jsonl"
prints "a run without a lock is stopped" '^  state +stopped, metrics written 1h00m ago$' run 0 ./dtrain-info "$tmp/run"
expect_text "with the time of the steps to come" '^  steps +6 of 600 \(1%\), 4.61k tokens, [0-9a-z]+ of steps left$'
./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/long" run.max_steps=100000000 >"$out" 2>&1 &
long=$!
wait_for test -s "$tmp/long/metrics.jsonl"
prints "a run at work is running" '^  state +running, metrics written [0-9]+s ago$' run 0 ./dtrain-info "$tmp/long"
expect_text "the process of the run is named" "^  run by +process $long on $(hostname), since "
kill -KILL $long
wait $long 2>/dev/null
prints "one that was killed is not" '^  state +killed, metrics written ' run 0 ./dtrain-info "$tmp/long"
sed -i 's/^max_steps = 600/max_steps = 0/; s/^epochs = 1$/epochs = 2/' "$tmp/run/config.ini"
prints "steps follow from epochs" '^  steps +6 of 26 ' run 0 ./dtrain-info "$tmp/run"
mkdir "$tmp/aligned"
while read -r task metrics expected; do
    sed "s/^task = pretrain/task = $task/" "$tmp/run/config.ini" >"$tmp/aligned/config.ini"
    echo "{\"step\": 3, \"loss\": -1e-9, \"tokens\": 5, \"grad_norm\": 1, \"lr\": 0.5, \"tokens_per_second\": 7, $metrics}" >"$tmp/aligned/metrics.jsonl"
    prints "main metrics of task $task" "^  training +step 3: loss -0.0000, ${expected//_/ }, grad_norm 1, " run 0 ./dtrain-info "$tmp/aligned"
done <<'TASKS'
rm "rm/accuracy":0.75,"rm/margin":2 accuracy_0.75
dpo "dpo/rewards/margins":-1.5,"dpo/rewards/accuracies":0.5 accuracies_0.5,_margins_-1.5
ppo "ppo/objective/scores":0.25 scores_0.25
grpo "grpo/reward":1,"grpo/reward_std":2 reward_1
TASKS
rm -r "$tmp/run/checkpoints"
prints "a run without checkpoints" '^  checkpoints  none$' run 0 ./dtrain-info "$tmp/run"
expect_text "its model is that of its configuration" ' 39648 parameters$'
echo nonsense >>"$tmp/run/config.ini"
ends_saying "a configuration that cannot be read" 0 '^dtrain-info: warning: .*config.ini' run 0 ./dtrain-info "$tmp/run"
mkdir "$tmp/empty"
ends_saying "info of a directory without a run" 65 "$tmp/empty: expected the directory of a run" run 0 ./dtrain-info "$tmp/empty"
e2e_done
