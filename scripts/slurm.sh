#!/usr/bin/env bash
# Starts and stops a Slurm cluster of one node on this machine (Debian, as root), to try `trbench scenario run --backend slurm`.
#   bash scripts/slurm.sh start | stop
set -euo pipefail

start() {
    command -v slurmctld >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge; }
    mkdir -p /etc/slurm /var/lib/slurm/ctld /var/lib/slurm/d /var/log/slurm /run/munge
    chown -R slurm /var/lib/slurm /var/log/slurm
    chown munge /run/munge
    [[ -f /etc/munge/munge.key ]] || { dd if=/dev/urandom bs=1 count=1024 of=/etc/munge/munge.key status=none; chown munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
    local host
    host=$(hostname -s)
    cat >/etc/slurm/slurm.conf <<EOF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/ctld
SlurmdSpoolDir=/var/lib/slurm/d
SlurmctldLogFile=/var/log/slurm/ctld.log
SlurmdLogFile=/var/log/slurm/d.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF
    touch /run/slurmctld.pid && chown slurm /run/slurmctld.pid
    pgrep -x munged >/dev/null || runuser -u munge -- munged
    pgrep -x slurmctld >/dev/null || slurmctld
    pgrep -x slurmd >/dev/null || slurmd
    until sinfo --noheader -o %T 2>/dev/null | grep -qE 'idle|mixed|allocated'; do sleep 1; done
    sinfo
}

stop() {
    pkill -x slurmd || true
    pkill -x slurmctld || true
    pkill -x munged || true
    # Wait until they have ended, so that they can be started again.
    while pgrep -x slurmd || pgrep -x slurmctld || pgrep -x munged; do sleep 0.2; done >/dev/null
}

case ${1:-} in
    start) start ;;
    stop) stop ;;
    *) sed -n 2,3p "$0" >&2; exit 2 ;;
esac
