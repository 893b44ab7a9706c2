/* config_foreign.c - what keys and sections of transformers, TRL, DeepSpeed, Megatron and nanoGPT are called here. */
#include "config_private.h"
#include <string.h>
#include <strings.h>

typedef struct foreign_name {
    const char *name, *section, *key;
    const char *note; /* how the value is to be written, where it is not the same; or NULL */
} foreign_name;

static const foreign_name keys[] = {
    {"learning_rate", "optimizer", "lr", NULL},
    {"per_device_train_batch_size", "batch", "micro_batch_size", NULL},
    {"per_device_eval_batch_size", "batch", "micro_batch_size", NULL},
    {"per_gpu_train_batch_size", "batch", "micro_batch_size", NULL},
    {"train_micro_batch_size_per_gpu", "batch", "micro_batch_size", NULL},
    {"batch_size", "batch", "micro_batch_size", "samples of one rank; train_batch_size counts those of all ranks"},
    {"global_batch_size", "batch", "train_batch_size", NULL},
    {"grad_accum_steps", "batch", "gradient_accumulation_steps", NULL},
    {"num_train_epochs", "run", "epochs", NULL},
    {"num_epochs", "run", "epochs", NULL},
    {"max_train_steps", "run", "max_steps", NULL},
    {"num_train_steps", "run", "max_steps", NULL},
    {"train_iters", "run", "max_steps", NULL},
    {"max_iters", "run", "max_steps", NULL},
    {"total_num_steps", "run", "max_steps", NULL},
    {"random_seed", "run", "seed", NULL},
    {"data_seed", "run", "seed", NULL},
    {"full_determinism", "run", "reproducible", NULL},
    {"save_dir", "run", "output_dir", NULL},
    {"out_dir", "run", "output_dir", NULL},
    {"logging_dir", "run", "output_dir", NULL},
    {"bf16", "precision", "dtype", "bf16 = true is dtype = bf16"},
    {"fp16", "precision", "dtype", "fp16 = true is dtype = fp16"},
    {"fp32", "precision", "dtype", "fp32 = true is dtype = fp32"},
    {"torch_dtype", "precision", "dtype", "fp32, bf16 or fp16"},
    {"mixed_precision", "precision", "dtype", "fp32, bf16 or fp16"},
    {"fp16_opt_level", "precision", "dtype",
     "O0 is fp32, O1 bf16 or fp16, O2 fp16; O3, fp16 without master weights, is not offered"},
    {"opt_level", "precision", "dtype",
     "O0 is fp32, O1 bf16 or fp16, O2 fp16; O3, fp16 without master weights, is not offered"},
    {"initial_loss_scale", "precision", "initial_scale_power", "its logarithm to base 2: 65536 is 16"},
    {"init_scale", "precision", "initial_scale_power", "its logarithm to base 2: 65536 is 16"},
    {"growth_interval", "precision", "loss_scale_window", NULL},
    {"min_scale", "precision", "min_loss_scale", NULL},
    {"communication_data_type", "precision", "reduce_dtype", NULL},
    {"accumulate_allreduce_grads_in_fp32", "precision", "reduce_dtype", "true is reduce_dtype = fp32"},
    {"zero_optimization", "zero", "stage", "its keys are in section [zero]"},
    {"zero_stage", "zero", "stage", NULL},
    {"deepspeed", "zero", "stage",
     "the keys of that JSON file are keys of the sections here, those of zero_optimization in [zero]"},
    {"fsdp", "zero", "stage",
     "full_shard is stage 3, shard_grad_op stage 2, no_shard stage 0; hybrid_shard is stage = 3 with shard_group = "
     "node, "
     "hybrid_shard_zero2 stage = 2 with it"},
    {"sharding_strategy", "zero", "stage",
     "FULL_SHARD is stage 3, SHARD_GRAD_OP stage 2, NO_SHARD stage 0; HYBRID_SHARD is stage = 3 with shard_group = "
     "node, "
     "_HYBRID_SHARD_ZERO2 stage = 2 with it"},
    {"fsdp_sharding_strategy", "zero", "stage",
     "FULL_SHARD is stage 3, SHARD_GRAD_OP stage 2, NO_SHARD stage 0; HYBRID_SHARD is stage = 3 with shard_group = "
     "node, "
     "_HYBRID_SHARD_ZERO2 stage = 2 with it"},
    {"mics_shard_size", "zero", "shard_group", "the ranks of a node is node, with stage = 3; -1 is world"},
    {"stage3_prefetch_bucket_size", "zero", "prefetch_bucket_size",
     "blocks are gathered whole, so at least the parameters of one: 5e7 would gather none ahead of time"},
    {"stage3_param_persistence_threshold", "zero", "param_persistence_threshold",
     "counted in parameters of a block, whose tensors move together"},
    {"stage3_max_live_parameters", "zero", "max_live_parameters", NULL},
    {"ddp_bucket_cap_mb", "zero", "reduce_bucket_size", "elements, not megabytes"},
    {"lr_scheduler_type", "scheduler", "type", NULL},
    {"lr_scheduler", "scheduler", "type", NULL},
    {"lr_decay_style", "scheduler", "type", NULL},
    {"warmup", "scheduler", "warmup_steps", NULL},
    {"warmup_num_steps", "scheduler", "warmup_steps", NULL},
    {"warmup_iters", "scheduler", "warmup_steps", NULL},
    {"min_lr", "scheduler", "min_lr_ratio", "as a fraction of lr"},
    {"warmup_max_lr", "optimizer", "lr", NULL},
    {"gradient_clipping", "optimizer", "max_grad_norm", NULL},
    {"grad_clip", "optimizer", "max_grad_norm", NULL},
    {"clip_grad", "optimizer", "max_grad_norm", NULL},
    {"adam_beta1", "optimizer", "betas", "both in one key: 0.9, 0.999"},
    {"adam_beta2", "optimizer", "betas", "both in one key: 0.9, 0.999"},
    {"beta1", "optimizer", "betas", "both in one key: 0.9, 0.999"},
    {"beta2", "optimizer", "betas", "both in one key: 0.9, 0.999"},
    {"adam_epsilon", "optimizer", "eps", NULL},
    {"optim", "optimizer", "type", "adamw, adam or sgd"},
    {"optimizer_type", "optimizer", "type", "adamw, adam or sgd"},
    {"adam_w_mode", "optimizer", "type", "adam_w_mode = true is type = adamw, false is type = adam"},
    {"sgd_momentum", "optimizer", "momentum", NULL},
    {"param_groups", "optimizer", "lr_groups", "patterns of tensor names, each with its rate"},
    {"adam_eps", "optimizer", "eps", NULL},
    {"model_name_or_path", "model", "path", NULL},
    {"pretrained_model_name_or_path", "model", "path", NULL},
    {"base_model", "model", "path", NULL},
    {"tokenizer_name_or_path", "model", "tokenizer", NULL},
    {"tokenizer_name", "model", "tokenizer", NULL},
    {"gradient_checkpointing", "model", "activation_checkpointing", "true is block, false is none"},
    {"use_gradient_checkpointing", "model", "activation_checkpointing", "true is block, false is none"},
    {"recompute_activations", "model", "activation_checkpointing", "true is selective, false is none"},
    {"recompute_granularity", "model", "activation_checkpointing", "full is block; or selective, or none"},
    {"attn_implementation", "model", "attention", NULL},
    {"use_flash_attention", "model", "attention", "auto or flash"},
    {"n_embd", "model", "hidden_size", NULL},
    {"n_layer", "model", "num_hidden_layers", NULL},
    {"num_layers", "model", "num_hidden_layers", NULL},
    {"n_head", "model", "num_attention_heads", NULL},
    {"num_query_groups", "model", "num_key_value_heads", NULL},
    {"n_inner", "model", "intermediate_size", NULL},
    {"ffn_hidden_size", "model", "intermediate_size", NULL},
    {"n_positions", "model", "max_position_embeddings", NULL},
    {"layer_norm_epsilon", "model", "rms_norm_eps", NULL},
    {"activation_function", "model", "hidden_act", NULL},
    {"dataset_name", "data", "train", "a file made by dtrain-data"},
    {"train_dataset", "data", "train", "a file made by dtrain-data"},
    {"train_file", "data", "train", "a file made by dtrain-data"},
    {"train_data", "data", "train", "a file made by dtrain-data"},
    {"data_path", "data", "train", "a file made by dtrain-data"},
    {"eval_dataset", "data", "validation", "a file made by dtrain-data"},
    {"validation_file", "data", "validation", "a file made by dtrain-data"},
    {"max_seq_length", "data", "seq_len", NULL},
    {"max_seq_len", "data", "seq_len", NULL},
    {"max_length", "data", "seq_len", NULL},
    {"model_max_length", "data", "seq_len", NULL},
    {"seq_length", "data", "seq_len", NULL},
    {"block_size", "data", "seq_len", NULL},
    {"cutoff_len", "data", "seq_len", NULL},
    {"eval_steps", "data", "validation_steps", NULL},
    {"eval_interval", "data", "validation_steps", NULL},
    {"eval_strategy", "data", "validation_steps", "a number of steps; 0: only at the end"},
    {"evaluation_strategy", "data", "validation_steps", "a number of steps; 0: only at the end"},
    {"max_eval_samples", "data", "max_validation_samples", NULL},
    {"dataloader_drop_last", "data", "drop_last", NULL},
    {"dataloader_num_workers", "data", "prefetch", "micro-batches that are read ahead"},
    {"dataloader_prefetch_factor", "data", "prefetch", "micro-batches that are read ahead"},
    {"num_workers", "data", "prefetch", "micro-batches that are read ahead"},
    {"save_interval", "checkpoint", "save_steps", NULL},
    {"async_save", "checkpoint", "async", NULL},
    {"async_mode", "checkpoint", "async", "true or false"},
    {"save_strategy", "checkpoint", "save_steps", "a number of steps; 0: only at the end"},
    {"resume_from_checkpoint", "checkpoint", "resume", "auto, none or the path of a checkpoint"},
    {"overwrite_output_dir", "checkpoint", "resume", "auto continues; another run.output_dir starts anew"},
    {"steps_per_print", "log", "logging_steps", NULL},
    {"log_interval", "log", "logging_steps", NULL},
    {"entropy_coef", "grpo", "ent_coef", NULL},
    {"soft_punish_cache", "grpo", "overlong_cache", NULL},
    {"max_prompt_length", "data", "seq_len", "of prompt and completion together"},
    {"ref_model", "dpo", "reference_path", NULL},
    {"ref_model_path", "dpo", "reference_path", NULL},
    {"ref_model_name_or_path", "dpo", "reference_path", NULL},
    {"precompute_ref_log_probs", "dpo", "precompute_reference", NULL},
    {"sync_ref_model", "dpo", "sync_reference_steps", "a number of steps; 0: never"},
    {"ref_model_sync_steps", "dpo", "sync_reference_steps", NULL},
    {"ref_model_mixup_alpha", "dpo", "sync_reference_mixup", NULL},
    {"use_weighting", "dpo", "use_wpo", NULL},
    {"rpo_alpha", "dpo", "loss_weights", "loss_type = sigmoid, sft with loss_weights = 1, rpo_alpha"},
    {"disable_dropout", "model", "dropout", "tasks that align train without dropout unless it says a probability"},
    {"shuffle_dataset", "data", "shuffle", NULL},
    {"log_completions", "log", "completions", "how many of a rollout are printed"},
    {"num_sample_generations", "log", "completions", "how many of a rollout are printed"},
    {"sft_model_path", "model", "path", NULL},
    {"reward_model_path", "ppo", "reward_path", NULL},
    {"cost_model_path", "ppo", "cost_path", NULL},
    {"stop_token_id", "ppo", "stop_token", NULL},
    {"init_kl_coef", "ppo", "kl_coef", NULL},
    {"adap_kl_ctrl", "ppo", "adaptive_kl", NULL},
    {"horizon", "ppo", "adaptive_kl_horizon", NULL},
    {"ppo_epochs", "ppo", "num_ppo_epochs", NULL},
    {"gae_lambda", "ppo", "lam", NULL},
    {"clip_range_score", "ppo", "score_clip", NULL},
    {"lora_r", "lora", "r", NULL},
    {"lora_rank", "lora", "r", NULL},
    {"lora_dim", "lora", "r", NULL},
    {"lora_alpha", "lora", "alpha", NULL},
    {"lora_dropout", "lora", "dropout", NULL},
    {"lora_target_modules", "lora", "target_modules", NULL},
    {"lora_modules_to_save", "lora", "modules_to_save", NULL},
    {"init_lora_weights", "lora", "init", "true is init = kaiming"},
    {"peft_path", "lora", "path", NULL},
    {"ddp_timeout", "comm", "timeout", NULL},
    {"ddp_backend", "comm", "backend", NULL},
    {"torch_distributed_debug", "comm", "check", "DETAIL is check = true"},
};

