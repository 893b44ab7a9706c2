#!/bin/bash
# e2e_plan.sh - dtrain --plan needs no data, device or environment variable. It shows for every stage what prevents a run, per memory space
# if there are several. The exit code says whether any layout fits.
# QUICK:
. "$(dirname "$0")/e2e.sh"
unset DTRAIN_DEVICE # what is planned for is said here
plan() { run 0 ./dtrain --plan "$@"; }
rows() { # NAME [apart]: the four stages; where the device's memory is apart three with the optimizer offloaded, one with the parameters too; within 100 columns
    expect "$1: every stage and offload, within 100 columns" awk -v apart="${2:-}" '
        /^with zero.offload/ { with++ } /^[0-3]  / { row[with + 0] = row[with + 0] $1 } /^offload to cpu saves nothing/ { said = 1 }
        length > 100 && !/error:|ini:|does not exist/ { wide = 1 }
        END { exit row[0] != "0123" || wide || (apart ? row[1] != "123" || row[2] != "3" || with != 2 || said : with > 0 || !said) }' "$out"
}

# 16 samples are no batch for 4 x 8.
cat >"$tmp/first.ini" <<'INI'
[model]
model_type = llama
hidden_size = 256
intermediate_size = 768
num_hidden_layers = 6
num_attention_heads = 4
vocab_size = 257
max_position_embeddings = 256
[data]
train = train.h5
seq_len = 256
[batch]
train_batch_size = 16
micro_batch_size = 4
INI
ends "a small file on 8 ranks" 0 plan --ranks 8 "$tmp/first.ini"
expect_text "the error names batch sizes that work" 'train_batch_size = 16 is less than micro_batch_size x ranks = 4 x 8; use 32, the smallest possible value; or keep it and set micro_batch_size = 2'
expect_text "the batch is planned" '^batch: 32 samples = micro_batch_size 4'
rows "a small file"
prints "the nearest batch for 3 ranks" '^batch: 12 samples = micro_batch_size 4 x gradient_accumulation_steps 1 x 3' plan --ranks 3 "$tmp/first.ini"

