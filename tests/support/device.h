/*
 * The data of a rank on a CUDA device, for tests: each rank is a thread with a
 * context and streams of its own. The driver is the one that tide loads:
 * device_use_fakes makes it the fake.
 */
#ifndef TIDE_TESTS_DEVICE_H
#define TIDE_TESTS_DEVICE_H

#include "backend/cuda/api.h"
#include "matrix.h"

/* Before anything else: names the fakes' libraries to tide. The test is skipped
 * if tide was built without kernels. */
void device_use_fakes(const char *folder);

/* The fakes' ranks are processes: those that this one forks from now on. */
void device_share_fakes(void);

/* Gives the calling thread the context of that device, modulo their count, and
 * a stream. */
void device_open(int device);
/* The same with the default stream. */
void device_open_default(int device);
void device_close(void);
/* Waits for the stream, but not for ever: after a fault it may not end. */
void device_settle(void);

/* The calling thread's memory and stream; see matrix_place. */
extern const matrix_place device_place;

const tdi_cuda_api *device_api(void);
cu_stream device_stream(void);

#endif
