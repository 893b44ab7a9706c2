/* config_foreign.c - keys and sections of transformers, TRL, DeepSpeed, Megatron, nanoGPT, LLaVA and nanoVLM, and
 * dtrain's names for them. Blanks separate names; section.name is a name in that section only. */
#include "config_private.h"
#include <string.h>
#include <strings.h>

static const struct {
    const char *section, *key, *names;
    const char *note; /* how to write the value, if dtrain's form differs; else NULL */
} keys[] = {
    {"optimizer", "lr", "learning_rate warmup_max_lr", NULL},
    {"batch", "micro_batch_size",
     "per_device_train_batch_size per_device_eval_batch_size per_gpu_train_batch_size train_micro_batch_size_per_gpu",
     NULL},
    {"batch", "micro_batch_size", "batch_size", "samples per rank; train_batch_size counts those of all ranks"},
    {"batch", "train_batch_size", "global_batch_size", NULL},
    {"batch", "gradient_accumulation_steps", "grad_accum_steps", NULL},
    {"run", "epochs", "num_train_epochs num_epochs", NULL},
    {"run", "max_steps", "max_train_steps num_train_steps train_iters max_iters total_num_steps", NULL},
    {"run", "seed", "random_seed data_seed", NULL},
    {"run", "reproducible", "full_determinism", NULL},
    {"run", "output_dir", "save_dir out_dir logging_dir", NULL},
    {"precision", "dtype", "bf16", "instead of bf16 = true write dtype = bf16"},
    {"precision", "dtype", "fp16", "instead of fp16 = true write dtype = fp16"},
    {"precision", "dtype", "fp32", "instead of fp32 = true write dtype = fp32"},
    {"precision", "dtype", "torch_dtype mixed_precision", "fp32, bf16 or fp16"},
    {"precision", "dtype", "fp16_opt_level opt_level",
     "O0 is fp32, O1 bf16 or fp16, O2 fp16; O3 (fp16 without master weights) is not supported"},
    {"precision", "initial_scale_power", "initial_loss_scale init_scale",
     "the base-2 logarithm of the scale: 16 for 65536"},
    {"precision", "loss_scale_window", "growth_interval", NULL},
    {"precision", "min_loss_scale", "min_scale", NULL},
    {"precision", "reduce_dtype", "communication_data_type", NULL},
    {"precision", "reduce_dtype", "accumulate_allreduce_grads_in_fp32", "instead of true write reduce_dtype = fp32"},
    {"zero", "stage", "zero_optimization", "its keys belong to section [zero]"},
    {"zero", "stage", "zero_stage", NULL},
    {"zero", "stage", "deepspeed",
     "the keys of DeepSpeed's JSON file are keys in these sections; those of zero_optimization are in [zero]"},
    {"zero", "stage", "fsdp",
     "full_shard is stage 3, shard_grad_op stage 2, no_shard stage 0; hybrid_shard is stage 3 and hybrid_shard_zero2 "
     "stage 2, both with shard_group = node"},
    {"zero", "stage", "sharding_strategy fsdp_sharding_strategy",
     "FULL_SHARD is stage 3, SHARD_GRAD_OP stage 2, NO_SHARD stage 0; HYBRID_SHARD is stage 3 and _HYBRID_SHARD_ZERO2 "
     "stage 2, both with shard_group = node"},
    {"zero", "shard_group", "mics_shard_size", "write node (with stage = 3) for the ranks of a node, and world for -1"},
    {"zero", "prefetch_bucket_size", "stage3_prefetch_bucket_size",
     "blocks are gathered whole, so the value must be at least the parameters of a block; 5e7 would disable "
     "prefetching"},
    {"zero", "param_persistence_threshold", "stage3_param_persistence_threshold",
     "it counts the parameters of a whole block, because its tensors move together"},
    {"zero", "max_live_parameters", "stage3_max_live_parameters", NULL},
    {"zero", "reduce_bucket_size", "ddp_bucket_cap_mb", "in elements, not megabytes"},
    {"scheduler", "type", "lr_scheduler_type lr_scheduler lr_decay_style", NULL},
    {"scheduler", "warmup_steps", "warmup warmup_num_steps warmup_iters", NULL},
    {"scheduler", "min_lr_ratio", "min_lr", "as a fraction of lr"},
    {"optimizer", "max_grad_norm", "gradient_clipping grad_clip clip_grad", NULL},
    {"optimizer", "betas", "adam_beta1 adam_beta2 beta1 beta2", "both in one key: 0.9, 0.999"},
    {"optimizer", "eps", "adam_epsilon adam_eps", NULL},
    {"optimizer", "type", "optim optimizer_type", "adamw, adam or sgd"},
    {"optimizer", "type", "adam_w_mode", "type = adamw for adam_w_mode = true, type = adam for false"},
    {"optimizer", "momentum", "sgd_momentum", NULL},
    {"optimizer", "lr_groups", "param_groups", "a list of tensor name patterns, each with its rate"},
    {"model", "path", "model_name_or_path pretrained_model_name_or_path base_model sft_model_path vlm_checkpoint_path",
     NULL},
    {"model", "tokenizer", "tokenizer_name_or_path tokenizer_name lm_tokenizer", NULL},
    {"model", "activation_checkpointing", "gradient_checkpointing use_gradient_checkpointing",
     "block for true, none for false"},
    {"model", "activation_checkpointing", "recompute_activations", "selective for true, none for false"},
    {"model", "activation_checkpointing", "recompute_granularity", "block for full; else selective or none"},
    {"model", "attention", "attn_implementation", NULL},
    {"model", "attention", "use_flash_attention", "auto or flash"},
    {"model", "hidden_size", "n_embd", NULL},
    {"model", "num_hidden_layers", "n_layer num_layers", NULL},
    {"model", "num_attention_heads", "n_head", NULL},
    {"model", "num_key_value_heads", "num_query_groups", NULL},
    {"model", "intermediate_size", "n_inner ffn_hidden_size", NULL},
    {"model", "max_position_embeddings", "n_positions", NULL},
    {"model", "rms_norm_eps", "layer_norm_epsilon", NULL},
    {"model", "hidden_act", "activation_function", NULL},
    {"data", "train", "dataset_name train_dataset train_file train_data data_path",
     "a dataset file made by dtrain-data"},
    {"data", "validation", "eval_dataset validation_file", "a dataset file made by dtrain-data"},
    {"data", "seq_len",
     "max_seq_length max_seq_len max_length model_max_length seq_length block_size cutoff_len max_sample_length "
     "lm_max_length",
     NULL},
    {"data", "validation_steps", "eval_steps eval_interval", NULL},
    {"data", "validation_steps", "eval_strategy evaluation_strategy", "a number of steps; 0: only at the end"},
    {"data", "max_validation_samples", "max_eval_samples", NULL},
    {"data", "drop_last", "dataloader_drop_last", NULL},
    {"data", "prefetch", "dataloader_num_workers dataloader_prefetch_factor num_workers",
     "number of micro-batches to read ahead"},
    {"checkpoint", "save_steps", "save_interval", NULL},
    {"checkpoint", "async", "async_save", NULL},
    {"checkpoint", "async", "async_mode", "true or false"},
    {"checkpoint", "save_steps", "save_strategy", "a number of steps; 0: only at the end"},
    {"checkpoint", "resume", "resume_from_checkpoint", "auto, none or the path of a checkpoint"},
    {"checkpoint", "resume", "overwrite_output_dir",
     "auto continues the run; to start from scratch, use another run.output_dir"},
    {"log", "logging_steps", "steps_per_print log_interval", NULL},
    {"grpo", "ent_coef", "entropy_coef", NULL},
    {"grpo", "overlong_cache", "soft_punish_cache", NULL},
    {"data", "seq_len", "max_prompt_length", "it limits prompt and completion together"},
    {"dpo", "reference_path", "ref_model ref_model_path ref_model_name_or_path", NULL},
    {"dpo", "precompute_reference", "precompute_ref_log_probs", NULL},
    {"dpo", "sync_reference_steps", "sync_ref_model", "a number of steps; 0: never"},
    {"dpo", "sync_reference_steps", "ref_model_sync_steps", NULL},
    {"dpo", "sync_reference_mixup", "ref_model_mixup_alpha", NULL},
    {"dpo", "use_wpo", "use_weighting", NULL},
    {"dpo", "loss_type", "pref_loss", NULL},
    {"dpo", "beta", "pref_beta", NULL},
    {"dpo", "simpo_gamma", "gamma_beta_ratio", "the ratio times dpo.beta"},
    {"grpo", "advantage", "advantage_estimator adv_estimator", NULL},
    {"grpo", "kl_in_reward", "use_kl_in_reward", NULL},
    {"grpo", "num_generations", "rloo_k n_samples_per_prompt", NULL},
    {"dpo", "loss_weights", "rpo_alpha", "loss_type = sigmoid, sft with loss_weights = 1, rpo_alpha"},
    {"model", "router_z_loss_coef", "moe_z_loss_coeff moe_z_loss_coef z_loss_coef", NULL},
    {"model", "router_aux_loss_coef", "moe_aux_loss_coeff aux_loss_coef", "with output_router_logits = true"},
    {"model", "neftune_noise_alpha", "neftune_alpha noisy_embedding_alpha", NULL},
    {"model", "dropout", "disable_dropout", "alignment tasks train without dropout unless this key sets a probability"},
    {"data", "shuffle", "shuffle_dataset", NULL},
    {"data", "group_by_modality_length", "group_by_length", "it also separates samples with images from those without"},
    {"log", "completions", "log_completions num_sample_generations", "number of completions to print from a rollout"},
    {"sft", "train_on_inputs", "train_on_prompt", NULL},
    {"distill", "teacher_path", "teacher_model_name_or_path teacher_model", NULL},
    {"ppo", "reward_path", "reward_model_path", NULL},
    {"ppo", "cost_path", "cost_model_path", NULL},
    {"ppo", "stop_token", "stop_token_id", NULL},
    {"ppo", "kl_coef", "init_kl_coef", NULL},
    {"ppo", "adaptive_kl", "adap_kl_ctrl", NULL},
    {"ppo", "adaptive_kl_horizon", "horizon", NULL},
    {"ppo", "num_ppo_epochs", "ppo_epochs", NULL},
    {"ppo", "lam", "gae_lambda", NULL},
    {"ppo", "score_clip", "clip_range_score", NULL},
    {"lora", "r", "lora_r lora_rank lora_dim", NULL},
    {"lora", "alpha", "lora_alpha", NULL},
    {"lora", "dropout", "lora_dropout", NULL},
    {"lora", "target_modules", "lora_target_modules", NULL},
    {"lora", "modules_to_save", "lora_modules_to_save", NULL},
    {"lora", "init", "init_lora_weights", "init = kaiming for true, pissa with init_iterations = N for pissa_niter_N"},
    {"lora", "path", "peft_path", NULL},
    {"lora", "lr_ratio", "loraplus_lr_ratio lorap_lr_ratio", NULL},
    {"vision", "path",
     "tower vision_tower mm_vision_tower vision_tower_path vision_model vision_model_path vision_encoder "
     "vit_model_type",
     "a model directory of CLIP or SigLIP"},
    {"model", "path", "lm_model_type", "the directory of the language model; vision.path is that of the tower"},
    {"vision", "projector_type", "projector mm_projector_type projection_type", NULL},
    {"vision", "projector_path", "pretrain_mm_mlp_adapter", "a safetensors file"},
    {"vision", "projector_hidden_size", "mm_hidden_size", "the width between the projector's layers"},
    {"vision", "projector_shuffle", "mp_pixel_shuffle_factor pixel_shuffle_factor scale_factor", NULL},
    {"vision", "feature_layer", "mm_vision_select_layer vision_select_layer select_layer vision_feature_layer", NULL},
    {"vision", "feature_select", "mm_vision_select_feature select_feature", NULL},
    {"vision", "image_tokens", "vision_processor_type", NULL},
    {"vision", "feature_select", "vision_feature_select_strategy", "patch for default; cls_patch for full with CLIP"},
    {"vision", "train", "tune_mm_mlp_adapter", "train = projector for true"},
    {"vision", "train", "tune_mm_mlp", "for true, add projector to the list"},
    {"vision", "train", "tune_mm_llm", "for true, add llm to the list"},
    {"vision", "train", "tune_mm_vision unfreeze_mm_vision_tower", "for true, add tower to the list"},
    {"vision", "train", "mm_tunable_parts",
     "tower for mm_vision_tower, projector for mm_mlp_adapter, llm for mm_language_model"},
    {"vision", "train", "freeze_mm_mlp_adapter freeze_multi_modal_projector freeze_projector freeze_aligner",
     "for true, omit projector from the list, with adapters from lora.parts"},
    {"vision", "train", "freeze_backbone", "for true, omit llm from the list (for InternVL's meaning, omit tower)"},
    {"vision", "train", "freeze_language_model", "for true, omit llm from the list"},
    {"vision", "train",
     "freeze_vision_tower freeze_vision_module freeze_vision_modules freeze_vision_encoder freeze_vision freeze_vit",
     "for true, omit tower from the list, with adapters from lora.parts"},
    {"vision", "image_token", "image_token_index image_token_id", NULL},
    {"optimizer", "lr_groups", "mm_projector_lr projector_lr aligner_lr lr_mp", "multi_modal_projector:RATE"},
    {"optimizer", "lr_groups", "mm_vision_tower_lr vision_tower_lr vit_lr lr_vision_backbone", "vision_tower:RATE"},
    {"optimizer", "lr_groups", "lr_language_backbone", "language_model:RATE"},
    {"optimizer", "lr_groups", "lr_backbones", "language_model:RATE, vision_tower:RATE"},
    {"comm", "timeout", "ddp_timeout", NULL},
    {"comm", "backend", "ddp_backend", NULL},
    {"comm", "check", "torch_distributed_debug", "check = true for DETAIL"},
};

