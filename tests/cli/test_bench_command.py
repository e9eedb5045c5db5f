import json

import pytest

from looped.bench.rivals import RivalTrainer
from looped.cli import main

SMALL = ["--device", "cpu", "--scale", "smoke", "--steps", "1"]


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    return ended.value.code


def test_bench_prints_a_table_and_saves(tmp_path, capsys):
    folder = tmp_path / "deep" / "bench"
    assert call(*SMALL, "--no-rivals", "--batch", 4, "--batch", 8, "--out", folder) == 0
    said = capsys.readouterr()
    assert "TFLOP/s" in said.out
    assert "graph: engine `graph` needs a GPU" in said.err
    assert "bench.json" in said.err
    saved = json.loads((folder / "bench.json").read_text())
    assert saved["provenance"]["torch"]
    assert [case["batch"] for case in saved["cases"] if case["ms"] is not None] == [4, 8]
    assert {case["engine"] for case in saved["cases"] if case["ms"] is None} == {"graph", "fused"}
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "bench.svg").read_text()


def test_bench_prints_json_or_nothing(capsys):
    assert call(*SMALL, "--engine", "gpt2", "--batch", 4, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [case["engine"] for case in printed["cases"]] == ["gpt2"]
    assert printed["provenance"]["transformers"]
    assert call(*SMALL, "--engine", "plain", "--engine", "gpt2", "--no-rivals", "--batch", 4, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.long
def test_check_compares_engines(capsys, monkeypatch):
    options = ["--check", "--device", "cpu", "--scale", "smoke", "--batch", 4, "--engine", "gpt2"]
    assert call(*options) == 0
    assert "gpt2: agrees with plain" in capsys.readouterr().out
    real = RivalTrainer._loss
    monkeypatch.setattr(RivalTrainer, "_loss", lambda self, model, index: 1.01 * real(self, model, index))
    assert call(*options, "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["holds"] is False
    assert printed["engines"][0]["gradients"] > 1e-3


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--engine", "fast"], "there is no engine `fast`"),
        (["--engine", "graph"], "`graph` needs a GPU"),
        (["--engine", "gpt2", "--no-rivals"], "leaves nothing to measure"),
        (["--dtype", "bfloat16"], "needs a GPU"),
        (["--dtype", "int8"], "int8"),
        (["--steps", "0"], "`--steps` must be at least 1"),
        (["--batch", "0"], "`batch` must be at least 1"),
        (["--window", "99"], "`window` must be in"),
        (["--packed", "0"], "`packed` must be at least 1"),
        (["--check", "--engine", "plain"], "the other engines are compared with plain"),
        (["--check", "--no-rivals"], "nothing to compare"),
        (["--check", "--dtype", "float64"], "leave `--dtype` out"),
        (["--recipe", "yang24.liner"], "yang24.linear"),
        (["--predict", "--engine", "fused"], "`fused` trains"),
    ],
)
def test_errors_are_one_line(options, reason, refused):
    assert reason in refused("bench", *SMALL, *options)
