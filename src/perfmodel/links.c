/* links.c - the figures of NCCL's performance model (tuning.cc at commit b6475625), for rings on Hopper with hosts of
 * Intel.
 *
 * Latencies are those of NVLink, and of InfiniBand with GPUDirect. Posting a message to the network takes the host a
 * microsecond, and three in the protocol Simple. In a ring over several nodes no step is faster than that.
 *
 * Fractions  NVLink: 350 GB/s of 450 on an H100 (NVIDIA/nccl issue 1281), 235 of 300 on an A100 (the limit in tuning.cc
 *            at commit 01afd20a). Network: 46 to 48 GB/s of 50 with an NDR adapter (NVIDIA/nccl-tests issue 290).
 *
 * Interference  Kernels that overlap exchanges took 18.9 % longer, and a step without overlap took 10.2 % longer than
 *            one with it: means over training on four GPUs of a node, among them A100 and H100 (Lee et al., 2025,
 *            arXiv 2507.03114). If kernels alone take 1 and hide all, exchanges take 1.189 x 1.102 - 1. NCCL's
 *            kernels occupy multiprocessors and memory bandwidth. The number of its channels follows the rate of the
 *            link: two for a peer on the network (NCCL_NCHANNELS_PER_NET_PEER, paths.cc), 24 for NVLink. A byte
 *            therefore costs the same over either link. */
#include "dtrain/perfmodel/links.h"

#define US 1e-6
#define GB 1e9

enum { LL, LL128, SIMPLE, N_PROTOCOLS };
static const struct {
    double base, near, far; /* latencies: of the start, of a step over NVLink, of a step over the network */
    double post;            /* time to post a message to the network */
    double share[2];        /* of the bandwidth, on one node and on several */
    double most[2];         /* limit of the bandwidth of NVLink, and of a node's adapters together; 0: none */
} PROTOCOLS[N_PROTOCOLS] = {
    [LL] = {6.6 * US, 0.6 * US, 2.7 * US, 1 * US, {1 / 3., 1 / 4.}, {87.7 * GB, 20.4 * GB}},
    [LL128] = {14 * US, 1.9 * US, 4 * US, 1 * US, {0.92, 0.92}, {0}},
    [SIMPLE] = {8.4 * US, 3.4 * US, 14 * US, 3 * US, {1, 1}, {0}},
};

double dt_link_fraction(bool network) { return network ? 0.94 : 0.78; }

double dt_exchange_interference(const dt_chip *chip, const dt_exchange *x, double node, double net)
{
    const bool forwards = x->kind == DT_RING && node > 0; /* `node` includes the bytes from other nodes */
    const double slower = 0.189, exchanges = 1.189 * 1.102 - 1, nbytes = forwards ? node : node + net;
    return slower / exchanges * nbytes / (chip->nvlink_rate * dt_link_fraction(false));
}

static double longest(double a, double b) { return a > b ? a : b; }
static double whole(dt_exchange_time t) { return t.latency + longest(t.node, t.net); }

/* t: the times of the bytes at full bandwidth. */
static dt_exchange_time ring(const dt_chip *chip, const dt_exchange *x, int p, dt_exchange_time t)
{
    const bool several = x->far > 0;
    const double local_nranks = x->near / (x->far + 1) + 1, most = PROTOCOLS[p].most[several],
                 bandwidth = several ? local_nranks * chip->network_rate : chip->nvlink_rate,
                 step = several ? longest(PROTOCOLS[p].near, PROTOCOLS[p].post) : PROTOCOLS[p].near;
    double share = PROTOCOLS[p].share[several];
    if (most > 0 && most < share * bandwidth) share = most / bandwidth;
    return (dt_exchange_time){.latency = PROTOCOLS[p].base + x->near * step + x->far * PROTOCOLS[p].far,
                              .node = t.node / share,
                              .net = t.net / share};
}

/* Messages to different ranks of the node proceed at the same time. Those to other nodes are posted in turn. */
static double messages_latency(const dt_exchange *x)
{
    const double first = x->far > 0 ? PROTOCOLS[SIMPLE].far : 0;
    return x->rounds * (PROTOCOLS[SIMPLE].base + x->near * PROTOCOLS[SIMPLE].near + first) +
           x->far * PROTOCOLS[SIMPLE].post;
}

dt_exchange_time dt_exchange_seconds(const dt_chip *chip, const dt_exchange *x, double node, double net, bool fractions)
{
    dt_exchange_time t = {.node = node / chip->nvlink_rate, .net = net / chip->network_rate};
    if (fractions) t.node /= dt_link_fraction(false), t.net /= dt_link_fraction(true);
    if (x->kind == DT_MESSAGES) t.latency = messages_latency(x);
    if (x->kind != DT_RING) return t;
    dt_exchange_time best = ring(chip, x, SIMPLE, t);
    for (int p = 0; p < SIMPLE; p++) {
        const dt_exchange_time other = ring(chip, x, p, t);
        if (whole(other) < whole(best)) best = other;
    }
    return best;
}
