import { z } from 'zod'
import { requirePermitted } from '#core/api/access.ts'
import { kinds } from '#core/api/kind.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { findTool, toolRunners } from '../tools.ts'
import type { Result } from './model.ts'
import type { SearchScope } from './sources.ts'

const TIMEOUT_MS = 30_000

const Scores = z.array(z.object({ id: z.string(), score: z.number() }))

/**
 * Checks, before the search, that the reranker exists in the project and that the caller may call it.
 * @throws AppError VALIDATION_FAILED without a project, TOOL_NOT_FOUND, FORBIDDEN
 */
export async function requireReranker(
  { pool }: Services,
  { project, caller }: SearchScope,
  toolId: string,
): Promise<void> {
  if (project === null)
    raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required when rerank is set',
    })
  const tool = await findTool(pool, project, toolId)
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id: toolId } })
  requirePermitted(caller, 'tools:CallTool', { kind: kinds.get('tool'), row: { id: tool.id, project_id: project } })
}

const idOf = (result: Result): string => (result.source_type === 'document' ? result.chunk_id : result.memory_id)

/**
 * Reranks the first results by the scores of a tool; results without a score follow in their order. Returns null if the
 * tool failed or did not return `[{ id, score }]`.
 */
export async function rerankResults(
  services: Services,
  results: readonly Result[],
  call: {
    tool_id: string
    action?: string | null
    top_n: number
    project_id: string
    query: string
    principal: PrincipalRecord
    signal?: AbortSignal
  },
): Promise<Result[] | null> {
  const candidates = results.slice(0, call.top_n)
  if (candidates.length === 0) return [...results]
  const outcome = await toolRunners.only()?.call(services, {
    project_id: call.project_id,
    tool_id: call.tool_id,
    action: call.action ?? null,
    input: { query: call.query, candidates: candidates.map(result => ({ id: idOf(result), content: result.content })) },
    source: 'direct',
    principal: call.principal,
    idempotency_key: null,
    timeout_ms: TIMEOUT_MS,
    signal: call.signal,
  })
  const parsed = outcome?.ok ? Scores.safeParse(outcome.output) : null
  if (!parsed?.success) {
    const error = outcome && !outcome.ok ? outcome.error.code : 'invalid response'
    services.log.warn({ tool: call.tool_id, project: call.project_id, error }, 'reranker failed, results not reranked')
    return null
  }
  const scores = new Map(parsed.data.map(({ id, score }) => [id, score]))
  const scored = candidates.flatMap(result => {
    const score = scores.get(idOf(result))
    return score === undefined ? [] : [{ ...result, signals: { ...result.signals, rerank: score } }]
  })
  scored.sort((left, right) => right.signals.rerank - left.signals.rerank)
  return [...scored, ...results.filter((result, index) => index >= call.top_n || !scores.has(idOf(result)))]
}
