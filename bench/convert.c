/* convert: `ringzero convert` takes a model's weights from one kind of file to another, a parameter at a
 * time: what is held is the largest of them. Kinds are those of model_kind.h.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/json_line.h"
#include "bench/model_kind.h"
#include "bench/options.h"
#include "bench/programs.h"
#include "bench/progress_line.h"
#include "verbs/clock.h"

struct convert {
    struct options common;
    const char *in, *out;
    char in_path[PATH_MAX];             /* where it is, in a folder of Hugging Face's */
    const struct model_kind *from, *to; /* NULL: not given, so by the path */
    bool dtype_given;
    enum dtype dtype;
    int heads; /* 0: not given */

    struct weights *source, *target;
    struct params params;
    double seconds;
};

/* ---- options ---- */

enum { KEY_FROM = 0x200, KEY_TO, KEY_DTYPE, KEY_HEADS };

static const struct argp_option convert_options[] = {
    {"from", KEY_FROM, "KIND", 0,
        "of IN: checkpoint, safetensors or llmc (a directory; *.safetensors; *.bin)", 0},
    {"to", KEY_TO, "KIND", 0, "of OUT (*.safetensors; *.bin; any other name: checkpoint)", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0,
        "of OUT's values: float32, bfloat16 or float16 (as IN's; checkpoints: float32)", 0},
    {"heads", KEY_HEADS, "N", 0,
        "of attention, where IN is safetensors that do not tell (a 64th of the columns)", 0},
    {0}};

static const struct model_kind *kind_named(
    const char *text, const char *option, const struct options *common)
{
    const struct model_kind *kind = model_kind_named(text);
    if (kind == NULL)
        options_refuse(
            common, "%s is \"%s\", expected checkpoint, safetensors or llmc", option, text);
    return kind;
}

