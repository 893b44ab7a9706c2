/* eval_keys.h - the part of the table of configuration keys (config_keys.h) that sets evaluations on benchmarks. */
#ifndef DTRAIN_EVAL_KEYS_H
#define DTRAIN_EVAL_KEYS_H

/* clang-format off */
#define DT_EVAL_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE) \
    TEXT(eval, tasks, "", \
         "benchmarks to evaluate the model on, comma separated: description files (.ini or .jsonl, " \
         "docs/evaluation.md), or names of files in input/eval without .ini. FILE:BENCHMARK selects one benchmark " \
         "of a file. The run evaluates them with run.task = eval, or during training every eval.steps") \
    TEXT(eval, data_path, "", \
         "directory of the data files that descriptions of benchmarks name; empty: the directory of the description") \
    REAL(eval, steps, 0, 0, 1e12, "optimizer steps", \
         "number of steps between evaluations on eval.tasks; below 1: a fraction of all steps; 0: only at the end") \
    MAYBE(eval, num_fewshot, integer, 0, 1000, "", "examples", \
         "number of solved examples before each question. It replaces the number of the description, unless that is " \
         "0; not set: the number of the description") \
    INT (eval, fewshot_seed, 1234, 0, UINT32_MAX, "", \
         "seed of the random choice of examples, as --seed of lm-evaluation-harness") \
    INT (eval, limit, 0, 0, INT64_MAX, "documents", \
         "maximum number of documents of a benchmark, taken from its start; 0: all") \
    INT (eval, batch_size, 32, 1, 65536, "sequences", \
         "maximum number of sequences in a micro-batch of an evaluation. A micro-batch has at most as many tokens " \
         "as one of training, or only one sequence") \
    INT (eval, max_length, 0, 0, 16777216, "tokens", \
         "maximum length of a context with its continuation; longer contexts lose their first tokens. 0: " \
         "max_position_embeddings of the model") \
    TEXT(eval, judge_path, "", \
         "reward or safety model that scores generated answers, for the metrics safety_rate, win_rate and " \
         "judge_score") \
    INT (eval, max_gen_toks, 0, 0, 10000, "tokens", \
         "maximum length of a generated text, replaces max_gen_toks of the description; 0: the value of the " \
         "description") \
    INT (eval, bootstrap_iters, 100000, 0, 10000000, "samples", \
         "samples of the bootstrap that estimates the standard error of a perplexity; 0: no estimate") \
    BOOL(eval, log_samples, false, \
         "write a line for each document to OUTPUT_DIR/eval/BENCHMARK.jsonl: token ids, log-probabilities and results")
/* clang-format on */

#endif
