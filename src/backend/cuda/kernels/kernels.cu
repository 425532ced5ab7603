/* All kernels of the library: one compilation, one fat binary. */
#include "copy.cuh"
#include "flat.cuh"
#include "sum_bulk.cuh"
#include "sum_loads.cuh"
#include "sum_switch.cuh"
