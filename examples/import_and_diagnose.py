"""Is a trained model stable beyond its trained loops, and which algorithm does it run?

python examples/import_and_diagnose.py                   # a model that comes with looped
python examples/import_and_diagnose.py state.pt          # a checkpoint of yang24's or Garg et al.'s program
"""

import sys

import looped
from looped.evaluation.diagnose import diagnose
from looped.evaluation.identify import identify
from looped.training.importer import import_checkpoint


def main(checkpoint=None, *, loops=100, prompts=64, identified_loops=3):
    """Diagnose a kept model, or an imported one, and name the algorithm of its first loops."""
    if checkpoint is None:
        run = looped.Run.open("yang24.linear")
    else:
        run, remark = import_checkpoint(checkpoint, "runs/imported", heads=8)
        print(remark)
    model, task = run.model(), run.setup.task
    print(diagnose(model, task, points=41, loops=loops, prompts=prompts).verdict)
    for loop in identify(model, task, points=41, loops=identified_loops, prompts=prompts).loops:
        nearest = "answers 0" if loop.best is None else f"{loop.name}, distance {loop.best.distance:.3g}"
        print(f"loop {loop.loop}: {nearest}")


if __name__ == "__main__":
    main(*sys.argv[1:])
