/* machine_off: stands for machine_hwloc.c where hwloc was not found at build. */
#include "verbs/machine.h"

bool machine_can_read(void)
{
    return false;
}

enum status machine_read(struct machine **machine, enum machine_source source, const char *text,
    enum machine_depth depth)
{
    (void)source;
    (void)text;
    (void)depth;
    *machine = NULL;
    return FAIL(STATUS_SYSTEM, "this ringzero was built without hwloc, which describes machines: "
                               "apt install libhwloc-dev, and build again");
}
