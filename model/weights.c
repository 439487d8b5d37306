/* weights: see weights.h. */
#include "model/weights.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/ops_host.h"
#include "model/weights_kind.h"

#define PIECE       ((size_t)64 << 10) /* values */
#define PART_ENDING ".part"            /* of a file that is not whole yet */

/* ---- kinds ---- */

enum weights_kind weights_kind(const struct param *param)
{
    static const char *const names[KIND_COUNT] = {"wte", "wpe", "ln1w", "ln1b", "qkvw", "qkvb",
        "attprojw", "attprojb", "ln2w", "ln2b", "fcw", "fcb", "fcprojw", "fcprojb", "lnfw", "lnfb"};
    const char *dot = strrchr(param->name, '.'), *name = dot == NULL ? param->name : dot + 1;
    size_t length = strcspn(name, "[");
    for (int kind = 0; kind < KIND_COUNT; kind++)
        if (strlen(names[kind]) == length && memcmp(names[kind], name, length) == 0)
            return (enum weights_kind)kind;
    abort(); /* weights_check_gpt2() */
}

enum status weights_check_gpt2(const struct weights *weights)
{
    const struct model_config *config = &weights->config;
    bool plain = config->architecture == ARCHITECTURE_GPT2 &&
                 model_kv_heads(config) == config->heads &&
                 model_hidden(config) == 4 * (int64_t)config->channels;
    if (plain) return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: %s files hold GPT-2's tensors only; this model is another: keep it "
        "as a checkpoint", weights->path, weights->format->name);
}

/* ---- values ---- */

void weights_widen(float *to, const void *from, size_t count, enum dtype dtype)
{
    const unsigned char *at = from;
    for (size_t i = 0; i < count; i++, at += dtype_bytes(dtype)) {
        uint16_t half;
        double wide;
        switch (dtype) {
        case DTYPE_FLOAT16: memcpy(&half, at, sizeof half); to[i] = float16_to_float32(half); break;
        case DTYPE_BFLOAT16: memcpy(&half, at, sizeof half); to[i] = bfloat16_to_float32(half); break;
        case DTYPE_FLOAT64: memcpy(&wide, at, sizeof wide); to[i] = (float)wide; break;
        default: memcpy(&to[i], at, sizeof to[i]);
        }
    }
}

static enum status fail_write(const struct weights *weights)
{
    const char *advice = errno == ENOENT                      ? ": make its folder first"
                         : errno == ENOSPC || errno == EFBIG ? ": make room (or raise ulimit -f)"
                                                             : "";
    return FAIL(STATUS_SYSTEM, "%s" PART_ENDING ": cannot be written: %s%s", weights->path,
        strerror(errno), advice);
}

static enum status check_length(const char *path)
{
    size_t most = PATH_MAX - sizeof PART_ENDING, bytes = strlen(path);
    if (bytes <= most) return STATUS_OK;
    return FAIL(STATUS_INVALID,
        "%.60s…: the path has %zu bytes, expected at most %zu: take a shorter one", path, bytes, most);
}

static void part_of(char part[PATH_MAX], const struct weights *weights)
{
    snprintf(part, PATH_MAX, "%s" PART_ENDING, weights->path);
}

FILE *weights_open_part(enum status *status, const struct weights *weights)
{
    char part[PATH_MAX];
    part_of(part, weights);
    FILE *file = fopen(part, "wbe");
    *status = file == NULL ? fail_write(weights) : STATUS_OK;
    return file;
}

enum status weights_put(
    FILE *file, uint64_t at, const float *values, size_t count, const struct weights *weights)
{
    uint16_t rounded[PIECE];
    if (fseeko(file, (off_t)at, SEEK_SET) != 0) return fail_write(weights);
    for (size_t done = 0, now; done < count; done += now) {
        now = count - done < PIECE ? count - done : PIECE;
        const void *from = values + done;
        if (weights->dtype != DTYPE_FLOAT32) {
            narrow(rounded, from, weights->dtype, now);
            from = rounded;
        }
        if (fwrite(from, dtype_bytes(weights->dtype), now, file) != now) return fail_write(weights);
    }
    return STATUS_OK;
}

enum status weights_name_part(FILE *file, const struct weights *weights)
{
    char part[PATH_MAX];
    part_of(part, weights);
    bool written = fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = errno;
    bool closed = fclose(file) == 0;
    if (!written) errno = error;
    if (!written || !closed) return fail_write(weights);
    if (rename(part, weights->path) == 0) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: cannot be renamed to %s: %s", part, weights->path, strerror(errno));
}

void weights_drop_part(const struct weights *weights)
{
    char part[PATH_MAX];
    part_of(part, weights);
    if (weights->writes && !weights->whole) unlink(part);
}

/* ---- a file ---- */

static enum status make(struct weights **out, const char *path, const struct weights_format *format)
{
    struct weights *weights = calloc(1, sizeof *weights);
    *out = NULL;
    if (weights != NULL) weights->path = strdup(path);
    if (weights == NULL || weights->path == NULL) {
        free(weights);
        return FAIL(STATUS_SYSTEM, "%s: no memory for its record", path);
    }
    weights->format = format;
    *out = weights;
    return STATUS_OK;
}

enum status weights_open(
    struct weights **out, const char *path, const struct weights_format *format, int heads)
{
    TRY(make(out, path, format));
    (*out)->config.heads = heads;
    enum status status = format->open(*out);
    if (status == STATUS_OK) status = model_config_check(&(*out)->config);
    if (status == STATUS_OK) return STATUS_OK;
    weights_close(*out);
    *out = NULL;
    return status;
}

enum status weights_create(struct weights **out, const char *path,
    const struct weights_format *format, const struct model_config *config, enum dtype dtype)
{
    *out = NULL;
    TRY(check_length(path));
    TRY(make(out, path, format));
    (*out)->config = *config;
    (*out)->dtype = dtype;
    (*out)->writes = true;
    enum status status = format->create(*out);
    if (status == STATUS_OK) return STATUS_OK;
    weights_close(*out);
    *out = NULL;
    return status;
}

enum status weights_read(float *values, const struct param *param, struct weights *weights)
{
    return weights->format->read(values, param, weights);
}

enum status weights_write(const float *values, const struct param *param, struct weights *weights)
{
    return weights->format->write(values, param, weights);
}

enum status weights_finish(struct weights *weights)
{
    TRY(weights->format->finish(weights));
    weights->whole = true;
    return STATUS_OK;
}

void weights_close(struct weights *weights)
{
    if (weights == NULL) return;
    weights->format->close(weights);
    free(weights->path);
    free(weights);
}
