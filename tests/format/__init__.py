"""Tests of ckptmgr/format."""
