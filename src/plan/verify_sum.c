/* Sums on symbolic memory: who is in them, of which element, how often. */
#include "plan/verify_result.h"

#include "base/util.h"

static tdi_content bad_sum(const tdi_step *step, tdi_reason reason)
{
    return (tdi_content){.kind = TDI_BAD,
                         .reason = reason,
                         .who = step->rank,
                         .set = step->index};
}

/* The sum so far of one run of elements. */
typedef struct adder {
    tdi_result *result;
    const tdi_step *step;
    tdi_content sum; /* ZERO, SUM without its set, or BAD */
    uint32_t summands;
} adder;

static void spoil(adder *a, tdi_reason reason)
{
    if (a->sum.kind != TDI_BAD)
        a->sum = bad_sum(a->step, reason);
}

static void begin_sum(adder *a)
{
    a->sum = (tdi_content){.kind = TDI_ZERO};
    a->summands = 0;
    tdi_sets_clear(&a->result->sets);
}

static void add_bad(adder *a, const tdi_content *content)
{
    if (a->sum.kind == TDI_BAD)
        return;
    a->sum = *content;
    if (content->who == TDI_NOBODY)
        a->sum = bad_sum(a->step, content->reason);
}

/* `size`: of the elements that are read. */
static void add_content(adder *a, const tdi_content *content, uint32_t size)
{
    if (content->kind == TDI_ZERO || a->sum.kind == TDI_BAD)
        return;
    if (content->kind == TDI_BAD) {
        add_bad(a, content);
        return;
    }
    if (content->kind == TDI_SHARD || content->size != size) {
        spoil(a, content->kind == TDI_SHARD ? TDI_NOT_NUMBERS : TDI_UNALIGNED);
        return;
    }
    if (a->summands++ == 0)
        a->sum = *content;
    if (a->sum.who != content->who || a->sum.at != content->at)
        spoil(a, TDI_FOREIGN);
    else if (a->sum.scaled != content->scaled)
        spoil(a, TDI_SCALES);
    else if (a->summands > 1 && (a->sum.rounded || content->rounded))
        spoil(a, TDI_ROUNDS);
    else if (!tdi_sets_add(&a->result->sets, content->set))
        spoil(a, TDI_TWICE);
}

static bool end_sum(adder *a)
{
    const tide_op *op = a->step->op;
    if (a->sum.kind != TDI_SUM)
        return true;
    if (op->flags & TIDE_SCALE && a->sum.scaled) {
        spoil(a, TDI_SCALES);
        return true;
    }
    a->sum.scaled |= (op->flags & TIDE_SCALE) != 0;
    a->sum.rounded |= (op->flags & TIDE_DST_BF16) != 0;
    a->sum.size = op->flags & TIDE_DST_BF16 ? 2 : 4;
    a->sum.set = tdi_sets_number(&a->result->sets);
    return a->sum.set != UINT32_MAX;
}

/* What row `row` of an access holds for elements [from, *to); makes *to smaller
 * if that is not one run. */
static tdi_content read_elements(const tdi_result *result,
                                 const tdi_access *access, uint64_t row,
                                 uint32_t size, uint64_t from, uint64_t *to)
{
    uint64_t end, base = access->offset + row * access->pitch;
    tdi_content content = tdi_result_read(result, access, base + from * size,
                                          base + *to * size, &end);
    /* A run that ends inside an element makes that element a bad one. */
    uint64_t elements = (end - base) / size;
    *to = tdi_max(elements, from + 1);
    if (elements == from)
        content = (tdi_content){
            .kind = TDI_BAD, .reason = TDI_UNALIGNED, .who = TDI_NOBODY};
    return content;
}

/* Looks at every summand from element `from` on: the sources and, if it adds
 * to it, the destination. Makes *to the end of the run that all agree on; adds
 * them up only when that is known. */
static void visit_sources(adder *a, uint64_t from, uint64_t *to, bool add)
{
    const tide_op *op = a->step->op;
    const tide_plan *plan = a->step->code->plan;
    uint32_t size = op->flags & TIDE_SRC_BF16 ? 2 : 4;
    tdi_access access;
    for (uint32_t i = 0; tdi_op_access(plan, op, i, &access); i++) {
        if (access.write && !(op->flags & TIDE_ADD))
            continue;
        uint32_t unit = access.write ? 4 : size;
        for (uint64_t row = 0; row < access.height; row++) {
            tdi_content content =
                read_elements(a->result, &access, row, unit, from, to);
            if (add)
                add_content(a, &content, unit);
        }
    }
}

tide_status tdi_result_reduce(tdi_result *result, const tdi_step *step)
{
    const tide_op *op = step->op;
    uint64_t size = op->flags & TIDE_DST_BF16 ? 2 : 4;
    tdi_image *image =
        tdi_result_image(result, (uint32_t)tide_operand_rank(op->dst),
                         tide_operand_buffer(op->dst));
    adder a = {.result = result, .step = step};
    for (uint64_t from = 0, to; from < op->width; from = to) {
        to = op->width;
        begin_sum(&a);
        visit_sources(&a, from, &to, false);
        visit_sources(&a, from, &to, true);
        if (!end_sum(&a) || !tdi_image_set(image, op->dst.offset + from * size,
                                           op->dst.offset + to * size, &a.sum))
            return tdi_fail(TIDE_ERR_MEMORY, "no memory to check the sums");
    }
    return TIDE_OK;
}
