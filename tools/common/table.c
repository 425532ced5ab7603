/* Prints result rows as a table and as JSON. */
#include "common/table.h"

#include <inttypes.h>
#include <math.h>

#include "base/util.h"

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

void tdi_table_head(FILE *to, int queued)
{
    fprintf(to, "# %10s  %-17s %9s %9s %9s %8s %8s %7s %12s%s\n", "bytes",
            "variant", "min", "p50", "p99", "algbw", "busbw", "#wrong",
            "buffer", queued ? "     host       sm" : "");
    fprintf(to, "# %10s  %-17s %9s %9s %9s %8s %8s %7s %12s%s\n", "(B)", "",
            "(ms)", "(ms)", "(ms)", "(GB/s)", "(GB/s)", "", "(B)",
            queued ? "     (us)     (us)" : "");
    fflush(to);
}

static void print_us(FILE *to, double us)
{
    if (isfinite(us))
        fprintf(to, " %8.1f", us);
    else
        fprintf(to, " %8s", "-");
}

void tdi_table_row(FILE *to, const tdi_row *row)
{
    fprintf(to, "  %10" PRIu64 "  %-17s", row->bytes, row->variant);
    if (row->fate == TDI_ROW_DONE) {
        fprintf(to, " %9.3f %9.3f %9.3f %8.2f %8.2f %7" PRIu64 " %12" PRIu64,
                row->min_ms, row->time_ms, row->p99_ms, tdi_row_algbw(row),
                tdi_row_busbw(row), row->wrong, row->buffer_bytes);
        if (row->queued) {
            print_us(to, row->host_us);
            print_us(to, row->sm_us);
        }
    } else {
        fprintf(to, " %s: %s",
                row->fate == TDI_ROW_FAILED ? "FAILED" : "skipped", row->why);
    }
    fputc('\n', to);
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

/* What a skipped or failed line lacks becomes null. */
static void write_numbers(tdi_json *json, const tdi_row *row)
{
    int done = row->fate == TDI_ROW_DONE;
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"time_ms", row->time_ms},     {"min_ms", row->min_ms},
        {"p99_ms", row->p99_ms},       {"algbw", tdi_row_algbw(row)},
        {"busbw", tdi_row_busbw(row)}, {"host_us", row->host_us},
        {"sm_us", row->sm_us},
    };
    size_t count = TDI_COUNT(numbers) - (row->queued ? 0 : 2);
    for (size_t i = 0; i < count; i++)
        tdi_json_real(json, numbers[i].key,
                      done ? numbers[i].value : (double)NAN);
}

void tdi_table_json(tdi_json *json, const tdi_row *rows, size_t count)
{
    static const char *const fates[] = {
        [TDI_ROW_DONE] = "done",
        [TDI_ROW_SKIPPED] = "skipped",
        [TDI_ROW_FAILED] = "failed",
    };
    tdi_json_open(json, "rows", '[');
    for (size_t i = 0; i < count; i++) {
        const tdi_row *row = &rows[i];
        tdi_json_open(json, NULL, '{');
        tdi_json_text(json, "op", row->op);
        tdi_json_count(json, "ranks", row->ranks);
        tdi_json_count(json, "local", row->local);
        tdi_json_count(json, "bytes", row->bytes);
        tdi_json_text(json, "variant", row->variant);
        write_numbers(json, row);
        tdi_json_count(json, "wrong", row->wrong);
        tdi_json_count(json, "buffer_bytes", row->buffer_bytes);
        if (row->queued) {
            tdi_json_text(json, "fate", fates[row->fate]);
            tdi_json_text(json, "why", row->why);
        }
        tdi_json_close(json, '}');
    }
    tdi_json_close(json, ']');
}
