import io
import json
import os
import pickle
import random

import pytest
import torch
from safetensors.torch import save

from looped.files import read_json, read_tensors, regular, write_bytes, write_json, write_tensors

TENSORS = {
    "model/a": torch.arange(6.0).reshape(2, 3),
    "model/half": torch.ones(3, dtype=torch.float16),
    "optimizer/step": torch.tensor(3.0),
    "generator": torch.arange(20, dtype=torch.uint8),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
}
ABOUT = {"step": 12, "finished": False, "experiment": "0123456789"}


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "step-00000012.safetensors"
    write_tensors(path, TENSORS, ABOUT)
    return path


def refuses(path):
    """Reading raises a ValueError of one line that names the file."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_tensors(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_tensors_and_facts_come_back_and_give_the_same_bytes_again(tmp_path, checkpoint):
    write_tensors(tmp_path / "again", TENSORS, ABOUT)
    assert (tmp_path / "again").read_bytes() == checkpoint.read_bytes()
    tensors, about = read_tensors(checkpoint)
    assert about == ABOUT
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert tensors[name].shape == value.shape
        assert torch.equal(tensors[name], value)


def test_views_and_gradients_are_written_as_values(tmp_path):
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    write_tensors(tmp_path / "a", {"t": base.T, "row": base[1]}, {})
    tensors, _ = read_tensors(tmp_path / "a")
    assert torch.equal(tensors["t"], base.detach().T)
    assert torch.equal(tensors["row"], base.detach()[1])


def test_a_file_cut_short_anywhere_or_longer_is_refused(checkpoint):
    whole = checkpoint.read_bytes()
    for content in (*(whole[:length] for length in range(len(whole))), whole + b"\0"):
        checkpoint.write_bytes(content)
        refuses(checkpoint)
    checkpoint.write_bytes(whole)
    read_tensors(checkpoint)


def test_a_flipped_bit_anywhere_is_refused(checkpoint):
    whole = checkpoint.read_bytes()
    draw = random.Random(0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        checkpoint.write_bytes(changed)
        refuses(checkpoint)


def test_a_changed_fact_is_refused(checkpoint):
    changed = checkpoint.read_bytes().replace(b'step\\": 12', b'step\\": 99')
    assert changed != checkpoint.read_bytes()
    checkpoint.write_bytes(changed)
    assert "checksum" in refuses(checkpoint)


class Bomb:
    """Unpickling it is seen."""

    opened = False

    def __reduce__(self):
        return (setattr, (Bomb, "opened", True))


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"model": TENSORS, "bomb": Bomb()}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 100, id="zeros"),
        pytest.param(b"\xff" * 100, id="ones"),
        pytest.param(b"hello, this is text\n" * 20, id="text"),
        pytest.param(b'{"step": 3}', id="json"),
        pytest.param(pickle.dumps(Bomb()), id="pickle"),
        pytest.param(torch_file(), id="torch"),
        pytest.param(save(TENSORS), id="foreign safetensors"),
        pytest.param(save(TENSORS, metadata={"looped": "{}"}), id="no checksum"),
        pytest.param(save(TENSORS, metadata={"looped": "0" * 64 + " ["}), id="wrong checksum"),
    ],
)
def test_a_foreign_file_is_refused_and_never_unpickled(tmp_path, content):
    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(content)
    refuses(path)
    assert not Bomb.opened


def test_no_file_and_a_folder_are_refused(tmp_path):
    refuses(tmp_path / "missing.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    refuses(tmp_path / "folder.safetensors")


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_else(tmp_path, monkeypatch, broken):
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="no space"):
        write_bytes(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_json_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    for bad in (float("nan"), float("inf"), object()):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, {"a": bad})
        with pytest.raises((ValueError, TypeError)):
            write_tensors(path, TENSORS, {"a": bad})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_reader_during_the_write_sees_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    seen = []
    flush = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append(json.loads(path.read_text())), flush(number)))
    write_json(path, {"a": 2})
    assert seen == [{"a": 1}, {"a": 2}]  # the second time is the folder's, after the rename
    assert read_json(path) == {"a": 2}


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1} x', b"\xff\xfe", b"[" * 200_000])
def test_missing_or_damaged_json_is_refused_with_the_files_name(tmp_path, content):
    path = tmp_path / "config.json"
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        read_json(path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json cannot be read as JSON") as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


def test_json_keeps_every_value_and_puts_plain_lists_on_one_line(tmp_path):
    data = {"x": [1, 2.5, None], "names": ["a [\n b", "c, d ]"], "empty": [], "nested": [[1, 2], [{"y": [True]}]]}
    write_json(tmp_path / "a.json", data)
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == data
    assert '"x": [1, 2.5, null]' in text
    assert '"y": [true]' in text


def test_a_link_that_leads_back_to_itself_is_refused(tmp_path):
    link = tmp_path / "weights"
    link.symlink_to(link)
    with pytest.raises(ValueError, match="weights is a link that leads back to itself"):
        regular(link)
    assert regular(tmp_path / "nothing") == tmp_path / "nothing"
