"""Every entry point that is fuzzed, by name."""

from __future__ import annotations

from fuzz import commands, folders, hostile, prompts, sweeps, tables
from fuzz.harness import Entry

ENTRIES: dict[str, Entry] = {
    "commands": commands.command_line,
    "overrides": commands.overrides,
    "recipes": commands.recipe_file,
    "predictions": prompts.predictions,
    "baselines": prompts.baselines,
    "judges": prompts.judges,
    "tables": tables.table,
    "corpora": tables.corpus,
    "runs": folders.run_folder,
    "checkpoints": folders.checkpoint,
    "imports": folders.published,
    "hostile": hostile.hostile,
    "sizes": hostile.sizes,
    "own-things": hostile.own_things,
    "texts": hostile.texts,
    "results": folders.results,
    "sweeps": sweeps.sweep,
}
