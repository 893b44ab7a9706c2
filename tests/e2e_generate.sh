#!/bin/bash
# e2e_generate.sh - dtrain-generate: the text does not depend on ranks, stage or batch size; forms of input and output; error messages.
# QUICK:
. "$(dirname "$0")/e2e.sh"
export OMP_NUM_THREADS=1
m=$tmp/run

"${BUILD:-build/release}/tests/test_generate" --make-checkpoint "$m" >"$out" 2>&1
expect a_small_checkpoint_is_made test -s "$m/checkpoints/step-00000007.h5"

generate() { # NP ARGUMENTS...: the text alone into $tmp/text; a launcher may mix it with messages, so ranks write the file
    local np=$1
    shift
    own_mpi_files
    if [ "$np" -gt 0 ]; then
        timeout -k 5 240 $MPIRUN -np "$np" ./dtrain-generate "$@" -o "$tmp/text" --force >"$out" 2>&1 </dev/null
    else
        timeout -k 5 240 ./dtrain-generate "$@" >"$tmp/text" 2>"$out" </dev/null
    fi
    code=$?
}
many=("$m" --prompt "In the beginning" --num-samples 7 --max-new-tokens 40 --temperature 0.9 --top-k 40 --top-p 0.95 --threads 1 --jsonl)
ends samples_one_by_one 0 generate 0 "${many[@]}" --batch-size 1
cp "$tmp/text" "$tmp/expected"
expect every_sample_is_a_line test "$(wc -l <"$tmp/expected")" = 7
expect speed_is_reported grep -q 'tokens/s (7 sequences, 112 prompt tokens, 1 rank)' "$out"
expect samples_differ test "$(sed 's/.*"ids"//' "$tmp/expected" | sort -u | wc -l)" = 7
for case in "0 4 0" "1 3 3" "2 2 0" "2 3 3" "3 1 3"; do
    read -r np batch stage <<<"$case"
    generate "$np" "${many[@]}" --batch-size "$batch" --zero-stage "$stage"
    expect "same_text_on_${np}_ranks_batch_${batch}_stage_$stage" cmp "$tmp/text" "$tmp/expected"
done
ends more_ranks_than_prompts 0 generate 3 "$m" --prompt x --max-new-tokens 3 --threads 1 --zero-stage 3
generate 0 "${many[@]}" --seed 43
expect another_seed_gives_another_text test "$code" = 0 -a "$(cmp -s "$tmp/text" "$tmp/expected"; echo $?)" = 1
ends bf16_and_no_prompt 0 generate 0 "$m" --dtype bf16 --greedy --max-new-tokens 5 --threads 1

generate 0 "$m/checkpoints/step-00000007.h5" --prompt "ab" --greedy --max-new-tokens 6 --tokenizer bytes
cp "$tmp/text" "$tmp/plain"
expect plain_text_begins_with_the_prompt test "$(head -c 2 "$tmp/plain")" = ab
generate 0 "$m/checkpoints" --prompt "ab" --greedy --max-new-tokens 6 --stream
expect streamed_text_is_the_same cmp "$tmp/text" "$tmp/plain"
generate 0 "$m" --prompt "97 98" --greedy --max-new-tokens 6 --tokenizer ids
expect ids_go_in_and_out grep -qE '^97 98( [0-9]+){1,6}$' "$tmp/text"
printf '{"prompt": "ab"}\n{"ids": [97, 98]}\n' >"$tmp/prompts.jsonl"
generate 2 "$m" --prompts "$tmp/prompts.jsonl" --greedy --max-new-tokens 6 --jsonl --threads 1
expect text_and_ids_are_the_same_prompt test "$(sed 's/"index":[0-9]*//; s/,"prompt_ids":[^]]*]//' "$tmp/text" | sort -u | wc -l)" = 1
printf 'ab\n\nab\n' | timeout 240 ./dtrain-generate "$m" - --greedy --max-new-tokens 6 --jsonl >"$tmp/text" 2>"$out"
expect standard_input_gives_a_prompt_a_line test "$(sed 's/"index":[0-9]*//' "$tmp/text" | sort -u | wc -l)-$(wc -l <"$tmp/text")" = 1-2
generate 0 "$m" --prompt "ab" --max-new-tokens 1000 --jsonl --temperature 3
expect the_models_length_is_kept grep -qE '"n_new_tokens":62,"finish":"length"|"finish":"eos"' "$tmp/text"


