# train_common.sh - a tiny model and its data for the e2e tests of dtrain: `. "$(dirname "$0")/train_common.sh"` after e2e.sh.
#
#   make_data              $tmp/train.h5, $tmp/valid.h5 (bytes of generated English) and $tmp/tiny.ini
#   make_task TASK KEYS... $tmp/tiny.ini of a task, by default on the model of tests/data/dpo; KEYS: section.key=value, also instead of defaults
#   train NP DIR ARGS...   runs ./dtrain on tiny.ini with output in $tmp/DIR
#   losses DIR             "step loss" of every training line of DIR's metrics
#   close_losses A B TOL   every step of A is in B and the losses agree to relative TOL
#   close_numbers A B METRIC TOL   does METRIC agree to relative TOL in each line of their metrics?
#   close_weights A B TOL  does no weight of their last checkpoints differ by more than TOL?
#   data ARGS...           dtrain-data with the tokenizer of bytes; the script ends where that fails
#   trl_runs TASK          "NAME<tab>START<tab>DATA<tab>KEYS" of each run of tests/data/TASK/trl.json (tests/trl_runs.py), a line each
#   like_trl DIR TASK NAME is the run in DIR, which has exported its model in fp32, what TRL made of NAME?
#   number DIR METRIC      METRIC of each line of DIR's metrics, one per line
#   above DIR METRIC X     is the last of these above X?
#   newest DIR             path of the newest checkpoint
#   start NP DIR ARGS...   train in the background; $job
#   finish DIR [JOB]       waits for it ($job); its exit code and output as train would leave them
#   as_planned             does the last run's allocated memory equal the plan in every line?
#   as_plan_says NP STAGE ARGS...   does --plan for NP ranks give the same? (its output: $tmp/.plan)
#   fails_alone RANK POINT NTH COMMAND...   a run whose rank fails at a point (DTRAIN_FAULT) ends with that error, which names both
#   ranks_of DIR           the processes of its ranks
#   wait_until_stopped DIR N   waits until N of its ranks are stopped by DTRAIN_FAULT=POINT:RANK:NTH:stop
#   find_gpu INI ARGS...   --check on a GPU; where none is and none is asked for (GPU_NEEDED), $simulated is set, or the script ends as skipped
#   on_gpu COMMAND...      a command that takes settings, on what find_gpu found: the GPU, shared by its ranks, or the simulator (tests/cuda_sim)
#   stop_at DIR N SIGNAL   when N of its ranks are stopped: sends SIGNAL, which they receive when they continue

make_data() {
    awk 'BEGIN { srand(7); n = split("the of and a to in he was that it his her with as had for she not at but be on they have him which said from all this", w, " ");
                 for (d = 0; d < 60; d++) { s = ""; for (i = 0; i < 40; i++) s = s w[int(rand() * n) + 1] " "; print s "." } }' >"$tmp/text.txt"
    ./dtrain-data --documents lines -o "$tmp/train.h5" "$tmp/text.txt" >"$tmp/.data" 2>&1 || { cat "$tmp/.data"; return 1; }
    head -12 "$tmp/text.txt" >"$tmp/valid.txt"
    ./dtrain-data --documents lines -o "$tmp/valid.h5" "$tmp/valid.txt" >"$tmp/.data" 2>&1 || { cat "$tmp/.data"; return 1; }
    cat >"$tmp/tiny.ini" <<INI
[run]
task = pretrain
max_steps = 6
threads = 1
seed = 7
[model]
model_type = llama
hidden_size = 32
intermediate_size = 88
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 257
max_position_embeddings = 64
[data]
train = $tmp/train.h5
seq_len = 32
[batch]
train_batch_size = 24
micro_batch_size = 1
[optimizer]
lr = 1e-2
weight_decay = 0.1
[scheduler]
type = constant
[checkpoint]
save_steps = 0
[log]
report_to = jsonl
INI
}
make_mixture() {
    make_data
    sed -i -e 's/^model_type = llama/model_type = qwen2_moe\nnum_experts = 7\nnum_experts_per_tok = 3\nmoe_intermediate_size = 20\nshared_expert_intermediate_size = 28\nnorm_topk_prob = true/' \
        -e 's/^intermediate_size.*//' "$tmp/tiny.ini"
}

make_task() {
    local task=$1 key
    shift
    for key in run.task="$task" run.threads=1 model.path=tests/data/dpo/start data.seq_len=64 optimizer.lr=1e-2 optimizer.weight_decay=0.1 \
        scheduler.type=constant checkpoint.save_steps=0 log.report_to=jsonl; do
        [[ " $* " = *" ${key%%=*}="* ]] || echo "$key"
    done >"$tmp/.keys"
    printf '%s\n' "$@" | cat "$tmp/.keys" - | sed 's/^\([a-z]*\)\./[\1]\n/' >"$tmp/tiny.ini"
}

