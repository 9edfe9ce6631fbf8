#!/bin/sh
# Prolog= of slurm.conf: a node on which a check fails gets no job.
#
# A prolog that ends with a code other than 0 drains the node and requeues the job. Slurm's own reason would be «Prolog
# error», so our reason is set first; Slurm keeps an existing reason. slurmctld is called only for a node that fails:
# Slurm's commands in prologs of large jobs are a load for it.
set -u
export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" # Slurm gives a prolog no PATH
here=$(dirname "$0")
NODE=${SLURMD_NODENAME:-$(uname -n | cut -d . -f 1)}
CONF=${CLUSTERPREP_SLURM_CONF:-/etc/clusterprep/slurm.sh}
# shellcheck source=/dev/null # may set NODE
[ ! -r "$CONF" ] || . "$CONF"

words=$("$here/node-check.sh")
[ $? -eq 1 ] || exit 0 # passed, or unknown: only a known failure keeps jobs away
"$here/clusterprep-drain" drain "$NODE" "$words"
exit 1
