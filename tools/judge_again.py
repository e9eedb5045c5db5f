"""Judge kept results by the claims and guards of today: `python tools/judge_again.py results`.

Numbers, settings and provenance stay; results of other settings are left alone. Prints every verdict that changed.
"""

import sys
from pathlib import Path

from looped.files import read_json, write_json
from looped.reproduce import kept_results


def main(folder: Path) -> None:
    """Rewrite the claims of every result of a folder."""
    for result in kept_results(folder):
        content, claims = read_json(result.path), [claim.to_data() for claim in result.claims]
        if result.outdated or content["claims"] == claims:
            continue
        before = {claim["id"]: claim["verdict"] for claim in content["claims"]}
        write_json(result.path, {**content, "claims": claims})
        for claim in result.claims:
            if before.get(claim.id) != claim.verdict:
                why = claim.note.partition("; ")[0]
                print(f"{claim.id} ({result.scale}): {before.get(claim.id)} -> {claim.verdict}; {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
