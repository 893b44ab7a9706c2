/* chat_templates.c - built-in templates. Sources: algorithms.md A.3, and the chat_template of the named models. */
#include "chat_template.h"

#include <string.h>

#define IM(role)                                                                                                       \
    {                                                                                                                  \
        .prefix = "<|im_start|>" role "\n", .end = "<|im_end|>", .after = "\n"                                         \
    }
#define HEADER(role)                                                                                                   \
    {                                                                                                                  \
        .prefix = "<|start_header_id|>" role "<|end_header_id|>\n\n", .end = "<|eot_id|>"                              \
    }
/* Tool results form a user turn; consecutive ones share it. */
#define QWEN_TOOL                                                                                                      \
    {                                                                                                                  \
        .open = "<|im_start|>user", .prefix = "\n<tool_response>\n", .after = "\n</tool_response>",                    \
        .close = "<|im_end|>\n"                                                                                        \
    }
#define IM_TURNS                                                                                                       \
    {                                                                                                                  \
        [DT_ROLE_SYSTEM] = IM("system"), [DT_ROLE_USER] = IM("user"), [DT_ROLE_ASSISTANT] = IM("assistant"),           \
        [DT_ROLE_TOOL] = IM("tool")                                                                                    \
    }
#define QWEN_TURNS                                                                                                     \
    {                                                                                                                  \
        [DT_ROLE_SYSTEM] = IM("system"), [DT_ROLE_USER] = IM("user"), [DT_ROLE_ASSISTANT] = IM("assistant"),           \
        [DT_ROLE_TOOL] = QWEN_TOOL                                                                                     \
    }