# Llama 3.1 70B at default keys
cat >"$tmp/70b.ini" <<'INI'
[run]
output_dir = ${SCRATCH_OF_NOBODY}/70b
seed = ${SEED_OF_NOBODY}
[model]
path = ${MODELS_OF_NOBODY}/Llama-3.1-70B
activation_checkpointing = block
model_type = llama
hidden_size = 8192
intermediate_size = 28672
num_hidden_layers = 80
num_attention_heads = 64
num_key_value_heads = 8
vocab_size = 128256
max_position_embeddings = 131072
[data]
train = ${DATA_OF_NOBODY}/*.h5
seq_len = 4096
[precision]
dtype = bf16
[zero]
stage = auto
INI
unset DATA_OF_NOBODY SCRATCH_OF_NOBODY SEED_OF_NOBODY MODELS_OF_NOBODY
for ranks in 1 8 64 1024; do
    plan --ranks $ranks --ranks-per-node 8 --device-memory 80GiB --host-memory 2TiB "$tmp/70b.ini"
    expect_exit "70B on $ranks ranks with 80 GiB" $([ $ranks -ge 64 ] && echo 0 || echo 70)
    rows "70B on $ranks ranks"
    if [ $ranks -ge 64 ]; then expect_text "stage 3 is taken" 'auto takes 3'
    else expect_text "how many ranks would do" 'stage 3 needs at least [0-9]+ ranks, on whole nodes'; fi
done
RUN_TIMEOUT=10 plan --ranks 1000000 --ranks-per-node 8 --device-memory 80GiB --host-memory 2TiB "$tmp/70b.ini" optimizer.type=muon
expect_exit "muon on a million ranks" 70
ends "a stage that only a key keeps from fitting: 70" 70 plan --ranks 64 --ranks-per-node 8 --device-memory 80GiB "$tmp/70b.ini" zero.max_live_parameters=1e9
expect_text "its row says what it needs" '^ +needs zero.max_live_parameters >= 10506[0-9]+$'
expect_text "and so does the end" 'the smallest change that fits is zero.max_live_parameters = 10506[0-9]*; auto then takes zero.stage = 3, which'
rows "with max_live_parameters too small"
ends "host memory is the whole node's: too little" 70 plan --ranks 64 --ranks-per-node 8 --host-memory 80GiB "$tmp/70b.ini"
plan --ranks 1024 --ranks-per-node 8 --host-memory 2TiB "$tmp/70b.ini" zero.stage=1
expect_text "the configured stage does not work" '^zero.stage = 1, as configured, does not fit: the smallest change that fits is zero.stage = 2, which needs [0-9.]+ GiB of memory$'
expect_text "another does" 'auto takes [23]'
expect_exit "then something fits" 0

ends "a variable that the plan needs: 64" 64 plan "$tmp/70b.ini" model.model_type=
expect_text "is named with its line" '70b.ini:5: \[model\] path: the environment variable MODELS_OF_NOBODY is not set'
ends "a device that is not in this program is no obstacle" 0 plan --ranks 2 --host-memory 8TiB "$tmp/70b.ini" run.device=cuda
ends "mistakes: 64" 64 plan --ranks 2 --host-memory 8TiB "$tmp/70b.ini" optimizer.learning_rate=1 batch.micro_batch_size=two
expect "all of them" sh -c "[ \$(grep -c error: $out) = 2 ]"
ends_saying "a size that is none: 64" 64 '--device-memory: expected a size in bytes .* found .much.' plan --device-memory much "$tmp/70b.ini"
prints "that of a number, too" '--ranks: expected a whole number .* found .many.' plan --ranks many "$tmp/70b.ini"

# The time of a step on GPUs that are not here.
all_of() { awk -v column="$1" '$1 == "all" && $2 + 0 > 0 { print $column }' "$out"; }
launches_with() { # MICRO-STEPS: of a step
    plan --gpu h100 "$tmp/first.ini" zero.stage=2 batch.train_batch_size=0 batch.micro_batch_size=1 batch.gradient_accumulation_steps="$1"
    all_of 2
}
ends "the time of a step on an H100" 0 plan --gpu h100 --ranks 8 "$tmp/first.ini" precision.dtype=bf16
expect_text "with its memory" '^device memory per rank: 80.0G'
expect_text "at which peaks" '^time of a step on H100 SXM, 80 GB, zero.stage = 0: 989 TFLOP/s in bf16, 3350 GB/s, NVLink 450 GB/s each way$'
for part in forward head backward update exchange; do expect_text "$part has its row" "^$part +[0-9]+ "; done
expect_text "reduce_scatter is bound by the link" '^  reduce_scatter .* nvlink$'
expect_text "how fast that is" '^step, at peak rates +[0-9.]+ ms, [0-9.]+[kM]? tokens/s, MFU [0-9.]+ %$'
expect "no sum is below the one before it" awk '
    /^arithmetic only/ { a = $3 } /^kernels in sequence/ { k = $4 } /^step, at peak rates/ { p = $5 } /^step, at measured/ { m = $5 }
    END { exit !(a > 0 && k >= a && p >= k && m > p) }' "$out"
plan --gpu h100 "$tmp/first.ini" precision.dtype=bf16 zero.stage=2
expect "a lone rank sends nothing" sh -c "! grep -q 'nvlink\\|network' '$out'"
expect "FLOPs are 6 for a parameter of a matrix and a token, and 14 for a pair of attention and an element" awk '
    $1 == "all" && $2 + 0 > 0 { flops = $3 * 1e12 }
    END { C = 256; F = 768; T = 256; n = 4 * T; matrices = 6 * (4 * C * C + 3 * C * F) + 257 * C
          want = 16 / 4 * (6 * n * matrices + 6 * 14 * n * (T + 1) / 2 * C); exit !(flops > 0.99 * want && flops < 1.01 * want) }' "$out"
ends "70B on 1024 A100" 0 plan --gpu a100 --ranks 1024 --ranks-per-node 8 "$tmp/70b.ini"
expect_text "all_gather between nodes is bound by the network" '^  all_gather .* network$'
expect_text "one block is listed for all" '^block.0 +80 '
expect "more micro-steps than are run count all the same" [ $(($(launches_with 67) - $(launches_with 66))) = $(($(launches_with 11) - $(launches_with 10))) ]
ends_saying "a GPU that is not in the table: 64" 64 '--gpu: expected one of .*h100, .*a100, found h1' plan --gpu h1 "$tmp/first.ini"
ends "a GPU for a run on the CPU: 64" 64 plan --gpu h100 "$tmp/first.ini" run.device=cpu
plan --gpu h100 "$tmp/first.ini" zero.stage=2 zero.offload_optimizer=cpu
expect_text "offload is not predicted" 'no prediction of the step time with zero.offload_optimizer = cpu'

# A plan for GPUs is identical to the byte with CUDA's objects, without them, and with those of another build.
mkdir "$tmp/bare" "$tmp/stale" && cp ./dtrain "$tmp/bare/" && cp ./dtrain "$tmp/stale/"
same_plan() { # NAME PROGRAM ARGS...
    local name=$1 program=$2
    shift 2
    set -- --host-memory 2T --device-memory 80G "$@"
    ./dtrain --plan "$@" >"$tmp/.here" 2>/dev/null
    run 0 "$program" --plan "$@"
    expect "$name" cmp "$tmp/.here" <("$program" --plan "$@" 2>/dev/null)
}
for keys in "zero.stage=3" "zero.stage=auto comm.backend=nccl" "zero.stage=2 model.attention=cudnn data.document_mask=false"; do
    ends "which is one: $keys" 0 same_plan "a plan without CUDA: $keys" "$tmp/bare/dtrain" --gpu h100 --ranks 8 input/llama-1b.ini $keys
    same_plan "on nodes, without CUDA: $keys" "$tmp/bare/dtrain" --ranks 16 --ranks-per-node 4 input/llama-1b.ini run.device=cuda $keys
done
# Of an eighth of 1.236 billion parameters 2, 4 and 12 bytes; and 0.5 GiB for the driver, and workspaces of 32 MiB of three streams.
prints "what a GPU holds" '^  device +309M +618M +1.85G .* 638M [0-9.]+G$' run 0 "$tmp/bare/dtrain" --plan --gpu h100 --ranks 8 input/llama-1b.ini zero.stage=3

# Shared objects of another build are refused before anything of them is used; auto looks at them where NVIDIA's driver is, here an empty one.
stale() { # NAME C-SOURCE
    if ! echo "$2" | ${CC:-cc} -shared -fPIC -x c -o "$tmp/stale/libdtrain_cuda.so" - 2>"$out"; then skip "$1" "no compiler"; return; fi
    for device in cuda auto; do
        LD_LIBRARY_PATH=$tmp/stale${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} run 1 "$tmp/stale/dtrain" --check "$tmp/first.ini" run.output_dir="$tmp/stale/run" run.device=$device
        expect_exit "$1, run.device = $device: 64" 64
        expect_text "$1, run.device = $device: what to do" 'error: .*libdtrain_cuda.so was built from another version of dtrain than this program: rebuild it'
    done
    ends "$1: refused with nccl, too" 64 run 1 "$tmp/stale/dtrain" --check "$tmp/first.ini" run.output_dir="$tmp/stale/run" run.device=cuda comm.backend=nccl
    expect "$1: and has no advice for a transport" sh -c "! grep -q 'comm.backend' '$out'"
    same_plan "$1: a plan does not look at it" "$tmp/stale/dtrain" --ranks 8 "$tmp/first.ini" run.device=cuda
}
echo | ${CC:-cc} -shared -fPIC -x c -o "$tmp/stale/libcuda.so.1" - 2>"$out" # where there is no compiler stale says so
if /sbin/ldconfig -p | grep -q 'libcuda\.so\.1'; then skip "auto without NVIDIA's driver" "this machine has it"; else
    echo broken >"$tmp/stale/libdtrain_cuda.so"
    ends "auto loads no CUDA object without a driver" 0 run 0 env DTRAIN_LOG=debug "$tmp/stale/dtrain" --plan "$tmp/first.ini" run.device=auto
    expect_text "and says why" 'cuda is not available: this machine has no NVIDIA driver'
fi
stale "an object from before there were versions" 'const long dt_device_cuda_ops[80];'
stale "an object of other headers" 'const long dt_device_cuda_ops[80]; const char dt_device_cuda_ops_interface[] = "1-2";'
if [ -e "$tmp/stale/libdtrain_cuda.so" ]; then # of pages that are not there reading ends a program
    truncate -s $(($(stat -c %s "$tmp/stale/libdtrain_cuda.so") / 2)) "$tmp/stale/libdtrain_cuda.so"
    run 1 "$tmp/stale/dtrain" --check "$tmp/first.ini" run.output_dir="$tmp/stale/run" run.device=cuda
    expect_text "an object that is cut short is not opened" 'libdtrain_cuda.so is truncated: rebuild it \(make\) or copy it again'
fi

# The least number of ranks is exact, and what is advised is not set already.
plan --ranks 8 --ranks-per-node 8 --device-memory 80G "$tmp/70b.ini"
least=$(sed -n 's/.*needs at least \([0-9]*\) ranks.*/\1/p' "$out")
expect_text "advice names what can still be changed" 'or try a smaller data.seq_len'
expect "no change is proposed for a key that is set" sh -c "! grep -q 'activation_checkpointing = block' '$out'"
ends "on $least ranks it fits" 0 plan --ranks "$least" --ranks-per-node 8 --device-memory 80G "$tmp/70b.ini"
ends "on one node less it does not" 70 plan --ranks $((least - 8)) --ranks-per-node 8 --device-memory 80G "$tmp/70b.ini"
prints "why memory is what it is" '^memory per rank: 12.5G, --host-memory divided by the ranks of a node' plan --ranks 8 --host-memory 100G "$tmp/70b.ini"
expect_text "advice for one node" 'try fewer ranks per node, more memory per node, .*a smaller data.seq_len'
ends_saying "80 bytes are no memory: 64" 64 'device-memory: 80 is 80 bytes; did you mean 80G' plan --ranks 8 --device-memory 80 "$tmp/70b.ini"
prints "a size with a small unit: the intended one is suggested" 'device-memory: 80K is 80000 bytes; did you mean 80G' plan --ranks 8 --device-memory 80K "$tmp/70b.ini"
ends_saying "ranks of a plan do not start a run: 64" 64 '--ranks needs --plan' run 0 ./dtrain --ranks 8 "$tmp/70b.ini"
for two in '--plan --check' '--check --plan' '--keys --plan'; do
    ends_saying "$two: neither wins in silence" 64 "--[a-z]+ and --[a-z]+ exclude each other" run 0 ./dtrain $two "$tmp/70b.ini"
