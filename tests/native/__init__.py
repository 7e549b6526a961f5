"""Tests of the sharing library on a fake driver."""
