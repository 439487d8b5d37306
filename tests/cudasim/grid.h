/* grid: one launch of a kernel while it runs: its blocks on the OS threads that the device has
 * room for. */
#ifndef CUDASIM_GRID_H
#define CUDASIM_GRID_H

#include "shared.h"

namespace cudasim {

struct grid {
    const item *what;
    int device;
    unsigned total, step, offset; /* blocks start in the order (i · step + offset) mod total */
    counter next, running;        /* blocks begun; OS threads at work */
    char begun, ended;            /* for ThreadSanitizer: orders of the launch and the threads */
};

/* Runs all blocks, and returns when they have ended. Called by the worker of the stream. */
void grid_run(const item &what, int device);

/* A block waits for something: another block of its grid may start, if the device has room. */
void grid_give_way(grid &grid);

} // namespace cudasim
#endif
