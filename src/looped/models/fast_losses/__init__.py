"""Training losses written by hand for one paper's figures each; models of your own train without them.

`cheng24_*` is the in-context loss of cheng24's kernel transformers, `gatmiry24_gpu` a step of gatmiry24's loss, and
`batch_last` the memory layout that both use. The `*_gpu` modules import triton: import them only for tensors on a GPU.
"""
