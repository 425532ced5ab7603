/* Prints result rows as a table and as JSON. */
#include "common/table.h"

#include <inttypes.h>

double tdi_row_algbw(const tdi_row *row)
{
    double bytes = (double)row->bytes * row->ranks;
    return row->time_ms > 0 ? bytes / row->time_ms / 1e6 : 0;
}

/* As nccl-tests has it: a rank need not send its own part. */
double tdi_row_busbw(const tdi_row *row)
{
    return tdi_row_algbw(row) * (row->ranks - 1) / row->ranks;
}

void tdi_table_head(FILE *to)
{
    fprintf(to, "# %10s  %-15s %9s %9s %9s %8s %8s %7s %12s\n", "bytes",
            "variant", "min", "p50", "p99", "algbw", "busbw", "#wrong",
            "buffer");
    fprintf(to, "# %10s  %-15s %9s %9s %9s %8s %8s %7s %12s\n", "(B)", "",
            "(ms)", "(ms)", "(ms)", "(GB/s)", "(GB/s)", "", "(B)");
    fflush(to);
}

void tdi_table_row(FILE *to, const tdi_row *row)
{
    fprintf(to,
            "  %10" PRIu64 "  %-15s %9.3f %9.3f %9.3f %8.2f %8.2f %7" PRIu64
            " %12" PRIu64 "\n",
            row->bytes, row->variant, row->min_ms, row->time_ms, row->p99_ms,
            tdi_row_algbw(row), tdi_row_busbw(row), row->wrong,
            row->buffer_bytes);
    fflush(to);
}

uint64_t tdi_table_wrong(const tdi_row *rows, size_t count)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += rows[i].wrong;
    return wrong;
}

void tdi_table_foot(FILE *to, const tdi_row *rows, size_t count)
{
    uint64_t wrong = tdi_table_wrong(rows, count);
    fprintf(to, "# Wrong elements: %" PRIu64 "  %s\n", wrong,
            wrong || !count ? "FAILED" : "OK");
}

void tdi_table_json(tdi_json *json, const tdi_row *rows, size_t count)
{
    tdi_json_open(json, "rows", '[');
    for (size_t i = 0; i < count; i++) {
        const tdi_row *row = &rows[i];
        tdi_json_open(json, NULL, '{');
        tdi_json_text(json, "op", row->op);
        tdi_json_count(json, "ranks", row->ranks);
        tdi_json_count(json, "local", row->local);
        tdi_json_count(json, "bytes", row->bytes);
        tdi_json_text(json, "variant", row->variant);
        tdi_json_real(json, "time_ms", row->time_ms);
        tdi_json_real(json, "min_ms", row->min_ms);
        tdi_json_real(json, "p99_ms", row->p99_ms);
        tdi_json_real(json, "algbw", tdi_row_algbw(row));
        tdi_json_real(json, "busbw", tdi_row_busbw(row));
        tdi_json_count(json, "wrong", row->wrong);
        tdi_json_count(json, "buffer_bytes", row->buffer_bytes);
        tdi_json_close(json, '}');
    }
    tdi_json_close(json, ']');
}
