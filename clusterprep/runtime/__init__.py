"""What every command needs from the process it runs in: clocks, limits, signals, files, plug-ins.

`deadline` ends a command by signals and `--timeout` where it looks, `supervisor` waits for them in
the main thread, `budget` shares out `--budget`, `clock` counts only the seconds in which this
process ran, `files` opens what is written. Imports `errors` alone. Begin with `deadline`.
"""