done
for two in '--plan --check --help' '--help --plan --check'; do
    ends "$two: help does" 0 run 0 ./dtrain $two
done
prints "a configured stage has a verdict" '^zero.stage = 3, as configured, fits$' plan --ranks 64 --ranks-per-node 8 --device-memory 80G "$tmp/70b.ini" zero.stage=3
expect_text "the places of one memory are a line" '^stage 3 by memory space: device [0-9.]+G, pinned [0-9.]+[MK], host [0-9.]+M, in one memory$'

# A device with memory of its own: a row for each place below that of a stage, and each memory bounds its own places.
ends "70B on devices of 80 GB" 0 plan --ranks 64 --ranks-per-node 8 --device-memory 80G --host-memory 2TiB "$tmp/70b.ini" run.device=cuda
prints "both memories are named" '^device memory per rank: 80.0G, a device.s$' rows "70B on devices" apart
expect_text "each" '^host memory per rank: 275G, --host-memory divided by the ranks of a node$'
expect "the memory spaces of a stage add up to its row" awk '
    function bytes(s, n) { n = s + 0; return s == "-" ? 0 : n * 1000 ^ (index("BKMGT", substr(s, length(s))) - 1) }
    function check(c) { if (stage) for (c = 2; c <= 9; c++) if (sum[c] < 0.98 * row[c] || sum[c] > 1.02 * row[c] + 1) bad = 1 }
    /^[0-3]  / { check(); stage = 1; n++; for (c = 2; c <= 9; c++) { row[c] = bytes($c); sum[c] = 0 } }
    /^  (device|pinned|host) / { places++; for (c = 2; c <= 9; c++) sum[c] += bytes($c) }
    END { check(); exit bad || n != 8 || places != 24 }' "$out"