static void take_path(const char *text, struct convert *convert)
{
    if (convert->in == NULL) convert->in = text;
    else if (convert->out == NULL) convert->out = text;
    else options_refuse(&convert->common, "found \"%s\", expected two paths only: IN OUT", text);
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct convert *convert = state->input;
    const struct options *common = &convert->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &convert->common; return 0;
    case KEY_FROM: convert->from = kind_named(text, "--from", common); return 0;
    case KEY_TO: convert->to = kind_named(text, "--to", common); return 0;
    case KEY_DTYPE:
        convert->dtype = options_training_dtype(text, "--dtype", common);
        convert->dtype_given = true;
        return 0;
    case KEY_HEADS: convert->heads = options_count(text, "--heads", common); return 0;
    case ARGP_KEY_ARG: take_path(text, convert); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {.options = convert_options,
    .parser = parse_option,
    .args_doc = "IN OUT",
    .children = children,
    .help_filter = options_help_filter,
    .doc =
        "Takes a model's weights from one kind of file to another.\v"
        "Kinds:\n"
        "  checkpoint   a directory that `ringzero train --checkpoint` writes: its\n"
        "               newest step-…, or one of them; of any number of ranks,\n"
        "               stage, --tensor and --pipeline\n"
        "  safetensors  one file with Hugging Face's names for GPT-2 or Llama (tied,\n"
        "               without scaled rotary positions), with or without\n"
        "               \"transformer.\" or \"model.\" in front; IN may be a folder with\n"
        "               model.safetensors. OUT of that name gets a config.json\n"
        "               beside it, where there is none, so that transformers loads\n"
        "               the folder\n"
        "  llmc         llm.c's model.bin of GPT-2, version 3 (float32) or 5 (bfloat16)\n\n"
        "OUT must not be there yet, its folder must; it appears when it is whole. A checkpoint "
        "that is written holds weights alone: `ringzero train --resume OUT`, with the model that "
        "convert names, starts at step 0 with a fresh optimizer, its own schedule and the begin "
        "of its data, at any number of ranks, stage and split. Moments, step and place in the data "
        "of IN are left behind.\n\n"
        "Examples:\n"
        "  ringzero convert gpt2/model.safetensors gpt2-start\n"
        "  ringzero train --model gpt2-124m --resume gpt2-start --data 'bible_*.bin' \\\n"
        "      --checkpoint run\n"
        "  ringzero convert run mine/model.safetensors --dtype bfloat16\n"};

/* ---- which kinds ---- */

static void find_source(struct convert *convert)
{
    const struct model_kind *found = model_kind_found(convert->in_path, convert->in);
    if (convert->from == NULL) convert->from = found;
    if (convert->from == NULL)
        options_refuse(&convert->common,
            "%s: is no directory, and ends in neither .safetensors nor .bin: say what it is with "
            "--from",
            convert->in);
    if (convert->from == found) convert->in = convert->in_path;
}

static void find_target(struct convert *convert)
{
    if (convert->to == NULL) convert->to = model_kind_of_ending(convert->out);
    if (convert->to == NULL) convert->to = &model_kind_checkpoint;
    if (convert->to != &model_kind_checkpoint && access(convert->out, F_OK) == 0)
        options_refuse(&convert->common,
            "%s: is there already, expected a new name: take another, or move it away",
            convert->out);
}

/* IN's own, where OUT can have it. */
static enum dtype target_dtype(const struct convert *convert)
{
    enum dtype source = convert->source->dtype;
    bool narrow = source == DTYPE_BFLOAT16 || source == DTYPE_FLOAT16;
    if (convert->dtype_given) return convert->dtype;
    if (convert->to == &model_kind_checkpoint || !narrow) return DTYPE_FLOAT32;
    if (convert->to == &model_kind_llmc && source == DTYPE_FLOAT16) return DTYPE_FLOAT32;
    return source;
}

/* ---- the work ---- */

static enum status copy(float *values, const struct convert *convert)
{
    const struct params *params = &convert->params;
    struct progress_line line = {0};
    enum status status = STATUS_OK;
    size_t done = 0;
    for (int i = 0; i < params->param_count && status == STATUS_OK; i++) {
        const struct param *param = &params->param[i];
        status = weights_read(values, param, convert->source);
        if (status == STATUS_OK) status = weights_write(values, param, convert->target);
        done += param->rows * param->cols;
        progress_line_tell(&line, "%.0f of %.0f million parameters ", (double)done * 1e-6,
            (double)params->elements * 1e-6);
    }
    progress_line_clear(&line);
    return status == STATUS_OK ? weights_finish(convert->target) : status;
}

static enum status copy_all(const struct convert *convert)
{
    size_t most = 0;
    for (int i = 0; i < convert->params.param_count; i++) {
        const struct param *param = &convert->params.param[i];
        if (param->rows * param->cols > most) most = param->rows * param->cols;
    }
    float *values = malloc(most * sizeof *values);
    if (values == NULL) return FAIL(STATUS_SYSTEM, "no memory for a parameter of %zu values", most);
    enum status status = copy(values, convert);
    free(values);
    return status;
}

/* ---- what is said in the end ---- */

static bool same_model(const struct model_config *a, const struct model_config *b)
{
    return a->architecture == b->architecture && a->max_t == b->max_t && a->vocab == b->vocab &&
           a->layers == b->layers && a->heads == b->heads && a->channels == b->channels &&
           model_kv_heads(a) == model_kv_heads(b) && model_hidden(a) == model_hidden(b) &&
           model_rotary_base(a) == model_rotary_base(b);
}

/* The first preset of this architecture and rotary base, which no option of `ringzero train` sets;
 * NULL: none has it. */
static const char *preset_like(const struct model_config *config)
{
    struct model_config preset;
    const char *name;
    for (size_t i = 0; (name = model_preset_name(i)) != NULL; i++)
        if (model_preset(&preset, name) == STATUS_OK &&
            preset.architecture == config->architecture &&
            model_rotary_base(&preset) == model_rotary_base(config))
            return name;
    return NULL;
}

/* The options of `ringzero train` that give this model, `like` a preset. */
static void model_options(char text[256], const char *like, const struct model_config *config)
{
    bool is_llama = config->architecture == ARCHITECTURE_LLAMA;
    struct model_config preset;
    char hidden[32] = "", kv[32] = "";
    const char *name;
    for (size_t i = 0; (name = model_preset_name(i)) != NULL; i++) {
        if (model_preset(&preset, name) != STATUS_OK) continue;
        snprintf(text, 256, "--model %s", name);
        if (same_model(&preset, config)) return;
    }
    if (config->hidden != 0 || is_llama)
        snprintf(hidden, sizeof hidden, " --hidden %lld", (long long)model_hidden(config));
    if (config->kv_heads != 0 || is_llama)
        snprintf(kv, sizeof kv, " --kv-heads %d", model_kv_heads(config));
    snprintf(text, 256,
        "--model %s --layers %d --heads %d%s --channels %d%s --vocab %d --positions %d", like,
        config->layers, config->heads, kv, config->channels, hidden, config->vocab, config->max_t);
}

static void print_advice(const char *out, const struct model_config *config)
{
    char options[256];
    const char *like = preset_like(config);
    if (like == NULL) {
        printf("train cannot go on with it: its rotary base is %d, expected 10000 (as llama-nano's) "
               "or 500000 (llama-1b's): `ringzero sample` and `evaluate` take %s as it is\n",
            model_rotary_base(config), out);
        return;
    }
    model_options(options, like, config);
    printf("train on with: ringzero train %s --resume %s --data …\n", options, out);
}

static void print_summary(const struct convert *convert)
{
    const struct weights *target = convert->target;
    char shape[MODEL_SHAPE_BYTES];
    double bytes = (double)convert->params.elements * (double)dtype_bytes(target->dtype);
    model_shape(shape, &target->config);
    printf("%s, %s: %zu parameters\n", architecture_name(target->config.architecture), shape,
        convert->params.elements);
    printf("%s (%s, %s) -> %s (%s, %s): %.1f MB of values in %.2f s\n", convert->in,
        convert->from->name, dtype_name(convert->source->dtype), convert->out, convert->to->name,
        dtype_name(target->dtype), bytes * 1e-6, convert->seconds);
    if (convert->to == &model_kind_checkpoint) print_advice(convert->out, &target->config);
}

static cJSON *describe(const struct convert *convert)
{
    const struct model_config *config = &convert->target->config;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "from", convert->from->name);
    cJSON_AddStringToObject(object, "in", convert->in);
    cJSON_AddStringToObject(object, "to", convert->to->name);
    cJSON_AddStringToObject(object, "out", convert->out);
    cJSON_AddStringToObject(object, "architecture", architecture_name(config->architecture));
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"layers", config->layers}, {"heads", config->heads},
        {"kv_heads", model_kv_heads(config)}, {"channels", config->channels},
        {"hidden", (double)model_hidden(config)}, {"vocab", config->vocab},
        {"max_t", config->max_t}, {"parameters", (double)convert->params.elements},
        {"bytes", (double)(convert->params.elements * dtype_bytes(convert->target->dtype))},
        {"seconds", convert->seconds}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(object, numbers[i].name, numbers[i].value);
    cJSON_AddStringToObject(object, "dtype", dtype_name(convert->target->dtype));
    return object;
}

