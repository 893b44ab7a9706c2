#!/bin/bash
# dtrain-generate: the same text whatever the ranks, the stage and the batch size; its ways in and out; what is said about mistakes.
. "$(dirname "$0")/e2e.sh"
export OMP_NUM_THREADS=1
m=$tmp/run

"${BUILD:-build/release}/tests/test_generate" --make-checkpoint "$m" >"$out" 2>&1
expect a_small_checkpoint_is_made test -s "$m/checkpoints/step-00000007.h5"

generate() { # NP ARGUMENTS...: standard output alone into $tmp/text
    local np=$1
    shift
    if [ "$np" -gt 0 ]; then set -- mpirun -np "$np" ./dtrain-generate "$@"; else set -- ./dtrain-generate "$@"; fi
    timeout -k 5 60 "$@" >"$tmp/text" 2>"$out" </dev/null
    code=$?
}
many=("$m" --prompt "In the beginning" --num-samples 7 --max-new-tokens 40 --temperature 0.9 --top-k 40 --top-p 0.95 --threads 1 --jsonl)
generate 0 "${many[@]}" --batch-size 1
expect_exit samples_one_by_one 0
cp "$tmp/text" "$tmp/expected"
expect every_sample_is_a_line test "$(wc -l <"$tmp/expected")" = 7
expect speed_is_reported grep -q 'tokens/s (7 sequences, 112 prompt tokens, 1 rank)' "$out"
expect samples_differ test "$(sed 's/.*"ids"//' "$tmp/expected" | sort -u | wc -l)" = 7
for case in "0 4 0" "1 3 3" "2 2 0" "2 3 3" "3 1 3"; do
    read -r np batch stage <<<"$case"
    generate "$np" "${many[@]}" --batch-size "$batch" --zero-stage "$stage"
    expect "same_text_on_${np}_ranks_batch_${batch}_stage_$stage" cmp "$tmp/text" "$tmp/expected"
done
generate 3 "$m" --prompt x --max-new-tokens 3 --threads 1 --zero-stage 3
expect_exit more_ranks_than_prompts 0
generate 0 "${many[@]}" --seed 43
expect another_seed_gives_another_text test "$code" = 0 -a "$(cmp -s "$tmp/text" "$tmp/expected"; echo $?)" = 1
generate 0 "$m" --dtype bf16 --greedy --max-new-tokens 5 --threads 1
expect_exit bf16_and_no_prompt 0

generate 0 "$m/checkpoints/step-00000007.h5" --prompt "ab" --greedy --max-new-tokens 6 --tokenizer bytes
cp "$tmp/text" "$tmp/plain"
expect plain_text_begins_with_the_prompt test "$(head -c 2 "$tmp/plain")" = ab
generate 0 "$m/checkpoints" --prompt "ab" --greedy --max-new-tokens 6 --stream
expect streamed_text_is_the_same cmp "$tmp/text" "$tmp/plain"
generate 0 "$m" --prompt "97 98" --greedy --max-new-tokens 6 --tokenizer ids
expect ids_go_in_and_out grep -qE '^97 98( [0-9]+){1,6}$' "$tmp/text"
printf '{"prompt": "ab"}\n{"ids": [97, 98]}\n' >"$tmp/prompts.jsonl"
generate 2 "$m" --prompts "$tmp/prompts.jsonl" --greedy --max-new-tokens 6 --jsonl --threads 1
expect text_and_ids_are_the_same_prompt test "$(sed 's/"index":[0-9]*//' "$tmp/text" | sort -u | wc -l)" = 1
printf 'ab\n\nab\n' | timeout 60 ./dtrain-generate "$m" - --greedy --max-new-tokens 6 --jsonl >"$tmp/text" 2>"$out"
expect standard_input_gives_a_prompt_a_line test "$(sed 's/"index":[0-9]*//' "$tmp/text" | sort -u | wc -l)-$(wc -l <"$tmp/text")" = 1-2
generate 0 "$m" --prompt "ab" --max-new-tokens 1000 --jsonl --temperature 3
expect the_models_length_is_kept grep -qE '"n_new_tokens":62,"finish":"length"|"finish":"eos"' "$tmp/text"

run 0 ./dtrain-generate --help
expect_exit help 0
run 0 ./dtrain-generate
expect_exit no_model_is_a_usage_error 64
run 2 ./dtrain-generate "$m" --top-p 1.5
expect_exit value_out_of_range_is_a_usage_error 64
expect_text value_out_of_range_is_named 'top_p: expected a number above 0 and up to 1, found 1.5'
expect one_message_for_all_ranks test "$(grep -c 'top_p' "$out")" = 1
run 0 ./dtrain-generate "$m" --prompt a --prompts b
expect_exit two_sources_of_prompts_are_a_usage_error 64
run 2 ./dtrain-generate "$m" --stream
expect_exit streaming_on_two_ranks_is_a_usage_error 64
run 0 ./dtrain-generate "$tmp"
expect_exit no_checkpoint_is_a_data_error 65
run 2 ./dtrain-generate "$m" --prompts "$tmp/nowhere.jsonl"
expect_exit missing_prompts_are_a_data_error 65
expect_text missing_prompts_are_named 'nowhere.jsonl'
run 0 ./dtrain-generate "$m" --prompt "$(printf 'a%.0s' {1..64})"
expect_exit prompt_beyond_the_model_is_a_data_error 65
expect_text prompt_beyond_the_model_says_both_lengths 'has 64 tokens: the model takes 64'
cp "$m/checkpoints/step-00000007.h5" "$tmp/short.h5" && truncate -s -100 "$tmp/short.h5"
run 2 ./dtrain-generate "$tmp/short.h5" --prompt a --threads 1
expect_exit truncated_checkpoint_is_a_data_error 65
expect_text truncated_checkpoint_is_named 'short.h5'
e2e_done
