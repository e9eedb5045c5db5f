import builtins
import math
from dataclasses import replace

import pytest
import sacrebleu
import torch

from looped.evaluation.translation import bleu, cross_entropies, decode, per_token, translate
from looped.experiment import Setup
from looped.models.algoformer import AlgoFormer, AlgoFormerConfig, Part
from looped.tasks.translation import BETWEEN, END, MIN_VOCABULARY, PAD, START, Translation, _tokenizer, cache_folder
from tasks.tiny_text import pairs, write

TASK = Translation(vocabulary=400)
N = 40


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "translation" / "multi30k")


def draw(task, *, batch=5, seed=0, n=N):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed))


def model(**fields):
    torch.manual_seed(0)
    two = Part(heads=2)
    config = AlgoFormerConfig(d=1, vocabulary=400, tokens="given", width=8, positions=N, pre=two, loop=two, post=two)
    return replace(config, **fields).build().eval()


def test_a_pair_is_one_sequence_scored_on_its_english_side():
    german, english = TASK.texts()
    coder, prompt = TASK.tokenizer(), TASK.everything(N)
    assert prompt.places == (len(german), N)
    for row in (0, 5, 77):
        ids = prompt.tokens[row].tolist()
        assert ids[0] == START
        assert coder.decode(ids[: ids.index(BETWEEN)]).strip() == german[row]
        asked = prompt.targets[row][prompt.weights[row] > 0].tolist()
        assert asked[-1] == END
        assert coder.decode(asked).strip() == english[row]
        assert torch.equal(prompt.tokens[row, 1:], prompt.targets[row, :-1])
        # the first scored token follows <sep>, the last one is </s>, and padding comes after
        first = int(prompt.weights[row].nonzero()[0])
        assert ids[first] == BETWEEN
        assert set(prompt.targets[row][first + len(asked) :].tolist()) <= {PAD}
    assert set(prompt.weights.unique().tolist()) == {0.0, 1.0}


def test_sampling_follows_the_generator_and_stays_in_the_split():
    first = draw(TASK, seed=3)
    assert torch.equal(first.tokens, draw(TASK, seed=3).tokens)
    assert not torch.equal(first.tokens, draw(TASK, seed=4).tokens)
    held = {tuple(row) for row in replace(TASK, split="val").everything(N).tokens.tolist()}
    drawn = {tuple(row) for row in draw(TASK, batch=2000).tokens.tolist()}
    assert drawn == {tuple(row) for row in TASK.everything(N).tokens.tolist()}
    assert not drawn & held


def test_error_is_the_cross_entropy():
    prompt = draw(TASK)
    logits = torch.randn(2, 5, N, 400, generator=torch.Generator().manual_seed(0))
    error = TASK.error(logits, prompt)
    assert error.shape == (2, 5, N)
    by_hand = logits.double().exp() / logits.double().exp().sum(-1, keepdim=True)
    target = int(prompt.targets[3, 7])
    assert float(error[1, 3, 7]) == pytest.approx(-math.log(float(by_hand[1, 3, 7, target])), rel=1e-5)
    zero = TASK.error(torch.zeros(5, N, 400), prompt)
    assert torch.allclose(zero, torch.full_like(zero, math.log(400)))
    # with models in front, each judged by its own targets
    both = replace(
        prompt, tokens=prompt.tokens.expand(2, -1, -1), targets=prompt.targets.expand(2, -1, -1), weights=None
    )
    assert torch.allclose(TASK.error(logits[None], both)[0], error)


def test_the_vocabulary_comes_from_the_training_side_and_is_cached(folder, tmp_path):
    first = TASK.tokenizer()
    assert [first.token_to_id(token) for token in ("<pad>", "<s>", "<sep>", "</s>")] == [0, 1, 2, 3]
    (file,) = cache_folder().iterdir()
    assert file.parent == tmp_path / "cache"
    _tokenizer.cache_clear()
    before = file.stat().st_mtime_ns
    assert TASK.tokenizer().to_str() == first.to_str()
    assert file.stat().st_mtime_ns == before
    replace(TASK, vocabulary=500).tokenizer()
    assert len(list(cache_folder().iterdir())) == 2
    # other validation text, the same vocabulary
    for language in ("de", "en"):
        (folder / f"val.{language}").write_text("Quitte\n")
        (folder / f"val.{language}.gz").unlink()
    replace(TASK, split="val").everything(N)
    assert len(list(cache_folder().iterdir())) == 2


def test_unknown_letters_survive():
    coder = TASK.tokenizer()
    assert coder.decode(coder.encode("Ωmega, 漢字!").ids).strip() == "Ωmega, 漢字!"


@pytest.mark.parametrize("middle", ["", "de-en."])
@pytest.mark.parametrize("packed", [True, False])
def test_layouts_of_a_corpus(tmp_path, middle, packed):
    write(tmp_path / "translation" / "iwslt", middle=middle, packed=packed)
    german, english = replace(TASK, corpus="iwslt").texts()
    assert (german, english) == TASK.texts()
    assert (german[0], english[0]) in pairs()


def test_long_pairs_leave_training_and_a_limit_reads_only_the_first():
    lengths = (TASK.everything(100).tokens != PAD).sum(1)
    n = int(lengths.float().quantile(0.5))
    assert (lengths > n + 1).any()
    assert TASK.everything(n).places[0] == int((lengths <= n + 1).sum())
    held = replace(TASK, split="val")
    assert held.everything(n).places[0] == len(held.texts()[0])
    with pytest.raises(ValueError, match=r"no pair of .* fits into `n`=3 tokens"):
        TASK.everything(3)
    few = replace(TASK, limit=9)
    assert few.everything(60).places[0] == 9
    assert few.texts()[0] == TASK.texts()[0][:9]


