/* The kernels' twins on the host. */
#include "fake.h"

#include "backend/cuda/kernels/params.h"

#include <string.h>

enum { PIECE = 4096 }; /* elements between two chances for other work */

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float get(const char *at, uint64_t i, bool bf16)
{
    uint16_t half;
    float value;
    if (!bf16)
        return memcpy(&value, at + 4 * i, sizeof(value)), value;
    memcpy(&half, at + 2 * i, sizeof(half));
    return from_bf16(half);
}

static void put(char *at, uint64_t i, bool bf16, float value)
{
    uint16_t half;
    if (!bf16) {
        memcpy(at + 4 * i, &value, sizeof(value));
        return;
    }
    half = to_bf16(value);
    memcpy(at + 2 * i, &half, sizeof(half));
}

/* --- Sums ----------------------------------------------------------------- */

typedef struct sum {
    const tdi_sum_params *params;
    fake_view dst;
    fake_view src[TDI_SUM_MANY];
    uint64_t src_size;
    uint64_t dst_size;
} sum;

static void add_piece(const sum *s, uint64_t first, uint64_t last)
{
    const tdi_sum_params *p = s->params;
    bool in = (p->flags & TDI_SUM_SRC_BF16) != 0;
    bool out = (p->flags & TDI_SUM_DST_BF16) != 0;
    for (uint64_t i = first; i < last; i++) {
        bool started = (p->flags & TDI_SUM_ADD) != 0;
        float total = started ? get(s->dst.at[0], i, out) : 0;
        for (uint32_t k = 0; k < p->sources; k++) {
            for (uint32_t m = 0; m < s->src[k].members; m++) {
                float next = get(s->src[k].at[m], i, in);
                total = started ? total + next : next;
                started = true;
            }
        }
        put(s->dst.at[0], i, out, total * p->scale);
    }
}

static void count_time(int device, uint64_t counter, uint64_t since_us)
{
    if (!counter)
        return;
    fake_view view = fake_pin(device, counter, sizeof(uint64_t), FAKE_WRITE,
                              "a kernel's time");
    __atomic_fetch_add((uint64_t *)view.at[0],
                       (fake_now_us() - since_us) * 1000 + 1, __ATOMIC_SEQ_CST);
    fake_unpin(&view);
}

static void run_sum(int device, const tdi_sum_params *p, const uint64_t *src,
                    int access, uint64_t *random)
{
    sum s = {.params = p,
             .src_size = p->flags & TDI_SUM_SRC_BF16 ? 2 : 4,
             .dst_size = p->flags & TDI_SUM_DST_BF16 ? 2 : 4};
    uint64_t start = fake_now_us();
    if (!p->count)
        return;
    s.dst = fake_pin(device, p->dst + p->first * s.dst_size,
                     p->count * s.dst_size, FAKE_WRITE, "the result of a sum");
    for (uint32_t k = 0; k < p->sources; k++)
        s.src[k] = fake_pin(device, src[k] + p->first * s.src_size,
                            p->count * s.src_size, access, "a sum's source");
    for (uint64_t first = 0; first < p->count; first += PIECE) {
        uint64_t last = first + PIECE < p->count ? first + PIECE : p->count;
        add_piece(&s, first, last);
        fake_dawdle(random);
    }
    fake_unpin(&s.dst);
    for (uint32_t k = 0; k < p->sources; k++)
        fake_unpin(&s.src[k]);
    count_time(device, p->counter, start);
}

/* Sources beyond what fits, or of other phases than bulk loads take. */
static void check_sum(const char *name, const tdi_sum_params *p,
                      const uint64_t *src, uint32_t most, bool one_phase)
{
    if (p->sources < 1 || p->sources > most)
        fake_fail("%s of %u sources", name, p->sources);
    if ((p->flags & TDI_SUM_ADD) && (p->flags & TDI_SUM_DST_BF16))
        fake_fail("%s adds to bf16", name);
    for (uint32_t k = 0; k < p->sources; k++) {
        if (src[k] % (p->flags & TDI_SUM_SRC_BF16 ? 2 : 4))
            fake_fail("%s: source %u at %#llx is not aligned", name, k,
                      (unsigned long long)src[k]);
        if (one_phase && (src[k] - src[0]) % 16)
            fake_fail("%s: source %u has another phase than source 0", name, k);
    }
}

