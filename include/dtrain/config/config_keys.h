/* config_keys.h - the table of all configuration keys: section, key, default, limits, unit, help. See config.h.
 *
 *     INT, REAL   (section, key, default, minimum, maximum, unit, help)
 *     BOOL        (section, key, default, help)
 *     ENUM        (section, key, default, words, help)
 *     TEXT        (section, key, default, help)
 *     MAYBE       (section, key, type, minimum, maximum, words, unit, help): an optional value of type integer, number,
 *                 boolean or word. words: the allowed words of type word. For the other types it is one word that is
 *                 allowed in addition, or "". The field holds the value as text, "" if the key is not set. */
#ifndef DTRAIN_CONFIG_KEYS_H
#define DTRAIN_CONFIG_KEYS_H

#include "dtrain/config/eval_keys.h"
#include "dtrain/config/model_types.h"
#include "dtrain/config/task_keys.h"

/** The sinks of log.report_to, in the order in which they get a record: X for the first, Y for the others. Each is a
 *  table dt_sink_NAME in src/report (sink.h). */
#define DT_SINKS(X, Y) X(stdout) Y(jsonl) Y(csv) Y(tensorboard) Y(prometheus)
#define DT_SINK_NAME(name) #name
#define DT_NEXT_SINK_NAME(name) ", " #name
#define DT_SINK_NAMES DT_SINKS(DT_SINK_NAME, DT_NEXT_SINK_NAME)

/* clang-format off */
/** The tasks: dt_task_NAME is the table of one (task.h). */
#define DT_TASK_LIST(TASK) \
    TASK(pretrain) TASK(sft) TASK(rm) TASK(dpo) TASK(kto) TASK(distill) TASK(ppo) TASK(grpo) \
    TASK(classify) TASK(embed) TASK(eval)
/** The kinds of samples that tasks read (dataset.h): the name of the enumerator, the value of --kind and of the
 *  attribute, and its help. A kind is the tables dt_kind_NAME in src/data/kinds and dt_records_NAME in src/make. */
#define DT_KIND_LIST(KIND) \
    KIND(TOKENS, tokens, "plain text") KIND(SFT, sft, "with a loss mask") \
    KIND(PREFERENCE, preference, "pairs of answers") KIND(PROMPTS, prompts, "for rollouts") \
    KIND(UNPAIRED, unpaired, "answers with labels") \
    KIND(LABELS, labels, "texts or words with labels") KIND(TEXTS, texts, "groups of texts for embeddings")
