#!/bin/bash
# bench_grpo.sh - GRPO steps of a random model: tokens generated and trained per second, compared with the machine's limit and with TRL,
# alternating. Also the ratio of rollout times at stage 3 and at stage 0; and PPO. Medians of STEPS steps after two warm-up steps, of the
# fastest of ROUNDS rounds.
#
# A step: R completions of C tokens to R/G prompts of P tokens, and a pass of training over them in micro-batches of M a rank (beta 0: nothing is
# scored). Generated: tokens of completions over the time of the rollout; trained: all tokens over the rest of the step. The limits, at the rates that
# the machine shows in the same run (bench_limits; W bytes of weights a token reads, N parameters of matrices in blocks and N_head of the head, L
# blocks, d the width of all heads, all ranks sharing the machine):
#     a rollout   C max(ranks W / bandwidth of reading, 2 (N + N_head) R / peak) + 2 N P R/G / peak
#     the rest    (6 N R (P + C) + 6 N_head R C + 6 L d R (P + C)^2) / peak + 28 bytes a parameter / bandwidth of updating
# PPO is compared with the rollout's limit and with the arithmetic of its passes: EPOCHS trainings of policy and critic, and a forward pass of each model
# that scores (policy, reference, critic).
#
# PYTHON=... names a Python with torch and transformers. The peer (tests/peer_trl.py) is TRL's GRPOTrainer on the same cores, as one process of that
# many threads and as ranks of one thread (torchrun), the faster of both; where trl is not installed a plain loop of PyTorch with transformers'
# generate, which is said. DEVICE=cuda: one rank; MODEL="KEYS of [model]", ROWS, GROUP, PROMPT, LENGTH, MICRO, DTYPE, NP, PARTS="grpo peer stage3 ppo".
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
. tests/measure.sh
unset OMP_NUM_THREADS DTRAIN_DEVICE
bin=${BUILD:-build/release}/tests device=${DEVICE:-cpu} steps=${STEPS:-3} epochs=${EPOCHS:-4} parts=${PARTS:-grpo peer stage3 ppo} limit=${LIMIT:-600}
if [ "$device" = cpu ]; then
    model='model_type=gpt2 hidden_size=768 num_hidden_layers=12 num_attention_heads=12 vocab_size=50257 max_position_embeddings=1024'
    set -- 16 8 32 64 4 fp32 2 2
else
    model='model_type=qwen2 hidden_size=896 intermediate_size=4864 num_hidden_layers=24 num_attention_heads=14 num_key_value_heads=2 head_dim=64 vocab_size=151936 max_position_embeddings=32768 rope_theta=1000000 tie_word_embeddings=true'
    set -- 64 8 128 256 8 bf16 1 1
fi
model=${MODEL:-$model} rows=${ROWS:-$1} group=${GROUP:-$2} prompt=${PROMPT:-$3} length=${LENGTH:-$4} micro=${MICRO:-$5} dtype=${DTYPE:-$6} np=${NP:-$7} rounds=${ROUNDS:-$8}
tmp=$(mktemp -d) && trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT
PYTHON=${PYTHON-python3}
has() { [ -n "$PYTHON" ] && plainly "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))' "$@" 2>/dev/null; }
of() { sed -n "s|.*\"$2\": *\([0-9.e+-]*\).*|\1|p" "$tmp/$1.jsonl"; } # RUN METRIC: of each step that counts
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# ---- the model: random weights, exported by a run of one step; prompts of so many bytes
make_model() {
    head -c 20000 /dev/urandom >"$tmp/noise"
    ./dtrain-data -q --format text -o "$tmp/noise.h5" "$tmp/noise" >/dev/null &&
        ./dtrain /dev/stdin run.output_dir="$tmp/made" run.device="$device" run.max_steps=1 data.train="$tmp/noise.h5" data.seq_len=16 \
            batch.micro_batch_size=1 optimizer.type=sgd optimizer.momentum=0 precision.dtype="$dtype" checkpoint.export=hf "${keys[@]/#/model.}" </dev/null >"$tmp/log" 2>&1 || return 1
    rm -rf "$tmp/made/checkpoints"
    awk -v p="$prompt" 'BEGIN { for (i = 0; i < 64; i++) { s = sprintf("%d plus %d is ", i, 7 * i % 64); while (length(s) < p) s = s "x"
                                                            printf "{\"prompt\": \"%s\"}\n", substr(s, 1, p) } }' >"$tmp/prompts.jsonl"
    ./dtrain-data -q --tokenizer bytes -o "$tmp/prompts.h5" "$tmp/prompts.jsonl" >>"$tmp/log" 2>&1
}

