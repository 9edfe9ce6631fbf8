"""Tests of what is made of logs."""
