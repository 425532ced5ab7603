"""tide: PyTorch FSDP2's collectives without the layout copies around them.

``tide.fsdp`` is what a training script needs::

    import tide.fsdp
    tide.fsdp.enable(model)          # after fully_shard
    ...                              # train as before
    print(tide.fsdp.report(model))   # the path of each group, and why

``tide.Error`` is raised by every call that fails; its ``status`` is the name
of the tide_status.
"""

from tide._tide import Error, version

__all__ = ["Error", "version"]
__version__ = version()
