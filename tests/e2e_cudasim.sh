#!/bin/bash
# e2e_cudasim.sh - the CUDA simulator (docs/testing.md): the errors that it detects. On it, the CUDA device's operations are compared with
# the references, with race detection and with late streams. e2e_cuda.sh trains on it; e2e_cudasim_fails.sh has failing GPUs.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
tests=${BUILD:-build/release}/tests
[ -e "$tests/cudasim_wrong" ] || { not_ok "the simulator" "make cudasim"; exit 1; }

# A header of dtrain that cuda/ includes without extern "C" gives a name that only the first call misses.
undefined=$(nm -D --undefined-only "${BUILD:-build/release}/libdtrain_cudasim.so" | grep ' _Z.*dt_')
expect "the CUDA device calls dtrain's functions by their C names" test -z "$undefined"

# The simulator itself: each mistake ends a program that makes no other, and what is right runs through.
sees() { # NAME REGEX DEVICE...
    local name=$1 regex=$2 device
    shift 2
    for device; do
        run 0 "$tests/${device}_wrong" "$name" 2>/dev/null # the shell says that it was aborted
        if [ "$code" = 134 ]; then expect_text "$device sees: $name" "$regex"; else not_ok "$device sees: $name" "exit code $code"; fi
    done
}
for device in cudasim cudasim_races; do
    prints "$device: a kernel without a mistake is right" '^right$' run 0 "$tests/${device}_wrong" right
    prints "$device: memory is NaN until it is written" '^right$' run 0 "$tests/${device}_wrong" fresh
    prints "$device: blocks run, and warps take turns, in an order that is drawn" '^right$' run 0 "$tests/${device}_wrong" order
done
both="cudasim cudasim_races"
sees mask 'thread 5 of 128: __shfl_xor_sync with mask ffff0000, which does not name lane 5' $both
sees ended 'a shuffle reads lane 7, which has ended' $both
sees deadlock 'at __syncwarp with mask ffffffff' $both
sees unaligned 'is not a multiple of 16' $both
sees copy_unaligned 'copy_async_16 from 0x[0-9a-f]*, which is not a multiple of 16' $both
sees rows_unaligned 'ldmatrix_x4: the row of lane [0-9]*, 0x[0-9a-f]*, is not 16 aligned bytes of shared memory' $both
sees beyond 'address 0x[0-9a-f]* is not there' $both
sees index 'an index outside of its array' $both
sees shared 'address 0x[0-9a-f]* is not there' $both
sees shift 'a shift by more bits' $both
sees behind 'byte 0 was written behind an allocation of 4000 bytes' cudasim
sees host 'or memory of the host' cudasim_races
sees direction 'refused: cudaErrorInvalidValue' $both
sees copy_beyond 'a copy of 44 bytes at byte 3960 of allocation [0-9]* \(4000 bytes of device memory\)' $both
sees copy_freed 'a copy of 40 bytes at 0x[0-9a-f]*, where no device memory is allocated' $both
sees pinned_beyond 'byte 4 was written behind an allocation of 4000 bytes' $both
for asks in captured_query captured_alloc; do sees $asks 'refused: cudaErrorStreamCaptureUnsupported' $both; done
sees captured_copy 'a copy from or to the host is captured' $both
export CUDA_SIM_DEVICES=2
sees other_thread 'cudaMalloc by a thread that has not chosen the GPU: it would be on GPU 0, and the program works on GPU 1' $both
unset CUDA_SIM_DEVICES
for touches in host_reads host_writes; do
    if grep -qw pku /proc/cpuinfo; then
        sees $touches 'the host touches byte [0-9]* of allocation [0-9]* \(4000 bytes of device memory\)' $both
    else skip "the host touches device memory" "this processor has no keys of protection"; fi
done

