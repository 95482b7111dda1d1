import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { holdsText } from '../../core/api/storable-text.ts'
import { ExpressionError, evaluate, isObject, truthy } from '../../core/expressions/evaluate.ts'
import { keyOf, type Scorer } from '../evals/scorers.ts'
import type { OpenItem, Score } from './model.ts'

/** What scorers make of an answer. */

/** What a scorer fails with: the item has an error then, not a score. */
export class ScorerFailed extends Error {
  readonly failure: RecordedFailure
  constructor(scorer: string, { code, message, meta }: RecordedFailure) {
    super(message)
    this.failure = { code, message, meta: { ...meta, scorer } }
  }
}

/** What is recorded of a scorer that failed; null for what is no failure of a scorer. */
export const scoringFailure = (error: unknown): RecordedFailure | null =>
  error instanceof ScorerFailed ? error.failure : null

/** A failure that has no code of its own. */
export const unscoredResult = (message: string): AppError => new AppError('EVAL_SCORING_FAILED', { message })

/** What a scorer threw as its failure. */
export function failedScorer(scorer: Scorer, error: unknown): ScorerFailed {
  const recorded =
    error instanceof AppError ? error.recorded() : unscoredResult(String((error as Error)?.message ?? error)).recorded()
  return new ScorerFailed(keyOf(scorer), recorded)
}

/** What expressions, tools and deciders are shown of an item and its answer. */
export const factsOf = ({
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

export const scoreOf = (scorer: Scorer, score: number, passed: boolean, more: Partial<Score> = {}): Score => ({
  scorer: keyOf(scorer),
  score,
  passed,
  ...more,
})

export const scoreVerdict = (scorer: Scorer, passed: boolean): Score => scoreOf(scorer, passed ? 1 : 0, passed)

/** Raises EVAL_SCORING_FAILED for what is no score. */
export function requireScore(value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= 1) return value
  throw unscoredResult(
    `The score must be a number from 0 to 1, not ${String(JSON.stringify(value) ?? value).slice(0, 100)}`,
  )
}

/** The object of a text: from its first brace to its last. Raises EVAL_SCORING_FAILED where there is none. */
export function parseFirstObject(text: string): Record<string, unknown> {
  const from = text.indexOf('{')
  const to = text.lastIndexOf('}')
  try {
    const value = from < 0 || to < from ? null : JSON.parse(text.slice(from, to + 1))
    if (isObject(value)) return value
  } catch {
    // Said below.
  }
  throw unscoredResult('The answer holds no JSON object')
}

/** A text for a person, as it is kept: of an answer that is not, it may quote what nobody is to keep. */
export const reasoningOf = (value: unknown, { content_mode }: Pick<OpenItem, 'content_mode'>): Partial<Score> =>
  typeof value === 'string' && content_mode !== 'none' ? { reasoning: value.slice(0, 16_384) } : {}

/** The verdict of a scorer that calls nothing; null of one that does. */
function instantScore(scorer: Scorer, item: OpenItem): Score | null {
  const text = item.output ?? ''
  switch (scorer.type) {
    case 'exact_match':
      return scoreVerdict(scorer, item.expected_output !== null && text.trim() === item.expected_output.trim())
    case 'contains': {
      const folded = (value: string) => (scorer.case_sensitive ? value : value.toLowerCase())
      return scoreVerdict(scorer, holdsText(folded(text), folded(scorer.value)))
    }
    case 'json_logic':
      return scoreVerdict(scorer, truthy(evaluate(scorer.expression, factsOf(item))))
    default:
      return null
  }
}

/** Scores an answer by a scorer that calls nothing. Raises ScorerFailed; null of a scorer that does. */
export function scoreLocally(scorer: Scorer, item: OpenItem): Score | null {
  try {
    return instantScore(scorer, item)
  } catch (error) {
    throw error instanceof ExpressionError ? failedScorer(scorer, error) : error
  }
}

const INSTANT = ['exact_match', 'contains', 'json_logic']

/** All scores of an answer whose scorers call nothing; null where one does. Raises ScorerFailed. */
export const localScores = (item: OpenItem): Score[] | null =>
  item.run.scorers.every(({ type }) => INSTANT.includes(type))
    ? item.run.scorers.map(scorer => scoreLocally(scorer, item) as Score)
    : null
