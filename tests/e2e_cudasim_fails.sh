#!/bin/bash
# e2e_cudasim_fails.sh - a GPU or NCCL fails on one rank of the simulator (CUDA_SIM_FAIL). That rank reports the error and aborts the job,
# with comm.timeout at half an hour. The simulated NCCL aborts a program that calls it for a failed GPU. If the ranks had met in a vote, all
# would exit independently, which mpirun's output shows.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
[ -e "${BUILD:-build/release}/libdtrain_cudasim.so" ] || { not_ok "the simulator" "make cudasim"; exit 1; }
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
export DTRAIN_DEVICE=cudasim
small="batch.train_batch_size=2 run.max_steps=10 run.self_check=never"

says() { # NAME EXIT REGEX: of the last run
    expect_exit "$1: $2" "$2"
    expect_text "$1: rank 1 says so" "rank 1 .*error: $3"
    expect "$1: no other rank reports an error" [ "$(grep -c 'error: ' "$out")" = 1 ]
}
fails() { # NAME EXIT REGEX CUDA_SIM_FAIL ARGS...
    local name=$1 want=$2 regex=$3 what=$4
    shift 4
    rm -rf "$tmp/fails"
    CUDA_SIM_FAIL=$what RUN_TIMEOUT=60 train 2 fails $small checkpoint.save_steps=1 "$@"
    says "$name" "$want" "$regex"
}
lost() { # NAME REGEX CUDA_SIM_FAIL ARGS...: a GPU that has failed permanently, whose rank enters no further collectives
    fails "$1" 70 "${@:2}"
    leaves "$1"
}
leaves() { # NAME: no vote was the end of the last run
    expect "$1: the job aborts immediately" sh -c "! grep -qE 'terminated +normally|exited with non-zero status' '$out'"
}
goes_on() { # whatever failed, what it had saved is whole
    CUDA_SIM_FAIL= ends_saying "$name: the run resumes from its last checkpoint" 0 'resumed from .*step-0000000' train 2 fails $small run.max_steps=6 "$@"
}

does_not_come_back() {
    CUDA_SIM_FAIL=cudaStreamDestroy:1:1:hang RUN_TIMEOUT=120 train 2 wedged $small run.max_steps=1 comm.timeout=25
    expect_exit "a driver that hangs at the end of a run: 76" 76
    expect_text "each rank reports the phase close" 'rank 0 .*no progress for [0-9]* s \(comm.timeout\): .*phase close'
}
beside does_not_come_back # it mostly waits
fails "out of memory for the first stream" 70 'not enough cuda memory for a stream: 32.0 MiB requested, 16.0 GiB of 16.0 GiB free' \
    cudaMalloc:1:1:memory comm.backend=nccl
fails "NCCL does not connect a rank" 76 'NCCL: connecting the ranks' ncclCommInitRankConfig:1:1:system comm.backend=nccl
for backend in nccl mpi; do
    name="a kernel fails, $backend"
    lost "$name" 'the GPU failed in work .*cudaErrorIllegalAddress.*the last operation queued was [a-z]+.*CUDA_LAUNCH_BLOCKING=1' launch:1:150:illegal \
        comm.backend=$backend zero.stage=3 checkpoint.async=true
    goes_on zero.stage=1
done
lost "NCCL finds that a GPU has failed" 'NCCL: all_gather: .*; the GPU: cudaErrorECCUncorrectable' ncclAllGather:1:2:ecc comm.backend=nccl zero.stage=2
lost "a GPU fails before a matmul of the library is tried" 'the GPU failed in work .*cudaErrorIllegalAddress' cublasLtMatmul:1:1:illegal precision.dtype=bf16
CUDA_SIM_FAIL=cublasLtMatmul:0:1:illegal RUN_TIMEOUT=60 ends "one rank alone ends, too" 70 train 1 blamed $small precision.dtype=bf16
expect "the GPU is reported, not the library" sh -c "grep -q cudaErrorIllegalAddress '$out' && ! grep -q 'cuBLASLt .* computes wrong' '$out'"
fails "a GPU fails while the host waits" 70 'NCCL: exchange between GPUs: .*; the GPU: cudaErrorIllegalAddress.*phase [a-z]+.*; the GPU has failed' \
    ncclAllGather:1:1:hang,ncclCommGetAsyncError:1:30:illegal comm.backend=nccl zero.stage=2

