/* weights_llmc: llm.c's model file.
 *
 *   256 int32   20240326 | 3 (float32) or 5 (bfloat16) | maxT V L NH C Vp
 *   values      of each kind of tensor (weights_kind.h) those of all layers, one after another; wte has
 *               Vp ≥ V rows, of which those from V on are padding
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/mapped_file.h"
#include "model/weights_kind.h"

enum { HEADER_WORDS = 256, HEADER_BYTES = HEADER_WORDS * 4 };
enum { MAGIC = 20240326, VERSION_FLOAT32 = 3, VERSION_BFLOAT16 = 5, PADDED_TO = 128 };

struct llmc {
    struct mapped_file mapped; /* read */
    FILE *file; /* written */
    size_t padded_vocab;
    size_t begin[KIND_COUNT + 1]; /* of each kind, in elements; then of the end */
};

/* Where each kind begins. Counted as doubles first: a header may say anything. */
static enum status place(struct llmc *llmc, const struct weights *weights)
{
    const struct model_config *config = &weights->config;
    double l = config->layers, c = config->channels;
    const double elements[KIND_COUNT] = {(double)llmc->padded_vocab * c, config->max_t * c, l * c, l * c,
        l * 3 * c * c, l * 3 * c, l * c * c, l * c, l * c, l * c, l * 4 * c * c, l * 4 * c, l * 4 * c * c,
        l * c, c, c};
    double at = 0.0;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        llmc->begin[kind] = (size_t)at;
        at += elements[kind];
        if (at > 0x1p50)
            return FAIL(STATUS_DATA, "%s: its header tells of %g parameters, expected a model that can be",
                weights->path, at);
    }
    llmc->begin[KIND_COUNT] = (size_t)at;
    return STATUS_OK;
}

/* Of a parameter of the whole model, from the begin of the values. */
static size_t element_of(const struct param *param, const struct llmc *llmc)
{
    size_t before = param->first_row * param->whole_cols;
    if (param->layer >= 0) before = (size_t)param->layer * param->whole_rows * param->whole_cols;
    return llmc->begin[weights_kind(param)] + before;
}

/* ---- reading ---- */

static enum status read_header(struct llmc *llmc, struct weights *weights)
{
    static const char *const names[] = {"maxT", "V", "L", "NH", "C", "Vp"};
    int32_t header[8];
    memcpy(header, llmc->mapped.data, sizeof header);
    if (header[0] != MAGIC)
        return FAIL(STATUS_DATA, "%s: header[0] (magic) is %d, expected %d: no model file of llm.c",
            weights->path, header[0], MAGIC);
    if (header[1] != VERSION_FLOAT32 && header[1] != VERSION_BFLOAT16)
        return FAIL(STATUS_DATA, "%s: header[1] (version) is %d, expected %d (float32) or %d (bfloat16)",
            weights->path, header[1], VERSION_FLOAT32, VERSION_BFLOAT16);
    for (int i = 0; i < 6; i++)
        if (header[2 + i] < 1)
            return FAIL(STATUS_DATA, "%s: header[%d] (%s) is %d, expected at least 1", weights->path, 2 + i,
                names[i], header[2 + i]);
    if (header[7] < header[3])
        return FAIL(STATUS_DATA, "%s: header[7] (Vp) is %d, expected at least V, %d", weights->path,
            header[7], header[3]);
    if (weights->config.heads != 0 && weights->config.heads != header[5])
        return FAIL(STATUS_INVALID, "%s: has %d heads, %d were asked for", weights->path, header[5],
            weights->config.heads);
    weights->dtype = header[1] == VERSION_FLOAT32 ? DTYPE_FLOAT32 : DTYPE_BFLOAT16;
    weights->config = (struct model_config){.max_t = header[2],
        .vocab = header[3],
        .layers = header[4],
        .heads = header[5],
        .channels = header[6]};
    llmc->padded_vocab = (size_t)header[7];
    return STATUS_OK;
}

