/* What a result was measured on. */
#ifndef TIDE_TOOLS_MACHINE_H
#define TIDE_TOOLS_MACHINE_H

#include <stdint.h>

typedef struct tdi_machine {
    char cpu[128];
    char kernel[128];
    uint64_t cores; /* that this process may use */
    uint64_t memory_bytes;
} tdi_machine;

/* What cannot be found out is "unknown" or 0. */
void tdi_machine_read(tdi_machine *machine);

#endif
