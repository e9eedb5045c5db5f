import json
import os
import shutil
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from fcntl import F_DUPFD, fcntl
from select import select

import pytest
import torch

from looped.evaluation.curves import evaluate
from looped.evaluation.saved import save_evaluation
from looped.experiment import Experiment, TrainConfig
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.trainer import train

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
# chromium speaks on descriptors 3 and 4, wherever ours happen to be
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """Headless Chromium over its debugging pipe: JSON messages that end in a zero byte."""

    def __init__(self, write, read):
        self.write, self.read, self.count, self.rest, self.events = write, read, 0, b"", deque()
        target = self.call("Target.createTarget", session=None, url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", session=None, targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, session="own", **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def message(self):
        while b"\0" not in self.rest:
            assert select([self.read], [], [], 30)[0], "chromium fell silent for 30 s"
            part = os.read(self.read, 1 << 20)
            assert part, "chromium closed its pipe"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def open(self, page, width=1200, height=900, dark=False):
        """Load a file at a width and a preferred colour scheme; returns every event up to its load."""
        self.events.clear()
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=media)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())
        return list(self.events)

    def js(self, expression):
        """The value of an expression on the page, by value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")


@contextmanager
def chromium(profile):
    """A browser with an empty profile; it ends with the block."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine (chromium, chromium-browser, google-chrome): pages were not opened")
    to_read, to_write, from_read, from_write = (_above_ten(end) for end in (*os.pipe(), *os.pipe()))
    command = [program, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(to_read), str(from_write), *command],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        browser = Browser(to_write, from_read)
        yield browser
        browser.call("Browser.close", session=None)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
        os.close(from_read)


def _above_ten(descriptor):
    """The same pipe end under a number that cannot collide with 3 and 4."""
    high = fcntl(descriptor, F_DUPFD, 10)
    os.close(descriptor)
    return high


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def experiment():
    task = LinearRegression(d=3, noise=0.5)
    model = DecoderConfig(d=3, width=16, heads=2, loops=3, positions=24)
    return Experiment(name="tiny", task=task, model=model, train=TrainConfig(steps=6, batch=8, points=9, log_every=2))


@pytest.fixture(scope="session")
def evaluated(experiment, tmp_path_factory):
    """A run, trained and evaluated on noisy and on clean labels."""
    torch.set_num_threads(1)
    run = train(experiment, out=tmp_path_factory.mktemp("runs"))
    for name, task in {"noisy labels": experiment.task, "clean labels": LinearRegression(d=3)}.items():
        save_evaluation(run, name, evaluate(run.model(), task, points=9, prompts=64))
    return run


@pytest.fixture(scope="session")
def trained(experiment, tmp_path_factory):
    """A run that was trained and not evaluated."""
    torch.set_num_threads(1)
    return train(replace(experiment, name="bare"), out=tmp_path_factory.mktemp("runs"))