train() {
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$dir" "$@"
}

data() { ./dtrain-data --tokenizer bytes "$@" >"$tmp/.data" 2>&1 || { cat "$tmp/.data"; not_ok "data for the tests" "dtrain-data failed"; exit 1; }; }
# trl.json of a task: a line for each run, its name, start, data and keys.
trl_runs() { sed -n 's/^{"name": "\([^"]*\)", "keys": "\([^"]*\)", "start": "\([^"]*\)", "data": "\([^"]*\)".*/\1\t\3\t\4\t\2/p' "tests/data/$1/trl.json"; }
as_trl() { # TASK LEN NP DIR RUN ARGS...: the fixture's run of this number. LEN: data.seq_len of its longer samples, $tmp/more.h5
    local task=$1 len=$2 np=$3 dir=$4 name start pairs keys more=
    IFS=$'\t' read -r name start pairs keys < <(trl_runs "$task" | sed -n "$5p")
    [ "$pairs" = more ] && more=data.seq_len=$len
    shift 5
    rm -rf "${tmp:?}/$dir"
    train "$np" "$dir" run.max_steps=10 model.path="tests/data/$start" data.train="$tmp/$pairs.h5" batch.micro_batch_size=2 \
        checkpoint.export=hf checkpoint.export_dtype=fp32 $keys $more "$@"
}
# A GPU adds in another order, and ten steps make more of that: 3.0e-4 (grpo's sapo on an H100) of what is 1e-4 on a CPU.
like_trl() {
    local tolerance=2e-4
    [ "${DTRAIN_DEVICE:-cpu}" != cuda ] || tolerance=5e-4
    python3 tests/like_trl.py "$tmp/$1" "$2" "$3" "$tolerance" >"$out" 2>&1
}
# Each run of a task that TRL made, and some of them in LAYOUTS "RUN NP STAGE MICRO_BATCH". EVERY: make test takes one of so many.
against_trl() { # TASK LEN EVERY LAYOUT...
    local task=$1 len=$2 every=$3 n=0 name start pairs keys layout
    shift 3
    command -v python3 >/dev/null || { skip "TRL's numbers" "no python3 to compare them"; return; }
    while IFS=$'\t' read -r name start pairs keys; do
        every "$every" $((n += 1)) || continue
        as_trl "$task" "$len" 1 trl "$n"
        expect "$name of ${start##*/}, ${keys#* }: TRL's numbers and weights" like_trl trl "$task" "$name"
    done < <(trl_runs "$task")
    n=0
    for layout; do
        every "$every" $((n += 1)) || continue
        set -- $layout
        name=$(trl_runs "$task" | sed -n "$1p" | cut -f1)
        as_trl "$task" "$len" "$2" layout "$1" zero.stage="$3" batch.micro_batch_size="$4"
        expect "$name on $2 ranks, stage $3, micro-batches of $4: the same" like_trl layout "$task" "$name"
    done
}
# Four steps of $tmp/more.h5 in reproducible mode.
bits() { # NP DIR ARGS...
    train "$1" "$2" model.path=tests/data/hf/qwen2 data.train="$tmp/more.h5" data.seq_len=28 batch.train_batch_size=12 batch.micro_batch_size=1 \
        run.reproducible=true run.max_steps=4 "${@:3}"
}
# Losses and norms of another program's ten steps, on standard input. They have seven digits; fp32 keeps 1e-6 of such sums, of which ten steps at a high
# rate make more: Adam divides small gradients by themselves.
ten_steps_like() { # DIR
    paste -d' ' <(number "$1" loss) <(number "$1" grad_norm) - | awk '
        { for (i = 1; i <= 2; i++) { d = $i - $(i + 2); d = d < 0 ? -d : d
              if (NF != 4 || !(d <= 2e-4 * $(i + 2))) { print "step", NR ", number", i ":", $i, $(i + 2); bad = 1 } } }
        END { exit bad || NR != 10 }'
}
number() { sed -n "s|.*\"$2\": *\([-+0-9.eE]*\).*|\1|p" "$tmp/$1/metrics.jsonl"; }
above() { number "$1" "$2" | tail -1 | awk -v least="$3" 'BEGIN { bad = 1 } { bad = !($1 > least) } END { exit bad }'; }
losses() { sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([-+0-9.eE]*\).*/\1 \2/p' "$tmp/$1/metrics.jsonl" | grep -v validation; }

close_losses() {
    losses "$1" >"$tmp/.a"
    losses "$2" >"$tmp/.b"
    [ -s "$tmp/.a" ] && awk -v tol="$3" 'NR == FNR { want[$1] = $2; n++; next }
        { if (!($1 in want)) bad = 1; d = $2 - want[$1]; if (d * d > tol * tol * want[$1] * want[$1]) { print "step", $1, $2, "and", want[$1]; bad = 1 } m++ }
        END { exit bad || n != m }' "$tmp/.a" "$tmp/.b"
}

close_numbers() {
    paste -d' ' <(number "$1" "$3") <(number "$2" "$3") | awk -v tol="$4" '
        { d = $1 - $2; if (NF != 2 || !(d * d <= tol * tol * $1 * $1)) { print "line", NR ":", $0; bad = 1 } } END { exit bad || !NR }'
}
# A line of differing values begins with their offset. Lines of checksums do not: these attributes differ wherever a bit does.
close_weights() {
    h5diff -r -d "$3" "$(newest "$1")" "$(newest "$2")" /model /model >"$tmp/.weights" 2>&1
    [ $? -le 1 ] && ! grep -E '^\[|not comparable' "$tmp/.weights"
}

ranks_of() { for p in $(pgrep -f "run.output_dir=$tmp/$1( |\$)"); do [ "$(cat "/proc/$p/comm" 2>/dev/null)" != dtrain ] || echo "$p"; done; }
start() {
    local np=$1 dir=$2
    shift 2
    own_mpi_files
    set -- ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$dir" "$@"
    [ "$np" = 0 ] || set -- $MPIRUN -np "$np" "$@"
    timeout -k 5 "${RUN_TIMEOUT:-240}" "$@" >"$tmp/$dir.out" 2>&1 </dev/null &
    job=$!
}
finish() {
    wait "${2:-$job}"
    code=$?
    cp "$tmp/$1.out" "$out"
}
n_stopped() { for p in $(ranks_of "$1"); do sed 's/.*) //' "/proc/$p/stat"; done 2>/dev/null | grep -c '^T'; }
are_stopped() { [ "$(n_stopped "$1")" = "$2" ]; }
wait_until_stopped() { wait_for are_stopped "$@"; }
stop_at() {
    wait_until_stopped "$1" "$2"
    kill "-$3" $(ranks_of "$1")
    kill -CONT $(ranks_of "$1")
}

find_gpu() {
    simulated=
    run 0 ./dtrain --check "$@" run.output_dir="$tmp/check" run.device=cuda
    if [ "$code" = 0 ] || [ -n "${GPU_NEEDED:-}" ] || ! grep -q 'device cuda is not available' "$out"; then
        expect_exit "--check on the GPU" 0
        [ "$code" = 0 ] || exit 1
    elif [ -e "${BUILD:-build/release}/libdtrain_cudasim.so" ]; then simulated=1
    else
        skip "training on a GPU" "$(grep -o 'device cuda is not available.*' "$out" | head -1)"
        exit 0
    fi
}
on_gpu() { if [ -n "$simulated" ]; then DTRAIN_DEVICE=cudasim "$@"; else "$@" run.device=cuda comm.backend=mpi; fi; }

newest() { ls "$tmp/$1"/checkpoints/step-*.h5 | tail -1; }
same_model() { h5diff "$1" "$2" /model /model && h5diff "$1" "$2" /optimizer /optimizer; }

# planned and allocated: rows of all memory and of each place
as_planned() {
    awk '/^planned/ { s = 1 } /^allocated/ { s = 2 } !/^(planned|allocated|  (device|pinned|host|file)) / { s = 0 } s { if (!/^ /) $1 = ""; $1 = $1; rows[s] = rows[s] $0 ";" }
        END { exit rows[1] == "" || rows[1] != rows[2] }' "$out"
}

as_plan_says() {
    local np=$1 stage=$2 gpus=
    shift 2
    [ "${DTRAIN_DEVICE:-cpu}" != cuda ] || gpus="--devices-per-node $(nvidia-smi -L | grep -c '^GPU')" # ranks share them
    ./dtrain --plan --ranks "$np" $gpus "$tmp/tiny.ini" "$@" >"$tmp/.plan" 2>&1
    grep '^allocated ' "$out" | cut -c 10-74 | cmp - <(grep -m 1 "^$stage  " "$tmp/.plan" | cut -c 10-74)
}

fails_alone() {
    local rank=$1 point=$2 nth=$3
    shift 3
    RUN_TIMEOUT=60 DTRAIN_FAULT=$point:$rank:$nth:error "$@"
    expect_exit "a rank that fails at $point ends the job" 70
    expect_text "and says so" "rank $rank .*$point: a fault injected"
}
