/* Every backend, best first. A new one is a line here and a folder in
 * src/backend. */
#include "exec/backend.h"

extern const tdi_backend tdi_host_backend;
extern const tdi_backend tdi_cuda_backend;

const tdi_backend *const tdi_backends[] = {
    &tdi_host_backend,
    &tdi_cuda_backend,
    NULL,
};
