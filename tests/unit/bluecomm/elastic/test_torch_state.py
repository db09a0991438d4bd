"""States of one process: attributes, commits, restores, bad input."""

import pytest
import torch

import bluecomm as bf
from bluecomm.elastic import ElasticSampler, ObjectState, TorchState
from bluecomm.elastic.group import current_group


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield
    bf.shutdown()


def make(**options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sampler = ElasticSampler(range(20), shuffle=False)
    return TorchState(
        model,
        optimizer,
        scheduler=scheduler,
        sampler=sampler,
        epoch=0,
        seen=[],
        **options,
    )


def train(state):
    state.model(torch.ones(1, 2)).sum().backward()
    state.optimizer.step()
    state.scheduler.step()
    state.sampler.record_batch(0, 5)
    state.epoch += 1
    state.seen.append(state.epoch)


def facts(state):
    weight = state.model.weight.detach().clone()
    momentum = state.optimizer.state_dict()["state"]
    rate = state.optimizer.param_groups[0]["lr"]
    return [
        weight.tolist(),
        {key: value["momentum_buffer"].tolist() for key, value in momentum.items()},
        rate,
        state.sampler.state_dict(),
        state.epoch,
        list(state.seen),
    ]


def test_restore_goes_back_to_the_last_commit():
    state = make()
    at_first = facts(state)
    objects = state.model, state.optimizer, state.sampler
    train(state)
    state.restore()
    assert facts(state) == at_first
    train(state)
    state.commit()
    committed = facts(state)
    assert committed != at_first
    train(state)
    state.restore()
    train(state)
    state.restore()
    assert facts(state) == committed
    assert (state.model, state.optimizer, state.sampler) == objects
    assert state.commits == 1


def test_sync_alone_keeps_everything_and_saves_it():
    state = make()
    train(state)
    before = facts(state)
    state.sync()
    assert facts(state) == before
    train(state)
    state.restore()
    assert facts(state) == before


def test_reset_shares_out_and_calls_back():
    state = make()
    calls = []
    state.register_reset_callbacks([lambda: calls.append(1), lambda: calls.append(2)])
    train(state)
    state.on_reset()
    assert calls == [1, 2]
    assert state.sampler.indices == list(range(5, 20))


def test_an_object_may_be_replaced_by_its_like():
    state = make()
    state.model = torch.nn.Linear(2, 1)
    state.commit()
    with torch.no_grad():
        state.model.weight.zero_()
    state.restore()
    assert state.model.weight.any()
    with pytest.raises(TypeError, match="'model' is a model, and cannot become int"):
        state.model = 3


def test_kept_states_are_found_again(tmp_path):
    state = make(keep=tmp_path / "job")
    state.sync()
    train(state)
    state.commit()
    committed = facts(state)
    train(state)
    again = make(keep=tmp_path / "job")
    assert facts(again) != committed
    again.sync()
    assert facts(again) == committed
    assert again.commits == 1
    again.commit()
    assert [p.name for p in (tmp_path / "job").iterdir()] == ["commit-2-rank-0.pt"]
    other = TorchState(torch.nn.Linear(3, 1), keep=tmp_path / "job", epoch=0)
    with pytest.raises(ValueError, match=r"rank 0 cannot go on with commit 2 .*attrib"):
        other.sync()
    again.on_finish()
    assert not (tmp_path / "job").exists()


def test_a_kept_state_of_another_model_is_refused(tmp_path):
    TorchState(torch.nn.Linear(3, 1), keep=tmp_path).commit()
    other = TorchState(torch.nn.Linear(4, 1), keep=tmp_path)
    with pytest.raises(ValueError, match=r"(?s)'model' does not fit: .*size mismatch"):
        other.sync()


def test_what_cannot_be_copied_or_pickled_is_named():
    with pytest.raises(TypeError, match=r"rank 0: attribute 'x' \(generator\) cannot "):
        ObjectState(x=(number for number in range(3)))
    state = ObjectState(x=lambda: 1)  # functions are copied as they are
    with pytest.raises(TypeError, match=r"'x' \(function\) cannot be pickled"):
        state.sync()


def test_names_of_the_class_are_refused():
    for name in ("commit", "_saved"):
        with pytest.raises(ValueError, match=f"{name!r} cannot be an attribute"):
            ObjectState(**{name: 1})
    with pytest.raises(ValueError, match="'sync' cannot be an attribute"):
        TorchState(sync=torch.nn.Linear(1, 1))


def test_an_optimizer_of_another_model_is_refused():
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with pytest.raises(
        ValueError, match=r"rank 0: 'optimizer' \(SGD\) has no parameter of 'model'"
    ):
        TorchState(model, optimizer)
    assert TorchState(None, optimizer).model is None


def test_restore_overcomes_a_round_that_a_loss_has_ended(monkeypatch):
    state = make()
    load, errors = state.model.load_state_dict, [bf.PeerLostError("lost")]

    def fail_once(content):
        if errors:
            raise errors.pop()
        return load(content)

    monkeypatch.setattr(state.model, "load_state_dict", fail_once)
    before = facts(state)
    train(state)
    state.restore()
    assert facts(state) == before


def test_a_save_that_fails_does_not_count(monkeypatch):
    state = make()
    monkeypatch.setattr(state.model, "state_dict", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        state.commit()
    assert state.commits == 0


def test_the_state_of_a_donor_is_saved_in_the_memory_of_the_first_one(monkeypatch):
    state = make()
    first = state._saved_parts["model"]["weight"].data_ptr()

    def take_over(self, group, donor, name, *, keeps):
        with torch.no_grad():
            self.model.weight.fill_(7.0)
        self.save()

    monkeypatch.setattr(ObjectState, "hand_over", take_over)
    state.hand_over(current_group(), 1, "x")
    assert state._saved_parts["model"]["weight"].data_ptr() == first
    with torch.no_grad():
        state.model.weight.zero_()
    state.restore()
    assert state.model.weight.tolist() == [[7.0, 7.0]]


def test_a_hand_over_that_fails_leaves_the_first_state(monkeypatch):
    state = make()
    at_first = facts(state)

    def fail(self, group, donor, name, *, keeps):
        raise bf.PeerLostError("the donor is lost", peers=[1])

    monkeypatch.setattr(ObjectState, "hand_over", fail)
    with pytest.raises(bf.PeerLostError):
        state.hand_over(current_group(), 1, "x")
    train(state)
    state.restore()
    assert facts(state) == at_first
