/* config_keys.h - every configuration key, once: section, key, default, limits, unit, help. See config.h.
 *
 *     INT, REAL   (section, key, default, least, greatest, unit, help)
 *     BOOL        (section, key, default, help)
 *     ENUM        (section, key, default, words, help)
 *     TEXT        (section, key, default, help)
 *     MAYBE       (section, key, type, least, greatest, words, unit, help): a value of type integer, number, boolean or
 *                 word, or not set. words: those allowed; for the other types one more word that is allowed, or "".
 *                 The field holds the text of the value, "" where the key is not set. */
#ifndef DTRAIN_CONFIG_KEYS_H
#define DTRAIN_CONFIG_KEYS_H

/* clang-format off */
#define DT_CONFIG_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE) \
    ENUM(run, task, "pretrain", "pretrain|sft|rm|dpo|ppo|grpo|eval", \
         "what the run does: pretrain on tokens, sft: fine-tune on samples with answers, rm: train a reward model on " \
         "pairs of answers, dpo: align a model with pairs of answers, ppo: align it with rewards for its own " \
         "completions, grpo: the same without a critic, by comparing completions of a prompt, eval: measure the loss " \
         "on data.validation") \
    TEXT(run, output_dir, "", \
         "directory that the run writes to: config.ini, metrics.jsonl, checkpoints/, TensorBoard events; every " \
         "task but eval needs it") \
    INT (run, seed, 42, 0, INT64_MAX, "", \
         "seed of all random numbers: order of samples, initial weights, dropout") \
    INT (run, max_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "stop after this many steps; 0: run.epochs decides") \
    REAL(run, epochs, 1, 0, 1e9, "passes over the data", "length of the run when max_steps is 0") \
    ENUM(run, device, "auto", "auto|cpu|cuda", \
         "device that computes; auto: the best one that this program was built for") \
    INT (run, threads, 0, 0, 4096, "threads per rank", \
         "threads of the CPU device; 0: the cores that a rank may use (SLURM_CPUS_PER_TASK at most)") \
    ENUM(run, self_check, "auto", "auto|always|never", \
         "compare what a GPU computes with the CPU before a run, about a second: auto: at the first start with this " \
         "kind of GPU, driver and program (remembered in XDG_CACHE_HOME or ~/.cache); a GPU that is wrong is refused") \
    BOOL(run, cuda_graphs, true, \
         "on a GPU a rollout queues the operations of a token with one call, as a CUDA graph; false: one by one, " \
         "with the same results") \
    BOOL(run, reproducible, false, \
         "losses, norms and weights are bit-identical for any number of ranks and threads, ZeRO stage and offload, " \
         "with the same micro-batch and batch size (slower)") \
    REAL(run, time_limit, 0, 0, 1e9, "seconds", \
         "save a checkpoint and exit with code 75 before this much time has passed since the start; 3600, 90s, 30m, " \
         "2h, 1d, or as Slurm writes times, 30:00, 2:00:00 or 1-12:00:00; 0: the end of the " \
         "Slurm job where it is known (SLURM_JOB_END_TIME), else no limit") \
    INT (run, early_stopping_patience, 0, 0, INT64_MAX, "validations", \
         "end the run when this many validations in a row were not better than the best; 0: never") \
    REAL(run, early_stopping_threshold, 0, 0, 1e30, "", \
         "a validation is better only when its metric improves on the best by more than this") \
    INT (run, max_skipped_steps, 20, 1, INT64_MAX, "optimizer steps", \
         "stop with exit code 71 after this many steps in a row were skipped because of non-finite gradients") \
    TEXT(model, path, "", \
         "model to start from: a Hugging Face directory (config.json, safetensors), a checkpoint file, or the " \
         "directory of a run") \
    TEXT(model, tokenizer, "", \
         "directory of the tokenizer, its tokenizer.json, or the word bytes; exported and used for generation; " \
         "empty: the tokenizer of model.path, else that of the data") \
    TEXT(model, chat_template, "", \
         "template of conversations for generation from this model: a name (dtrain-data --help lists them), a JSON " \
         "file, or auto: the tokenizer's own; empty: that of the data, else that of model.path") \
    TEXT(model, config, "", "config.json of a model that starts from random weights") \
    MAYBE(model, model_type, word, 0, 0, "gpt2|llama|mistral|qwen2|qwen3", "", \
         "architecture of a model that is described here, by this key and those below; they have the names and " \
         "meanings of config.json, and its defaults: without sizes llama is the first 7B model") \
    MAYBE(model, hidden_size, integer, 1, 1 << 24, "", "", "width of the model") \
    MAYBE(model, intermediate_size, integer, 1, 1 << 24, "", "", "width of the hidden layer of the MLP") \
    MAYBE(model, num_hidden_layers, integer, 1, 1 << 16, "", "blocks", "number of transformer blocks") \
    MAYBE(model, num_attention_heads, integer, 1, 1 << 24, "", "heads", "number of query heads") \
    MAYBE(model, num_key_value_heads, integer, 1, 1 << 24, "", "heads", \
         "number of key and value heads; a divisor of num_attention_heads") \
    MAYBE(model, head_dim, integer, 1, 1 << 24, "", "", "width of one attention head") \
    MAYBE(model, vocab_size, integer, 1, 1 << 30, "", "tokens", "size of the vocabulary: rows of the embedding") \
    MAYBE(model, max_position_embeddings, integer, 1, 1 << 30, "", "tokens", \
         "longest sequence that the model is made for") \
    MAYBE(model, rope_theta, number, 1, 1e30, "", "", "base of the rotary position embedding") \
    TEXT(model, rope_scaling, "", \
         "JSON object as in config.json: how the rotary position embedding is scaled for longer sequences; null: " \
         "not scaled") \
    MAYBE(model, rms_norm_eps, number, 0, 1, "", "", \
         "epsilon of the normalisation layers (for GPT-2: layer_norm_epsilon)") \
    MAYBE(model, hidden_act, word, 0, 0, "silu|swish|gelu|gelu_new|gelu_pytorch_tanh|quick_gelu|relu", "", \
         "activation function of the MLP") \
    MAYBE(model, tie_word_embeddings, boolean, 0, 0, "", "", \
         "true: the output layer uses the weights of the embedding") \
    MAYBE(model, attention_bias, boolean, 0, 0, "", "", \
         "true: the attention projections have biases (llama, qwen3)") \
    MAYBE(model, mlp_bias, boolean, 0, 0, "", "", "true: the layers of the MLP have biases (llama)") \
    MAYBE(model, sliding_window, integer, 1, INT32_MAX, "null", "tokens", \
         "each token attends to at most this many tokens, itself included (mistral, qwen2, qwen3); null: to all " \
         "before it") \
    MAYBE(model, initializer_range, number, 0, 100, "", "", "standard deviation of random initial weights") \
    ENUM(model, attention, "auto", "auto|flash|cudnn", \
         "attention kernel. flash: exact, computed in tiles, never stores the matrix of scores; cudnn: the same by " \
         "NVIDIA's library, for sequences of one length in bf16 or fp16 on a GPU (pretrain with wrapped rows), flash " \
         "for what is left; auto: flash") \
    ENUM(model, activation_checkpointing, "none", "none|selective|block", \
         "what is recomputed in the backward pass instead of kept. selective: what is cheap, norms and activations " \
         "(about a third less memory, 1 or 2 % more time); block: all but the input of each block (about a quarter " \
         "more work)") \
    REAL(model, dropout, -1, -1, 0.99, "probability", \
         "replaces the dropout probabilities of config.json; -1: keep those (0 except for GPT-2)") \
    TEXT(data, train, "", \
         "dataset files to train on, made by dtrain-data: paths and globs, comma separated; path:weight mixes the " \
         "files in these proportions (a file without a weight has 1)") \
    TEXT(data, validation, "", "dataset files to validate on, written as for data.train") \
    INT (data, seq_len, 1024, 1, 16777216, "tokens", \
         "length of a training sequence; a longer sample is cut after this many tokens") \
    ENUM(data, packing, "auto", "auto|none|wrapped|bfd|bfd_split", \
         "how sequences are made. wrapped: the stream of tokens is cut every seq_len; none: one sample each; bfd: " \
         "whole documents are packed together (best-fit decreasing); bfd_split: the same, documents over seq_len " \
         "are split; auto: wrapped for tokens, none for sft") \
    BOOL(data, document_mask, false, \
         "wrapped sequences: attention, positions and targets stop at document boundaries (with bfd they always " \
         "do)") \
    BOOL(data, shuffle, true, \
         "visit the samples in an order that depends only on run.seed and the epoch; false: in the order of the " \
         "files") \
    BOOL(data, group_by_modality_length, false, \
         "batches are of samples with images or of samples without, and of similar lengths, as LLaVA's option has " \
         "it; which, run.seed and train_batch_size decide; needs data.shuffle, and no weights in data.train") \
    BOOL(data, drop_last, false, "leave out the last micro-batch of an epoch if it is incomplete") \
    REAL(data, validation_steps, 0, 0, 1e12, "optimizer steps", \
         "validate every this many steps; below 1: a fraction of all steps; 0: only at the end") \
    INT (data, max_validation_samples, 0, 0, INT64_MAX, "samples", \
         "validate on the first samples only, this many; 0: on all") \
    BOOL(data, verify, false, \
         "read all datasets whole before the first step and compare their checksums; their headers always are") \
    INT (data, prefetch, 2, 0, 1024, "micro-batches", \
         "micro-batches that are read ahead in the background; 0: none") \
    INT (batch, train_batch_size, 0, 0, INT64_C(1000000000000000), "samples", \
         "samples per optimizer step, over all ranks = micro_batch_size x gradient_accumulation_steps x ranks; 0: " \
         "computed from the other two") \
    INT (batch, micro_batch_size, 0, 0, INT32_MAX, "samples", \
         "samples that a rank processes at a time; 0: computed from the other two") \
    INT (batch, gradient_accumulation_steps, 0, 0, INT32_MAX, "micro-steps", \
         "micro-batches of a rank whose gradients are added up for one optimizer step; 0: computed from the other " \
         "two") \
    ENUM(optimizer, type, "adamw", "adamw|adam|sgd", \
         "adamw; adam: with weight decay added to the gradient (DeepSpeed's Adam is adamw unless adam_w_mode = " \
         "false); sgd: gradient descent with momentum") \
    REAL(optimizer, lr, 3e-4, 0, 10, "", "peak learning rate") \
    TEXT(optimizer, lr_groups, "", \
         "other peaks for tensors by name, comma separated, as lm_head:1e-4, layers.0:1e-5; a pattern stands for " \
         "whole parts of a name between dots, * and ? for any characters; the first pattern that fits a tensor " \
         "counts") \
    TEXT(optimizer, betas, "0.9, 0.999", "decay rates of the first and the second moment (adamw, adam)") \
    REAL(optimizer, eps, 1e-8, 0, 1, "", "epsilon, added to the square root of the second moment (adamw, adam)") \
    REAL(optimizer, momentum, 0.9, 0, 1, "", \
         "part of the last step that the next one keeps (sgd); 0: none, and no state") \
    REAL(optimizer, weight_decay, 0, 0, 10, "", \
         "weight decay, apart from the gradient (adamw) or added to it (adam, sgd); biases and normalisation weights " \
         "do not decay") \
    REAL(optimizer, max_grad_norm, 1, -1e30, 1e30, "", \
         "clip gradients to this global norm; 0 or less: do not clip") \
    ENUM(optimizer, lr_scale_rule, "none", "none|linear|sqrt", \
         "multiply lr by train_batch_size / lr_base_batch_size (linear) or by its square root (sqrt)") \
    INT (optimizer, lr_base_batch_size, 0, 0, INT64_MAX, "samples", \
         "batch size that lr was chosen for (lr_scale_rule)") \
    ENUM(scheduler, type, "cosine", "constant|linear|cosine|wsd", \
         "how the learning rate develops after the warm-up; wsd: constant, then a decay at the end") \
    INT (scheduler, warmup_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "steps in which the learning rate rises from 0 to lr; 0: warmup_ratio decides") \
    REAL(scheduler, warmup_ratio, 0, 0, 1, "of all steps", "length of the warm-up when warmup_steps is 0") \
    REAL(scheduler, min_lr_ratio, 0, 0, 1, "of lr", "learning rate at the end of the run (linear, cosine, wsd)") \
    REAL(scheduler, decay_ratio, 0.1, 0, 1, "of all steps", "length of the decay at the end of the run (wsd)") \
    ENUM(scheduler, decay_type, "linear", "linear|cosine|sqrt", \
         "shape of the decay (wsd); sqrt: 1 - square root of progress") \
    ENUM(scheduler, on_extend, "rescale", "rescale|continue|rewarm", \
         "learning rate of a resumed run whose number of steps has changed: rescale: as if the run had had the new " \
         "number from its start, so the rate may jump; continue: no jump, from the rate reached it decays until the " \
         "new end; rewarm: from the rate reached it warms up to lr again, then follows type") \
    ENUM(precision, dtype, "fp32", "auto|fp32|bf16|fp16", \
         "data type of parameters and activations; bf16 and fp16 keep fp32 master weights and optimizer states, fp16 " \
         "scales the loss besides; auto: bf16, which all devices have") \
    REAL(precision, loss_scale, 0, 0, 1e30, "", \
         "fp16: what the loss is multiplied by before backward; 0: dynamic, as the keys below say") \
    INT (precision, initial_scale_power, 16, 0, 60, "", "fp16: a dynamic loss scale begins with 2 to this power") \
    INT (precision, loss_scale_window, 1000, 1, INT64_MAX, "optimizer steps", \
         "fp16: a dynamic loss scale is doubled after this many steps without an overflow") \
    INT (precision, hysteresis, 2, 1, INT32_MAX, "overflows", \
         "fp16: a dynamic loss scale is halved at this overflow, and at each that follows within the window") \
    BOOL(precision, consecutive_hysteresis, false, \
         "fp16: every step without an overflow brings back the whole hysteresis, not a whole window of them alone") \
    REAL(precision, min_loss_scale, 1, 1e-30, 1e30, "", \
         "fp16: a dynamic loss scale is not lowered below this; an overflow with it ends the run with exit code 71") \
    ENUM(precision, reduce_dtype, "auto", "auto|fp32|bf16|fp16", \
         "data type in which ranks send gradients to be summed; the sum is in fp32; auto: that of the gradients, " \
         "which is fp32 where micro-steps are added up or run.reproducible is set, else precision.dtype") \
    ENUM(zero, stage, "0", "auto|auto:size|0|1|2|3", \
         "what is sharded over the ranks. 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters. " \
         "auto: the first that fits in memory of the stages, then of the stages with the optimizer offloaded, then " \
         "with the parameters, to cpu and then to nvme; an offload that is given is kept. auto:size: 0 below 10^9 " \
         "parameters, 2 up to 7 10^9, 3 above") \
    ENUM(zero, shard_group, "world", "world|node", \
         "among whom a stage shards. world: all ranks; node: the ranks of a node, and every node has a whole copy: " \
         "parameters are gathered inside nodes alone, and only sums of gradients pass between them") \
    INT (zero, reduce_bucket_size, 2000000000, 1, INT64_MAX, "elements", \
         "at most this many gradients are reduced in one collective; a block that has more is cut and passes through " \
         "a staging buffer of this size") \
    INT (zero, allgather_bucket_size, 2000000000, 1, INT64_MAX, "elements", \
         "at most this many parameters are gathered in one collective; a block that has more is cut and passes " \
         "through a staging buffer of this size") \
    INT (zero, prefetch_bucket_size, 2000000000, 0, INT64_MAX, "elements", \
         "stage 3: gather the parameters of the next block ahead of time if it has at most this many; 0: never") \
    INT (zero, param_persistence_threshold, 0, 0, INT64_MAX, "elements", \
         "stage 3: blocks with fewer parameters than this are replicated, not sharded") \
    INT (zero, max_live_parameters, 4000000000, 1, INT64_MAX, "elements", \
         "stage 3: a rank holds at most this many gathered parameters at a time; where it is too few for two blocks, " \
         "none is gathered ahead of time") \
    BOOL(zero, overlap_comm, true, \
         "communicate while computing, where the device can, with room for two blocks' gradients and, at stage 3, " \
         "parameters") \
    ENUM(zero, offload_optimizer, "none", "none|cpu|nvme", \
         "keep optimizer states and fp32 master weights off the device, each rank its shard, where the processor " \
         "updates them. cpu: in host memory; nvme: in a file under nvme_path; gradients gather in host memory") \
    ENUM(zero, offload_param, "none", "none|cpu|nvme", \
         "stage 3: keep the parameters that a rank owns off the device, and bring each block when it is used, also " \
         "those of a task's frozen models. cpu: in host memory; nvme: in a file under nvme_path") \
    TEXT(zero, nvme_path, "", \
         "directory on a fast disk of each node for what is offloaded to nvme; the files have no name there and are " \
         "gone when the program ends, however it ends") \
    BOOL(zero, pin_memory, true, \
         "what goes between device and host memory stands in pinned memory, so that copies run beside the " \
         "computation; false: in pageable memory, and the host waits for each copy") \
    INT (zero, sub_group_size, 20000000, 4096, INT64_MAX, "elements", \
         "offloaded optimizer states are updated so many elements at a time; bounds their staging buffers") \
    INT (zero, buffer_count, 4, 1, 1024, "buffers", \
         "staging buffers of offloaded states: sub-groups, or blocks of parameters, that are on their way at a time; " \
         "with nvme reads, updates and writes run beside each other from 3 on") \
    ENUM(comm, backend, "auto", "auto|mpi|nccl", "library that moves tensors between ranks") \
    REAL(comm, timeout, 1800, 1, 1e9, "seconds", \
         "end the run with exit code 76 when nothing has progressed for this long; " \
         "time in which the job is suspended does not count") \
    BOOL(comm, shared_memory, true, "ranks of one node exchange data through shared memory") \
    BOOL(comm, check, false, \
         "for looking for mistakes: before each collective all ranks agree on what it is, and where one calls " \
         "another than the rest the run ends with exit code 76 and says which") \
    INT (lora, r, 0, 0, 65536, "", \
         "LoRA: adapters of this rank beside linear layers are trained, and the model's own weights stay as they " \
         "are; 0: off, the weights themselves are trained") \
    REAL(lora, alpha, 8, 1e-6, 65536, "", \
         "what an adapter computes is added times alpha / r, or with use_rslora times alpha / sqrt(r)") \
    REAL(lora, dropout, 0, 0, 0.99, "probability", "of the input of adapters, in training") \
    BOOL(lora, use_rslora, false, "rsLoRA: scale by alpha / sqrt(r)") \
    TEXT(lora, target_modules, "", \
         "layers that have adapters: names, comma separated, as the model's tensors have them (q_proj, " \
         "layers.0.mlp.up_proj), all-linear, or a regular expression that whole names match; empty: q_proj, v_proj, " \
         "of GPT-2 c_attn. Embeddings and head are named (embed_tokens, lm_head, of GPT-2 wte, wpe): all-linear " \
         "leaves them out. Of a vision-language model, names and patterns mean the language model's layers only") \
    ENUM(lora, init, "kaiming", "kaiming|gaussian", \
         "how the first matrix of a linear layer's adapter starts, the second is zero. kaiming: uniform up to 1 / " \
         "sqrt(width of its input); gaussian: normal with standard deviation 1 / r") \
    TEXT(lora, modules_to_save, "", \
         "modules that are trained whole beside the adapters, comma separated, such as embed_tokens, lm_head; the " \
         "score of a reward model is in any case") \
    TEXT(lora, rank_pattern, "", \
         "other ranks for some layers, comma separated, as v_proj:16, layers.0.mlp.up_proj:4; the first that fits " \
         "counts") \
    TEXT(lora, alpha_pattern, "", "likewise other values of alpha") \
    TEXT(lora, path, "", "adapter to go on from: a directory as PEFT writes it") \
    ENUM(lora, base_quantization, "none", "none|int8|nf4", \
         "how the matrices of blocks that are not trained are stored; int8: a byte a weight and a float a row; nf4: " \
         "half a byte a weight, as bitsandbytes has it with double quantisation; both rounded when they are loaded") \
    MAYBE(lora, llm_int8_threshold, number, 0, 1e30, "", "", \
          "with base_quantization = int8: products in int8, as bitsandbytes does; input columns with an element at " \
          "least this large stay in precision.dtype (6 is usual; 0: none do). Empty: products in precision.dtype") \
    REAL(checkpoint, save_steps, 500, 0, 1e12, "optimizer steps", \
         "save a checkpoint every this many steps; below 1: a fraction of all steps; 0: only at the end") \
    ENUM(checkpoint, save, "all", "all|trainable", \
         "what a checkpoint holds of the model; trainable: what is trained and its states alone, where a part is " \
         "frozen (adapters): the rest is read from model.path again, which has to stay as it is") \
    INT (checkpoint, save_total_limit, 0, 0, INT64_MAX, "files", \
         "keep at most this many checkpoints, the newest ones; the best is kept in addition; 0: all") \
    BOOL(checkpoint, async, false, \
         "go on training while a checkpoint is written, from a copy of the states in host memory (12 bytes for each " \
         "parameter that a rank owns with Adam: --plan counts them); false: training waits for the file") \
    TEXT(checkpoint, resume, "auto", \
         "auto: continue from the newest intact checkpoint in output_dir, or start anew if there is none; none: " \
         "start anew; or the path of a checkpoint") \
    TEXT(checkpoint, allow_changes, "", \
         "keys that a resumed run may change although its checkpoint would be refused for them, such as run.task, " \
         "data.train, data.seq_len; or all") \
    BOOL(checkpoint, load_best_model_at_end, false, \
         "save whenever a validation is the best so far, keep that checkpoint (the file `best` names it), and end " \
         "the run with its weights, which are then exported") \
    TEXT(checkpoint, metric_for_best_model, "validation_loss", \
         "metric of validation lines that tells which validation is the best, with or without the task's prefix: " \
         "validation_loss (eval_loss of transformers), validation_accuracy, rm/validation_accuracy, " \
         "dpo/validation_rewards/margins, grpo/validation_reward and so on") \
    ENUM(checkpoint, greater_is_better, "auto", "auto|true|false", \
         "whether the best metric is the greatest; auto: unless it is a loss, a perplexity, an entropy, a cost, a KL " \
         "divergence or a clipped_ratio") \
    BOOL(checkpoint, save_on_signal, true, "save a checkpoint when a signal or the time limit ends the run") \
    ENUM(checkpoint, export, "none", "none|hf", \
         "at the end of the run; hf: write the model and its tokenizer to OUTPUT_DIR/hf as a Hugging Face " \
         "directory") \
    ENUM(checkpoint, export_dtype, "auto", "auto|fp32|bf16|fp16", \
         "data type of the exported weights; auto: precision.dtype") \
    ENUM(rm, kind, "pairwise", "pairwise|harmless", \
         "pairwise: the chosen answer gets the greater reward; harmless: a safety score, above 0 for safe answers, " \
         "learned from which answer of a pair is safer and from which answers are safe") \
    ENUM(rm, loss_type, "sigmoid", "sigmoid|hinge", \
         "of a pair with the difference d of its rewards less its margin: sigmoid: -log sigmoid(d); hinge: " \
         "max(0, -d)") \
    REAL(rm, margin, 0, -1e6, 1e6, "reward", \
         "by how much the reward of the chosen answer should be greater, in addition to the margin that the data has") \
    REAL(rm, label_smoothing, 0, 0, 0.5, "probability", \
         "that a pair is the wrong way round, for loss_type = sigmoid") \
    REAL(rm, center_rewards_coefficient, 0, 0, 1e6, "", \
         "adds this times the square of the sum of a pair's rewards to its loss, so that rewards stay around 0 (0.01 " \
         "is usual); 0: off") \
    REAL(rm, w_cls, 1, 0, 1e6, "", \
         "kind = harmless: weight of the loss of telling safe answers from unsafe ones; answers whose safety the " \
         "data does not say have none") \
    REAL(rm, w_tie, 1, 0, 1e6, "", \
         "weight of the squared difference of the rewards of a tie, a pair of which neither answer is better: its " \
         "loss in the place of loss_type") \
    INT (rm, max_length, 0, 0, 16777216, "tokens", \
         "pairs with a longer text are left out (or cut, with rm.truncate); 0: data.seq_len, which it may not exceed") \
    BOOL(rm, truncate, false, "cut longer texts after max_length tokens instead of leaving out their pairs") \
    REAL(dpo, beta, 0.1, 1e-6, 1e6, "", "how strongly the model is held to the reference") \
    TEXT(dpo, loss_type, "sigmoid", \
         "loss of a pair, or several, comma separated, that are added with loss_weights: sigmoid, cdpo, robust, " \
         "hinge, ipo, sigmoid_norm, exo_pair, nca_pair, bco_pair, sppo_hard, apo_zero, apo_down, discopop, aot, " \
         "aot_unpaired, sft") \
    TEXT(dpo, loss_weights, "", "weights of the losses in loss_type, in their order; empty: 1 each") \
    REAL(dpo, label_smoothing, 0, 0, 0.5, "probability", \
         "that a pair is the wrong way round: for cdpo, robust (below 0.5), exo_pair (above 0), aot and aot_unpaired") \
    ENUM(dpo, f_divergence, "reverse_kl", "reverse_kl|forward_kl|js_divergence|alpha_divergence", \
         "what holds the model to the reference, of the losses sigmoid, cdpo, robust, hinge, ipo, sigmoid_norm, " \
         "exo_pair and discopop") \
    REAL(dpo, f_alpha_divergence_coef, 0.5, -100, 100, "", "alpha of f_divergence = alpha_divergence") \
    REAL(dpo, discopop_tau, 0.05, 1e-6, 1e6, "", "temperature of discopop") \
    REAL(dpo, ld_alpha, 1, 0, 1, "", \
         "weight of the tokens of an answer beyond the length of the other one; 1: the same as of the others") \
    BOOL(dpo, use_wpo, false, \
         "multiply the loss of a pair by how probable both answers are by the model in training (WPO)") \
    BOOL(dpo, average, false, "means of an answer's log-probabilities in the place of their sums") \
    TEXT(dpo, reference_path, "", \
         "model that the log-probabilities are compared with, a directory or a checkpoint; empty: model.path") \
    BOOL(dpo, precompute_reference, false, \
         "find the reference's log-probabilities before the training and keep them in " \
         "OUTPUT_DIR/reference-logps.bin, so that it takes no memory; the file is made once, and refused when " \
         "model, data or lengths are others now") \
    INT (dpo, sync_reference_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "after every so many steps the reference becomes sync_reference_mixup times the model in training plus the " \
         "rest of itself (512 is usual); 0: never") \
    REAL(dpo, sync_reference_mixup, 0.6, 0, 1, "", "see sync_reference_steps") \
    TEXT(dpo, helpful_path, "", \
         "MM-DPO: frozen reward model that says by how much the chosen answer of a pair is better, a directory or a " \
         "checkpoint; empty: the data says it, or nobody") \
    ENUM(dpo, dynamic_beta, "margin", "margin|factor|batch", \
         "what beta follows. margin: this margin m of a pair, beta (1 + beta_w (1 - exp(-beta_k m))); factor: m " \
         "without bound, beta (1 + beta_w m), at least 0.001; batch: how the model ranks all pairs of a step, one " \
         "beta for all, and pairs far from the usual are left out (beta-DPO)") \
    MAYBE(dpo, beta_w, number, 0, 1e6, "", "", \
          "by how much beta follows it; 0: not at all; not set: of margin 0.5, of factor 0.1, of batch 0.6. A pair " \
          "whose margin neither a model nor the data says has 0") \
    REAL(dpo, beta_k, 0.5, 0, 1e6, "", "how fast beta grows with a margin (dynamic_beta = margin)") \
    ENUM(dpo, negative_margin, "clamp", "clamp|abs", \
         "a margin below 0 counts as 0 (clamp) or as its size (abs); of factor it counts as it is") \
    REAL(dpo, beta_keep, 0.8, 0, 1, "share of a step's pairs", \
         "that dynamic_beta = batch trains on, drawn by how near their margins are to the usual one; at least one " \
         "pair") \
    REAL(dpo, beta_momentum, 0.9, 0, 1, "", \
         "what the usual margin and its deviation keep of themselves in a step (dynamic_beta = batch)") \
    TEXT(dpo, harmless_path, "", \
         "Safe-MM-DPO: frozen safety model (rm.kind = harmless). A second loss has its margins, and weighs " \
         "lambda / (1 + lambda) beside 1 / (1 + lambda); empty: there is no such loss") \
    REAL(dpo, lambda_init, 1, 1e-8, 20, "", "lambda at the start") \
    REAL(dpo, lambda_lr, 0.01, 0, 1e3, "", \
         "how fast lambda rises while the expected cost (minus safety) is above cost_limit, and falls below it") \
    REAL(dpo, lambda_max, 10, 1e-8, 20, "", "the largest lambda") \
    REAL(dpo, lambda_min, 0.01, 1e-8, 20, "", "the smallest lambda") \
    REAL(dpo, cost_limit, 0, -1e6, 1e6, "cost", "expected cost at which lambda stays") \
    MAYBE(dpo, kl_coef, number, 0, 1e6, "", "", \
          "weight of the KL divergence from the reference, a mean over the tokens of chosen answers; not set: 0.1 " \
          "with harmless_path, else 0") \
    ENUM(dpo, kl_estimator, "full", "full|k3", \
         "how it is found. full: from the probabilities of the whole vocabulary; k3: from those of the answer's " \
         "tokens") \
    TEXT(ppo, reward_path, "", \
         "reward model that scores completions, a directory or a checkpoint; the critic starts from it; it counts as " \
         "the first of reward_funcs") \
    TEXT(ppo, reward_funcs, "", \
         "functions that score completions, comma separated: names of built-in ones, model:DIRECTORY, " \
         "command:PROGRAM ARGUMENTS; their weighted sum is the score") \
    TEXT(ppo, reward_weights, "", "weights of reward_path, if any, and reward_funcs, in their order; empty: 1 each") \
    TEXT(ppo, value_path, "", \
         "model that the critic starts from; empty: the reward model, else model.path with a new head") \
    TEXT(ppo, reference_path, "", "model that the policy is held to; empty: model.path") \
    TEXT(ppo, cost_path, "", \
         "PPO-Lagrangian: safety model (rm.kind = harmless) whose negative score is the cost of a completion; the " \
         "keys of lambda and cost below are for it alone") \
    TEXT(ppo, rollouts, "", \
         "file of completions to train on instead of generating them, as log.rollouts writes it; its rewards take " \
         "the place of reward functions") \
    INT (ppo, total_episodes, 0, 0, INT64_MAX, "completions", \
         "length of the run when max_steps is 0, rounded up to whole rollouts; 0: run.epochs over the prompts") \
    INT (ppo, num_ppo_epochs, 4, 1, 1000000, "", "times that a rollout is trained on") \
    INT (ppo, num_mini_batches, 1, 1, 1000000, "", \
         "optimizer steps in such an epoch; each takes train_batch_size completions, so a rollout has this many " \
         "times as many") \
    INT (ppo, response_length, 53, 1, 16777216, "tokens", "longest completion") \
    REAL(ppo, temperature, 0.7, 0.001, 1000, "", "logits are divided by it, in sampling and in all log-probabilities") \
    TEXT(ppo, stop_token, "eos", \
         "token that ends a completion: eos, or a token of the vocabulary as text or id") \
    REAL(ppo, missing_eos_penalty, 0, 0, 1e6, "", "taken off the score of a completion that was cut") \
    BOOL(ppo, use_score_scaling, false, "divide scores by the standard deviation of all scores so far") \
    BOOL(ppo, use_score_norm, false, "with use_score_scaling: take their mean off first") \
    MAYBE(ppo, score_clip, number, 0, 1e6, "null", "", \
         "then keep scores within plus and minus this; null: do not; not set: 50 with cost_path, else null") \
    BOOL(ppo, whiten_rewards, false, \
         "divide the rewards of tokens by their standard deviation, over the whole rollout") \
    MAYBE(ppo, kl_coef, number, 0, 1e6, "", "", \
         "penalty for each nat of divergence from the reference; not set: 0.01 with cost_path, else 0.05") \
    ENUM(ppo, kl_estimator, "k1", "k1|k3", \
         "divergence at a token, with d = log reference - log policy: k1: -d; k3: exp(d) - 1 - d") \
    BOOL(ppo, adaptive_kl, false, "kl_coef follows the divergence, which is to be adaptive_kl_target") \
    REAL(ppo, adaptive_kl_target, 6, 1e-6, 1e6, "nats", "of a completion") \
    REAL(ppo, adaptive_kl_horizon, 10000, 1, 1e12, "completions", "how slowly kl_coef follows") \
    REAL(ppo, target_kl, 0, 0, 1e6, "nats", \
         "leave out the remaining epochs of a rollout when policy/approxkl of one is above this; 0: never") \
    REAL(ppo, gamma, 1, 0, 1, "", "discount of later rewards") \
    REAL(ppo, lam, 0.95, 0, 1, "", "lambda of generalised advantage estimation") \
    REAL(ppo, cliprange, 0.2, 0, 1e6, "", "the policy gains nothing from ratios further than this from 1") \
    MAYBE(ppo, cliprange_value, number, 0, 1e6, "null", "", \
         "the same for values, around those of the rollout; null: not clipped; not set: 5 with cost_path, else 0.2") \
    REAL(ppo, vf_coef, 0.1, 0, 1e6, "", "weight of the critic's loss") \
    REAL(ppo, ent_coef, 0, 0, 1e6, "", "weight of the entropy of the policy, as a bonus") \
    REAL(ppo, lambda_init, 1, 1e-8, 20, "", "multiplier of costs at the start") \
    REAL(ppo, lambda_lr, 0.1, 0, 1e6, "", "how fast its logarithm rises with costs above cost_limit") \
    REAL(ppo, lambda_max, 5, 1e-8, 20, "", "its largest value") \
    REAL(ppo, lambda_min, 0.01, 1e-8, 20, "", "its smallest value") \
    REAL(ppo, cost_limit, 0, -1e6, 1e6, "", "mean cost that is allowed") \
    INT (ppo, cost_window, 128, 1, 100000000, "completions", "costs are averaged over the last so many") \
    INT (grpo, num_generations, 8, 2, 65536, "completions", \
         "of each prompt, which are compared with each other; steps and generations take whole groups of them") \
    INT (grpo, max_completion_length, 512, 1, 16777216, "tokens", "a completion is cut after so many") \
    INT (grpo, steps_per_generation, 0, 0, INT64_MAX, "micro-steps", \
         "that one generation feeds, a multiple of batch.gradient_accumulation_steps, or a divisor: then a step " \
         "takes several generations; 0: one optimizer step") \
    INT (grpo, generation_batch_size, 0, 0, INT64_MAX, "completions", \
         "the same as a number of completions of all ranks, a multiple or a divisor of batch.train_batch_size; 0: " \
         "steps_per_generation says it") \
    INT (grpo, num_iterations, 1, 1, 65536, "", "how often the steps of a generation are done") \
    REAL(grpo, temperature, 1, 1e-3, 1e3, "", \
         "logits are divided by it: where completions are drawn, and where the loss and the reference see them") \
    REAL(grpo, top_p, 1, 0, 1, "", \
         "drawn from the fewest most probable tokens that have this much probability; 1: all") \
    INT (grpo, top_k, 0, 0, INT64_MAX, "tokens", "drawn from so many most probable tokens; 0: all") \
    REAL(grpo, min_p, 0, 0, 1, "", \
         "drawn from tokens at least this much as probable as the most probable one; 0: all") \
    REAL(grpo, repetition_penalty, 1, 1e-3, 1e3, "", \
         "of tokens that are there already, above 1: less probable; 1: none") \
    TEXT(grpo, reward_funcs, "", \
         "reward functions, comma separated: accuracy, format, length, keywords, rec, rec_semantic, model:DIRECTORY, " \
         "command:PROGRAM ARGS (docs/rewards.md)") \
    TEXT(grpo, reward_weights, "", "weights of the functions in reward_funcs, in their order; empty: 1 each") \
    INT (grpo, overlong_cache, 0, 0, 16777216, "tokens", \
         "a completion within so many tokens of overlong_max_length gets a penalty that grows from 0 to 1, as a " \
         "reward function called overlong (DAPO); 0: none") \
    INT (grpo, overlong_max_length, 0, 0, 16777216, "tokens", "0: max_completion_length") \
    REAL(grpo, overlong_penalty, 1, 0, 1e6, "", "weight of that penalty among the rewards") \
    ENUM(grpo, scale_rewards, "group", "group|batch|none", \
         "what the difference of a reward and its group's mean is divided by: the standard deviation of the group, " \
         "of the whole generation, or nothing (Dr. GRPO)") \
    ENUM(grpo, multi_objective_aggregation, "sum_then_normalize", "sum_then_normalize|normalize_then_sum", \
         "whether rewards are added before they are compared, or each function is normalised within its group first " \
         "(GDPO; scale_rewards does not matter then)") \
    BOOL(grpo, dynamic_sampling, false, \
         "groups whose rewards are all equal are left out and others generated in their place (DAPO)") \
    INT (grpo, dynamic_sampling_rounds, 10, 1, 65536, "generations", \
         "at most so many for one, the first included; then it is taken as it is") \
    ENUM(grpo, loss_type, "dapo", "grpo|bnpo|dr_grpo|dapo|cispo|sapo|luspo|vespo", \
         "how tokens are weighted and what bounds the ratio of new to old probabilities; docs/algorithms.md has the " \
         "formulas. bnpo divides by the tokens of a micro-batch: its results depend on batch.micro_batch_size") \
    ENUM(grpo, importance_sampling_level, "token", "token|sequence", \
         "the ratio of each token, or one for a completion, the exponential of the mean of its log-ratios (GSPO)") \
    REAL(grpo, epsilon, 0.2, 0, 1e6, "", "the ratio is clipped below 1 - epsilon") \
    MAYBE(grpo, epsilon_high, number, 0, 1e6, "", "", \
         "and above 1 + epsilon_high (DAPO: 0.28); of cispo the largest ratio (5 is usual); not set: epsilon") \
    MAYBE(grpo, delta, number, 0, 1e6, "", "", \
         "largest ratio where clipping would let it grow, with a negative advantage (above 1 + epsilon_high); not " \
         "set: no bound") \
    REAL(grpo, sapo_temperature_pos, 1, 1e-6, 1e6, "", "loss_type = sapo: of tokens with a positive advantage") \
    REAL(grpo, sapo_temperature_neg, 1.05, 1e-6, 1e6, "", "loss_type = sapo: of the others") \
    REAL(grpo, vespo_k_pos, 2, 0, 1e6, "", "loss_type = vespo: power of ratios, of advantages from 0 on") \
    REAL(grpo, vespo_lambda_pos, 3, 0, 1e6, "", "loss_type = vespo: their decay") \
    REAL(grpo, vespo_k_neg, 3, 0, 1e6, "", "loss_type = vespo: power of ratios, of negative advantages") \
    REAL(grpo, vespo_lambda_neg, 2, 0, 1e6, "", "loss_type = vespo: their decay") \
    MAYBE(grpo, off_policy_mask_threshold, number, 0, 1e6, "", "", \
         "completions with a negative advantage are left out of the policy term when the mean of their old minus " \
         "their new log-probabilities is above this; not set: none") \
    BOOL(grpo, mask_truncated_completions, false, "completions without an end are left out of the loss") \
    REAL(grpo, beta, 0, 0, 1e6, "", "weight of the divergence from the reference; 0: there is no reference") \
    BOOL(grpo, use_bias_correction_kl, false, "the divergence is multiplied by the ratio (TRL's default is true)") \
    TEXT(grpo, reference_path, "", \
         "model that beta holds the model in training to, a directory or a checkpoint; empty: model.path") \
    INT (grpo, sync_reference_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "after every so many steps the reference becomes sync_reference_mixup times the model in training plus the " \
         "rest of itself (512 is usual); 0: never") \
    REAL(grpo, sync_reference_mixup, 0.6, 0, 1, "", "see sync_reference_steps") \
    REAL(grpo, ent_coef, 0, -1e6, 1e6, "", \
         "weight of the mean entropy of the completions' tokens, which is subtracted from the loss (TRL: " \
         "entropy_coef)") \
    REAL(grpo, top_entropy_quantile, 1, 0, 1, "", \
         "share of a step's tokens, those with the highest entropy, that take part in the policy term; 1: all") \
    ENUM(grpo, rollout, "sample", "sample|beam", \
         "completions of a prompt are drawn one by one, or the num_generations best of a beam search, best first; " \
         "with rec.catalogue they are its items") \
    TEXT(grpo, rollouts, "", \
         "file of completions that are taken instead of generating, as log.rollouts writes it: a JSON object a line, " \
         "with prompt_ids, completion_ids, and rewards, which then take the place of reward_funcs") \
    TEXT(rec, catalogue, "", \
         "items of a recommender, MiniOneRec's info file: lines SID, tab, title, tab, item id, where a SID is a text " \
         "of level tokens such as <a_17><b_203><c_5>; with it task eval measures how well the model recommends them") \
    TEXT(rec, item_embeddings, "", \
         "embeddings of the catalogue's items for the reward rec_semantic, a row for each as dtrain-sid has them: a " \
         "NumPy or HDF5 file") \
    TEXT(rec, item_embeddings_array, "", "array of an HDF5 file with several") \
    BOOL(rec, add_ground_truth, false, \
         "task grpo: the last completion of each group is replaced by the target, where that is an item") \
    BOOL(rec, distinct_sampling, false, \
         "task grpo with rollout = sample: one and a half times num_generations completions are drawn, of which the " \
         "target's and as many different ones as there are stay (MiniOneRec's dynamic sampling; " \
         "grpo.dynamic_sampling is DAPO's)") \
    BOOL(rec, freeze_llm, false, \
         "train the rows of the catalogue's level tokens alone, in the embedding and in a head of its own; all else " \
         "stays as it is, to the bit") \
    INT (rec, num_beams, 50, 1, 65536, "items", "that are searched for and ranked for each prompt") \
    TEXT(rec, top_k, "", \
         "K of HR@K and NDCG@K, comma separated, each at most num_beams; empty: 1, 3, 5, 10, 20, 50 up to num_beams") \
    TEXT(vision, path, "", \
         "tower that model.path, a language model's directory, is joined with: a directory of CLIP or SigLIP, of the " \
         "whole model or of its vision model alone; empty: model.path is a vision-language model already " \
         "(llava-hf), or one without images") \
    MAYBE(vision, projector_type, word, 0, 0, "linear|mlp2x_gelu|mlp|deep_mlp|pixel_shuffle", "", \
         "what turns the tower's features into rows of the language model's width. mlp2x_gelu: two layers, as LLaVA " \
         "1.5 and llava-hf have it; linear: one; mlp, deep_mlp: two and three, with LayerNorm and dropout; " \
         "pixel_shuffle: squares of patches side by side, then one; not set: mlp2x_gelu, or that of model.path") \
    TEXT(vision, projector_path, "", \
         "safetensors file with the projector's weights, under LLaVA's names (mm_projector.0.weight) or llava-hf's; " \
         "empty: those of model.path, or random ones for a new projector") \
    MAYBE(vision, projector_hidden_size, integer, 1, 1 << 22, "", "", \
         "width between the projector's layers; not set: the language model's (deep_mlp: 3072), or that of " \
         "model.path") \
    MAYBE(vision, projector_shuffle, integer, 1, 1 << 14, "", "patches", \
         "pixel_shuffle: side of the squares of patches that become one token; not set: 4, or that of model.path") \
    MAYBE(vision, projector_dropout, number, 0, 0.99, "", "probability", \
         "mlp, deep_mlp: dropout behind the projector's activations; not set: 0.1, or that of model.path") \
    MAYBE(vision, feature_layer, integer, -4097, 4096, "", "", \
         "which of the tower's hidden states are the features: 0 is what goes into its first block, 1 what that " \
         "leaves; -1 the last, -2 that before it; not set: -2, or that of model.path") \
    MAYBE(vision, feature_select, word, 0, 0, "patch|cls_patch", "", \
         "patch: the features of the patches; cls_patch: those of CLIP's class token before them; not set: patch, or " \
         "as in model.path") \
    MAYBE(vision, feature_norm, boolean, 0, 0, "", "", \
         "true: the features are what SigLIP's post_layernorm makes of the last hidden state (feature_layer -1), as " \
         "AnyLLM and nanoVLM have them; not set: false, or as in model.path") \
    MAYBE(vision, image_tokens, word, 0, 0, "patch_insert|mean_pooling", "", \
         "placeholders of an image in a text. patch_insert: one for each row that the projector makes; mean_pooling: " \
         "one, in whose place their mean stands; not set: patch_insert, or as in model.path") \
    TEXT(vision, train, "projector, llm", \
         "what is trained, comma separated: tower, projector, llm (all of the language model), llm:N (its last N " \
         "blocks, without the final norm), embed (its embedding), head (its output layer); with lora.r above 0 llm " \
         "is its adapters") \
    TEXT(vision, feature_cache, "", \
         "directory where the features of a tower that is not trained are kept: made once for each image before the " \
         "first step, then read in the place of images, and found again by every run with the same tower; empty: the " \
         "tower works on an image each time that it comes") \
    TEXT(vision, image_token, "<image>", \
         "token that stands for an image in texts, as the tokenizer writes it, or its id; with a model.path that has " \
         "images the one of its config.json") \
    REAL(log, logging_steps, 1, 0, 1e12, "optimizer steps", \
         "report every this many steps; below 1: a fraction of all steps") \
    TEXT(log, report_to, "stdout, jsonl, tensorboard", \
         "where metrics go: any of stdout, jsonl, csv, tensorboard, comma separated") \
    REAL(log, stdout_every, -1, -1, 1e9, "seconds", \
         "print a line at most every this many seconds where standard output is no terminal (metrics files get all); " \
         "0: print every report; -1: print the first ten, then one in 10 seconds or in 2% of the run's time, " \
         "whichever is longer, and at least one every 10 minutes") \
    BOOL(log, rollouts, false, \
         "tasks that generate: write OUTPUT_DIR/rollouts.jsonl, a line for each prompt with its completions, their " \
         "rewards by function, advantages and log-probabilities") \
    INT (log, completions, 2, 0, 1000000, "completions", \
         "tasks that generate: print so many of a rollout, as often as log.stdout_every says; 0: none") \
    BOOL(log, wall_clock_breakdown, false, \
         "put the milliseconds of a step into the metrics, as the device spends them: data, forward, backward, " \
         "communication exposed and hidden, update, copies, agreement, rollout, scoring, rewards; minimum, mean and " \
         "maximum over the ranks") \
    BOOL(log, trace, false, \
         "write trace.json (Chrome trace format): every phase and block on every rank, with a lane for each stream")
/* clang-format on */

#endif
