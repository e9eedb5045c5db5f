"""Peak memory of a training step with b loops, T of them with gradient: the loops before the window cost none.

Each case runs in its own process, so that nothing is left over from another. On the CPU the measure is the growth of
the process's peak memory during one step, on a GPU it is torch's count. Exits 1 if b=100, T=5 needs over 15% more than
b=10, T=5. The full gradient through b=10 is shown beside it.

    python benchmarks/unroll_memory.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys

import torch

from looped import DecoderConfig, LinearRegression

CASES = {"b=10, T=5": (10, 5), "b=100, T=5": (100, 5), "b=10, all": (10, None)}
LIMIT = 1.15
PLAIN_MALLOC = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
"""With this, glibc returns freed tensors at once, so that the peak is what is in use, not what is in reserve."""
D, POINTS = 20, 41


def peak() -> int:
    """The largest memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def step(model, task, generator, *, batch: int, loops: int, grad: int | None) -> None:
    prompt = task.sample(batch=batch, n=POINTS, generator=generator)
    task.error(model(prompt, loops=loops, grad=grad, keep=grad or loops), prompt).mean().backward()


def measure(loops: int, grad: int | None) -> int:
    """Bytes that one step adds, after a small step that loads libraries and allocates gradients."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = DecoderConfig(d=D, width=256, heads=8, loops=loops).build().to(device)
    task, generator = LinearRegression(d=D), torch.Generator(device).manual_seed(0)
    step(model, task, generator, batch=1, loops=2, grad=None)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(model, task, generator, batch=256, loops=loops, grad=grad)
        return torch.cuda.max_memory_allocated() - before
    before = peak()
    step(model, task, generator, batch=16, loops=loops, grad=grad)
    return peak() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(measure(*CASES[options.case]))
        return 0
    peaks = {}
    for case in CASES:
        arguments = [sys.executable, __file__, "--case", case]
        finished = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True, env=PLAIN_MALLOC)
        peaks[case] = int(finished.stdout)
    ratios = {case: value / peaks["b=10, T=5"] for case, value in peaks.items()}
    holds = ratios["b=100, T=5"] <= LIMIT
    if options.json:
        print(json.dumps({"bytes": peaks, "ratios": ratios, "limit": LIMIT, "holds": holds}, indent=2))
    else:
        print(f"{'peak memory of one step':<24}{'MiB':>8}{'ratio':>8}")
        for case, value in peaks.items():
            print(f"{case:<24}{value / 2**20:>8.1f}{ratios[case]:>8.2f}")
        print(f"b=100, T=5 within {LIMIT - 1:.0%} of b=10, T=5: {'yes' if holds else 'NO'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
