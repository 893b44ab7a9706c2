/* model_cases.h - the models of tests/data/model and tests/data/hf that make_model_fixtures.py wrote. */
#ifndef DTRAIN_MODEL_CASES_H
#define DTRAIN_MODEL_CASES_H

static const char *const CASES[] = {"gpt2",
                                    "gpt2_variant",
                                    "llama",
                                    "llama_linear",
                                    "llama_dynamic",
                                    "mistral",
                                    "qwen2",
                                    "qwen3",
                                    "olmo2",
                                    "granite",
                                    "smollm3",
                                    "gemma2",
                                    "gemma3_text",
                                    "olmo3",
                                    "seed_oss",
                                    "phi3",
                                    "phi3_partial",
                                    "glm",
                                    "glm4",
                                    "qwen2_moe",
                                    "qwen3_moe",
                                    "qwen3_moe_many",
                                    "qwen3_moe_balanced",
                                    "mixtral",
                                    "mixtral_all",
                                    "deepseek_v3",
                                    "deepseek_v3_plain",
                                    "deepseek_v2",
                                    "glm4_moe",
                                    "gpt_oss",
                                    "gpt_oss_all",
                                    "qwen3_5",
                                    "qwen3_5_long",
                                    "internlm3",
                                    "ministral3",
                                    "qwen3_5_moe",
                                    "qwen3_next"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

#endif
