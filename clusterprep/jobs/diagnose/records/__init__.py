"""Reads what a job that hangs leaves beside its logs, so that it is diagnosed like a log.

* `reading` tells such files by their content, whatever their name, and reads them.
* `flight_recorder` makes `Dump` values of what torch's flight recorder wrote, of any version, and
  `pickled` decodes its pickles without running what they say.
* `waiting` compares the dumps of all ranks: which one is not where the others wait.
* `ras` reads NCCL's RAS, `stacks` the Python stacks of py-spy and of Python's fault handler.

`records` puts together what they tell.
"""
