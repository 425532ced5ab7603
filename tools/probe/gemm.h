/* The experiment: what runs beside a GEMM, and what that costs it. */
#ifndef TIDE_TOOLS_PROBE_GEMM_H
#define TIDE_TOOLS_PROBE_GEMM_H

#include "probe/args.h"
#include "probe/gpu.h"

tide_status probe_run_gemm(const gpu *g, const probe_args *args);

#endif
