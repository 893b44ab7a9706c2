#!/bin/bash
# e2e_memory_limit.sh - a model whose states exceed the memory limit of a cgroup: it trains with states in files and is refused without.
# Needs permission to create a cgroup with a memory limit (root on the host; most containers lack it).
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
limit=600000000
states='51 million parameters, 814 MB of states'

# Creates a cgroup with this limit; sets $group to its folder. Version 1 of cgroups: a child of this script's group. Version 2: a sibling, since a group
# that has processes has none with limits below it.
make_group() {
    local below beside
    below=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
    beside=$(sed -n 's/^0:://p' /proc/self/cgroup)
    if [ -n "$below" ]; then
        group=/sys/fs/cgroup/memory${below%/}/dtrain-$$
        mkdir "$group" && echo "$1" >"$group/memory.limit_in_bytes"
    else
        group=/sys/fs/cgroup${beside%/*}/dtrain-$$
        mkdir "$group" && echo "$1" >"$group/memory.max"
    fi
}
remove_group() { [ ! -d "${group:-}" ] || rmdir "$group"; }
if ! make_group $limit 2>"$tmp/.why"; then
    remove_group 2>/dev/null
    skip "$states in $((limit / 1000000)) MB" "no cgroup with a limit of memory can be made here: $(tail -1 "$tmp/.why")"
    exit 0
fi
trap 'kill $(jobs -p) 2>/dev/null; remove_group; rm -rf "$tmp"' EXIT

make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
mkdir "$tmp/disk"
model="model.hidden_size=512 model.intermediate_size=1376 model.num_hidden_layers=16 model.num_attention_heads=8 model.num_key_value_heads=8"
model="$model batch.train_batch_size=2 batch.micro_batch_size=2 run.max_steps=3 optimizer.lr=1e-3"
buffers="zero.nvme_path=$tmp/disk zero.sub_group_size=1000000 zero.buffer_count=3"
files="zero.stage=3 zero.offload_optimizer=nvme zero.offload_param=nvme $buffers"
dtrain_in_group() { run 0 bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$1" $model "${@:2}"; }

run 0 bash -c 'echo $$ >"$0/cgroup.procs"; head -c 814000000 /dev/zero | tail -n 1 >"$1"; exit ${PIPESTATUS[1]}' "$group" "$tmp/line"
expect "the limit holds: who takes as much memory is killed" test "$code" -gt 128
dtrain_in_group memory $buffers
expect_exit "$states in $((limit / 1000000)) MB: refused before it starts" 70
expect_text "the smallest change that fits is named" 'the smallest change that fits is .*zero\.offload_optimizer = nvme'
RUN_TIMEOUT=600 ends_saying "a model with states in files trains" 0 "for offloaded states in $tmp/disk" dtrain_in_group files $files
train 1 free $model
expect "losses match those of a run with enough memory" close_losses free files 1e-5
e2e_done