# beam search: the same on any number of ranks, for any number of searches at a time
printf '{"prompt": "ab", "answer": {"x": [1, 2]}}\n{"prompt": "In the beginning"}\n{"messages": [{"role": "user", "content": "hi"}]}\n{"ids": [7]}\n' >"$tmp/prompts.jsonl"
search=("$m" --prompts "$tmp/prompts.jsonl" --num-beams 3 --num-return 2 --length-penalty 0.5 --max-new-tokens 12 --threads 1 --jsonl)
ends beam_search 0 generate 0 "${search[@]}" --batch-size 1
cp "$tmp/text" "$tmp/expected"
expect beams_come_with_scores test "$(grep -c '"score":-[0-9.]*,"logprob":-' "$tmp/expected")" = 8
for case in "0 7 0" "2 6 0" "2 3 3" "3 16 3"; do
    read -r np batch stage <<<"$case"
    generate "$np" "${search[@]}" --batch-size "$batch" --zero-stage "$stage"
    expect "same_beams_on_${np}_ranks_batch_${batch}_stage_$stage" cmp "$tmp/text" "$tmp/expected"
done
expect other_fields_come_back grep -q '"answer":{"x":\[1,2\]}' "$tmp/expected"
expect ids_of_a_prompt_come_back grep -q '"prompt_ids":\[7\]' "$tmp/expected"
generate 0 "$m" --prompts "$tmp/prompts.jsonl" --jsonl --logprobs --max-new-tokens 3 --threads 1
expect log_probabilities_of_each_token test "$(grep -cE '"logprob":-[0-9.]+,"logprobs":\[-[^,]*(,-[^,]*){0,2}\]' "$tmp/text")" = 4
for dtype in fp32 bf16; do # 17 digits of each: not a bit of a logit depends on how the work is cut
    generate 0 "${many[@]}" --logprobs --dtype "$dtype" --batch-size 1
    cp "$tmp/text" "$tmp/expected"
    generate 0 "${many[@]}" --logprobs --dtype "$dtype" --batch-size 5 --threads 3
    expect "${dtype}_log_probabilities_do_not_depend_on_batch_and_threads" cmp "$tmp/text" "$tmp/expected"
    generate 3 "${many[@]}" --logprobs --dtype "$dtype" --batch-size 2 --zero-stage 3
    expect "${dtype}_log_probabilities_do_not_depend_on_ranks" cmp "$tmp/text" "$tmp/expected"
done

# into a file
short=("$m" --prompt "ab" --greedy --max-new-tokens 6 --threads 1)
generate 0 "${short[@]}"
cp "$tmp/text" "$tmp/expected"
run 2 ./dtrain-generate "${short[@]}" -o "$tmp/written"
expect the_text_goes_into_a_file cmp "$tmp/written" "$tmp/expected"
expect_text nothing_else_is_printed '^dtrain-generate: .* tokens/s'
ends_saying an_output_that_exists_is_kept 64 'written: exists; .*--force' run 2 ./dtrain-generate "${short[@]}" -o "$tmp/written"
DTRAIN_FAULT=generate.output:0:1:error ends a_failure_on_one_rank_ends_all 70 run 2 ./dtrain-generate "${short[@]}" -o "$tmp/failed"
expect no_half_file_is_left test ! -e "$tmp/failed" -a ! -e "$tmp/failed.part"
run 0 bash -c 'ulimit -f 1; exec ./dtrain-generate "$@"' - "$m" --prompt "ab" --num-samples 500 --max-new-tokens 6 --threads 1 --jsonl -o "$tmp/large"
expect_exit what_cannot_be_written_ends_the_run 74
expect_text and_the_file_is_named 'large.part: cannot write: File too large'
: >"$tmp/a-file"
ends an_output_whose_folder_cannot_be_made 74 run 2 ./dtrain-generate "${short[@]}" -o "$tmp/a-file/text"
ends the_prompts_are_never_the_output 64 run 0 ./dtrain-generate "$m" --prompts "$tmp/prompts.jsonl" -o "$tmp/prompts.jsonl" --force

