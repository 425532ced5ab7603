/*
 * Where a rank's data lies, and how its work is queued and timed: in the
 * process itself, or on a GPU. One const table each, named as the backend of
 * tide that it goes with.
 */
#ifndef TIDE_TOOLS_DEVICE_H
#define TIDE_TOOLS_DEVICE_H

#include <stdbool.h>
#include <tide/coll.h>

typedef struct tdi_device tdi_device;

/* A rank among those of its machine: it picks the GPU. */
typedef struct tdi_place {
    uint32_t local_rank;
    uint32_t local_ranks;
} tdi_place;

/* What a measurement took. */
typedef struct tdi_sample {
    double ms;      /* on a GPU: between events on the caller's stream */
    double host_us; /* until all was queued; NAN where nothing is queued */
} tdi_sample;

/* What the numbers were measured on; empty on the host. */
typedef struct tdi_device_info {
    char name[128];
    uint32_t devices; /* of this machine */
    int driver;       /* 13000: 13.0 */
    int nccl;         /* 23007: 2.30.7 */
} tdi_device_info;

typedef struct tdi_device_kind {
    const char *name;
    bool queued; /* work runs on a stream, behind the calls */
    tide_status (*open)(tdi_device *device, const tdi_place *place);
    tide_status (*open_stream)(tdi_device *device); /* if it is queued */
    void (*close)(tdi_device *device); /* after a failed open, too */
    void (*describe)(const tdi_device *device, tdi_device_info *info);

    tide_status (*take)(tdi_device *device, uint64_t bytes, void **memory);
    void (*give)(tdi_device *device, void *memory); /* NULL is fine */

    /* Queued on the stream, where there is one. */
    tide_status (*set)(tdi_device *device, void *memory, int byte,
                       uint64_t bytes);
    tide_status (*copy)(tdi_device *device, void *to, const void *from,
                        uint64_t bytes);

    /* Host memory in which to see up to `bytes` of the device's at a time. */
    tide_status (*reserve)(tdi_device *device, uint64_t bytes);
    /* Where to write what `memory` shall hold; upload then moves it there. */
    void *(*view)(tdi_device *device, void *memory);
    tide_status (*upload)(tdi_device *device, void *memory, uint64_t bytes);
    /* *seen is valid until the next view or download. */
    tide_status (*download)(tdi_device *device, const void *memory,
                            uint64_t bytes, const void **seen);

    /* Around what is measured; wait returns when it has run, with an error
     * once limit_ms have passed. */
    tide_status (*start)(tdi_device *device);
    tide_status (*stop)(tdi_device *device);
    tide_status (*wait)(tdi_device *device, uint64_t limit_ms,
                        tdi_sample *sample);

    /* The rest is for queued devices only. */

    /* FSDP2's layout copies of a group, between its tensors at `address` and a
     * rank-major buffer. */
    tide_status (*make_flat)(tdi_device *device, const tide_layout *layout,
                             tide_coll coll, const void *const *address,
                             void **flat);
    void (*free_flat)(void *flat); /* NULL is fine */
    tide_status (*queue_flat)(tdi_device *device, const void *flat,
                              void *buffer);
    /* From here on the communicator's kernels count how long they hold SMs; and
     * how long that was, which ends it. */
    tide_status (*count_time)(tdi_device *device, tide_comm *comm);
    tide_status (*read_time)(tdi_device *device, tide_comm *comm,
                             double *sm_us);
} tdi_device_kind;

struct tdi_device {
    const tdi_device_kind *kind;
    tide_stream stream; /* NULL on the host */
    void *state;
};

/* The kind of this name; NULL: none. A NULL name is the host. */
const tdi_device_kind *tdi_device_find(const char *name);

extern const tdi_device_kind tdi_device_host;
extern const tdi_device_kind tdi_device_cuda;

#endif
