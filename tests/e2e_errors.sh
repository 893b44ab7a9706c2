#!/bin/bash
# e2e_errors.sh - configuration errors end with exit code 64 and one message for all ranks, data errors with 65.
# tests/test_config_errors.c has the messages of keys.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

refuses() { wrong "$1" "$2" "$3" ./dtrain "${@:4}"; } # NAME CODE REGEX ARGS...
ini() { { cat "$tmp/tiny.ini"; printf '%b' "$1"; } >"$tmp/bad.ini"; }
d="run.output_dir=$tmp/x"

ini '[optimizer]\nlearning_rate = 1\n'; refuses "unknown key" 64 'bad.ini:[0-9]+:.*learning_rate.*' "$tmp/bad.ini" $d
refuses "wrong type" 64 'micro_batch_size.*integer.*four' "$tmp/tiny.ini" $d batch.micro_batch_size=four
refuses "batch sizes that do not multiply" 64 'train_batch_size.*24.*26' "$tmp/tiny.ini" $d batch.train_batch_size=25
refuses "no such input file" 64 'none.ini' "$tmp/none.ini" $d
refuses "no output_dir" 64 'output_dir' "$tmp/tiny.ini"
refuses "a device that is not here" 64 'run.device: device cuda is not available: .' "$tmp/tiny.ini" $d run.device=cuda
refuses "a transport that was not built" 64 'nccl.*mpi' "$tmp/tiny.ini" $d comm.backend=nccl
bf16="model.attention=cudnn precision.dtype=bf16"
refuses "cuDNN's attention in fp32" 64 'model.attention: cuDNN.*only bf16 and fp16' "$tmp/tiny.ini" $d model.attention=cudnn precision.dtype=fp32
refuses "cuDNN's attention of documents" 64 'model.attention: cudnn.*document_mask' "$tmp/tiny.ini" $d $bf16 data.document_mask=true
refuses "cuDNN's attention of samples" 64 'model.attention: cudnn.*equal length' "$tmp/tiny.ini" $d $bf16 run.task=sft
refuses "cuDNN's attention, to be reproducible" 64 'model.attention: cudnn.*reproducible' "$tmp/tiny.ini" $d $bf16 run.reproducible=true
refuses "cuDNN's attention with dropout" 64 'model.attention: cuDNN.*dropout' "$tmp/tiny.ini" $d $bf16 model.model_type=gpt2 model.num_key_value_heads=4 model.dropout=0.1
odd="$bf16 model.head_dim=12"
refuses "cuDNN's attention of odd heads, by --check" 64 'model.attention: cuDNN.*head sizes of 8, 16' --check "$tmp/tiny.ini" $d $odd
refuses "cuDNN's attention on a device without it, by --check" 64 'model.attention: cuDNN.*has no such library' --check "$tmp/tiny.ini" $d $bf16
ends_saying "cuDNN's attention of odd heads, by --plan" 64 'model.attention: cuDNN.*head sizes of 8, 16' run 0 ./dtrain --plan "$tmp/tiny.ini" $d $odd
refuses "cuDNN's attention on a device without it" 64 'model.attention: cuDNN.*has no such library' "$tmp/tiny.ini" $d $bf16
refuses "a stage that makes no sense" 64 'zero.*stage' "$tmp/tiny.ini" $d run.task=eval zero.stage=2 model.path="$tmp" data.validation="$tmp/valid.h5"
refuses "sequences longer than GPT-2 has positions" 64 'max_position_embeddings' "$tmp/tiny.ini" $d model.model_type=gpt2 model.num_key_value_heads=4 data.seq_len=65
refuses "unknown model_type" 64 'model_type.*mamba' "$tmp/tiny.ini" $d model.model_type=mamba
refuses "max_live_parameters below a unit" 64 'max_live_parameters' "$tmp/tiny.ini" $d zero.stage=3 zero.max_live_parameters=10
grep -v '^train = ' "$tmp/tiny.ini" >"$tmp/no-data.ini"
refuses "a key that is not set: the file is named all the same" 64 'no-data.ini: \[data\] train' "$tmp/no-data.ini" $d
ini '[comm]\nbackend = nccl\n'; refuses "a transport that was not built: its line is named" 64 'bad.ini:[0-9]+: \[comm\] backend.*nccl.*mpi' "$tmp/bad.ini" $d
refuses "a model that does not fit together names the line" 64 'command line: model.hidden_size: .*multiple' "$tmp/tiny.ini" $d model.hidden_size=30
refuses "output_dir is a file" 64 'run.output_dir.*text.txt' "$tmp/tiny.ini" run.output_dir="$tmp/text.txt"
ends "unknown option" 64 run 0 ./dtrain --frobnicate
ends "no input" 64 run 0 ./dtrain
ends "--keys with an unknown key" 64 run 0 ./dtrain --keys batch.micro
prints "--keys of one key" 'stage' run 0 ./dtrain --keys zero.stage
ends "--version" 0 run 0 ./dtrain --version
for result in --keys --version --help "--plan $tmp/tiny.ini $d"; do
    ends "${result%% *} into a full disk: 74" 74 run 0 sh -c "./dtrain $result >/dev/full"
