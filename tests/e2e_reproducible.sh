#!/bin/bash
# e2e_reproducible.sh - run.reproducible: losses, norms, weights and moments have the same bits on 1, 2, 3, 4, 6 and 8 ranks, at every stage,
# with every offload, on any number of threads, and in a run that moves from layout to layout.
#
# A layout is ranks, stage, offload, threads, and what else must not matter: limits on exchanges, nodes, groups of their ranks, the transport,
# recomputation, the queue device. Each model below is trained on one rank first; then on all 24 pairs of ranks and stage, with the other three taken in turn so that over
# all models any two of the six meet, and so do any ranks, stage and offload. REPRODUCIBLE=full takes all ranks x stages x offloads x threads
# for each model instead (make test-reproducible); MODELS="plain tied" names the models.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
awk 'BEGIN { srand(5); for (i = 0; i < 61; i++) { a = ""; n = 1 + int(rand() * 30); for (k = 0; k < n; k++) a = a sprintf("%c", 97 + int(rand() * 26));
     printf "{\"prompt\": \"say %d \", \"completion\": \"%s\", \"weight\": %.2f}\n", i, a, rand() * 3 } }' >"$tmp/records.jsonl"
./dtrain-data -q --weight-key weight -o "$tmp/sft.h5" "$tmp/records.jsonl" >"$out" 2>&1 || not_ok "samples with weights" "dtrain-data failed"
train 1 start run.max_steps=2

RANKS=(1 2 3 4 6 8)
THREADS=(1 2 3 8)
OFFLOADS=(none optimizer:cpu optimizer:nvme all:cpu all:nvme) # parameters at stage 3 alone
OTHER=("" "zero.reduce_bucket_size=1000 zero.allgather_bucket_size=700" "zero.overlap_comm=false data.prefetch=0 zero.pin_memory=false" "nodes"
    "comm.shared_memory=false model.activation_checkpointing=selective" "zero.param_persistence_threshold=3000 model.activation_checkpointing=block"
    "queue" "groups")

# Sizes such that shards are cut within tensors and rows; validations, weight decay for some tensors, clipping.
common="run.reproducible=true run.max_steps=12 data.validation=$tmp/valid.h5 data.validation_steps=4 optimizer.max_grad_norm=0.5
    scheduler.warmup_steps=3"
arguments_of() { # MODEL
    case $1 in
    plain) echo "data.document_mask=true optimizer.lr_groups=embed_tokens:1e-3,layers.0:2e-2" ;;
    tied) # normalised heads; embedding and head are one; bf16; an epoch ends within a step, so ranks come away empty
        echo "model.model_type=qwen3 model.hidden_size=36 model.num_attention_heads=3 model.num_key_value_heads=1 model.head_dim=12
            model.vocab_size=263 model.tie_word_embeddings=true precision.dtype=bf16 data.packing=bfd data.seq_len=64" ;;
    dropout) # biases; two sequences a micro-batch, and one in an epoch's last
        echo "model.model_type=gpt2 model.hidden_size=40 model.num_attention_heads=5 model.num_key_value_heads=5 model.dropout=0.1
            precision.dtype=bf16 batch.micro_batch_size=2 batch.train_batch_size=48 optimizer.type=adam data.seq_len=27" ;;
    weighted) # samples with weights, of different lengths
        echo "run.task=sft model.path=$tmp/start data.train=$tmp/sft.h5 data.validation=$tmp/sft.h5 data.seq_len=64" ;;
    half) # fp16 with a loss scale that is lowered at first, and raised within a window that moves cut
        echo "precision.dtype=fp16 precision.initial_scale_power=24 precision.hysteresis=1 precision.loss_scale_window=3 model.hidden_size=36
            model.num_attention_heads=3 model.num_key_value_heads=1 model.attention_bias=true" ;;
    wide) # products that oneDNN, left alone, cuts among 2 and 8 threads in ways that round differently
        echo "model.hidden_size=264 model.intermediate_size=1000 model.num_hidden_layers=1 data.seq_len=65 model.max_position_embeddings=65 run.max_steps=4" ;;
    esac
}

