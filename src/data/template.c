/* template.c - chat templates are data. The special tokens of the originals are written out as text where the tokenizer has none of them: with bytes,
 * only the end of text is a token of its own. */
#include "segments.h"
#include <string.h>

static const dt_chat_template templates[] = {
    {.name = "plain",
     .turns = {[DT_ROLE_SYSTEM] = {"", "", "\n\n"},
               [DT_ROLE_USER] = {"User: ", "", "\n"},
               [DT_ROLE_ASSISTANT] = {"Assistant: ", "\n", ""},
               [DT_ROLE_TOOL] = {"Tool: ", "", "\n"}},
     .eos_ends_turn = true},
    {.name = "chatml",
     .turns = {[DT_ROLE_SYSTEM] = {"<|im_start|>system\n", "<|im_end|>", "\n"},
               [DT_ROLE_USER] = {"<|im_start|>user\n", "<|im_end|>", "\n"},
               [DT_ROLE_ASSISTANT] = {"<|im_start|>assistant\n", "<|im_end|>", "\n"},
               [DT_ROLE_TOOL] = {"<|im_start|>tool\n", "<|im_end|>", "\n"}}},
    {.name = "alpaca",
     .turns = {[DT_ROLE_SYSTEM] = {"", "", "\n\n"},
               [DT_ROLE_USER] = {"### Instruction:\n", "", "\n\n"},
               [DT_ROLE_ASSISTANT] = {"### Response:\n", "\n\n", ""},
               [DT_ROLE_TOOL] = {"### Tool:\n", "", "\n\n"}},
     .eos_ends_turn = true},
};

const dt_chat_template *dt_chat_template_find(const char *name)
{
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++)
        if (strcmp(templates[i].name, name) == 0) return &templates[i];
    return NULL;
}

const char *dt_chat_template_help(void)
{
    return "  plain    CONTENT blank line (system); \"User: CONTENT\" newline; \"Assistant: CONTENT\" end-of-text\n"
           "  chatml   \"<|im_start|>ROLE\" newline \"CONTENT<|im_end|>\" newline; end-of-text after the last turn\n"
           "  alpaca   \"### Instruction:\" newline CONTENT blank line; \"### Response:\" newline CONTENT end-of-text\n";
}
