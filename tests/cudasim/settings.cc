/* settings: read and checked. */
#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "shared.h"

namespace cudasim {
namespace {

const architecture architectures[] = {
    {75, 1024, 16, 64 << 10, 64 << 10},
    {80, 2048, 32, 164 << 10, 163 << 10},
    {86, 1536, 16, 100 << 10, 99 << 10},
    {89, 1536, 24, 100 << 10, 99 << 10},
    {90, 2048, 32, 228 << 10, 227 << 10},
    {100, 2048, 32, 228 << 10, 227 << 10},
    {120, 1536, 24, 100 << 10, 99 << 10},
};

bool wrong(const char *name, const char *value, const char *expected)
{
    fprintf(stderr, "cudasim: %s is \"%s\"; expected %s\n", name, value, expected);
    return false;
}

bool number(double &into, const char *name, double least, double most, const char *expected)
{
    const char *text = getenv(name);
    if (text == nullptr || *text == '\0') return true;
    char *end;
    double value = strtod(text, &end);
    if (*end != '\0' || !(value >= least && value <= most)) return wrong(name, text, expected);
    into = value;
    return true;
}

bool read_order(settings &into)
{
    const char *text = getenv("CUDASIM_ORDER");
    if (text == nullptr || *text == '\0' || strcmp(text, "forward") == 0) return true;
    if (strcmp(text, "reverse") == 0) {
        into.order = thread_order::reverse;
        return true;
    }
    char *end = nullptr;
    if (strncmp(text, "random", 6) == 0) {
        into.order = thread_order::random;
        if (text[6] == '\0') return true;
        if (text[6] == ':') into.seed = strtoull(text + 7, &end, 10);
    }
    return (end != nullptr && *end == '\0') ||
           wrong("CUDASIM_ORDER", text, "forward, reverse, random or random:SEED");
}

bool read_architecture(settings &into)
{
    double found = 75;
    if (!number(found, "CUDASIM_ARCH", 0, 1000, "75, 80, 86, 89, 90, 100 or 120")) return false;
    for (const architecture &each : architectures)
        if (each.number == (int)found) into.gpu = &each;
    return into.gpu != nullptr ||
           wrong("CUDASIM_ARCH", getenv("CUDASIM_ARCH"), "75, 80, 86, 89, 90, 100 or 120");
}

/* CUDASIM_REFUSE: what this machine shall not be able to do, to see a program cope. */
bool read_refusals(settings &into)
{
    const char *text = getenv("CUDASIM_REFUSE");
    char words[64];
    if (text == nullptr) return true;
    const char *expected = "some of peer,ipc,driver,new_driver,algorithm";
    if (snprintf(words, sizeof words, "%s", text) >= (int)sizeof words)
        return wrong("CUDASIM_REFUSE", text, expected);
    for (char *rest = words, *word; (word = strsep(&rest, ",")) != nullptr;) {
        if (strcmp(word, "peer") == 0) into.peers = false;
        else if (strcmp(word, "ipc") == 0) into.ipc = false;
        else if (strcmp(word, "algorithm") == 0) into.algorithms = false;
        else if (strcmp(word, "driver") == 0) into.driver_version = 0;
        else if (strcmp(word, "new_driver") == 0) into.driver_version = 11040;
        else if (*word != '\0') return wrong("CUDASIM_REFUSE", text, expected);
    }
    return true;
}

} // namespace

bool settings_read(settings &into)
{
    double devices = 1, resident = 64, delay = 0, watchdog = 30, megabytes = 4096;
    into = settings();
    into.driver_version = CUDART_VERSION;
    into.seed = 1;
    into.peers = into.ipc = into.algorithms = true;
    into.processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    bool fine =
        number(devices, "CUDASIM_DEVICES", 0, DEVICE_MAX, "a number of devices from 0 to 16") &&
        number(resident, "CUDASIM_RESIDENT", 1, 4096, "a number of blocks from 1 to 4096") &&
        number(delay, "CUDASIM_DELAY_US", 0, 1e6, "microseconds from 0 to 1000000") &&
        number(watchdog, "CUDASIM_WATCHDOG_S", 0.01, 1e6, "seconds, more than 0.01") &&
        number(megabytes, "CUDASIM_MEMORY_MB", 1, 65536, "MiB from 1 to 65536") &&
        read_order(into) && read_architecture(into) && read_refusals(into);
    into.devices = (int)devices;
    into.resident_blocks = (int)resident;
    into.delay_us = (unsigned)delay;
    into.watchdog_s = watchdog;
    into.memory_bytes = (size_t)megabytes << 20;
    return fine;
}

} // namespace cudasim