# The steps that count go to $tmp/NAME.jsonl.
train() { # NAME TASK STAGE STEPS_OF_A_ROLLOUT KEYS...
    local name=$1 task=$2 stage=$3 warm=$((2 * $4)) most=$(((steps + 2) * $4)) launch=
    shift 4
    [ "$device" != cpu ] && [ "$np" = 1 ] || launch="$MPIRUN -np $np"
    until_steps "$tmp/run" $most "$limit" "$tmp/log" $launch ./dtrain /dev/stdin run.task="$task" run.output_dir="$tmp/run" run.device="$device" \
        run.threads="${THREADS:-1}" run.max_steps=100000 model.path="$tmp/made/hf" data.train="$tmp/prompts.h5" data.seq_len=$((prompt + length)) \
        data.shuffle=false zero.stage="$stage" precision.dtype="$dtype" batch.train_batch_size="$rows" batch.micro_batch_size="$micro" optimizer.lr=1e-6 \
        optimizer.weight_decay=0.1 optimizer.max_grad_norm=1 scheduler.type=constant "$@" ${DTRAIN_ARGS:-} || { cat "$tmp/log" >&2; return 1; }
    sed -n "$((warm + 1)),${most}p" "$tmp/run/metrics.jsonl" >"$tmp/$name.jsonl"
}
# A program's rewards: the last digit of the last id, so that the completions of a prompt differ.
last_digit='command:sed -u -E "s/.*\"completion_ids\": *\[[^]]*([0-9])\].*/\1/"'
grpo() { # NAME STAGE
    train "$1" grpo "$2" 1 grpo.num_generations="$group" grpo.max_completion_length="$length" grpo.loss_type=dapo grpo.reward_funcs="$last_digit"
}
ppo() { train ppo ppo 0 "$epochs" ppo.reward_funcs="$last_digit" ppo.response_length="$length" ppo.num_ppo_epochs="$epochs" ppo.temperature=1; }

# ---- what the machine allows: seconds of a rollout, of the rest of a step of GRPO, of one of PPO
look_at_machine() { # the best rates of all rounds to $tmp/machine
    "$bin/bench_limits" "$([ "$device" = cpu ] && nproc || echo 1)" 2 "$device" | cat "$tmp/machine" - | awk '{ for (i = 1; i <= 4; i++) if ($i > b[i]) b[i] = $i }
        END { print b[1], b[2], b[3], b[4] }' >"$tmp/looked" && mv "$tmp/looked" "$tmp/machine"
}
limits() {
    set -- $(cat "$tmp/machine")
    echo "${keys[@]}" | tr ' ' '\n' | awk -F= -v R="$rows" -v G="$group" -v P="$prompt" -v C="$length" -v np="$np" -v E="$epochs" -v bf16="$([ "$dtype" = fp32 ] || echo 1)" \
        -v fp32_peak="$1" -v bf16_peak="$2" -v update="$3" -v read="$4" '{ key[$1] = $2 } END {
        d = key["hidden_size"]; L = key["num_hidden_layers"]; H = key["num_attention_heads"]; V = key["vocab_size"]
        KV = key["num_key_value_heads"] ? key["num_key_value_heads"] : H; hd = key["head_dim"] ? key["head_dim"] : d / H
        gpt2 = key["model_type"] == "gpt2"; F = key["intermediate_size"] ? key["intermediate_size"] : 4 * d
        N = L * (d * (H + 2 * KV) * hd + H * hd * d + (gpt2 ? 2 : 3) * d * F); head = V * d
        all = N + head + (gpt2 || key["tie_word_embeddings"] == "true" ? 0 : head)
        peak = 1e9 * (bf16 ? bf16_peak : fp32_peak); T = P + C
        pass = np * (N + head) * (bf16 ? 2 : 4) / (read * 1e9); matmuls = 2 * (N + head) * R / peak
        rollout = C * (pass > matmuls ? pass : matmuls) + 2 * N * P * R / G / peak
        body = (N * R * T + L * H * hd * R * T * T) / peak; tail = head * R * C / peak; updates = 28 * all / (update * 1e9)
        train = 6 * (body + tail) + updates
        own = 2 * (body + tail) # scored as a rule: the policy, the reference, and the critic without a head
        print rollout, train, rollout + 2 * own + 2 * body + E * (6 * (2 * body + tail) + 2 * updates), peak / 1e9, read, update }'
}

