"""The interface of the C++ extension to Python."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, type_check_only

from typing_extensions import Never

_Kept = TypeVar("_Kept")

class _PybindType(type):
    """The metaclass of all classes that pybind11 makes."""

class _MadeByEngine(metaclass=_PybindType):
    """A class whose constructor raises TypeError: only the extension makes objects."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...

class SharedMemory(metaclass=_PybindType):
    """Allocator of shared memory (memfd segments) that peers on this machine map.

    It reuses freed blocks, and unmaps all memory when the allocator and its last block
    have been freed.
    """

    def __init__(self) -> None: ...
    def allocate(self, nbytes: int) -> SharedBlock: ...
    def contains(self, address: int, nbytes: int) -> bool: ...

class SharedBlock(_MadeByEngine):
    """Writable buffer in shared memory. It returns to its allocator when freed."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Completion(_MadeByEngine):
    """Outcome of a request. `code` is a `Code` of common/status.h; 0 is success.

    If the request `was_carried_out`, a failure is that of an earlier one.
    """

    @property
    def code(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def was_carried_out(self) -> bool: ...

class Parameters(metaclass=_PybindType):
    """Parameters of an operation besides its tensors."""

    def __init__(
        self,
        *,
        op: str = "sum",  # sum, average, min, max, product, adasum, bit_...
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = 0,
        splits: Sequence[int] = ...,
        local_only: bool = False,
        algorithm: str = "auto",  # auto, direct, ring, hierarchical
        self_weight: float = 1.0,
        sources: Sequence[tuple[int, float]] = ...,
        destinations: Sequence[tuple[int, float]] = ...,
        peer: int = -1,
        tag: int = 0,
    ) -> None: ...
    @property
    def op(self) -> str: ...
    @property
    def prescale(self) -> float: ...
    @property
    def postscale(self) -> float: ...
    @property
    def root(self) -> int: ...
    @property
    def splits(self) -> list[int]: ...
    @property
    def local_only(self) -> bool: ...
    @property
    def self_weight(self) -> float: ...
    @property
    def sources(self) -> list[tuple[int, float]]: ...
    @property
    def destinations(self) -> list[tuple[int, float]]: ...
    @property
    def peer(self) -> int: ...
    @property
    def tag(self) -> int: ...

def copy_part_nbytes(nbytes: int) -> int:
    """Return the length of the parts in which a tensor is copied to or from a GPU."""

class Gate(_MadeByEngine):
    """Holds an operation back until its input has been written."""

    def poll(self) -> Completion | None:
        """Return None while the input is being written, without a wait."""

class FailedGate(Gate):
    """The gate of an input that nobody writes, because its writer has failed."""

    def __init__(self, text: str) -> None: ...

class StreamPoint(Gate):
    """A point in a stream of a GPU; it opens when the GPU has reached it."""

class PinnedBlock(_MadeByEngine):
    """Writable buffer in page-locked memory. Freed, it is reused by later calls."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class ExportedMemory(_MadeByEngine):
    """Memory of a device that processes of this machine may map."""

    @property
    def address(self) -> int: ...
    @property
    def handle(self) -> bytes: ...
    def free(self) -> None:
        """Free the memory, when all mappings of it have been closed."""

class MappedMemory(_MadeByEngine):
    """Memory that another process has exported."""

    @property
    def address(self) -> int: ...
    def close(self) -> None: ...