static enum status run(FILE *json, struct convert *convert)
{
    int64_t began_ns = clock_ns();
    TRY(weights_open(&convert->source, convert->in, convert->from->format, convert->heads));
    TRY(params_make(&convert->params, &convert->source->config));
    TRY(weights_create(&convert->target, convert->out, convert->to->format,
        &convert->source->config, target_dtype(convert)));
    TRY(copy_all(convert));
    convert->seconds = (double)(clock_ns() - began_ns) * 1e-9;
    print_summary(convert);
    return json == NULL ? STATUS_OK : json_line_write(json, describe(convert));
}

int convert_main(int argc, char **argv)
{
    struct convert convert = {.common = options_default("ringzero convert")};
    options_parse(&argp, argc, argv, &convert.common, &convert);
    if (convert.out == NULL)
        options_refuse(&convert.common, "found %s, expected two paths: IN OUT",
            convert.in == NULL ? "none" : "one path");
    find_source(&convert);
    find_target(&convert);
    signal(SIGXFSZ, SIG_IGN);                        /* a file-size limit is an error of write() */
    FILE *json = options_open_json(&convert.common); /* before OUT is there */
    enum status status = options_close_json(json, run(json, &convert), &convert.common);
    if (status != STATUS_OK) fprintf(stderr, "ringzero convert: %s\n", status_text());
    weights_close(convert.target);
    weights_close(convert.source);
    params_free(&convert.params);
    return status == STATUS_OK ? 0 : status == STATUS_INVALID ? 2 : 1;
}
