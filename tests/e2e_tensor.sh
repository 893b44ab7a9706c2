#!/bin/bash
# e2e_tensor.sh - mesh.tp: ranks that divide the matrices of layers train to the numbers of one rank, at every stage of
# ZeRO on 2 and 4 ranks; what does not combine is refused; a rank that fails alone ends the run.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
. "$(dirname "$0")/mesh_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

two_ranks mesh.tp
# A rank that fails alone in the sum of a branch ends the run.
fails_alone 1 comm.all_reduce 9 train 2 fails mesh.tp=2
full_only
for stage in 0 1 2 3; do
    train 4 "tp2d2s$stage" mesh.tp=2 zero.stage=$stage comm.check=true
    same "2 x 2 ranks, stage $stage" "tp2d2s$stage"
    expect "2 x 2 ranks, stage $stage: the plan" as_planned
    train 4 "tp2cp2s$stage" mesh.tp=2 mesh.cp=2 zero.stage=$stage comm.check=true
    same "2 x 2 ranks of two axes, stage $stage" "tp2cp2s$stage"
done
two_nodes mesh.tp
moves mesh.tp 2

variant() { # NAME ARGS...
    local name=$1
    shift
    rm -rf "$tmp/one" "$tmp/parts"
    train 1 one "$@"
    train 4 parts mesh.tp=2 zero.stage=3 "$@" comm.check=true
    same "$name" parts
    expect "$name: the plan" as_planned
}
variant "tied, recomputation" model.model_type=qwen2 model.tie_word_embeddings=true model.activation_checkpointing=selective
variant "norms after branches" model.model_type=gemma2 model.head_dim=8 model.activation_checkpointing=block
variant "windows" model.activation_checkpointing=block model.sliding_window=9 model.model_type=mistral
variant "micro-batches of several rows" batch.micro_batch_size=3 data.packing=bfd
variant "a cap of the logits, scaled branches" model.model_type=granite
variant "offload" zero.stage=3 zero.offload_optimizer=cpu zero.offload_param=cpu

# The whole model is exported and read.
train 1 one checkpoint.export=hf
train 2 parts mesh.tp=2 checkpoint.export=hf
expect "the exports have the same sizes" cmp <(ls -l "$tmp/one/hf" | awk '{ print $5, $9 }') <(ls -l "$tmp/parts/hf" | awk '{ print $5, $9 }')
train 1 read model.path="$tmp/one/hf" run.max_steps=3
train 2 parts2 model.path="$tmp/one/hf" run.max_steps=3 mesh.tp=2
rm -rf "$tmp/one" && mv "$tmp/read" "$tmp/one"
same "from a Hugging Face directory" parts2

# A file whose tensor has the queries, keys and values of one group of heads after the other: InternLM2's.
python3 - "$tmp/parts/hf" "$tmp/internlm2" <<'END'
import json, os, sys
from fixtures import safetensors, write_safetensors
old = {"attention.wqkv": "self_attn.q_proj", "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
       "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "tok_embeddings": "embed_tokens",
       "output": "lm_head"}
tensors, keys = safetensors(sys.argv[1] + "/model.safetensors"), json.load(open(sys.argv[1] + "/config.json"))
size = dict(hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=257, max_position_embeddings=64)
out = {}
for name, (kind, shape, data) in tensors.items():
    rows = lambda part, n, g: tensors[name.replace("q_proj", part)][2][g * n * 128:(g + 1) * n * 128]  # 32 values of 4 bytes
    if "q_proj" in name:
        shape, data = [64, 32], b"".join(rows("q_proj", 16, g) + rows("k_proj", 8, g) + rows("v_proj", 8, g) for g in range(2))
    for new, was in old.items():
        name = name.replace(was, new)
    if "self_attn" not in name:
        out[name] = (kind, shape, data)
os.mkdir(sys.argv[2])
write_safetensors(sys.argv[2] + "/model.safetensors", out)
json.dump(dict(size, model_type="internlm2", architectures=["InternLM2ForCausalLM"], auto_map={"AutoModelForCausalLM": "m.M"}, bias=False,
               rms_norm_eps=keys.get("rms_norm_eps", 1e-6), rope_theta=10000.0, tie_word_embeddings=False), open(sys.argv[2] + "/config.json", "w"))
END
rm -rf "$tmp/one"
train 1 one model.path="$tmp/internlm2" model.model_type= run.max_steps=3
train 2 parts3 model.path="$tmp/internlm2" model.model_type= run.max_steps=3 mesh.tp=2
same "from a file with several matrices in one tensor" parts3

# What does not combine is refused, with the key.
refused() { # NAME TEXT NP ARGS...
    local name=$1 text=$2 np=$3
    shift 3
    train "$np" refused "$@"
    expect_exit "$name is refused" 64
    expect_text "$name: the message" "mesh[].] *tp.*$text"
}
refused "3 ranks" "expected a divisor of the number of ranks, which is 3, found 2" 3 mesh.tp=2
refused "reproducible" "run.reproducible gives the same bits" 2 mesh.tp=2 run.reproducible=true
refused "adapters" "adapters are not divided; set lora.r = 0" 2 mesh.tp=2 lora.r=4
refused "muon" "muon updates whole matrices; use adamw" 2 mesh.tp=2 optimizer.type=muon
refused "int8 states" "blocks of int8 states belong to whole tensors" 2 mesh.tp=2 optimizer.state_dtype=int8
refused "norms of heads" "the model normalises queries and keys" 2 mesh.tp=2 model.model_type=qwen3 model.head_dim=12
for type in phi3 glm; do refused "$type" "the model has several matrices in one tensor" 2 mesh.tp=2 model.model_type=$type; done
refused "experts" "the model has experts" 2 mesh.tp=2 model.model_type=qwen3_moe model.num_experts=4 \
    model.num_experts_per_tok=2 model.moe_intermediate_size=24
refused "three parts of two heads" "it must divide num_key_value_heads" 3 mesh.tp=3

# --plan: memory of a rank, and the time of a step with the sums of branches.
train 4 planned mesh.tp=2 zero.stage=2 run.max_steps=1
expect "--plan for 4 ranks" as_plan_says 4 2 mesh.tp=2
expect "--plan names the ranks that divide matrices" grep -q "ranks: 4 on 1 node, 2 of which divide the matrices of a layer" "$tmp/.plan"
run 0 ./dtrain --plan --gpu H100 --ranks 8 input/llama-1b.ini mesh.tp=4
expect_exit "--plan predicts the time of a step" 0

make_task rm run.max_steps=4 data.train="$tmp/rm.h5" data.shuffle=false batch.train_batch_size=4 model.path= model.model_type=llama \
    model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=2 model.num_attention_heads=4 model.num_key_value_heads=2 \
    model.vocab_size=258
data -o "$tmp/rm.h5" tests/data/rm/pairs.jsonl
variant "task rm"
e2e_done
