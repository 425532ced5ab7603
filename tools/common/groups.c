/* The built-in parameter groups, each one block of a model as FSDP2 sees it. */
#include "common/groups.h"

#include "base/fail.h"
#include "base/util.h"
#include "common/group_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* [rows, inner], sharded over rows. */
typedef struct shape {
    uint64_t rows;
    uint64_t inner;
} shape;

/* Attention q, k, v, o; MLP gate, up, down; two norms. */
static const shape llama_8b[] = {
    {4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096}, {14336, 4096},
    {14336, 4096}, {4096, 14336}, {4096, 1},    {4096, 1},
};

static const shape llama_70b[] = {
    {8192, 8192},  {1024, 8192},  {1024, 8192}, {8192, 8192}, {28672, 8192},
    {28672, 8192}, {8192, 28672}, {8192, 1},    {8192, 1},
};

/* q, k, v, o and the q and k norms; router; grouped experts w1, w2, w3 of 128
 * x (768 x 2048), as torchtitan stacks them; two norms. */
static const shape qwen3[] = {
    {4096, 2048},      {512, 2048},       {512, 2048}, {2048, 4096},
    {128, 1},          {128, 1},          {128, 2048}, {128, 768 * 2048},
    {128, 2048 * 768}, {128, 768 * 2048}, {2048, 1},   {2048, 1},
};

/* Modulation [1, 6, 5120]; self- and cross-attention q, k, v, o with biases
 * and q and k norms; norm3; two linear layers with biases. */
static const shape wan[] = {
    {1, 6 * 5120}, {5120, 5120}, {5120, 1},    {5120, 5120},  {5120, 1},
    {5120, 5120},  {5120, 1},    {5120, 5120}, {5120, 1},     {5120, 1},
    {5120, 1},     {5120, 1},    {5120, 1},    {5120, 5120},  {5120, 1},
    {5120, 5120},  {5120, 1},    {5120, 5120}, {5120, 1},     {5120, 5120},
    {5120, 1},     {5120, 1},    {5120, 1},    {13824, 5120}, {13824, 1},
    {5120, 13824}, {5120, 1},
};

/* No size divides by the usual numbers of ranks, nor rows by 16 bytes. */
static const shape uneven[] = {
    {1021, 1023}, {509, 2047}, {4099, 1}, {13, 100003},
    {257, 1001},  {31, 7},     {5, 3},    {1, 1},
};

/* Fewer rows than ranks, no rows, rows without elements. */
static const shape empty[] = {
    {1, 65536}, {2, 40000}, {0, 1}, {3, 1000}, {0, 512}, {64, 0}, {1, 1},
};

static const shape tiny[] = {
    {1, 1}, {2, 3}, {7, 1}, {16, 2}, {5, 13}, {64, 1}, {33, 3}, {3, 17},
};

typedef struct group {
    const char *name;
    const char *text;
    const shape *shapes;
    size_t count;
    size_t repeat;
} group;

#define SHAPES(array) (array), TDI_COUNT(array)

static const group groups[] = {
    {"llama3.1-8b", "one block of Llama 3.1 8B", SHAPES(llama_8b), 1},
    {"llama3.1-70b", "one block of Llama 3.1 70B", SHAPES(llama_70b), 1},
    {"qwen3-30b-a3b", "one block of Qwen3-30B-A3B, grouped experts",
     SHAPES(qwen3), 1},
    {"wan2.2", "one block of Wan2.2 A14B", SHAPES(wan), 1},
    {"uneven", "sizes that divide by nothing", SHAPES(uneven), 1},
    {"empty", "shards without rows, rows without elements", SHAPES(empty), 1},
    {"tiny", "thousands of small parameters", SHAPES(tiny), 500},
};

static const group *find_group(const char *name)
{
    for (size_t i = 0; i < TDI_COUNT(groups); i++)
        if (!strcmp(groups[i].name, name))
            return &groups[i];
    return NULL;
}

static tide_status allocate(size_t count, tdi_params *list)
{
    list->count = count;
    list->params = calloc(tdi_max(count, 1), sizeof(*list->params));
    return list->params ? TIDE_OK
                        : tdi_fail(TIDE_ERR_MEMORY,
                                   "no memory for %zu parameters", count);
}

tide_status tdi_params_load(const char *name, double scale, tdi_params *list)
{
    const group *found = find_group(name);
    if (!found)
        return tdi_group_file_load(name, scale, list);
    TDI_TRY(allocate(found->count * found->repeat, list));
    for (size_t p = 0; p < list->count; p++) {
        const shape *from = &found->shapes[p % found->count];
        list->params[p] = (tide_param){1, tdi_scale_dim(from->rows, scale),
                                       from->inner, TIDE_BF16};
    }
    return TIDE_OK;
}

static uint64_t count_elems(const group *from)
{
    uint64_t elems = 0;
    for (size_t i = 0; i < from->count; i++)
        elems += from->shapes[i].rows * from->shapes[i].inner;
    return elems * from->repeat;
}

/* Shares are whole 16-byte units of bf16; the last parameter takes the rest. */
tide_status tdi_params_split(uint64_t elems, uint32_t ranks, tdi_params *list)
{
    const group *llama = &groups[0];
    const uint64_t unit = 16 / tide_dtype_size(TIDE_BF16);
    double share = (double)elems / (double)count_elems(llama);
    uint64_t left = elems, whole;
    if (!tdi_mul(elems, ranks, &whole))
        return tdi_fail(TIDE_ERR_INVALID,
                        "%" PRIu64 " elements a rank are too many", elems);
    TDI_TRY(allocate(llama->count, list));
    for (size_t p = 0; p < list->count; p++) {
        const shape *from = &llama->shapes[p];
        uint64_t mine = (uint64_t)(share * (double)(from->rows * from->inner));
        mine = tdi_min(mine / unit * unit, left);
        if (p + 1 == list->count)
            mine = left;
        left -= mine;
        list->params[p] = (tide_param){1, mine * ranks, 1, TIDE_BF16};
    }
    return TIDE_OK;
}

void tdi_params_free(tdi_params *list)
{
    free(list->params);
    *list = (tdi_params){0};
}

void tdi_groups_print(FILE *to)
{
    fprintf(to, "# %-14s %7s %11s  %s\n", "name", "params", "bf16 MiB",
            "what it is");
    for (size_t i = 0; i < TDI_COUNT(groups); i++)
        fprintf(to, "%-16s %7zu %11.3f  %s\n", groups[i].name,
                groups[i].count * groups[i].repeat,
                (double)count_elems(&groups[i]) * 2 / (1 << 20),
                groups[i].text);
}
