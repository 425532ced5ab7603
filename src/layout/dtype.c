/* Sizes and names of the element types. */
#include <tide/types.h>

#define KNOWN(dtype) ((unsigned)(dtype) < TIDE_DTYPE_COUNT)

static const size_t sizes[TIDE_DTYPE_COUNT] = {
#define X(name, bytes) [TIDE_##name] = bytes,
    TIDE_DTYPE_LIST(X)
#undef X
};

static const char *const names[TIDE_DTYPE_COUNT] = {
    [TIDE_U8] = "u8",   [TIDE_I16] = "i16",   [TIDE_I32] = "i32",
    [TIDE_I64] = "i64", [TIDE_BF16] = "bf16", [TIDE_F16] = "f16",
    [TIDE_F32] = "f32", [TIDE_F64] = "f64",
};

size_t tide_dtype_size(tide_dtype dtype)
{
    return KNOWN(dtype) ? sizes[dtype] : 0;
}

const char *tide_dtype_name(tide_dtype dtype)
{
    return KNOWN(dtype) ? names[dtype] : "?";
}
