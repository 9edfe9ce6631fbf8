"""The command line: options, commands, what is asked at the terminal, exit codes."""