# a stop text, which is not printed: the first letter or digit of some answer
generate 0 "$m" --prompt "ab" --num-samples 8 --max-new-tokens 30 --jsonl --threads 1
read -r sample stop <<<"$(awk '{ split($0, a, /"ids":\[|\],"n_prompt/); n = split(a[2], id, ",");
    for (i = 2; i <= n; i++) if (id[i] >= 97 && id[i] <= 122) { printf "%d %c\n", NR, id[i]; exit } }' "$tmp/text")"
generate 0 "$m" --prompt "ab" --num-samples 8 --max-new-tokens 30 --jsonl --threads 1 --stop nowhere --stop "$stop"
expect a_stop_text_ends_the_answer eval 'sed -n "${sample}p" "$tmp/text" | grep -q "\"finish\":\"stop\""'
expect a_stop_text_is_left_out eval '! sed "s/.*\"text\":\(.*\),\"ids\".*/\1/; s/\\\\u[0-9A-F]*//g; s/\\\\[a-z]//g" "$tmp/text" | grep -q "$stop"'
generate 0 "$m" --prompt "97 98" --greedy --max-new-tokens 6 --tokenizer ids --threads 1
cp "$tmp/text" "$tmp/expected"
generate 2 "$m" --prompt "97 98" --greedy --max-new-tokens 6 --tokenizer ids --stream --zero-stage 3 --threads 1
expect a_shared_model_streams cmp "$tmp/text" "$tmp/expected"

# a conversation
printf 'hello\n\nand you\n' | timeout 240 ./dtrain-generate "$m" --chat --system "be brief" --max-new-tokens 5 --threads 1 >"$tmp/talk" 2>"$out"
expect_text a_conversation_keeps_what_was_said ' [1-9][0-9]* reused'
expect a_line_an_answer test "$(wc -l <"$tmp/talk")" -ge 2
printf 'hello\n\nand you\n' | timeout 240 $MPIRUN -np 2 ./dtrain-generate "$m" --chat --system "be brief" --max-new-tokens 5 --threads 1 --zero-stage 3 -o "$tmp/text" --force >"$out" 2>&1
expect the_same_conversation_on_2_ranks cmp "$tmp/text" "$tmp/talk"
printf 'hello\nand you\nand I\n' | timeout 240 ./dtrain-generate "$m" --chat --context 40 --max-new-tokens 5 --threads 1 >"$tmp/text" 2>"$out"
expect_text a_long_conversation_forgets_its_beginning 'its oldest messages are dropped'
printf 'hello\n%200s\nhello\n' long | timeout 240 ./dtrain-generate "$m" --chat --context 60 --max-new-tokens 5 --threads 1 >"$tmp/text" 2>"$out"
expect_text "a message that is too long is dropped" 'the message is dropped: with this message .* raise --context'
expect_text "the conversation continues, with what was said before" ' [1-9][0-9]* reused'
expect "the other messages are answered" test "$(grep -c . "$tmp/text")" -ge 2
ends_saying "a system message that is too long is named" 65 'with this message and the system message .* raise --context' \
    run 0 ./dtrain-generate "$m" --chat --prompt hello --system "$(printf %200s long)" --context 60 --max-new-tokens 5 --threads 1
printf '[{"name": "f", "description": "%200s"}]' long >"$tmp/tools.json"
ends_saying "tools that are too long are named" 65 'with this message and the tools .* raise --context' \
    run 0 ./dtrain-generate "$m" --chat --prompt hello --tools "$tmp/tools.json" --chat-template plain --context 60 --max-new-tokens 5 --threads 1
