import torch


def draw(task, *, batch=5, n=4, seed=0, dims=None):
    """The prompts that one seed names."""
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed), dims=dims)
