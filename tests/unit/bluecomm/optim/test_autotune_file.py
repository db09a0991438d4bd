"""The file and the picture that keep the result of autotuning."""

import json
import re

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.autotune.decider import Decider
from bluecomm.optim.autotune.search import Interval, RoundTime, Trial
from bluecomm.optim.autotune.space import Space
from bluecomm.optim.autotune.tuned_file import TunedFile
from bluecomm.optim.autotune.turns import Turns

SPACE = Space(
    {"bucket_bytes": [1, 2, 4], "compression": ["none", "fp16"]},
    {"bucket_bytes": 2, "compression": "none"},
)
KEPT = {"bucket_bytes": 4, "compression": "fp16"}
FACTS = {"ranks": "4", "torch": "2.13"}


class Found:
    """A search that ends at once, or fails."""

    gain = 0.25
    trials = (Trial(KEPT, 1.2), Trial({"bucket_bytes": 1, "compression": "none"}, 0.7))

    def __init__(self, failure=None):
        self._failure = failure

    def report(self, rounds):
        if self._failure:
            raise self._failure
        return Interval(KEPT, 0)


@pytest.fixture
def file(tmp_path):
    file = TunedFile(tmp_path / "tuned.json")
    file.keep("optim.0", FACTS, KEPT, Found())
    return file


def test_finds_what_it_has_kept(file, caplog):
    assert file.find("optim.0", FACTS, SPACE) == KEPT
    assert file.find("optim.1", FACTS, SPACE) is None
    assert not caplog.records


def test_keeps_the_entries_of_other_optimizers(file, tmp_path):
    other = {**KEPT, "bucket_bytes": 1}
    TunedFile(tmp_path / "tuned.json").keep("optim.1", FACTS, other, Found())
    assert file.find("optim.0", FACTS, SPACE) == KEPT
    assert file.find("optim.1", FACTS, SPACE) == other
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.json"]


def test_a_stale_entry_is_noticed_with_one_warning(file, caplog):
    changed = {**FACTS, "ranks": "8", "machines": "2"}
    assert file.find("optim.0", changed, SPACE) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("optim.0: the result of autotune in ")
    assert "ranks was 4 and is 8; machines was unknown and is 2" in record.getMessage()


@pytest.mark.parametrize("setting", [{"bucket_bytes": 3, "compression": "none"}, 7])
def test_a_setting_that_may_not_be_tried_is_stale(setting, file, caplog, tmp_path):
    path = tmp_path / "tuned.json"
    document = json.loads(path.read_text())
    document["optimizers"]["optim.0"]["setting"] = setting
    path.write_text(json.dumps(document))
    assert file.find("optim.0", FACTS, SPACE) is None
    (record,) = caplog.records
    assert "it has no setting that may be tried" in record.getMessage()


def test_a_file_of_another_version_is_tuned_again(file, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text('{"bluecomm_autotune": 0, "optimizers": {"optim.0": 1}}')
    assert file.find("optim.0", FACTS, SPACE) is None


@pytest.mark.parametrize("text", ['{"lr": 0.1}', "[1]", "weights", "\udcff"])
def test_a_file_of_something_else_is_not_overwritten(text, tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    text = (
        f"autotune: {str(path)!r} is not a file of autotune, and would be overwritten"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        TunedFile(path)


def test_an_empty_file_is_one_of_autotune(tmp_path):
    (tmp_path / "new").touch()
    assert TunedFile(tmp_path / "new").find("optim.0", FACTS, SPACE) is None


def test_a_folder_that_does_not_exist_is_noticed_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="absent/tuned' does not exist on the host"):
        TunedFile(tmp_path / "absent" / "tuned")


def decider(search, **options):
    options = {"turns": Turns(), **options}
    return Decider("optim.0", SPACE, search, facts=FACTS, **options)


def test_the_decider_writes_the_result_once(tmp_path, caplog):
    file, picture = TunedFile(tmp_path / "tuned.json"), tmp_path / "trials.svg"
    decision = decider(Found(), file=file, picture=picture).report([RoundTime(1.0)])
    assert (decision.setting, decision.rounds) == (KEPT, 0)
    assert file.find("optim.0", FACTS, SPACE) == KEPT
    assert "compression=fp16" in picture.read_text()
    (record,) = caplog.records
    assert record.getMessage() == (
        "optim.0: after 2 trials, autotune keeps bucket_bytes=4, compression=fp16, 25% "
        "faster than the default"
    )


def test_a_result_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    picture = tmp_path / "trials.xyz"
    decision = decider(Found(), picture=picture).report([RoundTime(1.0)])
    assert (decision.setting, decision.rounds) == (KEPT, 0)
    assert "autotune cannot write its result" in caplog.records[-1].getMessage()


def test_a_search_that_fails_ends_with_the_default(caplog):
    decision = decider(Found(RuntimeError("no memory"))).report([RoundTime(1.0)])
    assert (decision.setting, decision.rounds) == (SPACE.default, 0)
    assert "autotune failed, so the default is used" in caplog.records[-1].getMessage()
    assert "no memory" in caplog.text


class Goes(Found):
    """A search that ends with its second report."""

    def __init__(self):
        super().__init__()
        self._reports = 0

    def report(self, rounds):
        self._reports += 1
        return Interval(KEPT, 5 if self._reports == 1 else 0)


def test_searches_of_a_process_run_one_after_another():
    turns = Turns()
    first, second, third = (decider(Goes(), turns=turns) for _ in range(3))
    waits = (SPACE.default, 4)
    quarters = [RoundTime(0.25)] * 3

    def report(one):
        interval = one.report(quarters)
        return interval.setting, interval.rounds

    assert [report(one) for one in (first, second)] == [(KEPT, 5), waits]
    assert [report(one) for one in (second, third)] == [waits, waits]
    assert report(first) == (KEPT, 0)
    assert [report(one) for one in (third, second)] == [(KEPT, 5), waits]
    del third  # an optimizer that is dropped while it is measured
    assert [report(second) for _ in range(2)] == [(KEPT, 5), (KEPT, 0)]


def test_a_search_that_fails_ends_its_turn():
    turns = Turns()
    broken, other = (decider(s, turns=turns) for s in (Found(OSError()), Goes()))
    broken.report([RoundTime(1.0)])
    assert other.report([RoundTime(1.0)]).rounds == 5


def test_a_known_setting_is_used_without_a_search():
    decision = decider(None, known=KEPT).report([RoundTime(1.0)])
    assert (decision.setting, decision.rounds) == (KEPT, 0)


# -- a world of one --------------------------------------------------------------------


def test_a_rank_that_trains_alone_has_nothing_to_tune(world):
    model = nn.Linear(300, 300)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedOptimizer(sgd, model, autotune=True)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 300)).sum().backward()
        optimizer.step()
    assert vars(optimizer)["_bluecomm"]._tuning is None
