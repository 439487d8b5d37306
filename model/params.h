/* params: every parameter tensor of a model: name, shape, unit, place in the unit, how it starts, and whether it
 * decays.
 *
 * Units of GPT-2 in order of use (C channels, V vocabulary rows, L blocks, maxT positions):
 *
 *   unit                     tensors, in this order                                                        elements
 *   embedding rows 0…R−1     wte rows [begin, end) (rows, C)                                              
 * rows·C each
 *   positions                wpe (maxT, C)                                                                 maxT·C
 *   block 0…L−1              ln1w (C) ln1b (C) qkvw (3C, C) qkvb (3C) attprojw (C, C) attprojb (C)
 *                            ln2w (C) ln2b (C) fcw (4C, C) fcb (4C) fcprojw (C, 4C) fcprojb (C)            12C² + 13C
 *   final norm               lnfw (C) lnfb (C)                                                             2C
 *
 * and of Llama (H hidden, Q = (NH + 2·KV)·C/NH rows of queries, keys and values):
 *
 *   embedding rows 0…R−1     as above
 *   positions                none: the unit is there and has 0 elements
 *   block 0…L−1              ln1w (C) qkvw (Q, C) attprojw (C, C) ln2w (C)
 *                            fcw (2H, C): H gates, then H values   fcprojw (C, H)     QC + C² + 3HC + 2C
 *   final norm               lnfw (C)                                                                      C
 *
 * Heads of queries that share keys and values (KV < NH), and another H than 4C, are for either.
 * Weight matrices are (out, in), row-major: y = x Wᵀ + b. The embedding is tied: the same rows are the output head.
 * Rows of the embedding are cut into R blocks, each at most as large as a transformer block (or `vocab_block`
 * rows where that is set), sizes as even as possible, so that no unit is larger than a block for the sake of
 * the vocabulary.
 *
 * A table may be that of a part of the model: rank r of M that share every tensor, in stage s of P that share
 * the blocks. Units have the same numbers in every part; of what a part does not hold a unit has 0 elements.
 *
 *   cut over M ranks   by              rank r has [n·r/M, n·(r+1)/M) of
 *     wte rows         rows            the unit's rows
 *     qkvw qkvb        rows            heads of keys and values, with the heads of queries that share them:
 *                                      three bands of rows, of q, k and v
 *     attprojw         columns         the same heads' columns
 *     fcw fcb          rows            hidden columns; Llama's gates and values are two bands
 *     fcprojw          columns         hidden columns
 *     all others       not: every rank has them whole
 *
 *   held by stage s    blocks [L·s/P, L·(s+1)/P); rows of the embedding by the first and the last, positions by
 *                      the first, the final norm by the last
 */
#ifndef MODEL_PARAMS_H
#define MODEL_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

/*           GPT-2                                Llama
 * norm      layer norm, with bias                RMS norm: no mean, no bias
 * linear    with bias                            without
 * where     a table of positions is added        queries and keys are turned (rotary positions)
 * hidden    gelu(fc(x))                          silu(gate(x)) ∘ up(x), both in fcw
 */
enum architecture { ARCHITECTURE_GPT2, ARCHITECTURE_LLAMA };
const char *architecture_name(enum architecture architecture); /* "gpt2", "llama" */

struct model_config {
    enum architecture architecture;
    int max_t;       /* positions */
    int vocab;       /* V: valid ids are 0 … V−1 */
    int layers;      /* L */
    int heads;       /* NH; divides channels */
    int channels;    /* C */
    int vocab_block; /* rows of an embedding unit; 0: by the rule above */
    int kv_heads;    /* KV: heads of keys and values; divides heads; 0: as many as heads */
    int hidden;      /* H: columns of the feed-forward part; 0: 4C */
    int rotary_base; /* Llama: pair i of a head's n turns by base^(−i/n) a position; 0: 10000 */
};

/* What 0 stands for. */
static inline int model_kv_heads(const struct model_config *config)
{
    return config->kv_heads != 0 ? config->kv_heads : config->heads;
}
static inline int64_t model_hidden(const struct model_config *config)
{
    return config->hidden != 0 ? config->hidden : 4 * (int64_t)config->channels;
}
static inline int model_rotary_base(const struct model_config *config)
{
    return config->rotary_base != 0 ? config->rotary_base : 10000;
}

/* Elements of a block's unit; of the whole model; how many units there are. Doubles: asked before it is
 * known that they can be counted. The config has passed model_config_check(). */
double model_block_elements(const struct model_config *config);
double model_elements(const struct model_config *config);
double model_unit_count(const struct model_config *config);

/* A model by name. errors: INVALID listing the names.
 *
 *   nano          L4  NH4  C128  V256   T128        842,496 parameters: learns text within minutes on a laptop
 *   mini          L6  NH8  C384  V256   T256     10,844,160             large enough to measure scaling with
 *   gpt2-124m     L12 NH12 C768  V50257 T1024   124,439,808             and on: the shapes that OpenAI published
 *   gpt2-350m     L24 NH16 C1024                354,823,168
 *   gpt2-774m     L36 NH20 C1280                774,030,080
 *   gpt2-1558m    L48 NH25 C1600              1,557,611,200
 *
 *   llama-nano    L4  NH8  KV4 C128  H384  V256    T128         820,352
 *   llama-mini    L6  NH8  KV4 C384  H1024 V256    T256       9,835,392
 *   llama-1b      L16 NH32 KV8 C2048 H8192 V128256 T8192  1,235,814,400   Llama 3.2's shapes
 */
