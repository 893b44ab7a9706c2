/* mesh.c - arranges the ranks in a mesh of named axes, and finds the nodes of each axis.
 *
 * Every rank computes the coordinates of all ranks from one table, the node of each rank. No communication is needed.
 *
 * Teams are numbered by their lowest rank. If every rank is a team, every axis but those of a team orders the ranks by
 * their number. */
#include "internal.h"
#include <stdlib.h>

#define ROW(name, word, tokens) {#name, word, tokens},
static const struct team_axis {
    const char *name, *word;
    bool tokens;
} TEAM[DT_N_TEAM_AXES] = {DT_TEAM_AXES(ROW)};
enum { FIRST_OF_TEAM = DT_N_AXES - DT_N_TEAM_AXES };

dt_team dt_team_of(const dt_mesh_shape *shape)
{
#define SIZE(name, word, tokens) shape->name,
    dt_team t = {.size = {DT_TEAM_AXES(SIZE)}, .n = 1, .n_tokens = 1, .n_parts = 1};
    for (int k = 0; k < DT_N_TEAM_AXES; k++) {
        t.n *= t.size[k];
        *(TEAM[k].tokens ? &t.n_tokens : &t.n_parts) *= t.size[k];
    }
    return t;
}

int dt_mesh_data(const dt_mesh_shape *shape, int n) { return (int)(n / dt_team_of(shape).n); }
int dt_mesh_sum(const dt_mesh_shape *shape, int n) { return (int)(n / dt_team_of(shape).n_parts); }

/* Is this the first rank on all axes of a team, or on those that divide parameters? */
static bool is_first(const dt_mesh *m, bool of_parts)
{
    bool first = true;
    for (int k = 0; k < DT_N_TEAM_AXES; k++)
        first = first && (m->axis[FIRST_OF_TEAM + k].rank == 0 || (of_parts && TEAM[k].tokens));
    return first;
}

bool dt_comm_first_of_team(const dt_comm *comm) { return is_first(&comm->mesh, false); }
bool dt_comm_first_of_parts(const dt_comm *comm) { return is_first(&comm->mesh, true); }

/* ---- the mesh of a plan ------------------------------------------------------------------------------------------ */

/* per_node: members on a node; 0: each is on another. */
static dt_axis planned_axis(dt_comm *comm, const char *name, int size, int64_t per_node, int nranks)
{
    if (per_node < 1) per_node = 1;
    const int n_nodes = (int)dt_ceil_div(size, per_node);
    return (dt_axis){.name = name,
                     .size = size,
                     .comm = comm,
                     .n_nodes = n_nodes,
                     .local_size = (int)dt_min_i64(size, per_node),
                     .even_nodes = n_nodes == 1 || size % per_node == 0,
                     .in_order = size == nranks};
}

void dt_mesh_plan(dt_mesh *mesh, dt_comm *comm, int nranks, int ranks_per_node, const dt_mesh_shape *shape)
{
    const dt_team team = dt_team_of(shape);
    const int n_sum = (int)(nranks / team.n_parts);
    int64_t per_node = ranks_per_node;
    *mesh = (dt_mesh){.world = planned_axis(comm, "world", nranks, ranks_per_node, nranks)};
    mesh->data = planned_axis(comm, "data", (int)(nranks / team.n), ranks_per_node / team.n, nranks);
    mesh->sum = mesh->shard = planned_axis(comm, "sum", n_sum, ranks_per_node / team.n_parts, nranks);
    const int of_node = mesh->sum.local_size;
    if (shape->by_node) mesh->shard = planned_axis(comm, "shard", of_node, of_node, nranks);
    mesh->replicate = planned_axis(comm, "replicate", shape->by_node ? mesh->world.n_nodes : 1, 1, nranks);
    for (int k = 0; k < DT_N_TEAM_AXES; k++) {
        dt_axis *a = &mesh->axis[FIRST_OF_TEAM + k];
        *a = planned_axis(comm, TEAM[k].name, team.size[k], per_node, nranks);
        if (TEAM[k].tokens) a->rank = a->size - 1;
        per_node /= team.size[k];
    }
}

/* ---- an axis ----------------------------------------------------------------------------------------------------- */

/* Nodes are numbered by their first member. node: [nranks] of each rank of the run, below n_marks. */
static dt_err find_nodes(dt_axis *a, const int *node, int n_marks)
{
    int *number;
    DT_ALLOC(number, n_marks + a->size, "out of memory for a table of %d ranks", a->size);
    int *const n_on = number + n_marks; /* [size] members on each node */
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
    free(number);
    return DT_OK;
}

