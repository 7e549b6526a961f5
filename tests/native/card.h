/* A make-believe machine with two 16 GiB cards, kept in a file so that several processes share them.
 *
 * Counts memory as the real driver was seen to (h200.json): a context is 518 MiB, small pieces are packed into 2 MiB
 * blocks, pools grow by 32 MiB. What a process holds lives as long as its descriptor of the file, like the driver's
 * own: a kill gives it back, a forked child keeps it. FAKE_CARD names the file. */
#ifndef FAKE_CARD_H
#define FAKE_CARD_H

#include <stdbool.h>
#include <stdint.h>

#define MIB ((uint64_t)1 << 20)
enum { CARDS = 2, CLIENTS = 1024 };
#define CARD_TOTAL (16384 * MIB) /* what CUDA reports: total less reserved */
#define CARD_RESERVED (100 * MIB)
#define CONTEXT_BYTES (518 * MIB)

struct client { int32_t used, pid; uint64_t bytes[CARDS], end[CARDS]; };
struct card { uint64_t busy_until[CARDS], launches[CARDS], limit[CARDS]; struct client client[CLIENTS]; };

bool card_take(int card, uint64_t bytes); /* false: the card is full */
void card_give(int card, uint64_t bytes);
uint64_t card_used(int card);             /* by the living */
int card_clients(int card, int32_t *pids, uint64_t *bytes, int most);
void card_work(int card, uint64_t nanoseconds); /* queues work of ours */
void card_wait(int card);                       /* until our work is done */
void card_uuid(int card, uint8_t uuid[16]);
void card_set_limit(int card, uint64_t bytes);
uint64_t card_get_limit(int card);

#endif