static const char *const sections[][2] = {
    {"zero_optimization", "zero"},
    {"deepspeed", "zero"},
    {"fsdp", "zero"},
    {"training", "run"},
    {"train", "run"},
    {"trainer", "run"},
    {"training_args", "run"},
    {"dataset", "data"},
    {"datasets", "data"},
    {"bf16", "precision"},
    {"fp16", "precision"},
    {"lr_scheduler", "scheduler"},
    {"tokenizer", "model"},
    {"logging", "log"},
    {"peft", "lora"},
    {"peft_config", "lora"},
    {"lora_config", "lora"},
    {"checkpointing", "checkpoint"},
    {"distributed", "comm"},
    {"activation_checkpointing", "model"},
};

/* What there is no key for, section "" is any; a name that ends in * is how names begin. */
static const struct {
    const char *section, *name, *why;
} absent[] = {
    {"", "use_lora", "lora.r above 0 turns adapters on"},
    {"", "use_peft", "lora.r above 0 turns adapters on"},
    {"", "use_dora", "DoRA is not supported yet: leave it out for LoRA"},
    {"", "lora_bias", "biases stay as they are: leave it out"},
    {"lora", "bias", "biases stay as they are: leave it out"},
    {"", "peft_type", "LoRA alone is supported: lora.r above 0 turns it on"},
    {"", "fan_in_fan_out", "leave it out: how a layer's weights are stored follows from the model"},
    {"lora", "task_type", "leave it out: run.task says what the model is trained for"},
    {"", "exclude_modules", "lora.target_modules may be a regular expression that whole names match"},
    {"", "target_parameters", "adapters are beside linear layers and embeddings: lora.target_modules"},
    {"", "trainable_token_indices",
     "lora.target_modules or lora.modules_to_save name the embedding, of which all rows are trained"},
    {"", "ensure_weight_tying", "leave it out: a head that is tied to an embedding in lora.modules_to_save stays tied"},
    {"", "loftq_config", "leave it out: adapters begin beside the base as it is rounded"},
    {"", "layers_to_transform", "lora.target_modules may be a regular expression that whole names match"},
    {"", "layers_pattern", "lora.target_modules may be a regular expression that whole names match"},
    {"", "load_in_8bit", "lora.base_quantization = int8 stores what is not trained in 8 bits, beside adapters"},
    {"", "llm_int8_threshold", "lora.llm_int8_threshold, beside lora.base_quantization = int8"},
    {"", "llm_int8_skip_modules",
     "leave it out: embeddings, head, norms and lora.modules_to_save are never stored in 8 bits"},
    {"", "llm_int8_*",
     "leave it out: of the base weights there is nothing but the codes; zero.offload_param moves them"},
    {"", "bnb_4bit_compute_dtype", "precision.dtype is what products are computed in"},
    {"", "load_in_*", "lora.base_quantization = nf4 stores what is not trained in 4 bits, beside adapters"},
    {"", "bnb_*", "lora.base_quantization = nf4 stores what is not trained in 4 bits, with double quantisation"},
    {"", "quantization*", "lora.base_quantization = int8 or nf4 stores what is not trained in 8 or 4 bits"},
    {"", "offload*",
     "zero.offload_optimizer and zero.offload_param are none, cpu or nvme; zero.nvme_path is a directory"},
    {"", "cpu_offload*", "zero.offload_optimizer = cpu, and zero.offload_param = cpu for parameters"},
    {"", "aio", "block size and depth follow from zero.buffer_count and zero.sub_group_size"},
    {"", "pipeline_*", "leave it out: reads go ahead and writes behind in any case"},
    {"", "contiguous_gradients", "leave it out: the gradients of a block always lie in one buffer"},
    {"", "reduce_scatter", "leave it out: gradients are always reduced by reduce-scatter"},
    {"", "allgather_partitions", "leave it out: updated parameters are always gathered by all-gather"},
    {"", "round_robin_gradients", "leave it out: every rank copies its shard of each block to its own host memory"},
    {"", "ignore_unused_parameters", "leave it out: a parameter without a gradient counts as zero"},
    {"", "find_unused_parameters", "leave it out: a parameter without a gradient counts as zero"},
    {"", "ddp_find_unused_parameters", "leave it out: a parameter without a gradient counts as zero"},
    {"", "stage3_gather_*",
     "leave it out: checkpoints hold whole tensors at every stage, and checkpoint.export = hf writes the model"},
    {"", "stage3_max_reuse_distance", "leave it out: a block stays gathered until another one needs its place"},
    {"", "stage3_model_persistence_threshold",
     "leave it out: every block below zero.param_persistence_threshold stays whole"},
    {"", "zero_allow_untested_optimizer", "leave it out: every optimizer works at every stage"},
    {"", "zero_force_ds_cpu_optimizer", "leave it out: what is offloaded is updated by the processor's own code"},
    {"", "zero_hpz_partition_size",
     "all states are partitioned over zero.shard_group; a second copy of the parameters alone in each node is not "
     "kept"},
    {"", "mics_hierarchical_params_gather",
     "leave it out: between nodes each parameter is sent to a node once, and with zero.shard_group = node not at all"},
    {"", "partition_activations", "model.activation_checkpointing = selective or block keeps fewer activations"},
    {"", "cpu_checkpointing", "model.activation_checkpointing = selective or block keeps fewer activations"},
    {"precision", "enabled", "precision.dtype = fp16 or bf16 is what enables it"},
    {"precision", "auto_cast", "a model computes in precision.dtype throughout"},
    {"", "fp16_full_eval", "evaluation is in precision.dtype, too"},
    {"", "use_vllm", "leave it out: dtrain generates with the weights in training"},
    {"", "vllm_*", "leave it out: dtrain generates with the weights in training"},
    {"", "padding_free", "leave it out: batches have no padding"},
    {"", "pad_token*", "leave it out: batches have no padding"},
    {"", "label_pad_token_id", "leave it out: batches have no padding"},
    {"", "truncation_mode", "texts are cut before training: dtrain-data --max-length N --truncate HOW"},
    {"", "generation_kwargs", "temperature and, of grpo, top_p, top_k, min_p and repetition_penalty are keys"},
    {"grpo", "reward_model*", "grpo.reward_funcs = model:DIRECTORY"},
    {"", "remove_unused_columns", "leave it out: datasets of prompts keep all fields of a record"},
    {"", "model_adapter_name", "lora.path is the adapter to go on from"},
    {"", "ref_adapter_name", "the reference is the model as it starts: without adapters, or with that of lora.path"},
    {"", "local_rollout_forward_batch_size", "leave it out: as many completions are generated at a time as fit"},
    {"", "push_to_hub", "nothing is sent to a hub; checkpoint.export = hf leaves a directory that `hf upload` takes"},
    {"", "hub_*", "nothing is sent to a hub; checkpoint.export = hf leaves a directory that `hf upload` takes"},
    {"", "chat_template", "chats become tokens before training: dtrain-data --template NAME"},
    {"", "assistant_only_loss", "what is trained on is chosen before training: dtrain-data --mask NAME"},
    {"", "completion_only_loss", "what is trained on is chosen before training: dtrain-data --mask completion"},
};