expect_text "the memory space that is exceeded is marked" '^  device .* over 72.0G$'
expect "no other memory space is marked" sh -c "! grep -qE '^  (pinned|host) .* over' '$out'"
least=$(sed -n 's/^zero.stage = auto takes //p' "$out")
plan --ranks 64 --ranks-per-node 8 --devices-per-node 4 --device-memory 160G --host-memory 2TiB "$tmp/70b.ini" run.device=cuda
expect_text "two ranks on a device of twice the size have as much" '^device memory per rank: 80.0G, --device-memory divided by the ranks of a device$'
expect_text "and the same stage" "auto takes ${least%%,*}, "
plan --ranks 64 --ranks-per-node 8 --devices-per-node 3 --device-memory 160G --host-memory 2TiB "$tmp/70b.ini" run.device=cuda
expect_text "the fullest device counts" '^device memory per rank: 53.3G'
ends "too little memory in a node: 70" 70 plan --ranks 64 --ranks-per-node 8 --device-memory 80G --host-memory 100M "$tmp/70b.ini" run.device=cuda comm.backend=mpi
expect_text "the rows say where" '^  pinned .* over 11.2M$'
expect_text "and so does the end" 'no stage fits in 0.9 of the host memory: .*fewer ranks per node, more memory per node'
plan --ranks 8 --devices-per-node 2 --device-memory 1G --host-memory 64G "$tmp/70b.ini" run.device=cuda
expect_text "advice for devices" 'no stage fits in 0.9 of the device memory: .*fewer ranks per device'
ends "a device is not opened to see what it has" 0 plan --ranks 64 --host-memory 2TiB "$tmp/70b.ini" run.device=cuda
expect_text "that is said" '^device memory per rank: unknown'
expect_text "and how to know more" '^to see what fits, add --device-memory SIZE, such as 80GiB$'
expect "nothing is claimed to fit" sh -c "! grep -qE '  fits$|auto takes' '$out'"

