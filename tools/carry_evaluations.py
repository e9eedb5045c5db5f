"""Turn the evaluations in `results/paper_runs` into readings, so that Figure 2 of gao24 needs no such training again.

    python tools/carry_evaluations.py [--runs runs]

The weights of those trainings are lost, their errors on the figure's own 1,280 prompts are not. Draws behind intervals
over prompts are lost too: three seeds need none. Can go when the figure is measured.
"""

import argparse
from pathlib import Path

from looped.evaluation.curves import Curve
from looped.files import read_json, write_bytes
from looped.papers.gao24.figures import FIG2, PointCurves
from looped.studies.measures import add_curve, shown_loops, trained_loops
from looped.studies.readings import Reading, Wanted
from looped.studies.table import Table
from looped.training.run import Run

SOURCE = Path(__file__).parent.parent / "results" / "paper_runs"


def reading(entry: Wanted, run: Run) -> Reading:
    """What `PointCurves.add_model` would read from the weights; its curve by loops ends at the trained loops here."""
    measure, experiment, table = entry.measure, entry.experiment, Table()
    assert isinstance(measure, PointCurves)
    evaluation = read_json(run.path / "evaluation.json")["b"]
    assert (evaluation["prompts"], evaluation["level"]) == (measure.prompts, measure.level)
    assert _fields(evaluation["task"]) == _fields(str(experiment.task))
    assert evaluation["loops"] == experiment.model.loops
    options = {"seed": experiment.train.seed}
    by_examples = Curve(**evaluation["by_examples"][0])
    add_curve(table, entry.cell, "by_examples", measure.example_curve(by_examples, experiment.task), **options)
    shown = shown_loops(measure.far(experiment), trained_loops(experiment))
    by_loops = evaluation["by_loops"]
    places = [by_loops["x"].index(loop) for loop in shown]
    ends = {name: [by_loops[name][place] for place in places] for name in ("mean", "low", "high")}
    add_curve(table, entry.cell, "by_loops", Curve(label="", x=shown, **ends), **options)
    table.add(entry.cell, "trained_loops", trained_loops(experiment), **options)
    table.add(entry.cell, "layers_applied", experiment.model.layers_applied, **options)
    table.add(entry.cell, "parameters", experiment.model.build().num_parameters, **options)
    facts = run.provenance()
    measured = {"commit": facts["commit"], "device": facts["device"]}
    return Reading(
        series=tuple(table), run=experiment.folder, path=Path(run.path.name), training=facts, measured=measured
    )


def _fields(task: str) -> list[str]:
    """The fields of a task's repr, whose order was another when it was written."""
    return sorted(task.replace(")", "").replace("(", ", ").split(", "))


def main() -> None:
    """One line a reading."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    runs = parser.parse_args().runs
    for entry in FIG2.measure("paper").readings(FIG2.cells("paper"), runs):
        folder = SOURCE / entry.experiment.folder
        if folder.exists() and not entry.file.exists():
            entry.file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(entry.file, reading(entry, Run.open(folder)).to_bytes())
            print(entry.experiment.folder)


if __name__ == "__main__":
    main()