static const dt_chat_template forms[] = {
    {.name = "plain",
     .help = "CONTENT blank line (system); \"User: CONTENT\" newline; \"Assistant: CONTENT\" end-of-text",
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "User: ", .after = "\n"},
               [DT_ROLE_ASSISTANT] = {.prefix = "Assistant:", .lead = " ", .end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "Tool: ", .after = "\n"}}},
    {.name = "chatml", .help = "\"<|im_start|>ROLE\" newline \"CONTENT<|im_end|>\" newline", .turns = IM_TURNS},
    {.name = "qwen2",
     .help = "chatml, with \"You are a helpful assistant.\" as the default system message",
     .default_system = "You are a helpful assistant.",
     .turns = IM_TURNS},
    {.name = "qwen2.5",
     .help = "chatml, with the system message of Qwen2.5-Instruct as the default",
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .turns = QWEN_TURNS},
    {.name = "qwen3",
     .help = "chatml; drops thoughts of earlier answers; a last answer without thoughts gets an empty think block",
     .turns = QWEN_TURNS,
     .think_off = "<think>\n\n</think>\n\n"},
    {.name = "qwen3-2507",
     .help = "chatml, with tool results in Qwen2.5's format; thoughts are plain content (Qwen3's Instruct-2507 models)",
     .turns = QWEN_TURNS},
    {.name = "qwen3-thinking-2507",
     .help = "qwen3, with \"<think>\" newline before each answer (Qwen3 Thinking-2507)",
     .turns = QWEN_TURNS,
     .think_off = "<think>\n\n</think>\n\n",
     .generation = "<think>\n"},
    {.name = "llama-3",
     .help = "BOS, then \"<|start_header_id|>ROLE<|end_header_id|>\" blank line \"CONTENT<|eot_id|>\"",
     .begin = "{bos}",
     .turns = {[DT_ROLE_SYSTEM] = HEADER("system"),
               [DT_ROLE_USER] = HEADER("user"),
               [DT_ROLE_ASSISTANT] = HEADER("assistant"),
               [DT_ROLE_TOOL] = HEADER("tool")},
     .trim = true},
    {.name = "llama-3.1",
     .help = "llama-3, with lines of dates (26 Jul 2024) before every system message (Llama 3.1, 3.2 and 3.3)",
     .begin = "{bos}",
     .default_system = "",
     .turns = {[DT_ROLE_SYSTEM] = {.prefix = "<|start_header_id|>system<|end_header_id|>\n\n"
                                             "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
                                   .end = "<|eot_id|>"},
               [DT_ROLE_USER] = HEADER("user"),
               [DT_ROLE_ASSISTANT] = HEADER("assistant"),
               [DT_ROLE_TOOL] = HEADER("ipython")},
     .trim = true},
    {.name = "llama-2",
     .help = "BOS \"[INST] \" <<SYS>> lines, if any, \"CONTENT [/INST] CONTENT \" EOS",
     .turns = {[DT_ROLE_SYSTEM] = {.prefix = "<<SYS>>\n", .after = "\n<</SYS>>\n\n"},
               [DT_ROLE_USER] = {.prefix = "{bos}[INST] ", .after = " [/INST]"},
               [DT_ROLE_ASSISTANT] = {.lead = " ", .end = " {eos}"},
               [DT_ROLE_TOOL] = {.prefix = "{bos}[INST] ", .after = " [/INST]"}},
     .system = DT_SYSTEM_FIRST_USER,
     .trim = true},
    {.name = "mistral-v1",
     .help = "BOS, then \"[INST] CONTENT [/INST] CONTENT\" EOS (7B-Instruct v0.1 and v0.2)",
     .begin = "{bos}",
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "[INST] ", .after = " [/INST]"},
               [DT_ROLE_ASSISTANT] = {.lead = " ", .end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "[INST] ", .after = " [/INST]"}},
     .system = DT_SYSTEM_FIRST_USER},
    {.name = "mistral-v0.1",
     .help = "BOS, then \"[INST] CONTENT [/INST]CONTENT\" EOS \" \" (earlier files of 7B-Instruct v0.1)",
     .begin = "{bos}",
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "[INST] ", .after = " [/INST]"},
               [DT_ROLE_ASSISTANT] = {.end = "{eos}", .after = " "},
               [DT_ROLE_TOOL] = {.prefix = "[INST] ", .after = " [/INST]"}},
     .system = DT_SYSTEM_FIRST_USER},
    {.name = "mixtral",
     .help = "BOS, then \"[INST] CONTENT [/INST]CONTENT\" EOS (Mixtral 8x7B, earlier files of 7B-Instruct v0.2)",
     .begin = "{bos}",
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "[INST] ", .after = " [/INST]"},
               [DT_ROLE_ASSISTANT] = {.end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "[INST] ", .after = " [/INST]"}},
     .system = DT_SYSTEM_FIRST_USER},
    {.name = "mistral-v3",
     .help = "BOS, then \"[INST] CONTENT[/INST] CONTENT\" EOS; system in the last question (7B-Instruct v0.3)",
     .begin = "{bos}",
     .brackets = true,
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "[INST] ", .after = "[/INST]"},
               [DT_ROLE_ASSISTANT] = {.lead = " ", .end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "[TOOL_RESULTS] ", .after = "[/TOOL_RESULTS]"}},
     .system = DT_SYSTEM_LAST_USER,
     .trim_answer = true},
    {.name = "ministral",
     .help = "BOS, then \"[INST]CONTENT[/INST] CONTENT\" EOS; system in the last question (Ministral-8B-Instruct-2410)",
     .begin = "{bos}",
     .brackets = true,
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "[INST]", .after = "[/INST]"},
               [DT_ROLE_ASSISTANT] = {.lead = " ", .end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "[TOOL_RESULTS]", .after = "[/TOOL_RESULTS]"}},
     .system = DT_SYSTEM_LAST_USER,
     .trim_answer = true},
    {.name = "mistral-tekken",
     .help = "BOS, then \"[INST]CONTENT[/INST]CONTENT\" EOS; system in the last question (Nemo)",
     .begin = "{bos}",
     .brackets = true,
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "[INST]", .after = "[/INST]"},
               [DT_ROLE_ASSISTANT] = {.end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "[TOOL_RESULTS]", .after = "[/TOOL_RESULTS]"}},
     .system = DT_SYSTEM_LAST_USER},
    {.name = "mistral-v7",
     .help = "BOS, then \"[SYSTEM_PROMPT]CONTENT[/SYSTEM_PROMPT]\", \"[INST]CONTENT[/INST]CONTENT\" EOS (Small 2501)",
     .begin = "{bos}",
     .brackets = true,
     .turns = {[DT_ROLE_SYSTEM] = {.prefix = "[SYSTEM_PROMPT]", .after = "[/SYSTEM_PROMPT]"},
               [DT_ROLE_USER] = {.prefix = "[INST]", .after = "[/INST]"},
               [DT_ROLE_ASSISTANT] = {.end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "[TOOL_RESULTS]", .after = "[/TOOL_RESULTS]"}}},
    {.name = "alpaca",
     .help = "a preamble; \"### Instruction:\" newline CONTENT blank line; \"### Response:\" newline CONTENT EOS",
     .default_system =
         "Below is an instruction that describes a task. Write a response that appropriately completes the request.",
     .turns = {[DT_ROLE_SYSTEM] = {.after = "\n\n"},
               [DT_ROLE_USER] = {.prefix = "### Instruction:\n", .after = "\n\n"},
               [DT_ROLE_ASSISTANT] = {.prefix = "### Response:\n", .end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "### Tool:\n", .after = "\n\n"}},
     .input_join = "\n\n### Input:\n",
     .input_system =
         "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
         "response that appropriately completes the request."},
    {.name = "vicuna",
     .help = "a preamble; \"USER: CONTENT ASSISTANT: CONTENT\" EOS",
     .default_system =
         "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
         "detailed, and polite answers to the user's questions.",
     .turns = {[DT_ROLE_SYSTEM] = {.after = " "},
               [DT_ROLE_USER] = {.prefix = "USER: ", .after = " "},
               [DT_ROLE_ASSISTANT] = {.prefix = "ASSISTANT:", .lead = " ", .end = "{eos}"},
               [DT_ROLE_TOOL] = {.prefix = "TOOL: ", .after = " "}}},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

const dt_chat_template *dt_chat_template_find(const char *name)
{
    if (strcmp(name, "mistral") == 0) name = "mistral-v1";
    for (int i = 0; i < N_FORMS; i++)
        if (strcmp(forms[i].name, name) == 0) return &forms[i];
    return NULL;
}

bool dt_chat_named(int i, const char **name, const char **help)
{
    if (i < 0 || i >= N_FORMS) return false;
    *name = forms[i].name;
    *help = forms[i].help;
    return true;
}