# Groups of a node: the bytes are those of a node's ranks, nodes give each other no parameters, and more nodes are no remedy.
sent() { sed -n "s|^sent/step to other nodes:.* stage $1: \([0-9.]*G\).*|\1|p" "$out"; } # STAGE
plan --ranks 64 --ranks-per-node 8 --device-memory 80G --host-memory 2TiB "$tmp/70b.ini" run.device=cuda
world=$(sent 3)
plan --ranks 64 --ranks-per-node 8 --device-memory 80G --host-memory 2TiB "$tmp/70b.ini" run.device=cuda zero.shard_group=node zero.stage=3
expect_text "groups are named" '^ranks: 64 on 8 nodes, each node with all states \(zero.shard_group = node\)$'
expect_text "bytes of a node's 8 ranks" 'stage 1: 5.50., stage 2: 3.75., stage 3: 2.00'
expect "fewer to other nodes at stage 3 ($(sent 3) for $world)" awk -v a="$(sent 3)" -v b="$world" 'BEGIN { exit !(a > 0 && a + 0 < b + 0) }'
expect_text "the smallest change" 'zero.stage = 3, zero.shard_group = node, as configured, does not fit: the smallest change that fits is zero.shard_group = world'
ends "nodes of different sizes: 64" 64 plan --ranks 12 --ranks-per-node 8 "$tmp/first.ini" zero.shard_group=node
expect_text "with the numbers" 'shard_group: node needs the same number of ranks on each node; with 12 ranks, 8 per node, the last node has 4'

