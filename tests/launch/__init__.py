"""Tests of `clusterprep launch`."""
