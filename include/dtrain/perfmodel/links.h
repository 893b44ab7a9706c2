/* links.h - time of an exchange between GPUs: latency and bandwidth of NCCL's algorithms over NVLink and a network.
 * Every function is Local.
 *
 * Source  NCCL's own performance model (NVIDIA/nccl, src/graph/tuning.cc): a ring of N ranks on M nodes takes N - M
 *         steps inside nodes and M - 1 steps between nodes. Each protocol has a latency of the start and of each step,
 *         and a share of the bandwidth. */
#ifndef DTRAIN_LINKS_H
#define DTRAIN_LINKS_H

#include "dtrain/perfmodel/chips.h"

/** How an exchange proceeds. */
typedef enum dt_exchange_kind {
    DT_NO_EXCHANGE,
    DT_RING,    /* NCCL's ring */
    DT_MESSAGES /* a group of sends and receives, in NCCL's protocol Simple */
} dt_exchange_kind;

/** Shape of an exchange.
 *
 *            DT_RING                                      DT_MESSAGES
 *  near      steps inside nodes                           messages of a rank to each neighbour in its node, in a round
 *  far       steps between nodes                          messages of a rank to ranks of other nodes, in all rounds
 *  rounds    1                                            groups of messages, one after the other */
typedef struct dt_exchange {
    dt_exchange_kind kind;
    double near, far, rounds;
} dt_exchange;

/** Time of an exchange, in seconds. Bytes over NVLink and over the network move at the same time. */
typedef struct dt_exchange_time {
    double latency, node, net;
} dt_exchange_time;

/** Time of an exchange of a rank. A ring uses the protocol that is fastest for these bytes.
 *
 *  node, net  bytes that the rank sends over NVLink and over its network adapter, of all rounds
 *  fractions  false: the links reach the rates of the chip's table; true: the measured fractions of them
 *             (dt_link_fraction) */
dt_exchange_time dt_exchange_seconds(const dt_chip *chip, const dt_exchange *x, double node, double net,
                                     bool fractions);
/** Fraction of the rate of NVLink, or of a network adapter, that NCCL's collectives reach with large messages. */
double dt_link_fraction(bool network);
/** Seconds that an exchange takes from kernels that run at the same time on the same GPU. Parameters as above. */
double dt_exchange_interference(const dt_chip *chip, const dt_exchange *x, double node, double net);

#endif
