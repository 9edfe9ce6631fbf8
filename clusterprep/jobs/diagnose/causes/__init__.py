"""The causes that diagnose knows, one file per family. Every `Cause` in these files is one."""
