"""The extension _tide by itself, with one rank or threads as ranks."""

import ctypes
import gc
import pickle
import subprocess
import sys
import threading
import time

import pytest
from tide import _tide
from tide.errors import MISMATCH

U64 = 1 << 64


def make_comm(**options):
    return _tide.Comm(0, 1, lambda data: [data], **options)


class Ranks:
    """Threads that meet through a barrier; each runs body(rank, allgather)."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.parts = ranks, [b""] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)

    def run(self, body) -> list:
        results: list = [None] * self.ranks

        def thread(rank: int) -> None:
            try:
                results[rank] = body(rank, lambda data: self.gather(rank, data))
            except Exception as error:
                results[rank] = error

        threads = [
            threading.Thread(target=thread, args=(r,))
            for r in range(self.ranks)
        ]
        [t.start() for t in threads]
        [t.join() for t in threads]
        return results

    def gather(self, rank: int, data: bytes) -> bytes:
        self.parts[rank] = data
        self.barrier.wait()
        joined = b"".join(self.parts)
        self.barrier.wait()
        return joined


def test_version_and_info():
    comm = make_comm()
    info = comm.info()
    assert (info["rank"], info["ranks"], info["nodes"]) == (0, 1, 1)
    assert info["backend"] == "host" and info["arena_bytes"] > 0
    assert _tide.version().count(".") == 2


def test_layout_and_stats():
    comm = make_comm()
    group = comm.group(
        [(1, 3, 5, "f32"), (2, 4, 1, "bf16"), (1, 0, 7, "u8")], "g"
    )
    first, second, third = group.layout()
    assert (first["storage_bytes"], first["grad_elems"]) == (60, 15)
    assert (second["shard_offset"], second["out_offset"]) == (64, 15)
    assert third["storage_bytes"] == 0
    assert group.shard_bytes == 80 and group.out_elems == 23
    stats = group.stats("reduce_scatter", "f32", "f32")
    assert stats["ops"]["reduce"] > 0 and stats["rail_bytes"] == 0


def test_all_gather_and_reduce_scatter():
    comm = make_comm()
    group = comm.group([(1, 2, 2, "f32")], "g")
    request = group.all_gather_begin()
    request.buffer[:16] = bytes((ctypes.c_float * 4)(1, 2, 3, 4))
    storage = (ctypes.c_float * 4)()
    request.start([ctypes.addressof(storage)])
    assert request.buffer is None
    request.wait()
    request.wait("done")
    assert list(storage) == [1, 2, 3, 4] and request.test()
    request.close()
    out = (ctypes.c_float * 4)()
    scatter = group.reduce_scatter(
        [ctypes.addressof(storage)], "f32", ctypes.addressof(out), "f32", 0.5
    )
    scatter.wait("reads")
    scatter.wait()
    assert list(out) == [0.5, 1, 1.5, 2]
    scatter.close()


def test_two_ranks_in_threads():
    """The GIL is free while a call waits: else this would never end."""

    def body(rank, allgather):
        comm = _tide.Comm(rank, 2, allgather, timeout_ms=15000)
        group = comm.group([(1, 2, 2, "f32")], "g")
        request = group.all_gather_begin()
        request.buffer[:8] = bytes((ctypes.c_float * 2)(rank, rank + 10))
        storage = (ctypes.c_float * 4)()
        request.start([ctypes.addressof(storage)])
        request.wait()
        request.close()
        return list(storage)

    assert Ranks(2).run(body) == [[0, 10, 1, 11]] * 2


def test_processes_share_a_machine():
    code = "from tide import _tide; print(_tide.machine())"
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(told) == _tide.machine() != 0


def test_a_vote():
    """True where it is on all; in one order with the calls."""
    answers = [(True, True), (True, False), (False, False), (True, True)]

    def body(rank, allgather):
        comm = _tide.Comm(rank, 2, allgather)
        group = comm.group([(1, 4, 3, "f32")])
        said = []
        for answer in answers:
            said.append(comm.vote(answer[rank]))
            land = (ctypes.c_float * 12)()
            request = group.all_gather_begin()
            request.start([ctypes.addressof(land)])
            request.wait("done")
            request.close()
        return said

    assert Ranks(2).run(body) == [[True, False, False, True]] * 2
    assert make_comm().vote(True) is True
    assert make_comm().vote(0) is False


@pytest.mark.parametrize("op", ["gather", "reduce"])
def test_a_vote_while_a_peer_waits_for_what_was_started(op):
    """One rank votes first, the other waits for its request first."""

    def body(rank, allgather):
        comm = _tide.Comm(rank, 2, allgather, local_size=1)
        group = comm.group([(1, 4, 3, "f32")])
        data = (ctypes.c_float * 12)()
        if op == "gather":
            request = group.all_gather_begin()
            request.start([ctypes.addressof(data)])
        else:
            out = (ctypes.c_float * 6)()
            request = group.reduce_scatter(
                [ctypes.addressof(data)], "f32", ctypes.addressof(out), "f32", 1
            )
        if rank == 0:
            said = comm.vote(True)
            request.wait("done")
        else:
            request.wait("done")
            said = comm.vote(True)
        request.close()
        return said

    assert Ranks(2).run(body) == [True, True]


def test_votes_that_differ_from_calls():
    def body(rank, allgather):
        comm = _tide.Comm(rank, 2, allgather)
        group = comm.group([(1, 4, 3, "f32")], "layer")
        land = (ctypes.c_float * 12)()
        if rank == 0:
            comm.vote(True)
        else:
            request = group.all_gather_begin()
            request.start([ctypes.addressof(land)])
            request.wait("done")

    errors = Ranks(2).run(body)
    assert {error.status for error in errors} <= {
        MISMATCH,
        "TIDE_ERR_ABORTED",
    }
    text = " ".join(map(str, errors))
    assert "a vote of all ranks" in text and "all-gather of layer" in text


def test_no_vote_between_begin_and_start():
    comm = make_comm()
    group = comm.group([(1, 4, 3, "f32")])
    land = (ctypes.c_float * 12)()
    request = group.all_gather_begin()
    with pytest.raises(_tide.Error, match="begun and not"):
        comm.vote(True)
    request.start([ctypes.addressof(land)])
    assert comm.vote(True)
    request.wait("done")


def test_errors_of_the_bootstrap():
    def raising(data):
        raise KeyError("no such rank")

    with pytest.raises(KeyError, match="no such rank"):
        _tide.Comm(0, 2, raising)
    with pytest.raises(ValueError, match="bytes where"):
        _tide.Comm(0, 2, lambda data: data)
    with pytest.raises(ValueError, match="one bytes a rank"):
        _tide.Comm(0, 2, lambda data: [data])
    with pytest.raises(TypeError):
        _tide.Comm(0, 2, lambda data: ["text", "text"])


@pytest.mark.parametrize(
    "rank, ranks, options",
    [(1, 1, {}), (0, 0, {}), (0, 1, {"local_size": 2}), (0, 2**32 - 1, {})],
)
def test_bad_ranks(rank, ranks, options):
    with pytest.raises(_tide.Error) as caught:
        _tide.Comm(rank, ranks, lambda data: [data] * ranks, **options)
    assert caught.value.status == "TIDE_ERR_INVALID"


def test_unknown_backend():
    with pytest.raises(_tide.Error) as caught:
        make_comm(backend="none such")
    assert caught.value.status == "TIDE_ERR_UNSUPPORTED"


def test_bad_numbers():
    with pytest.raises(OverflowError):
        _tide.Comm(-1, 1, lambda data: [data])
    with pytest.raises(OverflowError):
        _tide.Comm(0, 1 << 32, lambda data: [data])
    with pytest.raises(OverflowError):
        make_comm(arena_bytes=U64)
    comm = make_comm()
    with pytest.raises(OverflowError):
        comm.slot(-1)
    with pytest.raises(_tide.Error) as caught:
        comm.slot(0)
    assert caught.value.status == "TIDE_ERR_INVALID"


@pytest.mark.parametrize(
    "params, error",
    [
        ([(1, 3, 5, "f33")], ValueError),
        ([(1, 3, 5)], TypeError),
        ([None], TypeError),
        (None, TypeError),
        ([(1, -3, 5, "f32")], OverflowError),
        ([(0, 3, 5, "f32")], _tide.Error),
        ([(1, 1 << 61, 1 << 20, "f32")], _tide.Error),
    ],
)
def test_bad_params(params, error):
    with pytest.raises(error):
        make_comm().group(params, "g")


def test_bad_calls():
    group = make_comm().group([(1, 2, 2, "f32")], "g")
    with pytest.raises(ValueError, match="unknown collective 'sum'"):
        group.stats("sum")
    with pytest.raises(ValueError, match="2 addresses for 1 parameters"):
        group.reduce_scatter([0, 0], "f32", 0, "f32", 1.0)
    with pytest.raises(_tide.Error, match="NULL") as caught:
        group.reduce_scatter([0], "f32", 0, "f32", 1.0)
    assert caught.value.status == "TIDE_ERR_INVALID"
    with pytest.raises(_tide.Error):
        group.reduce_scatter([1], "f16", 1, "f32", 1.0)
    with pytest.raises(TypeError, match="cannot create"):
        _tide.Group()


def test_request_that_is_closed_or_started():
    group = make_comm().group([(1, 2, 2, "f32")], "g")
    storage = (ctypes.c_float * 4)()
    request = group.all_gather_begin()
    request.start([ctypes.addressof(storage)])
    with pytest.raises(_tide.Error) as caught:
        request.start([ctypes.addressof(storage)])
    assert caught.value.status == "TIDE_ERR_INVALID"
    with pytest.raises(ValueError, match="unknown phase 'soon'"):
        request.wait("soon")
    request.close()
    request.close()
    with pytest.raises(_tide.Error, match="closed"):
        request.wait()


def test_slot():
    comm = make_comm()
    slot = comm.slot(10000)
    assert slot.nbytes == 10000 and slot.address % 4096 == 0
    slot.occupy()
    slot.occupy()
    slot.buffer[:3] = b"abc"
    assert comm.info()["slot_bytes"] >= 10000
    slot.vacate()
    slot.vacate()
    assert comm.info()["slot_bytes"] == 0
    slot.close()
    slot.close()
    with pytest.raises(_tide.Error, match="the slot is closed"):
        slot.occupy()


def test_gradients_in_a_slot_that_is_vacated_at_once():
    comm = make_comm()
    group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
    slot.occupy()
    slot.buffer[:16] = bytes((ctypes.c_float * 4)(1, 2, 3, 4))
    out = (ctypes.c_float * 4)()
    request = group.reduce_scatter(
        [slot.address], "f32", ctypes.addressof(out), "f32", 1.0
    )
    slot.vacate()
    request.wait()
    request.close()
    assert list(out) == [1, 2, 3, 4]


def test_gradients_in_a_vacated_slot():
    comm = make_comm()
    group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
    out = (ctypes.c_float * 4)()
    with pytest.raises(_tide.Error, match="vacated slot") as caught:
        group.reduce_scatter(
            [slot.address], "f32", ctypes.addressof(out), "f32", 1.0
        )
    assert caught.value.status == "TIDE_ERR_INVALID"


def test_closed_communicator():
    comm = make_comm()
    group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
    slot.occupy()
    comm.close()
    comm.close()
    for call in (comm.info, group.all_gather_begin, lambda: comm.slot(1)):
        with pytest.raises(
            _tide.Error, match="communicator is closed"
        ) as caught:
            call()
        assert caught.value.status == "TIDE_ERR_INVALID"
    slot.buffer[0] = 7  # what exists stays usable until it goes
    slot.vacate()
    comm.abort()


def test_leaving():
    """Whatever is alive is freed; every later call is an error."""
    comm = make_comm()
    group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
    slot.occupy()
    request = group.all_gather_begin()
    comm.leave()
    comm.leave()
    for call in (
        comm.info,
        group.layout,
        lambda: group.shard_bytes,
        lambda: group.out_elems,
        group.all_gather_begin,
        lambda: group.stats("all_gather"),
        lambda: request.start([0]),
        request.wait,
        slot.occupy,
        lambda: slot.buffer,
    ):
        with pytest.raises(_tide.Error) as caught:
            call()
        assert caught.value.status == "TIDE_ERR_INVALID"
    assert slot.nbytes == 64
    request.close()
    comm.abort()


@pytest.mark.parametrize("started", [False, True])
def test_leaving_in_the_middle_tells_the_others(started):
    """Rank 1 goes with an all-gather begun, or started; rank 0 goes on."""

    def body(rank, allgather):
        comm = _tide.Comm(rank, 2, allgather, timeout_ms=60000)
        group = comm.group([(1, 2, 2, "f32")], "g")
        storage = (ctypes.c_float * 4)()
        if rank == 1:
            request = group.all_gather_begin()
            if started:
                request.start([ctypes.addressof(storage)])
            comm.leave()
            return None
        with pytest.raises(_tide.Error) as caught:
            for _ in range(3):  # the first may be complete by then
                request = group.all_gather_begin()
                request.start([ctypes.addressof(storage)])
                request.wait()
        return caught.value.status

    started_at = time.monotonic()
    status, _ = Ranks(2).run(body)
    assert status in ("TIDE_ERR_ABORTED", "TIDE_ERR_PEER")
    assert time.monotonic() - started_at < 20


def test_abort():
    comm = make_comm()
    group = comm.group([(1, 2, 2, "f32")], "g")
    comm.abort()
    with pytest.raises(_tide.Error) as caught:
        group.all_gather_begin()
    assert caught.value.status == "TIDE_ERR_ABORTED"


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_any_order_of_going(order):
    comm = make_comm()
    group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
    storage = (ctypes.c_float * 4)()
    request = group.all_gather_begin()
    request.start([ctypes.addressof(storage)])
    things = [comm, group, slot, request]
    del comm, group, slot, request
    for i in order:
        things[i] = None
        gc.collect()


def test_error_pickles():
    assert issubclass(_tide.Error, RuntimeError) and _tide.Error.status == ""
    assert str(pickle.loads(pickle.dumps(_tide.Error("text")))) == "text"


FORK = """
import ctypes, gc, os
from tide import _tide
from tide.comm import Communicator, _kept
comm = _tide.Comm(0, 1, lambda data: [data])
_kept[0,] = None, Communicator(comm, (0,))
group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
slot.occupy()
storage = (ctypes.c_float * 4)()
request = group.all_gather_begin()
child = os.fork()
if child == 0:
    for call in (comm.info, slot.vacate, request.wait, group.all_gather_begin):
        try:
            call()
        except _tide.Error as error:
            assert "forked" in str(error), error
        else:
            os._exit(7)
    comm.abort()
    comm.leave()
    del request, group, slot, comm
    raise SystemExit(3)  # through the exit handlers
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
request.start([ctypes.addressof(storage)])
request.wait()
print("ready")
"""


def test_a_forked_child_touches_nothing():
    """Data loaders fork: the end of a worker is no end of the rank."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


EXIT = """
import ctypes, sys
from tide import _tide
comm = _tide.Comm(0, 1, lambda data: [data])
group, slot = comm.group([(1, 2, 2, "f32")], "g"), comm.slot(64)
slot.occupy()
storage = (ctypes.c_float * 4)()
request = group.all_gather_begin()
request.start([ctypes.addressof(storage)])
loop = [comm, group, slot, request]
loop.append(loop)
print("ready")
"""


def test_interpreter_exit():
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
