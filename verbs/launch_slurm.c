/* launch_slurm: rank 0's place without an exchange. srun puts task 0 on the first node of the step (unless told
 * --distribution=arbitrary), every task knows the node list, and the port follows from the ids of job and step:
 *
 *   SLURM_STEP_NODELIST  "rack[02-04]n1,login"  ─►  rack02n1
 *   SLURM_JOB_ID.SLURM_STEP_ID  "4711.0"        ─►  FNV-1a ─►  port 15000 + hash mod 20000, job id = hash
 *
 * SLURM_LAUNCH_NODE_IPADDR is not it: that is where srun runs. Keeps: two steps that meet at one port refuse
 * each other by their job ids.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/launch_internal.h"

#define PORT_FIRST 15000
#define PORT_COUNT 20000

bool launch_slurm_first_host(char *host, size_t host_bytes, const char *list)
{
    size_t used = 0;
    for (const char *c = list; *c != '\0' && *c != ','; c++) {
        if (*c == '[') { /* the first of the numbers, with its zeros */
            size_t digits = strcspn(c + 1, "-,]"), whole = strcspn(c + 1, "]");
            if (c[1 + whole] == '\0' || used + digits >= host_bytes) return false;
            memcpy(host + used, c + 1, digits);
            used += digits;
            c += 1 + whole;
        } else {
            if (used + 1 >= host_bytes) return false;
            host[used++] = *c;
        }
    }
    host[used] = '\0';
    return used > 0;
}

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash != 0 ? hash : 1;
}

enum status launch_slurm_derive(struct bootstrap_config *config)
{
    const char *list = getenv("SLURM_STEP_NODELIST"), *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (list == NULL) list = getenv("SLURM_JOB_NODELIST");
    if (list == NULL || job == NULL || step == NULL)
        return FAIL(STATUS_INVALID,
            "%s is not set, though SLURM_PROCID is; expected all that srun sets: start ranks by srun, or set "
            "MASTER_ADDR and MASTER_PORT",
            list == NULL ? "SLURM_STEP_NODELIST" : job == NULL ? "SLURM_JOB_ID" : "SLURM_STEP_ID");
    bool one_host = config->local_nranks > 0 && config->local_nranks == config->nranks;
    if (one_host) snprintf(config->address, sizeof config->address, "127.0.0.1");
    else if (!launch_slurm_first_host(config->address, sizeof config->address, list))
        return FAIL(STATUS_INVALID,
            "Slurm's node list \"%.100s\" does not begin with a node; expected one such as node[01-04]: set "
            "MASTER_ADDR and MASTER_PORT",
            list);
    char ids[128];
    snprintf(ids, sizeof ids, "%s.%s", job, step);
    config->job = hash_text(ids);
    config->port = PORT_FIRST + (int)(config->job % PORT_COUNT);
    return STATUS_OK;
}