done
ends "dtrain-info into a full disk: 74" 74 run 0 sh -c "./dtrain-info $tmp/train.h5 >/dev/full"

refuses "missing dataset" 65 'missing.h5' "$tmp/tiny.ini" $d data.train="$tmp/missing.h5"
head -c 3000 "$tmp/train.h5" >"$tmp/cut.h5"
refuses "dataset cut short" 65 'cut.h5' "$tmp/tiny.ini" $d data.train="$tmp/cut.h5"
cp "$tmp/train.h5" "$tmp/altered.h5"
printf '\377' | dd of="$tmp/altered.h5" bs=1 seek=$(($(stat -c %s "$tmp/train.h5") / 2)) conv=notrunc 2>/dev/null
refuses "--check reads the data to the last byte" 65 'altered.h5' --check "$tmp/tiny.ini" $d data.train="$tmp/altered.h5"
refuses "not HDF5" 65 'text.txt' "$tmp/tiny.ini" $d data.train="$tmp/text.txt"
refuses "token ids beyond the vocabulary" 65 'train.h5.*100' "$tmp/tiny.ini" $d model.vocab_size=100
refuses "too short for one sample" 65 'valid.h5' "$tmp/tiny.ini" $d data.train="$tmp/valid.h5" data.seq_len=100000 model.max_position_embeddings=100000
refuses "no checkpoint to start from" 65 'nowhere' "$tmp/tiny.ini" $d model.path="$tmp/nowhere"

# data/fault classes
refuses "weights that go non-finite" 71 'error: .*not finite in 2 consecutive steps.* unit head on rank [01]' "$tmp/tiny.ini" $d run.max_skipped_steps=2 optimizer.lr=10 optimizer.max_grad_norm=0 optimizer.eps=0 run.max_steps=2000 optimizer.weight_decay=10

# One node of several without a GPU, where run.device = auto takes the CPU: here another device on rank 1 alone.
cat >"$tmp/mixed" <<'SH'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" != 1 ] || export DTRAIN_DEVICE=queue
exec "$@"
SH
chmod +x "$tmp/mixed"
for check in --check ''; do
    DTRAIN_DEVICE='' run 2 "$tmp/mixed" ./dtrain $check "$tmp/tiny.ini" run.output_dir="$tmp/mixed.run" run.max_steps=1
    expect_exit "ranks on different devices${check:+, $check}" 64
    expect_text "different devices are reported with their ranks${check:+, $check}" 'device.*queue on rank 1, but cpu on rank 0'
done

# A limit of the address space, as on login nodes: libraries must not crash for want of memory.
for limit in 100 120 150 190 200 210 230 260 267 300; do # MiB
    rm -rf "$tmp/limited"
    run 0 bash -c 'ulimit -v $(($0 * 1024)); exec "$@"' $limit ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/limited" run.max_steps=1
    [ "$code" != 70 ] || cp "$out" "$tmp/.refused"
    [ "$code" = 0 ] || expect_exit "$limit MiB of address space are too little: 70, no crash" 70
done
expect "the message names the limit" grep -q 'ulimit -v' "$tmp/.refused"
e2e_done
