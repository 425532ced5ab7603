"""The four module-level names through which FSDP2 reaches tide.

Each is replaced by a dispatcher that calls the original with the same
arguments, unless it sees a comm, a result or a ticket of tide's. A call that
does not fit goes to the original as well, which says what is wrong. They are
installed with the first group that is enabled and restored with the last.
"""

import functools
import inspect
import weakref
from collections.abc import Callable

from tide._fsdp import gather, internals, reduce
from tide._fsdp.gather import StockResult, TideAllGather, TideResult
from tide._fsdp.reduce import TideReduceScatter
from tide._fsdp.state import GroupState

# Name: the module whose globals FSDP2 looks it up in.
TARGETS = {
    "foreach_all_gather": internals.param_group,
    "foreach_all_gather_copy_out": internals.param_group,
    "foreach_reduce": internals.param_group,
    "foreach_reduce_scatter_copy_in": internals.collectives,
}

HANDLERS: dict[str, tuple[Callable, Callable[[dict], bool]]] = {
    "foreach_all_gather": (
        gather.start_all_gather,
        lambda call: isinstance(call["all_gather_comm"], TideAllGather),
    ),
    "foreach_all_gather_copy_out": (
        gather.finish_all_gather,
        lambda call: isinstance(
            call["all_gather_result"], (TideResult, StockResult)
        ),
    ),
    "foreach_reduce": (
        reduce.reduce,
        lambda call: isinstance(call["reduce_scatter_comm"], TideReduceScatter),
    ),
    "foreach_reduce_scatter_copy_in": (
        reduce.copy_in,
        lambda call: (
            hasattr(call["reduce_scatter_input"], "_tide_call")
            or hasattr(call["reduce_scatter_input"], "_tide_divisor")
        ),
    ),
}

_enabled: "weakref.WeakSet[GroupState]" = weakref.WeakSet()


def originals() -> dict[str, Callable]:
    """The functions as PyTorch defines them; absent where it has none."""
    found = {}
    for name, module in TARGETS.items():
        function = getattr(module, name, None)
        if _is_ours(function):
            function = function.__wrapped__
        if function is not None:
            found[name] = function
    return found


def foreign_patch() -> str | None:
    """Which of the names somebody else has replaced."""
    home = internals.collectives.__name__
    for name, function in originals().items():
        if function.__module__ != home or function.__name__ != name:
            return f"{name} was replaced by {function.__module__}"
    return None


def install(state: GroupState) -> None:
    _enabled.add(state)
    for name, module in TARGETS.items():
        current = getattr(module, name)
        if not _is_ours(current):
            setattr(module, name, _dispatcher(name, current))


def remove(state: GroupState) -> None:
    _enabled.discard(state)
    if _enabled:
        return
    for name, module in TARGETS.items():
        current = getattr(module, name)
        if _is_ours(current):
            setattr(module, name, current.__wrapped__)


def _is_ours(function) -> bool:
    return getattr(function, "_tide_dispatcher", False)


def _dispatcher(name: str, stock: Callable) -> Callable:
    parameters = inspect.signature(stock).parameters.values()
    names = [parameter.name for parameter in parameters]
    known = frozenset(names)
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    handler, is_ours = HANDLERS[name]

    @functools.wraps(stock)
    def dispatch(*args, **kwargs):
        given = dict(zip(names, args, strict=False), **kwargs)
        call = {**defaults, **given}
        fits = (  # each argument has a parameter, and each parameter a value
            len(given) == len(args) + len(kwargs) and call.keys() == known
        )
        if not fits or not is_ours(call):
            return stock(*args, **kwargs)
        return handler(stock, call)

    dispatch._tide_dispatcher = True
    return dispatch
