#!/bin/bash
# e2e_reward_watch.sh - rewards that never vary cause one warning after ten rollouts, for rewards from functions and from files.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
for i in $(seq 0 9); do echo "{\"prompt\": \"count $i\"}"; done >"$tmp/prompts.jsonl"
data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
warned="was 0 for all 80 completions of the last 10 rollouts.*, so the policy gets no signal from it"
once() { test "$(grep -c 'completions of the last' "$out")" = 1; }

make_task grpo batch.train_batch_size=8 grpo.num_generations=4 grpo.max_completion_length=4
train 2 constant run.max_steps=12 data.train="$tmp/prompts.h5" "grpo.reward_funcs=keywords:qqqq, length:1:4"
expect_text "grpo: a function that is always 0" "reward keywords $warned"
expect_text "truncated completions are counted" 'last 10 rollouts; [78][0-9] of them reached the maximum length, so the policy'
train 1 short run.max_steps=9 data.train="$tmp/prompts.h5" "grpo.reward_funcs=keywords:qqqq"
expect "not before ten rollouts" sh -c "! grep -q 'completions of the last' '$out'"

for i in $(seq 12); do
    echo '{"prompt_ids": [99, 100], "completion_ids": [[5, 6], [7, 8], [9, 4], [3, 2]], "rewards": [[0, 1], [0, 2], [0, 3], [0, 4]]}'
done >"$tmp/rollouts.jsonl"
prints "rewards of a file" "reward reward_0 $warned" train 1 file run.max_steps=12 grpo.rollouts="$tmp/rollouts.jsonl"
expect "one warning, of that reward alone" once

for i in $(seq 12); do
    echo '{"prompt_ids": [99, 100], "completion_ids": [[5, 6], [7, 8], [9, 4], [3, 2]], "rewards": [[1], [1], [1], [1]]}'
    echo '{"prompt_ids": [99, 101], "completion_ids": [[5, 6], [7, 8], [9, 4], [3, 2]], "rewards": [[0], [0], [0], [0]]}'
done >"$tmp/rollouts.jsonl"
train 1 groups run.max_steps=12 grpo.rollouts="$tmp/rollouts.jsonl"
expect_text "rewards that differ between groups, but within none" 'reward reward_0 was the same within every group for all 80 completions'

make_task ppo batch.train_batch_size=8 ppo.response_length=4 ppo.num_mini_batches=1 ppo.num_ppo_epochs=1
prints "ppo: the same" "reward keywords $warned" train 1 ppo run.max_steps=11 data.train="$tmp/prompts.h5" "ppo.reward_funcs=keywords:qqqq"
e2e_done