# Streams: who touches what, and who did before; copies are known without races being looked for, kernels are not.
down='a race of streams: copy to the host on stream 2 reads 1200 bytes at byte 0 of allocation [0-9]* \(2400 bytes of device memory\), which'
sees no_event "$down .* on stream 1 writes; no event orders the two" $both
sees waited_too_late "$down .* on stream 1 writes" $both
sees recorded_too_early "$down test.* on stream 1 writes" cudasim_races
sees other_event "${down/byte 0/byte 1200} .* on stream 1 writes" $both
sees up_reused 'the host writes byte 28 of allocation [0-9]* \(1232 bytes of pinned memory\), which copy to the device on stream 1 reads' $both
for early in down_read other_stream asked_once; do
    sees $early 'the host reads byte 0 of allocation [0-9]* \(1232 bytes of pinned memory\), which copy to the host on stream 2 writes' $both
done
sees both_down 'copy to the host on stream 1 writes 1200 bytes at byte 0 .* of pinned memory\), which copy to the host on stream 2 writes' $both
sees on_device_reused 'copy to the device on stream 1 writes 1200 bytes .* which copy to the host on stream 2 reads' $both
sees freed 'of device memory\) is freed while .* may be at work there' $both
sees no_show 'what thread [0-9]* copied to shared memory was not shown to matmuls' $both
sees no_open 'a matmul of a group without group_open since the last wait' $both
sees no_close 'a lane ends, and matmuls of its group are under way' $both
sees touched 'writes a sum of a matmul of its group before it has waited for that' $both
for race in warp_race block_race grid_race no_wait no_barrier_after no_barrier_before; do sees $race 'a race at' cudasim_races; done

# Cases that wait for a timeout run concurrently with the rest.
unset DTRAIN_DEVICE # the CPU is the CPU here
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
never_ends() {
    DTRAIN_DEVICE=cudasim CUDA_SIM_DEVICES=2 CUDA_SIM_HANG=6 train 2 hang run.max_steps=1 batch.train_batch_size=2 comm.backend=nccl zero.stage=2 comm.timeout=25
    expect_exit "a collective that never ends on the GPU ends the run" 76
    expect_text "the collective in progress on the GPU is named" "the GPU is at collective [0-9]+, [a-z_]+ in phase [a-z]+, unit [a-z_.0-9]+: it is running and waits for other ranks"
    numbers=$(sed -n 's/.*, collective \([0-9]*\); the GPU is at collective \([0-9]*\),.*/\1 \2/p' "$out" | head -1)
    expect "while the host was ahead of it ($numbers)" test "${numbers% *}" -gt "${numbers#* }"
}
beside never_ends

# Operations against the plain references. Where all cases take minutes or hours it is one in TEST_EVERY (tests/device_fixture.h), which has every shape;
# all of them: `make test-cudasim`.
holds() { # DEVICE TEST [THOSE OF ITS TESTS]
    RUN_TIMEOUT=900 run 0 env DTRAIN_DEVICE="$1" "$tests/$2" ${3:+"$3"} # four minutes are too few next to other tests
    expect_exit "$2${3:+, $3}, on $1${DTRAIN_QUEUE_BELOW:+ over $DTRAIN_QUEUE_BELOW}" 0
    [ -z "${3:-}" ] || expect_text "$2 has tests '$3'" '^\[==========\] Running [1-9]'
}
for test in nothing layers patches heads gates optimizer tokens; do holds cudasim test_device_$test; done
for test in layers patches heads gates optimizer; do holds cudasim_races test_device_$test; done
for device in cudasim cudasim_races; do TEST_EVERY=7 holds $device test_device_classifier; done
TEST_EVERY=7 holds cudasim test_device_epilogue
TEST_EVERY=5 holds cudasim test_device_scaled
DTRAIN_QUEUE_BELOW=cudasim holds queue test_device_layers
holds cudasim test_model_graphs
TEST_EVERY=5 holds cudasim test_device_attention
TEST_EVERY=23 holds cudasim test_device_delta
TEST_EVERY=19 holds cudasim test_device_matmul
TEST_EVERY=37 holds cudasim test_device_rows
for part in 'nan_*' 'a*_infinit*'; do TEST_EVERY=13 holds cudasim test_device_nonfinite "$part"; done
for part in "plans_*" "an_order_*"; do holds cudasim test_device_attention_library "$part"; done

