# mesh_common.sh - source it after train_common.sh: runs on a mesh, compared with run "one" of one rank.
same() { # NAME DIR: as run "one"
    expect "$1: losses" close_losses one "$2" 2e-5
    expect "$1: gradient norms" close_numbers one "$2" grad_norm 1e-4
    expect "$1: weights" close_weights one "$2" 3e-4
}
two_ranks() { # KEY: at every stage, with validation
    train 1 one checkpoint.save_steps=3 data.validation="$tmp/valid.h5" data.validation_steps=3
    for stage in 0 1 2 3; do
        train 2 "two$stage" "$1=2" zero.stage=$stage comm.check=true data.validation="$tmp/valid.h5" data.validation_steps=3
        same "2 ranks, stage $stage" "two$stage"
        expect "2 ranks, stage $stage: the plan" as_planned
    done
    expect "validation" close_numbers one two0 validation_loss 2e-5
}
two_nodes() { # KEY
    export DTRAIN_FAKE_NODES=2
    train 4 groups "$1=2" zero.stage=3 zero.shard_group=node comm.check=true
    same "2 x 2 ranks on 2 nodes" groups
    expect "2 x 2 ranks on 2 nodes: the plan" as_planned
    unset DTRAIN_FAKE_NODES
}
moves() { # KEY N: save on a mesh, resume on one rank, and the other way round on N
    train 4 moves "$1=2" zero.stage=3 checkpoint.save_steps=3 run.max_steps=3
    train 1 moves checkpoint.save_steps=3 run.max_steps=6
    same "from a mesh to one rank" moves
    train 1 back checkpoint.save_steps=3 run.max_steps=3
    train "$2" back "$1=$2" zero.stage=1 checkpoint.save_steps=3 run.max_steps=6
    same "from one rank to $2" back
}
