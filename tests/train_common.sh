# train_common.sh - a tiny model and its data for the e2e tests of dtrain: `. "$(dirname "$0")/train_common.sh"` behind e2e.sh.
#
#   make_data              $tmp/train.h5, $tmp/valid.h5 (bytes of generated English) and $tmp/tiny.ini
#   train NP DIR ARGS...   runs ./dtrain on tiny.ini with output in $tmp/DIR
#   losses DIR             "step loss" of every training line of DIR's metrics
#   close_losses A B TOL   every step of A is in B and the losses agree to relative TOL
#   newest DIR             path of the newest checkpoint

make_data() {
    awk 'BEGIN { srand(7); n = split("the of and a to in he was that it his her with as had for she not at but be on they have him which said from all this", w, " ");
                 for (d = 0; d < 60; d++) { s = ""; for (i = 0; i < 40; i++) s = s w[int(rand() * n) + 1] " "; print s "." } }' >"$tmp/text.txt"
    ./dtrain-data --documents lines -o "$tmp/train.h5" "$tmp/text.txt" >"$tmp/.data" 2>&1 || { cat "$tmp/.data"; return 1; }
    head -12 "$tmp/text.txt" >"$tmp/valid.txt"
    ./dtrain-data --documents lines -o "$tmp/valid.h5" "$tmp/valid.txt" >"$tmp/.data" 2>&1 || { cat "$tmp/.data"; return 1; }
    cat >"$tmp/tiny.ini" <<INI
[run]
task = pretrain
max_steps = 6
threads = 1
seed = 7
[model]
model_type = llama
hidden_size = 32
intermediate_size = 88
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 257
max_position_embeddings = 64
[data]
train = $tmp/train.h5
seq_len = 32
[batch]
train_batch_size = 24
micro_batch_size = 1
[optimizer]
lr = 1e-2
weight_decay = 0.1
[scheduler]
type = constant
[checkpoint]
save_steps = 0
[log]
report_to = jsonl
INI
}

train() {
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$dir" "$@"
}

losses() { sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([-+0-9.eE]*\).*/\1 \2/p' "$tmp/$1/metrics.jsonl" | grep -v validation; }

close_losses() {
    losses "$1" >"$tmp/.a"
    losses "$2" >"$tmp/.b"
    [ -s "$tmp/.a" ] && awk -v tol="$3" 'NR == FNR { want[$1] = $2; n++; next }
        { if (!($1 in want)) bad = 1; d = $2 - want[$1]; if (d < 0) d = -d; if (d > tol * want[$1]) { print "step", $1, $2, "and", want[$1]; bad = 1 } m++ }
        END { exit bad || n != m }' "$tmp/.a" "$tmp/.b"
}

newest() { ls "$tmp/$1"/checkpoints/step-*.h5 | tail -1; }
same_model() { h5diff "$1" "$2" /model /model && h5diff "$1" "$2" /optimizer /optimizer; }