static const struct {
    const char *section, *names;
} sections[] = {
    {"zero", "zero_optimization deepspeed fsdp"},
    {"run", "training train trainer training_args"},
    {"data", "dataset datasets eval evaluation"},
    {"precision", "bf16 fp16"},
    {"scheduler", "lr_scheduler"},
    {"model", "tokenizer activation_checkpointing"},
    {"log", "logging"},
    {"lora", "peft peft_config lora_config"},
    {"vision", "multimodal mm vlm vit vision_config"},
    {"checkpoint", "checkpointing"},
    {"comm", "distributed"},
};

/* Foreign keys without an equivalent. A name that ends in * is a prefix. */
static const struct {
    const char *names, *why;
} absent[] = {
    {"use_lora use_peft", "set lora.r above 0 to train adapters"},
    {"lora_bias lora.bias", "remove it: biases are not trained"},
    {"peft_type", "only LoRA is supported; set lora.r above 0 to train adapters"},
    {"fan_in_fan_out", "remove it: the weight layout follows from the model"},
    {"lora.task_type", "remove it: run.task sets the task"},
    {"exclude_modules layers_to_transform layers_pattern",
     "use a regular expression in lora.target_modules, which must match whole names"},
    {"trainable_token_indices",
     "name the embedding in lora.target_modules or lora.modules_to_save; all its rows are then trained"},
    {"ensure_weight_tying", "remove it: a head tied to an embedding in lora.modules_to_save stays tied"},
    {"loftq_config", "remove it: LoftQ is not supported; adapters start from the rounded base weights"},
    {"load_in_8bit", "use lora.base_quantization = int8, which stores frozen weights in 8 bits"},
    {"llm_int8_threshold", "remove it: weights in int8 are dequantised for each GEMM"},
    {"llm_int8_skip_modules", "remove it: embeddings, head, norms and lora.modules_to_save are never stored in 8 bits"},
    {"llm_int8_*", "remove it: only the 8-bit codes of base weights are kept; zero.offload_param offloads them"},
    {"bnb_4bit_compute_dtype", "use precision.dtype, the type in which GEMMs are computed"},
    {"load_in_*", "use lora.base_quantization = nf4, which stores frozen weights in 4 bits"},
    {"bnb_*", "use lora.base_quantization = nf4, which stores frozen weights in 4 bits with double quantisation"},
    {"quantization*", "use lora.base_quantization = int8 or nf4, which stores frozen weights in 8 or 4 bits"},
    {"offload*",
     "set zero.offload_optimizer and zero.offload_param to none, cpu or nvme, and zero.nvme_path to a directory"},
    {"cpu_offload*", "use zero.offload_optimizer = cpu and, for parameters, zero.offload_param = cpu"},
    {"aio", "remove it: zero.buffer_count and zero.sub_group_size determine queue depth and block size"},
    {"pipeline_*", "remove it: reads and writes always overlap the update"},
    {"contiguous_gradients", "remove it: the gradients of a block always share one buffer"},
    {"reduce_scatter", "remove it: gradients are always reduced by reduce-scatter"},
    {"allgather_partitions", "remove it: updated parameters are always gathered by all-gather"},
    {"round_robin_gradients", "remove it: every rank copies its shard of each block to its own host memory"},
    {"ignore_unused_parameters find_unused_parameters ddp_find_unused_parameters",
     "remove it: a missing gradient counts as zero"},
    {"stage3_gather_*",
     "remove it: checkpoints hold whole tensors at every stage, and checkpoint.export = hf writes the model"},
    {"stage3_max_reuse_distance", "remove it: a block stays gathered until another one needs its memory"},
    {"stage3_model_persistence_threshold",
     "remove it: every block below zero.param_persistence_threshold is replicated"},
    {"zero_allow_untested_optimizer", "remove it: every optimizer works at every stage"},
    {"zero_force_ds_cpu_optimizer", "remove it: dtrain's own CPU code updates offloaded states"},
    {"zero_hpz_partition_size",
     "not supported: zero.shard_group shards all states alike, without a second copy of the parameters in each node"},
    {"mics_hierarchical_params_gather",
     "remove it: each parameter is sent to a node once, or not at all with zero.shard_group = node"},
    {"partition_activations cpu_checkpointing",
     "use model.activation_checkpointing = selective or block, which stores fewer activations"},
    {"precision.enabled", "use precision.dtype = fp16 or bf16 to enable it"},
    {"precision.auto_cast", "remove it: the whole model computes in precision.dtype"},
    {"fp16_full_eval", "remove it: evaluation uses precision.dtype, too"},
    {"use_vllm vllm_*", "remove it: dtrain generates with the weights in training"},
    {"padding_free pad_token* label_pad_token_id", "remove it: batches have no padding"},
    {"truncation_mode", "texts are truncated before training: dtrain-data --max-length N --truncate HOW"},
    {"generation_kwargs", "use the key temperature and, for grpo, top_p, top_k, min_p and repetition_penalty"},
    {"grpo.reward_model*", "use grpo.reward_funcs = model:DIRECTORY"},
    {"grpo.tools environment_factory rollout_func env_mask",
     "use grpo.environment = command:PROGRAM (docs/environments.md)"},
    {"remove_unused_columns", "remove it: datasets of prompts keep all fields of a record"},
    {"dpo.alpha", "use dpo.alphapo_alpha"},
    {"reference_free", "use dpo.loss_type = cpo, simpo or orpo, which have no reference"},
    {"match_underlying_distribution prompt_sample_size min_density_ratio max_density_ratio",
     "underlying distribution matching (BCO) is not supported, because it needs an embedding model; remove it"},
    {"model_adapter_name", "use lora.path for the adapter to continue from"},
    {"ref_adapter_name", "remove it: the reference is the initial model, without adapters or with that of lora.path"},
    {"local_rollout_forward_batch_size", "remove it: dtrain generates as many completions at a time as fit in memory"},
    {"mm_use_im_start_end mm_use_im_patch_token", "remove it: a text contains only the image placeholder"},
    {"mm_patch_merge_type", "remove it: an image is one square, as with flat"},
    {"image_aspect_ratio", "images are resized before training by dtrain-data --images; for pad, set do_pad = true in "
                           "a preprocessor_config.json with image_processor_type LlavaImageProcessor"},
    {"image_folder media_dir", "images are stored in the dataset before training: dtrain-data --images --image-folder"},
    {"image_column image_processor vision.preprocessor vision.processor lazy_preprocess is_multimodal",
     "images are stored in the dataset before training: dtrain-data --images"},
    {"image_grid_pinpoints image_crop_resolution image_split_resolution dynamic_image_size "
     "max_pixels min_pixels image_max_pixels image_min_pixels max_img_size force_image_size vit_img_size "
     "vision.image_size",
     "remove it: dtrain-data --images resizes every image to a square of the tower's size"},
    {"max_dynamic_patch min_dynamic_patch",
     "remove it: max_patches and min_patches in the preprocessor_config.json of dtrain-data --images limit the tiles"},
    {"image_seq_length num_image_tokens mp_image_token_length",
     "remove it: tower and projector determine the number of tokens per image"},
    {"vision.llm", "add llm to vision.train, or llm:N for its last N blocks"},
    {"vision.tower", "set vision.path to the tower's directory; add tower to vision.train to train it"},
    {"vision.embed", "add embed to vision.train"},
    {"vision.head", "add head to vision.train"},
    {"vision.freeze_llm model.freeze_llm", "for true, omit llm from vision.train"},
    {"vision.lr", "set rates of modules in optimizer.lr_groups: multi_modal_projector:RATE, vision_tower:RATE"},
    {"push_to_hub hub_*", "dtrain uploads nothing; checkpoint.export = hf writes a directory for `hf upload`"},
    {"chat_template", "chats are tokenized before training: dtrain-data --template NAME"},
    {"assistant_only_loss completion_only_loss", "the loss mask is chosen before training: dtrain-data --mask NAME; "
                                                 "sft.train_on_inputs = true trains on all tokens"},
    {"chunked_loss chunked_cross_entropy use_liger_kernel fused_linear_cross_entropy cut_cross_entropy",
     "remove it: logits are always computed in chunks"},
};

static bool lists(const char *names, const char *section, const char *name)
{
    for (const char *p = names; *p; p += *p == ' ') {
        const size_t n = strcspn(p, " "), dot = strcspn(p, "."), skip = dot < n ? dot + 1 : 0;
        const bool here = skip == 0 || (strlen(section) == dot && strncmp(section, p, dot) == 0),
                   prefix = p[n - 1] == '*';
        const size_t len = n - skip - prefix;
        if (here && strncasecmp(name, p + skip, len) == 0 && (prefix || !name[len])) return true;
        p += n;
    }
    return false;
}

const char *dt_key_absent(const char *section, const char *name)
{
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (lists(absent[i].names, section, name)) return absent[i].why;
    return NULL;
}

#define WORD(task) " " #task
static bool is_of_task(const char *section) { return lists(&DT_TASK_LIST(WORD)[1], "", section); }

/* A key that several tasks have is looked up in the section that the user named. */
int dt_key_foreign(const char *section, const char *name, const char **note)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!lists(keys[i].names, "", name)) continue;
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
        if (lists(sections[i].names, "", name)) return sections[i].section;
    return NULL;
}
