/* test_config_errors.c - the configuration: refused values and files, with their messages. */
#include "cases.h"
#include "config_fixture.h"

/* A file, an override, and the messages about them. */
static const struct {
    const char *text, *override, *message;
} mistaken[] = {
    {"[batch]\nmicro_batch_size = four\n", NULL,
     "input.ini:2: [batch] micro_batch_size: expected an integer from 0 to 2147483647, found 'four'"},
    {"[batch]\n\nmicro_batch_size = -1\n", NULL,
     "input.ini:3: [batch] micro_batch_size: expected an integer from 0 to 2147483647, found '-1'"},
    {"[batch]\nmicro_batch_size = 2147483648\n", NULL,
     "input.ini:2: [batch] micro_batch_size: expected an integer from 0 to 2147483647, found '2147483648'"},
    {"[batch]\nmicro_batch_size = 1.5\n", NULL,
     "input.ini:2: [batch] micro_batch_size: expected an integer from 0 to 2147483647, found '1.5'"},
    {"[batch]\nmicro_batch_size =\n", NULL,
     "input.ini:2: [batch] micro_batch_size: expected an integer from 0 to 2147483647, found ''"},
    {"[run]\nseed = 9223372036854775808\n", NULL,
     "input.ini:2: [run] seed: expected an integer from 0, found '9223372036854775808'"},
    {"[run]\nseed = 0x10\n", NULL, "input.ini:2: [run] seed: expected an integer from 0, found '0x10'"},
    {"[optimizer]\nlr = nan\n", NULL, "input.ini:2: [optimizer] lr: expected a number from 0 to 10, found 'nan'"},
    {"[optimizer]\nlr = 11\n", NULL, "input.ini:2: [optimizer] lr: expected a number from 0 to 10, found '11'"},
    {"[optimizer]\nlr = 1e-3 x\n", NULL, "input.ini:2: [optimizer] lr: expected a number from 0 to 10, found '1e-3 x'"},
    {"[data]\nshuffle = maybe\n", NULL, "input.ini:2: [data] shuffle: expected true or false, found 'maybe'"},
    {"[run]\ntask = train\n", NULL,
     "input.ini:2: [run] task: expected one of pretrain, sft, rm, dpo, kto, distill, ppo, grpo, classify, embed, eval, "
     "found 'train'"},
    {"[run]\ntask = pretrain|sft\n", NULL,
     "input.ini:2: [run] task: expected one of pretrain, sft, rm, dpo, kto, distill, ppo, grpo, classify, embed, eval, "
     "found "
     "'pretrain|sft'"},
    {"[run]\ntask =\n", NULL,
     "input.ini:2: [run] task: expected one of pretrain, sft, rm, dpo, kto, distill, ppo, grpo, classify, embed, eval, "
     "found ''"},
    {"[batch]\nmicro_batchsize = 4\n", NULL,
     "input.ini:2: [batch] micro_batchsize: unknown key; the nearest is micro_batch_size"},
    {"[batch]\nseq_len = 4\n", NULL, "input.ini:2: [batch] seq_len: unknown key; seq_len belongs to [data]"},
    {"[optimzer]\nlr = 1\n", NULL, "input.ini:1: [optimzer]: unknown section; the nearest is [optimizer]"},
    {"[optimzer]\n", NULL, "input.ini:1: [optimzer]: unknown section; the nearest is [optimizer]"},
    {"[run]\nseed = 1\nseed = 2\n", NULL, "input.ini:3: [run] seed: set twice, first in line 2"},
    {"[run]\nseed = 1\n[data]\n[run]\nseed = 1\n", NULL, "input.ini:5: [run] seed: set twice, first in line 2"},
    {"seed = 1\n", NULL, "input.ini:1: seed: expected a [section] line before the first key"},
    {"[run]\n  seed = 1\n", NULL,
     "input.ini:2: expected a key or a [section] in the first column, found an indented line: 'seed = 1'"},
    {"[run]\nseed = 1\n\t2\n", NULL,
     "input.ini:3: expected a key or a [section] in the first column, found an indented line: '2'"},
    {"[run]\nseed\n", NULL, "input.ini:2: expected 'key = value' or '[section]', found 'seed'"},
    {"[run\nseed = 1\n", NULL, "input.ini:1: expected [section], found '[run'"},
    {"[run] seed = 1\n", NULL, "input.ini:1: expected the end of the line after [run], found 'seed = 1'"},
    {"[run]\nseed ; = 1\n", NULL, "input.ini:2: expected 'key = value' or '[section]'"},
    {"[run]\noutput_dir = ${DTRAIN_TEST_UNSET}/x\n", NULL,
     "input.ini:2: [run] output_dir: the environment variable DTRAIN_TEST_UNSET is not set"},
    {"[run]\noutput_dir = ${DTRAIN_TEST\n", NULL, "input.ini:2: [run] output_dir: expected '}' after '${', found none"},
    {"[run]\noutput_dir = ${}\n", NULL,
     "input.ini:2: [run] output_dir: expected the name of an environment variable in ${...}, found ''"},
    {"[run]\noutput_dir = ${DTRAIN_TEST_ODD}\n", NULL,
     "input.ini:2: [run] output_dir: '${' remains in the value after environment variables were expanded"},
    {"[run]\noutput_dir = a\x01"
     "b\n",
     NULL, "input.ini:2: [run] output_dir: a control character (byte 0x01) in the value"},
    {"", "run.output_dir=a\nb", "command line: run.output_dir: a control character (byte 0x0a) in the value"},
    {"", "run.output_dir=a ;b",
     "command line: run.output_dir: ';' at the start of a value or after a blank starts a comment and cannot be part "
     "of the value"},
    {"", "run.output_dir=;b",
     "command line: run.output_dir: ';' at the start of a value or after a blank starts a comment and cannot be part "
     "of the value"},
    {"", "seed=1", "command line: expected section.key=value, found 'seed=1'; did you mean run.seed=1?"},
    {"", "lr=1e-3", "command line: expected section.key=value, found 'lr=1e-3'; did you mean optimizer.lr=1e-3?"},
    {"", "learning_rate=1e-3",
     "command line: expected section.key=value, found 'learning_rate=1e-3'; did you mean optimizer.lr=1e-3?"},
    {"", "nonsense=1", "command line: expected section.key=value, found 'nonsense=1'"},
    {"", "run.seed", "command line: expected section.key=value, found 'run.seed'"},
    {"", ".seed=1", "command line: expected section.key=value, found '.seed=1'"},
    {"", "run.=1", "command line: expected section.key=value, found 'run.=1'"},
    {"", "rum.seed=1", "command line: rum.seed: unknown section; the nearest is [run]"},
    {"", "log.step=1", "command line: log.step: unknown key; the nearest is logging_steps"},
    {"", "run.sede=1", "command line: run.sede: unknown key; the nearest is seed"},
    {"", "zero.stage=4", "command line: zero.stage: expected one of auto, auto:size, 0, 1, 2, 3, found '4'"},
    /* names of other programs */
    {"[optimizer]\ntype = lion\n", NULL,
     "input.ini:2: [optimizer] type: expected one of adamw, adam, sgd, muon, found 'lion'"},
    {"[run]\noptim = adamw_torch\n", NULL,
     "input.ini:2: [run] optim: unknown key; optim is type in [optimizer] here: adamw, adam or sgd"},
    {"[optimizer]\nadam_w_mode = true\n", NULL,
     "input.ini:2: [optimizer] adam_w_mode: unknown key; adam_w_mode is type in [optimizer] here: type = adamw for "
     "adam_w_mode = true, type = adam for false"},
    {"[model]\nlora_rank = 8\n", NULL, "input.ini:2: [model] lora_rank: unknown key; lora_rank is r in [lora] here"},
    {"[lora]\ntask_type = CAUSAL_LM\nexclude_modules = lm_head\nllm_int8_skip_modules = lm_head\n"
     "bnb_4bit_compute_dtype = bfloat16\n",
     NULL,
     "input.ini:2: [lora] task_type: remove it: run.task sets the task\ninput.ini:3: [lora] exclude_modules: use a "
     "regular expression in lora.target_modules, which must match whole names\ninput.ini:4: [lora] "
     "llm_int8_skip_modules: remove it: embeddings, head, norms and lora.modules_to_save are never stored in 8 "
     "bits\ninput.ini:5: [lora] bnb_4bit_compute_dtype: use precision.dtype, the type in which GEMMs are computed"},
    {"[zero]\nstage3_prefetch_bucket_size = 5e7\nstage3_max_live_parameters = 1e9\nreduce_bucket_size = auto\n", NULL,
     "input.ini:2: [zero] stage3_prefetch_bucket_size: unknown key; stage3_prefetch_bucket_size is "
     "prefetch_bucket_size in [zero] here: blocks are gathered whole, so the value must be at least the parameters of "
     "a block; 5e7 would disable prefetching\ninput.ini:3: [zero] stage3_max_live_parameters: unknown key; "
     "stage3_max_live_parameters is max_live_parameters in [zero] here\ninput.ini:4: [zero] reduce_bucket_size: "
     "expected an integer from 1, found 'auto' (remove the key to get its default)"},
    {"[zero]\ncontiguous_gradients = true\nstage3_gather_16bit_weights_on_model_save = true\n",
     "zero.offload_optimizer_device=cpu",
     "input.ini:2: [zero] contiguous_gradients: remove it: the gradients of a block always share one "
     "buffer\ninput.ini:3: [zero] stage3_gather_16bit_weights_on_model_save: remove it: checkpoints hold whole tensors "
     "at every stage, and checkpoint.export = hf writes the model\ncommand line: zero.offload_optimizer_device: set "
     "zero.offload_optimizer and zero.offload_param to none, cpu or nvme, and zero.nvme_path to a directory"},
    {"", "checkpoint.resume=true",
     "command line: checkpoint.resume: expected auto, none or the path of a checkpoint, found 'true'"},
    {"[optimizer]\nlearning_rate = 1\n", NULL,
     "input.ini:2: [optimizer] learning_rate: unknown key; learning_rate is lr in [optimizer] here"},
    {"[run]\nper_device_train_batch_size = 1\n", NULL,
     "input.ini:2: [run] per_device_train_batch_size: unknown key; per_device_train_batch_size is micro_batch_size in "
     "[batch] here"},
    {"[run]\ngradient_accumulation_steps = 1\n", NULL,
     "input.ini:2: [run] gradient_accumulation_steps: unknown key; gradient_accumulation_steps belongs to [batch]"},
    {"[run]\nnum_train_epochs = 1\n", NULL,
     "input.ini:2: [run] num_train_epochs: unknown key; num_train_epochs is epochs in [run] here"},
    {"[run]\nbf16 = true\n", NULL,
     "input.ini:2: [run] bf16: unknown key; bf16 is dtype in [precision] here: instead of bf16 = true write dtype = "
     "bf16"},
    {"[zero]\nmics_shard_size = 8\nzero_hpz_partition_size = 8\n", NULL,
     "input.ini:2: [zero] mics_shard_size: unknown key; mics_shard_size is shard_group in [zero] here: write node "
     "(with stage = 3) for the ranks of a node, and world for -1\ninput.ini:3: [zero] zero_hpz_partition_size: not "
     "supported: zero.shard_group shards all states alike, without a second copy of the parameters in each node"},
    {"[zero_optimization]\nstage = 2\n", NULL,
     "input.ini:1: [zero_optimization]: unknown section; such settings are in [zero]"},
    {"", "run.lr_scheduler_type=cosine",
     "command line: run.lr_scheduler_type: unknown key; lr_scheduler_type is type in [scheduler] here"},
    {"", "training.bf16=true",
     "command line: training.bf16: unknown section; bf16 is dtype in [precision] here: instead of bf16 = true write "
     "dtype = bf16"},
    {"", "dpo.max_length=128", "command line: dpo.max_length: unknown key; max_length is seq_len in [data] here"},
    {"", "dpo.ref_model=start", "command line: dpo.ref_model: unknown key; ref_model is reference_path in [dpo] here"},
    {"", "kto.ref_model_sync_steps=9",
     "command line: kto.ref_model_sync_steps: unknown key; ref_model_sync_steps is sync_reference_steps in [kto] here"},
    {"", "grpo.ref_model=start",
     "command line: grpo.ref_model: unknown key; ref_model is reference_path in [grpo] here"},
    {"", "grpo.reward_model=judge", "command line: grpo.reward_model: use grpo.reward_funcs = model:DIRECTORY"},
    {"[vision]\nmm_projector_type = linear\nfreeze_llm = true\nimage_aspect_ratio = pad\nimage_size = 336\nlr = 1\n",
     NULL,
     "input.ini:2: [vision] mm_projector_type: unknown key; mm_projector_type is projector_type in [vision] "
     "here\ninput.ini:3: [vision] freeze_llm: for true, omit llm from vision.train\ninput.ini:4: [vision] "
     "image_aspect_ratio: images are resized before training by dtrain-data --images; for pad, set do_pad = true in a "
     "preprocessor_config.json with image_processor_type LlavaImageProcessor\ninput.ini:5: [vision] image_size: remove "
     "it: dtrain-data --images resizes every image to a square of the tower's size\ninput.ini:6: [vision] lr: set "
     "rates of modules in optimizer.lr_groups: multi_modal_projector:RATE, vision_tower:RATE"},
    {"", "vlm.freeze_vit=true",
     "command line: vlm.freeze_vit: unknown section; freeze_vit is train in [vision] here: for true, omit tower from "
     "the list, with adapters from lora.parts"},
    {"", "rec.freeze_llm=maybe", "command line: rec.freeze_llm: expected true or false, found 'maybe'"},
    {"[evaluation]\neval_steps = 5\n", NULL, "input.ini:1: [evaluation]: unknown section; such settings are in [data]"},
    {"", "grpo.use_vllm=true", "command line: grpo.use_vllm: remove it: dtrain generates with the weights in training"},
    {"[optimizer]\ngradient_clipping = 1\n", NULL,
     "input.ini:2: [optimizer] gradient_clipping: unknown key; gradient_clipping is max_grad_norm in [optimizer] here"},
    {"[precision]\ndtype = O2\n", NULL,
     "input.ini:2: [precision] dtype: expected one of auto, fp32, bf16, fp16, found 'O2' (O2 of apex is fp16)"},
    {"[precision]\nenabled = true\nfp16_opt_level = O1\n", NULL,
     "input.ini:2: [precision] enabled: use precision.dtype = fp16 or bf16 to enable it\ninput.ini:3: [precision] "
     "fp16_opt_level: unknown key; fp16_opt_level is dtype in [precision] here: O0 is fp32, O1 bf16 or fp16, O2 fp16; "
     "O3 (fp16 without master weights) is not supported"},
    {"[data]\nseq_len = 4k\n", NULL,
     "input.ini:2: [data] seq_len: expected an integer from 1 to 16777216, found '4k' (write the number without a "
     "suffix: 4000 or 4096)"},
    {"[data]\nseq_len = 1_\n", NULL, "input.ini:2: [data] seq_len: expected an integer from 1 to 16777216, found '1_'"},
    {"[scheduler]\nwarmup_ratio = 10%\n", NULL,
     "input.ini:2: [scheduler] warmup_ratio: expected a number from 0 to 1, found '10%' (write a fraction as a number: "
     "0.1)"},
    {"[run]\ntime_limit = 1:99:00\n", NULL,
     "input.ini:2: [run] time_limit: expected a number from 0 to 1e+09, found '1:99:00' (durations are written as 90s, "
     "30m, 2h, 1d or 2:00:00)"},
    {"[optimizer]\nlr = 0,001\n", NULL,
     "input.ini:2: [optimizer] lr: expected a number from 0 to 10, found '0,001' (write a decimal point: 0.001)"},
    /* nothing is near */
    {"[comm]\nqwertyuiop = 1\n", NULL,
     "input.ini:2: [comm] qwertyuiop: unknown key; [comm] has backend, timeout, shared_memory, check"},
    /* types of [model] */
    {"[model]\nhidden_size = wide\n", NULL,
     "input.ini:2: [model] hidden_size: expected an integer from 1 to 16777216, found 'wide'"},
    {"[model]\nrms_norm_eps = 2\n", NULL,
     "input.ini:2: [model] rms_norm_eps: expected a number from 0 to 1, found '2'"},
    {"[model]\nsliding_window = none\n", NULL,
     "input.ini:2: [model] sliding_window: expected an integer from 1 to 2147483647, or null, found 'none'"},
    {"[model]\nmodel_type = mamba\n", NULL,
     "input.ini:2: [model] model_type: expected one of gpt2, llama, mistral, qwen2, qwen3, olmo2, olmo3, "
     "seed_oss, internlm3, ministral3, phi3, glm, glm4, granite, smollm3, gemma2, gemma3_text, qwen2_moe, qwen3_moe, "
     "mixtral, deepseek_v2, deepseek_v3, glm4_moe, gpt_oss, qwen3_5_text, qwen3_next, "
     "qwen3_5_moe_text, found 'mamba'"},
    /* all are reported, in order; keys after an unknown section are not checked */
    {"[run]\nseed = x\nthreads = y\n", "run.z=1",
     "input.ini:2: [run] seed: expected an integer from 0, found 'x'\n"
     "input.ini:3: [run] threads: expected an integer from 0 to 4096, found 'y'\n"
     "command line: run.z: unknown key; [run] has task, output_dir, seed, max_steps, epochs, device, threads, "
     "self_check, cuda_graphs, reproducible, time_limit, early_stopping_patience, early_stopping_threshold, "
     "max_skipped_steps"},
    {"[optimzer]\nlr = 1\nfoo = 2\n[run]\n  seed = 1\nseed = 2\nseed = 3\n[data]\nseq_len = 0\n", NULL,
     "input.ini:1: [optimzer]: unknown section; the nearest is [optimizer]\n"
     "input.ini:5: expected a key or a [section] in the first column, found an indented line: 'seed = 1'\n"
     "input.ini:7: [run] seed: set twice, first in line 6\n"
     "input.ini:9: [data] seq_len: expected an integer from 1 to 16777216, found '0'"},
};

