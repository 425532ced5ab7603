/* Symbolic memory: images of buffers. */
#include "plan/verify_memory.h"

#include "base/util.h"

#include <stdlib.h>
#include <string.h>

static const tdi_content unwritten = {
    .kind = TDI_BAD, .reason = TDI_UNWRITTEN, .who = TDI_NOBODY};

tdi_content tdi_content_skip(const tdi_content *content, uint64_t bytes)
{
    tdi_content skipped = *content;
    if (!bytes || content->kind == TDI_BAD || content->kind == TDI_ZERO)
        return skipped;
    if (bytes % content->size)
        return (tdi_content){
            .kind = TDI_BAD, .reason = TDI_UNALIGNED, .who = TDI_NOBODY};
    skipped.at += bytes / content->size;
    return skipped;
}

/* The first extent that ends after byte `at`. */
static size_t find_extent(const tdi_image *image, uint64_t at)
{
    size_t low = 0, high = image->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (image->extents[middle].to > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

tdi_content tdi_image_get(const tdi_image *image, uint64_t from, uint64_t to,
                          uint64_t *end)
{
    size_t i = find_extent(image, from);
    *end = to;
    if (i == image->count)
        return unwritten;
    const tdi_extent *extent = &image->extents[i];
    if (extent->from > from) {
        *end = tdi_min(to, extent->from);
        return unwritten;
    }
    *end = tdi_min(to, extent->to);
    return tdi_content_skip(&extent->content, from - extent->from);
}

static bool reserve(tdi_image *image, size_t count)
{
    if (count <= image->capacity)
        return true;
    size_t capacity = tdi_max(2 * image->capacity, count + 8);
    tdi_extent *extents = realloc(image->extents, capacity * sizeof(*extents));
    if (!extents)
        return false;
    image->extents = extents;
    image->capacity = capacity;
    return true;
}

/* Replaces extents [first, last) by `count` others; the capacity is there. */
static void splice(tdi_image *image, size_t first, size_t last,
                   const tdi_extent *with, size_t count)
{
    tdi_extent *extents = image->extents;
    memmove(&extents[first + count], &extents[last],
            (image->count - last) * sizeof(*extents));
    if (count)
        memcpy(&extents[first], with, count * sizeof(*with));
    image->count = image->count - (last - first) + count;
}

static bool goes_on(const tdi_extent *a, const tdi_extent *b)
{
    tdi_content next = tdi_content_skip(&a->content, a->to - a->from);
    return a->to == b->from && next.kind == b->content.kind &&
           next.size == b->content.size && next.scaled == b->content.scaled &&
           next.rounded == b->content.rounded &&
           next.reason == b->content.reason && next.who == b->content.who &&
           next.set == b->content.set && next.at == b->content.at;
}

bool tdi_image_set(tdi_image *image, uint64_t from, uint64_t to,
                   const tdi_content *content)
{
    tdi_extent with[3];
    size_t count = 0;
    if (from == to)
        return true;
    if (!reserve(image, image->count + 2))
        return false;
    size_t first = find_extent(image, from), last = first;
    while (last < image->count && image->extents[last].from < to)
        last++;
    if (first < last && image->extents[first].from < from) {
        with[count] = image->extents[first];
        with[count++].to = from;
    }
    tdi_extent middle = {from, to, *content};
    if (count && goes_on(&with[count - 1], &middle)) {
        with[count - 1].to = to;
    } else if (!count && first &&
               goes_on(&image->extents[first - 1], &middle)) {
        with[count++] = (tdi_extent){image->extents[first - 1].from, to,
                                     image->extents[first - 1].content};
        first--;
    } else {
        with[count++] = middle;
    }
    if (first < last && image->extents[last - 1].to > to) {
        const tdi_extent *tail = &image->extents[last - 1];
        with[count++] = (tdi_extent){
            to, tail->to, tdi_content_skip(&tail->content, to - tail->from)};
    }
    splice(image, first, last, with, count);
    return true;
}

void tdi_image_free(tdi_image *image)
{
    free(image->extents);
    *image = (tdi_image){0};
}
