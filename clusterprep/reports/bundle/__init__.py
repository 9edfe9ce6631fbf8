"""An archive of evidence: the report of a run, and what each node answered, to hand over.

It opens with tar and a browser alone. `sources` is the table of what nodes are asked,
`node_program` the program that asks it there, `node_answers` reads what it prints. `cleaning` takes
secrets out, `anonymous` names too. `contents` chooses what is inside and in which order,
`index_page` lists it, and `archive` writes it. Begin with `contents`.
"""
