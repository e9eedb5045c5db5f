"""yang24's decoder in hand-written GPU kernels. These modules import triton: import them only for tensors on a GPU."""