ends_saying "without another message it is an error" 65 'with this message .* raise --context' \
    run 0 ./dtrain-generate "$m" --chat --prompt "$(printf %200s long)" --context 60 --max-new-tokens 5 --threads 1

mkfifo "$tmp/line"
./dtrain-generate "$m" --chat --max-new-tokens 5 --threads 1 <"$tmp/line" >"$tmp/text" 2>"$out" &
exec 7>"$tmp/line"
echo hello >&7
wait_for test -s "$tmp/text" # the first answer exists: the program waits for a line
kill -INT $!
sleep 0.2
echo again >&7
exec 7>&-
wait $!
code=$?
expect_exit an_interrupt_between_answers_ends_nothing 0
expect_text and_the_next_line_is_answered '^dtrain-generate: ([6-9]|10) new tokens'

# a Hugging Face directory, and what its generation_config.json says
run 0 ./dtrain-convert "$m" "$tmp/hf" --dtype fp32
ends a_model_directory_generates 0 generate 0 "${many[@]:1}" --batch-size 3 "$tmp/hf"
generate 0 "${many[@]}"
cp "$tmp/text" "$tmp/expected"
generate 2 "${many[@]:1}" "$tmp/hf" --zero-stage 3
expect a_model_directory_gives_the_same_text cmp "$tmp/text" "$tmp/expected"
echo '{"do_sample": false, "max_new_tokens": 6, "top_k": 3}' >"$tmp/hf/generation_config.json"
generate 0 "$tmp/hf" --prompt ab --threads 1 --verbose
expect the_models_defaults_hold cmp "$tmp/text" "$tmp/plain"
expect_text settings_are_told 'at most 6 new tokens, repetition penalty 1, greedy'
generate 0 "$tmp/hf" --prompt ab --threads 1 --verbose --temperature 2 --max-new-tokens 4
expect_text the_command_line_wins 'at most 4 new tokens, repetition penalty 1, temperature 2, top-k 3,'

# a file without do_sample is greedy; settings that are not known are named once, and those that change nothing are not
echo '{"max_new_tokens": 6, "temperature": 2, "typical_p": 0.5, "bad_words_ids": [[3]], "forced_eos_token_id": null, "num_beam_groups": 1, "use_cache": false}' >"$tmp/hf/generation_config.json"
generate 0 "$tmp/hf" --prompt ab --threads 1
expect "a file without do_sample is greedy" cmp "$tmp/text" "$tmp/plain"
expect_text "an unknown setting is named" 'settings of generation_config.json and ignores them: bad_words_ids$'
prints "with sampling those of sampling, too" 'and ignores them: bad_words_ids, typical_p$' generate 0 "$tmp/hf" --prompt ab --threads 1 --temperature 1
new_ids() { sed 's/.*"ids":\[\([^]]*\)\].*/\1/' "$tmp/text"; }
generate 0 "$m" --prompt ab --threads 1 --greedy --max-new-tokens 6 --jsonl
first=$(new_ids | cut -d, -f1)
stop=$(python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["text"][1:3])' <"$tmp/text")
generate 0 "$m" --prompt ab --threads 1 --greedy --max-new-tokens 6 --jsonl --suppress-tokens "$first"
expect "a suppressed token does not come" sh -c "! grep -q '\"ids\":\[[^]]*\b$first\b' '$tmp/text'"
generate 0 "$m" --prompt ab --threads 1 --greedy --max-new-tokens 30 --jsonl --no-repeat-ngram-size 1
expect "no token comes twice" test "$(new_ids | tr , '\n' | sort | uniq -d | wc -l)" = 0
generate 0 "$m" --prompt ab --threads 1 --greedy --max-new-tokens 6 --jsonl --stop-strings "$stop"
expect "a stop text ends it" grep -q '"finish":"stop"' "$tmp/text"
ends "beams and a stop text" 0 generate 0 "$m" --prompt ab --threads 1 --num-beams 3 --max-new-tokens 12 --jsonl --stop-strings "$stop"
echo '{"max_length": 5}' >"$tmp/hf/generation_config.json"
generate 0 "$tmp/hf" --prompt ab --threads 1 --jsonl
expect "max_length counts the prompt" grep -qE '"n_new_tokens":[123],' "$tmp/text"
echo '{"messages": [{"role": "user", "content": "hi"}]}' >"$tmp/messages.jsonl"
generate 0 "$m" --prompts "$tmp/messages.jsonl" --chat-template chatml --max-new-tokens 2 --threads 1 --jsonl
expect "messages come back as text, too" grep -q '"prompt":"<|im_start|>user\\nhi<|im_end|>' "$tmp/text"
echo '[{"name": "f"}]' >"$tmp/tools.json"
generate 0 "$m" --prompts "$tmp/messages.jsonl" --tools "$tmp/tools.json" --chat-template plain --max-new-tokens 2 --threads 1 --jsonl
expect "tools of a file are part of the prompt" grep -qF '"prompt":"[{\"name\": \"f\"}]\n\nUser: hi' "$tmp/text"
ends "tools in a conversation" 0 run 2 ./dtrain-generate "$m" --chat --prompt hi --tools "$tmp/tools.json" --chat-template plain --max-new-tokens 2 --threads 1
for talk in "--system s" "--tools $tmp/tools.json" "--chat-template plain" --no-think; do
    ends_saying "${talk%% *} without a conversation" 64 '^dtrain-generate: error: --system, .*: expected --chat' \
        run 0 ./dtrain-generate "$m" --prompt hi $talk --threads 1
