/* The experiments that have the GPU to themselves. */
#ifndef TIDE_TOOLS_PROBE_SUM_H
#define TIDE_TOOLS_PROBE_SUM_H

#include "probe/args.h"
#include "probe/gpu.h"

tide_status probe_run_copy(const gpu *g, const probe_args *args);
tide_status probe_run_sum(const gpu *g, const probe_args *args);

#endif
