/* A simulated machine with two 16 GiB GPUs. The state is in a file, so several processes share them.
 *
 * Counts memory as measured on a real driver (h200.json): a context takes 518 MiB, small allocations are packed into
 * 2 MiB blocks, pools grow by 32 MiB. As with the real driver, a process's memory lives as long as its file descriptor:
 * it is freed when the process is killed, and a forked child keeps it. FAKE_CARD is the path of the file. */
#ifndef FAKE_CARD_H
#define FAKE_CARD_H

#include <stdbool.h>
#include <stdint.h>

#define MIB ((uint64_t)1 << 20)
enum { CARDS = 2, CLIENTS = 1024 };
#define CARD_TOTAL (16384 * MIB) /* what CUDA reports: total minus reserved */
#define CARD_RESERVED (100 * MIB)
#define CONTEXT_BYTES (518 * MIB)

struct client { int32_t used, pid; uint64_t bytes[CARDS], end[CARDS]; };
struct card { uint64_t busy_until[CARDS], launches[CARDS], limit[CARDS]; struct client client[CLIENTS]; };

bool card_take(int card, uint64_t bytes); /* false: the GPU is full */
void card_give(int card, uint64_t bytes);
uint64_t card_used(int card);             /* by processes that are alive */
int card_clients(int card, int32_t *pids, uint64_t *bytes, int most);
void card_work(int card, uint64_t nanoseconds); /* queues work of this process */
void card_wait(int card);                       /* until the work of this process is done */
void card_uuid(int card, uint8_t uuid[16]);
void card_set_limit(int card, uint64_t bytes);
uint64_t card_get_limit(int card);

#endif
