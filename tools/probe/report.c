/* Prints and keeps rows. */
#include "probe/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static probe_row *rows;
static size_t row_count;

probe_row probe_row_of(const char *experiment, const char *variant)
{
    probe_row row = {.experiment = experiment,
                     .time_ms = NAN,
                     .gbs = NAN,
                     .host_us = NAN,
                     .block_us = NAN,
                     .slow = NAN,
                     .mean = NAN};
    snprintf(row.variant, sizeof(row.variant), "%s", variant);
    return row;
}

static void print_real(double value, int width, int digits)
{
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, value);
}

static void print_row(const probe_row *row)
{
    bool first =
        !row_count || strcmp(rows[row_count - 1].experiment, row->experiment);
    if (first)
        printf("\n# %s\n%-32s %7s %5s %9s %9s %12s %10s %8s %8s %8s %8s %8s\n",
               row->experiment, "variant", "sources", "ctas", "chunk_KiB",
               "share_KiB", "bytes", "time_ms", "GB/s", "host_us", "block_us",
               "slow_%", "mean_%");
    printf("%-32s %7" PRIu32 " %5" PRIu32 " %9" PRIu64 " %9" PRIu64
           " %12" PRIu64,
           row->variant, row->sources, row->ctas, row->chunk >> 10,
           row->share >> 10, row->bytes);
    print_real(row->time_ms, 10, 4);
    print_real(row->gbs, 8, 1);
    print_real(row->host_us, 8, 2);
    print_real(row->block_us, 8, 2);
    print_real(row->slow, 8, 1);
    print_real(row->mean, 8, 1);
    putchar('\n');
    fflush(stdout);
}

void probe_add(const probe_row *row)
{
    print_row(row);
    probe_row *more = realloc(rows, (row_count + 1) * sizeof(*rows));
    if (!more)
        return; /* it has been printed */
    rows = more;
    rows[row_count++] = *row;
}

void probe_json(tdi_json *json)
{
    tdi_json_open(json, "rows", '[');
    for (size_t i = 0; i < row_count; i++) {
        const probe_row *row = &rows[i];
        tdi_json_open(json, NULL, '{');
        tdi_json_text(json, "experiment", row->experiment);
        tdi_json_text(json, "variant", row->variant);
        tdi_json_count(json, "sources", row->sources);
        tdi_json_count(json, "ctas", row->ctas);
        tdi_json_count(json, "chunk_bytes", row->chunk);
        tdi_json_count(json, "share_bytes", row->share);
        tdi_json_count(json, "bytes", row->bytes);
        tdi_json_real(json, "time_ms", row->time_ms);
        tdi_json_real(json, "gbs", row->gbs);
        tdi_json_real(json, "host_us", row->host_us);
        tdi_json_real(json, "block_us", row->block_us);
        tdi_json_real(json, "slowdown_percent", row->slow);
        tdi_json_real(json, "mean_slowdown_percent", row->mean);
        tdi_json_close(json, '}');
    }
    tdi_json_close(json, ']');
}

void probe_free(void)
{
    free(rows);
    rows = NULL;
    row_count = 0;
}
