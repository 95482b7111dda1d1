import { knowledgeOperations } from '../../content/knowledge/operations.ts'
import { raise } from '../../core/api/errors.ts'
import { callAs } from '../../core/invoke/call.ts'
import { invoke } from '../../core/invoke/invoke.ts'
import type { Attempt, Outcome } from './attempt-model.ts'
import { runCaller } from './node-tool.ts'

const [search] = knowledgeOperations

/** A knowledge node searches as whoever started the run, in the run's project. */
export async function searchKnowledge(attempt: Attempt): Promise<Outcome> {
  const { services, taken, signal } = attempt
  const caller = await runCaller(attempt)
  if (!caller) return raise('UNAUTHORIZED')
  const body = { ...withNewNames(taken.input ?? {}), project_id: taken.project_id }
  const { body: found } = await invoke(services, search, callAs(caller, 'platform_tool', { body, signal }))
  const { results } = found as { results?: unknown[] }
  return { artifact: { results: results ?? (found as { data?: unknown[] }).data ?? [] } }
}

/** `memory_ids` is an older name of what is searched. */
function withNewNames({ memory_ids, ...input }: Record<string, unknown>): Record<string, unknown> {
  return memory_ids === undefined ? input : { memory_store_ids: memory_ids, ...input }
}