class CudaDevice(metaclass=_PybindType):
    """A CUDA device, and page-locked memory that it copies from and to.

    Streams are those of CUDA, as integers. All methods raise RuntimeError if CUDA does.
    """

    def __init__(self, library: str, ordinal: int) -> None: ...
    def allocate(self, nbytes: int) -> PinnedBlock: ...
    def copy_to_host(
        self, source: int, address: int, nbytes: int, streams: Sequence[int]
    ) -> Gate:
        """Copy what `streams` have computed, in parts, on a stream of bluecomm."""

    def copy_to_device(
        self, address: int, destination: int, nbytes: int, stream: int
    ) -> StreamPoint:
        """Copy in the order of `stream`."""

    def copy_on_device(
        self, source: int, destination: int, nbytes: int, stream: int
    ) -> None:
        """Copy in the order of `stream`, also from and to mapped memory."""

    def name_rank(self, rank: int) -> None:
        """Have errors of CUDA name the rank of this process."""

    def export_memory(self, nbytes: int) -> ExportedMemory: ...
    def map_memory(self, handle: bytes) -> MappedMemory: ...
    def point_behind(self, stream: int) -> StreamPoint:
        """Return the point behind what `stream` has been given so far."""

    def wait_for(self, point: StreamPoint, stream: int) -> None:
        """Make the later work of `stream` wait for a point of this device."""

    def start_trace(self, recorder: Recorder) -> None:
        """Show in a timeline the copies and the calls of NCCL that begin from now."""

    def collect_trace(self) -> int:
        """Record what the device has finished; return how much it has not."""

    def stop_trace(self) -> None:
        """Record what the device has finished, and forget the rest."""

    def work(self) -> dict[str, tuple[int, int, int]]:
        """Return count, bytes and nanoseconds of the copies and calls of each kind."""

class Ticket(_MadeByEngine):
    """Orders a call that the library of a device carries out."""

class FailureWatcher(_MadeByEngine):
    """Learns of lost ranks, and of failures on other ranks, from the engine."""

class NcclLibrary(metaclass=_PybindType):
    """NCCL: the one that the process has loaded, or else the first of the candidates.

    Raises RuntimeError if there is none, or it is older than 2.14.
    """

    def __init__(self, candidates: Sequence[str]) -> None: ...
    @property
    def version(self) -> str: ...
    @property
    def has_puts(self) -> bool:
        """Whether NCCL has one-sided puts: from 2.29.2 on."""

    def make_id(self) -> bytes:
        """Return an id with which ranks connect."""

