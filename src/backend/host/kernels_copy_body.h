/*
 * The copy of one row past the cache, for whichever vectors the including
 * file asks for; KERNEL_* as in kernels_sum_body.h, and
 *   KERNEL_COPY  the function to define
 */
#include <stdint.h>
#include <string.h>

/* Whole lines only: a part of one would cost the memory a read and a write. */
#define COPY_LINE 64

KERNEL_TARGET void KERNEL_COPY(void *dst, const void *src, uint64_t bytes)
{
    char *to = dst;
    const char *from = src;
    uint64_t head = -(uintptr_t)to % COPY_LINE;

    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    for (to += head, from += head, bytes -= head; bytes >= COPY_LINE;
         to += COPY_LINE, from += COPY_LINE, bytes -= COPY_LINE)
        for (int i = 0; i < COPY_LINE; i += KERNEL_BYTES)
            KERNEL_STREAM(to + i, from + i);
    memcpy(to, from, bytes);
}
