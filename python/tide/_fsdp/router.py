"""In-Place: what the backward allocates comes from the arena.

Autograd allocates a weight's gradient on its own thread, between the hooks
that FSDP2 runs before and after the backward of a group. Between them that
thread's allocations are routed to the arena's pool. Everything else it
allocates there is harmless. What tide and FSDP2 themselves allocate in the
hooks is kept out: it would outlive the backward.
"""

import threading
from typing import Any

import torch
from torch.autograd import Variable


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class Router:
    """Which pool this process's backward allocates from; one at a time.

    The pool is the last opened group's: the root stays open during the whole
    backward, around the others.
    """

    def __init__(self) -> None:
        self._open: list[Any] = []  # states of groups, outermost first
        self._suspended = 0
        self._active: tuple[Any, Any, int] | None = None
        self._task = -1

    def wrap(self, state: Any) -> None:
        """Routes between the hooks of the state's group."""
        group = state.group
        pre, post = group.pre_backward, group.post_backward

        def pre_backward(*args: Any) -> None:
            with self.suspended():
                pre(*args)
                self._begin(state)

        def post_backward(*args: Any) -> None:
            with self.suspended():
                self._end(state)
                post(*args)

        group.pre_backward, group.post_backward = pre_backward, post_backward
        state.unwrap = lambda: self._unwrap(state, pre_backward, post_backward)

    def _unwrap(self, state: Any, pre: Any, post: Any) -> None:
        self._end(state)
        kept = vars(state.group)
        if kept.get("pre_backward") is pre:
            del kept["pre_backward"]
        if kept.get("post_backward") is post:
            del kept["post_backward"]

    def suspended(self) -> "_Suspension":
        """Allocations in here go where they always go."""
        return _Suspension(self)

    def _suspend(self, change: int) -> None:
        self._suspended += change
        self._apply()

    def reset(self) -> None:
        """Backward is over, or has failed."""
        self._open.clear()
        self._task = -1
        self._apply()

    def reset_after_error(self) -> None:
        """For the start of a forward: no group is between its hooks then."""
        if self._open and not in_backward():
            self.reset()

    def _begin(self, state: Any) -> None:
        if state in self._open or not in_backward():
            return
        self._open.append(state)
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            Variable._execution_engine.queue_callback(self.reset)

    def _end(self, state: Any) -> None:
        if state in self._open:
            self._open.remove(state)

    def _wanted(self) -> Any:
        """The pool to allocate from now, on this thread."""
        if self._suspended or not self._open:
            return None
        return self._open[-1].gradient_pool

    def _apply(self) -> None:
        wanted = self._wanted()
        if wanted is None and self._active is None:
            return
        thread = threading.get_ident()
        if self._active is not None:
            _context, pool, owner = self._active
            if pool is wanted and owner == thread:
                return
            self._leave()
        if wanted is not None:
            context = wanted.using()
            context.__enter__()
            self._active = (context, wanted, thread)

    def _leave(self) -> None:
        context, _pool, _thread = self._active
        self._active = None
        context.__exit__(None, None, None)


class _Suspension:
    """What Router.suspended is; these nest."""

    __slots__ = ("_router",)

    def __init__(self, router: Router) -> None:
        self._router = router

    def __enter__(self) -> None:
        self._router._suspend(1)

    def __exit__(self, *unused: Any) -> None:
        self._router._suspend(-1)


ROUTER = Router()