static void sum_bulk(int device, void **params, uint64_t *random)
{
    check_sum("tide_sum_bulk", params[0], params[1], TDI_SUM_FEW, true);
    run_sum(device, params[0], params[1], FAKE_READ, random);
}

static void sum_bulk_many(int device, void **params, uint64_t *random)
{
    check_sum("tide_sum_bulk_many", params[0], params[1], TDI_SUM_MANY, true);
    run_sum(device, params[0], params[1], FAKE_READ, random);
}

static void sum_loads(int device, void **params, uint64_t *random)
{
    check_sum("tide_sum_loads", params[0], params[1], TDI_SUM_FEW, false);
    run_sum(device, params[0], params[1], FAKE_READ, random);
}

static void sum_loads_many(int device, void **params, uint64_t *random)
{
    check_sum("tide_sum_loads_many", params[0], params[1], TDI_SUM_MANY, false);
    run_sum(device, params[0], params[1], FAKE_READ, random);
}

static void sum_switch(int device, void **params, uint64_t *random)
{
    check_sum("tide_sum_switch", params[0], params[1], 1, false);
    run_sum(device, params[0], params[1], FAKE_SWITCH, random);
}

/* --- Copies --------------------------------------------------------------- */

static void copy_part(int device, const tdi_strided_part *part,
                      uint64_t *random)
{
    uint64_t rows = part->height - 1;
    if (!part->width || !part->height)
        return;
    fake_view to =
        fake_pin(device, part->dst, rows * part->dst_pitch + part->width,
                 FAKE_WRITE, "the destination of a copy by a kernel");
    fake_view from =
        fake_pin(device, part->src, rows * part->src_pitch + part->width,
                 FAKE_READ, "the source of a copy by a kernel");
    if (to.members > 1)
        fake_fail("a kernel copies to a multicast address");
    fake_move(&to, part->dst_pitch, &from, part->src_pitch, part->width,
              part->height, random);
    fake_unpin(&to);
    fake_unpin(&from);
}

/* Parts are copied in any order. */
static void run_copies(int device, const tdi_strided_params *p,
                       const tdi_strided_part *parts, uint64_t most,
                       uint64_t align, uint64_t *random)
{
    uint64_t start = fake_now_us();
    uint32_t first =
        (uint32_t)(fake_random(random) % (p->count ? p->count : 1));
    if (!p->count || p->count > most)
        fake_fail("a kernel copies %u parts of at most %llu", p->count,
                  (unsigned long long)most);
    for (uint32_t i = 0; i < p->count; i++) {
        const tdi_strided_part *part = &parts[(first + i) % p->count];
        bool single = part->height < 2;
        if ((part->dst | part->src | part->width |
             (single ? 0 : part->dst_pitch | part->src_pitch)) %
            align)
            fake_fail("a bulk copy by a kernel is not aligned");
        copy_part(device, part, random);
        fake_dawdle(random);
    }
    count_time(device, p->counter, start);
}

static void copy_bulk(int device, void **params, uint64_t *random)
{
    run_copies(device, params[0], params[1], TDI_STRIDED_FEW, 16, random);
}

static void copy_bulk_many(int device, void **params, uint64_t *random)
{
    run_copies(device, params[0], params[1], TDI_STRIDED_MANY, 16, random);
}

static void copy_loads(int device, void **params, uint64_t *random)
{
    run_copies(device, params[0], params[1], TDI_STRIDED_FEW, 1, random);
}

static void copy_loads_many(int device, void **params, uint64_t *random)
{
    run_copies(device, params[0], params[1], TDI_STRIDED_MANY, 1, random);
}

/* --- The flat path -------------------------------------------------------- */

