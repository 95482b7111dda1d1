import type { SearchAnswer } from '../../../content/knowledge/model.ts'
import { knowledgeOperations } from '../../../content/knowledge/operations.ts'
import { raise } from '../../../core/api/errors.ts'
import { callAs } from '../../../core/invoke/call.ts'
import { invoke } from '../../../core/invoke/invoke.ts'
import type { Attempt, NodeAttemptOutcome } from '../engine/node-execution.ts'
import { runCaller } from './tool.ts'

const [search] = knowledgeOperations

/** A knowledge node searches as whoever started the run, in the run's project. */
export async function runKnowledgeNode(attempt: Attempt): Promise<NodeAttemptOutcome> {
  const { services, node, taken, signal } = attempt
  const caller = await runCaller(attempt)
  if (!caller) return raise('UNAUTHORIZED')
  const own = node.memory_store_ids ? { memory_store_ids: node.memory_store_ids } : {}
  const body = { ...own, ...withNewNames(taken.input ?? {}), project_id: taken.project_id }
  const found = await invoke(services, search, callAs(caller, 'platform_tool', { body, signal }))
  return { artifact: { results: (found.body as SearchAnswer).results } }
}

/** `memory_ids` is an older name of what is searched. */
function withNewNames({ memory_ids, ...input }: Record<string, unknown>): Record<string, unknown> {
  return memory_ids === undefined ? input : { memory_store_ids: memory_ids, ...input }
}
