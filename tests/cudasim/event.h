/* event: the host's side of an event; what passes lies in an event_cell, which other processes
 * may see too. */
#ifndef CUDASIM_EVENT_H
#define CUDASIM_EVENT_H

#include "process.h"

namespace cudasim {

struct capture;

struct event {
    int region, index, device;
    unsigned flags;
    capture *recorded_in; /* the capture of its latest record, or NULL */
    int stream;           /* of its latest record here; −1: none */
    uint32_t ticket;
};

event_cell &cell_of(const event &event);
/* An event that another process made; it lies in that region. */
event *event_import(int region, int index);

} // namespace cudasim
#endif
