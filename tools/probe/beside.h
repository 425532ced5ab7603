/* Work that keeps running on tide's streams, fed by a thread, while a GEMM is
 * timed. */
#ifndef TIDE_TOOLS_PROBE_BESIDE_H
#define TIDE_TOOLS_PROBE_BESIDE_H

#include "probe/walk.h"

typedef struct beside beside;

tide_status beside_start(const gpu *g, walk *w, beside **made);
/* Bytes of the pieces that have ended so far. */
uint64_t beside_bytes(beside *b);
/* Ends it when what is queued has ended, and frees it. */
tide_status beside_stop(beside *b);

#endif
