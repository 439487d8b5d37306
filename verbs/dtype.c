/* dtype: names. */
#include "verbs/dtype.h"

static const struct {
    const char *name;
    enum dtype dtype;
} names[] = {
    /* canonical, in enum order */
    {"int8", DTYPE_INT8},
    {"uint8", DTYPE_UINT8},
    {"int32", DTYPE_INT32},
    {"uint32", DTYPE_UINT32},
    {"int64", DTYPE_INT64},
    {"uint64", DTYPE_UINT64},
    {"float16", DTYPE_FLOAT16},
    {"bfloat16", DTYPE_BFLOAT16},
    {"float32", DTYPE_FLOAT32},
    {"float64", DTYPE_FLOAT64},
    /* others' */
    {"int", DTYPE_INT32},
    {"half", DTYPE_FLOAT16},
    {"fp16", DTYPE_FLOAT16},
    {"bf16", DTYPE_BFLOAT16},
    {"float", DTYPE_FLOAT32},
    {"fp32", DTYPE_FLOAT32},
    {"double", DTYPE_FLOAT64},
    {"fp64", DTYPE_FLOAT64},
};

const char *dtype_name(enum dtype dtype) { return names[dtype].name; }

int dtype_from_name(enum dtype *dtype, const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) != 0) continue;
        *dtype = names[i].dtype;
        return 0;
    }
    return -1;
}

const char *dtype_names(void)
{
    return "int8, uint8, int32 (int), uint32, int64, uint64, float16 (half, fp16), bfloat16 (bf16), "
           "float32 (float, fp32), float64 (double, fp64)";
}
