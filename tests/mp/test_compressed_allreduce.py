"""Compressed allreduce against its formula, bit by bit."""

import contextlib

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import HalfCast, MinMaxUInt8, RandomK, ScaledSign
from bluecomm.ops import coded_exchange, follow_up_name
from bluecomm.ops import compressed_allreduce as module
from bluecomm.ops.coded_exchange import CodedExchange
from bluecomm.runtime import current_communicator
from bluecomm.runtime.failure import late
from bluecomm.runtime.handle import MappedHandle
from tests.support.other_orders import wait_in_other_orders
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

CODECS = {
    "min_max": MinMaxUInt8(chunk=40),
    "half": HalfCast(),
    "sign": ScaledSign(8),
    "random": RandomK(2, seed=5),
}


def values_of(rank, shape, dtype):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(shape, generator=generator).to(dtype)


def rounded(codec, values):
    code = torch.empty(
        codec.encoded_nbytes(values.numel(), values.dtype), dtype=torch.uint8
    )
    codec.encode(values, code)
    decoded = torch.empty_like(values)
    codec.decode(code, decoded)
    return decoded


def expected(codec, op, each, slice_numel):
    """Return the result for the tensors of all ranks."""
    n, results = len(each), []
    for slices in zip(*(x.flatten().split(slice_numel) for x in each), strict=True):
        share = -(-len(slices[0]) // n)
        for pieces in zip(*(one.split(share) for one in slices), strict=True):
            total = torch.zeros(len(pieces[0]))
            for number, piece in enumerate(pieces):
                near = rounded(codec, piece.float())
                total = total + near if number else near
            results.append(rounded(codec, total / n if op is bf.Average else total))
    return torch.cat(results).view(each[0].shape).to(each[0].dtype)


@contextlib.contextmanager
def slices_of(numel):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLICE", numel)
        yield


@contextlib.contextmanager
def turns_of(number):
    """Let that many calls of a name use different names for their later operations.

    With one, ranks must have started or refused as many of them as the other ranks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow_up_name, "_TURNS", number)
        yield


def start_named(number):
    values = torch.full((30,), 1.0 * number)
    return bf.compressed_allreduce_nonblocking(values, HalfCast(), "x")


def reduce_all():
    me, n = bf.rank(), bf.size()
    for slice_numel in (1 << 22, 100):
        for label, codec in CODECS.items():
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                for shape in [(12,), (5, 51)]:
                    each = [values_of(r, shape, dtype) for r in range(n)]
                    for op in (bf.Average, bf.Sum):
                        wanted = expected(codec, op, each, slice_numel)
                        before = each[me].clone()
                        with slices_of(slice_numel):
                            got = bf.compressed_allreduce(each[me], codec, op=op)
                        assert torch.equal(got, wanted), (label, dtype, shape, op)
                        assert got.dtype == dtype
                        assert torch.equal(each[me], before)
    started = [
        bf.compressed_allreduce_nonblocking(torch.full((30,), 1.0 * k), HalfCast())
        for k in range(8)
    ]
    # Ranks wait in different orders.
    for k in range(8) if me else reversed(range(8)):
        assert started[k].wait().tolist() == [1.0 * k] * 30
    for slice_numel in (1 << 22, 20):
        with slices_of(slice_numel):
            values = wait_in_other_orders(start_named)
        assert torch.equal(
            torch.stack(values), torch.tensor([[0.0], [1]]).expand(2, 30)
        )
    assert bf.compressed_allreduce(torch.empty(0, 3), HalfCast()).shape == (0, 3)
    fp16 = bf.compressed_allreduce(torch.tensor([1 / 3, 3e38]), bf.Compression.fp16)
    assert fp16[0] == torch.tensor(1 / 3).half()
    assert fp16[1].isnan()
    bad = torch.ones(80)
    bad[70] = float("inf") if me == 0 else 1.0
    result = bf.compressed_allreduce(bad, MinMaxUInt8(8)).isnan()
    assert result.any()
    assert not result[:60].any()
    strided = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(bf.compressed_allreduce(strided, HalfCast()), strided)
    return torch.stack([fp16.nan_to_num(), *(h.float() for h in [got[0, :2]])])


@pytest.mark.parametrize(("world_size", "transport"), [(2, "tcp"), (3, "shm")])
def test_equals_the_formula(world_size, transport):
    first, *others = run_ranks(world_size, reduce_all, transport=transport)
    assert all(torch.equal(first, other) for other in others)


def disagree():
    me, x = bf.rank(), torch.ones(300)
    for mine, text in [
        ((x, MinMaxUInt8(64 + 32 * (me == 1))), r"chunk=64\).*got.*chunk=96\)"),
        ((x, [HalfCast(), MinMaxUInt8()][me % 2]), "HalfCast.*got.*MinMaxUInt8"),
        ((torch.ones(300 + 50 * me), HalfCast()), r"shape \(300,\).*shape \(350,\)"),
        ((x.double() if me == 1 else x, HalfCast()), "type float32.*type float64"),
    ]:
        with (
            slices_of(100),
            pytest.raises(bf.MismatchError, match=text) as caught,
        ):
            bf.compressed_allreduce(*mine, "x")
        assert caught.value.peers == (0, 1)
    with pytest.raises(bf.MismatchError, match=r"op average.*op sum"):
        bf.compressed_allreduce(x, HalfCast(), "x", op=[bf.Average, bf.Sum][me % 2])
    assert torch.equal(bf.compressed_allreduce(x, HalfCast(), "x"), x)
    # A call that one rank refuses counts for both halves on all ranks.
    for turns in (1, 64):
        for options, text in [
            ({"tensor": x.long()}, r"type torch\.int64"),
            ({"timeout_s": -1.0}, r"timeout_s must be above 0, got -1\.0"),
        ]:
            mine = {"tensor": x, "codec": HalfCast(), "name": "x"}
            with (
                turns_of(turns),
                pytest.raises((ValueError, bf.MismatchError), match=text),
            ):
                bf.compressed_allreduce(**mine | (options if me == 1 else {}))
            with turns_of(turns):
                assert torch.equal(bf.compressed_allreduce(**mine), x)
    pair = bf.ProcessSet([0, 2])
    if pair.included:
        mean = bf.compressed_allreduce(x * me, HalfCast(), process_set=pair)
        assert torch.equal(mean, x)
    else:
        with pytest.raises(ValueError, match="rank 1 is not a member"):
            bf.compressed_allreduce(x, HalfCast(), process_set=pair)
    alone = bf.ProcessSet([me])
    third = bf.compressed_allreduce(x / 3, HalfCast(), process_set=alone)
    assert torch.equal(third, x / 3)


def test_different_calls_are_errors_and_sets_are_apart():
    run_ranks(3, disagree)


class Broken(HalfCast):
    """Fails in some of the calls of ``encode``, counted over a call of the operation.

    With three ranks, three slices take 3 calls each for the pieces, and then one each
    for the results.
    """

    def __init__(self, *bad):
        super().__init__()
        self._bad = bad
        self._calls = 0

    def __repr__(self):
        return "Broken()"

    def encode(self, values, into):
        self._calls += 1
        if self._calls - 1 in self._bad:
            raise ValueError(f"call {self._calls - 1} of encode")
        return super().encode(values, into)


def call_nonblocking(*args):
    return bf.compressed_allreduce_nonblocking(*args).wait()


def break_slices():
    x = torch.ones(300)
    # A piece of the second or third slice, or a result of any.
    for bad in (4, 8, 9, 10, 11):
        text = f"ValueError: call {bad} of" if bf.rank() != 1 else f"call {bad} of enc"
        with slices_of(100):
            for call in (bf.compressed_allreduce, call_nonblocking):
                for turns in (1, 64):
                    # Not the codec of the call before, whose other slices may still
                    # run.
                    codec = Broken(*([bad] if bf.rank() == 1 else []))
                    with (
                        turns_of(turns),
                        pytest.raises((ValueError, bf.MismatchError), match=text),
                    ):
                        call(x, codec, "x")
            # All ranks have counted the same calls of the name.
            with turns_of(1):
                assert torch.equal(bf.compressed_allreduce(x, HalfCast(), "x"), x)
            assert torch.equal(bf.compressed_allreduce(x, HalfCast(), "x"), x)


def fail_alone(name, error):
    """Let the first half of a call fail on rank 1 only, and call again."""
    x, started = torch.ones(300), []
    start, gather = CodedExchange.start, coded_exchange.start_gather

    def note(*args, **kwargs):
        place = len(started)
        started.append(None)  # the others may begin before the first one returns
        started[place] = start(*args, **kwargs)
        return started[place]

    def fail(_):
        raise error

    def fail_later(*args, **kwargs):
        return MappedHandle(gather(*args, **kwargs), fail)

    with slices_of(100), turns_of(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CodedExchange, "start", note)
        if bf.rank() == 1:
            patch.setattr(coded_exchange, "start_gather", fail_later)
        with pytest.raises(bf.BluecommError, match="too late"):
            bf.compressed_allreduce(x, HalfCast(), name)
        # The operations of the other slices do not wait for their deadlines.
        for handle in started[1:]:
            with pytest.raises(bf.BluecommError, match="too late"):
                handle.wait()
        patch.undo()
        assert len(started) == (1 if bf.rank() == 1 else 3)
        assert torch.equal(bf.compressed_allreduce(x, HalfCast(), name), x)


def fail_first_halves():
    fail_alone("y", bf.BluecommError("too late"))
    # An earlier operation has failed, so the other ranks go on.
    fail_alone("z", late(bf.MismatchError("too late")))


def test_an_error_in_any_slice_fails_all_ranks_at_once():
    run_ranks(3, break_slices)


def test_a_first_half_that_fails_on_one_rank_fails_all_slices():
    # Exchanges that GPUs encode have no such half.
    run_ranks(3, fail_first_halves, environment={"BLUECOMM_DEVICE_CODES": "host"})


class OfHalves(HalfCast):
    dtypes = (torch.float16,)


def misuse():
    x = torch.ones(4)
    call = bf.compressed_allreduce
    with pytest.raises(ValueError, match=r"type torch\.int64; use allreduce, or"):
        call(x.long(), HalfCast())
    with pytest.raises(ValueError, match=r"requires grad, .* tensor\.detach\(\)"):
        call(x.clone().requires_grad_(), HalfCast())
    with pytest.raises(TypeError, match=r"codec must be a codec, .* need no codec"):
        call(x, bf.Compression.none)
    with pytest.raises(TypeError, match="does not encode float32"):
        call(x, OfHalves())
    with pytest.raises(ValueError, match=r"op must be bluecomm\.Average or Sum"):
        call(x, HalfCast(), op=bf.Max)
    with torch.no_grad():
        call(x.clone().requires_grad_(), HalfCast())
    members = current_communicator().world.members
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "survives_losses", True)
        with pytest.raises(ValueError, match=r"--on-failure continue .*use allreduce"):
            call(x, HalfCast())


def test_misuse():
    run_ranks(1, misuse)
