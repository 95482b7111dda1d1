import { AppError } from '#core/base/errors.ts'
import { isObject, withDoubles } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { containsText } from '#core/base/storable-text.ts'
import { ExpressionError, evaluateBriefly, freshBudget, NotBriefError, truthy } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import { type Scorer, scorerKey } from '../evals/scorers.ts'
import type { OpenItem, Score } from './model.ts'

/** Returns an error without a specific code. */
export const scoringError = (message: string): AppError => new AppError('EVAL_SCORING_FAILED', { message })

/** Converts an error thrown by a scorer to its failure, which ends its item with an error instead of scores. */
export function toScorerFailure(scorer: Scorer, error: unknown): AppError {
  const { code, message, meta } =
    error instanceof AppError ? error : scoringError(String((error as Error)?.message ?? error))
  return new AppError(code, { message, meta: { ...meta, scorer: scorerKey(scorer) } })
}

/** Returns the data of an item and its output for expressions, tools and deciders. */
export const scoringData = ({
  input,
  output,
  object,
  expected_output,
  metadata,
}: Pick<OpenItem, 'input' | 'output' | 'object' | 'expected_output' | 'metadata'>) => ({
  input,
  output,
  ...(object == null ? {} : { object }),
  expected: expected_output,
  item: { metadata },
})

export const buildScore = (scorer: Scorer, score: number, passed: boolean, more: Partial<Score> = {}): Score => ({
  scorer: scorerKey(scorer),
  score,
  passed,
  ...more,
})

export const scoreVerdict = (scorer: Scorer, passed: boolean): Score => buildScore(scorer, passed ? 1 : 0, passed)

/**
 * Returns a value as a score.
 * @throws EVAL_SCORING_FAILED for anything except a number from 0 to 1
 */
export function requireScore(given: unknown): number {
  const value = withDoubles(given)
  if (typeof value === 'number' && value >= 0 && value <= 1) return value
  throw scoringError(`Score is not a number from 0 to 1: ${String(JSON.stringify(value) ?? value).slice(0, 100)}`)
}

/**
 * Parses the JSON object in a text, from its first brace to its last.
 * @throws EVAL_SCORING_FAILED
 */
export function parseEmbeddedObject(text: string): Record<string, unknown> {
  const from = text.indexOf('{')
  const to = text.lastIndexOf('}')
  try {
    const value = from < 0 || to < from ? null : JSON.parse(text.slice(from, to + 1))
    if (isObject(value)) return value
  } catch {
    // Raised below.
  }
  throw scoringError('Reply contains no JSON object')
}

/** Returns the reasoning to store. Without content storage it is dropped, as it may quote the output. */
export const storableReasoning = (value: unknown, { content_mode }: Pick<OpenItem, 'content_mode'>): Partial<Score> =>
  typeof value === 'string' && content_mode !== 'none' ? { reasoning: value.slice(0, 16_384) } : {}

/** Evaluates an expression over the data of an item. */
type EvaluateData = (expression: unknown, data: object) => unknown

/** Returns the score of a scorer that makes no call; null for other scorers. */
async function computeLocalScore(scorer: Scorer, item: OpenItem, evaluateData: EvaluateData): Promise<Score | null> {
  const text = item.output ?? ''
  switch (scorer.type) {
    case 'exact_match':
      return scoreVerdict(scorer, item.expected_output !== null && text.trim() === item.expected_output.trim())
    case 'contains': {
      const normalizeCase = (value: string) => (scorer.case_sensitive ? value : value.toLowerCase())
      return scoreVerdict(scorer, containsText(normalizeCase(text), normalizeCase(scorer.value)))
    }
    case 'json_logic':
      return scoreVerdict(scorer, truthy(await evaluateData(scorer.expression, scoringData(item))))
    default:
      return null
  }
}

/**
 * Returns the score of a scorer that makes no call; null for other scorers.
 * @throws the failure of the scorer, SERVICE_NOT_READY if no thread is free
 */
export const scoreLocally = (services: Services, scorer: Scorer, item: OpenItem): Promise<Score | null> =>
  computeLocalScore(scorer, item, (expression, data) => evaluate(services, item.project_id, expression, data)).catch(
    raiseFailureOf(scorer),
  )

const raiseFailureOf =
  (scorer: Scorer) =>
  (error: unknown): never => {
    throw error instanceof ExpressionError && !(error instanceof NotBriefError) ? toScorerFailure(scorer, error) : error
  }

const LOCAL_TYPES = ['exact_match', 'contains', 'json_logic']

/**
 * Returns all scores of an item if no scorer makes a call and all expressions are brief; otherwise null.
 * @throws the failure of a scorer
 */
export async function computeBriefScores(item: OpenItem): Promise<Score[] | null> {
  if (!item.run.scorers.every(({ type }) => LOCAL_TYPES.includes(type))) return null
  const scores: Score[] = []
  const spent = freshBudget()
  const evaluateData: EvaluateData = (expression, data) => evaluateBriefly(expression, data, spent)
  try {
    for (const scorer of item.run.scorers)
      scores.push((await computeLocalScore(scorer, item, evaluateData).catch(raiseFailureOf(scorer))) as Score)
  } catch (error) {
    if (error instanceof NotBriefError) return null
    throw error
  }
  return scores
}
