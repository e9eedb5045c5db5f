"""Where and how this process runs: command, commit, device, versions."""

import functools
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def provenance(device: torch.device | str) -> dict[str, Any]:
    """Command, commit, device, threads and versions of this process."""
    device = torch.device(device)
    return {
        "command": command(),
        "commit": commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def command() -> str:
    """What was typed: the `looped` command with its arguments, or the name of the script.

    Of an absolute path only the last part is recorded: its folders mean nothing on another machine.
    """
    name = Path(sys.argv[0]).name
    words = [re.sub(r"(^|=)/(?:[^/]+/)*", r"\1", word) for word in sys.argv[1:]]
    return shlex.join(["looped", *words]) if name in ("looped", "__main__.py") else name


@functools.cache
def commit() -> str | None:
    """The commit of the checkout this library runs from, with a + where files differ.

    LOOPED_COMMIT comes first: a copy of the sources, such as on a borrowed GPU, does not know where it came from.
    """
    if given := os.environ.get("LOOPED_COMMIT"):
        return given
    try:
        arguments = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": True}
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **arguments).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], **arguments).stdout.strip()
        return head + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_name() -> str:
    """The processor's name and its number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