typedef void move_run(const tdi_flat_params *p, const tdi_flat_part *part,
                      int device, uint32_t rank, uint32_t row);

static void unpack_run(const tdi_flat_params *p, const tdi_flat_part *part,
                       int device, uint32_t rank, uint32_t row)
{
    uint64_t to =
        part->address + ((uint64_t)row * p->ranks + rank) * part->width;
    uint64_t from =
        p->buffer + rank * p->pitch + part->packed + row * part->width;
    fake_view a = fake_pin(device, to, part->width, FAKE_WRITE, "an unpack");
    fake_view b = fake_pin(device, from, part->width, FAKE_READ, "an unpack");
    memcpy(a.at[0], b.at[0], part->width);
    fake_unpin(&a);
    fake_unpin(&b);
}

static void pack_run(const tdi_flat_params *p, const tdi_flat_part *part,
                     int device, uint32_t rank, uint32_t row)
{
    bool bf16 = (p->flags & TDI_SUM_SRC_BF16) != 0;
    uint64_t size = bf16 ? 2 : 4, column = rank * part->width;
    uint64_t real = column < part->real ? part->real - column : 0;
    uint64_t to =
        p->buffer + 4 * (rank * p->pitch + part->packed + row * part->width);
    fake_view a = fake_pin(device, to, 4 * part->width, FAKE_WRITE, "a pack");
    real = real < part->width ? real : part->width;
    memset(a.at[0], 0, 4 * part->width);
    if (real) {
        fake_view b =
            fake_pin(device, part->address + size * (row * part->real + column),
                     size * real, FAKE_READ, "a pack");
        for (uint64_t i = 0; i < real; i++)
            put(a.at[0], i, false, get(b.at[0], i, bf16));
        fake_unpin(&b);
    }
    fake_unpin(&a);
}

static void run_flat(int device, const tdi_flat_params *p, move_run *move,
                     uint64_t *random)
{
    fake_view table =
        fake_pin(device, p->parts, (p->part_count + 1) * sizeof(tdi_flat_part),
                 FAKE_READ, "the flat path's table");
    const tdi_flat_part *parts = (const tdi_flat_part *)table.at[0];
    for (uint32_t i = 0; i < p->part_count; i++) {
        for (uint32_t rank = 0; rank < p->ranks; rank++)
            for (uint32_t row = 0; parts[i].width && row < parts[i].outer;
                 row++)
                move(p, &parts[i], device, rank, row);
        fake_dawdle(random);
    }
    fake_unpin(&table);
}

static void flat_unpack(int device, void **params, uint64_t *random)
{
    run_flat(device, params[0], unpack_run, random);
}

static void flat_pack(int device, void **params, uint64_t *random)
{
    run_flat(device, params[0], pack_run, random);
}

#define FEW       {sizeof(tdi_sum_params), sizeof(tdi_sum_few)}
#define MANY      {sizeof(tdi_sum_params), sizeof(tdi_sum_many)}
#define COPY_FEW  {sizeof(tdi_strided_params), sizeof(tdi_strided_few)}
#define COPY_MANY {sizeof(tdi_strided_params), sizeof(tdi_strided_many)}

const fake_kernel fake_kernels[] = {
    {"tide_sum_bulk", sum_bulk, FEW},
    {"tide_sum_bulk_many", sum_bulk_many, MANY},
    {"tide_sum_loads", sum_loads, FEW},
    {"tide_sum_loads_many", sum_loads_many, MANY},
    {"tide_sum_switch", sum_switch, FEW},
    {"tide_copy_bulk", copy_bulk, COPY_FEW},
    {"tide_copy_bulk_many", copy_bulk_many, COPY_MANY},
    {"tide_copy_loads", copy_loads, COPY_FEW},
    {"tide_copy_loads_many", copy_loads_many, COPY_MANY},
    {"tide_flat_unpack", flat_unpack, {sizeof(tdi_flat_params)}},
    {"tide_flat_pack", flat_pack, {sizeof(tdi_flat_params)}},
    {.name = NULL},
};
