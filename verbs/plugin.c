/* plugin: finds and loads a module: see plugin.h. */
#include "verbs/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status host_fail(enum status code, const char *file, int line, const char *text)
{
    return status_fail(code, file, line, "%s", text);
}

static void host_log(enum log_level level, const char *subsystem, const char *text)
{
    log_line(level, subsystem, "%s", text);
}

static const struct plugin_host host = {
    .status_fail = host_fail,
    .status_trace = status_trace,
    .status_text = status_text,
    .status_set_text = status_set_text,
    .log_level = log_level,
    .log_line = host_log,
    .memory_alloc_kind = memory_alloc_kind,
    .memory_free = memory_free,
    .memory_find = memory_find,
    .stream_native = stream_native,
    .stream_call = stream_call,
    .stream_launch = stream_launch,
    .stream_synchronize = stream_synchronize,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize,
    .event_passed = event_passed,
    .span_copy = span_copy,
    .span_fill = span_fill,
};

/* The folder of the program, without a slash at the end. */
static void program_folder(char *folder, size_t room)
{
    ssize_t length = readlink("/proc/self/exe", folder, room - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL) *slash = '\0';
}

/* NULL with *found false where there is no such file: then the next place is tried. */
static void *load_from(const char *folder, const char *below, const char *file, bool *found)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s%s/%s", folder, below, file);
    *found = access(path, F_OK) == 0;
    return *found ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
}

/* *found: there was a module, and it is what failed. */
static void *load_anywhere(const char *file, const char *given, const char *program, bool *found)
{
    static const char *const below[] = {"", "/..", "/../lib"};
    if (given != NULL) return load_from(given, "", file, found);
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        void *module = load_from(program, below[i], file, found);
        if (*found) return module;
    }
    void *module = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    *found = module != NULL;
    return module;
}

static const char *advice(const char *name)
{
    return strcmp(name, "cuda") == 0 ? "build where the CUDA toolkit is (cmake says what it "
                                       "found), set RINGZERO_PLUGIN_DIR, or use --device host"
                                     : "the simulator is built with the tests, where NVIDIA's "
                                       "headers are, and not installed: run the program of the "
                                       "build tree, set RINGZERO_PLUGIN_DIR, or use --device host";
}

enum status plugin_load(const struct plugin **plugin, const char *name)
{
    char file[64], program[PATH_MAX];
    const char *given = getenv("RINGZERO_PLUGIN_DIR");
    bool found = false;
    snprintf(file, sizeof file, "libringzero_%s.so", name);
    program_folder(program, sizeof program);
    *plugin = NULL;
    void *module = load_anywhere(file, given, program, &found);
    if (module == NULL && !found)
        return FAIL(STATUS_SYSTEM, "device %s needs %s, which is not in %s%s: %s", name, file,
            given != NULL ? given : program,
            given != NULL ? " (RINGZERO_PLUGIN_DIR)" : ", above it, or in its ../lib",
            advice(name));
    if (module == NULL)
        return FAIL(STATUS_SYSTEM,
            "device %s: its module cannot be loaded: %s: install what it names, or use --device "
            "host",
            name, dlerror());
    plugin_entry entry;
    *(void **)&entry =
        dlsym(module, PLUGIN_ENTRY); /* the way POSIX gives from an object to a function */
    *plugin = entry == NULL ? NULL : entry(PLUGIN_VERSION, &host);
    if (*plugin == NULL)
        return FAIL(STATUS_SYSTEM,
            "device %s: %s is not of this program's version (%d): build both from one source", name,
            file, PLUGIN_VERSION);
    return STATUS_OK;
}