# Stages and transports, at launches of forward, backward, norm and update.
while read -r stage backend nth; do
    lost "stage $stage, $backend, launch $nth" ".*cudaErrorIllegalAddress" launch:1:"$nth":illegal comm.backend="$backend" zero.stage="$stage"
done <<LAUNCHES
0 mpi 30
0 nccl 61
2 mpi 46
2 mpi 47
2 nccl 46
3 mpi 61
3 nccl 30
LAUNCHES
# Each of these ends the job, however the device's call comes by it; and is not given anything back, or waited for.
lost "an error of NVLink, found by a wait" 'waiting for .*cudaErrorNvlinkUncorrectable.*last operation' cudaStreamSynchronize:1:9:nvlink comm.backend=nccl
lost "a contained error, found by a copy" '.*cudaErrorContained' cudaMemcpyAsync:1:30:contained comm.backend=mpi zero.stage=2
lost "an unknown CUDA error, found by an event" '.*cudaErrorUnknown' cudaEventRecord:1:40:unknown comm.backend=nccl zero.stage=2
lost "NCCL is refused a send" 'NCCL: ncclSend.*; the GPU: cudaErrorContained' ncclSend:1:3:contained comm.backend=nccl zero.stage=2
lost "and the end of a group" 'NCCL: reduce_scatter: .*; the GPU: cudaErrorECCUncorrectable' ncclGroupEnd:1:3:ecc comm.backend=nccl zero.stage=3
lost "a driver that hangs after an error" '.*cudaErrorIllegalAddress' launch:1:75:illegal,cudaFree:1:1:hang,cudaStreamDestroy:1:1:hang,cudaEventDestroy:1:1:hang \
    comm.backend=mpi zero.stage=2

# During an asynchronous save: earlier checkpoints are valid, and the failed copy publishes nothing.
for backend in mpi nccl; do
    name="the copy of a save fails, $backend"
    lost "$name" '.*cudaErrorECCUncorrectable' cudaEventQuery:1:1:ecc comm.backend=$backend zero.stage=2 checkpoint.async=true checkpoint.save_steps=2
    expect "$name: nothing was published" [ -z "$(find "$tmp/fails" -name 'step-*.h5')" ]
    name="a kernel fails during an asynchronous save, $backend"
    lost "$name" '.*cudaErrorIllegalAddress' launch:1:260:illegal comm.backend=$backend zero.stage=2 checkpoint.async=true
    goes_on zero.stage=2
done

# Evaluation and generation.
train 2 model $small run.max_steps=1 zero.stage=3
CUDA_SIM_FAIL=launch:1:40:illegal RUN_TIMEOUT=60 train 2 eval run.self_check=never run.task=eval model.path="$tmp/model" data.validation="$tmp/valid.h5"
says "a GPU fails in an evaluation" 70 '.*cudaErrorIllegalAddress'
leaves "a GPU fails in an evaluation"
for nth in 1 40; do
    CUDA_SIM_FAIL=launch:1:$nth:illegal RUN_TIMEOUT=60 run 2 ./dtrain-generate "$tmp/model" --prompt "it was" --num-samples 2 --max-new-tokens 8
    says "a GPU fails in generation, launch $nth" 70 '.*cudaErrorIllegalAddress'
    leaves "a GPU fails in generation, launch $nth"
done

does_not_come_back_from_text() {
    CUDA_SIM_FAIL=cudaStreamDestroy:1:1:hang RUN_TIMEOUT=120 run 2 ./dtrain-generate "$tmp/model" --prompt "it was" --max-new-tokens 2 --timeout 25
    expect_exit "a driver that hangs after generation: 76" 76
    expect_text "each rank reports the phase close after generation" 'rank 0 .*no progress for [0-9]* s \(comm.timeout\): .*phase close'
}
beside does_not_come_back_from_text

# Where one rank alone cannot have NCCL, the log has its reason.
cat >"$tmp/one_part.sh" <<'END'
[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}" != 1 ] || export CUDA_SIM_NAME="NVIDIA A100-SXM4-40GB MIG 3g.20gb"
exec "$@"
END
ends "one rank has a part of a GPU" 0 run 2 sh "$tmp/one_part.sh" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/part" $small run.max_steps=1
expect_text "the reason for MPI is reported" 'comm.backend = auto: mpi: rank 1 on host .*: NCCL may refuse two partitions of one GPU'
beside_end
e2e_done