#define DT_TASK_WORD(name) "|" #name
#define DT_CONFIG_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE) \
    ENUM(run, task, "pretrain", &DT_TASK_LIST(DT_TASK_WORD)[1], \
         "task of the run. pretrain: train on tokens; sft: fine-tune on samples with answers; rm: train a reward " \
         "model on pairs of answers; dpo: align a model with pairs of answers; kto: align it with single " \
         "answers that are good or bad; distill: train a student on a teacher's probabilities; " \
         "ppo: align it with rewards for its own completions; grpo: as ppo, without a critic, by comparing " \
         "completions of a prompt; classify: train a classifier of texts or words; embed: train embeddings of texts; " \
         "eval: measure the loss on data.validation, or results of the benchmarks of eval.tasks") \
    TEXT(run, output_dir, "", \
         "directory for the output of the run: config.ini, metrics.jsonl, checkpoints/, TensorBoard events. " \
         "Required for every task except eval") \
    INT (run, seed, 42, 0, INT64_MAX, "", \
         "seed of all random number streams: sample order, initial weights, dropout, sampling") \
    INT (run, max_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "stop after this many steps; 0: run.epochs sets the length") \
    REAL(run, epochs, 1, 0, 1e9, "passes over the data", "length of the run when max_steps is 0") \
    ENUM(run, device, "auto", "auto|cpu|cuda", \
         "compute device; auto: a GPU if the program supports it and one is visible, else the CPU") \
    INT (run, threads, 0, 0, 4096, "threads per rank", \
         "threads of the CPU device; 0: all cores available to the rank (at most SLURM_CPUS_PER_TASK)") \
    ENUM(run, self_check, "auto", "auto|always|never", \
         "compare GPU results with the CPU before the run (about two seconds). auto: once for each kind of GPU, " \
         "driver and program (the result is cached in XDG_CACHE_HOME or ~/.cache). The run does not start on a GPU " \
         "that computes wrong results") \
    BOOL(run, cuda_graphs, true, \
         "during a rollout on a GPU, launch the operations of each token with one call, as a CUDA graph. false: " \
         "launch them one by one; the results are the same") \
    BOOL(run, reproducible, false, \
         "make losses, norms and weights bit-identical for any number of ranks and threads, ZeRO stage and offload, " \
         "at a fixed micro-batch and batch size (slower)") \
    REAL(run, time_limit, 0, 0, 1e9, "seconds", \
         "the run saves a checkpoint and exits with code 75 before this time has passed since its start. Formats: " \
         "3600, 90s, 30m, 2h, 1d, or Slurm's 30:00, 2:00:00, 1-12:00:00. 0: the end of the Slurm job if known " \
         "(SLURM_JOB_END_TIME), else no limit") \
    INT (run, early_stopping_patience, 0, 0, INT64_MAX, "validations", \
         "end the run after this many consecutive validations without a new best; 0: never") \
    REAL(run, early_stopping_threshold, 0, 0, 1e30, "", \
         "a validation counts as better only if its metric improves on the best by more than this") \
    INT (run, max_skipped_steps, 20, 1, INT64_MAX, "optimizer steps", \
         "exit with code 71 after this many consecutive steps were skipped because of non-finite gradients") \
    TEXT(model, path, "", \
         "model to start from: a Hugging Face directory (config.json, safetensors), a checkpoint file, or the " \
         "output directory of a run") \
    TEXT(model, tokenizer, "", \
         "tokenizer that is exported and used for generation: its directory, its tokenizer.json or tokenizer.model, " \
         "or the word bytes. Empty: the tokenizer of model.path, else that of the data") \
    TEXT(model, chat_template, "", \
         "chat template that is stored with the model for generation: a name (dtrain-data --help lists them), a " \
         "JSON file, or auto, the tokenizer's own. Empty: that of the data, else that of model.path") \
    TEXT(model, config, "", "config.json of a model to train from random initial weights") \
    ENUM(model, vision, "auto", "auto|none|whole", \
         "which part of a model with images is read from a Hugging Face directory or model.config. none: its text " \
         "model; whole: text model, projector and vision tower; auto: whole, but none for Qwen3.5 if the task takes " \
         "no images or no dataset has any") \
    MAYBE(model, model_type, word, 0, 0, DT_MODEL_TYPE_WORDS, "", \
         "architecture of a model that this key and the keys below define. They have the names, meanings and " \
         "defaults of config.json: without sizes, llama is the original 7B model") \
    MAYBE(model, hidden_size, integer, 1, 1 << 24, "", "", "width of the model") \
    MAYBE(model, intermediate_size, integer, 1, 1 << 24, "", "", "width of the hidden layer of the MLP") \
    MAYBE(model, num_hidden_layers, integer, 1, 1 << 16, "", "blocks", "number of transformer blocks") \
    MAYBE(model, num_attention_heads, integer, 1, 1 << 24, "", "heads", "number of query heads") \
    MAYBE(model, num_key_value_heads, integer, 1, 1 << 24, "", "heads", \
         "number of key and value heads; a divisor of num_attention_heads") \
    MAYBE(model, head_dim, integer, 1, 1 << 24, "", "", "width of one attention head") \
    MAYBE(model, vocab_size, integer, 1, 1 << 30, "", "tokens", "size of the vocabulary: rows of the embedding") \
    MAYBE(model, max_position_embeddings, integer, 1, 1 << 30, "", "tokens", "maximum sequence length of the model") \
    MAYBE(model, rope_theta, number, 1, 1e30, "", "", "base of the rotary position embedding") \
    TEXT(model, rope_scaling, "", \
         "scaling of the rotary position embedding for longer sequences, a JSON object as in config.json; null: no " \
         "scaling") \
    MAYBE(model, rms_norm_eps, number, 0, 1, "", "", \
         "epsilon of the normalisation layers (layer_norm_epsilon of GPT-2)") \
    MAYBE(model, hidden_act, word, 0, 0, "silu|swish|gelu|gelu_new|gelu_pytorch_tanh|quick_gelu|relu", "", \
         "activation function of the MLP") \
    MAYBE(model, tie_word_embeddings, boolean, 0, 0, "", "", \
         "true: the output layer shares the weights of the embedding") \
    MAYBE(model, attention_bias, boolean, 0, 0, "", "", \
         "true: the attention projections have biases (llama, qwen3)") \
    MAYBE(model, mlp_bias, boolean, 0, 0, "", "", "true: the layers of the MLP have biases (llama)") \
    MAYBE(model, sliding_window, integer, 1, INT32_MAX, "null", "tokens", \
         "maximum number of tokens that a token attends to, itself included (mistral, qwen2, qwen3); null: all " \
         "preceding tokens") \
    MAYBE(model, num_experts, integer, 1, 4096, "", "experts", \
         "number of experts of each mixture") \
    MAYBE(model, num_experts_per_tok, integer, 1, 4096, "", "experts", \
         "number of experts that each token uses") \
    MAYBE(model, moe_intermediate_size, integer, 1, 1 << 24, "", "", \
         "width of the hidden layer of an expert") \
    MAYBE(model, shared_expert_intermediate_size, integer, 1, 1 << 24, "", "", \
         "width of the hidden layer of the shared expert, which every token uses (qwen2_moe, Qwen3.5)") \
    MAYBE(model, norm_topk_prob, boolean, 0, 0, "", "", \
         "true: the weights of a token's experts add up to 1 (qwen2_moe, qwen3_moe)") \
    MAYBE(model, output_router_logits, boolean, 0, 0, "", "", \
         "true: add router_aux_loss_coef times the load-balancing loss of experts") \
    MAYBE(model, router_aux_loss_coef, number, 0, 1000000, "", "", \
         "factor of the load-balancing loss of experts") \
    MAYBE(model, full_attention_interval, integer, 1, 1 << 16, "", "blocks", \
         "one block in this many has full attention, the others have linear attention (Qwen3.5)") \
    MAYBE(model, linear_num_key_heads, integer, 1, 1 << 16, "", "heads", \
         "number of query and key heads of linear attention; a divisor of linear_num_value_heads (Qwen3.5)") \
    MAYBE(model, linear_num_value_heads, integer, 1, 1 << 16, "", "heads", \
         "number of value heads of linear attention (Qwen3.5)") \
    MAYBE(model, linear_key_head_dim, integer, 1, 256, "", "", \
         "width of a query or key head of linear attention (Qwen3.5)") \
    MAYBE(model, linear_value_head_dim, integer, 1, 256, "", "", \
         "width of a value head of linear attention (Qwen3.5)") \
    MAYBE(model, linear_conv_kernel_dim, integer, 1, 8, "", "tokens", \
         "number of tokens that the convolution of linear attention mixes (Qwen3.5)") \
    MAYBE(model, n_shared_experts, integer, 1, 4096, "", "experts", \
         "width of the shared expert, which every token uses, in multiples of moe_intermediate_size (DeepSeek, " \
         "GLM-4.5)") \
    MAYBE(model, first_k_dense_replace, integer, 0, 1 << 16, "", "blocks", \
         "number of blocks without experts at the start of the model (DeepSeek, GLM-4.5)") \
    MAYBE(model, n_group, integer, 1, 64, "", "groups", "number of groups of experts (DeepSeek, GLM-4.5)") \
    MAYBE(model, topk_group, integer, 1, 64, "", "groups", \
         "number of groups whose experts a token may use (DeepSeek, GLM-4.5)") \
    MAYBE(model, routed_scaling_factor, number, 1e-6, 1000000, "", "", \
         "factor of the output of the experts, except the shared one (DeepSeek, GLM-4.5)") \
    MAYBE(model, q_lora_rank, integer, 1, 1 << 24, "null", "", \
         "width of the compressed query of latent attention (DeepSeek); null: queries are not compressed") \
    MAYBE(model, kv_lora_rank, integer, 1, 1 << 24, "", "", \
         "width of the compressed key and value of latent attention (DeepSeek)") \
    MAYBE(model, qk_nope_head_dim, integer, 1, 254, "", "", \
         "elements of a query or key head of latent attention that do not rotate (DeepSeek)") \
    MAYBE(model, qk_rope_head_dim, integer, 2, 256, "", "", \
         "elements of a query or key head of latent attention that rotate (DeepSeek)") \
    MAYBE(model, v_head_dim, integer, 1, 256, "", "", "width of a value head of latent attention (DeepSeek)") \
    MAYBE(model, initializer_range, number, 0, 100, "", "", "standard deviation of random initial weights") \
    TEXT(model, freeze, "", \
         "tensors that are not trained: comma-separated patterns in the syntax of optimizer.lr_groups (experts, " \
         "mlp.gate, layers.0)") \
    ENUM(model, attention, "auto", "auto|flash|cudnn", \
         "attention kernel. flash: exact and tiled, never stores the score matrix; cudnn: NVIDIA's library where it " \
         "applies (bf16 or fp16 on a GPU, sequences of one length: pretrain with packing = wrapped), flash " \
         "elsewhere; auto: flash") \
    ENUM(model, activation_checkpointing, "none", "none|selective|block", \
         "activations that are recomputed in the backward pass instead of stored. selective: only those of norms " \
         "and activation functions, which are cheap (about a third less memory, 1 or 2 % more time); block: all " \
         "except the input of each block (about a quarter more work)") \
    REAL(model, router_z_loss_coef, 0, 0, 1000000, "", \
         "factor of the z-loss of a mixture of experts: the mean over the tokens of (log sum of e^logit)^2 of the " \
         "router, summed over the layers; 0: none") \
    REAL(model, dropout, -1, -1, 0.99, "probability", \
         "dropout probability that replaces those of config.json; -1: keep them (0 except for GPT-2)") \
    REAL(model, neftune_noise_alpha, 0, 0, 1e6, "", \
         "NEFTune: in training, add noise to embeddings of tokens, uniform from -a to a with a = " \
         "neftune_noise_alpha / sqrt(tokens of the sequence x hidden_size); 5 to 15 is usual, 0: off") \
    TEXT(data, train, "", \
         "training datasets made by dtrain-data, or .bin files of Megatron-LM: comma-separated paths and globs. " \
         "path:weight mixes the files in these proportions (default weight: 1)") \
    TEXT(data, validation, "", "validation datasets, in the syntax of data.train") \
    INT (data, seq_len, 1024, 1, 16777216, "tokens", \
         "length of a training sequence; longer samples are truncated to it") \
    ENUM(data, packing, "auto", "auto|none|wrapped|bfd|bfd_split", \
         "how sequences are built. wrapped: cut the token stream every seq_len tokens; none: one sample per " \
         "sequence; bfd: pack whole documents (best-fit decreasing); bfd_split: as bfd, and split documents longer " \
         "than seq_len; auto: wrapped for tokens, none for sft") \
    BOOL(data, document_mask, false, \
         "wrapped sequences: stop attention, positions and targets at document boundaries (bfd always does)") \
    BOOL(data, shuffle, true, \
         "visit the samples in a random order that depends only on run.seed and the epoch; false: in file order") \
    BOOL(data, group_by_modality_length, false, \
         "build each batch from samples of similar length that all have images, or all have none (LLaVA's option). " \
         "The grouping depends only on run.seed and train_batch_size. Needs data.shuffle, and data.train without " \
         "weights") \
    BOOL(data, drop_last, false, "drop the last micro-batch of an epoch if it is not full") \
    REAL(data, validation_steps, 0, 0, 1e12, "optimizer steps", \
         "number of steps between validations; below 1: a fraction of all steps; 0: validate only at the end") \
    INT (data, max_validation_samples, 0, 0, INT64_MAX, "samples", \
         "maximum number of validation samples, taken from the start; 0: all") \
    BOOL(data, verify, false, \
         "read all datasets completely before the first step and verify their checksums (headers are always " \
         "verified)") \
    INT (data, prefetch, 2, 0, 1024, "micro-batches", "micro-batches to read ahead in the background; 0: none") \
    INT (batch, train_batch_size, 0, 0, INT64_C(1000000000000000), "samples", \
         "samples per optimizer step over all ranks: micro_batch_size x gradient_accumulation_steps x ranks; 0: " \
         "computed from the other two keys") \
    INT (batch, micro_batch_size, 0, 0, INT32_MAX, "samples", \
         "samples that a rank processes at a time; 0: computed from the other two keys") \
    INT (batch, gradient_accumulation_steps, 0, 0, INT32_MAX, "micro-steps", \
         "micro-batches per rank whose gradients are summed for one optimizer step; 0: computed from the other two " \
         "keys") \
    ENUM(optimizer, type, "adamw", "adamw|adam|sgd|muon", \
         "adamw: decoupled weight decay; adam: weight decay added to the gradient; sgd: gradient descent with " \
         "momentum; muon: orthogonalised momentum for the matrices of blocks, adamw for embeddings, head, norms and " \
         "biases. DeepSpeed's Adam is adamw unless adam_w_mode = false") \
    REAL(optimizer, lr, 3e-4, 0, 10, "", "peak learning rate") \
    TEXT(optimizer, lr_groups, "", \
         "per-tensor peak learning rates, comma separated: lm_head:1e-4, layers.0:1e-5. A pattern matches whole " \
         "components of a tensor name between dots; * and ? are wildcards. The first matching pattern applies") \
    TEXT(optimizer, betas, "0.9, 0.999", "decay rates of the first and second moment (adamw, adam)") \
    REAL(optimizer, eps, 1e-8, 0, 1, "", "epsilon, added to the square root of the second moment (adamw, adam)") \
    REAL(optimizer, momentum, 0.9, 0, 1, "", \
         "momentum coefficient (sgd): fraction of the previous step that is added to the next one; 0: no momentum " \
         "and no optimizer state") \
    REAL(optimizer, muon_momentum, 0.95, 0, 1, "", \
         "momentum coefficient (muon): weight of the previous momentum in the next one") \
    BOOL(optimizer, muon_nesterov, true, \
         "mix the gradient into the momentum once more before it is orthogonalised; false: orthogonalise the " \
         "momentum itself (muon)") \
    INT (optimizer, muon_ns_steps, 5, 1, 100, "iterations", \
         "Newton-Schulz iterations that orthogonalise a matrix (muon)") \
    ENUM(optimizer, muon_lr_scale, "match_rms_adamw", "match_rms_adamw|original", \
         "factor of lr for a matrix (muon). match_rms_adamw: 0.2 sqrt(max(rows, columns)), for values of lr and " \
         "weight_decay that suit AdamW; original: sqrt(max(1, rows / columns))") \
    ENUM(optimizer, state_dtype, "fp32", "fp32|bf16|int8", \
         "storage of optimizer states. bf16: half of the memory, with stochastic rounding. int8: a quarter, in " \
         "blocks of 256 with one scale each (bitsandbytes' 8-bit optimizers); tensors below 4096 elements keep fp32") \
    REAL(optimizer, weight_decay, 0, 0, 10, "", \
         "weight decay, decoupled from the gradient (adamw) or added to it (adam, sgd). Biases and normalisation " \
         "weights are exempt") \
    REAL(optimizer, max_grad_norm, 1, -1e30, 1e30, "", "clip gradients to this global norm; 0 or less: no clipping") \
    ENUM(optimizer, lr_scale_rule, "none", "none|linear|sqrt", \
         "multiply lr by train_batch_size / lr_base_batch_size (linear) or by its square root (sqrt)") \
    INT (optimizer, lr_base_batch_size, 0, 0, INT64_MAX, "samples", \
         "batch size that lr was chosen for (lr_scale_rule)") \
    ENUM(scheduler, type, "cosine", "constant|linear|cosine|wsd", \
         "shape of the learning rate after the warm-up; wsd: constant, with a decay at the end") \
    INT (scheduler, warmup_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "steps over which the learning rate rises from 0 to lr; 0: warmup_ratio sets the length") \
    REAL(scheduler, warmup_ratio, 0, 0, 1, "of all steps", "length of the warm-up when warmup_steps is 0") \
    REAL(scheduler, min_lr_ratio, 0, 0, 1, "of lr", "learning rate at the end of the run (linear, cosine, wsd)") \
    REAL(scheduler, decay_ratio, 0.1, 0, 1, "of all steps", "length of the decay at the end of the run (wsd)") \
    ENUM(scheduler, decay_type, "linear", "linear|cosine|sqrt", \
         "shape of the decay (wsd); sqrt: 1 - square root of progress") \
    ENUM(scheduler, on_extend, "rescale", "rescale|continue|rewarm", \
         "learning rate of a resumed run whose number of steps has changed. rescale: as if the run had started with " \
         "the new number, so the rate may jump; continue: decay from the current rate to the new end, without a " \
         "jump; rewarm: warm up from the current rate to lr, then follow type") \
    ENUM(precision, dtype, "fp32", "auto|fp32|bf16|fp16", \
         "data type of parameters and activations. bf16 and fp16 keep fp32 master weights and optimizer states; " \
         "fp16 also scales the loss; auto: bf16, which every device supports") \
    REAL(precision, loss_scale, 0, 0, 1e30, "", \
         "fp16: factor on the loss before the backward pass; 0: dynamic, controlled by the keys below") \
    INT (precision, initial_scale_power, 16, 0, 60, "", "fp16: the dynamic loss scale starts at 2 to this power") \
    INT (precision, loss_scale_window, 1000, 1, INT64_MAX, "optimizer steps", \
         "fp16: double the dynamic loss scale after this many steps without an overflow") \
    INT (precision, hysteresis, 2, 1, INT32_MAX, "overflows", \
         "fp16: number of overflows at which the dynamic loss scale is halved. Each further overflow in the window " \
         "halves it again") \
    BOOL(precision, consecutive_hysteresis, false, \
         "fp16: which steps restore the full hysteresis. true: each step without an overflow; false: only the end " \
         "of a window without an overflow") \
    REAL(precision, min_loss_scale, 1, 1e-30, 1e30, "", \
         "fp16: lower limit of the dynamic loss scale; an overflow at this scale ends the run with exit code 71") \
    ENUM(precision, reduce_dtype, "auto", "auto|fp32|bf16|fp16", \
         "data type in which ranks send gradients for reduction. Sums are in fp32. auto: the type of the gradients, " \
         "which is fp32 with gradient accumulation or run.reproducible, else precision.dtype") \
    ENUM(zero, stage, "0", "auto|auto:size|0|1|2|3", \
         "states that are sharded over the ranks. 0: none; 1: optimizer states; 2: also gradients; 3: also " \
         "parameters. auto: the first choice that fits in memory: stages without offload, then with optimizer " \
         "offload, then with parameter offload, to cpu first, then to nvme. An offload that the configuration sets " \
         "is kept. auto:size: 0 below 10^9 parameters, 2 up to 7 10^9, 3 above") \
    ENUM(zero, shard_group, "world", "world|node", \
         "ranks that a stage shards over. world: all ranks; node: the ranks of a node. With node, every node holds " \
         "a full copy: parameters are gathered only within nodes, and only gradient sums pass between nodes") \
    INT (zero, reduce_bucket_size, 2000000000, 1, INT64_MAX, "elements", \
         "maximum number of gradients reduced in one collective. A larger block is split and passes through a " \
         "staging buffer of this size") \
    INT (zero, allgather_bucket_size, 2000000000, 1, INT64_MAX, "elements", \
         "maximum number of parameters gathered in one collective. A larger block is split and passes through a " \
         "staging buffer of this size") \
    INT (zero, prefetch_bucket_size, 2000000000, 0, INT64_MAX, "elements", \
         "stage 3: gather the parameters of the next block ahead of time if it has at most this many; 0: never") \
    INT (zero, param_persistence_threshold, 0, 0, INT64_MAX, "elements", \
         "stage 3: replicate blocks with fewer parameters than this instead of sharding them") \
    MAYBE(zero, expert_group_size, integer, 0, 4096, "auto", "experts", \
         "number of experts of a layer in one collective: stage 3 gathers their parameters together, and stages 2 " \
         "and 3 reduce their gradients together. Fewer need less memory. 0: all experts, with the rest of the " \
         "layer; auto, or not set: all if they fit in memory, else the largest groups that fit") \
    INT (zero, max_live_parameters, 4000000000, 1, INT64_MAX, "elements", \
         "stage 3: maximum number of gathered parameters on a rank. If it is too small for two blocks, no block is " \
         "gathered ahead of time") \
    BOOL(zero, overlap_comm, true, \
         "overlap communication with computation if the device can. Needs memory for the gradients of two blocks " \
         "and, at stage 3, their parameters") \
    ENUM(zero, offload_optimizer, "none", "none|cpu|nvme", \
         "keep each rank's shard of optimizer states and fp32 master weights off the device and update it on the " \
         "host. cpu: in host memory; nvme: in a file under nvme_path. Gradients are collected in host memory") \
    ENUM(zero, offload_param, "none", "none|cpu|nvme", \
         "stage 3: keep a rank's parameters off the device and load each block when it is used. Parameters of the " \
         "task's frozen models are included. cpu: in host memory; nvme: in a file under nvme_path") \
    TEXT(zero, nvme_path, "", \
         "directory on a fast disk of each node, for nvme offload. The files are unnamed, so they disappear when " \
         "the program ends, even if it crashes") \
    BOOL(zero, pin_memory, true, \
         "use pinned memory for copies between device and host, so that copies overlap computation; false: pageable " \
         "memory, and the host waits for each copy") \
    INT (zero, sub_group_size, 20000000, 4096, INT64_MAX, "elements", \
         "number of offloaded optimizer states updated at a time; limits the size of their staging buffers") \
    INT (zero, buffer_count, 4, 1, 1024, "buffers", \
         "staging buffers for offloaded states, one per sub-group or parameter block in flight. With nvme, reads, " \
         "updates and writes overlap if there are at least 3") \
    INT (mesh, tp, 1, 1, 4096, "ranks", \
         "tensor parallelism: this many neighbouring ranks read the same samples and divide the heads of attention " \
         "and the width of the MLP. Each rank stores its part of these matrices and of their activations") \
    INT (mesh, cp, 1, 1, 4096, "ranks", \
         "context parallelism: this many neighbouring ranks read the same samples and divide the tokens of each " \
         "micro-batch. Each rank stores activations of its tokens only, and attention gathers keys and values") \
    ENUM(comm, backend, "auto", "auto|mpi|nccl", "library that transfers tensors between ranks") \
    REAL(comm, timeout, 1800, 1, 1e9, "seconds", \
         "end the run with exit code 76 after this long without progress; time while the job is suspended is not " \
         "counted") \
    BOOL(comm, shared_memory, true, "exchange data between the ranks of a node through shared memory") \
    BOOL(comm, check, false, \
         "debugging: verify before each collective that all ranks issue the same one. A mismatch ends the run with " \
         "exit code 76 and reports the rank that differs") \
    INT (lora, r, 0, 0, 65536, "", \
         "LoRA rank: train adapters of this rank on linear layers and keep the model's own weights frozen; 0: off, " \
         "train the weights themselves") \
    REAL(lora, alpha, 8, 1e-6, 65536, "", \
         "adapter scale: the output of an adapter is multiplied by alpha / r, or by alpha / sqrt(r) with use_rslora") \
    REAL(lora, dropout, 0, 0, 0.99, "probability", "dropout on the input of adapters in training") \
    BOOL(lora, use_rslora, false, "rsLoRA: scale by alpha / sqrt(r) instead of alpha / r") \
    BOOL(lora, use_dora, false, \
         "DoRA: train the magnitude of each output of the adapted layers, too. A and B then change only the " \
         "directions. Needs dropout = 0; not for embeddings, head, experts and routers") \
    TEXT(lora, target_modules, "", \
         "layers that get adapters: comma-separated tensor-name components (q_proj, layers.0.mlp.up_proj), " \
         "all-linear, or a regular expression that matches whole names. Empty: q_proj, v_proj (GPT-2: c_attn; " \
         "Phi-3: qkv_proj). all-linear excludes embeddings and the head: name them to adapt them (embed_tokens, " \
         "lm_head; GPT-2: wte, wpe). In a vision-language model, this key selects layers of lora.parts") \
    TEXT(lora, parts, "llm", \
         "parts of a vision-language model in which target_modules selects layers, comma separated: tower, " \
         "projector, llm (the language model)") \
    TEXT(lora, target_parameters, "", \
         "experts and routers that get adapters: comma-separated names of the tensors in which transformers stores " \
         "them (mlp.experts.gate_up_proj, mlp.experts.down_proj, mlp.gate.weight). An empty target_modules then " \
         "selects no layers") \
    ENUM(lora, init, "kaiming", "kaiming|gaussian|pissa|olora", \
         "initial values of the first matrix of a linear layer's adapter; the second is zero. kaiming: uniform up " \
         "to 1 / sqrt(input width); gaussian: normal with standard deviation 1 / r. pissa, olora: dtrain-convert " \
         "--split factorises the weights, by singular values or by QR. Both matrices are the factors, and the new " \
         "base is the rest") \
    INT (lora, init_iterations, 0, 0, 1000, "", \
         "iterations of pissa, as PEFT's pissa_niter_N; 0: until the singular vectors no longer change") \
    TEXT(lora, modules_to_save, "", \
         "modules that are trained fully in addition to the adapters, comma separated, such as embed_tokens, " \
         "lm_head. The score head of a reward model is always trained") \
    TEXT(lora, rank_pattern, "", \
         "per-layer ranks, comma separated: v_proj:16, layers.0.mlp.up_proj:4. The first matching entry applies") \
    TEXT(lora, alpha_pattern, "", "per-layer values of alpha, in the syntax of rank_pattern") \
    REAL(lora, lr_ratio, 1, 0.001, 1000, "", \
         "LoRA+: learning rate of the second matrix of adapters (lora_B), relative to the rate of the first; 1: off. " \
         "As in PEFT, it also applies to trained vectors. Usual: 16") \
    TEXT(lora, path, "", "adapter to continue from: a directory in PEFT's layout") \
    ENUM(lora, base_quantization, "none", "none|int8|nf4", \
         "storage of frozen block matrices. int8: one byte per weight and one float per row; nf4: half a byte per " \
         "weight, bitsandbytes' format with double quantisation. dtrain rounds weights when it loads them, or keeps " \
         "their codes if the directory has this format") \
    REAL(checkpoint, save_steps, 500, 0, 1e12, "optimizer steps", \
         "number of steps between checkpoints; below 1: a fraction of all steps; 0: save only at the end") \
    ENUM(checkpoint, save, "all", "all|trainable", \
         "model weights that a checkpoint contains. trainable: only trained weights and their optimizer states. A " \
         "resumed run reads frozen weights from model.path again, so its files must not change") \
    INT (checkpoint, save_total_limit, 0, 0, INT64_MAX, "files", \
         "maximum number of checkpoints to keep: the newest ones. The best checkpoint is kept in addition; 0: all") \
    BOOL(checkpoint, async, false, \
         "continue training while a checkpoint is written, from a copy of the states in host memory; false: " \
         "training waits for the file. With Adam the copy has 12 bytes per parameter that a rank owns; --plan " \
         "includes it") \
    TEXT(checkpoint, resume, "auto", \
         "auto: continue from the newest valid checkpoint in output_dir, or start from scratch if there is none; " \
         "none: start from scratch; or the path of a checkpoint") \
    TEXT(checkpoint, allow_changes, "", \
         "keys whose values may change when a run resumes, although dtrain would otherwise refuse its checkpoint: a " \
         "list such as run.task, data.train, data.seq_len; or all") \
    BOOL(checkpoint, load_best_model_at_end, false, \
         "save a checkpoint after each validation that is the best so far, and keep it (the file `best` names it). " \
         "At the end, load its weights. The export then contains them") \
    TEXT(checkpoint, metric_for_best_model, "validation_loss", \
         "validation metric that selects the best checkpoint, with or without the task's prefix: validation_loss " \
         "(transformers: eval_loss), validation_accuracy, rm/validation_accuracy, dpo/validation_rewards/margins, " \
         "grpo/validation_reward and so on") \
    ENUM(checkpoint, greater_is_better, "auto", "auto|true|false", \
         "whether a larger metric is better. auto: yes, unless it is a loss, a perplexity, an entropy, a cost, a KL " \
         "divergence or a clipped_ratio") \
    BOOL(checkpoint, save_on_signal, true, "save a checkpoint when a signal or the time limit ends the run") \
    ENUM(checkpoint, export, "none", "none|hf", \
         "export at the end of the run. hf: write the model and its tokenizer to OUTPUT_DIR/hf as a Hugging Face " \
         "directory") \
    ENUM(checkpoint, export_dtype, "auto", "auto|fp32|bf16|fp16", \
         "data type of the exported weights; auto: precision.dtype") \
    DT_EVAL_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE) \
    DT_TASK_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE) \
    TEXT(rec, catalogue, "", \
         "items of a recommender, in MiniOneRec's info format: lines of SID, tab, title, tab, item id. A SID is a " \
         "string of level tokens such as <a_17><b_203><c_5>. With this key, task eval measures recommendation " \
         "quality") \
    TEXT(rec, item_embeddings, "", \
         "item embeddings for the reward rec_semantic, one row per item in the order of dtrain-sid: a NumPy or HDF5 " \
         "file") \
    TEXT(rec, item_embeddings_array, "", "name of the array to read if an HDF5 file has several") \
    BOOL(rec, add_ground_truth, false, \
         "task grpo: replace the last completion of each group by the target, if it is an item") \
    BOOL(rec, distinct_sampling, false, \
         "task grpo with rollout = sample: sample 1.5 x num_generations completions and keep num_generations of " \
         "them: the target, then as many distinct ones as possible (MiniOneRec's dynamic sampling; DAPO's is " \
         "grpo.dynamic_sampling)") \
    BOOL(rec, freeze_llm, false, \
         "train only the rows of the catalogue's level tokens, in the embedding and in a separate head. All other " \
         "weights stay bit-identical") \
    INT (rec, num_beams, 50, 1, 65536, "items", "width of the beam search: items found and ranked for each prompt") \
    TEXT(rec, top_k, "", \
         "values of K for HR@K and NDCG@K, comma separated, each at most num_beams; empty: 1, 3, 5, 10, 20, 50 up " \
         "to num_beams") \
    TEXT(vision, path, "", \
         "vision tower to attach to the language model in model.path: a directory of CLIP or SigLIP, with the whole " \
         "model or only its vision model. Empty: model.path is a vision-language model (llava-hf), or a model " \
         "without images") \
    MAYBE(vision, projector_type, word, 0, 0, "linear|mlp2x_gelu|mlp|deep_mlp|pixel_shuffle", "", \
         "projector from tower features to the language model's width. mlp2x_gelu: two layers, as in LLaVA 1.5 and " \
         "llava-hf; linear: one layer; mlp, deep_mlp: two and three layers with LayerNorm and dropout; " \
         "pixel_shuffle: merge squares of patches, then one layer; not set: that of model.path, or mlp2x_gelu") \
    TEXT(vision, projector_path, "", \
         "safetensors file with the projector's weights, under LLaVA's names (mm_projector.0.weight) or llava-hf's; " \
         "empty: those of model.path, or random weights for a new projector") \
    MAYBE(vision, projector_hidden_size, integer, 1, 1 << 22, "", "", \
         "width between the projector's layers; not set: that of model.path, or the language model's width " \
         "(deep_mlp: 3072)") \
    MAYBE(vision, projector_shuffle, integer, 1, 1 << 14, "", "patches", \
         "pixel_shuffle: side of the square of patches that becomes one token; not set: that of model.path, or 4") \
    MAYBE(vision, projector_dropout, number, 0, 0.99, "", "probability", \
         "mlp, deep_mlp: dropout after the projector's activation functions; not set: that of model.path, or 0.1") \
    MAYBE(vision, feature_layer, integer, -4097, 4096, "", "", \
         "hidden state of the tower that gives the features. 0: input of the first block; 1: its output; -1: the " \
         "last; -2: the one before the last; not set: that of model.path, or -2") \
    MAYBE(vision, feature_select, word, 0, 0, "patch|cls_patch", "", \
         "patch: features of the patches; cls_patch: preceded by that of CLIP's class token; not set: as in " \
         "model.path, or patch") \
    MAYBE(vision, feature_norm, boolean, 0, 0, "", "", \
         "true: apply SigLIP's post_layernorm to the last hidden state (feature_layer -1), as AnyLLM and nanoVLM " \
         "do; not set: as in model.path, or false") \
    MAYBE(vision, image_tokens, word, 0, 0, "patch_insert|mean_pooling", "", \
         "placeholders per image in a text. patch_insert: one for each output row of the projector; mean_pooling: a " \
         "single one, for the mean of the rows; not set: as in model.path, or patch_insert") \
    TEXT(vision, train, "projector, llm", \
         "modules to train, comma separated: tower, projector, llm (the whole language model), llm:N (its last N " \
         "blocks, without the final norm), embed (its embedding), head (its output layer). With lora.r above 0, llm " \
         "means its adapters, and the default depends on lora.parts (docs/vision.md)") \
    TEXT(vision, feature_cache, "", \
         "directory that caches the features of a frozen tower. dtrain computes them once per image before the " \
         "first step, then reads them instead of the images. Later runs with the same tower use them, too. Empty: " \
         "the tower runs on each image every time") \
    TEXT(vision, image_token, "<image>", \
         "token that stands for an image in texts: as written in the tokenizer, or its id. If model.path is a " \
         "vision-language model, the token of its config.json applies") \
    REAL(log, logging_steps, 1, 0, 1e12, "optimizer steps", \
         "number of steps between reports; below 1: a fraction of all steps") \
    TEXT(log, report_to, "stdout, jsonl, tensorboard", \
         "destinations of metrics, comma separated: any of " DT_SINK_NAMES) \
    TEXT(log, prometheus_path, "", \
         "with prometheus in report_to: file for the textfile collector of node_exporter; its name ends in .prom. " \
         "dtrain removes it when the run ends. Empty: metrics.prom in run.output_dir, which dtrain keeps") \
    REAL(log, stdout_every, -1, -1, 1e9, "seconds", \
         "minimum time between printed lines if standard output is not a terminal (metrics files get every report). " \
         "0: print every report; -1: print the first ten, then one every 10 seconds or 2% of the run's time, " \
         "whichever is longer, but at least one every 10 minutes") \
    BOOL(log, rollouts, false, \
         "tasks that generate: write OUTPUT_DIR/rollouts.jsonl, one line per prompt with its completions, their " \
         "rewards by function, advantages and log-probabilities") \
    INT (log, completions, 2, 0, 1000000, "completions", \
         "tasks that generate: number of completions to print from a rollout, as often as log.stdout_every allows; " \
         "0: none") \
    BOOL(log, wall_clock_breakdown, false, \
         "add the device time of a step to the metrics, in milliseconds by category (data, forward, backward, " \
         "communication exposed and hidden, update, copies, agreement, rollout, scoring, rewards): minimum, mean " \
         "and maximum over the ranks") \
    BOOL(log, trace, false, \
         "write trace.json (Chrome trace format) with every phase and block of every rank, and one lane per stream")
/* clang-format on */

#endif
