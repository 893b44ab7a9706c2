#!/bin/bash
# full_signals.sh - signals at random moments over every task, on one to three ranks, with validations, asynchronous saves, early stopping and best checkpoints:
# after each 75 the checkpoint of the named step exists, and the continued run reports the metrics of the undisturbed one.
#   SIGNALS   how many signals that a run hears (500)
#   SEED      of the moments, ranks and settings (1)
#   SIGNAL_JOBS   runs at a time (one for each two cores, at least two)
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
. "$(dirname "$0")/stop_common.sh"
command -v python3 >/dev/null || { skip "signals at random moments" "no python3 to compare metrics"; exit 0; }
n_signals=${SIGNALS:-500} seed=${SEED:-1}
jobs=${SIGNAL_JOBS:-$(($(nproc) < 4 ? 2 : $(nproc) / 2))}
tasks=(pretrain sft rm dpo ppo grpo eval recommendation vision)

# ---- tiny models and their data ---------------------------------------------------------------------------------------------------------------
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
mv "$tmp/tiny.ini" "$tmp/pretrain.ini"
make_task sft
mv "$tmp/tiny.ini" "$tmp/others.ini"
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
sed 's/, "margin": [0-9.]*//' tests/data/rm/pairs.jsonl >"$tmp/pairs.jsonl"
data -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
for i in $(seq 0 23); do echo "{\"prompt\": \"count $i\"}"; done >"$tmp/prompts.jsonl"
data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
for i in $(seq 0 11); do printf '<a%d><b%d>\tTitle %d\t%d\n' $((i % 3)) $((i / 3)) "$i" "$i"; done >"$tmp/items.txt"
for i in $(seq 0 6); do printf '{"prompt": "u%d\\n### Response:\\n", "answer": "<a%d><b%d>"}\n' "$i" $((i % 3)) $((i / 3)); done >"$tmp/users.jsonl"
data -o "$tmp/users.h5" "$tmp/users.jsonl"
vision=tests/data/vision/hf/clip_llama
./dtrain-data -q --tokenizer $vision --images $vision -o "$tmp/images.h5" tests/data/vision/run/records.jsonl >"$tmp/.data" 2>&1 || { not_ok "data for the tests" "$(cat "$tmp/.data")"; exit 1; }

settings_of() { # TASK: one a line
    local data=$1 valid=$1 steps=24 batch=12
    local -a keys=(run.task="$1")
    case $1 in
    pretrain) data=train valid=valid steps=60 ;;
    sft) batch=6 ;;
    rm) data=pairs valid=pairs keys+=(model.path=tests/data/rm/start) batch=6 ;;
    dpo) data=pairs valid=pairs batch=6 ;;
    ppo) data=prompts valid= steps=12 keys+=(model.tokenizer=bytes ppo.reward_funcs=length:3 ppo.response_length=6 ppo.num_mini_batches=2 ppo.num_ppo_epochs=2) ;;
    grpo) data=prompts valid=prompts steps=12 keys+=(model.tokenizer=bytes grpo.reward_funcs=length:3 grpo.num_generations=4 grpo.max_completion_length=6 grpo.beta=0.1) ;;
    eval) data= valid=train keys+=(model.path="$tmp/lm" batch.micro_batch_size=1) ;;
    recommendation) data=users valid=users steps=8 batch=42 keys=(run.task=grpo model.tokenizer=bytes rec.catalogue="$tmp/items.txt" rec.num_beams=12 grpo.rollout=beam grpo.num_generations=6
        grpo.reward_funcs="rec_rule, rec" grpo.temperature=0.5) ;;
    vision) data=images valid=images batch=6 steps=12 keys=(run.task=sft model.path=$vision) ;;
    esac
    [ -z "$data" ] || keys+=(data.train="$tmp/$data.h5" batch.train_batch_size=$batch batch.micro_batch_size=1 run.max_steps=$steps)
    [ -z "$valid" ] || keys+=(data.validation="$tmp/$valid.h5")
    printf '%s\n' "${keys[@]}" run.reproducible=true log.logging_steps=1
}
settings_of_variant() { # TASK VARIANT
    local validated=2
    [ "$1" != ppo ] || validated=0 # it has no validation
    case $2:$1 in
    *:eval) ;;
    0:*) printf '%s\n' data.validation_steps=$validated checkpoint.save_steps=0 ;;
    1:* | *:ppo) printf '%s\n' data.validation_steps=$((validated / 2)) checkpoint.save_steps=3 checkpoint.async=true checkpoint.save_total_limit=2 zero.stage=2 ;;
    2:*) printf '%s\n' data.validation_steps=2 checkpoint.save_steps=4 checkpoint.async=true checkpoint.load_best_model_at_end=true run.early_stopping_patience=2 zero.stage=3 ;;
    esac
}
settings() { # TASK VARIANT: into set
    local ini=others
    [ "$1" != pretrain ] || ini=pretrain
    mapfile -t set < <(settings_of "$1"; settings_of_variant "$1" "$2")
    cp "$tmp/$ini.ini" "$tmp/$1.ini" 2>/dev/null
    set=("$tmp/$1.ini" "${set[@]}")
}
# As train and start of train_common.sh, for the settings of a task.
whole() { run "$1" ./dtrain "${set[@]}" run.output_dir="$tmp/$2"; }
begin() {
    own_mpi_files
    timeout -k 5 "${RUN_TIMEOUT:-240}" $MPIRUN -np "$1" ./dtrain "${set[@]}" run.output_dir="$tmp/$2" >"$tmp/$2.out" 2>&1 </dev/null &
    job=$!
}

