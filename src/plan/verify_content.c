/* Contents of symbolic memory as text. */
#include "plan/verify_memory.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const reasons[] = {
    [TDI_UNWRITTEN] = "takes what nobody wrote",
    [TDI_UNALIGNED] = "takes parts of elements, or elements of another type",
    [TDI_FOREIGN] = "adds elements that do not belong together",
    [TDI_TWICE] = "counts a rank twice",
    [TDI_SCALES] = "scales twice, or adds scaled and unscaled sums",
    [TDI_ROUNDS] = "adds what was rounded to bf16 on the way",
    [TDI_NOT_NUMBERS] = "adds bytes of a shard",
};

static void bad_text(const tdi_content *content, char *text, size_t size)
{
    if (content->who != TDI_NOBODY)
        snprintf(text, size, "nothing right, since rank %u op %u %s",
                 content->who, content->set, reasons[content->reason]);
    else if (content->reason == TDI_UNWRITTEN)
        snprintf(text, size, "never written");
    else
        snprintf(text, size, "a part of an element");
}

static void sum_text(const tdi_content *content, const tdi_rank_sets *sets,
                     uint32_t ranks, char *text, size_t size)
{
    uint32_t lacks = tdi_sets_lacks(sets, content->set, ranks);
    int used = snprintf(
        text, size, "the %s %s sum of element %" PRIu64 " of parameter %u",
        content->scaled ? "scaled" : "unscaled",
        content->size == 2 ? "bf16" : "fp32", content->at, content->who);
    if (lacks != UINT32_MAX && used < (int)size)
        snprintf(text + used, size - (size_t)used, ", without rank %u", lacks);
}

void tdi_content_text(const tdi_content *content, const tdi_rank_sets *sets,
                      uint32_t ranks, char *text, size_t size)
{
    switch (content->kind) {
    case TDI_ZERO:
        snprintf(text, size, "zero");
        break;
    case TDI_SHARD:
        snprintf(text, size, "byte %" PRIu64 " of rank %u's shard", content->at,
                 content->who);
        break;
    case TDI_SUM:
        sum_text(content, sets, ranks, text, size);
        break;
    default:
        bad_text(content, text, size);
    }
}
