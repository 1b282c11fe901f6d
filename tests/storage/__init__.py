"""Tests of ckptmgr/storage."""
