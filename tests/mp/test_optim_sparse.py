"""Sparse gradients in gradient allreduce, against dense training, and elsewhere."""

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

ROWS, WIDTH, STEPS = 11, 3, 4


class Words(nn.Module):
    """An embedding and a head, in float64; ``sparse`` decides the gradient's layout."""

    def __init__(self, sparse, *, is_layer=True, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse).double()
        self.head = nn.Linear(WIDTH, 2).double()
        self.sparse, self.is_layer, self.tied = sparse, is_layer, tied
        if not is_layer:
            # The optimizer cannot see from the layers that this gradient is sparse.
            self.table.sparse = False

    def forward(self, words):
        vectors = nn.functional.embedding(words, self.table.weight, sparse=self.sparse)
        if self.tied:
            return vectors.mean(1) @ self.table.weight.T
        return self.head(vectors.mean(1))


def words_of(rank, step):
    """Return a batch with repeated words; once, rank 0 has a batch of no words."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    count = 0 if (rank, step) == (0, 1) else 2 + rank
    return torch.randint(ROWS, (count, 4), generator=generator)


def loss_of(model, rank, step):
    return model(words_of(rank, step)).square().sum()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def expected(ranks, steps=STEPS, optimizer=torch.optim.SGD, share=None, tied=False):
    """Train with the dense mean of the ranks' gradients; return the parameters."""
    model = Words(sparse=False, tied=tied)
    sgd = optimizer(model.parameters(), lr=0.1)
    for step in range(steps):
        sgd.zero_grad()
        total = sum(loss_of(model, rank, step) for rank in range(ranks))
        (total / ranks if share is None else total * share).backward()
        sgd.step()
    return flat(model)


def train(options, model_options, kind=torch.optim.SGD):
    """Train with sparse gradients; return the parameters and the final layouts."""
    model = Words(sparse=True, **model_options)
    optimizer = bf.DistributedOptimizer(
        kind(model.parameters(), lr=0.1), model, **options
    )
    layouts = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, bf.rank(), step).backward()
        optimizer.step()
        layouts.append(model.table.weight.grad.layout)
    return flat(model), layouts


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("is_layer", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_equals_dense_training(ranks, is_layer, bucket_bytes):
    options = {"bucket_bytes": bucket_bytes}
    for got, layouts in run_ranks(ranks, train, options, {"is_layer": is_layer}):
        torch.testing.assert_close(got, expected(ranks))
        assert layouts == STEPS * [torch.sparse_coo]


def test_sums_and_compresses():
    for got, _ in run_ranks(2, train, {"op": bf.Sum}, {}):
        torch.testing.assert_close(got, expected(2, share=1.0))
    for got, _ in run_ranks(2, train, {"compression": bf.Compression.fp16}, {}):
        torch.testing.assert_close(got, expected(2), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("ranks", [1, 3])
def test_sparse_as_dense(ranks):
    # Adam refuses sparse gradients.
    options = {"sparse_as_dense": True}
    for got, layouts in run_ranks(ranks, train, options, {}, torch.optim.Adam):
        torch.testing.assert_close(got, expected(ranks, optimizer=torch.optim.Adam))
        assert layouts == STEPS * [torch.strided]


@pytest.mark.parametrize("is_layer", [True, False])
def test_gradients_that_are_dense_after_all(is_layer):
    # A tied weight has a dense gradient, although its layer has sparse=True.
    options = {"is_layer": is_layer, "tied": True}
    for got, layouts in run_ranks(2, train, {}, options):
        torch.testing.assert_close(got, expected(2, tied=True))
        assert layouts == STEPS * [torch.strided]


def sparse_adam():
    """Train with SparseAdam, for which dense gradients are errors."""
    model = Words(sparse=True)
    table = bf.DistributedOptimizer(
        torch.optim.SparseAdam([model.table.weight], lr=0.1), model
    )
    head = bf.DistributedOptimizer(
        torch.optim.SGD(model.head.parameters(), lr=0.1), model
    )
    for step in range(STEPS):
        for optimizer in (table, head):
            optimizer.zero_grad()
        loss_of(model, bf.rank(), step).backward()
        for optimizer in (table, head):
            optimizer.step()
    return flat(model)


def test_sparse_adam():
    model = Words(sparse=True)
    table = torch.optim.SparseAdam([model.table.weight], lr=0.1)
    head = torch.optim.SGD(model.head.parameters(), lr=0.1)
    for step in range(STEPS):
        for optimizer in (table, head):
            optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(3)) / 3).backward()
        for optimizer in (table, head):
            optimizer.step()
    for got in run_ranks(3, sparse_adam):
        torch.testing.assert_close(got, flat(model))


def gradients_of(is_layer, idle):
    """Accumulate two passes; the ranks in ``idle`` have no gradient for the table."""
    model = Words(sparse=True, is_layer=is_layer)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, backward_passes_per_step=2
    )
    results = []
    for _ in range(2):
        optimizer.zero_grad()
        for step in range(2):
            if bf.rank() in idle:
                model.head(torch.ones(1, WIDTH).double()).sum().backward()
            else:
                loss_of(model, bf.rank(), step).backward()
        grad = model.table.weight.grad
        results.append(None if grad is None else grad.to_dense())
    return results


