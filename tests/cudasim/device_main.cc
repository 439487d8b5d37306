/* device_main: the device process. The library does all; built beside it, with the sanitizers that
 * the kernels are built with. */
#include "process.h"

int main()
{
    cudasim::device_main();
}