# ---- rounds: of each way the fastest step, as a line of rollout_s step_s tokens in $tmp/NAME.best
keep() { # NAME ROLLOUT_S STEP_S TOKENS
    local name=$1
    shift
    [ -s "$tmp/$name.best" ] && awk -v new="$2" '{ exit !($2 <= new) }' "$tmp/$name.best" || echo "$*" >"$tmp/$name.best"
}
tokens_of() { of "$1" "$2/completions/mean_length" | median | awk -v R="$rows" '{ print $1 * R }'; } # NAME TASK
run_grpo() { grpo "$1" "$2" && keep "$1" "$(of "$1" grpo/time/rollout | median)" "$(of "$1" step_time | median)" "$(tokens_of "$1" grpo)"; }
run_ppo() {
    ppo && keep ppo "$(of ppo ppo/time/rollout | median)" "$(of ppo step_time | awk -v E="$epochs" '{ s += $1 } NR % E == 0 { print s; s = 0 }' | median)" "$(tokens_of ppo ppo)"
}
peer() { # NAME COMMAND...
    local name=$1
    shift
    if plainly "$@" >"$tmp/peer" 2>"$tmp/peer.log"; then
        keep "$name" $(grep -E '^(trl|plain) ' "$tmp/peer" | cut -d' ' -f2-)
    else
        grep -E '^(trl|plain): ' "$tmp/peer.log" || tail -1 "$tmp/peer.log"
        [ -z "${OUT:-}" ] || cat "$tmp/peer.log" >>"$OUT/bench-grpo.log"
    fi >&2
}
run_peers() {
    local args=(tests/peer_trl.py "$tmp/made/hf" "$tmp/prompts.jsonl" --device "$device" --dtype "$dtype" --rows "$rows" --group "$group" --length "$length"
        --micro "$micro" --steps "$steps")
    if ! has torch transformers; then
        echo "no PyTorch with transformers found" >&2
    elif ! has trl datasets; then
        peer plain "$PYTHON" "${args[@]}" --ways plain
    elif [ "$device" = cpu ]; then
        peer trl-threads "$PYTHON" "${args[@]}" --threads "$(nproc)"
        [ "$np" = 1 ] || peer trl-ranks env OMP_NUM_THREADS=1 "$PYTHON" -m torch.distributed.run --nproc-per-node "$np" "${args[@]}" --threads 1
    else
        peer trl "$PYTHON" "${args[@]}"
    fi
}

keys=($model)
make_model || { cat "$tmp/log" >&2; exit 1; }
echo "0 0 0 0" >"$tmp/machine"
echo "GRPO, $model"
echo "$dtype on $device: $rows completions of $length tokens to prompts of $prompt, groups of $group, micro-batches of $micro, $np rank(s), stage 0; medians of $steps steps"
load=$(cut -d' ' -f1 /proc/loadavg) status=0
for _ in $(seq "$rounds"); do
    look_at_machine
    for part in $parts; do
        case $part in
        grpo) run_grpo grpo 0 ;;
        stage3) run_grpo stage3 3 ;;
        ppo) run_ppo ;;
        peer) run_peers ;;
        esac || status=1
    done
done

show() { # NAME LABEL [LIMIT OF THE ROLLOUT, OF THE STEP]
    [ ! -s "$tmp/$1.best" ] || awk -v l="$2" -v P="$prompt" -v R="$rows" -v lg="${3:-0}" -v ls="${4:-0}" '{
        all = $3 + P * R
        printf "%-24s %9.3f %8.3f %11.1f %9.1f %9.1f", l, $1, $2, $3 / $1, all / ($2 - $1), all / $2
        if (lg) printf "   of the limits: generated %.2f, trained %.2f, step %.2f", lg / $1, (ls - lg) / ($2 - $1), ls / $2
        printf "\n" }' "$tmp/$1.best"
}
compare() { # NAME LABEL
    [ ! -s "$tmp/grpo.best" ] || [ ! -s "$tmp/$1.best" ] || paste "$tmp/grpo.best" "$tmp/$1.best" | awk -v l="$2" -v p=$((prompt * rows)) '{
        printf "%s: generated %.2f, trained %.2f, step %.2f\n", l, $3 / $1 / ($6 / $4), ($3 + p) / ($2 - $1) / (($6 + p) / ($5 - $4)), ($3 + p) / $2 / (($6 + p) / $5) }'
}
limits=($(limits)) threads="TRL, $(nproc) threads" ranks="TRL, $np ranks" loop="PyTorch, a plain loop"
echo "the machine in this run: matmuls ${limits[3]} GFLOP/s, reading ${limits[4]}, updating ${limits[5]} GB/s; load before it $load"
printf '%-24s %9s %8s %11s %9s %9s\n' '' 'rollout s' 'step s' 'generated/s' 'trained/s' 'tokens/s'
show grpo dtrain "${limits[0]}" "$(awk -v a="${limits[0]}" -v b="${limits[1]}" 'BEGIN { print a + b }')"
show stage3 "dtrain, stage 3"
show trl-threads "$threads"
show trl-ranks "$ranks"
show trl TRL
show plain "$loop"
show ppo "dtrain, PPO, $epochs epochs" "${limits[0]}" "${limits[2]}"
echo
compare trl-threads "dtrain over $threads, tokens/s"
compare trl-ranks "dtrain over $ranks, tokens/s"
compare trl "dtrain over TRL, tokens/s"
compare plain "dtrain over $loop, tokens/s"
[ ! -s "$tmp/stage3.best" ] || paste "$tmp/stage3.best" "$tmp/grpo.best" | awk '{ printf "stage 3 over stage 0, time: rollout %.2f, step %.2f\n", $1 / $4, $2 / $5 }'
exit $status
