"""Kernels written for a GPU; their modules import triton, so they are imported only where a tensor lies on one."""