# What a device that counts counts (dtrain --plan --gpu) is what the CUDA device makes.
holds cudasim test_count

# Late streams, in bf16. Another order of sums lets an element that is kept fall to the other side of a rounding, which is 2^-8 of it; a loss
# is the mean of 8 x 31 tokens, where that is random: within 2^-8 / sqrt(248) = 2.5e-4.
small="run.max_steps=3 batch.train_batch_size=8"
ends "bf16: trains on the CPU" 0 train 1 cpu $small precision.dtype=bf16

# The self-check runs at the first start with a driver. Its result is cached until driver or device changes.
checks() { # NAME YES|NO ARGS...: a start that checks, or does not
    local name=$1 wanted=$2
    shift 2
    rm -rf "$tmp/first"
    ends "$name: trains" 0 train 1 first run.max_steps=1 batch.train_batch_size=1 "$@"
    if [ "$wanted" = yes ]; then expect_text "$name: checks" 'self-check: [0-9]+ tests agree with the CPU'
    else expect "$name: does not check" sh -c "! grep -q 'self-check: [0-9]' '$out'"; fi
}
remembered() { find "$XDG_CACHE_HOME/dtrain" -type f; }
export DTRAIN_DEVICE=cudasim DTRAIN_SIM_DRIVER=13000
checks "the first start" yes
expect "the result is cached in one file" [ "$(remembered | wc -l)" = 1 ]
checks "the second" no
echo damaged >"$(remembered)"
DTRAIN_SIM_WRONG_MATMULS=1 checks "a damaged file, and a library that is wrong for long sums" yes
expect_text "dtrain's kernels replace the library's matmuls" "self-check: the library computes matmul 3x520x259, AB', fp32, plain incorrectly .*: dtrain's own kernels replace it"
for type in bf16 fp16; do # which the verdict on fp32 does not contain
    expect_text "so they do in $type" "self-check: the library computes matmul [0-9x]+, AB', $type, plain incorrectly"
done
expect "no result is cached" [ "$(cat "$(remembered)")" = damaged ]
checks "never" no run.self_check=never
rm -rf "$XDG_CACHE_HOME/dtrain" && : >"$XDG_CACHE_HOME/dtrain"
DTRAIN_SIM_DRIVER=13010 checks "another driver, and a cache that cannot be written" yes
expect_text "a cache that cannot be written is reported" 'the result cannot be cached, so the next start repeats the check'
unset DTRAIN_SIM_DRIVER
export DTRAIN_DEVICE=queue # soon done
checks "always, of a device without versions" yes run.self_check=always
DTRAIN_FAULT=device.self_check:1:1:error DTRAIN_QUEUE_DEVICES=2 train 2 wrong run.max_steps=1 batch.train_batch_size=2 run.self_check=always
expect_exit "a wrong GPU of one rank of two: all end with 70" 70
expect "before any step" [ ! -e "$tmp/wrong/metrics.jsonl" ]
export DTRAIN_DEVICE=queue DTRAIN_QUEUE_BELOW=cudasim
ends "two simulated GPUs with late streams" 0 train 2 late $small precision.dtype=bf16 zero.stage=2
expect "losses match the CPU's" close_losses cpu late 2.5e-4
export DTRAIN_DEVICE=cudasim_races
train 2 races run.max_steps=2 batch.train_batch_size=2 precision.dtype=bf16 zero.stage=3 zero.offload_optimizer=cpu zero.offload_param=cpu \
    checkpoint.async=true checkpoint.save_steps=1
