"""Tests of the guard on real ranks."""
