/* The flat path's copies on a device against the layout's definition, with
 * random groups. --small: few and small groups. */
#include "device.h"

#include "base/util.h"

enum { PARAMS = 12, MEMORY = 8 << 20 };

static uint64_t seed = 22;
static device d;
static mirror tensors; /* storages or gradients */
static mirror buffer;  /* the rank-major one */

typedef struct flat_case {
    tide_layout *layout;
    size_t count;
    uint32_t ranks;
    cu_pointer address[PARAMS];
    uint64_t at[PARAMS]; /* bytes into `tensors` */
    uint64_t tensor_bytes;
    uint64_t buffer_bytes;
} flat_case;

static uint64_t pick(uint64_t high)
{
    return check_between(&seed, 0, high);
}

static tide_param any_param(uint32_t ranks, tide_dtype dtype)
{
    tide_param p = {.outer = 1,
                    .rows = pick(d.small ? 20 : 40),
                    .inner = pick(d.small ? 60 : 300),
                    .dtype = dtype};

    if (pick(3) == 0) { /* Shard(d > 0) divides evenly */
        p.outer = 1 + pick(5);
        p.rows = ranks * pick(6);
    } else if (pick(9) == 0) {
        p.rows = d.small ? 42 * ranks - pick(ranks - 1) : 1 + pick(300);
        p.inner = d.small ? 400 : 1 + pick(400); /* more than a tile */
    }
    return p;
}

/* Tensors lie one after the other, some elements and a guard apart. */
static flat_case make_case(tide_coll coll, tide_dtype dtype)
{
    flat_case c = {.count = 1 + pick(PARAMS - 1),
                   .ranks = 1 + (uint32_t)pick(8)};
    bool gathers = coll == TIDE_ALL_GATHER;
    tide_param params[PARAMS];
    uint64_t at = GUARD;

    for (size_t p = 0; p < c.count; p++)
        params[p] = any_param(
            c.ranks, gathers ? (tide_dtype)pick(TIDE_DTYPE_COUNT - 1) : dtype);
    CHECK_OK(tide_layout_create(params, c.count, c.ranks, &c.layout));
    for (size_t p = 0; p < c.count; p++) {
        const tide_param_layout *l = tide_layout_param(c.layout, p);
        uint64_t size = tide_dtype_size(params[p].dtype);
        at = tdi_round_up(at, 16) + (pick(1) ? pick(7) * size : 0);
        c.at[p] = at;
        c.address[p] = tensors.device + at;
        at += (gathers ? l->storage_bytes : l->grad_elems * size) + GUARD;
    }
    c.tensor_bytes = at;
    c.buffer_bytes = c.ranks * (gathers ? tide_layout_shard_bytes(c.layout)
                                        : 4 * tide_layout_out_elems(c.layout));
    CHECK(c.tensor_bytes <= MEMORY && c.buffer_bytes + GUARD <= MEMORY);
    return c;
}

static void run_case(const flat_case *c, tide_coll coll, tide_dtype dtype)
{
    tdi_cuda_flat *flat;

    CHECK_OK(tdi_cuda_flat_create(d.kernels, c->layout, coll, dtype, c->address,
                                  &flat));
    CHECK_OK(tdi_cuda_flat_queue(flat, buffer.device, d.stream));
    CHECK_CUDA(d.cuda->stream_sync(d.stream));
    tdi_cuda_flat_free(flat);
}

