/* Topologies: numbering, checks, and the split of machines into nodes. */
#include "topo/topo.h"

#include "base/util.h"
#include "support/check.h"

static void number_ranks(void)
{
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        for (uint32_t size = 1; size <= 4; size++) {
            tide_topology topology = {nodes, size};
            uint32_t rank = 0;
            CHECK_INT(tdi_topo_ranks(topology), ==, nodes * size);
            for (uint32_t node = 0; node < nodes; node++) {
                for (uint32_t local = 0; local < size; local++, rank++) {
                    CHECK_INT(tdi_topo_rank(topology, node, local), ==, rank);
                    CHECK_INT(tdi_topo_node(topology, rank), ==, node);
                    CHECK_INT(tdi_topo_local(topology, rank), ==, local);
                }
            }
        }
    }
}

static void check_bounds(void)
{
    static const tide_topology good[] = {
        {1, 1},
        {1, TIDE_MAX_LOCAL},
        {TIDE_MAX_RANKS, 1},
        {TIDE_MAX_RANKS / TIDE_MAX_LOCAL, TIDE_MAX_LOCAL}};
    /* The last ones multiply to something small, or to 0, in 32 bits. */
    static const tide_topology bad[] = {{0, 1},
                                        {1, 0},
                                        {0, 0},
                                        {1, TIDE_MAX_LOCAL + 1},
                                        {TIDE_MAX_RANKS + 1, 1},
                                        {TIDE_MAX_RANKS / 2 + 1, 2},
                                        {1u << 22, 1024},
                                        {(1u << 31) + 1, 2},
                                        {UINT32_MAX, UINT32_MAX}};
    for (size_t i = 0; i < TDI_COUNT(good); i++) {
        uint32_t ranks = tdi_topo_ranks(good[i]);
        CHECK_OK(tdi_topo_check(good[i], 0));
        CHECK_OK(tdi_topo_check(good[i], ranks - 1));
        CHECK_STATUS(tdi_topo_check(good[i], ranks), TIDE_ERR_INVALID);
        CHECK_TEXT(tide_last_error(), "rank ");
        CHECK_STATUS(tdi_topo_check(good[i], UINT32_MAX), TIDE_ERR_INVALID);
    }
    for (size_t i = 0; i < TDI_COUNT(bad); i++) {
        CHECK_STATUS(tdi_topo_check(bad[i], 0), TIDE_ERR_INVALID);
        CHECK_TEXT(tide_last_error(), "topology of ");
    }
}

typedef struct split {
    uint64_t machine[8];
    uint32_t ranks;
    uint32_t local_size;
    tide_topology want;  /* 0 nodes: refused */
    const char *text[2]; /* of the refusal */
} split;

static const split splits[] = {
    {{7}, 1, 0, {1, 1}, {0}},
    {{7, 7, 7, 7}, 4, 0, {1, 4}, {0}},
    {{7, 7, 7, 7}, 4, 4, {1, 4}, {0}},
    {{7, 7, 7, 7}, 4, 2, {2, 2}, {0}},
    {{7, 7, 7, 7}, 4, 1, {4, 1}, {0}},
    {{7, 7, 9, 9}, 4, 0, {2, 2}, {0}},
    {{7, 7, 9, 9}, 4, 1, {4, 1}, {0}},
    {{0, 1, 2, 3, 4, 5, 6, 7}, 8, 0, {8, 1}, {0}},
    {{0, 0, 0, 0, 1, 1, 1, 1}, 8, 2, {4, 2}, {0}},
    /* A node would span machines. */
    {{7, 7, 9, 9}, 4, 4, {0, 0}, {"nodes of 4 ranks", "2 ranks"}},
    {{7, 7, 7, 7}, 4, 3, {0, 0}, {"nodes of 3 ranks", "4 ranks"}},
    {{7, 7, 7, 7}, 4, 5, {0, 0}, {"nodes of 5 ranks", "TIDE_LOCAL_SIZE"}},
    {{7, 7, 7, 7}, 4, UINT32_MAX, {0, 0}, {"do not divide", "4 ranks"}},
    /* Unequal machines; ranks that are not consecutive. */
    {{7, 7, 7, 9}, 4, 0, {0, 0}, {"machine of rank 3", "runs 1"}},
    {{7, 9, 9, 9}, 4, 0, {0, 0}, {"machine of rank 1", "runs 3"}},
    {{0, 0, 1, 1, 2}, 5, 1, {0, 0}, {"machine of rank 4", "runs 1"}},
};

static void split_machines(void)
{
    for (size_t i = 0; i < TDI_COUNT(splits); i++) {
        const split *s = &splits[i];
        tide_topology got = {0, 0};
        tide_status want = s->want.nodes ? TIDE_OK : TIDE_ERR_INVALID;
        CHECK_STATUS(tdi_topo_split(s->machine, s->ranks, s->local_size, &got),
                     want);
        CHECK_INT(got.nodes, ==, s->want.nodes);
        CHECK_INT(got.local_size, ==, s->want.local_size);
        for (size_t t = 0; t < 2 && s->text[t]; t++)
            CHECK_TEXT(tide_last_error(), s->text[t]);
    }
}

/* One machine may run more ranks than a node may have. */
static void split_large_machine(void)
{
    enum { RANKS = 4096 };
    static uint64_t machine[RANKS];
    tide_topology got;
    CHECK_STATUS(tdi_topo_split(machine, RANKS, 0, &got), TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "a node at most 1024");
    CHECK_OK(tdi_topo_split(machine, RANKS, 1024, &got));
    CHECK_INT(got.nodes, ==, 4);
}

int main(void)
{
    number_ranks();
    check_bounds();
    split_machines();
    split_large_machine();
    return 0;
}
