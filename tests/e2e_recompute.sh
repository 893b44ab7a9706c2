#!/bin/bash
# e2e_recompute.sh - model.activation_checkpointing: losses and weights of a run are bit-identical whatever is recomputed, for each family,
# with dropout, tied embeddings and packed documents, at every stage.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

same_bits() { close_losses "$1" "$2" 0 && same_model "$(newest "$1")" "$(newest "$2")"; }


compare() { # NAME NP ARGS...: five steps of each kind, of documents packed by two
    local name=$1 np=$2 how
    shift 2
    for how in none selective block; do
        train "$np" "$name-$how" model.activation_checkpointing=$how run.max_steps=5 data.packing=bfd_split batch.micro_batch_size=2 "$@"
        [ "$code" = 0 ] || { not_ok "$name, $how" "exit code $code"; return; }
    done
    expect "$name: selective has the bits of none" same_bits "$name-none" "$name-selective"
    expect "$name: block has the bits of none" same_bits "$name-none" "$name-block"
    rm -rf "$tmp/$name"-*
}

gpt2="model.model_type=gpt2 model.num_key_value_heads= model.intermediate_size=128 model.hidden_act=gelu_new model.dropout=0.1"
compare gpt2 2 $gpt2 zero.stage=0 precision.dtype=fp32
compare gpt2-bf16 2 $gpt2 zero.stage=2 precision.dtype=bf16
compare gpt2-exact 1 $gpt2 run.reproducible=true precision.dtype=bf16
for stage in 0 1 2 3; do compare "qwen3-$stage" 2 model.model_type=qwen3 zero.stage=$stage model.tie_word_embeddings=true precision.dtype=bf16; done
compare qwen2 3 model.model_type=qwen2 zero.stage=3 precision.dtype=fp32
compare llama 2 zero.stage=3 model.dropout=0.1 precision.dtype=bf16
compare mistral 2 model.model_type=mistral model.sliding_window=8 zero.stage=1

e2e_done
