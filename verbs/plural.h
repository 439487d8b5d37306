/* plural: the ending of what is counted: 1 step, 2 steps.
 *
 *     printf("%d step%s", steps, PLURAL(steps));
 */
#ifndef VERBS_PLURAL_H
#define VERBS_PLURAL_H

#define PLURAL(count) ((count) == 1 ? "" : "s")

#endif
