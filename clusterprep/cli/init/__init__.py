"""The command `clusterprep init`: look at hosts and write a commented inventory of them."""