static bool is_called(const char *name, const char *pattern)
{
    const size_t n = strcspn(pattern, "*");
    return strncasecmp(name, pattern, n) == 0 && (pattern[n] == '*' || name[n] == '\0');
}

const char *dt_key_absent(const char *section, const char *name)
{
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if ((!*absent[i].section || strcmp(section, absent[i].section) == 0) && is_called(name, absent[i].name))
            return absent[i].why;
    return NULL;
}

static bool is_of_task(const char *section)
{
    static const char *const tasks[] = {"rm", "dpo", "ppo", "grpo"};
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++)
        if (strcmp(section, tasks[i]) == 0) return true;
    return false;
}

/* What several tasks have is looked for in the one that was named. */
int dt_key_foreign(const char *section, const char *name, const char **note)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcasecmp(name, keys[i].name) != 0) continue;
        *note = keys[i].note ? keys[i].note : "";
        const bool shared = is_of_task(section) && is_of_task(keys[i].section);
        const int here = shared ? dt_key_find(section, keys[i].key) : -1;
        return here >= 0 ? here : dt_key_find(keys[i].section, keys[i].key);
    }
    return -1;
}

const char *dt_key_foreign_section(const char *name)
{
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        if (strcasecmp(name, sections[i][0]) == 0) return sections[i][1];
    return NULL;
}
