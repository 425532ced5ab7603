"""The dispatchers that stand in front of FSDP2's functions."""

import pytest
from tide._fsdp import patch


def stock(first, second, third="default"):
    return ("stock", first, second, third)


@pytest.fixture
def dispatch(monkeypatch):
    """Ours if the first argument says so."""
    ours = (lambda stock, call: call, lambda call: call["first"] == "ours")
    monkeypatch.setitem(patch.HANDLERS, "stock", ours)
    return patch._dispatcher("stock", stock)


@pytest.mark.parametrize(
    "args, kwargs, third",
    [
        (("ours", 2), {}, "default"),
        (("ours", 2, 3), {}, 3),
        (("ours",), {"second": 2}, "default"),
        ((), {"third": 3, "second": 2, "first": "ours"}, 3),
    ],
)
def test_calls_are_handed_over_by_name(dispatch, args, kwargs, third):
    found = dispatch(*args, **kwargs)
    assert found == {"first": "ours", "second": 2, "third": third}


def test_other_calls_go_as_they_came(dispatch):
    assert dispatch("theirs", second=2) == ("stock", "theirs", 2, "default")


@pytest.mark.parametrize(
    "args, kwargs",
    [
        (("ours",), {}),
        ((), {"second": 2}),
        (("ours", 2, 3, 4), {}),
        (("ours", 2), {"second": 2}),
        (("ours", 2), {"fourth": 4}),
        (("ours",), {"fourth": 4}),
        (("ours", 2, 3, 4), {"first": "ours"}),
    ],
)
def test_calls_that_do_not_fit_are_stocks_error(dispatch, args, kwargs):
    with pytest.raises(TypeError, match=r"^stock\(\) "):
        dispatch(*args, **kwargs)
