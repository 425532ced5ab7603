/* Reads the environment variables of the table in env.h. */
#include "base/env.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

const tdi_env_entry tdi_env_table[TDI_ENV_COUNT] = {
#define X(id, name, value, low, high, text)                                    \
    [TDI_ENV_##id] = {name, value, low, high, text},
    TDI_ENV_LIST(X)
#undef X
};

int64_t tdi_env_number(tdi_env id)
{
    static atomic_int warned[TDI_ENV_COUNT];
    const tdi_env_entry *entry = &tdi_env_table[id];
    const char *text = getenv(entry->name);
    if (!text || !*text)
        return entry->value;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!errno && !*end && value >= entry->low && value <= entry->high)
        return value;
    if (!atomic_exchange(&warned[id], 1))
        fprintf(stderr,
                "tide: %s=%s is not a number from %lld to %lld; using %lld\n",
                entry->name, text, (long long)entry->low,
                (long long)entry->high, (long long)entry->value);
    return entry->value;
}
