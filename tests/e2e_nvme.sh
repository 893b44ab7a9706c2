#!/bin/bash
# e2e_nvme.sh - I/O failures of states in files: on one rank only, by system errors and by injected ones, between any two phases of an
# update, and by a kill. The last checkpoint is unchanged, training resumes from it with the same bits, and no files remain on the disk.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
mkdir "$tmp/disk"
steps="run.reproducible=true checkpoint.save_steps=2 run.max_steps=4"
states="zero.offload_optimizer=nvme zero.nvme_path=$tmp/disk zero.sub_group_size=4096"
all="zero.stage=3 $states zero.offload_param=nvme"

checkpoint() { echo "$tmp/$1/checkpoints/step-0000000$2.h5"; }
on_disk() { find "$tmp/disk" -mindepth 1; }

ends "a run with all states in memory" 0 train 2 whole $steps
ends "its first half with all states in files" 0 train 2 base $steps $all run.max_steps=2
expect "has the same bits" same_model "$(checkpoint whole 2)" "$(checkpoint base 2)"
expect "no files remain on the disk" test -z "$(on_disk)"

# resumes from the checkpoint of base, in a separate directory: NAME NP ARGS...
go_on() {
    local name=$1 np=$2
    shift 2
    rm -rf "$tmp/$name"
    cp -r "$tmp/base" "$tmp/$name"
    train "$np" "$name" $steps "$@"
}
untouched() {
    expect "$1: the last checkpoint is as it was" cmp "$(checkpoint base 2)" "$(newest "$2")"
    expect "$1: nothing is left on the disk" test -z "$(on_disk)"
}
# from a checkpoint that a fault left, with all states in files or in memory
same_bits() {
    local name=$1 np=$2
    shift 2
    train "$np" "$name" $steps "$@"
    expect "training resumes from it with the same bits" same_model "$(checkpoint whole 4)" "$(checkpoint "$name" 4)"
}

