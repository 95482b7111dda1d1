import { z } from 'zod'
import { expressionProblem } from '#core/expressions/evaluate.ts'

/** Scorers: each returns a score from 0 to 1 and whether the output passed. */

const id = z.string().min(1).max(255)

const type = <const T extends string>(value: T, describe: string) => z.literal(value).describe(describe)

const threshold = z.number().min(0).max(1)

const expression = (text: string) =>
  z
    .unknown()
    .superRefine((value, context) => {
      const problem = value === undefined ? 'is required' : expressionProblem(value)
      if (problem)
        context.addIssue({
          code: 'custom',
          message: problem,
          params: value === undefined ? { code: 'REQUIRED' } : undefined,
        })
    })
    .describe(text)

const ExactMatch = z.strictObject({
  type: type('exact_match', 'Output equals the expected output, ignoring surrounding whitespace'),
})

const Contains = z.strictObject({
  type: type('contains', 'Output contains a text'),
  value: z.string().min(1).max(65_536).describe('Text to find'),
  case_sensitive: z.boolean().optional().describe('Whether the match is case-sensitive. Default false.'),
})

const JsonLogic = z.strictObject({
  type: type('json_logic', 'Expression is truthy'),
  expression: expression('JSON Logic expression on `input`, `output`, `object`, `expected` and `item.metadata`'),
})

const OutputSchema = z.strictObject({
  type: type('output_schema', 'Structured output is valid against a schema'),
  schema: z
    .record(z.string(), z.unknown())
    .optional()
    .describe('JSON Schema of the structured output. Default the output_schema of the agent.'),
})

const EmbeddingSimilarity = z.strictObject({
  type: type('embedding_similarity', 'Similarity of output and expected output'),
  pass_threshold: threshold.describe('Minimum similarity to pass'),
})

const LlmJudge = z.strictObject({
  type: type('llm_judge', 'Score by a model'),
  prompt: z
    .string()
    .min(1)
    .max(65_536)
    .describe('Prompt for the model; `{{input}}`, `{{output}}` and `{{expected}}` are replaced'),
  pass_threshold: threshold.describe('Minimum score to pass'),
  ai_provider_id: id.optional().describe('ID of the AI provider. Default the default model route of the project.'),
  model: z.string().min(1).max(255).optional().describe('Model of the AI provider. Default its default model.'),
})

/** Distinguishes the results of scorers whose type may repeat. */
const scorerName = z.string().trim().min(1).max(255).describe('Name of the scorer in results, unique in the eval')

const ToolScorer = z.strictObject({
  type: type('tool', 'Score by a tool'),
  name: scorerName,
  tool_id: id.describe('ID of the tool, which is called with `input`, `output`, `object`, `expected` and `item`'),
  action: id.optional().describe('Operation of a platform or MCP tool; not allowed for other tools'),
  preset_parameters: z.record(z.string(), z.unknown()).optional().describe('Additional arguments of the call'),
  pass_threshold: threshold.optional().describe('Minimum score to pass, if the tool does not return `passed`'),
})

const DeciderScorer = z.strictObject({
  type: type('decider', 'Score by a decider'),
  name: scorerName,
  decider_id: id.describe('ID of the decider'),
  score: expression('JSON Logic expression on `answers` and `answers_by_name` of the decision that returns the score'),
  pass_threshold: threshold.describe('Minimum score to pass'),
  input: expression(
    'JSON Logic expression that returns the input of the decision. Default all values available to expressions.',
  ).optional(),
})

export const Scorer = z
  .discriminatedUnion('type', [
    ExactMatch,
    Contains,
    JsonLogic,
    OutputSchema,
    EmbeddingSimilarity,
    LlmJudge,
    ToolScorer,
    DeciderScorer,
  ])
  .meta({ id: 'EvalScorer' })
export type Scorer = z.output<typeof Scorer>
export type ScorerOf<T extends Scorer['type']> = Extract<Scorer, { type: T }>

const TYPES = Scorer.options.map(option => option.shape.type.value) as string[]

/** Returns the key of a scorer in results: its name if the type may repeat, otherwise its type. */
export const scorerKey = (scorer: Scorer): string => ('name' in scorer ? scorer.name : scorer.type)

/** Largest size of all scorers of an eval, which each run stores and each item reads. */
const MAX_SCORERS_BYTES = 256 * 1024

export const Scorers = z
  .array(Scorer)
  .min(1)
  .max(20)
  .superRefine((scorers, context) => {
    const addProblem = (path: PropertyKey[], message: string) => context.addIssue({ code: 'custom', path, message })
    if (Buffer.byteLength(JSON.stringify(scorers)) > MAX_SCORERS_BYTES)
      addProblem([], 'must be at most 256 KiB as JSON')
    for (const [index, scorer] of scorers.entries()) {
      const isNamed = 'name' in scorer
      if (isNamed && TYPES.includes(scorer.name)) addProblem([index, 'name'], 'must not be a scorer type')
      if (scorers.findIndex(other => scorerKey(other) === scorerKey(scorer)) < index)
        addProblem(isNamed ? [index, 'name'] : [index, 'type'], 'is a duplicate')
    }
  })
  .describe('Scorers of the outputs, 1 to 20, at most 256 KiB in total')
