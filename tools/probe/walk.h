/*
 * The local phase of a reduce-scatter without peers: one rank's plan, its
 * copies from pinned host memory in the peers' place, its sums as the backend
 * queues them. What waits for or sends to other ranks is left out.
 */
#ifndef TIDE_TOOLS_PROBE_WALK_H
#define TIDE_TOOLS_PROBE_WALK_H

#include <tide/plan.h>

#include "probe/gpu.h"

typedef struct walk walk;

typedef struct walk_mode {
    bool copies;
    bool sums;
    tdi_cuda_bounds bounds;
} walk_mode;

tide_status walk_open(const gpu *g, const tide_layout *layout,
                      tide_topology topology, walk **made);
void walk_close(walk *w); /* NULL is fine */
void walk_set_mode(walk *w, const walk_mode *mode);

/* Queues the next few ops, from the start again after the last; *bytes is what
 * the sums (without sums: the copies) read and write. The stream where that
 * ends. */
tide_status walk_some(walk *w, uint64_t *bytes);
cu_stream walk_end(const walk *w);

#endif
