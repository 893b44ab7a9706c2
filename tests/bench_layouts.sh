#!/bin/bash
# bench_layouts.sh [PATTERN] - cost of the layouts of model states and of recomputation: training steps of a model at the stages of ZeRO, with offload,
# in reproducible mode and with recomputation. Only groups whose name matches PATTERN run.
#
#     ms         median of the steps of a run, without its first two; median over ROUNDS rounds, in which the layouts of a group alternate
#     ratio      to the first layout of the group in the same round; median over the rounds
#     planned    memory of a rank as dtrain plans it before the run, files included
#
# The model has four blocks of GPT-2 124M's width and a vocabulary of 512. NP ranks of one thread, STEPS steps, DTYPES, BATCH (micro-batch),
# SEQ, and DIR, the folder for states in files. The machine should be idle.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
. tests/measure.sh
unset OMP_NUM_THREADS
np=${NP:-2} rounds=${ROUNDS:-5} steps=${STEPS:-7} batch=${BATCH:-4} seq=${SEQ:-128}
tmp=$(mktemp -d ${DIR:+-p "$DIR"}) && trap 'rm -rf "$tmp"' EXIT
head -c 1200000 /dev/urandom >"$tmp/noise"
./dtrain-data -q --format text -o "$tmp/noise.h5" "$tmp/noise" >/dev/null || exit 1 # ids do not affect the time

cpu=zero.offload_optimizer=cpu nvme=zero.offload_optimizer=nvme
GROUPS_OF="stages|zero.stage=0|zero.stage=1|zero.stage=2|zero.stage=3
offload at stage 2|zero.stage=2|zero.stage=2 $cpu|zero.stage=2 $nvme
offload at stage 3|zero.stage=3|zero.stage=3 $cpu|zero.stage=3 $cpu zero.offload_param=cpu|zero.stage=3 $nvme|zero.stage=3 $nvme zero.offload_param=nvme"
for layout in "0 4" "1 1" "1 4" "2 4" "3 4"; do
    keys="zero.stage=${layout% *} batch.gradient_accumulation_steps=${layout#* }"
    GROUPS_OF+=$'\n'"reproducible, stage ${layout% *}, micro-steps: ${layout#* }|$keys|$keys run.reproducible=true"
done
GROUPS_OF+=$'\n''recomputation|zero.stage=0|zero.stage=0 model.activation_checkpointing=selective|zero.stage=0 model.activation_checkpointing=block'

step_ms() { # DTYPE KEYS...: median step of a run; its plan in $tmp/log
    rm -rf "$tmp/run"
    $MPIRUN -np "$np" ./dtrain /dev/stdin run.output_dir="$tmp/run" run.threads=1 precision.dtype="$1" batch.micro_batch_size="$batch" data.seq_len="$seq" \
        run.max_steps=$((steps + 2)) checkpoint.save_steps=0 data.train="$tmp/noise.h5" log.report_to=jsonl model.dropout=0 zero.nvme_path="$tmp" \
        model.model_type=gpt2 model.hidden_size=768 model.num_hidden_layers=4 model.num_attention_heads=12 model.vocab_size=512 \
        model.max_position_embeddings=1024 model.tie_word_embeddings=false "${@:2}" </dev/null >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; exit 1; }
    median_of "$tmp/run" step_time 3 $((steps + 2)) | awk '{ print 1000 * $1 }'
}
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

grep -- "${1:-}" <<<"$GROUPS_OF" | while IFS= read -r line; do
    IFS='|' read -ra layouts <<<"$line"
    for dtype in ${DTYPES:-fp32 bf16}; do
        echo "${layouts[0]}: $dtype, $np ranks, $batch x $seq tokens"
        rm -f "$tmp"/ms.* "$tmp"/planned.*
        for _ in $(seq "$rounds"); do
            for ((i = 1; i < ${#layouts[@]}; i++)); do
                step_ms "$dtype" ${layouts[i]} >>"$tmp/ms.$i"
                awk '$1 == "planned" { print $NF }' "$tmp/log" >"$tmp/planned.$i"
            done
        done
        for ((i = 1; i < ${#layouts[@]}; i++)); do
            printf '  %-72s %8.1f ms  ratio %.3f  planned %s\n' "${layouts[i]}" "$(median <"$tmp/ms.$i")" \
                "$(paste "$tmp/ms.$i" "$tmp/ms.1" | awk '{ print $1 / $2 }' | median)" "$(cat "$tmp/planned.$i")"
        done
    done
done
