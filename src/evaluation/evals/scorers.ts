import { z } from 'zod'
import { expressionProblem } from '../../core/expressions/evaluate.ts'

/** What judges an answer: each scorer gives a score from 0 to 1 and whether that is enough. */

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
  type: type('exact_match', 'The text is what is expected, apart from space around it'),
})

const Contains = z.strictObject({
  type: type('contains', 'A text occurs in the answer'),
  value: z.string().min(1).max(65_536).describe('What has to occur'),
  case_sensitive: z.boolean().optional().describe('Whether its case counts; default false'),
})

const JsonLogic = z.strictObject({
  type: type('json_logic', 'An expression is truthy'),
  expression: expression('Expression over `input`, `output`, `object`, `expected` and `item.metadata`'),
})

const OutputSchema = z.strictObject({
  type: type('output_schema', 'The object of the answer satisfies a schema'),
  schema: z
    .record(z.string(), z.unknown())
    .optional()
    .describe('JSON Schema of the object; default the output_schema of the agent'),
})

const EmbeddingSimilarity = z.strictObject({
  type: type('embedding_similarity', 'How near the answer is to what is expected'),
  pass_threshold: threshold.describe('Least similarity that is enough'),
})

const LlmJudge = z.strictObject({
  type: type('llm_judge', 'A model says how good the answer is'),
  prompt: z
    .string()
    .min(1)
    .max(65_536)
    .describe('What the model is asked; `{{input}}`, `{{output}}` and `{{expected}}` are filled in'),
  pass_threshold: threshold.describe('Least score that is enough'),
  ai_provider_id: id.optional().describe('AI provider that is asked; default the default model route of the project'),
  model: z.string().min(1).max(255).optional().describe('Model of the provider; default its default model'),
})

/** Names by which results of scorers that may repeat are told apart. */
const named = z.string().trim().min(1).max(255).describe('Name of its results, unique in the eval')

const ToolScorer = z.strictObject({
  type: type('tool', 'A tool of the project scores the answer'),
  name: named,
  tool_id: id.describe('Tool that is called with `input`, `output`, `object`, `expected` and `item`'),
  action: id.optional().describe('Operation of a platform or mcp tool; others have none'),
  preset_parameters: z.record(z.string(), z.unknown()).optional().describe('Further arguments of the call'),
  pass_threshold: threshold.optional().describe('Least score that is enough where the tool does not say so itself'),
})

const DeciderScorer = z.strictObject({
  type: type('decider', 'A decider is asked about the answer'),
  name: named,
  decider_id: id.describe('Decider of the project'),
  score: expression('Expression over `answers` and `answers_by_name` of the decision, which gives the score'),
  pass_threshold: threshold.describe('Least score that is enough'),
  input: expression('Expression whose value is decided about; default all that expressions of scorers read').optional(),
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

/** What the results of a scorer are kept under: its type, or its name where the type may repeat. */
export const keyOf = (scorer: Scorer): string => ('name' in scorer ? scorer.name : scorer.type)

/** Bytes of all scorers of an eval: each run keeps them, and each item of it reads them. */
const MOST_BYTES = 256 * 1024

export const Scorers = z
  .array(Scorer)
  .min(1)
  .max(20)
  .superRefine((scorers, context) => {
    const refuse = (path: PropertyKey[], message: string) => context.addIssue({ code: 'custom', path, message })
    if (Buffer.byteLength(JSON.stringify(scorers)) > MOST_BYTES) refuse([], 'must be at most 256 KiB as JSON')
    for (const [index, scorer] of scorers.entries()) {
      const isNamed = 'name' in scorer
      if (isNamed && TYPES.includes(scorer.name)) refuse([index, 'name'], 'is the type of a scorer')
      if (scorers.findIndex(other => keyOf(other) === keyOf(scorer)) < index)
        refuse(isNamed ? [index, 'name'] : [index, 'type'], 'is there twice')
    }
  })
  .describe('What the answers are judged by, 1 to 20 scorers of at most 256 KiB')
