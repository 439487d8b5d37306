/* The 1F1B order, for every stage of up to 8 and up to 12 micro-batches: complete, in order, no more in
 * flight than promised, no slot taken twice. Then whole pipelines in virtual time, where a message
 * passes only when both ends are at it: with one queue for each direction nothing blocks, and the idle
 * time is (P−1)/(A+P−1); with one queue for both, stages block one another, so two are needed.
 * ctest: timeout=30
 */
#include <math.h>
#include <string.h>

#include "shard/pipeline.h"
#include "tests/harness/harness.h"

enum { STAGES = 8, MICROS = 12, FORWARD_TIME = 1, BACKWARD_TIME = 2, OPS = 8 * MICROS };

static void test_order(const struct pipeline_place *place)
{
    int next[2] = {0, 0}, holder[STAGES], most = 0, slots = pipeline_slots(place);
    memset(holder, -1, sizeof holder);
    for (int i = 0; i < pipeline_steps(place); i++) {
        struct pipeline_step step = pipeline_step_at(place, i);
        CHECK(step.micro == next[step.work]++);
        if (!CHECK(step.slot >= 0 && step.slot < slots)) return;
        bool forward = step.work == PIPELINE_FORWARD;
        CHECK(holder[step.slot] == (forward ? -1 : step.micro));
        holder[step.slot] = forward ? step.micro : -1;
        int flying = next[PIPELINE_FORWARD] - next[PIPELINE_BACKWARD];
        most = flying > most ? flying : most;
    }
    int micros = place->micro_count, behind = place->stage_count - place->stage;
    CHECK(next[PIPELINE_FORWARD] == micros && next[PIPELINE_BACKWARD] == micros);
    CHECK(most == slots && most == (behind < micros ? behind : micros));
}

/* ---- whole pipelines ---- */

/* A message: to the next stage, or from it, about a micro-batch. Queues run their operations in order;
 * one passes when its other end is at the head of a queue too. */
struct message {
    int edge; /* between stage `edge` and the next */
    bool upward, sends;
    int micro;
};

struct queue {
    struct message op[OPS];
    int done, count;
    double time[OPS]; /* since when it has been there, later: when it passed */
};

struct worker {
    struct pipeline_place place;
    struct queue queue[2]; /* towards the last stage, and back */
    int at;                /* step */
    bool begun;            /* the step's receive has been queued */
    double now, busy;
};

static struct queue *queue_of(struct worker *worker, bool upward, bool two_queues)
{
    return &worker->queue[two_queues && upward];
}

static void put(struct worker *worker, struct message message, bool two_queues)
{
    struct queue *queue = queue_of(worker, message.upward, two_queues);
    queue->time[queue->count] = worker->now;
    queue->op[queue->count++] = message;
}

/* Goes on with the step if what it waits for is there. */
static bool work(struct worker *worker, bool two_queues)
{
    const struct pipeline_place *place = &worker->place;
    if (worker->at == pipeline_steps(place)) return false;
    struct pipeline_step step = pipeline_step_at(place, worker->at);
    bool forward = step.work == PIPELINE_FORWARD, began = !worker->begun;
    bool receives = forward ? place->stage > 0 : place->stage < place->stage_count - 1;
    bool sends = forward ? place->stage < place->stage_count - 1 : place->stage > 0;
    int from = forward ? place->stage - 1 : place->stage;
    int to = forward ? place->stage : place->stage - 1;
    struct queue *queue = queue_of(worker, !forward, two_queues);
    if (!worker->begun && receives)
        put(worker, (struct message){from, !forward, false, step.micro}, two_queues);
    worker->begun = true;
    if (queue->done < queue->count) return began; /* the receive, and the send before it */
    if (queue->count > 0) worker->now = fmax(worker->now, queue->time[queue->count - 1]);
    worker->now += forward ? FORWARD_TIME : BACKWARD_TIME;
    worker->busy += forward ? FORWARD_TIME : BACKWARD_TIME;
    if (sends) put(worker, (struct message){to, !forward, true, step.micro}, two_queues);
    worker->at++;
    worker->begun = false;
    return true;
}

/* Lets a message pass if both heads are its ends. */
static bool pass(struct worker *worker, struct worker *next)
{
    bool passed = false;
    for (int i = 0; i < 4; i++) {
        struct queue *a = &worker->queue[i / 2], *b = &next->queue[i % 2];
        if (a->done == a->count || b->done == b->count) continue;
        struct message *x = &a->op[a->done], *y = &b->op[b->done];
        if (x->edge != worker->place.stage || x->edge != y->edge) continue;
        if (x->upward != y->upward || x->sends == y->sends) continue;
        CHECK(x->micro == y->micro);
        double time = fmax(a->time[a->done], b->time[b->done]);
        a->time[a->done++] = b->time[b->done++] = time;
        passed = true;
    }
    return passed;
}

/* The time that the whole takes; 0 where stages block one another. */
static double simulate(int stages, int micros, bool two_queues)
{
    struct worker worker[STAGES] = {0};
    for (int s = 0; s < stages; s++) worker[s].place = (struct pipeline_place){s, stages, micros};
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (int s = 0; s < stages; s++) goes_on |= work(&worker[s], two_queues);
        for (int s = 0; s + 1 < stages; s++) goes_on |= pass(&worker[s], &worker[s + 1]);
    }
    double end = 0.0;
    for (int s = 0; s < stages; s++) {
        if (worker[s].at < 2 * micros) return 0.0;
        CHECK(worker[s].busy == micros * (FORWARD_TIME + BACKWARD_TIME));
        end = fmax(end, worker[s].now);
    }
    return end;
}

static void test_pipeline(int stages, int micros)
{
    const struct pipeline_place place = {0, stages, micros};
    double time = simulate(stages, micros, true), busy = micros * (FORWARD_TIME + BACKWARD_TIME);
    if (!CHECK_MSG(time > 0.0, "%d stages, %d micro-batches: blocked", stages, micros)) return;
    double idle = (time - busy) / time;
    CHECK_MSG(fabs(idle - pipeline_bubble(&place)) < 1e-12,
        "%d stages, %d micro-batches: %g, not %g", stages, micros, idle, pipeline_bubble(&place));
    if (stages > 1 && micros > 1) CHECK(simulate(stages, micros, false) == 0.0);
}

int main(void)
{
    for (int stages = 1; stages <= STAGES; stages++)
        for (int micros = 1; micros <= MICROS; micros++) {
            for (int s = 0; s < stages; s++)
                test_order(&(struct pipeline_place){s, stages, micros});
            test_pipeline(stages, micros);
        }
    return test_result();
}
