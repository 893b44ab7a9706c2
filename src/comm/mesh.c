/* mesh.c - arranges the ranks in a mesh of named axes, and finds the nodes of each axis.
 *
 * Every rank computes the coordinates of all ranks from one table, the node of each rank. No communication is needed.
 *
 * A team is tp * cp ranks, neighbours on a node, that work on the same samples. Teams are numbered by their lowest
 * rank. With tp = cp = 1 every rank is a team, and every axis but tp and cp orders the ranks by their number. */
#include "internal.h"
#include <stdlib.h>

/* ---- an axis ----------------------------------------------------------------------------------------------------- */

static dt_err out_of_memory(int n) { return dt_fail(DT_ERR_MEMORY, "out of memory for a table of %d ranks", n); }

/* Nodes are numbered by their first member. node: [nranks] of each rank of the run, below n_marks. */
static dt_err find_nodes(dt_axis *a, const int *node, int n_marks)
{
    int *number = calloc((size_t)n_marks, sizeof *number), *n_on = calloc((size_t)a->size, sizeof *n_on);
    if (number && n_on) {
        for (int i = 0; i < a->size; i++) {
            int *mine = &number[node[a->member[i]]]; /* 1 + the node's number; 0: not yet seen */
            if (*mine == 0) *mine = ++a->n_nodes;
            a->node_of[i] = *mine - 1;
            a->local_of[i] = n_on[*mine - 1]++;
        }
        a->max_local = a->min_local = n_on[0];
        for (int d = 1; d < a->n_nodes; d++) {
            if (n_on[d] > a->max_local) a->max_local = n_on[d];
            if (n_on[d] < a->min_local) a->min_local = n_on[d];
        }
        a->even_nodes = a->max_local == a->min_local;
        a->node = a->node_of[a->rank], a->local_rank = a->local_of[a->rank], a->local_size = n_on[a->node];
    }
    const bool room = number && n_on;
    free(number);
    free(n_on);
    return room ? DT_OK : out_of_memory(a->size);
}

static dt_err map_members(dt_axis *a)
{
    const size_t n = (size_t)a->n_nodes * (size_t)a->max_local;
    a->member_at = malloc(n * sizeof *a->member_at);
    if (!a->member_at) return out_of_memory((int)n);
    for (size_t i = 0; i < n; i++) a->member_at[i] = -1;
    for (int i = 0; i < a->size; i++)
        a->member_at[(size_t)a->node_of[i] * (size_t)a->max_local + (size_t)a->local_of[i]] = i;
    return DT_OK;
}

/** An axis. Its members have the same values as this rank in the coordinates `same` (NULL: any value). A third
 *  coordinate gives their rank on the axis. A coordinate is a table with one value for each rank of the run. */
typedef struct axis_rule {
    dt_axis *axis;
    const char *name;
    const int *same[2], *coordinate;
    const dt_axis *window; /* of the same mesh; see dt_axis.window */
} axis_rule;

static bool is_member(const axis_rule *rule, int r, int me)
{
    for (int k = 0; k < 2; k++)
        if (rule->same[k] && rule->same[k][r] != rule->same[k][me]) return false;
    return true;
}

/* node: [nranks] any number of each rank's node, below nranks. */
static dt_err make_axis(const axis_rule *rule, dt_comm *comm, const int *node)
{
    dt_axis *a = rule->axis;
    *a = (dt_axis){.name = rule->name, .comm = comm, .rank = rule->coordinate[comm->rank]};
    for (int r = 0; r < comm->nranks; r++) a->size += is_member(rule, r, comm->rank);
    a->member = malloc(4 * (size_t)a->size * sizeof *a->member);
    a->messages = malloc((size_t)a->size * sizeof *a->messages);
    if (!a->member || !a->messages) return out_of_memory(a->size);
    a->block_of = a->member + a->size, a->node_of = a->block_of + a->size, a->local_of = a->node_of + a->size;
    for (int r = 0; r < comm->nranks; r++)
        if (is_member(rule, r, comm->rank)) a->member[rule->coordinate[r]] = r;
    a->in_order = a->size == comm->nranks;
    for (int i = 0; i < a->size; i++) a->block_of[i] = i, a->in_order = a->in_order && a->member[i] == i;
    DT_TRY(find_nodes(a, node, comm->nranks));
    return map_members(a);
}

static void free_axes(dt_axis *axis, int n)
{
    for (int i = 0; i < n; i++) {
        free(axis[i].member);
        free(axis[i].member_at);
        free(axis[i].messages);
        axis[i] = (dt_axis){0};
    }
}

/* ---- the mesh ---------------------------------------------------------------------------------------------------- */

void dt_mesh_free(dt_comm *comm) { free_axes(comm->mesh.axis, DT_N_AXES); }

dt_err dt_mesh_world(dt_comm *comm, const int *node_of)
{
    int *number = malloc((size_t)comm->nranks * sizeof *number);
    if (!number) return out_of_memory(comm->nranks);
    for (int r = 0; r < comm->nranks; r++) number[r] = r;
    const axis_rule rule = {&comm->mesh.world, "world", {NULL, NULL}, number, NULL};
    const dt_err err = make_axis(&rule, comm, node_of);
    free(number);
    return err;
}

