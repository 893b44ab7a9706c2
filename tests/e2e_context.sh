#!/bin/bash
# e2e_context.sh - mesh.cp: ranks that divide the tokens of micro-batches train to the numbers of one rank, at every stage of ZeRO on 2 and 4
# ranks, for every task and kind of batch; what does not combine is refused; a rank that fails alone ends the run.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
. "$(dirname "$0")/mesh_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

two_ranks mesh.cp
# A rank that fails alone in attention's exchanges ends the run.
for point in comm.all_gather comm.reduce_scatter; do fails_alone 1 $point 9 train 2 fails mesh.cp=2; done
full_only
train 4 cp4 mesh.cp=4 zero.stage=2 comm.check=true data.seq_len=32
same "4 ranks divide a sequence" cp4
for stage in 0 1 2 3; do
    train 4 "cp2d2s$stage" mesh.cp=2 zero.stage=$stage comm.check=true
    same "2 x 2 ranks, stage $stage" "cp2d2s$stage"
done
# A team without samples in a validation batch issues none of the exchanges of the other.
head -8 "$tmp/text.txt" >"$tmp/few.txt" # 39 rows
./dtrain-data --documents lines -o "$tmp/few.h5" "$tmp/few.txt" >"$tmp/.data" 2>&1
for n in 1 4; do
    train $n "few$n" mesh.cp=$((n > 1 ? 2 : 1)) zero.stage=3 comm.check=true data.seq_len=32 data.validation="$tmp/few.h5" data.validation_steps=3 \
        batch.micro_batch_size=1
    expect_exit "$n ranks, few rows to validate" 0
done
expect "a team without samples: validation" close_numbers few1 few4 validation_loss 2e-5
two_nodes mesh.cp
moves mesh.cp 3

# Packed rows, recomputation, adapters, windows, learned positions, positions that depend on the length, an empty part of a batch.
variant() { # NAME ARGS...
    local name=$1
    shift
    rm -rf "$tmp/one" "$tmp/parts"
    train ${ranks:-1} one "$@"
    if [ "${ranks:-1}" = 1 ]; then
        train 3 parts mesh.cp=3 "$@" comm.check=true
        same "$name" parts
        rm -rf "$tmp/parts"
    fi
    train 4 parts mesh.cp=2 zero.stage=3 "$@" comm.check=true
    same "$name, stage 3" parts
    expect "$name: the plan" as_planned
}
variant "documents" data.document_mask=true data.seq_len=61
variant "micro-batches of several rows" batch.micro_batch_size=3 data.packing=bfd
variant "selective recomputation, norms of heads, tied" model.model_type=qwen3 model.head_dim=12 model.tie_word_embeddings=true model.activation_checkpointing=selective
variant "recomputed blocks" model.activation_checkpointing=block model.sliding_window=9 model.model_type=mistral
variant "learned positions, dropout" model.model_type=gpt2 model.num_key_value_heads=4 model.dropout=0.1
variant "adapters" lora.r=4 lora.dropout=0.1
variant "dynamic positions" 'model.rope_scaling={"rope_type": "dynamic", "factor": 2.0}' model.max_position_embeddings=16
variant "fewer tokens than ranks" data.seq_len=2 
# losses of routers belong to the tokens of all ranks in a micro-step
ranks=2 variant "mixture" model.model_type=qwen3_moe model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=24 \
    model.output_router_logits=true

# What does not combine is refused, with the key.
refused() { # NAME TEXT NP ARGS...
    local name=$1 text=$2 np=$3
    shift 3
    train "$np" refused "$@"
    expect_exit "$name is refused" 64
    expect_text "$name: the message" "mesh[].] *cp.*$text"
}
refused "3 ranks" "expected a divisor of the number of ranks, which is 3, found 2" 3 mesh.cp=2
refused "reproducible" "run.reproducible gives the same bits" 2 mesh.cp=2 run.reproducible=true
latent="model.model_type=deepseek_v3 model.q_lora_rank=13 model.kv_lora_rank=10 \
    model.qk_nope_head_dim=8 model.qk_rope_head_dim=6 model.v_head_dim=9 model.num_key_value_heads=4"
refused "latent attention" "the model has latent attention" 2 mesh.cp=2 $latent
refused "linear attention" "the model has linear attention" 2 mesh.cp=2 model.model_type=qwen3_next model.full_attention_interval=2 \
    model.linear_num_key_heads=2 model.linear_num_value_heads=4
run 0 ./dtrain --plan --ranks 3 "$tmp/tiny.ini" mesh.cp=2
expect_text "a plan: the message" "expected a divisor of the number of ranks, which is 3, found 2"

# --plan: memory of a rank, and the time of a step with the exchanges of attention.
train 4 planned mesh.cp=2 zero.stage=2 run.max_steps=1
expect "--plan for 4 ranks" as_plan_says 4 2 mesh.cp=2
expect "--plan names the ranks that divide samples" grep -q "ranks: 4 on 1 node, 2 of which divide the tokens of a sample" "$tmp/.plan"
run 0 ./dtrain --plan --gpu H100 --ranks 8 input/llama-1b.ini mesh.cp=4
expect_exit "--plan predicts the time of a step" 0

train 1 latent $latent model.vocab_size=258 run.max_steps=1

# Tasks whose losses belong to sequences: every rank has the log-probabilities, or values, of all tokens.
task() { # TASK DATA KEYS...
    local name=$1 data=$2
    shift 2
    data -o "$tmp/$name.h5" "$data"
    make_task "$name" run.max_steps=4 data.train="$tmp/$name.h5" data.shuffle=false batch.train_batch_size=4 "$@"
    variant "task $name"
}
sed 's/, "margin": [0-9.]*//' tests/data/rm/pairs.jsonl >"$tmp/pairs.jsonl"
task dpo "$tmp/pairs.jsonl"
refused "a reference with latent attention" "expected 1, found 2: the model has latent attention" 2 mesh.cp=2 dpo.reference_path="$tmp/latent"
task kto tests/data/kto/pairs.jsonl
task rm tests/data/rm/pairs.jsonl
task distill tests/data/distill/pairs.jsonl distill.teacher_path=tests/data/distill/teacher distill.beta=0.3
e2e_done
