#!/bin/bash
# bench_beams.sh - beam search over a catalogue's items, as task eval and dtrain-generate --catalogue run it. Measures prompts per second in
# comparison with transformers' generate with prefix_allowed_tokens_fn, and their dependence on the catalogue size. A random model; the
# fastest of ROUNDS rounds, in which the two alternate. The machine should be idle.
#
#     ours, theirs   prompts/s of the searches only, without start-up (transformers: after a warm-up batch)
#     same           share of dtrain's items that transformers found, too; below 0.99 the script fails (what rounding decides is less)
#     none           beam search without a catalogue, of as many tokens
#     start-up       the program's whole time without the searches: mostly the model and the catalogue's tokens
#
# A prompt is a history of HISTORY items in words. An item is three level tokens of 256 each. PROMPTS, BATCH (prompts at a time), BEAMS="10 50",
# ITEMS="1000 10000" compared with transformers, SIZES="1000 ... 1000000" of dtrain only, with the last of BEAMS; MODEL="KEYS of [model]", DTYPE, THREADS.
# PYTHON=... names a Python with torch and transformers (tests/peer_beams.py).
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
unset OMP_NUM_THREADS
rounds=${ROUNDS:-2} threads=${THREADS:-2} prompts=${PROMPTS:-8} batch=${BATCH:-4} history=${HISTORY:-10} dtype=${DTYPE:-fp32}
beams=${BEAMS:-10 50} items=${ITEMS:-1000 10000} sizes=${SIZES:-1000 10000 100000 1000000}
read -ra keys <<<"${MODEL:-model_type=qwen2 hidden_size=768 intermediate_size=3072 num_hidden_layers=12 num_attention_heads=12 num_key_value_heads=2
    vocab_size=32768 max_position_embeddings=2048 tie_word_embeddings=true}" -d ''
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
PYTHON=${PYTHON-python3}
"$PYTHON" -c 'import torch, transformers' 2>/dev/null || PYTHON=

# Item i has number i * (an odd number) modulo 2^24, whose bytes are its codes: all differ.
sids() { # FIRST N: lines of SIDs
    awk -v from="$1" -v n="$2" 'BEGIN { for (i = from; i < from + n; i++) { x = (i * 10368889 + 5351) % 16777216
        printf "<a_%d><b_%d><c_%d>\n", int(x / 65536), int(x / 256) % 256, x % 256 } }'
}
catalogue() { [ -s "$tmp/$1.txt" ] || sids 0 "$1" | awk '{ printf "%s\tTitle\t%d\n", $0, NR }' >"$tmp/$1.txt"; } # N
make_model() {
    head -c 20000 /dev/urandom >"$tmp/noise"
    for level in a b c; do seq -f "<${level}_%.0f>" 0 255; done >"$tmp/tokens"
    ./dtrain-data -q --format text -o "$tmp/noise.h5" "$tmp/noise" &&
        ./dtrain /dev/stdin run.output_dir="$tmp/made" run.device=cpu run.max_steps=1 data.train="$tmp/noise.h5" data.seq_len=16 batch.micro_batch_size=1 \
            optimizer.type=sgd optimizer.momentum=0 checkpoint.export=hf "${keys[@]/#/model.}" </dev/null &&
        ./dtrain-convert --add-tokens "$tmp/tokens" --noise 0.02 "$tmp/made/hf" "$tmp/model" || return 1
    rm -rf "$tmp/made"
    sids 0 $((prompts * history)) | awk -v h="$history" '{ list = list (NR % h == 1 ? "" : ", ") $0 }
        NR % h == 0 { printf "{\"prompt\": \"The user has bought %s in this order.\\n\\n### Response:\\n\"}\n", list; list = "" }' >"$tmp/prompts.jsonl"
}

ours() { # BEAMS OPTIONS...: seconds of the searches, and of all else
    local begin=$EPOCHREALTIME n=$1
    shift
    ./dtrain-generate "$tmp/model" --prompts "$tmp/prompts.jsonl" --device cpu --dtype "$dtype" --threads "$threads" --num-beams "$n" --num-return "$n" \
        --batch-size $((batch * n)) --length-penalty 0 --jsonl -o "$tmp/found.jsonl" --force "$@" 2>"$tmp/log" || { cat "$tmp/log" >&2; return 1; }
    sed -n 's/.* new tokens in \([0-9.]*\) s:.*/\1/p' "$tmp/log" | awk -v a="$begin" -v b="$EPOCHREALTIME" '{ print $1, b - a - $1 }'
}
theirs() { # BEAMS N: seconds of the searches, and the share of ours that was found
    "$PYTHON" tests/peer_beams.py "$tmp/model" "$tmp/$2.txt" "$tmp/prompts.jsonl" "$tmp/found.jsonl" --beams "$1" --batch "$batch" --threads "$threads" \
        --dtype "$dtype" 2>"$tmp/log" || { cat "$tmp/log" >&2; return 1; }
}
faster() { awk -v a="$1" -v b="$2" 'BEGIN { split(a, x, " "); split(b, y, " "); print (a == "" || y[1] < x[1]) ? b : a }'; }
least() { awk -v a="$1" -v b="$2" 'BEGIN { print (a == "" || b < a) ? b : a }'; }
fastest() { # OPTIONS...: of dtrain alone, with the last of BEAMS
    local best='' one
    for _ in $(seq "$rounds"); do
        one=$(ours "${beams##* }" "$@") || return 1
        best=$(faster "$best" "$one")
    done
    echo "$best"
}

make_model >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; exit 1; }
status=0
echo "${keys[*]}"
echo "$dtype, $prompts prompts of $history items, $batch at a time, $threads threads, fastest of $rounds rounds; load before: $(cut -d' ' -f1 /proc/loadavg)"
if [ -n "$PYTHON" ]; then
    printf '%6s %8s %10s %10s %8s %8s\n' beams items ours theirs ratio same
    for n in $items; do
        catalogue "$n"
        for b in $beams; do
            a='' p='' same=''
            for _ in $(seq "$rounds"); do
                mine=$(ours "$b" --catalogue "$tmp/$n.txt") && other=$(theirs "$b" "$n") || exit 1
                a=$(faster "$a" "$mine") p=$(faster "$p" "$other") same=$(least "$same" "${other##* }")
            done
            awk -v b="$b" -v n="$n" -v P="$prompts" -v a="${a%% *}" -v p="${p%% *}" -v same="$same" 'BEGIN {
                printf "%6d %8d %10.3f %10.3f %8.2f %8.4f\n", b, n, P / a, P / p, p / a, same; exit !(same >= 0.99) }' || status=1
        done
    done
    echo
fi
first=''
printf '%6s %8s %10s %12s %12s %10s\n' beams items prompts/s 'of the first' 'of none' start-up,s
none=$(fastest --max-new-tokens 5) || exit 1
for n in $sizes; do
    catalogue "$n"
    a=$(fastest --catalogue "$tmp/$n.txt") || exit 1
    first=${first:-${a%% *}}
    awk -v b="${beams##* }" -v n="$n" -v P="$prompts" -v a="$a" -v first="$first" -v none="${none%% *}" 'BEGIN { split(a, x, " ")
        printf "%6d %8d %10.3f %12.2f %12.2f %10.2f\n", b, n, P / x[1], first / x[1], none / x[1], x[2] }'
done
exit $status