/** [nranks] each. */
typedef struct coordinates {
    int *team, *cp, *tp;
    int *sum, *shard, *replicate;
} coordinates;
enum { N_COORDINATES = sizeof(coordinates) / sizeof(int *) };

/* Teams consist of neighbours in the order of nodes and local ranks. */
static void find_teams(const dt_axis *world, const dt_mesh_shape *shape, const coordinates *c)
{
    const int inner = shape->tp * shape->cp;
    int *number = c->sum, n_teams = 0, at = 0;
    for (int d = 0; d < world->n_nodes; d++)
        for (int l = 0; l < world->max_local; l++) {
            const int r = dt_axis_at(world, d, l);
            if (r < 0) continue;
            c->team[r] = at / inner, c->cp[r] = at % inner / shape->tp, c->tp[r] = at % shape->tp;
            at++;
        }
    for (int r = 0; r < world->size; r++) number[r] = -1;
    for (int r = 0; r < world->size; r++) {
        int *mine = &number[c->team[r]];
        if (*mine < 0) *mine = n_teams++;
        c->team[r] = *mine;
    }
}

static void find_shards(const dt_axis *world, const dt_mesh_shape *shape, const coordinates *c)
{
    for (int r = 0; r < world->size; r++) {
        c->sum[r] = c->team[r] * shape->cp + c->cp[r];
        c->replicate[r] = shape->by_node ? world->node_of[r] : 0;
        c->shard[r] = shape->by_node ? world->local_of[r] / (shape->tp * shape->cp) * shape->cp + c->cp[r] : c->sum[r];
    }
}

static dt_err make_axes(dt_comm *comm, dt_mesh *m, const dt_mesh_shape *shape, const coordinates *c)
{
    const axis_rule rules[] = {
        {&m->data, "data", {c->tp, c->cp}, c->team, shape->cp == 1 ? &m->sum : &m->data},
        {&m->sum, "sum", {c->tp, NULL}, c->sum, &m->sum},
        {&m->shard, "shard", {c->tp, c->replicate}, c->shard, &m->sum},
        {&m->replicate, "replicate", {c->tp, c->shard}, c->replicate, NULL},
        {&m->cp, "cp", {c->team, c->tp}, c->cp, &m->cp},
        {&m->tp, "tp", {c->team, c->cp}, c->tp, &m->tp},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        DT_TRY(make_axis(&rules[i], comm, comm->mesh.world.node_of));
        rules[i].axis->window = rules[i].window ? (int)(rules[i].window - m->axis) : -1;
    }
    m->world.window = (int)((shape->tp == 1 ? &m->sum : &m->world) - m->axis);
    for (int i = 0; i < m->sum.size; i++) {
        const int r = m->sum.member[i];
        m->sum.block_of[i] = c->shard[r] * m->replicate.size + c->replicate[r];
    }
    return DT_OK;
}

static dt_err check_shape(const dt_comm *comm, const dt_mesh_shape *shape)
{
    const dt_axis *world = &comm->mesh.world;
    const int64_t inner = (int64_t)shape->tp * shape->cp;
    DT_EXPECT(shape->tp >= 1 && shape->cp >= 1);
    DT_CHECK(comm->nranks % inner == 0, DT_ERR_USAGE,
             "%d rank%s cannot be divided into teams of %d x %d (tensor x context parallel)", comm->nranks,
             comm->nranks == 1 ? "" : "s", shape->tp, shape->cp);
    DT_CHECK(!shape->by_node || world->even_nodes, DT_ERR_USAGE,
             "the %d ranks are spread unevenly over %d nodes, from %d to %d per node: start the same number of ranks "
             "on each node",
             comm->nranks, world->n_nodes, world->min_local, world->max_local);
    DT_CHECK(!shape->by_node || world->max_local % inner == 0, DT_ERR_USAGE,
             "the %d rank%s of a node cannot be divided into teams of %d x %d (tensor x context parallel)",
             world->max_local, world->max_local == 1 ? "" : "s", shape->tp, shape->cp);
    return DT_OK;
}

dt_err dt_comm_mesh(dt_comm *comm, const dt_mesh_shape *shape)
{
    DT_EXPECT(comm && !comm->ops);
    for (int i = 1; i < DT_N_AXES; i++) /* of the mesh so far */
        DT_EXPECT(comm->mpi->group[i] == MPI_COMM_NULL && comm->mpi->check[i] == MPI_COMM_NULL);
    DT_TRY(check_shape(comm, shape));
    const size_t n = (size_t)comm->nranks;
    int *all = malloc(N_COORDINATES * n * sizeof *all);
    if (!all) return out_of_memory(comm->nranks);
    const coordinates c = {all, all + n, all + 2 * n, all + 3 * n, all + 4 * n, all + 5 * n};
    find_teams(&comm->mesh.world, shape, &c);
    find_shards(&comm->mesh.world, shape, &c);
    dt_mesh mesh = {.world = comm->mesh.world};
    const dt_err err = make_axes(comm, &mesh, shape, &c);
    if (err == DT_OK) {
        const dt_mesh before = comm->mesh;
        comm->mesh = mesh, mesh = before;
    }
    free_axes(mesh.axis + 1, DT_N_AXES - 1);
    free(all);
    return err;
}
