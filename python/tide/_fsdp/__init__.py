"""How tide plugs into FSDP2; tide.fsdp is the public face.

internals   PyTorch's private names, in one place
support     may this PyTorch, this parameter group be served, and if not why
state       what tide keeps of one parameter group
wire        parameters as tide sees them: (outer, rows, inner, dtype)
device      what differs between tensors of the host and of a GPU
memory      on the host: slots, storages whose memory comes and goes
landing     on a GPU: where all-gathers land and gradients are staged
gates       memory that the host has given back and the GPU still uses
arena       torch memory that peers can read; how much of it
reserve     room there for gradients that are not
router      gradients that are allocated there
disturb     TIDE_DEBUG_DELAY: random delays, vacated memory is NaN
gather      the all-gather
reduce      the reduce-scatter
patch       the four names that lead FSDP2 here
agree       every rank decides alike
report      what was done, in numbers
"""