class NcclPuts(metaclass=_PybindType):
    """Device memory into which other ranks put; see native/device/nccl_puts.h.

    Offsets are those in the memory of a rank, streams those of CUDA, as integers. All
    methods raise RuntimeError if CUDA or NCCL does.
    """

    def __init__(
        self,
        *,
        library: NcclLibrary,
        device: CudaDevice,
        nbytes: int,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    def connect(self, id: bytes, rank: int, size: int) -> None:
        """Begin to connect the ranks, which pass the same id of ``make_id``."""

    def advance(self) -> bool:
        """Continue what was begun; return whether it has ended.

        The methods below, but ``abort``, need that it has.
        """

    def put(
        self, peer: int, source: int, destination: int, nbytes: int, stream: int
    ) -> None:
        """Put bytes of the own memory, as ``stream`` has left them so far."""

    def await_puts(self, peer: int, count: int) -> None:
        """Wait on the device for the next puts of a rank."""

    def point(self) -> StreamPoint:
        """Return the point behind the last put, or the last wait for puts."""

    def close(self) -> None:
        """End the communicator in order, when no rank puts any more."""

    def abort(self) -> None:
        """End the communicator at once; the memory stays readable."""

class NcclCall(Ticket):
    """One call of an operation on tensors of a GPU, through NCCL."""

    def follow(self, stream: int) -> Completion | None:
        """Make later work of `stream` wait for the result, or return the failure."""

    def poll(self) -> Completion | None:
        """Return None while NCCL or the device uses the memory of the call."""

    def withdraw(self) -> None:
        """End a call that the engine has not got."""

class NcclGroup(metaclass=_PybindType):
    """Ranks that call NCCL together, with the engine's number of their group."""

    def __init__(self, *, id: int, rank: int, ranks: Sequence[int]) -> None: ...

class NcclQueue(FailureWatcher):
    """Passes one rank's calls to NCCL, in the order of their numbers.

    Addresses are those of a device, streams those of CUDA, as integers. All methods
    raise RuntimeError if CUDA or NCCL does.
    """

    def __init__(
        self,
        *,
        library: NcclLibrary,
        device: CudaDevice,
        rank: int,
        awaits_device: bool,
    ) -> None: ...
    def make_call(
        self,
        *,
        group: NcclGroup,
        kind: str,
        source: int,
        destination: int,
        count: int,
        dtype: str,
        op: str,
        root: int,
        stream: int,
        limit_s: float,
    ) -> NcclCall:
        """Return the draft of a call on what `stream` has computed so far.

        `count` elements are those of the input; for a reducescatter, of the result.
        """

    def make_reduction(
        self,
        *,
        group: NcclGroup,
        reductions: Sequence[tuple[int, int, int, int]],
        dtype: str,
        op: str,
        stream: int,
        limit_s: float,
    ) -> NcclCall:
        """Return a call of reductions to one member each; see ``make_call``.

        A reduction is its root, the addresses of the input and, on the root, of the
        result, and a number of elements.
        """

    def make_exchange(
        self,
        *,
        group: NcclGroup,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[tuple[int, int, int]],
        compares_sizes: bool = False,
        stream: int,
        limit_s: float,
    ) -> NcclCall:
        """Return the draft of messages between members; see ``make_call``.

        A message is a member, an address and a number of bytes. With
        ``compares_sizes`` the call is a mismatch on all members if one of them expects
        another number of bytes than its peer sends.
        """

    def enter(self, draft: NcclCall, group: NcclGroup) -> NcclCall:
        """Return the call of a draft among members of its group, for the engine."""

    def forget_group(self, id: int) -> None:
        """End the communicator of a group, once the device has finished its calls."""

    def failure_of(self, group: NcclGroup) -> Completion | None:
        """Return why no call of a group succeeds any more, or None."""

    def suspend(self) -> None:
        """Stop the thread of the queue until `resume` or `close`."""

    def resume(self) -> None:
        """Continue after `suspend`."""

    def close(self, timeout_s: float) -> None:
        """Finish the calls that NCCL has received; abort them after `timeout_s`."""

class _Call(Protocol):
    """See ``bluecomm.runtime.call.Call``."""

    kind: str
    name: str | None
    dtype: str
    shape: Sequence[int]
    source: tuple[int, int]  # address and bytes
    # (0, 0) if the engine allocates the result; a list: see Call::outputs
    destination: tuple[int, int] | list[tuple[int, int]]
    parameters: Parameters | None
    limit_s: float
    group_id: int
    blocking: bool
    gate: Gate | None
    ticket: NcclCall | None
    precedes_ticket: bool
    follows: bool
    raises_late: bool

_CallT = TypeVar("_CallT", bound=_Call)

@type_check_only
class Peer(TypedDict):
    rank: int
    host: str
    machine: str  # ranks with equal strings share one machine
    pid: int
    offers: dict[str, str]  # by transport name, as that rank's Engine.offers() returned

@type_check_only
class PendingRequest(TypedDict):
    id: int
    kind: str
    name: str
    group: int  # id of the members' group
    age_s: float
    waiting_for: list[int]  # global ranks
    # Action expected of them, if it is not to take part; without ranks, what it waits
    # for instead.
    wish: str
    received_bytes: int
    expected_bytes: int

@type_check_only
class MemberChange(TypedDict):
    kind: str  # "gone", "held", "released", "excluded" or "split"
    rank: int  # that has gone
    # Of "gone": "dead", "left", "stopped", "silent", "broken", "apart", or "" if it is
    # unknown. Of "split": the name of the lineage.
    cause: str
    silent_s: float
    text: str

@type_check_only
class EdgeCounters(TypedDict):
    messages_sent: int
    bytes_sent: int
    messages_received: int
    bytes_received: int
    wait_s: float
    late_s: float

@type_check_only
class LinkStreamCounters(TypedDict):
    address: str
    bytes_sent: int
    chunks_sent: int
    bytes_received: int
    chunks_received: int

@type_check_only
class PeerCounters(TypedDict):
    rank: int
    transport: str
    messages_sent: int
    bytes_sent: int
    messages_received: int
    bytes_received: int
    operations: dict[str, EdgeCounters]  # by kind
    streams: list[LinkStreamCounters]  # of a TCP link, in order of opening

@type_check_only
class KindCounters(TypedDict):
    calls: int
    failures: int
    duration_s: float
    blocked_s: float

@type_check_only
class EngineCounters(TypedDict):
    age_s: float
    replaced: int  # values of lost ranks that were replaced by own values
    dropped: int  # window requests to lost ranks that have ended without effect
    overlapped: int  # bytes still being copied when their operation started
    peers: list[PeerCounters]
    operations: dict[str, KindCounters]

class Recorder(metaclass=_PybindType):
    """Writes the events of a rank to a trace file; see native/trace/recorder.h."""

    def __init__(self, *, path: str, nbytes: int, rank: int, size: int) -> None: ...
    def begin(self, activity: str, tensor: str = "") -> None: ...
    def end(self, tensor: str = "", activity: str = "") -> None: ...

def neutral_value(dtype: str, op: str, prescale: float) -> bytes:
    """Return the bytes of the value that does not change a reduction."""

def transport_names() -> list[str]:
    """Return the names of all transports, in order of preference."""

def loaded_mpi_libraries() -> list[str]:
    """Return the paths of the MPI libraries that this process has loaded."""

class MpiLibrary(metaclass=_PybindType):
    """A libmpi that is opened at run time; see native/mpi/library.h."""

    def __init__(self, path: str) -> None: ...
    @property
    def abi(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def initialized(self) -> bool: ...
    @property
    def finalized(self) -> bool: ...
    @property
    def on_main_thread(self) -> bool: ...
    @property
    def threads(self) -> str: ...  # single, funneled, serialized, multiple
    @property
    def world_size(self) -> int: ...
    def init(self, limit_s: float, late: Callable[[], None]) -> str:
        """Initialize MPI and return its thread level.

        It waits for all ranks, without a deadline. If that takes longer than
        ``limit_s``, another thread calls ``late``.
        """

    def finalize(self, limit_s: float, late: Callable[[], None]) -> None:
        """Finalize MPI; the arguments are those of ``init``."""

    def open_session(
        self, communicator: int | None, timeout_s: float
    ) -> MpiSession | list[int]:
        """Duplicate a communicator, given by its Fortran handle. Collective.

        ``None`` stands for all ranks. Returns the ranks that did not take part in time,
        if any.
        """

class MpiSession(_MadeByEngine):
    """A communicator that only bluecomm uses; see native/mpi/session.h."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def exchange(
        self, record: bytes, timeout_s: float
    ) -> tuple[list[bytes], list[int]]:
        """Return the records by rank, or none and the ranks that did not take part."""

class Engine(metaclass=_PybindType):
    """The data plane of one rank. `start` starts its progress thread."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        job: str,
        epoch: int,
        secret: bytes,
        socket_dir: str,
        addresses: Sequence[str],  # own data addresses, in order of preference
        machine: str,
        transport: str = "auto",  # or one of transport_names()
        tcp_streams: int = 0,
        encryption: str = "off",  # of links over TCP: off, auth or full
        link_timeout_s: float = 30.0,
        eager_bytes: int = 4096,
        staging_bytes: int = 8 << 20,
        survives_losses: bool = False,  # operations that can go on without a peer do
        splits: bool = False,  # ranks that reach too few others go on by themselves
        memory: SharedMemory,
        recorder: Recorder | None = None,
        mpi: MpiSession | None = None,
    ) -> None: ...
    def offers(self) -> dict[str, str]:
        """Open the listeners and return what peers need to reach this rank."""

    def start(self, peers: Sequence[Peer]) -> None: ...
    def transport_of(self, rank: int) -> str: ...
    def limit_sending(self, streams: int, chunk_nbytes: int) -> None:
        """Limit the streams of each link over TCP, and set the size of chunks.

        Chunks go to at most `streams` streams, 1 to 16, from the next turn of a link
        on. `chunk_nbytes` is a power of two from 64 bytes to 256 KiB, or 0: 256 KiB on
        a single stream and 64 KiB on several.
        """

    def add_group(
        self,
        group_id: int,
        ranks: Sequence[int],
        machine_of: Sequence[int],
        parent: int | None = None,
    ) -> None:
        """Make a group known to the engine.

        If a member removes the group or its parent, operations of the group fail on all
        members.
        """

    def remove_group(self, group_id: int) -> None:
        """Forget a group, and fail its operations on all members."""

    def submit(self, call: _CallT, kept: dict[int, _CallT] | None = None) -> int:
        """Start an operation and return its id. The caller still owns the memory.

        A blocking call waits here, too, and returns 0 if the operation has succeeded
        and has no `output`. In all other cases (a failure, an output, a signal, or
        after 100 ms) the caller must wait for the id and release it. `kept[id]` is set
        to `call` before a signal handler can raise an exception.
        """

    def run_after(self, requests: Sequence[int], call: _Call) -> int | None:
        """Wait for requests, then run an operation without memory and wait for it.

        It returns 0 if the operation has succeeded. In other cases (a failure, a
        signal, or after 100 ms) the caller must wait for the id and release it. None:
        the operation has not started, because a request has failed or still runs.
        """

    def refuse(
        self, call: _Call, reason: str, to_group: bool, code: int, rank: int
    ) -> None:
        """Count a call that the program has refused, and tell its other ranks why.

        They are those that take part in it, or with `to_group` the whole group.
        """

    def calls_like(self, call: _Call) -> int:
        """Return how many operations with the call's group and name were counted."""

    def is_in_flight(self, kind: str, group_id: int, name: str) -> bool:
        """Return whether an operation of this kind and name has not ended."""

    def done(self, request: int) -> bool: ...
    def wait(self, request: int, timeout_s: float) -> Completion | None:
        """Drive the engine until the request has ended; None after `timeout_s`.

        It releases the GIL, and passes on the exception of a signal handler.
        """

    def wait_part(
        self, request: int, nbytes: int, timeout_s: float
    ) -> tuple[Completion | None, int]:
        """Like `wait`, but also return when the first `nbytes` of the result are final.

        The second item says how many are. It is 0 for a request that has succeeded but
        has written bytes again that were final before.
        """

    def watch(self, request: int) -> bool:
        """Have `next_done` report the end of a request; False if it has ended."""

    def next_done(self, timeout_s: float) -> list[int] | None:
        """Wait for watched requests that have ended; [] after `timeout_s`.

        It releases the GIL and drives nothing. None: the engine is closed, and all
        have been returned.
        """

    def output(self, request: int) -> tuple[SharedBlock, list[int]]:
        """Return the result that the engine allocated, and the rows of each source."""

    def source_of(self, request: int) -> int:
        """Return the global rank whose message a receive has taken."""

    def release(self, request: int) -> bool:
        """Release a request that has ended; return whether its tensors may be freed.

        If not, a transport still reads them, until `finished` returns the id.
        """

    def finished(self) -> list[int]:
        """Return the ids of requests whose tensors can be freed since the last call."""

    def held(self) -> list[int]:
        """Return the ids of ended requests whose tensors a transport still reads.

        After `close`, it may read them forever.
        """

    def fail(self, request: int, code: int, text: str) -> None: ...
    def extend_deadline(self, request: int, seconds: float) -> None:
        """Move the deadline to at least ``seconds`` from now."""

    def pending(self) -> list[PendingRequest]: ...
    def peer_lost(self, rank: int, text: str) -> None: ...
    def leave_members(self, text: str) -> None:
        """End this rank's membership: its operations fail with ``text``."""

    def watch_failures(self, watcher: FailureWatcher | None) -> None:
        """Tell `watcher` of lost ranks, and of calls that fail elsewhere later.

        It learns of ranks that are lost already, too. ``None`` tells nobody any more.
        """

    def next_member_change(self, timeout_s: float) -> MemberChange | None:
        """Wait for the next change; None after `timeout_s` or once it is closed.

        It releases the GIL. All ranks get the changes ``gone`` in one order.
        """

    def tell_failing(self, what: str) -> None:
        """Tell all peers that an error ends this program; ``what`` is such as "exit 3".

        Their operations that need this rank fail at once.
        """

    def take_late_failure(self) -> Completion | None:
        """Remove and return the late failures that no operation has raised."""

    def stats(self) -> EngineCounters: ...
    def reset_stats(self) -> None: ...
    def join(self) -> None:
        """Take part in other ranks' reductions and barriers until leave_join()."""

    def join_report(self) -> tuple[int, int]:
        """Return the number of answered operations and an unused sequence number."""

    def take_announced(
        self,
    ) -> tuple[int, str, str, str, list[int], Parameters] | None:
        """Return the next call that a rank that has joined makes on its device.

        It is the group's id, the kind, name, element type, shape and parameters of a
        call of other ranks. The caller makes or refuses it before it takes another one.
        """

    def leave_join(self, sequence: int) -> None:
        """Stop answering, and count all calls on from the same number on all ranks."""

    def suspend(self) -> None:
        """Stop all progress until resume(); wait() then returns None at once."""

    def resume(self) -> None: ...
    def close(self, timeout_s: float) -> None:
        """Send what is queued, say goodbye to all peers, and stop the thread.

        Later calls fail.
        """

class Window(metaclass=_PybindType):
    """This rank's part of a window; see native/window/window.h and service.h."""

    def __init__(
        self,
        engine: Engine,
        *,
        id: int,
        name: str,
        rank: int,
        dtype: str,
        address: int,
        nbytes: int,
        in_neighbors: Sequence[int],  # ascending
        out_neighbors: Sequence[int],  # ascending
        zero_init: bool,
        ranks: int = 0,  # number of ranks if edges may be added later
        nbytes_on_device: int = 0,  # bytes of a device value; nbytes is 0 then
        memory: SharedMemory,
    ) -> None: ...
    # The functions that return an id start a request, which is waited for and released
    # like an operation. kept[id] is set to `keep` before a signal handler can raise.
    def open(self, timeout_s: float, kept: dict[int, _Kept], keep: _Kept) -> int:
        """Announce the window; the request ends when all neighbors have opened it."""

    def remove(self) -> None:
        """Remove the window. ValueError while requests of this rank are pending."""

    def release_removed(self) -> None:
        """Free the memory of removed windows, unless a lost rank may still write it.

        Called when all ranks that are left have removed theirs.
        """

    def connect(
        self, address: int, sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        """Add edges from and to these ranks; see WindowService::connect.

        The value at ``address`` is the first one of new sources, unless the window
        begins with zeros.
        """

    def sources(self) -> list[int]:
        """Return the ranks that have a mailbox here, ascending."""

    def targets(self) -> list[int]:
        """Return the ranks with a mailbox for this one that are not lost, ascending."""

    @property
    def is_busy(self) -> bool:
        """Whether requests of this rank are pending."""

    def put(
        self,
        address: int,
        targets: Sequence[tuple[int, float]],
        accumulates: bool,
        with_p: bool,
        timeout_s: float,
        blocking: bool,  # the caller waits at once
        kept: dict[int, _Kept],
        keep: _Kept,
        is_sum: bool = False,  # see WindowPut
        summed: Sequence[int] = (),
    ) -> int:
        """Put values into the targets' windows.

        The caller owns the memory and must not change it before the request has ended.
        Returns 0 if the call has ended at once, because the targets share memory with
        this rank.
        """

    def get(
        self,
        sources: Sequence[tuple[int, float]],
        with_p: bool,
        timeout_s: float,
        blocking: bool,
        kept: dict[int, _Kept],
        keep: _Kept,
    ) -> int: ...
    def lock(
        self,
        owner: int,
        timeout_s: float,
        kept: dict[int, list[Any]],
        keep: list[Any],  # the id is appended, for unlock()
    ) -> int: ...
    def unlock(self, owner: int, request: int) -> None:
        """Release a mutex, or cancel the request for it."""

    def update(
        self,
        result: int,
        own: int,
        self_weight: float,
        weights: Sequence[tuple[int, float]],  # ascending
        resets: bool,
        with_p: bool,
        keeps: bool,
        takes: bool = True,  # False if take() has been called
    ) -> None: ...
    # The functions for device values; see native/window/window.h. Slots are numbers.
    def back_slot(self, rank: int) -> int | None: ...
    def pending(self, rank: int) -> tuple[int, int] | None: ...  # word and slot
    def publish_sum(
        self, target: int, word: int, slot: int, weight: float, with_p: bool
    ) -> bool: ...
    def shares_mailbox(self, rank: int) -> bool: ...
    def was_published(self, rank: int) -> bool: ...
    def begin_get(self, rank: int) -> int | None: ...
    def next_adds(self, rank: int) -> bool | None: ...
    def set_signal(self, rank: int, signal: int) -> None: ...
    def next_signal(self, rank: int) -> int: ...
    def take(self, rank: int) -> tuple[bool | None, int]: ...
    def has_lost(self, rank: int) -> bool:
        """Return whether this rank knows that another one is lost."""

    def reserve(self) -> int: ...
    def publish(self, own: int) -> None: ...
    @property
    def p(self) -> float: ...
    def scale_p(self, factor: float) -> None: ...
    def versions(self) -> dict[int, int]: ...
