/* clones: one binary for every x86-64 machine. A function marked VECTOR_CLONES is compiled for AVX-512, AVX2 and the baseline,
 * and the loader takes the widest that the processor has. All round alike: nothing is contracted (-ffp-contract=off).
 * Sanitizers run before the loader has chosen, so they get the baseline only.
 */
#ifndef VERBS_CLONES_H
#define VERBS_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(RINGZERO_SANITIZED)
#define VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTOR_CLONES
#endif

#endif