@pytest.mark.parametrize("is_layer", [True, False])
@pytest.mark.parametrize("idle", [[0], [0, 1, 2]])
def test_ranks_without_a_gradient(is_layer, idle):
    model = Words(sparse=False)
    for step in range(2):
        for rank in {0, 1, 2} - set(idle):
            (loss_of(model, rank, step) / 3).backward()
    for results in run_ranks(3, gradients_of, is_layer, idle):
        for got in results:
            if model.table.weight.grad is None:
                assert got is None
            else:
                torch.testing.assert_close(got, model.table.weight.grad)


def uneven(is_layer):
    """Rank ``r`` has ``r + 1`` batches."""
    model = Words(sparse=True, is_layer=is_layer)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model
    )
    for step in range(bf.rank() + 1):
        optimizer.zero_grad()
        loss_of(model, bf.rank(), step).backward()
        optimizer.step()
    last = optimizer.join()
    bf.broadcast_parameters(model.state_dict(), last)
    return flat(model)


@pytest.mark.parametrize("is_layer", [True, False])
def test_join_averages_over_the_ranks_with_data(is_layer):
    model = Words(sparse=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        sgd.zero_grad()
        active = range(step, 3)
        (sum(loss_of(model, r, step) for r in active) / len(active)).backward()
        sgd.step()
    for got in run_ranks(3, uneven, is_layer):
        torch.testing.assert_close(got, flat(model))


def large_table():
    model = nn.EmbeddingBag(100_000, 8, sparse=True)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model
    )
    bf.reset_stats()
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    return sum(peer.bytes_sent for peer in bf.stats().neighbors)


def test_only_the_entries_are_sent():
    assert max(run_ranks(2, large_table)) < 2000


def disagree(is_layer):
    model = Words(sparse=True, is_layer=is_layer)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model
    )
    model.sparse = bf.rank() != 1
    with pytest.raises(
        bf.MismatchError,
        match=r"'table.weight' on rank \d: the gradient .* is dense on rank 1, "
        r"and sparse in 1 dimensions on ranks 0, 2.*sparse_as_dense=True",
    ):
        loss_of(model, bf.rank(), 0).backward()
    del optimizer


@pytest.mark.parametrize("is_layer", [True, False])
def test_sparse_here_and_dense_there_is_an_error(is_layer):
    run_ranks(3, disagree, is_layer)


def disagree_at_once():
    model = Words(sparse=bf.rank() == 0)
    with pytest.raises(
        bf.MismatchError,
        match=r"parameter 'table.weight' is .* with sparse gradients on rank 0, but "
        r"torch.float64 of shape \(11, 3\) on rank 1",
    ):
        bf.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)


def test_layers_that_differ_are_an_error_at_once():
    run_ranks(2, disagree_at_once)


def refuse_adasum(is_layer):
    model = Words(sparse=True, is_layer=is_layer)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    message = r"Adasum needs dense gradients.*'table.weight'.*sparse_as_dense=True"
    if is_layer:
        with pytest.raises(ValueError, match=message):
            bf.DistributedOptimizer(sgd, model, op=bf.Adasum)
    else:
        optimizer = bf.DistributedOptimizer(sgd, model, op=bf.Adasum)
        with pytest.raises(ValueError, match=message):
            loss_of(model, bf.rank(), 0).backward()
        del optimizer


@pytest.mark.parametrize("is_layer", [True, False])
def test_adasum_of_sparse_gradients_is_an_error(is_layer):
    run_ranks(2, refuse_adasum, is_layer)


def average_parameters(options, sparse):
    model = Words(sparse)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, **options
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, bf.rank(), step).backward()
        optimizer.step()
    optimizer.synchronize()
    return flat(model)


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "allreduce", "order": "atc"},
        {"algorithm": "momentum_tracking"},
        {"algorithm": "decentlam", "momentum": 0.0},
        {"algorithm": "gradient_tracking", "sparse_as_dense": True},
        {"algorithm": "push_diging", "sparse_as_dense": True},
    ],
    ids=lambda options: options["algorithm"],
)
def test_averaging_of_parameters(options):
    sparse = run_ranks(2, average_parameters, options, True)
    dense = run_ranks(2, average_parameters, options, False)
    for got, wanted in zip(sparse, dense, strict=True):
        torch.testing.assert_close(got, wanted)


def track(algorithm):
    model = Words(sparse=True)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm=algorithm
    )
    loss_of(model, 0, 0).backward()
    with pytest.raises(TypeError, match=r"of 'table.weight' is sparse.*sparse_as_den"):
        optimizer.step()


@pytest.mark.parametrize("algorithm", ["gradient_tracking", "push_diging"])
def test_tracking_refuses_sparse_gradients(algorithm):
    run_ranks(1, track, algorithm)
