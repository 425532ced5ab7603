/* The probe's own kernels: names and parameters, for both sides. */
#ifndef TIDE_TOOLS_PROBE_PARAMS_H
#define TIDE_TOOLS_PROBE_PARAMS_H

#include <stdint.h>

enum { PROBE_THREADS = 512 };

/* probe_copy: 16-byte vectors; as many in flight as a sum has. */
typedef struct probe_copy_params {
    uint64_t to;
    uint64_t from;
    uint64_t vectors;
} probe_copy_params;

/* probe_spin: one block that holds its SM until *stop is not 0, or for `ns`. */
typedef struct probe_spin_params {
    uint64_t stop; /* of host memory */
    uint64_t ns;
} probe_spin_params;

#endif