# auto takes each row of its order if it is the first that fits: the memory sizes have room only for that row and later ones.
cat >"$tmp/rows.ini" <<'INI'
[run]
device = cuda
[model]
model_type = llama
hidden_size = 1024
intermediate_size = 2816
num_hidden_layers = 24
num_attention_heads = 16
vocab_size = 32000
max_position_embeddings = 256
[data]
seq_len = 64
[batch]
micro_batch_size = 1
[precision]
dtype = bf16
[zero]
stage = auto
sub_group_size = 1000000
INI
two() { plan --ranks 2 "$@"; } # a node, with a device for each rank
needs() { # "STAGE OPTIMIZER PARAM DEVICE HOST FILE": for each row of the table, in bytes, 2 % more than a plan of three digits may mean, over 0.9
    awk 'function bytes(s) { return (s + 0) * 1000 ^ (index("BKMGT", substr(s, length(s))) - 1) * 1.02 / 0.9 }
         function show() { if (stage != "") printf "%s %s %s %.0f %.0f %.0f\n", stage, opt, param, d, h, f; d = h = f = 0 }
         BEGIN { opt = param = "none" }
         /^with / { show(); stage = ""; opt = param = "none"
                    if (match($0, /optimizer = [a-z]+/)) opt = substr($0, RSTART + 12, RLENGTH - 12)
                    if (match($0, /param = [a-z]+/)) param = substr($0, RSTART + 8, RLENGTH - 8) }
         /^[0-3]  / { show(); stage = $1 }
         /^  device/ { d = bytes($9) } /^  (pinned|host)/ { h += bytes($9) } /^  file/ { f = bytes($9) } END { show() }' "$out"
}
ends "room for all" 0 two --device-memory 1T --host-memory 1T --nvme-space 1T "$tmp/rows.ini" zero.nvme_path="$tmp"
expect_text "stage 0 is taken" '^zero.stage = auto takes 0, the first that fits$'
needs >"$tmp/needs"
expect "the order" test "$(awk '{ printf "%s%s/%s ", $1, $2, $3 }' "$tmp/needs")" = "0none/none 1none/none 2none/none 3none/none 1cpu/none 2cpu/none 3cpu/none \
3cpu/cpu 1nvme/none 2nvme/none 3nvme/none 3nvme/cpu 3nvme/nvme "
while read -r stage opt param device host file; do
    with=
    if [ $opt != none ]; then with=" with zero.offload_optimizer = $opt"; fi
    if [ $param != none ]; then with="$with, zero.offload_param = $param"; fi
    two --device-memory "$device" --host-memory $((2 * host)) --nvme-space $((2 * file + 1000000)) "$tmp/rows.ini" zero.nvme_path="$tmp"
    expect_text "stage $stage$with is taken" "^zero.stage = auto takes $stage$with, the first that fits$"
done <"$tmp/needs"
read -r stage opt param device host file < <(grep "3 nvme none" "$tmp/needs")
ends "too small a disk: 70" 70 two --device-memory "$device" --host-memory $((2 * host)) --nvme-space 2M "$tmp/rows.ini" zero.nvme_path="$tmp"
expect_text "its row says so" '^  file .* over 900K$'
two --device-memory "$device" --host-memory $((2 * host)) "$tmp/rows.ini" zero.nvme_path="$tmp/nowhere"
expect_text "a disk that is not here is not known" '^disk space per rank: unknown, set it with --nvme-space$'
expect_text "and how to know more" '^to see what fits, add --nvme-space SIZE, such as 4TB$'
two --device-memory 1T --host-memory 1T "$tmp/rows.ini"
expect "without nvme_path no state is offloaded to disk" sh -c "! grep -qE 'nvme|^  file|disk' '$out'"
two --device-memory 1T --host-memory 1T --nvme-space 1T "$tmp/rows.ini"
expect_text "--nvme-space without nvme_path causes a warning" 'warning: --nvme-space is ignored, because zero.nvme_path is not set'