MUST_CHECK enum status model_preset(struct model_config *config, const char *name);

/* Name number `index` of this list, from 0 on; NULL after the last. */
const char *model_preset_name(size_t index);

/* A model's shape as people write it, "L4 NH8 KV4 C128 H384 V256, T up to 128"; KV and H only where they are
 * not NH and 4C. */
#define MODEL_SHAPE_BYTES 128
void model_shape(char text[MODEL_SHAPE_BYTES], const struct model_config *config);

/* errors: INVALID naming the field, the value and what is expected (all positive, where 0 has no meaning;
 * C % NH = 0; NH % KV = 0; with rotary positions C / NH even). */
MUST_CHECK enum status model_config_check(const struct model_config *config);

enum param_init { INIT_ZERO, INIT_ONE, INIT_NORMAL };

/* Which part of a model a table describes. */
struct params_part {
    int tensor_rank, tensor_count; /* r, M */
    int stage, stage_count;        /* s, P */
};

enum param_cut { CUT_NONE, CUT_ROWS, CUT_COLS }; /* over tensor ranks */

struct param_band {
    size_t whole_row, rows; /* rows [whole_row, whole_row + rows) of the whole tensor */
};
#define PARAM_BANDS_MOST 3

struct param {
    char name[32];    /* "wte", "h.3.qkvw", "lnfb"; blocks of wte are "wte[0:4096]", the only one "wte" */
    int unit;
    size_t offset;    /* in elements, from the unit's begin */
    size_t rows, cols; /* held here: 0 rows where the unit is not. A vector has cols 1 */
    size_t whole_rows, whole_cols, whole_offset; /* the same of the whole model */
    enum param_cut cut;
    int band_count; /* the held rows, one band after another */
    struct param_band band[PARAM_BANDS_MOST];
    size_t whole_col; /* the first one held */
    bool decays;      /* matrices do; vectors (norms, biases) do not */
    enum param_init init;
    float std;        /* INIT_NORMAL: 0.02; residual projections 0.02/√(2L) */
    int layer;        /* block number, or -1 */
    size_t first_row; /* of a block of wte: its first row in the whole; else 0 */
};

struct params {
    struct model_config config; /* of the whole model */
    struct params_part part;
    int unit_count;
    int embedding_units;   /* R: units 0 … R−1 */
    int positions_unit;    /* = R */
    int first_block_unit;  /* = R + 1 */
    int final_norm_unit;   /* = R + 1 + L */
    size_t *unit_elements;       /* [unit_count], held here */
    size_t *whole_unit_elements; /* [unit_count] */
    int param_count;
    struct param *param;   /* [param_count], by unit, then offset; those of units not held too */
    size_t elements;       /* held here */
    size_t whole_elements; /* Ψ */
};

/* Computes the table of the whole model, or of a part of it. A tensor may be cut into uneven parts, or into
 * empty ones. Free with params_free(), which accepts a zeroed struct. */
MUST_CHECK enum status params_make(struct params *params, const struct model_config *config);
MUST_CHECK enum status params_make_part(
    struct params *params, const struct model_config *config, const struct params_part *part);
void params_free(struct params *params);

/* Elements of the largest unit that is held here. */
size_t params_largest_unit(const struct params *params);

/* Share i of n of `total` equal things. */
struct params_slice {
    size_t begin, count;
};
static inline struct params_slice params_share(size_t total, int i, int n)
{
    size_t begin = total * (size_t)i / (size_t)n, end = total * (size_t)(i + 1) / (size_t)n;
    struct params_slice slice = {begin, end - begin};
    return slice;
}

/* What a tensor rank holds of heads, hidden columns or rows, and which blocks a stage does. */
static inline struct params_slice params_slice(const struct params_part *part, size_t total)
{
    return params_share(total, part->tensor_rank, part->tensor_count);
}
static inline struct params_slice params_blocks(const struct params_part *part, int layers)
{
    return params_share((size_t)layers, part->stage, part->stage_count);
}

/* Of the parts that hold the same elements of this tensor, this is the one that stands for all: sums over
 * parts then count every element of the model once, and files have it once. Tensors that are not cut are
 * tensor rank 0's, rows of the embedding the first stage's. */
bool params_stands_for(const struct params *params, const struct param *param);

/* Elements of one tensor that follow each other both in this part and in the whole model. */
struct params_run {
    const struct param *param;
    size_t begin, whole_begin; /* from the unit's begin: here, in the whole model */
    size_t count;
};

/* Walks elements [begin, end) of a unit of this part, in order; in the whole model that is in order too.
 *
 *     struct params_walk walk = params_walk(params, unit, begin, end);
 *     for (struct params_run run; params_next_run(&run, &walk);) …
 */
struct params_walk {
    const struct params *params;
    int unit, next_param;
    size_t at, end;
};
struct params_walk params_walk(const struct params *params, int unit, size_t begin, size_t end);
bool params_next_run(struct params_run *run, struct params_walk *walk);

/* Starting values of elements [begin, begin + count) of one unit: a function of (seed, parameter's name,
 * element of the whole model) alone, so that every rank and every sharding starts from the same bits. */
void params_initialize(float *values, const struct params *params, int unit, size_t begin, size_t count,
    uint64_t seed);

#endif
