"""Tests of ckptmgr/pipeline."""
