/* options: see options.h. argp sorts and prints; its own messages take two lines, so they are off
 * and ours stand here.
 */
#include "bench/options.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/options_explain.h"
#include "verbs/device.h"
#include "verbs/log.h"
#include "verbs/transport.h"

enum { KEY_RANKS = 0x100, KEY_TRANSPORT, KEY_DEVICE, KEY_JSON, KEY_LOG, KEY_SEED };

#define TRANSPORTS_HELP "auto (shm within a host; between hosts verbs where both have RDMA, else tcp), shm, tcp,"

static const struct argp_option common_options[] = {
    {"ranks", KEY_RANKS, "N", 0,
        "start N ranks on this host (under a launcher: must agree with what it says)", 0},
    {"transport", KEY_TRANSPORT, "NAME", 0, TRANSPORTS_HELP " verbs, or cuda_ipc with --device cuda", 0},
    {"device", KEY_DEVICE, "NAME", 0, "host, cuda, or cudasim (a GPU simulated on the CPU); cuda:1 for one by its ordinal, else "
        "RINGZERO_CUDA_DEVICE or each local rank its own", 0},
    {"json", KEY_JSON, "FILE", 0, "write results to FILE as well, one JSON object a line", 0},
    {"log", KEY_LOG, "LEVEL", 0, "warn, info or trace; also RINGZERO_LOG", 0},
    {"seed", KEY_SEED, "N", 0, "of everything random (1)", 0},
    {"help", 'h', NULL, 0, "print this manual", -1},
    {0},
};

struct options options_default(const char *program)
{
    return (struct options){.program = program, .device = "host", .seed = 1};
}

void options_refuse(const struct options *options, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: %s\n", options->program, text);
    exit(2);
}

FILE *options_open_json(const struct options *options)
{
    if (options->json == NULL) return NULL;
    FILE *json = fopen(options->json, "we");
    if (json == NULL) options_refuse(options, "--json %s cannot be written: %s", options->json, strerror(errno));
    return json;
}

enum status options_close_json(FILE *json, enum status status, const struct options *options)
{
    if (json == NULL || fclose(json) == 0 || status != STATUS_OK) return status;
    return FAIL(STATUS_SYSTEM, "--json %s cannot be written: %s", options->json, strerror(errno));
}

const char *options_stem(const char *text, const char *option, const struct options *options)
{
    const char *slash = strrchr(text, '/');
    size_t path = strlen(text), name = strlen(slash != NULL ? slash + 1 : text);
    if (path + OPTIONS_ENDING_BYTES >= PATH_MAX || name + OPTIONS_ENDING_BYTES > NAME_MAX)
        options_refuse(options,
            "%s %.40s… is a path of %zu bytes whose last part has %zu, expected at most %d and %d: "
            "files with an ending more stand beside it",
            option, text, path, name, PATH_MAX - 1 - OPTIONS_ENDING_BYTES,
            NAME_MAX - OPTIONS_ENDING_BYTES);
    return text;
}

int64_t options_integer(
    const char *text, const char *option, int64_t min, int64_t max, const struct options *options)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max)
        options_refuse(options, "%s is \"%s\", expected a whole number from %lld to %lld", option, text,
            (long long)min, (long long)max);
    return value;
}

float options_number(
    const char *text, const char *option, float min, float max, const struct options *options)
{
    char *end;
    float value = strtof(text, &end);
    bool number = end != text && *end == '\0' && isfinite(value);
    if (!number && min == -FLT_MAX && max == FLT_MAX)
        options_refuse(options, "%s is \"%s\", expected a number as 0.003 or 3e-3", option, text);
    if (!number || value < min || value > max)
        options_refuse(options, "%s is \"%s\", expected a number from %g to %g", option, text, (double)min,
            (double)max);
    return value;
}

size_t options_bytes(const char *text, const char *option, const struct options *options)
{
    static const char suffixes[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool number = isdigit((unsigned char)*text) && errno == 0;
    const char *suffix = *end == '\0' ? NULL : strchr(suffixes, toupper((unsigned char)*end));
    int shift = suffix == NULL ? 0 : 10 * (int)(suffix - suffixes + 1);
    if (suffix != NULL) end++;
    if (!number || *end != '\0' || value > (unsigned long long)PTRDIFF_MAX >> shift)
        options_refuse(options, "%s is \"%s\", expected bytes as 1000, 64K, 32M or 1G", option, text);
    return (size_t)value << shift;
}

bool options_word(const char *text, const char *option, const char *first, const char *second, const struct options *options)
{
    if (strcmp(text, first) != 0 && strcmp(text, second) != 0)
        options_refuse(options, "%s is \"%s\", expected %s or %s", option, text, first, second);
    return strcmp(text, second) == 0;
}

bool options_shrinks(const char *text, const struct options *options)
{
    return options_word(text, "--on-death", "end", "shrink", options);
}

int options_count(const char *text, const char *option, const struct options *options)
{
    return (int)options_integer(text, option, 1, INT_MAX, options);
}

enum activation_keep options_activations(const char *text, const struct options *options)
{
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++)
        if (strcmp(text, activation_keep_name((enum activation_keep)keep)) == 0)
            return (enum activation_keep)keep;
    options_refuse(options,
        "--checkpoint-activations is \"%s\", expected none, full, partitioned or offload", text);
}

enum dtype options_training_dtype(const char *text, const char *option, const struct options *options)
{
    enum dtype dtype;
    bool known = dtype_from_name(&dtype, text) == 0;
    if (!known || (dtype != DTYPE_FLOAT32 && dtype != DTYPE_BFLOAT16 && dtype != DTYPE_FLOAT16))
        options_refuse(options, "%s is \"%s\", expected float32, bfloat16 or float16", option, text);
    return dtype;
}

