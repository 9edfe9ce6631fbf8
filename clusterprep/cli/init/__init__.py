"""`clusterprep init`: look at hosts and write a commented inventory of them.

`sources` says which hosts, `look` asks them, `kinds` and `draft` say which settings follow, `rows`
folds names and addresses, and `yaml_text` writes. Begin with `command`.

Hosts are asked with the agents and facts of `check`, and asked twice where host keys are to be
learnt, so that the keys are shown first. After that all is computed. The written text is read back
by the loader before it takes its place.
"""