# ---- a run with signals -----------------------------------------------------------------------------------------------------------------------
draw() { echo $((RANDOM * 32768 + RANDOM)); }
seconds() { awk -v a="$1" -v b="$2" -v share="$(draw)" 'BEGIN { printf "%.3f", a + (b - a) * share / 1073741824 }'; }
hears() { grep -q "SigBlk:.*[2367abef]..$" "/proc/$1/status" 2>/dev/null; }
hear() { # NP DIR: all ranks, or the run is over
    local p n=0
    kill -0 "$job" 2>/dev/null || return 0
    for p in $(ranks_of "$2"); do hears "$p" && n=$((n + 1)); done
    [ "$n" = "$1" ]
}

# Wait, signal one rank or all of them, and judge how the run ends. Returns 1 when it need not be started again.
disturb() { # NP DIR NAME SECONDS
    local pids signal name=$3
    begin "$1" "$2"
    wait_for hear "$1" "$2"
    sleep "$(seconds 0 "$4")"
    pids=($(ranks_of "$2"))
    signal=$(printf 'USR1\nTERM\nINT\n' | sed -n "$(($(draw) % 3 + 1))p")
    [ $(($(draw) % 2)) = 0 ] || pids=(${pids[$(($(draw) % (${#pids[@]} + 1)))]:-${pids[@]}})
    [ ${#pids[@]} = 0 ] || kill -$signal "${pids[@]}" 2>/dev/null
    finish "$2"
    case $code in
    0) return 1 ;;
    64) grep -q 'in a row without a new checkpoint, and it ran for ' "$out" || not_ok "$name: exit code 64" "not for want of progress"
        echo x >>"$tmp/heard"; return 1 ;;
    75) echo x >>"$tmp/heard"
        keeps_its_word "$2" || not_ok "$name: after $signal the checkpoint of the named step exists" "$(grep 'stopped by' "$out"); $(ls "$tmp/$2/checkpoints" 2>&1 | tr '\n' ' ')" ;;
    *) not_ok "$name: $signal" "exit code $code"; return 1 ;;
    esac
}

chain() { # NUMBER: a run of a drawn task and drawn settings, disturbed up to four times, then left alone
    local number=$1 task variant dir took np name
    RANDOM=$((seed * 7919 + number))
    task=${tasks[number % ${#tasks[@]}]} variant=$((number / ${#tasks[@]} % 3)) dir=chain-$1
    np=$(($(draw) % 3 + 1)) name="chain $number, $task, variant $variant, $np ranks"
    settings "$task" $variant
    took=$(cat "$tmp/$task-$variant.took")
    for _ in 1 2 3 4; do disturb "$np" "$dir" "$name" "$took" || break; done
    [ "$code:$task" = 0:eval ] || whole "$np" "$dir" # an evaluation that is started again adds its result once more
    [ "$code" = 0 ] || not_ok "$name: continued to its end" "exit code $code"
    [ "$code" != 0 ] || like_undisturbed "$task-$variant" "$dir" >"$tmp/$dir.differs" 2>&1 || not_ok "$name: as without signals" "$(cat "$tmp/$dir.differs")"
    rm -rf "${tmp:?}/$dir" "$tmp/$dir.out" "$tmp/$dir.differs"
    e2e_done
}

# ---- the campaign -----------------------------------------------------------------------------------------------------------------------------
settings pretrain 0
run 1 ./dtrain "${set[@]}" run.output_dir="$tmp/lm" run.max_steps=2
for task in "${tasks[@]}"; do
    for variant in 0 1 2; do
        settings "$task" $variant
        begun=$EPOCHREALTIME
        whole 1 "$task-$variant"
        [ "$code" = 0 ] || { not_ok "$task, variant $variant, undisturbed" "exit code $code"; exit 1; }
        awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", b - a }' >"$tmp/$task-$variant.took"
        rm -rf "$tmp/$task-$variant/checkpoints"
    done
    ok "$task undisturbed"
done
: >"$tmp/heard"
number=0 failed=0
while [ "$(wc -l <"$tmp/heard")" -lt "$n_signals" ]; do
    workers=()
    for _ in $(seq "$((jobs * 4))"); do # a few at a time: one that is slow holds up no other for long
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        (out=$tmp/.out.$number n_not_ok=0; chain $number) >"$tmp/.chain.$number" 2>&1 &
        workers+=($!)
        number=$((number + 1))
    done
    for worker in "${workers[@]}"; do wait "$worker" || failed=$((failed + 1)); done
    cat "$tmp"/.chain.* 2>/dev/null
    rm -f "$tmp"/.chain.* "$tmp"/.out.*
done
n_not_ok=$failed
[ "$failed" != 0 ] || ok "$(wc -l <"$tmp/heard") signals in $number runs: each checkpoint exists, each continued run matches the undisturbed one"
e2e_done
