/* Writes the page: the template, with the case as JSON where it says so. */
#include "plan/page.h"

#include "base/fail.h"
#include "common/json.h"
#include "plan/names.h"
#include "sim/embed.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

TDI_EMBED(tdi_plan_page_html, "plan/page.html");

/* The template has this once, where the data belong. */
static const char marker[] = "DATA_GOES_HERE";

enum { OPS_MOST = 20000 };

/* --- The data --------------------------------------------------------------
 */

static void write_shape(const tdi_case *c, const tide_machine *machine,
                        const char *group, const tdi_run_log *log,
                        tdi_json *json)
{
    tide_plan_stats stats;
    const tide_plan *plan = log->plans[0];
    tide_plan_get_stats(plan, &stats);
    tdi_json_text(json, "collective", tdi_coll_name(c->options.coll));
    tdi_json_text(json, "group", group);
    tdi_json_text(json, "machine", machine->name);
    tdi_json_count(json, "nodes", c->topology.nodes);
    tdi_json_count(json, "local", c->topology.local_size);
    tdi_json_count(json, "bytes", c->bytes);
    tdi_json_count(json, "params", tide_layout_count(c->layout));
    tdi_json_count(json, "ops", plan->op_count);
    tdi_json_flag(json, "multicast", c->options.push);
    tdi_json_flag(json, "mirrored", log->mirrored);
    tdi_json_real(json, "time_us", log->result.time_us);
    tdi_json_count(json, "rail_bytes", stats.rail_bytes);
    tdi_json_count(json, "local_bytes", stats.local_bytes);
    tdi_json_open(json, "buffers", '{');
    for (unsigned i = 0; i < TIDE_BUF_COUNT; i++)
        if (plan->buffer_bytes[i])
            tdi_json_count(json, tdi_buffer_name(i), plan->buffer_bytes[i]);
    tdi_json_close(json, '}');
    tdi_json_open(json, "lanes", '[');
    for (unsigned i = 0; i < TIDE_LANE_COUNT; i++)
        tdi_json_text(json, NULL, tdi_lane_name(i));
    tdi_json_close(json, ']');
}

/* Puts of the first rail: [from node, to node, offset, bytes] in the order of
 * each rank's plan. */
static void write_puts(const tdi_run_log *log, FILE *to)
{
    uint32_t size = log->plans[0]->topology.local_size;
    const char *comma = "";
    fputs(",\n\"puts\": [", to);
    for (uint32_t r = 0; r < log->ranks; r += size) {
        const tide_plan *plan = log->plans[r];
        for (uint32_t i = 0; i < plan->op_count; i++) {
            const tide_op *op = &plan->ops[i];
            if (op->kind != TIDE_OP_PUT)
                continue;
            fprintf(to, "%s[%" PRIu32 ",%" PRIu32 ",%" PRIu64 ",%" PRIu64 "]",
                    comma, r / size,
                    (uint32_t)tide_operand_rank(op->dst) / size, op->src.offset,
                    op->width);
            comma = ",";
        }
    }
    fputs("]", to);
}

/* The Latin square of node 0: for each local rank g the sums over nodes of its
 * first step, [first contributor's local rank, contributors], a sub-slice
 * each. */
static void write_square(const tdi_run_log *log, FILE *to)
{
    uint32_t size = log->plans[0]->topology.local_size;
    fputs(",\n\"square\": [", to);
    for (uint32_t g = 0; g < size; g++) {
        const tide_plan *plan = log->plans[g];
        uint32_t found = 0;
        fputs(g ? ",[" : "[", to);
        for (uint32_t i = 0; i < plan->op_count && found < size; i++) {
            const tide_op *op = &plan->ops[i];
            if (op->kind != TIDE_OP_REDUCE || op->lane != TIDE_LANE_LAND ||
                !(op->flags & TIDE_ACROSS))
                continue;
            fprintf(to, "%s[%" PRIu32 ",%" PRIu32 "]", found++ ? "," : "",
                    (uint32_t)tide_operand_rank(op->src) % size, op->height);
        }
        fputs("]", to);
    }
    fputs("]", to);
}

/* Ops of node 0 that take time: [rank, row, start, end, kind, text]. */
static tide_status write_ops(tdi_run_log *log, FILE *to)
{
    uint32_t *row, size = log->plans[0]->topology.local_size, written = 0;
    char text[256];
    TDI_TRY(tdi_run_log_rows(log, &row));
    fputs(",\n\"timeline\": [", to);
    for (size_t i = 0; i < log->count && written < OPS_MOST; i++) {
        const tide_sim_op *ran = &log->ops[i];
        const tide_op *op = tdi_run_op(log, ran);
        if (ran->rank >= size || ran->end_us - ran->start_us < .01 ||
            op->kind == TIDE_OP_AFTER)
            continue;
        fprintf(to,
                "%s\n[%" PRIu32 ",%" PRIu32 ",%.2f,%.2f,\"%s\",\"%" PRIu32
                ": %s\"]",
                written++ ? "," : "", ran->rank, row[i], ran->start_us,
                ran->end_us, tdi_op_name(op->kind), ran->op,
                tdi_op_text(op, text, sizeof(text)));
    }
    fprintf(to, "],\n\"timeline_cut\": %s",
            written == OPS_MOST ? "true" : "false");
    free(row);
    return TIDE_OK;
}

static tide_status write_data(const tdi_case *c, const tide_machine *machine,
                              const char *group, tdi_run_log *log, FILE *to)
{
    tdi_json json = {.to = to};
    tdi_json_open(&json, NULL, '{');
    write_shape(c, machine, group, log, &json);
    write_puts(log, to);
    write_square(log, to);
    tide_status status = write_ops(log, to);
    tdi_json_close(&json, '}');
    return status;
}

/* --- The page --------------------------------------------------------------
 */

/* '<' stands in texts alone, and must not end the script that holds them. */
static void write_escaped(const char *data, FILE *to)
{
    for (; *data; data++) {
        if (*data == '<')
            fputs("\\u003c", to);
        else
            fputc(*data, to);
    }
}

tide_status tdi_page_write(const tdi_case *c, const tide_machine *machine,
                           const char *group, tdi_run_log *log, FILE *to)
{
    char *data = NULL;
    size_t bytes = 0;
    const char *at = strstr(tdi_plan_page_html, marker);
    FILE *memory = open_memstream(&data, &bytes);
    if (!memory)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the page");
    tide_status status = write_data(c, machine, group, log, memory);
    if (fclose(memory) && !status)
        status = tdi_fail(TIDE_ERR_MEMORY, "no memory for the page");
    if (!status) {
        fwrite(tdi_plan_page_html, 1, (size_t)(at - tdi_plan_page_html), to);
        write_escaped(data, to);
        fputs(at + strlen(marker), to);
    }
    free(data);
    return status;
}
