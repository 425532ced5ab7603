/* The exchanges in which ranks compare what they are. */
#include "exec/meet.h"

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct hello {
    char version[16];
    uint32_t ranks;
    uint32_t local_size;
    uint64_t machine;
    uint64_t arena_bytes;
    uint64_t settings;
} hello;

typedef struct verdict {
    int32_t status;
    char text[508];
} verdict;

/* As tdi_meet_exchange; *reason says if the bootstrap told why it failed. The
 * launcher's does, and names the rank. */
static tide_status exchange(const tide_bootstrap *bootstrap, const void *send,
                            void *recv, size_t bytes, bool *reason)
{
    char before[256], after[256];
    snprintf(before, sizeof(before), "%s", tide_last_error());
    int failed = bootstrap->allgather(bootstrap->context, send, recv, bytes);
    snprintf(after, sizeof(after), "%s", tide_last_error());
    *reason = strcmp(before, after) != 0;
    if (!failed)
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_PEER,
                    "rank %u of %u: the bootstrap's allgather of %zu bytes "
                    "returned %d: %s",
                    bootstrap->rank, bootstrap->ranks, bytes, failed,
                    *reason ? after : "a rank is dead or did not arrive");
}

tide_status tdi_meet_exchange(const tide_bootstrap *bootstrap, const void *send,
                              void *recv, size_t bytes)
{
    bool reason;
    return exchange(bootstrap, send, recv, bytes, &reason);
}

/* Of its boot and its network. */
uint64_t tide_this_machine(void)
{
    char boot[64] = "";
    struct stat net = {0};
    uint64_t hash = 0;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(boot, sizeof(boot), file))
        gethostname(boot, sizeof(boot) - 1);
    if (file)
        fclose(file);
    if (!stat("/proc/self/ns/net", &net))
        hash = tdi_hash(hash, net.st_ino);
    for (const char *c = boot; *c; c++)
        hash = tdi_hash(hash, (uint64_t)(unsigned char)*c);
    return hash;
}

/* What in the environment changes plans, or who signals whom and how. */
static const tdi_env shared[] = {TDI_ENV_CHUNK_KIB,    TDI_ENV_BLOCK_KIB,
                                 TDI_ENV_UNIT_KIB,     TDI_ENV_STAGED,
                                 TDI_ENV_PULL_STREAMS, TDI_ENV_DIRECT_RAILS};

static uint64_t settings_hash(const tide_comm_config *config)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < TDI_COUNT(shared); i++)
        hash = tdi_hash(hash, (uint64_t)tdi_env_number(shared[i]));
    const char *backend = config && config->backend ? config->backend : "";
    for (; *backend; backend++)
        hash = tdi_hash(hash, (uint64_t)(unsigned char)*backend);
    return hash;
}

static tide_status fail_settings(uint32_t rank, uint32_t other)
{
    char names[256] = "";
    for (size_t i = 0; i < TDI_COUNT(shared); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, ", %s",
                 tdi_env_table[shared[i]].name);
    }
    return tdi_fail(TIDE_ERR_MISMATCH,
                    "rank %u and rank %u differ in one of these: backend%s",
                    rank, other, names);
}

static tide_status compare(const hello *mine, const hello *theirs,
                           uint32_t rank, uint32_t other)
{
    if (strncmp(mine->version, theirs->version, sizeof(mine->version)))
        return tdi_fail(TIDE_ERR_MISMATCH,
                        "rank %u runs tide %s and rank %u tide %.15s", rank,
                        mine->version, other, theirs->version);
    if (mine->ranks != theirs->ranks || mine->local_size != theirs->local_size)
        return tdi_fail(TIDE_ERR_MISMATCH,
                        "rank %u has %u ranks, local size %u; rank %u has %u "
                        "ranks, local size %u",
                        rank, mine->ranks, mine->local_size, other,
                        theirs->ranks, theirs->local_size);
    /* Peers rely on equal offsets. */
    if (mine->arena_bytes != theirs->arena_bytes)
        return tdi_fail(TIDE_ERR_MISMATCH,
                        "rank %u asks for an arena of %" PRIu64
                        " bytes and rank %u for one of %" PRIu64
                        " (0: the default)",
                        rank, mine->arena_bytes, other, theirs->arena_bytes);
    return mine->settings == theirs->settings ? TIDE_OK
                                              : fail_settings(rank, other);
}

static tide_status compare_all(const tide_bootstrap *bootstrap,
                               const hello *all, uint64_t *machines)
{
    tide_status status = TIDE_OK;
    for (uint32_t r = 0; r < bootstrap->ranks; r++) {
        if (!status)
            status =
                compare(&all[bootstrap->rank], &all[r], bootstrap->rank, r);
        machines[r] = all[r].machine;
    }
    return status;
}

tide_status tdi_meet(const tide_bootstrap *bootstrap,
                     const tide_comm_config *config, uint64_t *machines,
                     tide_topology *topology)
{
    hello mine = {.ranks = bootstrap->ranks,
                  .machine = tide_this_machine(),
                  .settings = settings_hash(config)};
    mine.local_size = config && config->local_size
                          ? config->local_size
                          : (uint32_t)tdi_env_number(TDI_ENV_LOCAL_SIZE);
    mine.arena_bytes = config && config->arena_bytes
                           ? config->arena_bytes
                           : (uint64_t)tdi_env_number(TDI_ENV_ARENA_MIB) << 20;
    snprintf(mine.version, sizeof(mine.version), "%s", tide_version());
    hello *all = calloc(bootstrap->ranks, sizeof(hello));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to meet %u ranks",
                        bootstrap->ranks);
    tide_status status = tdi_meet_exchange(bootstrap, &mine, all, sizeof(mine));
    if (!status)
        status =
            tdi_meet_agree(bootstrap, compare_all(bootstrap, all, machines));
    free(all);
    if (status)
        return status;
    return tdi_topo_split(machines, bootstrap->ranks, mine.local_size,
                          topology);
}

/* The first bad one; one that only waited in vain counts last: it does not know
 * why. */
static const verdict *find_worst(const verdict *all, uint32_t ranks,
                                 uint32_t *rank)
{
    const verdict *worst = NULL;
    for (uint32_t r = 0; r < ranks; r++) {
        if (!all[r].status || (worst && worst->status != TIDE_ERR_PEER) ||
            (worst && all[r].status == TIDE_ERR_PEER))
            continue;
        worst = &all[r];
        *rank = r;
    }
    return worst;
}

static tide_status repeat(const verdict *worst, uint32_t rank)
{
    char name[32];
    int length = snprintf(name, sizeof(name), "rank %u: ", rank);
    bool named = !strncmp(worst->text, name, (size_t)length);
    return tdi_fail((tide_status)worst->status, "%s%.507s", named ? "" : name,
                    worst->text);
}

tide_status tdi_meet_agree(const tide_bootstrap *bootstrap, tide_status status)
{
    bool reason;
    uint32_t rank = 0;
    verdict mine = {.status = status};
    if (status)
        snprintf(mine.text, sizeof(mine.text), "%s", tide_last_error());
    verdict *all = calloc(bootstrap->ranks, sizeof(verdict));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to meet %u ranks",
                        bootstrap->ranks);
    tide_status failed = exchange(bootstrap, &mine, all, sizeof(mine), &reason);
    if (failed && status && !reason) /* my own fault is the better reason */
        failed = tdi_fail(status, "%s", mine.text);
    const verdict *worst =
        failed ? NULL : find_worst(all, bootstrap->ranks, &rank);
    if (worst)
        failed = repeat(worst, rank);
    free(all);
    return failed;
}
