"""Tests of `clusterprep init`."""