def test_what_is_missing_is_named(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"has no corpus `multi3k`. Did you mean `multi30k`\?"):
        replace(TASK, corpus="multi3k").texts()
    (folder / "test.en.gz").unlink()
    with pytest.raises(ValueError, match=r"has none of test\.en\.gz, test\.en, test\.de-en\.en\.gz, test\.de-en\.en"):
        replace(TASK, split="test").texts()
    (folder / "test.en").write_text("one line\n")
    with pytest.raises(ValueError, match="as many German as English lines"):
        replace(TASK, split="test").texts()
    monkeypatch.delenv("LOOPED_DATA")
    with pytest.raises(ValueError, match="LOOPED_DATA is not set"):
        draw(TASK)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"d": 2}, "`d` must be 1"),
        ({"vocabulary": MIN_VOCABULARY - 1}, f"`vocabulary` must be at least {MIN_VOCABULARY}"),
        ({"limit": 0}, "`limit` must be at least 1"),
    ],
)
def test_fields_out_of_range_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        replace(TASK, **fields)


def test_task_and_model_must_have_one_vocabulary():
    with pytest.raises(ValueError, match=r"`task\.vocabulary` and `model\.vocabulary` must agree; got 500 and 400"):
        Setup(task=replace(TASK, vocabulary=500), model=model().config)


@pytest.mark.parametrize("missing", ["tokenizers", "sacrebleu"])
def test_a_missing_library_is_named_with_its_remedy(missing, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **fields):
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return real(name, *args, **fields)

    monkeypatch.setattr(builtins, "__import__", without)
    _tokenizer.cache_clear()
    with pytest.raises(ValueError, match=r"pip install 'looped\[text\]'"):
        TASK.tokenizer() if missing == "tokenizers" else bleu(["a"], ["a"])


# translations


def test_greedy_decoding_is_one_token_at_a_time():
    """In a batch with padding, each row gets what it gets alone, step by step, from its own prefix."""
    built, prompt = model(), replace(TASK, split="val").everything(N).rows(slice(6))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    decoded = decode(built, prompt.tokens)
    for row in range(6):
        tokens = prompt.tokens[row].tolist()
        line = tokens[: tokens.index(BETWEEN) + 1]
        while len(line) < N and line[-1] != END:
            ids = torch.tensor([line])
            line.append(int(built.predict(replace(prompt, tokens=ids, targets=ids, weights=None))[0, -1].argmax()))
        assert decoded[row].tolist() == line + [PAD] * (N - len(line))


class Knows(AlgoFormer):
    """Says what the corpus says."""

    def __init__(self, answers):
        super().__init__(model().config)
        self.answers = answers

    def predict(self, prompt, *, loops=None):
        rows = []
        for line in prompt.tokens.tolist():
            source = tuple(line[: line.index(BETWEEN) + 1])
            rows.append(torch.nn.functional.one_hot(self.answers[source][: len(line)], 400).float() * 9)
        return torch.stack(rows)


def test_a_model_that_knows_scores_100():
    held = replace(TASK, split="val")
    prompt = held.everything(N)
    answers = {
        tuple(line[: line.index(BETWEEN) + 1]): target
        for line, target in zip(prompt.tokens.tolist(), prompt.targets, strict=True)
    }
    said = translate(Knows(answers), held, n=N)
    assert said == held.texts()[1]
    assert float(bleu(said, held.texts()[1], resamples=10).mean) == pytest.approx(100)
    sums, counts = cross_entropies(Knows(answers), held, n=N)
    assert float(per_token(sums, counts).mean) == pytest.approx(math.log(1 + 399 * math.exp(-9)), rel=1e-4)


def test_bleu_is_sacrebleus_with_an_interval_around_it():
    said = ["the man sees a dog in the park", "a girl paints the house", "books are read by many people here"] * 5
    real = ["the man sees a cat in the park", "the girl paints a house", "many people read books here today"] * 5
    interval = bleu(said, real, resamples=200)
    assert float(interval.mean) == pytest.approx(sacrebleu.corpus_bleu(said, [real]).score, abs=1e-9)
    assert interval.low < interval.mean < interval.high


def test_cross_entropy_a_token_is_the_ratio_and_its_interval_covers_it():
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(3, 20, (400,), generator=generator).double()
    sums = 2.5 * counts + torch.randn(400, dtype=torch.float64, generator=generator)
    interval = per_token(sums, counts)
    assert float(interval.mean) == pytest.approx(float(sums.sum() / counts.sum()))
    # the noise of a sentence is 1, so that of the ratio is 1 / (20 mean count), by 1.645 on each side
    assert float(interval.high - interval.low) == pytest.approx(2 * 1.645 / (20 * float(counts.mean())), rel=0.15)


def test_multi30k_is_read(data_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("LOOPED_DATA", str(data_folder))
    task = Translation(vocabulary=600, limit=100)
    german, english = task.texts()
    assert (len(german), german[0].split()[0], english[0].split()[0]) == (100, "Zwei", "Two")
    assert len(replace(task, split="val", limit=None).texts()[0]) == 1014
    prompt = draw(task, n=128)
    assert prompt.places == (5, 128)
    assert int(prompt.tokens.max()) < 600