# Sub-groups that are cut within tensors, more of them than buffers.
offload_of() { # OFFLOAD STAGE
    local to=${1#*:}
    [ "$1" != none ] || return 0
    echo "zero.offload_optimizer=$to zero.nvme_path=$tmp zero.sub_group_size=4096 zero.buffer_count=2"
    case $1$2 in all*3) echo "zero.offload_param=$to" ;; esac
}

# What a run has computed: its records but for times and memory, and every tensor's checksum.
fingerprint() { # DIR
    sed -E 's/, "(step_time|tokens_per_second|flops_per_second|memory[a-z_/]*|validation_time)": *[-0-9.e+]+//g' "$tmp/$1/metrics.jsonl"
    h5dump -A -g /model -g /optimizer "$(newest "$1")" | grep -E 'DATASET "|\(0\): [0-9]'
}

train_on() { # DIR MODEL RANKS STAGE OFFLOAD THREADS OTHER ARGS...
    local dir=$1 model=$2 np=$3 stage=$4 offload=$5 threads=$6 other=$7 nodes
    shift 7
    set -- "$np" "$dir" $common $(arguments_of "$model") zero.stage="$stage" run.threads="$threads" $(offload_of "$offload" "$stage") "$@"
    case $other in
    nodes) DTRAIN_FAKE_NODES=2 train "$@" ;;
    groups) # nodes of equal size: of one rank up to 3 ranks, of two on 4 (not neighbours) and on 6, of four on 8
        case $np in 4) nodes=2:cyclic ;; 6) nodes=3 ;; 8) nodes=2 ;; *) nodes=$np ;; esac
        DTRAIN_FAKE_NODES=$nodes train "$@" zero.shard_group=node ;;
    queue) DTRAIN_DEVICE=queue train "$@" ;;
    *) train "$@" $other ;;
    esac
}

check() { # MODEL RANKS STAGE OFFLOAD THREADS OTHER
    local name="$1: $2 ranks, stage $3, offload $4, $5 threads${6:+, $6}"
    rm -rf "$tmp/here"
    train_on here "$@"
    if [ "$code" != 0 ]; then not_ok "$name" "exit code $code"; return; fi
    fingerprint here >"$tmp/.here"
    expect "$name" diff "$tmp/.$1" "$tmp/.here"
}

move() { # MODEL N: six layouts, one after the other, each from where the last one saved
    local i
    rm -rf "$tmp/here"
    for i in 0 1 2 3 4 5; do
        train_on here "$1" "${RANKS[(5 * i + $2) % 6]}" $(((3 * i + $2) % 4)) "${OFFLOADS[(i + $2) % 5]}" "${THREADS[(i + $2) % 4]}" "${OTHER[(3 * i + $2) % 8]}" \
            run.max_steps=$((4 * i + 4))
        if [ "$code" != 0 ]; then not_ok "$1: moved to the layout of step $((4 * i + 4))" "exit code $code"; return; fi
    done
    fingerprint here >"$tmp/.here"
    train_on "$1-1" "$1" 1 0 none 1 "" run.max_steps=24
    fingerprint "$1-1" >"$tmp/.$1"
    expect "$1: six layouts in a row" diff "$tmp/.$1" "$tmp/.here"
}

n=0 turn=0 # of the model, and in the full product of the layout
for model in ${MODELS:-plain tied dropout weighted half wide}; do
    ends "$model: one rank" 0 train_on "$model-1" "$model" 1 0 none 1 ""
    fingerprint "$model-1" >"$tmp/.$model"
    if [ "${REPRODUCIBLE:-}" = full ]; then
        for np in "${RANKS[@]}"; do for stage in 0 1 2 3; do for offload in "${OFFLOADS[@]}"; do for threads in "${THREADS[@]}"; do
            check "$model" "$np" "$stage" "$offload" "$threads" "${OTHER[turn++ % 8]}"
        done; done; done; done
    else
        for i in {0..23}; do
            stage=$((i / 6))
            check "$model" "${RANKS[i % 6]}" $stage "${OFFLOADS[(i + n) % 5]}" "${THREADS[(stage + n) % 4]}" "${OTHER[(i + 3 * n) % 8]}"
        done
    fi
    [ "$model" = wide ] || move "$model" $n
    n=$((n + 1))
done
e2e_done
