/* What the two halves of the order check share: events on lines. */
#ifndef TIDE_PLAN_VERIFY_ORDER_H
#define TIDE_PLAN_VERIFY_ORDER_H

#include "plan/verify.h"

/* Lines: the lanes of every rank, and its wire, on which its puts arrive. */
enum { TDI_WIRE = TIDE_LANE_COUNT, TDI_LINES = TIDE_LANE_COUNT + 1 };

/* Something that happens at one time of a line: an op, its put's arrival, or
 * the caller at a mark. Times of a line count from 1. */
typedef struct tdi_event {
    uint32_t line; /* rank * TDI_LINES + lane or wire */
    uint32_t time;
    uint32_t call;
    uint32_t index; /* of the op; nothing at TDI_CALL_START */
    uint32_t phase; /* of the caller, or TDI_NO_PHASE */
} tdi_event;

#define TDI_NO_PHASE UINT32_MAX

/* [op]: so many signals of this call, raised by ops of this plan on the op's
 * counter, prove that the op's is among them. NULL when memory is out. */
uint32_t *tdi_guarantees(const tdi_code *code);

/* One past access. */
typedef struct tdi_record {
    uint64_t offset;
    uint64_t width;
    uint64_t height;
    uint64_t pitch;
    tdi_event event;
    bool write;
} tdi_record;

/* Past accesses of one line, all reads or all writes, in order of time. */
typedef struct tdi_track {
    tdi_record *records;
    uint32_t count;
    uint32_t capacity;
    uint32_t line;
    bool write;
} tdi_track;

/* The accesses so far of one buffer. */
typedef struct tdi_history {
    tdi_track *tracks;
    uint32_t count;
    uint32_t capacity;
    uint64_t end; /* no access went further */
} tdi_history;

/* A past access that the next one races with, as it knows only of clock[line]
 * events of each line, or NULL; *at is a byte that both touch. */
const tdi_record *tdi_history_race(const tdi_history *history,
                                   const tdi_record *next,
                                   const uint32_t *clock, uint64_t *at);
/* Adds an access that races with none. False when memory is out. */
bool tdi_history_keep(tdi_history *history, const tdi_record *record);
void tdi_history_free(tdi_history *history);

typedef struct tdi_races {
    const tdi_program *program;
    uint32_t *first;      /* [set]: of its tensors, in a rank's histories */
    uint32_t *turn;       /* [call]: calls of its kind before it */
    uint32_t per_rank;    /* histories of a rank */
    tdi_history *history; /* [rank][buffer] */
} tdi_races;

tide_status tdi_races_open(tdi_races *races, const tdi_program *program);
void tdi_races_close(tdi_races *races);
/* An access at an event that knows of clock[line] events of each line. Fails
 * if it overlaps an access, not both reads, that it does not know of. */
tide_status tdi_races_add(tdi_races *races, const tdi_access *access,
                          const tdi_event *event, const uint32_t *clock);

#endif
