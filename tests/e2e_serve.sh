#!/bin/bash
# e2e_serve.sh - dtrain-generate --serve: answers are those of dtrain-generate, streamed or not, on any number of ranks; errors, limits, keys,
# clients that leave, a rank that fails, and the end.
# QUICK:
# NEEDS: libmicrohttpd
. "$(dirname "$0")/e2e.sh"
export OMP_NUM_THREADS=1
command -v curl >/dev/null || { skip "a server" "no curl"; e2e_done; exit; }
m=$tmp/run
"${BUILD:-build/release}/tests/test_generate" --make-checkpoint "$m" >"$out" 2>&1
expect a_small_checkpoint_is_made test -s "$m/checkpoints/step-00000007.h5"

start() { # NP ARGUMENTS...: sets $server and $url
    local np=$1
    shift
    own_mpi_files
    : >"$tmp/served"
    if [ "$np" -gt 0 ]; then set -- $MPIRUN -np "$np" ./dtrain-generate "$@"; else set -- ./dtrain-generate "$@"; fi
    "$@" --serve 0 --threads 1 >"$tmp/served" 2>"$tmp/messages" &
    server=$!
    WAIT_TIMEOUT=60 wait_for grep -q listening "$tmp/served"
    url=$(sed -n 's/^listening on //p' "$tmp/served")
}
stop() { # SIGNAL: sets $code
    kill "-$1" $server
    wait $server
    code=$?
    cp "$tmp/messages" "$out"
}
ask() { # PATH BODY [CURL-ARGUMENTS]: the answer in $out, its status in $status
    local path=$1 body=$2
    shift 2
    status=$(printf %s "$body" | curl -s -m 60 -o "$out" -w '%{http_code}' "$@" --data-binary @- "$url$path")
}
field() { grep -oE "\"$1\":(\"([^\"\\]|\\\\.)*\"|\[[^]]*\])" "$2" | head -1 | cut -d: -f2-; }
answers() { # NAME STATUS PATH BODY REGEX [CURL-ARGUMENTS]
    local name=$1 want=$2 path=$3 body=$4 regex=$5
    shift 5
    ask "$path" "$body" "$@"
    if [ "$status" = "$want" ]; then expect_text "$name" "$regex"; else not_ok "$name" "status $status, expected $want"; fi
}

start 0 "$m/"
./dtrain-generate "$m" --prompt "In the beginning" --greedy --max-new-tokens 12 --jsonl --logprobs --threads 1 >"$tmp/expected" 2>/dev/null
ask /v1/completions '{"prompt":"In the beginning","max_tokens":12,"temperature":0,"logprobs":1}'
is the_text_is_that_of_dtrain_generate "$(field text "$out")" "$(field text "$tmp/expected")"
is so_are_all_bits_of_the_log_probabilities "$(field token_logprobs "$out")" "$(field logprobs "$tmp/expected")"
./dtrain-generate "$m" --prompt "In the beginning" --seed 5 --num-samples 2 --temperature 0.8 --max-new-tokens 9 --jsonl --threads 1 >"$tmp/expected" 2>/dev/null
ask /v1/completions '{"prompt":"In the beginning","max_tokens":9,"temperature":0.8,"seed":5,"n":2}'
is completions_with_a_seed_are_those_of_dtrain_generate "$(grep -o '"text":"[^"]*"' "$out")" "$(grep -o '"text":"[^"]*"' "$tmp/expected")"
ask /v1/completions '{"prompt":"In the beginning","max_tokens":12,"temperature":0,"stream":true}' -N
is a_stream_ends_as_it_should "$(grep . "$out" | tail -1)" "data: [DONE]"
expect a_stream_has_several_parts test "$(grep -c '^data: {' "$out")" -gt 2
answers a_conversation 200 /v1/chat/completions '{"messages":[{"role":"user","content":"hi"}],"max_tokens":3}' '"role":"assistant","content":"'
answers log_probabilities_of_a_prompt 200 /v1/completions '{"prompt":"abc","max_tokens":0,"echo":true,"logprobs":1}' '"text":"abc","logprobs":\{"tokens":\["a","b","c"\],"token_logprobs":\[null,-[0-9.]*,-[0-9.]*\]'
answers an_unknown_field_is_named 400 /v1/completions '{"prompt":"a","x":1}' "unknown field 'x'"
answers what_is_no_json 400 /v1/completions '{"prompt"' '"type":"invalid_request_error"'
answers nothing 400 /v1/completions '' 'expected a JSON object, found nothing'
answers the_name_in_a_path 200 /v1/completions '{"prompt":"a","max_tokens":1,"model":"run"}' '"text"'
answers an_unknown_path 404 /v1/embeddings '{}' '"error"'
stop TERM
expect_exit a_signal_ends_the_server 0
full_only

# the same answers on every number of ranks and at every stage, with any other sequences in the batch
body='{"prompt":["In the beginning","ab",[65,66,67]],"max_tokens":9,"temperature":0.8,"top_k":40,"n":2,"seed":5,"logprobs":2,"echo":true}'
for case in "0 16 0" "1 2 3" "2 1 0" "2 3 3" "3 2 3"; do
    read -r np batch stage <<<"$case"
    start "$np" "$m" --batch-size "$batch" --zero-stage "$stage"
    ask /v1/completions "$body"
    sed 's/"id":"[^"]*","object"/"object"/; s/"created":[0-9]*//' "$out" >"$tmp/answer"
    [ -s "$tmp/first" ] || cp "$tmp/answer" "$tmp/first"
    expect "same_answer_on_${np}_ranks_batch_${batch}_stage_$stage" cmp "$tmp/answer" "$tmp/first"
    stop USR1 # mpirun forwards it
    expect_exit "${np}_ranks_end" 0
