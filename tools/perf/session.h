/* A run of tide-perf: what it measures, and what its ranks report. */
#ifndef TIDE_TOOLS_SESSION_H
#define TIDE_TOOLS_SESSION_H

#include "perf/args.h"
#include "perf/soak.h"

enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

/* What ranks tell the parent, in memory that they inherit or share. */
typedef struct tdi_report {
    tide_comm_info info; /* of rank 0 */
    tdi_device_info device;
    size_t row_count;
    uint32_t case_count; /* those that have rows */
    bool lost;           /* a row of tide's own has failed */
    tdi_row rows[TDI_PERF_CASES * TDI_BENCH_VARIANTS];
    char errors[][512]; /* one a rank */
} tdi_report;

typedef struct tdi_session {
    const tdi_perf_args *args;
    int argc;
    char **argv;
    tdi_case groups[TDI_PERF_CASES];
    uint32_t group_count;
    uint64_t arena_bytes; /* what the groups need; 0: the default */
    uint64_t flat_bytes;  /* the largest buffer of a baseline */
    tdi_report *report;
    size_t report_bytes;
    int *codes; /* of each rank */
    FILE *json; /* NULL: none */
} tdi_session;

/* Of processes that something else has started, rank 0 has the rows. */
static inline bool tdi_is_reporter(const tdi_session *session)
{
    const tdi_perf_args *args = session->args;
    return !args->is_started || !args->started.rank;
}

/* Errors: those of bad groups, TIDE_ERR_SYSTEM, TIDE_ERR_MEMORY. */
tide_status tdi_session_open(tdi_session *session);
void tdi_session_close(tdi_session *session); /* after a failed open, too */

/* Rank 0: the lines above the table, and the rows of the next case. */
void tdi_report_start(const tdi_session *session);
void tdi_report_rows(const tdi_session *session, const tdi_row *rows,
                     uint32_t count);
/* The errors, the verdict and the JSON file. `code` is that of the launch; the
 * result is the tool's. */
int tdi_report_finish(tdi_session *session, int code);

#endif
