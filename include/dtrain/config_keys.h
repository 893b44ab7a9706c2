/* config_keys.h - every configuration key, once: section, key, default, limits, unit, help. See config.h. */
#ifndef DTRAIN_CONFIG_KEYS_H
#define DTRAIN_CONFIG_KEYS_H

#define DT_CONFIG_KEYS(INT, REAL, BOOL, ENUM, TEXT)                                                                    \
    /* clang-format off */ \
    ENUM(run, task, "pretrain", "pretrain|sft|eval", "what to do") \
    TEXT(run, output_dir, "", "directory of the run: config.ini, metrics.jsonl, checkpoints/, events; needed by all tasks but eval") \
    INT (run, seed, 42, 0, INT64_MAX, "", "seed of every random number: order of samples, initial weights, dropout") \
    INT (run, max_steps, 0, 0, INT64_MAX, "optimizer steps", "stop after so many steps; 0: epochs decides") \
    REAL(run, epochs, 1, 0, 1e9, "passes over the data", "used when max_steps is 0") \
    ENUM(run, device, "auto", "auto|cpu|cuda", "where tensors live and kernels run") \
    INT (run, threads, 0, 0, 4096, "threads a rank", "threads of the CPU device; 0: the cores of the node shared among its ranks") \
    BOOL(run, reproducible, false, "bit-identical losses and weights whatever the number of ranks, the ZeRO stage and the offload") \
    REAL(run, time_limit, 0, 0, 1e9, "seconds", "save and leave (exit code 75) before so much time has passed since the start; 0: no limit") \
    INT (run, max_skipped_steps, 20, 1, INT64_MAX, "optimizer steps", "consecutive steps left out for non-finite gradients before the run ends (exit code 71)") \
    TEXT(model, path, "", "what to start from: a Hugging Face directory (config.json, safetensors), a checkpoint file, or a run's directory") \
    TEXT(model, tokenizer, "", "directory (or tokenizer.json) whose files go with exports and are used for generation, or bytes; default: that of path, or of the data") \
    TEXT(model, config, "", "config.json of the model to start from random weights") \
    TEXT(model, model_type, "", "gpt2, llama, mistral, qwen2 or qwen3 (inline model, with the keys below, named as in config.json)") \
    TEXT(model, hidden_size, "", "width of the model") \
    TEXT(model, intermediate_size, "", "width inside the MLP") \
    TEXT(model, num_hidden_layers, "", "blocks") \
    TEXT(model, num_attention_heads, "", "query heads") \
    TEXT(model, num_key_value_heads, "", "key and value heads") \
    TEXT(model, head_dim, "", "width of a head") \
    TEXT(model, vocab_size, "", "rows of the embedding") \
    TEXT(model, max_position_embeddings, "", "longest sequence") \
    TEXT(model, rope_theta, "", "base of the rotary frequencies") \
    TEXT(model, rope_scaling, "", "JSON object, as in config.json") \
    TEXT(model, rms_norm_eps, "", "epsilon of the norms (layer_norm_epsilon of GPT-2 too)") \
    TEXT(model, hidden_act, "", "activation: silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu") \
    TEXT(model, tie_word_embeddings, "", "true: the head is the embedding") \
    TEXT(model, attention_bias, "", "biases on the attention projections (Llama, Qwen3)") \
    TEXT(model, mlp_bias, "", "biases in the MLP (Llama)") \
    TEXT(model, sliding_window, "", "a token attends to so many tokens, itself included (Mistral)") \
    TEXT(model, initializer_range, "", "standard deviation of random weights") \
    ENUM(model, attention, "auto", "auto|flash", "kernel of the attention; flash: exact, in tiles, without the matrix of scores") \
    ENUM(model, activation_checkpointing, "none", "none|block", "block: keep each block's input alone and recompute the rest in backward") \
    REAL(model, dropout, -1, -1, 0.99, "probability", "overrides the three dropout keys of config.json; -1: as there (0 but for GPT-2)") \
    TEXT(data, train, "", "dataset files: paths, globs, comma separated; with any path:weight samples are mixed in that proportion (1 where none is given)") \
    TEXT(data, validation, "", "the same for validation") \
    INT (data, seq_len, 1024, 1, 16777216, "tokens", "length of a row of tokens; longest SFT sample, longer ones keep their first tokens") \
    ENUM(data, packing, "auto", "auto|none|wrapped|bfd|bfd_split", "wrapped: cut the stream into rows (tokens); none: a row is a sample (sft); bfd: best-fit decreasing by document") \
    BOOL(data, document_mask, false, "wrapped rows: attention, positions and targets do not cross documents (bfd rows never do)") \
    BOOL(data, shuffle, true, "a permutation that depends on seed and epoch alone") \
    BOOL(data, drop_last, false, "leave out the last incomplete micro-batch of an epoch") \
    REAL(data, validation_steps, 0, 0, 1e12, "optimizer steps", "validate every so many steps; below 1: that share of all steps; 0: at the end only") \
    INT (data, max_validation_samples, 0, 0, INT64_MAX, "samples", "validate on the first so many samples; 0: all") \
    INT (data, prefetch, 2, 0, 1024, "micro-batches", "read ahead in the background; 0: read when needed") \
    INT (batch, train_batch_size, 0, 0, INT64_MAX, "samples", "samples an optimizer step, all ranks together; 0: from the other two") \
    INT (batch, micro_batch_size, 0, 0, INT32_MAX, "samples", "samples a rank and micro-step; 0: from the other two") \
    INT (batch, gradient_accumulation_steps, 0, 0, INT32_MAX, "micro-steps", "micro-steps an optimizer step; 0: from the other two") \
    REAL(optimizer, lr, 3e-4, 0, 10, "", "peak learning rate") \
    TEXT(optimizer, betas, "0.9, 0.999", "decay of the two moments") \
    REAL(optimizer, eps, 1e-8, 0, 1, "", "added to the root of the second moment") \
    REAL(optimizer, weight_decay, 0, 0, 10, "", "decoupled; not on biases and norm weights") \
    REAL(optimizer, max_grad_norm, 1, -1e30, 1e30, "", "clip the global gradient norm; 0 or less: do not clip") \
    ENUM(optimizer, lr_scale_rule, "none", "none|linear|sqrt", "scale lr with train_batch_size / lr_base_batch_size") \
    INT (optimizer, lr_base_batch_size, 0, 0, INT64_MAX, "samples", "the batch size that lr was chosen for") \
    ENUM(scheduler, type, "cosine", "constant|linear|cosine|wsd", "shape of the learning rate after the warm-up") \
    INT (scheduler, warmup_steps, 0, 0, INT64_MAX, "optimizer steps", "linear from 0; wins over warmup_ratio") \
    REAL(scheduler, warmup_ratio, 0, 0, 1, "of all steps", "used when warmup_steps is 0") \
    REAL(scheduler, min_lr_ratio, 0, 0, 1, "of lr", "end of linear, cosine and wsd") \
    REAL(scheduler, decay_ratio, 0.1, 0, 1, "of all steps", "length of the decay at the end (wsd)") \
    ENUM(scheduler, decay_type, "linear", "linear|cosine|sqrt", "shape of the decay (wsd); sqrt: 1 - sqrt") \
    ENUM(precision, dtype, "fp32", "fp32|bf16", "parameters and activations; bf16 keeps fp32 master weights and moments") \
    ENUM(zero, stage, "0", "auto|0|1|2|3", "what the ranks share out: 1 optimizer, 2 and gradients, 3 and parameters; auto: the first that fits") \
    INT (zero, reduce_bucket_size, 500000000, 1, INT64_MAX, "elements", "most gradients a collective reduces at once") \
    INT (zero, allgather_bucket_size, 500000000, 1, INT64_MAX, "elements", "most parameters a collective gathers at once") \
    INT (zero, prefetch_bucket_size, 50000000, 0, INT64_MAX, "elements", "stage 3: gather the next unit ahead when it is no larger than this") \
    INT (zero, param_persistence_threshold, 0, 0, INT64_MAX, "elements", "stage 3: keep units smaller than this whole on every rank") \
    INT (zero, max_live_parameters, 1000000000, 1, INT64_MAX, "elements", "stage 3: most gathered parameters at a time") \
    BOOL(zero, overlap_comm, true, "communicate beside the computation where the device can") \
    ENUM(comm, backend, "auto", "auto|mpi|nccl", "what moves tensors between ranks") \
    REAL(comm, timeout, 1800, 1, 1e9, "seconds", "longest time without progress before the run ends (exit code 76)") \
    BOOL(comm, shared_memory, true, "exchange through shared memory between ranks of a node") \
    REAL(checkpoint, save_steps, 500, 0, 1e12, "optimizer steps", "save every so many steps; below 1: that share of all steps; 0: at the end only") \
    INT (checkpoint, save_total_limit, 0, 0, INT64_MAX, "files", "keep the newest so many; 0: all") \
    TEXT(checkpoint, resume, "auto", "auto: the newest good checkpoint of output_dir, else a fresh start; none; or a path") \
    BOOL(checkpoint, save_on_signal, true, "write a checkpoint when a signal or the time limit ends the run") \
    ENUM(checkpoint, export, "none", "none|hf", "at the end of the run; hf: OUTPUT_DIR/hf, a Hugging Face directory with the tokenizer's files") \
    ENUM(checkpoint, export_dtype, "auto", "auto|fp32|bf16|fp16", "data type of the exported weights; auto: precision.dtype") \
    REAL(log, logging_steps, 1, 0, 1e12, "optimizer steps", "report every so many steps; below 1: that share of all steps") \
    TEXT(log, report_to, "stdout, jsonl, tensorboard", "any of stdout, jsonl, tensorboard") \
    BOOL(log, wall_clock_breakdown, false, "milliseconds of each phase, least, mean and most over ranks") \
    BOOL(log, trace, false, "write trace.json (Chrome trace format) of the phases and units of every rank")
    /* clang-format on */

#endif