static dt_err map_members(dt_axis *a)
{
    const size_t n = (size_t)a->n_nodes * (size_t)a->max_local;
    DT_ALLOC(a->member_at, n, "out of memory for a table of %zu ranks", n);
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
    const int *coordinate, *same[DT_N_TEAM_AXES + 1];
    const dt_axis *window; /* of the same mesh; see dt_axis.window */
} axis_rule;

static bool is_member(const axis_rule *rule, int r, int me)
{
    for (int k = 0; k <= DT_N_TEAM_AXES; k++)
        if (rule->same[k] && rule->same[k][r] != rule->same[k][me]) return false;
    return true;
}

/* node: [nranks] any number of each rank's node, below nranks. */
static dt_err make_axis(const axis_rule *rule, dt_comm *comm, const int *node)
{
    dt_axis *a = rule->axis;
    *a = (dt_axis){.name = rule->name, .comm = comm, .rank = rule->coordinate[comm->rank]};
    for (int r = 0; r < comm->nranks; r++) a->size += is_member(rule, r, comm->rank);
    DT_ALLOC(a->member, 4 * (size_t)a->size, "out of memory for a table of %d ranks", a->size);
    DT_ALLOC(a->messages, a->size, "out of memory for a table of %d ranks", a->size);
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
    int *number;
    DT_ALLOC(number, comm->nranks, "out of memory for a table of %d ranks", comm->nranks);
    for (int r = 0; r < comm->nranks; r++) number[r] = r;
    const axis_rule rule = {.axis = &comm->mesh.world, .name = "world", .coordinate = number};
    const dt_err err = make_axis(&rule, comm, node_of);
    free(number);
    return err;
}

/** [nranks] each. */
typedef union coordinates {
    struct {
        int *team, *sum, *shard, *replicate;
        int *axis[DT_N_TEAM_AXES]; /* of the axes of a team */
    };
    int *all[4 + DT_N_TEAM_AXES];
} coordinates;
enum { N_COORDINATES = sizeof(coordinates) / sizeof(int *) };

/* Teams consist of neighbours in the order of nodes and local ranks. */
static void find_teams(const dt_axis *world, const dt_team *team, const coordinates *c)
{
    int *number = c->sum, n_teams = 0;
    int64_t at = 0;
    for (int d = 0; d < world->n_nodes; d++)
        for (int l = 0; l < world->max_local; l++) {
            const int r = dt_axis_at(world, d, l);
            int64_t within = at % team->n;
            if (r < 0) continue;
            c->team[r] = (int)(at++ / team->n);
            for (int k = 0; k < DT_N_TEAM_AXES; k++) {
                c->axis[k][r] = (int)(within % team->size[k]);
                within /= team->size[k];
            }
        }
    for (int r = 0; r < world->size; r++) number[r] = -1;
    for (int r = 0; r < world->size; r++) {
        int *mine = &number[c->team[r]];
        if (*mine < 0) *mine = n_teams++;
        c->team[r] = *mine;
    }
}

/* The number of rank r among those of its team that divide tokens. */
static int number_of_tokens(const dt_team *team, const coordinates *c, int r)
{
    int at = 0, stride = 1;
    for (int k = 0; k < DT_N_TEAM_AXES; k++) {
        if (!TEAM[k].tokens) continue;
        at += c->axis[k][r] * stride;
        stride *= team->size[k];
    }
    return at;
}

static void find_shards(const dt_axis *world, const dt_team *team, bool by_node, const coordinates *c)
{
    const int n_tokens = (int)team->n_tokens;
    for (int r = 0; r < world->size; r++) {
        const int at = number_of_tokens(team, c, r), on_node = (int)(world->local_of[r] / team->n);
        c->sum[r] = c->team[r] * n_tokens + at;
        c->replicate[r] = by_node ? world->node_of[r] : 0;
        c->shard[r] = by_node ? on_node * n_tokens + at : c->sum[r];
    }
}

/* Its members have the same coordinate `also`, and the same on the axes of a team: on all but axis `but`, or, without
 * `all`, on those that divide parameters. */
static axis_rule rule_of(dt_axis *axis, const char *name, const int *coordinate, const dt_axis *window,
                         const coordinates *c, const int *also, bool all, int but)
{
    axis_rule rule = {axis, name, coordinate, {also}, window};
    for (int k = 0, n = also ? 1 : 0; k < DT_N_TEAM_AXES; k++)
        if (k != but && (all || !TEAM[k].tokens)) rule.same[n++] = c->axis[k];
    return rule;
}