expect_exit "steps with states in host memory and asynchronous saves: no race in kernels or between streams" 0
expect "allocated memory matches the plan, including each stream" as_planned
ends "no race in generation" 0 run 0 ./dtrain-generate "$tmp/races" --prompt "it was" --max-new-tokens 2 --greedy
export DTRAIN_DEVICE=cudasim
generates() { run 0 ./dtrain-generate "$tmp/races" --prompt "it was" --max-new-tokens 6 --greedy; }
generates
grep -v 'new tokens in' "$out" >"$tmp/graphs"
CUDA_SIM_FAIL=cudaGraphInstantiateWithFlags:0:2:memory generates
expect_text "a driver without room for another graph: is said" "out of memory for another CUDA graph \(.*cudaErrorMemoryAllocation"
expect "the text is the same" sh -c "grep -vE 'out of memory for another|new tokens in' '$out' | cmp - '$tmp/graphs'"

# What is seen of a GPU: its streams, ranges of a profiler, what a context takes (123 MiB here, and a workspace of 32 of its default stream), and where it hangs.
tiny="run.max_steps=1 batch.train_batch_size=4"
export CUDA_SIM_DEVICES=2 # of one process: a thread that has not chosen the rank's GPU is noticed
ends "a step with a trace" 0 train 2 traced $tiny comm.backend=nccl zero.stage=2 log.trace=true log.wall_clock_breakdown=true
planned_without_it() { (unset DTRAIN_DEVICE; as_plan_says "$@"); }
expect "allocated memory matches the plan" as_planned
expect "--plan without a GPU gives the same" planned_without_it 2 2 run.device=cuda $tiny comm.backend=nccl log.trace=true log.wall_clock_breakdown=true
expect "the trace is what streams can have done" python3 tests/check_trace.py "$tmp/traced/trace.json" 2 host compute communication
expect "the breakdown has the GPU's time" grep -q '"ms/forward_min": [0-9]' "$tmp/traced/metrics.jsonl"
# The ranks of a node take its GPUs in turn.
on_two_gpus() { CUDA_SIM_DEVICES=2 CUDA_SIM_NAME="NVIDIA H100 80GB HBM3" train "$1" "gpus-$1" $tiny batch.train_batch_size=6 run.self_check=never; }
prints "two ranks on two GPUs have one each" "^comm.backend = auto: nccl" on_two_gpus 2
prints "three share them" "^2 ranks share one device, its memory and its time" on_two_gpus 3
expect_text "ranks that share a GPU do not use NCCL" "^comm.backend = auto: mpi: NCCL needs a GPU for each rank, but 2 ranks share one"
for np in 2 3; do # in fp32
    peaks=$(number gpus-$np flops_per_second | awk '{ print $1 / (2 * 66.9e12) }')
    near "MFU of $np ranks is a part of the peaks of both GPUs" "$(number gpus-$np mfu)" "$peaks" 1e-4
done
CUDA_SIM_NVTX=$tmp/nvtx train 1 ranges $tiny
expect_text "a run says what the driver took" "^device memory after a step: .*; driver, code and libraries use 155 MiB \(planned: 544 MiB\)"
for what in "forward block.0" "backward block.1" "head head" "update embed"; do
    expect "a tool sees the range $what" grep -qx "push $what" "$tmp/nvtx"
done
expect "as many ranges end as begin" test "$(grep -c ^push "$tmp/nvtx")" = "$(grep -c ^pop "$tmp/nvtx")"
export CUDA_SIM_NAME="NVIDIA A100-SXM4-40GB MIG 3g.20gb"
train 2 parts $tiny
expect_text "GPU partitions exchange by MPI unless NCCL is set" \
    "comm.backend = auto: mpi: NCCL may refuse two partitions of one GPU \(MIG\), and this device is $CUDA_SIM_NAME; use mpi"
unset CUDA_SIM_DEVICES CUDA_SIM_NAME
beside_end
e2e_done
