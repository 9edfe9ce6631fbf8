"""Tests of `clusterprep bisect`."""