static dt_err make_axes(dt_comm *comm, dt_mesh *m, const dt_team *team, const coordinates *c)
{
    axis_rule rules[DT_N_AXES - 1] = {
        rule_of(&m->data, "data", c->team, team->n_tokens == 1 ? &m->sum : &m->data, c, NULL, true, -1),
        rule_of(&m->sum, "sum", c->sum, &m->sum, c, NULL, false, -1),
        rule_of(&m->shard, "shard", c->shard, &m->sum, c, c->replicate, false, -1),
        rule_of(&m->replicate, "replicate", c->replicate, NULL, c, c->shard, false, -1),
    };
    for (int k = 0; k < DT_N_TEAM_AXES; k++) {
        dt_axis *a = &m->axis[FIRST_OF_TEAM + k];
        rules[FIRST_OF_TEAM - 1 + k] = rule_of(a, TEAM[k].name, c->axis[k], a, c, c->team, true, k);
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        DT_TRY(make_axis(&rules[i], comm, comm->mesh.world.node_of));
        rules[i].axis->window = rules[i].window ? (int)(rules[i].window - m->axis) : -1;
    }
    m->world.window = (int)((team->n_parts == 1 ? &m->sum : &m->world) - m->axis);
    for (int i = 0; i < m->sum.size; i++) {
        const int r = m->sum.member[i];
        m->sum.block_of[i] = c->shard[r] * m->replicate.size + c->replicate[r];
    }
    return DT_OK;
}

enum { TEAM_TEXT = 64 * DT_N_TEAM_AXES };

/* "2 x 1 (tensor x context parallel)" */
static const char *team_text(const dt_team *team, char out[TEAM_TEXT])
{
    int n = 0;
    for (int k = 0; k < DT_N_TEAM_AXES; k++) n += snprintf(out + n, 16, "%s%d", k ? " x " : "", team->size[k]);
    for (int k = 0; k < DT_N_TEAM_AXES; k++) n += snprintf(out + n, 24, "%s%s", k ? " x " : " (", TEAM[k].word);
    snprintf(out + n, 16, " parallel)");
    return out;
}

static dt_err check_shape(const dt_comm *comm, const dt_team *team, bool by_node)
{
    const dt_axis *world = &comm->mesh.world;
    char text[TEAM_TEXT];
    for (int k = 0; k < DT_N_TEAM_AXES; k++) DT_EXPECT(team->size[k] >= 1);
    DT_CHECK(comm->nranks % team->n == 0, DT_ERR_USAGE, "%d rank%s cannot be divided into teams of %s", comm->nranks,
             comm->nranks == 1 ? "" : "s", team_text(team, text));
    DT_CHECK(!by_node || world->even_nodes, DT_ERR_USAGE,
             "the %d ranks are spread unevenly over %d nodes, from %d to %d per node: start the same number of ranks "
             "on each node",
             comm->nranks, world->n_nodes, world->min_local, world->max_local);
    DT_CHECK(!by_node || world->max_local % team->n == 0, DT_ERR_USAGE,
             "the %d rank%s of a node cannot be divided into teams of %s", world->max_local,
             world->max_local == 1 ? "" : "s", team_text(team, text));
    return DT_OK;
}

dt_err dt_comm_mesh(dt_comm *comm, const dt_mesh_shape *shape)
{
    const dt_team team = dt_team_of(shape);
    DT_EXPECT(comm && !comm->ops);
    for (int i = 1; i < DT_N_AXES; i++) /* of the mesh so far */
        DT_EXPECT(comm->mpi->group[i] == MPI_COMM_NULL && comm->mpi->check[i] == MPI_COMM_NULL);
    DT_TRY(check_shape(comm, &team, shape->by_node));
    const size_t n = (size_t)comm->nranks;
    int *all;
    DT_ALLOC(all, N_COORDINATES * n, "out of memory for a table of %d ranks", comm->nranks);
    coordinates c;
    for (size_t i = 0; i < N_COORDINATES; i++) c.all[i] = all + i * n;
    find_teams(&comm->mesh.world, &team, &c);
    find_shards(&comm->mesh.world, &team, shape->by_node, &c);
    dt_mesh mesh = {.world = comm->mesh.world};
    const dt_err err = make_axes(comm, &mesh, &team, &c);
    if (err == DT_OK) {
        const dt_mesh before = comm->mesh;
        comm->mesh = mesh, mesh = before;
    }
    free_axes(mesh.axis + 1, DT_N_AXES - 1);
    free(all);
    return err;
}
