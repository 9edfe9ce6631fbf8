"""What `clusterprep watch` knows between two looks, and which changes follow from a look. Pure.

`light_plan` says what a look that is repeated asks. `state.WatchState` takes a look and returns
the changes; it is made of `troubles` (findings that come and go), `kernel_news` (new lines of the
kernel's log) and `past` (counters of earlier looks). `schedule` says when to look at what.
"""
