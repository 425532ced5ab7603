"""How tide plugs into FSDP2; tide.fsdp is the public face.

internals   PyTorch's private names, in one place
support     may this PyTorch, this parameter group be served, and if not why
state       what tide keeps of one parameter group
wire        parameters as tide sees them: (outer, rows, inner, dtype)
memory      slots: storages whose memory comes and goes
gather      the all-gather
reduce      the reduce-scatter
patch       the four names that lead FSDP2 here
agree       every rank decides alike
report      what was done, in numbers
"""