# What is given is kept, and auto chooses the rest.
two --device-memory 1T --host-memory 1T "$tmp/rows.ini" zero.offload_optimizer=cpu
expect_text "an optimizer that is to be offloaded" '^zero.stage = auto takes 1 with zero.offload_optimizer = cpu, the first that fits$'
two --device-memory 1T --host-memory 1T "$tmp/rows.ini" zero.offload_param=cpu
expect_text "parameters that are" '^zero.stage = auto takes 3 with zero.offload_param = cpu, the first that fits$'
read -r stage opt param device host file < <(grep "3 cpu cpu" "$tmp/needs")
two --device-memory "$device" --host-memory $((2 * host)) "$tmp/rows.ini" zero.offload_param=cpu
expect_text "and then the optimizer, too" '^zero.stage = auto takes 3 with zero.offload_optimizer = cpu, zero.offload_param = cpu, the first that fits$'
for size in "" model.num_hidden_layers=100 model.num_hidden_layers=600; do
    two --device-memory 10T --host-memory 10T "$tmp/rows.ini" zero.stage=auto:size $size
    stage=$(sed -n 's/^zero.stage = auto:size: \([0-3]\), for a model of [0-9]* parameters$/\1/p' "$out")
    expect "auto:size depends on the number of parameters ($size)" test "$stage" = "$(sed -n 's/^model: \([0-9]*\) parameters.*/\1/p' "$out" | awk '{ print $1 < 1e9 ? 0 : $1 <= 7e9 ? 2 : 3 }')"
    expect_text "and is planned" "^zero.stage = $stage, as configured, fits$"
done

# What does not fit names the smallest change that does; with it, it does.
remedy() { # NAME KEYS-PATTERN; then as two: a configuration that does not work
    local name=$1 pattern=$2
    shift 2
    prints "$name" "(does not fit|no stage fits in 0.9 of the [a-z ]+): the smallest change that fits is $pattern(; auto then takes zero.*)?, which needs" two "$@"
    mapfile -t keys < <(sed -n 's/.*the smallest change that fits is \(.*\), which needs.*/\1/p' "$out" | sed 's/; auto then takes.*//; s/, /\n/g; s/ = /=/g')
    ends "$name: then it does" 0 two "$@" "${keys[@]}"
    expect "$name: not as before" sh -c "! grep -q 'does not fit' '$out'"
}
at() { awk -v row="$1" -v column="$2" '$1 " " $2 " " $3 == row { print $column }' "$tmp/needs"; } # ROW, 4 device or 5 host
many="data.seq_len=256 batch.micro_batch_size=48"
remedy "a higher stage" 'zero.stage = 1' --device-memory "$(at "1 none none" 4)" --host-memory 1T "$tmp/rows.ini" zero.stage=0
remedy "the highest" 'zero.stage = 3' --device-memory "$(at "3 none none" 4)" --host-memory 1T "$tmp/rows.ini" zero.stage=1
remedy "offload of the optimizer" 'zero.offload_optimizer = cpu' --device-memory "$(at "2 cpu none" 4)" --host-memory 1T "$tmp/rows.ini" zero.stage=2
remedy "offload of the parameters, where the optimizer is" 'zero.offload_param = cpu' --device-memory "$(at "3 cpu cpu" 4)" --host-memory 1T "$tmp/rows.ini" \
    zero.stage=3 zero.offload_optimizer=cpu
remedy "two keys, where one is too little" 'zero.stage = 3, zero.offload_optimizer = cpu' --device-memory "$(at "3 cpu none" 4)" --host-memory 1T "$tmp/rows.ini" zero.stage=0
remedy "what auto was denied" 'zero.offload_optimizer = cpu; auto then takes zero.stage = 1, zero.offload_optimizer = cpu' --device-memory "$(at "1 cpu none" 4)" \
    --host-memory 1T "$tmp/rows.ini" zero.offload_optimizer=none zero.offload_param=none
remedy "no copy of what is saved" 'checkpoint.async = false' --device-memory 1T --host-memory $((2 * $(at "3 cpu none" 5))) "$tmp/rows.ini" zero.stage=3 \
    zero.offload_optimizer=cpu checkpoint.async=true
