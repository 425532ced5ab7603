/* Opens the CUDA driver and NCCL, once a process. */
#ifndef TIDE_BACKEND_CUDA_LOAD_H
#define TIDE_BACKEND_CUDA_LOAD_H

#include "backend/cuda/api.h"

#include <tide/status.h>

/*
 * A copy that the process has loaded already comes first, then the file that
 * TIDE_CUDA_LIBRARY or TIDE_NCCL_LIBRARY names, or the usual name where that
 * is unset. The table lives as long as the process. Any thread. Errors:
 * TIDE_ERR_UNSUPPORTED with what was not found, where, and what would help.
 */
tide_status tdi_cuda_load(const tdi_cuda_api **api);
tide_status tdi_nccl_load(const tdi_nccl_api **api);

/* TIDE_OK, or TIDE_ERR_SYSTEM (TIDE_ERR_MEMORY where memory is short) with the
 * rank (none for tdi_cuda_check of TDI_NO_RANK), what was tried and the
 * library's own words. */
#define TDI_NO_RANK UINT32_MAX
tide_status tdi_cuda_check(const tdi_cuda_api *api, cu_result result,
                           uint32_t rank, const char *what);
tide_status tdi_nccl_check(const tdi_nccl_api *api, nccl_result result,
                           uint32_t rank, const char *what);

#endif