static enum status llmc_open(struct weights *weights)
{
    struct llmc *llmc = calloc(1, sizeof *llmc);
    weights->state = llmc;
    if (llmc == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its record", weights->path);
    TRY(mapped_file_open(&llmc->mapped, weights->path, "llm.c's model"));
    if (llmc->mapped.bytes < HEADER_BYTES)
        return FAIL(STATUS_DATA, "%s: %zu bytes, expected llm.c's model file of at least %d",
            weights->path, llmc->mapped.bytes, HEADER_BYTES);
    TRY(read_header(llmc, weights));
    TRY(place(llmc, weights));
    size_t found = llmc->mapped.bytes - HEADER_BYTES,
           expected = llmc->begin[KIND_COUNT] * dtype_bytes(weights->dtype);
    if (found == expected) return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: %zu bytes follow its header, expected %zu (%zu values of %s): the file was cut short or "
        "written over",
        weights->path, found, expected, llmc->begin[KIND_COUNT], dtype_name(weights->dtype));
}

static enum status llmc_read(float *values, const struct param *param, struct weights *weights)
{
    const struct llmc *llmc = weights->state;
    const unsigned char *from =
        llmc->mapped.data + HEADER_BYTES + element_of(param, llmc) * dtype_bytes(weights->dtype);
    weights_widen(values, from, param->whole_rows * param->whole_cols, weights->dtype);
    return STATUS_OK;
}

/* ---- writing ---- */

static enum status write_header(const struct llmc *llmc, const struct weights *weights)
{
    const struct model_config *config = &weights->config;
    const int32_t header[HEADER_WORDS] = {MAGIC,
        weights->dtype == DTYPE_FLOAT32 ? VERSION_FLOAT32 : VERSION_BFLOAT16, config->max_t, config->vocab,
        config->layers, config->heads, config->channels, (int32_t)llmc->padded_vocab};
    if (fwrite(header, sizeof header, 1, llmc->file) == 1) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s.part: cannot be written: %s", weights->path, strerror(errno));
}

static enum status llmc_create(struct weights *weights)
{
    struct llmc *llmc = calloc(1, sizeof *llmc);
    enum status status;
    weights->state = llmc;
    if (llmc == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its record", weights->path);
    TRY(weights_check_gpt2(weights));
    if (weights->dtype != DTYPE_FLOAT32 && weights->dtype != DTYPE_BFLOAT16)
        return FAIL(STATUS_INVALID, "%s: dtype is %s, expected float32 or bfloat16: llm.c has no other",
            weights->path, dtype_name(weights->dtype));
    size_t vocab = (size_t)weights->config.vocab;
    llmc->padded_vocab = (vocab + PADDED_TO - 1) / PADDED_TO * PADDED_TO;
    TRY(place(llmc, weights));
    llmc->file = weights_open_part(&status, weights);
    TRY(status);
    return write_header(llmc, weights);
}

/* What is never written, the padding of wte, stays zero. */
static enum status llmc_write(const float *values, const struct param *param, struct weights *weights)
{
    const struct llmc *llmc = weights->state;
    uint64_t at = HEADER_BYTES + (uint64_t)element_of(param, llmc) * dtype_bytes(weights->dtype);
    return weights_put(llmc->file, at, values, param->whole_rows * param->whole_cols, weights);
}

static enum status llmc_finish(struct weights *weights)
{
    struct llmc *llmc = weights->state;
    FILE *file = llmc->file;
    llmc->file = NULL;
    return weights_name_part(file, weights);
}

static void llmc_close(struct weights *weights)
{
    struct llmc *llmc = weights->state;
    if (llmc == NULL) return;
    mapped_file_close(&llmc->mapped);
    if (llmc->file != NULL) fclose(llmc->file);
    weights_drop_part(weights);
    free(llmc);
}

const struct weights_format weights_llmc = {.name = "llm.c's model",
    .open = llmc_open,
    .read = llmc_read,
    .create = llmc_create,
    .write = llmc_write,
    .finish = llmc_finish,
    .close = llmc_close};
