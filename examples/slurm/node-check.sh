#!/bin/sh
# Judges this node for prolog.sh and healthcheck.sh, logs the result, and ends with one of these codes:
#
# 0: no error. 1: a check failed; stdout has the words for the reason: the checks that failed and the name of the run.
# 3: unknown, because the tool could not determine something (its code 3), was given wrong input (2), has a bug (70), is
# missing (127) or hangs (124). A broken tool must not drain a cluster. So code 1 counts only with a report that names a
# check: a Python that cannot start ends with 1 too.
set -u
export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" # Slurm gives a prolog no PATH

TOOL=clusterprep
TARGET=--local                  # or an inventory with this node alone, for its `require:`, `python:` and `job_user:`
BUDGET=8                        # seconds for the check
KEEP=/run/clusterprep           # folder for the last report, last.json, and the last error, last.err
CONF=${CLUSTERPREP_SLURM_CONF:-/etc/clusterprep/slurm.sh}
# shellcheck source=/dev/null # sets the variables above, and NODE and RESUME, as the site wants them
[ ! -r "$CONF" ] || . "$CONF"

log() { timeout 1 logger -t clusterprep -p "daemon.$1" -- "$2" 2>/dev/null || printf 'clusterprep: %s\n' "$2" >&2; }

# A finding is one line of the report, and a quote inside a text has a backslash before it.
named() {
    printf '%s\n' "$report" |
        sed -n "s/^ *{\"check\": \"\([a-z0-9_.]*\)\", \"verdict\": \"$1\", \"severity\": \"error\", .*\"fixed\": false, \"silenced\": null, .*/\1/p" |
        sort -u | head -n 5 | paste -sd, -
}

errors=/dev/null
{ mkdir -p "$KEEP" && : >"$KEEP/last.err"; } 2>/dev/null && errors=$KEEP/last.err
report=$(timeout -k 1 $((BUDGET + 1)) "$TOOL" check "$TARGET" --budget "$BUDGET" --format json </dev/null 2>"$errors")
code=$?
run=$(printf '%s\n' "$report" | sed -n 's/^ *"run": "\([0-9a-f-]*\)",$/\1/p' | head -n 1)
[ "$errors" = /dev/null ] || printf '%s\n' "$report" >"$KEEP/last.json"
said=$(tail -n 1 "$errors" | tr -cd '[:print:]' | cut -c 1-200)

case $code in
    0) exit 0 ;;
    1)
        failed=$(named fail)
        if [ -n "$failed" ] && [ -n "$run" ]; then
            log err "$failed failed in run $run; $KEEP/last.json has the report"
            echo "$failed $run"
            exit 1
        fi
        log warning "\`$TOOL check\` ended with 1 and without a report that names a failed check: $said"
        ;;
    3) log warning "$(named unknown) could not be determined in run $run; $KEEP/last.json has the report" ;;
    *) log warning "\`$TOOL check\` ended with $code, which says nothing about this node: $said" ;;
esac
exit 3
