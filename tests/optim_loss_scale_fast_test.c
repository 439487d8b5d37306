/* Case T5, built with -ffast-math (CMakeLists.txt): an overflow is still seen, since its check looks at bits. The two files are
 * compiled here once more, with that flag.
 */
#ifndef __FAST_MATH__
#error "this test says nothing unless it is compiled with -ffast-math"
#endif
#include "optim/loss_scale.c"
#include "tests/optim_loss_scale_test.c"