# A disk on which the random start alone takes longer than comm.timeout: what moves on is no hang. (16 s of waiting)
slow_start() {
    local i faults=
    for i in {1..16}; do faults=$faults,swap.write:0:$i:slow; done
    DTRAIN_FAULT=${faults#,} train 1 slow $all run.max_steps=1 comm.timeout=8
    expect_exit "a random start on a slow disk" 0
}
beside slow_start

# every way of transfers, and transfers that move less than they were asked to
for way in io_uring posix_aio buffered posix_aio,buffered; do
    DTRAIN_SWAP_IO=$way go_on ways 2 $all
    if [ $code = 64 ] && grep -q 'DTRAIN_SWAP_IO=io_uring is not available' "$out"; then skip "states in files by $way" "this build or kernel has none"; continue; fi
    expect "states in files by $way" same_model "$(checkpoint whole 4)" "$(checkpoint ways 4)"
done
DTRAIN_FAULT=swap.read:1:30:short,swap.read:1:31:short,swap.write:1:20:short go_on short 2 $all
expect "transfers that are short are continued" same_model "$(checkpoint whole 4)" "$(checkpoint short 4)"

# ---- one rank's file fails ----
offset='bytes at offset [0-9]+ of an unnamed file'
fails() { # name fault np text
    local name="$1 on one rank of $3"
    DTRAIN_FAULT=$2 ends_saying "$name: 74" 74 "rank 1 .*$tmp/disk: $4" go_on fault "$3" $all
    untouched "$name" fault
}
for np in 2 3; do
    fails "an error of the disk while it is read" swap.read:1:40:error $np "cannot read offloaded states: [0-9]+ $offset: Input/output error \(at offset [0-9]+\)"
    same_bits fault $np $all
    fails "an error of the disk while it is written" swap.write:1:30:error $np "cannot write offloaded states: [0-9]+ $offset: Input/output error"
    fails "a disk that is full after all" swap.write:1:25:nospace $np "cannot write offloaded states: [0-9]+ $offset: No space left on device"
    same_bits fault $np
    fails "a checkpoint that cannot be read into the file" swap.write:1:1:error $np "cannot write offloaded states: [0-9]+ $offset: Input/output error"
    fails "no file" swap.open:1:1:nospace $np "cannot create a file for offloaded states: No space left on device"
done

mkdir "$tmp/node" "$tmp/node/disk" "$tmp/other"
ln -s "$PWD/dtrain" "$tmp/node/dtrain"
for np in 2 3; do
    rm -rf "$tmp/missing"
    cp -r "$tmp/base" "$tmp/missing"
    cd "$tmp/node" || exit 1
    set -- ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/missing" $steps $all zero.nvme_path=disk
    run 0 $MPIRUN -np $((np - 1)) "$@" : -np 1 bash -c 'cd ../other && exec ../node/"$0" "$@"' "$@"
    cd "$OLDPWD" || exit 1
    expect_exit "a directory that one rank of $np does not have: 74" 74
    expect_text "the message names rank and reason" "rank $((np - 1)) .*disk: cannot create a file for offloaded states: No such file or directory"
    untouched "a directory that one rank of $np does not have" missing
done

full_only

# Runs COMMAND while rank 1 is stopped at POINT: NP NAME POINT COMMAND...; COMMAND receives the process ID
while_stopped() {
    local np=$1 name=$2 point=$3 p
    shift 3
    rm -rf "$tmp/$name"
    cp -r "$tmp/base" "$tmp/$name"
    DTRAIN_FAULT=$point:1:1:stop start "$np" "$name" $steps $all
    wait_until_stopped "$name" 1
    for p in $(ranks_of "$name"); do
        ! sed 's/.*) //' "/proc/$p/stat" | grep -q '^T' || { "$@" "$p"; kill -CONT "$p"; }
    done
    finish "$name"
}
cut_short() {
    local f
    for f in /proc/"$1"/fd/*; do
        case $(readlink "$f") in "$tmp/disk/"*"(deleted)") truncate -s 4096 "$f" ;; esac
    done
}
for np in 2 3; do
    if command -v prlimit >/dev/null; then
        ends "a limit on files on one rank of $np: 74" 74 while_stopped $np limit swap.open prlimit --fsize=100000 --pid
        expect_text "the message names rank and reason" "rank 1 .*$tmp/disk: not enough space for offloaded states of .*: File too large"
        untouched "a limit on files on one rank of $np" limit
    else
        skip "a limit on files on one rank of $np" "no prlimit here"
    fi
    while_stopped $np cut zero.reduce cut_short # before anything is read ahead of the update
    expect_exit "a file that is cut short, of one rank of $np: 74" 74
    expect_text "the message names rank, offset and reason" "rank 1 .*$tmp/disk: cannot read offloaded states: [0-9]+ $offset: the file ends there"
    untouched "a file that is cut short, of one rank of $np" cut
done

# ---- between any two phases of the pipeline ----
# down: gradients came down; read, step, up, write: of a sub-group; gather: of what was updated
phase() { # POINT NTH KIND ARGS...
    local name="$3 at $1:$2"
    DTRAIN_FAULT=$1:1:$2:$3 go_on phase 2 "${@:4}"
    expect "$name ends the run" test "$code" != 0
    untouched "$name" phase
}
for kind in error kill; do
    for point in reduce:5 down:1 step:1 step:7 read:3 read:20 write:2 write:12 gather:9; do
        phase "zero.${point%:*}" "${point#*:}" $kind $all
    done
    for point in down:2 read:2 step:4 up:1 up:6 write:5 gather:1; do
        phase "zero.${point%:*}" "${point#*:}" $kind zero.stage=2 $states precision.dtype=bf16
    done
    phase save.write 1 $kind $all
    phase save.copy 1 $kind $all checkpoint.async=true checkpoint.save_steps=1
    phase save.write 1 $kind $all checkpoint.async=true checkpoint.save_steps=1
    if [ $kind = error ]; then same_bits phase 2; else same_bits phase 2 $all; fi
done

# ---- a kill ----
if mount -t tmpfs -o size=64m none "$tmp/disk" 2>/dev/null; then
    trap 'kill $(jobs -p) 2>/dev/null; umount "$tmp/disk"; rm -rf "$tmp"' EXIT
    is_empty() { test "$(df --output=used "$tmp/disk" | tail -1)" -eq 0; }
else
    is_empty() { test -z "$(on_disk)"; }
fi
has_steps() { [ "$(grep -c '"loss"' "$tmp/$1/metrics.jsonl")" -gt 5 ]; }
start 2 killed $steps $all run.max_steps=100000 checkpoint.save_steps=0 log.logging_steps=1
wait_for has_steps killed
expect "a file has no name while it is used" test -z "$(on_disk)"
kill -9 $(ranks_of killed)
finish killed
expect "a run that is killed leaves nothing on the disk, no blocks either" wait_for is_empty
beside_end
e2e_done