TEST(every_mistake_is_named)
{
    unsetenv("DTRAIN_TEST_UNSET");
    setenv("DTRAIN_TEST_ODD", "${HOME}", 1);
    for (size_t i = 0; i < sizeof mistaken / sizeof mistaken[0]; i++) {
        dt_config cfg;
        assert_int_equal(parse(&cfg, mistaken[i].text, mistaken[i].override), DT_ERR_USAGE);
        assert_string_equal(dt_error_message(), mistaken[i].message);
        assert_null(cfg.priv);
    }
}

TEST(a_line_over_256_kib_is_refused)
{
    static char line[262200], text[262300];
    dt_config cfg;
    fill_line(line, 262145);
    snprintf(text, sizeof text, "[data]\n%s\n", line);
    assert_int_equal(parse(&cfg, text, NULL), DT_ERR_USAGE);
    assert_string_equal(dt_error_message(), "input.ini:2: expected lines of at most 262144 bytes, found 262145");
    fill_line(line, 262144);
    snprintf(text, sizeof text, "[data]\n%s\n", line);
    assert_int_equal(parse(&cfg, text, NULL), DT_OK);
    dt_config_free(&cfg);
    memset(line, 'k', 500);
    memcpy(line + 500, " = 1", 5);
    snprintf(text, sizeof text, "[data]\n%s\n", line);
    assert_fails(parse(&cfg, text, NULL), DT_ERR_USAGE, "input.ini:2: expected 'key = value', found 'kkkk");
}

TEST(files_that_are_no_configuration_are_refused)
{
    char *text, path[] = "/tmp/dtrain-test-XXXXXX";
    const int fd = mkstemp(path);
    FILE *f = fdopen(fd, "wb");
    fwrite("a\0b", 1, 3, f);
    fclose(f);
    dt_error_clear();
    assert_fails(dt_config_read_file(path, &text), DT_ERR_USAGE, "not a text file");
    remove(path);
    assert_fails(dt_config_read_file(path, &text), DT_ERR_USAGE, "No such file");
    assert_fails(dt_config_read_file("/tmp", &text), DT_ERR_USAGE, "directory");
}

int main(void) { return run_listed(NULL, NULL, NULL); }
