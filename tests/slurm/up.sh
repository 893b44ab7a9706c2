#!/bin/bash
# up.sh [NODES] [CPUS] - start a private Slurm on loopback: munged, slurmctld and NODES slurmd, all on this host, as root, without systemd.
# State, logs and process ids are in $SLURM_TEST_DIR; then `. $SLURM_TEST_DIR/env`. tests/slurm/down.sh --purge stops exactly these processes.
set -eu
D=${SLURM_TEST_DIR:?the folder for its state}; N=${1:-2}; C=${2:-16}
BASE=${SLURM_TEST_PORT:-26817}
COMM=${SLURM_TEST_COMM-NoInAddrAny,NoCtldInAddrAny}  # bind to 127.0.0.1 only (the hostname must resolve: needs any non-loopback IPv4 address up)
export PATH=$PATH:/usr/sbin:/sbin
alive() { [ -s "$D/run/$1.pid" ] && [ -s "$D/run/$1.st" ] && local p && p=$(cat "$D/run/$1.pid") &&
  [ "$(awk '$3 != "Z" {print $22}' /proc/$p/stat 2>/dev/null)" = "$(cat "$D/run/$1.st")" ]; }
start() { # name cmd...
  local n=$1; shift
  alive "$n" && { echo "$n already running"; return; }
  setsid "$@" </dev/null >>"$D/log/$n.out" 2>&1 &
  local p=$!; sleep 0.1
  echo $p >"$D/run/$n.pid"; awk '{print $22}' /proc/$p/stat >"$D/run/$n.st" || { echo "$n died:"; tail -5 "$D/log/$n.out"; exit 1; }
}
wait_for() { # seconds daemon cmd...
  local t=$(( $(date +%s) + $1 )) n=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    if ! alive "$n" || [ "$(date +%s)" -ge $t ]; then echo "$n not ready:" >&2; tail -5 "$D/log/$n.out" >&2; "$(dirname "$0")/down.sh"; exit 1; fi
    sleep 0.1
  done; }
mkdir -p "$D"/{etc,run,log,state,spool,tmp}; for i in $(seq "$N"); do mkdir -p "$D"/{tmp,spool}/node$i; done; chmod 755 "$D" "$D"/*
H=$(hostname -s)
K="$D/etc/munge.key"; [ -s "$K" ] || { (umask 077; head -c 128 /dev/urandom >"$K"); }
export SLURM_CONF=$D/etc/slurm.conf
if ! alive slurmctld; then
: >"$D/etc/plugstack.conf"
cat >"$SLURM_CONF" <<EOF
ClusterName=dtrain
SlurmctldHost=$H(127.0.0.1)
SlurmctldPort=$BASE
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$D/run/munge.socket
TmpFS=$D/tmp/%n
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.own.pid
SlurmdPidFile=$D/run/%n.own.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/%n.log
PlugStackConfig=$D/etc/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=100000
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
SwitchType=switch/none
KillWait=5
MinJobAge=600
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=10
${COMM:+CommunicationParameters=$COMM}
SrunPortRange=$((BASE+100))-$((BASE+200))
NodeName=node[1-$N] NodeHostname=$H NodeAddr=127.0.0.1 Port=[$((BASE+1))-$((BASE+N))] CPUs=$C Sockets=1 CoresPerSocket=$C ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
EOF
fi
start munged munged --foreground --force --key-file="$K" --socket="$D/run/munge.socket" \
  --pid-file="$D/run/munged.own.pid" --log-file="$D/log/munged.log" --seed-file="$D/run/munge.seed"
wait_for 5 munged munge -n -S "$D/run/munge.socket"
start slurmctld slurmctld -D -f "$SLURM_CONF"
up() { timeout 5 scontrol ping 2>/dev/null | grep -q 'is UP'; }; wait_for 20 slurmctld up
for i in $(seq "$N"); do start node$i slurmd -D -N node$i -f "$SLURM_CONF"; done
ready() { [ "$(timeout 5 sinfo -h -N -o %T | grep -Ec '^(idle|mixed|allocated)$')" = "$N" ]; }; wait_for 20 node1 ready
echo "export SLURM_CONF=$SLURM_CONF" >"$D/env"
sinfo
