import { embedderOf } from '../../content/embeddings/embedder.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import type { Services } from '../../core/process/services.ts'
import type { ScorerOf } from '../evals/scorers.ts'
import type { OpenItem, Score } from './model.ts'
import { scoreOf } from './score.ts'

/**
 * How near an answer is to what is expected: the cosine of their vectors, from 0 to 1. Nothing is asked where one of them
 * says nothing.
 * @throws EMBEDDING_NOT_CONFIGURED, AI_PROVIDER_ERROR
 */
export async function textSimilarity(
  services: Services,
  scorer: ScorerOf<'embedding_similarity'>,
  { id, project_id, output, expected_output }: OpenItem,
  signal: AbortSignal,
): Promise<Score> {
  const scored = (score: number) => scoreOf(scorer, score, score >= scorer.pass_threshold)
  const texts = [output ?? '', expected_output ?? ''].map(text =>
    truncateChars(text, services.config.EMBEDDING_MAX_INPUT_CHARS),
  )
  if (texts.some(text => text.trim() === '')) return scored(0)
  const [mine, theirs] = await embedderOf(services).embed(texts, {
    project_id,
    purpose: { kind: 'eval', ref: id },
    signal,
    complete: true,
  })
  const cosine = (mine as Float32Array).reduce((sum, value, at) => sum + value * (theirs as Float32Array)[at], 0)
  return scored(Math.min(1, Math.max(0, cosine)))
}
