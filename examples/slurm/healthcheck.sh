#!/bin/sh
# HealthCheckProgram= of slurm.conf: drains a node on which a check fails; with RESUME=yes also resumes it.
#
# Slurm ignores the exit code of this program, so it drains by itself. It resumes only nodes that it or prolog.sh has
# drained, and only if the site's file says RESUME=yes: an administrator should look at a fault that comes and goes.
set -u
export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" # Slurm gives a prolog no PATH
here=$(dirname "$0")
RESUME=no
NODE=${SLURMD_NODENAME:-$(uname -n | cut -d . -f 1)}
CONF=${CLUSTERPREP_SLURM_CONF:-/etc/clusterprep/slurm.sh}
# shellcheck source=/dev/null # may set RESUME and NODE
[ ! -r "$CONF" ] || . "$CONF"

words=$("$here/node-check.sh")
case $? in
    1) "$here/clusterprep-drain" drain "$NODE" "$words" ;;
    0)
        [ "$RESUME" = yes ] || exit 0
        case $("$here/clusterprep-drain" show "$NODE") in
            *DRAIN*' clusterprep: '*) "$here/clusterprep-drain" resume "$NODE" ;;
        esac
        ;;
esac
exit 0
