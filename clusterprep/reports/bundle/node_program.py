"""The program that asks a node for evidence: a script for /bin/sh that needs no Python there. Pure.

It prints one line for each source, and behind it what is kept of the answer, packed and in base64:

    clusterprep-evidence 0                    the effective user
    kernel-log answered 0 90311 24           how it ended, exit code, bytes in all, length of
    H4sIAAAAAAAAA8tIzcnJVyjPL8pJAQCFEUoNCwAAAA==   what follows
    nvidia-smi absent - 0 0

    end

Answers go through files in the script's own folder, which is removed with it, and not through
pipes: a process that hangs in the kernel cannot be killed, and would hold the other end of a pipe
for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.fabric import program
from clusterprep.fabric.program import ShellProgram, quoted
from clusterprep.reports.bundle.sources import Source

NAME = "clusterprep-evidence"
SECONDS = 300  # for one node; what is left then is not asked
# Blocks of 512 bytes of a file that a command may write; the kernel ends one that writes more.
MOST_BLOCKS = 1 << 18
LONGEST_WAIT = 3  # seconds for a process that was killed; one in the kernel does not end

_FUNCTIONS = """\
umask 077
ulimit -c 0
ulimit -f {blocks}
cd "${{0%/*}}" || exit 1
export LC_ALL=C TMPDIR="$PWD"
PATH="${{PATH:-/usr/bin:/bin}}:/usr/local/sbin:/usr/sbin:/sbin"
until=$(($(date +%s) + {seconds}))

# A process with all that it started.
end() {{
  set -- "$1" $(cat "/proc/$1/task/"*/children 2>/dev/null)
  kill -KILL "$1" 2>/dev/null
  shift
  for child; do end "$child"; done
}}

# Wait for the exit code of a command, at most so many twentieths of a second.
await() {{
  left=$1
  while [ ! -e "$name.code" ] && [ "$left" -gt 0 ]; do
    sleep 0.05 2>/dev/null || sleep 1
    left=$((left - 1))
  done
  [ -e "$name.code" ]
}}

# NAME SECONDS start|end BYTES PROGRAM WORD...: a command.
ask() {{
  name=$1 seconds=$2 keep=$3 most=$4 program=$5
  shift 5
  if [ "$(date +%s)" -ge "$until" ]; then echo "$name skipped - 0 0"; echo; return; fi
  if ! command -v "$program" >/dev/null; then echo "$name absent - 0 0"; echo; return; fi
  : >"$name.out"
  {{
    "$@" >"$name.out" 2>&1 </dev/null &
    echo "$!" >"$name.pid"
    wait "$!"
    echo "$?" >"$name.new"
    mv "$name.new" "$name.code"
  }} &
  ended=answered
  if ! await "$((seconds * 20))"; then
    ended=timed_out
    end "$(cat "$name.pid")"
    await {wait} || ended=hung
  fi
  tell "$(cat "$name.code" 2>/dev/null || echo -)"
  rm -f "$name.out"
}}

# NAME SECONDS start|end BYTES PATH: a file.
look() {{
  if [ ! -e "$5" ]; then echo "$1 absent - 0 0"; echo; return; fi
  if [ ! -f "$5" ]; then echo "$1 no_file - 0 0"; echo; return; fi
  if [ ! -r "$5" ]; then echo "$1 refused - 0 0"; echo; return; fi
  ask "$1" "$2" "$3" "$4" cat cat -- "$5"
}}

# CODE: what the command of `ask` printed.
tell() {{
  size=$(wc -c <"$name.out")
  if [ "$keep" = end ]; then tail -c "$most" "$name.out"; else head -c "$most" "$name.out"; fi |
    gzip -nc | base64 | tr -d '\\n' >packed
  length=$(wc -c <packed)
  echo "$name $ended $1 $((size)) $((length))"
  cat packed
  echo
}}

echo "{name} $(id -u)"
"""


def program_for(sources: Iterable[Source]) -> ShellProgram:
    """Return the program that asks a node for these sources, one after the other."""
    return program.of_script("evidence.sh", script(sources).encode())


def script(sources: Iterable[Source]) -> str:
    """Return the script."""
    head = _FUNCTIONS.format(
        blocks=MOST_BLOCKS,
        seconds=SECONDS,
        wait=LONGEST_WAIT * 20,
        name=NAME,
    )
    return "".join([head, *map(_line, sources), "echo end\n"])


def _line(source: Source) -> str:
    function = "look" if source.is_file else "ask"
    words = [source.name, str(source.seconds), source.keep, str(source.most)]
    if not source.is_file:
        words.append(source.program)
    quoted_words = " ".join(quoted(word) for word in (*words, *source.argv))
    return f"{function} {quoted_words}\n"