done
DTRAIN_FAULT=generate.pass:1:4:error start 2 "$m" --zero-stage 3
ask /v1/completions "$body"
wait $server
code=$?
expect_exit a_rank_that_fails_ends_the_job 70
DTRAIN_FAULT=generate.pass:1:4:error start 2 "$m"
ask /v1/completions "$body"
wait $server
code=$?
expect_exit so_does_a_replica 70

# images, with a model whose images are grids
images=tests/data/vision/grids/qwen2_5_vl
file=$PWD/tests/data/image/files/depth8_type2.png
printf '{"messages":[{"role":"user","content":[{"type":"image","path":"%s"},{"type":"text","text":"what?"}]}]}\n' "$file" >"$tmp/image.jsonl"
./dtrain-generate $images --prompts "$tmp/image.jsonl" --greedy --max-new-tokens 6 --jsonl --threads 1 >"$tmp/expected" 2>"$out"
start 2 $images
ask /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,$(base64 -w0 "$file")\"}},{\"type\":\"text\",\"text\":\"what?\"}]}],\"temperature\":0,\"max_tokens\":6}"
is the_answer_about_an_image_is_that_of_dtrain_generate "$(field content "$out")" "$(field text "$tmp/expected")"
answers a_file_of_this_host 400 /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"/etc/passwd"}}]}]}' 'with a data: URL'
answers an_image_that_is_none 400 /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}' 'cut short'
stop USR1
expect_exit a_server_with_images_ends 0

# keys and limits
printf 'first\r\n \nsecond key \n\tthird' >"$tmp/keys"
chmod 600 "$tmp/keys"
start 0 "$m" --api-key-file "$tmp/keys" --max-body 1K --max-queue 2 --batch-size 1 --max-new-tokens 20
answers no_key 401 /v1/completions '{"prompt":"a"}' invalid_api_key
answers another_key 401 /v1/completions '{"prompt":"a"}' invalid_api_key -H 'Authorization: Bearer firs'
for none in '' ' '; do answers "an_empty_key'$none'" 401 /v1/completions '{"prompt":"a"}' invalid_api_key -H "Authorization: Bearer $none"; done
for key in first 'second key' third; do answers "a_key,_$key" 200 /v1/completions '{"prompt":"a"}' '"object":"text_completion"' -H "Authorization: Bearer $key"; done
key='Authorization: Bearer first'
is health_needs_no_key "$(curl -s "$url/health")" '{"status":"ok"}'
is metrics_need_one "$(curl -s -o "$out" -w '%{http_code}' "$url/metrics")" 401
curl -s -H "$key" "$url/metrics" >"$out"
expect_text metrics_have_counts '^dtrain_serve_answers_total\{status="4xx"\} 5$'
answers a_large_body 413 /v1/completions "{\"prompt\":\"$(printf '%02000d' 0)\"}" 'too large' -H "$key"
answers a_large_body_in_chunks 413 /v1/completions "{\"prompt\":\"$(printf '%02000d' 0)\"}" 'too large' -H "$key" -H 'Transfer-Encoding: chunked'
answers too_many_sequences 400 /v1/completions '{"prompt":"a","n":9}' 'at most 3' -H "$key"
for i in 1 2 3 4 5 6 7 8; do curl -s -o /dev/null -w '%{http_code}\n' -H "$key" -d '{"prompt":"a","n":3,"max_tokens":20}' "$url/v1/completions" & done >"$tmp/codes"
wait $(jobs -p | grep -vx $server)
expect many_requests_are_answered_or_told_to_come_later grep -qx 200 "$tmp/codes"
expect with_no_other_status test "$(grep -cxE '200|429' "$tmp/codes")" = 8
answers too_many_tokens 400 /v1/completions '{"prompt":"a","max_tokens":21}' 'at most 20' -H "$key"
answers a_long_prompt 400 /v1/completions "{\"prompt\":\"$(printf '%070d' 0)\"}" '70 tokens' -H "$key"
answers another_model 404 /v1/completions '{"prompt":"a","model":"gpt"}' model_not_found -H "$key"
answers an_image 400 /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"/etc/passwd"}}]}]}' 'only texts' -H "$key"
is another_method "$(curl -s -o "$out" -w '%{http_code}' -H "$key" "$url/v1/completions")" 405
stop INT
expect_exit an_interrupt_ends_the_server 0
start 0 "$m" --request-timeout 0.001
answers the_time_limit 504 /v1/completions '{"prompt":"a","max_tokens":60,"n":60}' timeout_error
stop TERM
expect_exit the_server_lives 0
ends_saying an_address_of_another_host 64 'cannot listen on' run 0 ./dtrain-generate "$m" --serve 192.0.2.1:80
ends_saying a_prompt_and_a_server 64 'requests have the prompts' run 0 ./dtrain-generate "$m" --serve 0 --prompt x

# broken, slow and many clients
command -v python3 >/dev/null || { skip "broken clients" "no python3"; e2e_done; exit; }
start 2 "$m" --batch-size 2
run 0 python3 tests/serve_clients.py "$url"
expect_exit broken_slow_and_many_clients 0
stop USR1
expect_exit the_server_has_survived_them 0
e2e_done
