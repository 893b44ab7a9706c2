#!/bin/bash
# e2e_gpu_tools.sh - the scripts for a GPU machine (tools/gpu), as far as a machine without a GPU can test them. A model that cannot run has
# no figures and does not affect the models after it. Unknown names are refused.
. "$(dirname "$0")/e2e.sh"

shape="model_type=gpt2 num_hidden_layers=1 num_attention_heads=2 vocab_size=257 max_position_embeddings=64"
figures=$tmp/figures
run 0 env OUT="$figures" DEVICE=cpu STEPS=1 LIMIT=60 PYTHON= MODELS_OF="bad 1 32 $shape hidden_size=63
good 1 32 $shape hidden_size=64 zero.offload_optimizer=cpu" tools/gpu/bench.sh steps=all
expect_exit "a model that cannot be run is a failure" 1
expect_text "the error of the model is reported" 'model.hidden_size: expected a multiple of num_attention_heads=2, found 63'
expect_text "the model that fails has no figures" '^\| bad \| 1 x 32 \| - \| - \| - \| - \| - \| - \| - \|$'
expect_text "the next model has its figures" '^\| good \| 1 x 32 \| [1-9][0-9]* \| [0-9.]+ \| [0-9.]+ \| - \|'
expect "both rows are in the table" [ "$(grep -cE '^\| (bad|good) ' "$figures/bench.md")" = 2 ]
for wrong in "bench.sh steps=none" "bench.sh none" "run.sh none"; do
    run 0 env OUT="$figures" DEVICE=cpu PYTHON= tools/gpu/$wrong
    expect "$wrong: is refused" [ "$code" != 0 ]
done
e2e_done
