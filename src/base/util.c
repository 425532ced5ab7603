/* The clock behind deadlines. */
#include "base/util.h"

#include <time.h>

uint64_t tdi_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}
