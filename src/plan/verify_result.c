/* Result: runs the plans once on symbolic memory. */
#include "plan/verify_result.h"

#include <stdlib.h>

tdi_content tdi_result_read(const tdi_result *result, const tdi_access *access,
                            uint64_t from, uint64_t to, uint64_t *end)
{
    const tide_plan *plan = result->set->plans[access->rank];
    if (access->buffer != TIDE_BUF_GRAD)
        return tdi_image_get(
            tdi_result_image(result, access->rank, access->buffer), from, to,
            end);
    uint8_t size = (uint8_t)tide_dtype_size(plan->options.grad_dtype);
    tdi_content grad = {.kind = TDI_SUM,
                        .size = size,
                        .who = access->index,
                        .set = result->alone[access->rank]};
    *end = to;
    return tdi_content_skip(&grad, from);
}

/* --- The run -------------------------------------------------------------- */

static tide_status write_content(tdi_result *result, const tdi_step *step,
                                 const tdi_access *access, uint64_t from,
                                 uint64_t to, const tdi_content *content)
{
    if (access->buffer == TIDE_BUF_PARAM)
        return tdi_write_storage(result, step, access, from, to, content);
    return tdi_image_set(tdi_result_image(result, access->rank, access->buffer),
                         from, to, content)
               ? TIDE_OK
               : tdi_fail(TIDE_ERR_MEMORY, "no memory to check the result");
}

static tide_status copy_row(tdi_result *result, const tdi_step *step,
                            const tdi_access *src, const tdi_access *dst,
                            uint64_t row)
{
    uint64_t from = src->offset + row * src->pitch;
    uint64_t to = dst->offset + row * dst->pitch;
    for (uint64_t at = 0, end; at < src->width; at = end) {
        tdi_content content =
            tdi_result_read(result, src, from + at, from + src->width, &end);
        end -= from;
        TDI_TRY(write_content(result, step, dst, to + at, to + end, &content));
    }
    return TIDE_OK;
}

/* COPY and PUT: the first access is the read, the others are writes. */
static tide_status copy(tdi_result *result, const tdi_step *step)
{
    tdi_access src, dst;
    tdi_op_access(step->code->plan, step->op, 0, &src);
    for (uint32_t i = 1; tdi_op_access(step->code->plan, step->op, i, &dst);
         i++)
        for (uint64_t row = 0; row < src.height; row++)
            TDI_TRY(copy_row(result, step, &src, &dst, row));
    return TIDE_OK;
}

/* The caller fills its slot, parameter by parameter. */
static tide_status fill(tdi_result *result, const tdi_step *step)
{
    tdi_access slot;
    if (!tdi_caller_access(result->set->layout, step->code->plan,
                           step->op->channel, 0, &slot))
        return TIDE_OK;
    for (size_t p = 0; p < result->params; p++) {
        const tide_param_layout *entry =
            tide_layout_param(result->set->layout, p);
        tdi_content shard = {.kind = TDI_SHARD,
                             .size = 1,
                             .who = step->rank,
                             .at = entry->shard_offset};
        uint64_t at = slot.offset + entry->shard_offset;
        TDI_TRY(write_content(result, step, &slot, at, at + entry->shard_bytes,
                              &shard));
    }
    return TIDE_OK;
}

static tide_status visit_op(void *context, const tdi_step *step)
{
    tdi_result *result = context;
    switch (step->op->kind) {
    case TIDE_OP_COPY:
    case TIDE_OP_PUT:
        return copy(result, step);
    case TIDE_OP_REDUCE:
        return tdi_result_reduce(result, step);
    case TIDE_OP_MARK:
        return step->op->channel == TIDE_PHASE_FREE ? fill(result, step)
                                                    : TIDE_OK;
    default:
        return TIDE_OK;
    }
}

static tide_status run_once(tdi_result *result)
{
    static const uint32_t one_call[] = {0};
    tdi_program program;
    tdi_visitor visitor = {NULL, visit_op, result};
    TDI_TRY(tdi_program_load(&program, result->set, 1, one_call, 1));
    tide_status status = tdi_trace(&program, &visitor);
    tdi_program_unload(&program);
    return status ? status : tdi_check_outputs(result);
}

static bool open_result(tdi_result *result)
{
    size_t ranks = result->ranks;
    result->images = calloc(ranks * TIDE_BUF_COUNT, sizeof(*result->images));
    result->writes =
        calloc(ranks * result->params + 1, sizeof(*result->writes));
    result->alone = calloc(ranks, sizeof(*result->alone));
    if (!tdi_sets_open(&result->sets, result->ranks) || !result->images ||
        !result->writes || !result->alone)
        return false;
    for (uint32_t r = 0; r < result->ranks; r++) {
        tdi_sets_clear(&result->sets);
        tdi_sets_add_rank(&result->sets, r);
        result->alone[r] = tdi_sets_number(&result->sets);
        if (result->alone[r] == UINT32_MAX)
            return false;
    }
    return true;
}

static void close_result(tdi_result *result)
{
    size_t ranks = result->ranks;
    for (size_t i = 0; result->images && i < ranks * TIDE_BUF_COUNT; i++)
        tdi_image_free(&result->images[i]);
    for (size_t i = 0; result->writes && i < ranks * result->params; i++)
        free(result->writes[i].writes);
    free(result->images);
    free(result->writes);
    free(result->alone);
    tdi_sets_close(&result->sets);
}

tide_status tide_verify_result(const tide_layout *layout,
                               const tide_plan *const *plans)
{
    tdi_set set = {.layout = layout, .plans = plans};
    TDI_TRY(tide_verify_bounds(layout, plans));
    tdi_result result = {.set = &set,
                         .ranks = tdi_set_ranks(&set),
                         .params = tide_layout_count(layout)};
    tide_status status =
        open_result(&result)
            ? run_once(&result)
            : tdi_fail(TIDE_ERR_MEMORY, "no memory to check the result");
    close_result(&result);
    return status;
}
