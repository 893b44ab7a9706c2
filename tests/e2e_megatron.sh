#!/bin/bash
# e2e_megatron.sh - Megatron-LM's .bin and .idx: a run reads them as it reads an HDF5 file of the same documents; dtrain-data shows and converts them.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
files=tests/data/megatron
make_data
data --documents lines -o "$tmp/lines.h5" $files/lines.txt
for type in int16 uint16 int64; do
    data -o "$tmp/$type.h5" $files/$type.bin
    expect "$type: the documents of the text" cmp "$tmp/lines.h5" "$tmp/$type.h5"
done
run 0 ./dtrain-data info $files/uint16.bin
expect_exit "info" 0
expect_text "says the type" '^tokens +1110 \(uint16\)$'
expect_text "and the largest id" '^vocab_size +not stored; the largest token id is 256$'
expect_text "and the documents" '^documents +40$'
run 0 ./dtrain-data show --tokenizer bytes $files/int32.idx 3
expect_text "a document of several sequences is shown as one" '^line3hasmanymanymanywords'
run_on() { # NP DIR FILES ARGS...
    train "$1" "$2" data.train="$3" batch.train_batch_size=6 batch.micro_batch_size=1 run.max_steps=4 run.reproducible=true "${@:4}"
}
for packing in wrapped bfd; do
    run_on 1 h5 "$tmp/lines.h5" data.packing=$packing data.seq_len=32
    run_on 2 megatron $files/uint16.bin data.packing=$packing data.seq_len=32 zero.stage=2
    expect "$packing: the same bits as from an HDF5 file" same_model "$(newest h5)" "$(newest megatron)"
    rm -r "$tmp/h5" "$tmp/megatron"
done
run_on 1 mixed-h5 "$tmp/lines.h5:0.7, $tmp/train.h5:0.3"
run_on 2 mixed "$files/int64.idx:0.7, $tmp/train.h5:0.3" data.verify=true
expect "several files with weights: the same bits" same_model "$(newest mixed-h5)" "$(newest mixed)"
expect_text "without checksums, unless they are verified" 'done: 4 steps'
train 1 glob --check data.train="$files/uint16.*"
expect_text "a glob of both files names the dataset once" '[,:] 1110 tokens,'
run_on 1 small $files/uint16.bin model.vocab_size=256
expect_exit "ids beyond the model's vocabulary" 65
expect_text "name file and token" 'uint16.bin: tokens\[[0-9]+\] = 256, expected a token id below vocab_size = 256'
cp $files/uint16.bin $files/uint16.idx "$tmp"
cp "$tmp/uint16.bin" "$tmp/length.bin"
{ head -c 37 "$tmp/uint16.idx" && printf '\377' && tail -c +39 "$tmp/uint16.idx"; } >"$tmp/length.idx" # of sequence 0, negative
./dtrain-data -o "$tmp/length.h5" "$tmp/length.bin" >"$out" 2>&1
expect_text "a damaged index is not copied" 'length.idx: length of sequence 0: expected 0 to'
expect "and leaves no file" test ! -e "$tmp/length.h5"
truncate -s -2 "$tmp/uint16.bin"
run_on 2 short "$tmp/uint16.bin"
expect_exit "a file that was cut short" 65
expect_text "is refused" 'uint16.bin: expected 2[0-9]+ \+ [0-9]+ x 2 bytes, the end of the last sequence in .*uint16.idx, found 2218'
rm "$tmp/uint16.idx"
run_on 1 alone "$tmp/uint16.bin"
expect_text "a file without its index" 'uint16.idx: cannot open the index of a Megatron dataset'
./dtrain-data --kind prompts --tokenizer bytes -o "$tmp/prompts.h5" $files/uint16.bin >"$out" 2>&1
expect_text "tokens are no records" 'kind: expected tokens or sft for the documents of'
e2e_done
