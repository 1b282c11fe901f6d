"""Tests of ckptmgr/tree."""
