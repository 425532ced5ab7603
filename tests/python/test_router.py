"""In-Place on a GPU: between which hooks which thread allocates where."""

import contextlib
import threading
from types import SimpleNamespace

import pytest
import torch
from tide._fsdp import router
from tide._fsdp.router import Router


class Pool:
    """Notes the thread that allocates from it; refuses to be entered twice,
    as torch's pools do."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.entered = 0

    @contextlib.contextmanager
    def using(self):
        assert self.thread is None
        self.thread = threading.get_ident()
        self.entered += 1
        try:
            yield
        finally:
            self.thread = None


class Group:
    """A parameter group whose hooks note what they see of the pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.seen = pool, []

    def pre_backward(self, *args) -> None:
        self.seen.append(("pre", self.pool.thread))

    def post_backward(self, *args) -> None:
        self.seen.append(("post", self.pool.thread))


class State:
    def __init__(self, pool: Pool | None, group: Group) -> None:
        self.gradient_pool, self.group, self.unwrap = pool, group, None


@pytest.fixture
def backward(monkeypatch):
    """Within a backward, whose callbacks are called by hand."""
    callbacks: list = []
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 7)

    class Engine:
        queue_callback = staticmethod(callbacks.append)

    monkeypatch.setattr(
        router, "Variable", SimpleNamespace(_execution_engine=Engine)
    )
    return callbacks


def make(count: int = 2):
    routes, pool = Router(), Pool()
    states = [State(pool, Group(pool)) for _ in range(count)]
    for state in states:
        routes.wrap(state)
    return routes, pool, [state.group for state in states], states


def test_only_between_the_hooks(backward):
    _routes, pool, (root, block), _states = make()
    me = threading.get_ident()
    root.pre_backward(True)
    assert pool.thread == me
    block.pre_backward(True)
    block.pre_backward(True)  # a module with two outputs
    assert pool.thread == me
    block.post_backward()
    assert pool.thread == me  # the root is still between its hooks
    root.post_backward()
    assert pool.thread is None
    seen = [entry for group in (root, block) for entry in group.seen]
    assert all(thread is None for _name, thread in seen) and len(seen) == 5
    assert len(backward) == 1  # one callback a backward


def test_suspended_calls_nest(backward):
    routes, pool, (root, _block), _states = make()
    root.pre_backward(True)
    with routes.suspended():
        with routes.suspended():
            assert pool.thread is None
        assert pool.thread is None
    assert pool.thread == threading.get_ident()
    backward[0]()
    assert pool.thread is None


def test_the_innermost_group_decides(backward):
    routes, pool, (root, _block), _states = make()
    copied = State(None, Group(pool))  # Slot-Reuse: from ordinary memory
    routes.wrap(copied)
    root.pre_backward(True)
    copied.group.pre_backward(True)
    assert pool.thread is None
    copied.group.post_backward()
    assert pool.thread == threading.get_ident()
    root.post_backward()


def test_another_thread_takes_over(backward):
    _routes, pool, (root, block), _states = make()
    root.pre_backward(True)
    seen = []

    def run() -> None:
        block.pre_backward(True)
        seen.append(pool.thread == threading.get_ident())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]
    block.post_backward()
    root.post_backward()
    assert pool.thread is None


def test_an_error_does_not_leave_it_on(backward, monkeypatch):
    routes, pool, (root, _block), _states = make()
    root.pre_backward(True)
    routes.reset_after_error()  # a forward within the backward
    assert pool.thread is not None
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: -1)
    routes.reset_after_error()  # the next step's forward
    assert pool.thread is None
    root.pre_backward(True)  # a schedule that calls it by itself
    assert pool.thread is None


def test_unwrapping(backward):
    _routes, pool, (root, block), states = make()
    root.pre_backward(True)
    for state in states:
        state.unwrap()
    assert vars(root).keys() == vars(block).keys() == {"pool", "seen"}
    block.pre_backward(True)
    block.post_backward()
    root.post_backward()
    assert pool.entered == 1
