/* The accesses of one buffer so far, line by line. */
#include "plan/verify_order.h"

#include "base/util.h"

#include <stdlib.h>

static uint64_t end_of(const tdi_record *a)
{
    return a->offset + (a->height - 1) * a->pitch + a->width;
}

/* Does [from, to) meet a row of b? *at is where. */
static bool meets_row(uint64_t from, uint64_t to, const tdi_record *b,
                      uint64_t *at)
{
    uint64_t row = 0;
    if (to <= b->offset)
        return false;
    if (from >= b->offset + b->width && b->pitch)
        row = (from - b->offset - b->width) / b->pitch + 1;
    if (row >= b->height)
        return false;
    uint64_t start = b->offset + row * b->pitch;
    *at = tdi_max(start, from);
    return start < to && from < start + b->width;
}

/* Neither is empty. *at is the first byte that both touch. */
static bool overlap(const tdi_record *a, const tdi_record *b, uint64_t *at)
{
    if (end_of(a) <= b->offset || end_of(b) <= a->offset)
        return false;
    const tdi_record *few = a->height <= b->height ? a : b;
    const tdi_record *many = few == a ? b : a;
    for (uint64_t row = 0; row < few->height; row++) {
        uint64_t start = few->offset + row * few->pitch;
        if (meets_row(start, start + few->width, many, at))
            return true;
    }
    return false;
}

/* A line's past is known up to a time, so what is unknown of it is at the end
 * of its track. */
const tdi_record *tdi_history_race(const tdi_history *history,
                                   const tdi_record *next,
                                   const uint32_t *clock, uint64_t *at)
{
    for (uint32_t t = 0; t < history->count; t++) {
        const tdi_track *track = &history->tracks[t];
        if (track->line == next->event.line || !(track->write || next->write))
            continue;
        for (uint32_t i = track->count; i-- > 0;) {
            const tdi_record *past = &track->records[i];
            if (past->event.time <= clock[track->line])
                break;
            if (overlap(past, next, at))
                return past;
        }
    }
    return NULL;
}

static void *grow(void *memory, uint32_t *capacity, size_t size)
{
    uint32_t wanted = *capacity ? 2 * *capacity : 4;
    void *grown = realloc(memory, wanted * size);
    if (grown)
        *capacity = wanted;
    return grown;
}

static tdi_track *find_track(tdi_history *history, uint32_t line, bool write)
{
    for (uint32_t t = 0; t < history->count; t++)
        if (history->tracks[t].line == line &&
            history->tracks[t].write == write)
            return &history->tracks[t];
    if (history->count == history->capacity) {
        tdi_track *tracks =
            grow(history->tracks, &history->capacity, sizeof(*history->tracks));
        if (!tracks)
            return NULL;
        history->tracks = tracks;
    }
    tdi_track *track = &history->tracks[history->count++];
    *track = (tdi_track){.line = line, .write = write};
    return track;
}

/* Whoever races with what lies behind a write of everything, races with that
 * write too: the past can be forgotten. */
static void forget(tdi_history *history)
{
    for (uint32_t t = 0; t < history->count; t++)
        history->tracks[t].count = 0;
}

bool tdi_history_keep(tdi_history *history, const tdi_record *record)
{
    if (record->write && record->offset == 0 && record->height == 1 &&
        record->width >= history->end)
        forget(history);
    history->end = tdi_max(history->end, end_of(record));
    tdi_track *track = find_track(history, record->event.line, record->write);
    if (!track)
        return false;
    if (track->count == track->capacity) {
        tdi_record *records =
            grow(track->records, &track->capacity, sizeof(*records));
        if (!records)
            return false;
        track->records = records;
    }
    track->records[track->count++] = *record;
    return true;
}

void tdi_history_free(tdi_history *history)
{
    for (uint32_t t = 0; t < history->count; t++)
        free(history->tracks[t].records);
    free(history->tracks);
}