done
echo '[1]' >"$tmp/tools.json"
ends_saying "tools that are none" 65 'tools.json: tools: expected a list of' run 0 ./dtrain-generate "$m" --chat --prompt hi --tools "$tmp/tools.json" --threads 1

full_only

# one rank fails, or hangs: no one waits
for case in "error 0 0" "error 1 3" "exit 1 3"; do
    read -r kind rank stage <<<"$case"
    export DTRAIN_FAULT=generate.pass:$rank:3:$kind
    generate 2 "${many[@]}" --zero-stage "$stage"
    unset DTRAIN_FAULT
    expect "all_ranks_end_when_rank_${rank}_has_an_${kind}_at_stage_$stage" test "$code" -ne 0 -a "$code" -ne 124
    [ "$kind" = exit ] || expect_exit "exit_code_after_${kind}_of_rank_$rank" 70
done
for stage in 0 3; do
    export DTRAIN_FAULT=generate.pass:1:3:hang
    generate 2 "${many[@]}" --zero-stage "$stage" --timeout 1
    unset DTRAIN_FAULT
    expect_exit "a_rank_that_hangs_at_stage_${stage}_is_given_up" 76
    expect_text "and_says_so_at_stage_$stage" 'no progress for [0-9]+ s .*phase'
done
export DTRAIN_FAULT=comm.devices:1:1:hang
generate 2 "${many[@]}" --timeout 1
unset DTRAIN_FAULT
expect_exit a_rank_that_hangs_before_there_is_a_model_is_given_up 76

