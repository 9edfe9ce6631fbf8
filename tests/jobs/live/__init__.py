"""Tests of `clusterprep diagnose --live`."""
