/* dtype: names. */
#include "verbs/dtype.h"

static const struct {
    const char *name;
    enum dtype dtype;
} names[] = {
    {"float32", DTYPE_FLOAT32}, {"bfloat16", DTYPE_BFLOAT16}, {"int32", DTYPE_INT32}, /* canonical, in enum order */
    {"float", DTYPE_FLOAT32},   {"fp32", DTYPE_FLOAT32},      {"bf16", DTYPE_BFLOAT16}, {"int", DTYPE_INT32},
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

const char *dtype_names(void) { return "float32 (float), bfloat16 (bf16), int32 (int)"; }
