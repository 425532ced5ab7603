/*
 * Results as the field reads them: a table like that of nccl-tests, and the
 * same rows as JSON.
 */
#ifndef TIDE_TOOLS_TABLE_H
#define TIDE_TOOLS_TABLE_H

#include <stdint.h>
#include <stdio.h>

#include "common/json.h"

/* What became of a line that was asked for. */
typedef enum tdi_row_fate {
    TDI_ROW_DONE,
    TDI_ROW_SKIPPED, /* cannot be had here */
    TDI_ROW_FAILED,  /* broke on the way */
} tdi_row_fate;

/* One measured or simulated line; `op` and `variant` are not copied. */
typedef struct tdi_row {
    const char *op; /* "ag" or "rs" */
    const char *variant;
    uint32_t ranks;
    uint32_t local;
    uint64_t bytes; /* of one rank: packed shard (ag), fp32 output (rs) */
    double time_ms; /* median */
    double min_ms;
    double p99_ms;
    uint64_t wrong; /* elements, of all ranks */
    uint64_t buffer_bytes;
    /* Of a device that queues work, else unset. */
    int queued;
    double host_us; /* until a call was queued, median */
    double sm_us;   /* time on SMs, over all blocks; NAN: not measured */
    tdi_row_fate fate;
    char why[156]; /* it was skipped or failed */
} tdi_row;

/* GB/s: all ranks' bytes by the median time; and what crosses a link of it. */
double tdi_row_algbw(const tdi_row *row);
double tdi_row_busbw(const tdi_row *row);

/* The row of names and the row of units; `queued` has two columns more. */
void tdi_table_head(FILE *to, int queued);
void tdi_table_row(FILE *to, const tdi_row *row);
/* The verdict over all rows; "FAILED" if one is wrong or there is none. */
void tdi_table_foot(FILE *to, const tdi_row *rows, size_t count);
/* Elements that were wrong, of all rows. */
uint64_t tdi_table_wrong(const tdi_row *rows, size_t count);

/* Writes the array "rows" into an open object. */
void tdi_table_json(tdi_json *json, const tdi_row *rows, size_t count);

#endif