full="--nvme-space 2M $tmp/rows.ini zero.nvme_path=$tmp zero.stage=3 zero.offload_optimizer=nvme"
remedy "a disk that is full" 'zero.offload_optimizer = none' --device-memory 1T --host-memory 1T $full
remedy "a full disk and a full device" 'zero.offload_optimizer = cpu' --device-memory "$(at "3 cpu none" 4)" --host-memory 1T $full
remedy "less to keep" 'model.activation_checkpointing = [a-z]+' --device-memory 10G --host-memory 2G "$tmp/rows.ini" data.seq_len=12288 model.max_position_embeddings=12288
two --device-memory 1T --host-memory 1T "$tmp/rows.ini" data.seq_len=256 batch.micro_batch_size=1 batch.gradient_accumulation_steps=48 model.activation_checkpointing=block
least=$(needs | awk '$1 " " $2 " " $3 == "3 none none" { print $4 }')
remedy "smaller micro-batches" 'batch.micro_batch_size = [0-9]+, batch.gradient_accumulation_steps = [0-9]+' --device-memory "$least" --host-memory 2G "$tmp/rows.ini" $many \
    model.activation_checkpointing=block zero.stage=3
expect_text "leave the batch as it is" '^batch: 96 samples'
remedy "more room for what is gathered" 'zero.max_live_parameters = [0-9]+' --device-memory 1T --host-memory 1T "$tmp/rows.ini" zero.stage=3 zero.max_live_parameters=1000000

# A run does the same with the memory that there is: it prints what it has looked at, and writes down what it has taken.
head -c 20000 docs/algorithms.md >"$tmp/text.txt"
run 0 ./dtrain-data -o "$tmp/train.h5" --tokenizer bytes "$tmp/text.txt"
cat >"$tmp/run.ini" <<INI
[run]
max_steps = 1
threads = 1
[model]
model_type = llama
hidden_size = 128
intermediate_size = 384
num_hidden_layers = 4
num_attention_heads = 4
vocab_size = 257
max_position_embeddings = 64
[data]
train = $tmp/train.h5
seq_len = 64
[batch]
micro_batch_size = 1
[zero]
stage = auto
sub_group_size = 100000
INI
on_queue() { # MEMORY NAME KEYS...: one rank
    local memory=$1 name=$2
    shift 2
    DTRAIN_DEVICE=queue DTRAIN_QUEUE_MEMORY=$memory run 0 ./dtrain "$tmp/run.ini" run.output_dir="$tmp/$name" "$@"
}
ends "a run with room" 0 on_queue 1G roomy
expect_text "lists what auto tries" '^0 +none +none .*[0-9]B +[0-9.]+B?  fits$'
expect_text "to the last" '^3 +cpu +cpu .*  fits$'
expect_text "and takes the first" '^model: .*; zero.stage = 0$'
# The buffers of the CPU kernels (kernels v3: 12 MB) are allocated already; the rest must fit. Sizes are printed in three digits.
device=$(awk '/^2 +cpu +none/ { least = $4 } $1 == "planned" { on = 1 } on && $1 == "device" { held = $(NF - 1); exit }
    function bytes(x) { return (x + 0) * (x ~ /G$/ ? 1e9 : x ~ /M$/ ? 1e6 : x ~ /K$/ ? 1e3 : 1) } END { printf "%.0f", (bytes(least) - bytes(held)) * 1.05 / 0.9 }' "$out")
ends "a run with little" 0 on_queue "$device" offloads
expect_text "sees what is too large" '^0 +none +none .*  too large for the device memory$'
expect_text "and offloads" '^model: .*; zero.stage = [12], zero.offload_optimizer = cpu$'
expect "config.ini has what was taken" sh -c "grep -qx 'stage = [12]' '$tmp/offloads/config.ini' && grep -qx 'offload_optimizer = cpu' '$tmp/offloads/config.ini'"
ends "a stage that is too large for it: 70" 70 on_queue "$device" refused zero.stage=0
expect_text "the change that fits is named" 'zero.stage = 0 does not fit: it needs .* of device memory per rank, and .*; the smallest change that fits is zero.offload_optimizer = cpu, which needs'
ends "and does" 0 on_queue "$device" told zero.stage=0 zero.offload_optimizer=cpu
e2e_done
