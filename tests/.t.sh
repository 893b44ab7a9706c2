. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || exit 1
steps="run.max_steps=8 checkpoint.save_steps=2"
show() { grep -v "^---\|^Prim\|^a non\|^mpirun\|^the job\|^$\|Process\|Exit code" $out | tail -${1:-6}; echo "== code $code"; }
train 2 whole $steps zero.stage=2
train 2 parts $steps zero.stage=2 run.max_steps=4
train 2 parts $steps zero.stage=2; show
expect "resumed equals uninterrupted, bit for bit" same_model "$(newest whole)" "$(newest parts)"
expect "metrics without gap or repeat" close_losses whole parts 0
# branch
train 2 parts $steps zero.stage=2 checkpoint.resume="$tmp/parts/checkpoints/step-00000004.h5" run.max_steps=5 optimizer.lr=1e-3; show 10
ls -R $tmp/parts | head -30; losses parts; losses parts/left/after-step-00000004
train 2 parts $steps zero.stage=2 optimizer.lr=1e-3; show 8; losses parts
train 2 parts run.max_steps=3; show 3
train 2 parts run.max_steps=12 data.seq_len=16; show 3
train 2 parts run.max_steps=12 run.task=sft; show 3
train 2 parts run.max_steps=12 data.train=$tmp/valid.h5; show 3
train 2 parts run.max_steps=12 model.num_hidden_layers=3 model.rope_theta=5000; show 3
