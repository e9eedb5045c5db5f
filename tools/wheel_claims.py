"""Put the verdicts into the wheel, as looped/results: each result without its numbers, which would take 6 MB."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Called while a wheel is built, also from the sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the results without their tables beside the build, and name them to it."""
        if version == "editable":
            return
        self.folder = tempfile.TemporaryDirectory()
        for path in sorted(Path(self.root, "results").glob("*.json")):
            result = json.loads(path.read_text())
            del result["table"]
            short = Path(self.folder.name, path.name)
            short.write_text(json.dumps(result))
            build_data["force_include"][str(short)] = f"looped/results/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove them."""
        if version != "editable":
            self.folder.cleanup()