struct options_range options_range(
    const char *text, const char *option, bool bytes, int64_t min, int64_t max, const struct options *options)
{
    char first[64];
    const char *dots = strstr(text, "..");
    snprintf(first, sizeof first, "%.*s", (int)(dots != NULL ? dots - text : (ptrdiff_t)strlen(text)), text);
    const char *last = dots != NULL ? dots + 2 : first;
    struct options_range range;
    range.first = bytes ? (int64_t)options_bytes(first, option, options)
                        : options_integer(first, option, min, max, options);
    range.last = bytes ? (int64_t)options_bytes(last, option, options)
                       : options_integer(last, option, min, max, options);
    if (range.first > range.last || range.first < min || range.last > max)
        options_refuse(options, "%s is \"%s\", expected A, or A..B with A at most B, from %lld to %lld", option,
            text, (long long)min, (long long)max);
    return range;
}

static void take_ranks(const char *text, struct options *options)
{
    struct options_range range = {0, 0};
    if (options->takes_range) range = options_range(text, "--ranks", false, 1, OPTIONS_MOST_DRAWN, options);
    else range.first = range.last = options_integer(text, "--ranks", 1, OPTIONS_MOST_RANKS, options);
    options->ranks = (int)range.first;
    options->ranks_last = (int)range.last;
}

static void take_transport(const char *name, struct options *options)
{
    char names[128] = "auto";
    for (int i = 0; transports[i] != NULL; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", transports[i]->name);
    }
    if (strcmp(name, "auto") != 0 && transport_by_name(name) == NULL)
        options_refuse(options, "--transport is \"%s\", expected one of %s", name, names);
    const struct transport *transport = transport_by_name(name);
    const char *why = "";
    if (transport != NULL && transport->available != NULL && !transport->available(&why, NULL))
        options_refuse(options, "--transport %s cannot work here: %s", name, why);
    options->transport = name;
}

/* Only what can be told before ranks are started: CUDA itself must not be touched before fork(). */
static void take_device(const char *name, struct options *options)
{
    if (strncmp(name, "cuda", 4) == 0 && !options->takes_device)
        options_refuse(options, "--device is \"%s\", expected host: this program works on host memory alone", name);
    enum status known = device_known(name);
    if (known == STATUS_INVALID)
        options_refuse(options, "--device is \"%s\", expected host, cuda or cudasim, the last two also as cuda:1", name);
    if (known != STATUS_OK) options_refuse(options, "--device %s: %s", name, status_text());
    options->device = name;
}

_Noreturn static void print_help(struct argp_state *state, const struct options *options)
{
    char name[64]; /* argp wants it writable */
    snprintf(name, sizeof name, "%s", options->program);
    state->name = name;
    state->flags &= ~(unsigned)ARGP_NO_ERRS; /* which keeps help quiet, too */
    argp_state_help(
        state, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG | ARGP_HELP_POST_DOC);
    exit(fflush(stdout) == 0 ? 0 : 1);
}

/* getopt has stepped past what it did not like, unless it stands within a group of letters. */
_Noreturn static void refuse_option(const struct argp_state *state, const struct options *options)
{
    char why[512];
    for (int i = state->next - 1; i <= state->next && i < state->argc; i++)
        if (i > 0 && options_explain(why, sizeof why, state->argv[i], i == state->argc - 1, state->root_argp))
            options_refuse(options, "%s: see `%s --help`", why, options->program);
    options_refuse(options, "option \"%s\" cannot be read: see `%s --help`",
        state->next > 1 ? state->argv[state->next - 1] : "", options->program);
}

static error_t parse_common(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case KEY_RANKS: take_ranks(text, options); return 0;
    case KEY_TRANSPORT: take_transport(text, options); return 0;
    case KEY_DEVICE:
        take_device(text, options);
        return 0;
    case KEY_JSON: options->json = text; return 0;
    case KEY_LOG:
        if (log_set_level_by_name(text) != 0)
            options_refuse(options, "--log is \"%s\", expected warn, info or trace", text);
        return 0;
    case KEY_SEED: options->seed = (uint64_t)options_integer(text, "--seed", 0, INT64_MAX, options); return 0;
    case 'h': print_help(state, options);
    case ARGP_KEY_ERROR: refuse_option(state, options);
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* A program that works on host memory alone does not offer what take_device() refuses. argp frees what is not `text`. */
static char *common_help_filter(int key, const char *text, void *input)
{
    const struct options *options = input;
    if (options->takes_device) return (char *)(uintptr_t)text;
    if (key == KEY_DEVICE) return strdup("host: this program works on host memory alone");
    if (key == KEY_TRANSPORT) return strdup(TRANSPORTS_HELP " or verbs");
    return (char *)(uintptr_t)text;
}

const struct argp options_common = {
    .options = common_options, .parser = parse_common, .help_filter = common_help_filter};

char *options_help_filter(int key, const char *text, void *input)
{
    (void)input;
    bool note = key == ARGP_KEY_HELP_DUP_ARGS_NOTE; /* "Mandatory arguments to long options are …" */
    return note ? NULL : (char *)(uintptr_t)text;
}

void options_parse(const struct argp *argp, int argc, char **argv, struct options *common, void *input)
{
    error_t error = argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, input);
    if (error != 0) options_refuse(common, "options could not be read: %s", strerror(error));
}
