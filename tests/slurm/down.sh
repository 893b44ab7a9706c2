#!/bin/bash
# down.sh [--purge] - stop the processes that up.sh started: ids in $SLURM_TEST_DIR/run, each checked against its start time.
D=${SLURM_TEST_DIR:?the folder of its state}; export SLURM_CONF=$D/etc/slurm.conf PATH=$PATH:/usr/sbin:/sbin
alive() { [ -s "$D/run/$1.pid" ] && [ -s "$D/run/$1.st" ] && local p && p=$(cat "$D/run/$1.pid") &&
  [ "$(awk '$3 != "Z" {print $22}' /proc/$p/stat 2>/dev/null)" = "$(cat "$D/run/$1.st")" ]; }
stop() { local n=$1 i
  if alive "$n"; then
    kill -TERM "$(cat "$D/run/$n.pid")" 2>/dev/null
    for i in $(seq 100); do alive "$n" || break; sleep 0.1; done
    alive "$n" && kill -KILL "$(cat "$D/run/$n.pid")" 2>/dev/null
  fi
  rm -f "$D/run/$n.pid" "$D/run/$n.st"; }
if alive slurmctld; then
  ids=$(timeout 10 squeue -h -o %A 2>/dev/null | sort -u); [ -n "$ids" ] && timeout 10 scancel -f $ids 2>/dev/null
  for i in $(seq 150); do [ -z "$(timeout 5 squeue -h -t R,CG,S 2>/dev/null)" ] && break; sleep 0.1; done
fi
for p in $(ls "$D"/run/*.pid 2>/dev/null | sed 's!.*/!!;s/\.pid$//' | grep '^node'); do stop "$p"; done
stop slurmctld; stop munged
rm -f "$D"/run/*.own.pid
[ "${1:-}" = --purge ] && rm -rf "$D"
exit 0