ends help 0 run 0 ./dtrain-generate --help
ends no_model_is_a_usage_error 64 run 0 ./dtrain-generate
ends_saying value_out_of_range_is_a_usage_error 64 'top_p: expected a number above 0 and at most 1, found 1.5' run 2 ./dtrain-generate "$m" --top-p 1.5
expect one_message_for_all_ranks test "$(grep -c 'top_p' "$out")" = 1
ends two_sources_of_prompts_are_a_usage_error 64 run 0 ./dtrain-generate "$m" --prompt a --prompts b
ends streaming_on_two_ranks_is_a_usage_error 64 run 2 ./dtrain-generate "$m" --stream
ends beams_do_not_draw 64 run 0 ./dtrain-generate "$m" --num-beams 2 --top-k 3
ends more_sequences_than_beams_is_a_usage_error 64 run 0 ./dtrain-generate "$m" --num-beams 2 --num-return 3
ends a_conversation_needs_text 64 run 0 ./dtrain-generate "$m" --chat --tokenizer ids
ends an_unknown_template_is_a_usage_error 64 run 0 ./dtrain-generate "$m" --chat --chat-template nonesuch
ends no_checkpoint_is_a_data_error 65 run 0 ./dtrain-generate "$tmp"
ends_saying missing_prompts_are_a_data_error 65 'nowhere.jsonl' run 2 ./dtrain-generate "$m" --prompts "$tmp/nowhere.jsonl"
# dynamic rotary embedding continues beyond max_position_embeddings (8), up to its factor (2) times that, whatever other options are set
printf '{"ids":[3,4,5]}\n' >"$tmp/short.jsonl"
printf '{"ids":[3,4,5]}\n{"ids":[9,8,7,6,5,4,3,2,1,11]}\n' >"$tmp/long.jsonl"
generate 0 tests/data/hf/llama_dynamic --tokenizer ids --greedy --prompts "$tmp/short.jsonl" --threads 1
expect the_dynamic_rule_continues_as_transformers_does test "$(cat "$tmp/text")" = "3 4 5 58 44 13 12 47 49 44 37 2" # generate(..., do_sample=False)
cp "$tmp/text" "$tmp/short"
generate 2 tests/data/hf/llama_dynamic --tokenizer ids --greedy --prompts "$tmp/long.jsonl" --threads 1
expect a_longer_neighbour_changes_nothing cmp <(sed -n 2p "$tmp/text") "$tmp/short"
expect a_prompt_beyond_the_trained_length_is_continued test "$(sed -n 5p "$tmp/text" | wc -w)" -gt 10
run 0 ./dtrain-generate tests/data/hf/llama_dynamic --tokenizer ids --prompt "1 2 3 4 5 6 7 8 9 8 7 6 5 4 3 2"
expect_text a_stretched_length_is_a_limit_too 'has 16 tokens, but the model accepts at most 16'
for line in '{"messages":[{"role":"user"}]}' '{"messages":[{"role":"alien","content":"x"}]}'; do
    printf '{"prompt":"a"}\n%s\n' "$line" >"$tmp/messages.jsonl"
    ends "bad_message_is_a_data_error: $line" 65 run 2 ./dtrain-generate "$m" --prompts "$tmp/messages.jsonl" --threads 1
    expect_text "bad_message_is_named_with_its_line: $line" 'messages.jsonl:2: messages: message 0: '
done
ends prompt_beyond_the_model_is_a_data_error 65 run 0 ./dtrain-generate "$m" --prompt "$(printf 'a%.0s' {1..64})"
expect_text prompt_beyond_the_model_says_both_lengths 'has 64 tokens, but the model accepts at most 64'
cp "$m/checkpoints/step-00000007.h5" "$tmp/short.h5" && truncate -s -100 "$tmp/short.h5"
ends_saying truncated_checkpoint_is_a_data_error 65 'short.h5' run 2 ./dtrain-generate "$tmp/short.h5" --prompt a --threads 1
# options that do nothing, and a file in a folder that is not there yet
ends "--greedy with options of sampling" 0 run 0 ./dtrain-generate "$m" --prompt a --greedy --top-p 0.5 --temperature 0.7 --max-new-tokens 2 --threads 1
expect_text "names those that do nothing" 'warning: --greedy always takes .*: --temperature, --top-p$'
run 0 ./dtrain-generate "$m" --prompt a --temperature 0 --top-k 5 --max-new-tokens 2 --threads 1
expect_text "--temperature 0 warns of unused options" 'warning: --temperature 0 always takes .*: --top-k$'
run 0 ./dtrain-generate "$m" --prompt a --greedy --max-new-tokens 2 --threads 1 -o "$tmp/new/folder/text"
expect "the folder of -o is made" test -s "$tmp/new/folder/text"
expect "no warning about sampling options" sh -c "! grep 'have no effect' '$out'"
e2e_done
