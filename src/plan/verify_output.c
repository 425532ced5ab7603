/* Outputs on symbolic memory: is every byte the right one, once? */
#include "plan/verify_result.h"

#include "base/util.h"

#include <inttypes.h>
#include <stdlib.h>

/* --- All-gather: storages ------------------------------------------------- */

/* What belongs at byte `at` of parameter p's storage, and up to where that
 * goes on. */
static tdi_content wanted_at(const tide_layout *layout, size_t p, uint64_t at,
                             uint64_t *end)
{
    const tide_param_layout *entry = tide_layout_param(layout, p);
    uint64_t piece = entry->shard_bytes / entry->param.outer;
    uint64_t outer = at / (piece * tide_layout_ranks(layout));
    *end = at - at % piece + piece;
    return (tdi_content){
        .kind = TDI_SHARD,
        .size = 1,
        .who = (uint32_t)(at / piece % tide_layout_ranks(layout)),
        .at = entry->shard_offset + outer * piece + at % piece};
}

static bool log_write(tdi_write_log *log, uint64_t from, uint64_t to)
{
    if (log->count && log->writes[log->count - 1].to == from) {
        log->writes[log->count - 1].to = to;
        return true;
    }
    if (log->count == log->capacity) {
        size_t capacity = tdi_max(2 * log->capacity, 16);
        tdi_written *writes = realloc(log->writes, capacity * sizeof(*writes));
        if (!writes)
            return false;
        log->writes = writes;
        log->capacity = capacity;
    }
    log->writes[log->count++] = (tdi_written){from, to};
    return true;
}

tide_status tdi_write_storage(tdi_result *result, const tdi_step *step,
                              const tdi_access *access, uint64_t from,
                              uint64_t to, const tdi_content *content)
{
    tdi_write_log *log =
        &result->writes[access->rank * result->params + access->index];
    for (uint64_t at = from, end; at < to; at = end) {
        tdi_content want =
            wanted_at(result->set->layout, access->index, at, &end);
        tdi_content got = tdi_content_skip(content, at - from);
        if (got.kind != TDI_SHARD || got.who != want.who || got.at != want.at) {
            char got_text[160], want_text[160];
            tdi_content_text(&got, &result->sets, result->ranks, got_text,
                             sizeof(got_text));
            tdi_content_text(&want, &result->sets, result->ranks, want_text,
                             sizeof(want_text));
            return tdi_fail_op(step->code->plan, step->index,
                               "byte %" PRIu64 " of rank %u's parameter %u "
                               "becomes %s; it should be %s",
                               at, access->rank, access->index, got_text,
                               want_text);
        }
    }
    return log_write(log, from, to)
               ? TIDE_OK
               : tdi_fail(TIDE_ERR_MEMORY, "no memory to check the result");
}

static int compare_writes(const void *a, const void *b)
{
    const tdi_written *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static tide_status check_writes(tdi_result *result, uint32_t rank, size_t p)
{
    tdi_write_log *log = &result->writes[rank * result->params + p];
    uint64_t bytes = tide_layout_param(result->set->layout, p)->storage_bytes;
    uint64_t at = 0;
    if (log->count)
        qsort(log->writes, log->count, sizeof(*log->writes), compare_writes);
    for (size_t i = 0; i < log->count && log->writes[i].from <= at; i++) {
        if (log->writes[i].from < at)
            return tdi_fail(TIDE_ERR_PLAN,
                            "rank %u: byte %" PRIu64
                            " of parameter %zu is written twice",
                            rank, log->writes[i].from, p);
        at = log->writes[i].to;
    }
    if (at == bytes)
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_PLAN,
                    "rank %u: byte %" PRIu64 " of parameter %zu is not written",
                    rank, at, p);
}

/* --- Reduce-scatter: outputs ---------------------------------------------- */

/* Elements [from, to) of rank's output must be the sums of `want` onwards, or
 * zeros. */
static tide_status check_run(const tdi_result *result, uint32_t rank,
                             uint64_t from, uint64_t to,
                             const tdi_content *want)
{
    const tdi_image *image = tdi_result_image(result, rank, TIDE_BUF_OUT);
    uint64_t size =
        tide_dtype_size(result->set->plans[rank]->options.out_dtype);
    for (uint64_t at = from * size, end; at < to * size; at = end) {
        tdi_content got = tdi_image_get(image, at, to * size, &end);
        tdi_content must = tdi_content_skip(want, at - from * size);
        if (got.kind == must.kind &&
            (got.kind == TDI_ZERO ||
             (got.size == must.size && got.scaled == must.scaled &&
              got.who == must.who && got.set == must.set && got.at == must.at)))
            continue;
        char got_text[160], must_text[160];
        tdi_content_text(&got, &result->sets, result->ranks, got_text,
                         sizeof(got_text));
        tdi_content_text(&must, &result->sets, result->ranks, must_text,
                         sizeof(must_text));
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: element %" PRIu64 " of the output is %s; it "
                        "should be %s",
                        rank, at / size, got_text, must_text);
    }
    return TIDE_OK;
}

/* The shard of one parameter: real rows and padding, `outer` times. */
static tide_status check_sums(const tdi_result *result, uint32_t rank, size_t p,
                              uint32_t everyone)
{
    const tide_layout *layout = result->set->layout;
    const tide_param_layout *entry = tide_layout_param(layout, p);
    uint64_t first, inner = entry->param.inner;
    uint64_t rows = tide_layout_rows(layout, p, rank, &first);
    uint64_t piece = entry->shard_rows * inner;
    tdi_content zero = {.kind = TDI_ZERO};
    for (uint64_t o = 0; o < entry->param.outer; o++) {
        uint64_t at = entry->out_offset + o * piece;
        tdi_content want = {.kind = TDI_SUM,
                            .size = (uint8_t)tide_dtype_size(
                                result->set->plans[rank]->options.out_dtype),
                            .scaled = true,
                            .who = (uint32_t)p,
                            .set = everyone,
                            .at = (o * entry->param.rows + first) * inner};
        TDI_TRY(check_run(result, rank, at, at + rows * inner, &want));
        TDI_TRY(check_run(result, rank, at + rows * inner, at + piece, &zero));
    }
    return TIDE_OK;
}

/* --- Both ------------------------------------------------------------------
 */

tide_status tdi_check_outputs(tdi_result *result)
{
    bool gather = result->set->plans[0]->options.coll == TIDE_ALL_GATHER;
    tdi_sets_clear(&result->sets);
    for (uint32_t r = 0; r < result->ranks; r++)
        tdi_sets_add_rank(&result->sets, r);
    uint32_t everyone = tdi_sets_number(&result->sets);
    if (everyone == UINT32_MAX)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to check the result");
    for (uint32_t r = 0; r < result->ranks; r++)
        for (size_t p = 0; p < result->params; p++)
            TDI_TRY(gather ? check_writes(result, r, p)
                           : check_sums(result, r, p, everyone));
    return TIDE_OK;
}