static void check_mirror(const mirror *m, uint64_t bytes, const char *what)
{
    pull_mirror(&d, m, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (m->got[i] != m->want[i])
            CHECK_FAIL("%s: byte %" PRIu64 " of %" PRIu64 " is %#x, not %#x",
                       what, i, bytes, m->got[i], m->want[i]);
}

/* Calls copy for every run of a rank: `tensor` and `packed` are its offsets
 * in elements, in the tensor [outer, R * s, inner] and in the shard. */
typedef void run_function(const flat_case *c, size_t p, uint32_t rank,
                          uint64_t tensor, uint64_t packed, uint64_t elems);

static void each_run(const flat_case *c, run_function *copy)
{
    for (size_t p = 0; p < c->count; p++) {
        const tide_param_layout *l = tide_layout_param(c->layout, p);
        uint64_t run = l->shard_rows * l->param.inner;
        for (uint32_t r = 0; r < c->ranks; r++)
            for (uint64_t o = 0; o < l->param.outer; o++)
                copy(c, p, r, (o * c->ranks + r) * run, o * run, run);
    }
}

static void unpack_run(const flat_case *c, size_t p, uint32_t rank,
                       uint64_t tensor, uint64_t packed, uint64_t elems)
{
    const tide_param_layout *l = tide_layout_param(c->layout, p);
    uint64_t size = tide_dtype_size(l->param.dtype);
    uint64_t from = rank * tide_layout_shard_bytes(c->layout) +
                    l->shard_offset + packed * size;

    memcpy(tensors.want + c->at[p] + tensor * size, buffer.want + from,
           elems * size);
}

static void check_unpack(void)
{
    flat_case c = make_case(TIDE_ALL_GATHER, TIDE_BF16);

    fill_numbers(&seed, buffer.want, c.buffer_bytes);
    memset(tensors.want, POISON, c.tensor_bytes);
    push_mirror(&d, &buffer, tdi_max(c.buffer_bytes, 1));
    push_mirror(&d, &tensors, c.tensor_bytes);
    run_case(&c, TIDE_ALL_GATHER, TIDE_BF16);
    each_run(&c, unpack_run);
    check_mirror(&tensors, c.tensor_bytes, "unpack");
    tide_layout_free(c.layout);
}

/* Rows past the last are zeros; Shard(0) alone has any. */
static void pack_run(const flat_case *c, size_t p, uint32_t rank,
                     uint64_t tensor, uint64_t packed, uint64_t elems)
{
    const tide_param_layout *l = tide_layout_param(c->layout, p);
    bool bf16 = l->param.dtype == TIDE_BF16;
    uint64_t to =
        rank * tide_layout_out_elems(c->layout) + l->out_offset + packed;

    for (uint64_t i = 0; i < elems; i++) {
        float x = tensor + i < l->grad_elems
                      ? get_element(tensors.want + c->at[p], tensor + i, bf16)
                      : 0;
        memcpy(buffer.want + 4 * (to + i), &x, 4);
    }
}

static void check_pack(tide_dtype dtype)
{
    flat_case c = make_case(TIDE_REDUCE_SCATTER, dtype);

    fill_numbers(&seed, tensors.want, c.tensor_bytes);
    memset(buffer.want, POISON, c.buffer_bytes + GUARD);
    push_mirror(&d, &buffer, c.buffer_bytes + GUARD);
    push_mirror(&d, &tensors, c.tensor_bytes);
    run_case(&c, TIDE_REDUCE_SCATTER, dtype);
    each_run(&c, pack_run);
    check_mirror(&buffer, c.buffer_bytes + GUARD, "pack");
    tide_layout_free(c.layout);
}

static void test_refusal(void)
{
    tide_param param = {1, 1, 1, TIDE_I32};
    cu_pointer address = tensors.device;
    tide_layout *layout;
    tdi_cuda_flat *flat;

    CHECK_OK(tide_layout_create(&param, 1, 2, &layout));
    CHECK_STATUS(tdi_cuda_flat_create(d.kernels, layout, TIDE_REDUCE_SCATTER,
                                      TIDE_I32, &address, &flat),
                 TIDE_ERR_INVALID);
    CHECK(!flat);
    tide_layout_free(layout);
}

int main(int argc, char **argv)
{
    d = open_device(argc, argv);
    tensors = take_mirror(&d, MEMORY);
    buffer = take_mirror(&d, MEMORY);
    for (int n = 0; n < (d.small ? 8 : 150); n++) {
        check_unpack();
        check_pack(TIDE_BF16);
        check_pack(TIDE_F32);
    }
    test_refusal();
    free_mirror(&d, &tensors);
    free_mirror(&d, &buffer);
    close_device(&d);
    return 0;
}
