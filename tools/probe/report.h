/* The probe's results: one row a measurement, as a table and as JSON. */
#ifndef TIDE_TOOLS_PROBE_REPORT_H
#define TIDE_TOOLS_PROBE_REPORT_H

#include "common/json.h"

/* Fields that a measurement lacks are NAN (real ones) or 0. */
typedef struct probe_row {
    const char *experiment;
    char variant[40];
    uint32_t sources;
    uint32_t ctas;   /* 0: no bound */
    uint64_t chunk;  /* 0: no bound */
    uint64_t share;  /* 0: no bound */
    uint64_t bytes;  /* read and written by one timed piece of work */
    double time_ms;  /* median */
    double gbs;      /* bytes read and written a second, 1e9 */
    double host_us;  /* of one launch */
    double block_us; /* that a block of a sum lived, on average */
    double slow; /* percent by which the median GEMM took longer than alone */
    double mean; /* the same of the mean */
} probe_row;

/* Rows without numbers, to fill in. */
probe_row probe_row_of(const char *experiment, const char *variant);

/* Prints the row, with the head if it is the first of its experiment, and
 * keeps it for the JSON. */
void probe_add(const probe_row *row);
void probe_json(tdi_json *json);
void probe_free(void);

#endif
