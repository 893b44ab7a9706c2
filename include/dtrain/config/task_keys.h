/* task_keys.h - the part of the table of configuration keys (config_keys.h) that sets fine-tuning, reward models,
 * preference optimisation, distillation and reinforcement learning. */
#ifndef DTRAIN_TASK_KEYS_H
#define DTRAIN_TASK_KEYS_H

/* clang-format off */
#define DT_TASK_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE) \
    ENUM(sft, loss_type, "nll", "nll|dft", \
         "loss of a target with probability p. nll: -log p; dft: -p log p with p as a constant factor (dynamic " \
         "fine-tuning): improbable targets count less") \
    BOOL(sft, train_on_inputs, false, \
         "train on prompts, too: every token of a sample is a target, including messages that are excluded from the " \
         "loss. Image placeholders are never targets") \
    ENUM(rm, kind, "pairwise", "pairwise|harmless", \
         "pairwise: the chosen answer gets the higher reward; harmless: a safety score, positive for safe answers. " \
         "It is trained on two labels: which answer of a pair is safer, and which answers are safe") \
    ENUM(rm, loss_type, "sigmoid", "sigmoid|hinge", \
         "loss of a pair, where d is the difference of its rewards minus its margin. sigmoid: -log sigmoid(d); " \
         "hinge: max(0, -d)") \
    REAL(rm, margin, 0, -1e6, 1e6, "reward", \
         "required lead of the chosen answer's reward, in addition to the margin in the data") \
    REAL(rm, label_smoothing, 0, 0, 0.5, "probability", \
         "probability that a pair is labelled the wrong way round (loss_type = sigmoid)") \
    REAL(rm, center_rewards_coefficient, 0, 0, 1e6, "", \
         "coefficient of the squared sum of a pair's rewards, a term of the loss that keeps rewards near 0 (0.01 is " \
         "usual); 0: off") \
    REAL(rm, w_cls, 1, 0, 1e6, "", \
         "kind = harmless: weight of the classification loss of safe and unsafe answers. Answers without a safety " \
         "label do not contribute") \
    REAL(rm, w_tie, 1, 0, 1e6, "", \
         "weight of the loss of a tie (neither answer is better): the squared difference of the rewards, instead of " \
         "loss_type") \
    INT (rm, max_length, 0, 0, 16777216, "tokens", \
         "maximum length of a text, at most data.seq_len. Pairs with a longer text are dropped, or truncated with " \
         "rm.truncate; 0: data.seq_len") \
    BOOL(rm, truncate, false, "truncate longer texts to max_length tokens instead of dropping their pairs") \
    REAL(dpo, beta, 0.1, 1e-6, 1e6, "", "strength of the penalty for deviating from the reference") \
    TEXT(dpo, loss_type, "sigmoid", \
         "losses of a pair, comma separated, summed with loss_weights: sigmoid, cdpo, robust, hinge, ipo, " \
         "sigmoid_norm, exo_pair, nca_pair, bco_pair, sppo_hard, apo_zero, apo_down, discopop, aot, aot_unpaired, " \
         "sft; without a reference model: cpo, cpo_hinge, cpo_ipo, simpo, orpo") \
    TEXT(dpo, loss_weights, "", "weights of the losses in loss_type, in the same order; empty: 1 each") \
    REAL(dpo, label_smoothing, 0, 0, 0.5, "probability", \
         "probability that a pair is labelled the wrong way round: for cdpo, robust (below 0.5), exo_pair (above " \
         "0), aot, aot_unpaired, cpo and simpo") \
    ENUM(dpo, f_divergence, "reverse_kl", "reverse_kl|forward_kl|js_divergence|alpha_divergence", \
         "divergence from the reference, for the losses sigmoid, cdpo, robust, hinge, ipo, sigmoid_norm, exo_pair " \
         "and discopop") \
    REAL(dpo, f_alpha_divergence_coef, 0.5, -100, 100, "", "alpha of f_divergence = alpha_divergence") \
    REAL(dpo, discopop_tau, 0.05, 1e-6, 1e6, "", "temperature of discopop") \
    MAYBE(dpo, cpo_alpha, number, 0, 1e6, "", "", \
         "weight of the mean negative log-likelihood of chosen texts (sft) that cpo, cpo_hinge, cpo_ipo and orpo " \
         "contain; not set: 0 with simpo, else 1") \
    ENUM(dpo, sft_on_prompt, "auto", "auto|true|false", \
         "true: the term sft includes the prompts of chosen texts; false: it does not; auto: true with orpo, as in " \
         "TRL") \
    REAL(dpo, simpo_gamma, 0.5, 0, 1e6, "", \
         "simpo: margin between the rewards of both answers. It is not divided by beta; SimPO's authors give gamma / " \
         "beta") \
    REAL(dpo, alphapo_alpha, 0, -100, 100, "", \
         "cpo, cpo_hinge, cpo_ipo, simpo: the reward is beta (1 - p^-alpha) / alpha (AlphaPO, TRL: alpha); 0: beta " \
         "log p") \
    REAL(dpo, ld_alpha, 1, 0, 1, "", \
         "weight of an answer's tokens beyond the length of the other answer; 1: the same weight as the other tokens") \
    BOOL(dpo, use_wpo, false, \
         "multiply the loss of a pair by the probability of both answers under the trained model (WPO)") \
    BOOL(dpo, average, false, "average an answer's log-probabilities over its tokens instead of summing them") \
    TEXT(dpo, reference_path, "", \
         "directory or checkpoint of the reference model for the log-probabilities; empty: model.path") \
    BOOL(dpo, precompute_reference, false, \
         "compute the reference's log-probabilities before training and store them in " \
         "OUTPUT_DIR/reference-logps.bin. The reference then takes no memory. The file is written once; it is " \
         "refused if model, data or lengths have changed") \
    INT (dpo, sync_reference_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "every this many steps, set the reference to sync_reference_mixup x trained model + (1 - " \
         "sync_reference_mixup) x reference (512 is usual); 0: never") \
    REAL(dpo, sync_reference_mixup, 0.6, 0, 1, "", \
         "share of the trained model in the new reference (sync_reference_steps)") \
    TEXT(dpo, helpful_path, "", \
         "MM-DPO: directory or checkpoint of the frozen reward model that computes the margin of each pair; empty: " \
         "margins come from the data, if it has any") \
    ENUM(dpo, dynamic_beta, "margin", "margin|factor|batch", \
         "how beta depends on margins. margin: beta (1 + beta_w (1 - exp(-beta_k m))) for a pair with margin m; " \
         "factor: beta (1 + beta_w m), at least 0.001; batch: one beta for a whole step, from the policy's " \
         "preferences, and pairs with unusual margins are filtered out (beta-DPO)") \
    MAYBE(dpo, beta_w, number, 0, 1e6, "", "", \
         "strength of dynamic_beta; 0: beta is constant; not set: 0.5 for margin, 0.1 for factor, 0.6 for batch. " \
         "The margin of a pair is 0 if neither a model nor the data gives one") \
    REAL(dpo, beta_k, 0.5, 0, 1e6, "", "how fast beta grows with the margin (dynamic_beta = margin)") \
    ENUM(dpo, negative_margin, "clamp", "clamp|abs", \
         "treatment of negative margins. clamp: as 0; abs: as their absolute value. dynamic_beta = factor uses them " \
         "unchanged") \
    REAL(dpo, beta_keep, 0.8, 0, 1, "share of a step's pairs", \
         "dynamic_beta = batch: share of pairs to train on, at least one pair. Pairs are sampled with a preference " \
         "for margins near the running mean") \
    REAL(dpo, beta_momentum, 0.9, 0, 1, "", \
         "dynamic_beta = batch: momentum of the running mean and deviation of the margins") \
    TEXT(dpo, harmless_path, "", \
         "Safe-MM-DPO: frozen safety model (rm.kind = harmless) that computes the margins of a second loss. The " \
         "second loss has weight lambda / (1 + lambda), the first 1 / (1 + lambda); empty: no second loss") \
    REAL(dpo, lambda_init, 1, 1e-8, 20, "", "initial value of lambda") \
    REAL(dpo, lambda_lr, 0.01, 0, 1e3, "", \
         "rate at which lambda rises while the expected cost (negative safety) is above cost_limit, and falls while " \
         "it is below") \
    REAL(dpo, lambda_max, 10, 1e-8, 20, "", "maximum of lambda") \
    REAL(dpo, lambda_min, 0.01, 1e-8, 20, "", "minimum of lambda") \
    REAL(dpo, cost_limit, 0, -1e6, 1e6, "cost", "expected cost at which lambda does not change") \
    MAYBE(dpo, kl_coef, number, 0, 1e6, "", "", \
         "weight of the KL divergence from the reference, averaged over the tokens of chosen answers; not set: 0.1 " \
         "with harmless_path, else 0") \
    ENUM(dpo, kl_estimator, "full", "full|k3", \
         "estimator of the KL divergence. full: from the probabilities of the whole vocabulary; k3: only from those " \
         "of the answer's tokens") \
    REAL(kto, beta, 0.1, 1e-6, 1e6, "", "strength of the penalty for deviating from the reference") \
    ENUM(kto, loss_type, "kto", "kto|apo_zero_unpaired|bco", \
         "loss of an answer. kto: compares its ratio to the reference with kl, the mean ratio of prompts paired " \
         "with the answers of other samples; apo_zero_unpaired: compares it with 0; bco: logarithmic loss of a " \
         "classifier, compares it with delta, the mean ratio of all answers so far") \
    REAL(kto, desirable_weight, 1, 0, 1e6, "", \
         "weight of the losses of good answers. Usually (desirable_weight x number of good answers) / " \
         "(undesirable_weight x number of bad answers) is 1 to 4/3") \
    REAL(kto, undesirable_weight, 1, 0, 1e6, "", "weight of the losses of bad answers") \
    TEXT(kto, reference_path, "", \
         "directory or checkpoint of the reference model for the log-probabilities; empty: model.path") \
    INT (kto, sync_reference_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "every this many steps, set the reference to sync_reference_mixup x trained model + (1 - " \
         "sync_reference_mixup) x reference (512 is usual); 0: never") \
    REAL(kto, sync_reference_mixup, 0.6, 0, 1, "", \
         "share of the trained model in the new reference (sync_reference_steps)") \
    TEXT(distill, teacher_path, "", \
         "directory or checkpoint of the frozen teacher. It may be of any family, and must have the vocabulary and " \
         "the tokenizer of the model in training") \
    TEXT(distill, teacher_logprobs, "", \
         "file with a teacher's most probable tokens at each target of data.train, written by dtrain-generate " \
         "--top-logprobs; used instead of teacher_path") \
    REAL(distill, beta, 0.5, 0, 1, "", \
         "divergence of student and teacher at a token. 0: KL(teacher || student); 1: KL(student || teacher); " \
         "between: beta KL(teacher || m) + (1 - beta) KL(student || m) with m = beta teacher + (1 - beta) student") \
    REAL(distill, temperature, 1, 1e-3, 1e3, "", \
         "divisor of the logits of both models, in the divergence and in sampling (TRL's GKDTrainer: only in " \
         "sampling, and 0.9 by default)") \
    REAL(distill, lmbda, 0, 0, 1, "share of steps", \
         "share of the steps in which the student samples the answers itself, for the prompts of data.train. The " \
         "other steps use the answers of data.train (TRL's default is 0.5)") \
    INT (distill, max_new_tokens, 128, 1, 16777216, "tokens", \
         "maximum length of an answer that the student or the teacher samples") \
    BOOL(distill, seq_kd, false, \
         "the teacher samples the answers of all steps in which the student does not (sequence-level distillation). " \
         "Needs lmbda below 1") \
    ENUM(classify, problem, "auto", "auto|single_label|multi_label|regression|tokens", \
         "type of the labels. single_label: one of the names for each text; multi_label: any number of them; " \
         "regression: a number; tokens: a name for each word. auto: by the labels of data.train (one, a list, a " \
         "number with a fraction, one for each word)") \
    TEXT(classify, labels, "", \
         "names of the labels, comma separated, in the order of their numbers; empty: those of model.path if it has " \
         "labels, else those of data.train in alphabetical order") \
    ENUM(embed, pooling, "auto", "auto|last|mean|cls", \
         "how the embedding of a text is computed from its tokens' hidden states. last: that of the last token; " \
         "mean: their mean; cls: that of the first token. auto: as in model.path, if it is a model of " \
         "sentence-transformers or of this task, else last") \
    REAL(embed, scale, 20, 1e-3, 1e4, "", "factor of the cosines in the loss, 1 / temperature") \
    TEXT(embed, matryoshka_dims, "", \
         "comma-separated lengths: the first values of an embedding, up to each length, are trained as an embedding " \
         "of their own. The loss is the sum over these lengths. Empty: only the whole embedding") \
    TEXT(embed, matryoshka_weights, "", "weights of the lengths in matryoshka_dims, in the same order; empty: 1 each") \
    BOOL(embed, normalize, true, "the exported model scales embeddings to length 1. The loss always does") \
    TEXT(embed, query_prompt, "", \
         "text before each query in the exported model. The records of data.train contain it as instruction") \
    TEXT(embed, document_prompt, "", "text before each other text in the exported model") \
    TEXT(ppo, reward_path, "", \
         "directory or checkpoint of the reward model that scores completions. The critic starts from it. It counts " \
         "as the first of reward_funcs") \
    TEXT(ppo, reward_funcs, "", \
         "functions that score completions, comma separated: names of built-in functions, model:DIRECTORY, " \
         "command:PROGRAM ARGUMENTS. The score is their weighted sum") \
    TEXT(ppo, reward_weights, "", "weights of reward_path (if set) and reward_funcs, in this order; empty: 1 each") \
    TEXT(ppo, value_path, "", \
         "model that the critic starts from; empty: the reward model, else model.path with a new head") \
    TEXT(ppo, reference_path, "", "reference model for the penalty on divergence; empty: model.path") \
    TEXT(ppo, cost_path, "", \
         "PPO-Lagrangian: safety model (rm.kind = harmless). The cost of a completion is its negative score. The " \
         "lambda and cost keys below need this key") \
    TEXT(ppo, rollouts, "", \
         "file of completions to train on instead of generating them, in the format of log.rollouts. Rewards in the " \
         "file replace reward functions") \
    INT (ppo, total_episodes, 0, 0, INT64_MAX, "completions", \
         "length of the run when max_steps is 0, rounded up to whole rollouts; 0: run.epochs over the prompts") \
    INT (ppo, num_ppo_epochs, 4, 1, 1000000, "", "epochs of training on each rollout") \
    INT (ppo, num_mini_batches, 1, 1, 1000000, "", \
         "optimizer steps per epoch on a rollout. Each takes train_batch_size completions, so a rollout has " \
         "num_mini_batches x train_batch_size completions") \
    INT (ppo, response_length, 53, 1, 16777216, "tokens", "maximum length of a completion") \
    REAL(ppo, temperature, 0.7, 0.001, 1000, "", "divisor of the logits, in sampling and in all log-probabilities") \
    TEXT(ppo, stop_token, "eos", \
         "token that ends a completion: eos, or a token of the vocabulary as text or id") \
    REAL(ppo, missing_eos_penalty, 0, 0, 1e6, "", "penalty on the score of a truncated completion") \
    BOOL(ppo, use_score_scaling, false, "divide scores by the standard deviation of all scores so far") \
    BOOL(ppo, use_score_norm, false, "with use_score_scaling: subtract the mean of all scores first") \
    MAYBE(ppo, score_clip, number, 0, 1e6, "null", "", \
         "clip scores, after scaling, to plus and minus this value; null: no clipping; not set: 50 with cost_path, " \
         "else null") \
    BOOL(ppo, whiten_rewards, false, "divide token rewards by their standard deviation over the whole rollout") \
    MAYBE(ppo, kl_coef, number, 0, 1e6, "", "", \
         "penalty per nat of divergence from the reference; not set: 0.01 with cost_path, else 0.05") \
    ENUM(ppo, kl_estimator, "k1", "k1|k3", \
         "estimator of the divergence at a token, with d = log reference - log policy. k1: -d; k3: exp(d) - 1 - d") \
    BOOL(ppo, adaptive_kl, false, "adjust kl_coef to bring the divergence to adaptive_kl_target") \
    REAL(ppo, adaptive_kl_target, 6, 1e-6, 1e6, "nats", "target divergence of a completion (adaptive_kl)") \
    REAL(ppo, adaptive_kl_horizon, 10000, 1, 1e12, "completions", \
         "time scale on which kl_coef adapts; larger is slower (adaptive_kl)") \
    REAL(ppo, target_kl, 0, 0, 1e6, "nats", \
         "after an epoch with policy/approxkl above this, skip the remaining epochs of its rollout; 0: never") \
    REAL(ppo, gamma, 1, 0, 1, "", "discount factor of later rewards") \
    REAL(ppo, lam, 0.95, 0, 1, "", "lambda of generalised advantage estimation") \
    REAL(ppo, cliprange, 0.2, 0, 1e6, "", "clip range of the policy ratio around 1") \
    MAYBE(ppo, cliprange_value, number, 0, 1e6, "null", "", \
         "clip range of values around those of the rollout; null: no clipping; not set: 5 with cost_path, else 0.2") \
    REAL(ppo, vf_coef, 0.1, 0, 1e6, "", "weight of the critic's loss") \
    REAL(ppo, ent_coef, 0, 0, 1e6, "", "weight of the policy's entropy bonus") \
    REAL(ppo, lambda_init, 1, 1e-8, 20, "", "initial value of lambda, the multiplier of costs") \
    REAL(ppo, lambda_lr, 0.1, 0, 1e6, "", "rate at which log lambda rises with costs above cost_limit") \
    REAL(ppo, lambda_max, 5, 1e-8, 20, "", "maximum of lambda") \
    REAL(ppo, lambda_min, 0.01, 1e-8, 20, "", "minimum of lambda") \
    REAL(ppo, cost_limit, 0, -1e6, 1e6, "", "allowed mean cost") \
    INT (ppo, cost_window, 128, 1, 100000000, "completions", "number of recent costs that are averaged") \
    INT (grpo, num_generations, 8, 1, 65536, "completions", \
         "completions per prompt. They form a group and are compared with each other. Steps and generations consist " \
         "of whole groups. 1 needs an advantage that compares no group") \
    INT (grpo, max_completion_length, 512, 1, 16777216, "tokens", \
         "maximum length of a completion; longer ones are truncated") \
    INT (grpo, steps_per_generation, 0, 0, INT64_MAX, "micro-steps", \
         "micro-steps per generation: a multiple of batch.gradient_accumulation_steps, or a divisor (a step then " \
         "takes several generations); 0: one optimizer step per generation") \
    INT (grpo, generation_batch_size, 0, 0, INT64_MAX, "completions", \
         "alternative to steps_per_generation: completions per generation over all ranks, a multiple or a divisor " \
         "of batch.train_batch_size; 0: use steps_per_generation") \
    INT (grpo, num_iterations, 1, 1, 65536, "", "number of times that the steps of a generation are taken") \
    REAL(grpo, temperature, 1, 1e-3, 1e3, "", "divisor of the logits, in sampling, in the loss and in the reference") \
    REAL(grpo, top_p, 1, 0, 1, "", \
         "sample only from the smallest set of most probable tokens with at least this total probability; 1: all") \
    INT (grpo, top_k, 0, 0, INT64_MAX, "tokens", "sample only from this many most probable tokens; 0: all") \
    REAL(grpo, min_p, 0, 0, 1, "", \
         "sample only from tokens with at least this fraction of the highest probability; 0: all") \
    REAL(grpo, repetition_penalty, 1, 1e-3, 1e3, "", \
         "penalty on tokens that already occur; above 1: less probable; 1: none") \
    TEXT(grpo, reward_funcs, "", \
         "reward functions, comma separated: accuracy, format, length, keywords, rec, rec_rule, rec_rank, " \
         "rec_semantic, model:DIRECTORY, command:PROGRAM ARGS (docs/rewards.md)") \
    TEXT(grpo, reward_weights, "", "weights of the functions in reward_funcs, in the same order; empty: 1 each") \
    TEXT(grpo, environment, "", \
         "command:PROGRAM ARGS that answers each turn of a completion (docs/environments.md). The model continues " \
         "after the program's observations. The program's rewards are those of a function called environment with " \
         "weight 1. Empty: none") \
    INT (grpo, max_tool_calling_iterations, 0, 0, 1000000, "observations", \
         "environment: maximum number of observations in a completion; 0: only max_completion_length limits them") \
    INT (grpo, overlong_cache, 0, 0, 16777216, "tokens", \
         "length of the penalty zone before overlong_max_length. The penalty grows from 0 to 1 in this zone, and " \
         "enters the rewards as a function called overlong (DAPO); 0: none") \
    INT (grpo, overlong_max_length, 0, 0, 16777216, "tokens", \
         "length at which the overlong penalty reaches 1; 0: max_completion_length") \
    REAL(grpo, overlong_penalty, 1, 0, 1e6, "", "weight of the overlong penalty among the rewards") \
    ENUM(grpo, advantage, "group", "group|rloo|reinforce|reinforce++|reinforce++-baseline", \
         "what is subtracted from the reward of a completion. group: the mean of its group, and the difference is " \
         "divided as scale_rewards says; rloo: the mean of the others in its group; reinforce: the mean of the " \
         "generation; reinforce++: nothing; reinforce++-baseline: the mean of its group. The last two are " \
         "normalised over all tokens of the generation") \
    ENUM(grpo, kl_in_reward, "auto", "auto|true|false", \
         "true: subtract beta x (log policy - log reference) from rewards: from that of a whole completion, or " \
         "token by token with reinforce++ and reinforce++-baseline; false: the divergence is a term of the loss; " \
         "auto: true for rloo, reinforce and reinforce++") \
    BOOL(grpo, normalize_advantages, false, \
         "rloo, reinforce: normalise advantages over the generation to mean 0 and deviation 1") \
    TEXT(grpo, reward_clip_range, "", \
         "MIN, MAX: limits of a completion's total reward, before the divergence; empty: none") \
    ENUM(grpo, scale_rewards, "group", "group|batch|none", \
         "divisor of the difference between a reward and its group's mean. group: the standard deviation of the " \
         "group; batch: that of the whole generation; none: 1 (Dr. GRPO)") \
    ENUM(grpo, multi_objective_aggregation, "sum_then_normalize", "sum_then_normalize|normalize_then_sum", \
         "sum_then_normalize: add the rewards of all functions, then normalise the sums; normalize_then_sum: " \
         "normalise each function within its group first (GDPO), which ignores scale_rewards") \
    BOOL(grpo, dynamic_sampling, false, \
         "discard groups whose rewards are all equal and generate others instead (DAPO)") \
    INT (grpo, dynamic_sampling_rounds, 10, 1, 65536, "generations", \
         "maximum number of generations for one step's groups, the first included. After the last one, the step " \
         "uses the remaining groups as generated") \
    ENUM(grpo, loss_type, "dapo", "grpo|bnpo|dr_grpo|dapo|cispo|sapo|luspo|vespo", \
         "token weighting and bound on the ratio of new to old probabilities (formulas: docs/algorithms.md). bnpo " \
         "divides by the tokens of a micro-batch, so its results depend on batch.micro_batch_size") \
    ENUM(grpo, importance_sampling_level, "token", "token|sequence|product", \
         "token: one ratio per token; sequence: one per completion, the exponential of its mean log-ratio (GSPO); " \
         "product: one per completion, the exponential of its summed log-ratio (RLOO)") \
    REAL(grpo, epsilon, 0.2, 0, 1e6, "", "lower clip range: the ratio is clipped below 1 - epsilon") \
    MAYBE(grpo, epsilon_high, number, 0, 1e6, "", "", \
         "upper clip range: the ratio is clipped above 1 + epsilon_high (DAPO: 0.28). With cispo: the maximum ratio " \
         "(5 is usual). Not set: epsilon") \
    MAYBE(grpo, delta, number, 0, 1e6, "", "", \
         "tokens with a negative advantage: maximum of a ratio above 1 + epsilon_high, which clipping does not " \
         "bound; not set: no bound") \
    REAL(grpo, sapo_temperature_pos, 1, 1e-6, 1e6, "", \
         "loss_type = sapo: temperature for tokens with a positive advantage") \
    REAL(grpo, sapo_temperature_neg, 1.05, 1e-6, 1e6, "", "loss_type = sapo: temperature for all other tokens") \
    REAL(grpo, vespo_k_pos, 2, 0, 1e6, "", "loss_type = vespo: exponent of ratios for advantages of at least 0") \
    REAL(grpo, vespo_lambda_pos, 3, 0, 1e6, "", "loss_type = vespo: decay of ratios for advantages of at least 0") \
    REAL(grpo, vespo_k_neg, 3, 0, 1e6, "", "loss_type = vespo: exponent of ratios for negative advantages") \
    REAL(grpo, vespo_lambda_neg, 2, 0, 1e6, "", "loss_type = vespo: decay of ratios for negative advantages") \
    MAYBE(grpo, off_policy_mask_threshold, number, 0, 1e6, "", "", \
         "exclude completions with a negative advantage from the policy term if the mean of old minus new " \
         "log-probabilities exceeds this; not set: exclude none") \
    BOOL(grpo, mask_truncated_completions, false, "exclude truncated completions from the loss") \
    REAL(grpo, beta, 0, 0, 1e6, "", "weight of the divergence from the reference; 0: no reference is loaded") \
    ENUM(grpo, kl_estimator, "k3", "k3|k2", \
         "divergence in the loss at a token, with d = log reference - log policy. k3: exp(d) - 1 - d; k2: d^2 / 2") \
    BOOL(grpo, use_bias_correction_kl, false, "multiply the divergence by the ratio (TRL's default is true)") \
    TEXT(grpo, reference_path, "", \
         "directory or checkpoint of the reference model for the divergence; empty: model.path") \
    INT (grpo, sync_reference_steps, 0, 0, INT64_MAX, "optimizer steps", \
         "every this many steps, set the reference to sync_reference_mixup x trained model + (1 - " \
         "sync_reference_mixup) x reference (512 is usual); 0: never") \
    REAL(grpo, sync_reference_mixup, 0.6, 0, 1, "", \
         "share of the trained model in the new reference (sync_reference_steps)") \
    REAL(grpo, ent_coef, 0, -1e6, 1e6, "", \
         "weight of the mean token entropy of completions. The weighted entropy is subtracted from the loss (TRL: " \
         "entropy_coef)") \
    REAL(grpo, top_entropy_quantile, 1, 0, 1, "", \
         "share of a step's tokens, those with the highest entropy, that enter the policy term; 1: all") \
    ENUM(grpo, rollout, "sample", "sample|beam", \
         "sample: completions are sampled independently; beam: they are the num_generations best results of a beam " \
         "search, best first. With rec.catalogue, beams are items of the catalogue") \
    TEXT(grpo, rollouts, "", \
         "file of completions to use instead of generating them, in the format of log.rollouts: one JSON object per " \
         "line with prompt_ids, completion_ids and rewards. With images, it also has sample, the number of the " \
         "prompt. Rewards in the file replace reward_funcs")
/* clang-format on */

#endif
