import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

import bluecomm as bf

ALGORITHMS = {
    "gradients": {"algorithm": "gradient_allreduce"},
    "cta": {"algorithm": "neighbor_allreduce", "order": "cta"},
    "atc": {"algorithm": "neighbor_allreduce", "order": "atc"},
    "hierarchical": {"algorithm": "hierarchical_neighbor_allreduce"},
    "allreduce": {"algorithm": "allreduce"},
    "local": {"algorithm": "local"},
}


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def wrapped(model=None, **options):
    model = model or linear()
    return bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, **options
    )


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()


def test_needs_init():
    # Another test of this process may have had a world before.
    errors = (bf.NotInitializedError, bf.ShutdownError)
    with pytest.raises(errors, match=r"call bluecomm.init\(\)"):
        wrapped()


@pytest.mark.usefixtures("world")
class TestWorldOfOne:
    """Tests that do not need a second rank."""

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_trains_as_the_plain_optimizer(self, which):
        models = [linear(), linear()]
        plain = torch.optim.SGD(models[0].parameters(), lr=0.1, momentum=0.9)
        train(models[0], plain)
        train(models[1], wrapped(models[1], **ALGORITHMS[which]))
        for expected, got in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(got, expected)

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_keeps_class_groups_and_state(self, which):
        model = linear()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        train(model, plain)
        optimizer = bf.DistributedOptimizer(plain, model, **ALGORITHMS[which])
        assert isinstance(optimizer, torch.optim.SGD)
        assert type(optimizer).__name__ == "SGD"
        assert optimizer.state is plain.state
        assert len(optimizer.state) == 2
        assert optimizer.param_groups is plain.param_groups
        assert repr(optimizer) == repr(plain)

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_step_hooks_run_once(self, which):
        model = linear()
        optimizer = wrapped(model, **ALGORITHMS[which])
        optimizer.load_state_dict(optimizer.state_dict())
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        train(model, optimizer, steps=1)
        assert calls == ["pre", "post"]

    def test_state_dicts_are_those_of_the_plain_optimizer(self):
        model = linear()
        optimizer = wrapped(model)
        train(model, optimizer)
        state = optimizer.state_dict()
        plain = torch.optim.SGD(linear().parameters(), lr=0.5)
        plain.load_state_dict(state)
        assert plain.param_groups[0]["lr"] == 0.1
        other = wrapped()
        other.load_state_dict(plain.state_dict())
        assert len(other.state) == 2

    def test_copies_are_plain_optimizers(self):
        model = linear()
        optimizer = wrapped(model, algorithm="neighbor_allreduce")
        train(model, optimizer)
        for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert type(other) is torch.optim.SGD
            assert len(other.state) == 2
            other.zero_grad()
            other.step()

    def test_copies_of_models_are_plain_models(self):
        model = linear()
        optimizer = wrapped(model, algorithm="neighbor_allreduce", order="atc")
        train(model, optimizer)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            state = other.state_dict()
            assert state["weight"].data_ptr() == other.weight.data_ptr()
            assert torch.equal(other.weight, model.weight)
            assert other.weight.data_ptr() != model.weight.data_ptr()
            other(torch.ones(1, 3))

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_nothing_keeps_a_dropped_optimizer_alive(self, which):
        model = linear()
        optimizer = wrapped(model, **ALGORITHMS[which])
        train(model, optimizer)
        dropped = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert dropped() is None
        model(torch.ones(1, 3)).sum().backward()
        model.state_dict()

    def test_the_models_state_dict_has_copies(self):
        model = linear()
        wrapped(model, algorithm="neighbor_allreduce")
        assert model.state_dict()["weight"].data_ptr() != model.weight.data_ptr()

    def test_step_settings_are_attributes(self):
        optimizer = wrapped(algorithm="neighbor_allreduce")
        assert optimizer.self_weight is None
        assert optimizer.enable_topo_check is False
        assert optimizer.communication_type is bf.CommunicationType.neighbor_allreduce
        optimizer.self_weight = 0.5
        assert optimizer.self_weight == 0.5
        assert "self_weight" not in vars(optimizer)
        optimizer.anything_else = 3
        assert optimizer.anything_else == 3
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            optimizer.nothing  # noqa: B018

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("neighbor_weights", "set 'src_weights'"),
            ("send_neighbors", "set 'dst_weights'"),
            ("neighbor_machine_weights", "set 'src_machine_weights'"),
            ("self_weigth", "did you mean 'self_weight'"),
            ("dst_weight", "did you mean 'dst_weights'"),
        ],
    )
    def test_old_and_misspelt_settings_are_errors(self, name, text):
        # BlueFog accepted these, without any effect.
        optimizer = wrapped(algorithm="neighbor_allreduce")
        with pytest.raises(AttributeError, match=text):
            setattr(optimizer, name, {})

    def test_gradient_allreduce_has_no_step_settings(self):
        with pytest.raises(AttributeError, match="has no 'self_weight'"):
            wrapped().self_weight = 0.5

    def test_new_groups_are_refused(self):
        optimizer = wrapped()
        with pytest.raises(ValueError, match="takes no new parameters"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})

    @pytest.mark.parametrize("which", ["cta", "atc", "hierarchical", "allreduce"])
    def test_other_shapes_or_dtypes_are_errors(self, which):
        model = linear()
        optimizer = wrapped(model, **ALGORITHMS[which])
        model.double()
        with pytest.raises(RuntimeError, match="then wrap the optimizer again"):
            optimizer.step()

    @pytest.mark.parametrize("which", ["gradients", "cta"])
    def test_new_parameters_are_errors(self, which):
        model = nn.Sequential(linear(), nn.Sequential())
        optimizer = wrapped(model, **ALGORITHMS[which])
        model[1].append(nn.Tanh())
        train(model, optimizer, steps=1)
        model[1][0] = nn.Linear(2, 2)
        model.extra = nn.Parameter(torch.ones(1))
        text = r"on rank 0: .* made: 'extra' of shape \(1,\), '1.0.weight' .*\(2, 2\)"
        for _ in range(2):
            with pytest.raises(RuntimeError, match=text):
                train(model, optimizer)
            with pytest.raises(RuntimeError, match=text):
                optimizer.step()
        train(model, wrapped(model, **ALGORITHMS[which]))

    def test_new_parameters_that_others_train_are_no_error(self):
        model = nn.Sequential(linear())
        optimizer = wrapped(model)
        model.append(nn.Linear(2, 2).requires_grad_(False))
        model.append(nn.Linear(2, 2))
        model[2].weight.expert = model[2].bias.expert = True
        model.append(nn.Linear(2, 2))
        of_new = bf.DistributedOptimizer(torch.optim.SGD(model[3].parameters()), model)
        train(model, optimizer)
        of_new.step()
        # The same parameter in another module.
        nn.utils.parametrize.register_parametrization(model[0], "bias", nn.Tanh())
        train(model, optimizer)

    def test_an_optimizer_may_be_freed_while_a_module_is_made(self):
        def collect(module, name, value):
            gc.collect()

        gc.disable()
        # A hook that torch calls before those of the optimizer.
        handle = register_module_parameter_registration_hook(collect)
        try:
            model = linear()
            optimizer = wrapped(model)
            train(model, optimizer, steps=1)
            freed = weakref.ref(optimizer)
            del model, optimizer
            nn.Linear(1, 1)
            assert freed() is None
        finally:
            handle.remove()
            gc.enable()

    def test_a_functional_call_leaves_the_parameters_alone(self):
        model = linear()
        optimizer = wrapped(model)
        before = model.weight.detach().clone()
        tuned = {name: 2 * p for name, p in model.named_parameters()}
        torch.func.functional_call(model, tuned, torch.ones(1, 3)).sum().backward()
        assert torch.equal(model.weight, before)
        assert torch.equal(model.weight.grad, torch.full((2, 3), 2.0))
        optimizer.step()

    def test_options_that_do_not_fit_are_errors(self):
        with pytest.raises(ValueError, match="NeighborAllreduce does not use op="):
            wrapped(algorithm="neighbor_allreduce", op=bf.Sum)
        with pytest.raises(ValueError, match="does not use compression="):
            wrapped(algorithm="local", compression=bf.Compression.fp16)
        with pytest.raises(TypeError, match=r"options \['order'\] do not fit Gradient"):
            wrapped(algorithm="gradient_allreduce", order="atc")
        with pytest.raises(ValueError, match="order must be one of atc, cta"):
            wrapped(algorithm="neighbor_allreduce", order="act")
        with pytest.raises(ValueError, match="unknown algorithm 'magic'"):
            wrapped(algorithm="magic")
        with pytest.raises(TypeError, match="a name or a subclass of Algorithm"):
            wrapped(algorithm=int)
        with pytest.raises(ValueError, match="bucket_bytes must be at least 1"):
            wrapped(bucket_bytes=0)
        with pytest.raises(TypeError, match="num_steps_per_communication must be an"):
            wrapped(num_steps_per_communication=1.5)
        with pytest.raises(ValueError, match=r"op must be bluecomm\.Average, Sum or"):
            wrapped(op=bf.Max)
        with pytest.raises(TypeError, match="compression must be"):
            wrapped(compression="fp16")
        with pytest.raises(ValueError, match="allreduce takes no topology"):
            wrapped(algorithm="allreduce", topology="one_peer")

    def test_only_plain_optimizers_are_wrapped(self):
        with pytest.raises(TypeError, match=r"expected a torch\.optim\.Optimizer"):
            bf.DistributedOptimizer(linear())
        optimizer = wrapped()
        with pytest.raises(ValueError, match="is distributed already"):
            bf.DistributedOptimizer(optimizer)

    def test_lbfgs_needs_parameter_averaging(self):
        optimizer = torch.optim.LBFGS(linear().parameters())
        with pytest.raises(ValueError, match=r"does not work with LBFGS.*order='atc'"):
            bf.DistributedOptimizer(optimizer)

    def test_join(self):
        assert bf.join() == 0
        plain = wrapped(algorithm="neighbor_allreduce")
        with pytest.raises(ValueError, match="uneven_inputs=True"):
            plain.join()
        uneven = wrapped(algorithm="neighbor_allreduce", uneven_inputs=True)
        assert uneven.join() == 0
        uneven.self_weight = 0.5
        with pytest.raises(ValueError, match="weights set as attributes"):
            uneven.join()
        assert wrapped(algorithm="local").join() == 0
        assert wrapped().join() == 0

    def test_join_leaves_out_an_optimizer_of_an_ended_world(self):
        earlier = wrapped(algorithm="neighbor_allreduce", uneven_inputs=True)
        bf.shutdown()
        bf.init()
        assert bf.join() == 0
        with pytest.raises(bf.ShutdownError):
            earlier.join()

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_integer_parameters_are_left_alone(self, which):
        model = linear()
        model.count = nn.Parameter(torch.tensor([3]), requires_grad=False)
        train(model, wrapped(model, **ALGORITHMS[which]))
        assert model.count.tolist() == [3]

    def test_only_asynchronous_algorithms_have_windows(self):
        with pytest.raises(ValueError, match="GradientAllreduce has no windows; only"):
            wrapped().unregister_window()

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_an_optimizer_ends_with_its_world(self, which):
        model = linear()
        optimizer = wrapped(model, **ALGORITHMS[which])
        train(model, optimizer)
        bf.shutdown()
        text = r"made before bluecomm\.shutdown\(\).*make the optimizer again"
        for _ in range(2):
            with pytest.raises(bf.ShutdownError, match=text):
                optimizer.step()
            with pytest.raises(bf.ShutdownError, match=text):
                model(torch.ones(1, 3))
            bf.init()
        new = wrapped(model, **ALGORITHMS[which])
        new.load_state_dict(optimizer.state_dict())
        train(model, new)
        assert len(new.state) == 2
        with pytest.raises(RuntimeError, match="handed its parameters to one that"):
            optimizer.step()

    @pytest.mark.parametrize("which", ALGORITHMS)
    def test_several_worlds_in_turn(self, which):
        model = linear()
        train(model, wrapped(model, **ALGORITHMS[which]))
        bf.shutdown()
        model(torch.ones(1, 3))
        bf.init()
        train(model, wrapped(model, **ALGORITHMS[which]))

    def test_users_may_write_an_algorithm(self):
        class Recorder(bf.Algorithm):
            flat_gradients = True

            def setup(self, buckets):
                self.events = []
                for bucket in buckets:
                    bucket.lay_out_gradients(counters=0)

            def before_forward(self, bucket):
                self.events.append("before_forward")

            def on_gradients_ready(self, bucket):
                self.events.append("on_gradients_ready")

            def after_backward(self):
                self.events.append("after_backward")

            def before_step(self):
                self.events.append("before_step")

            def after_step(self):
                self.events.append("after_step")

        model = linear()
        optimizer = wrapped(model, algorithm=Recorder)
        train(model, optimizer, steps=2)
        events = vars(optimizer)["_bluecomm"].algorithm.events
        assert events == 2 * [
            "before_forward",
            "on_gradients_ready",
            "after_backward",
            "before_step",
            "after_step",
        ]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("factory", "algorithm"),
    [
        (bf.DistributedGradientAllreduceOptimizer, "GradientAllreduce"),
        (bf.DistributedAllreduceOptimizer, "Allreduce"),
        (bf.DistributedNeighborAllreduceOptimizer, "NeighborAllreduce"),
        (
            bf.DistributedHierarchicalNeighborAllreduceOptimizer,
            "HierarchicalNeighborAllreduce",
        ),
        (bf.DistributedAdaptThenCombineOptimizer, "NeighborAllreduce"),
        (bf.DistributedAdaptWithCombineOptimizer, "NeighborAllreduce"),
    ],
)
def test_factories(factory, algorithm):
    model = linear()
    optimizer = factory(
        torch.optim.AdamW(model.parameters()), model, num_steps_per_communication=2
    )
    assert type(vars(optimizer)["_bluecomm"].algorithm).__name__ == algorithm
    train(model, optimizer)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("kind", bf.CommunicationType)
@pytest.mark.parametrize(
    "factory",
    [
        bf.DistributedAdaptThenCombineOptimizer,
        bf.DistributedAdaptWithCombineOptimizer,
    ],
)
def test_factories_take_a_communication_type(factory, kind):
    model = linear()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert factory(sgd, model, communication_type=kind).communication_type is kind
    with pytest.raises(TypeError, match=r"must be a bluecomm\.CommunicationType"):
        factory(sgd, model, communication_type="allreduce")
