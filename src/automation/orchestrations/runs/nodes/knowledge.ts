import type { SearchAnswer } from '#content/knowledge/model.ts'
import { knowledgeOperations } from '#content/knowledge/operations.ts'
import { requirePermitted } from '#core/api/access.ts'
import { callAs } from '#core/api/call.ts'
import { kinds } from '#core/api/kind.ts'
import { requireAll } from '#core/api/references.ts'
import { parse } from '#core/api/validate.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { invoke } from '#core/invoke/invoke.ts'
import { ClaimLostError } from '#core/work/handler.ts'
import { MemoryEntryInput } from '#memory/entries/model.ts'
import { writeFact } from '#memory/entries/write.ts'
import { resolveFactActor } from '#memory/entries/write-request.ts'
import { memoryStoreKind } from '#memory/stores/model.ts'
import type { AdvanceResult, EndNodeInTx, NodeWork, NodeWorkOutcome } from '../engine/node-execution.ts'
import { runCaller } from './tool.ts'

const [search] = knowledgeOperations

/** Searches memories and documents for a knowledge node, with the permissions of the principal that started the run. */
export async function runKnowledgeNode(work: NodeWork): Promise<NodeWorkOutcome> {
  const { services, node, execution, signal } = work
  const caller = await runCaller(work)
  if (!caller) return raise('UNAUTHORIZED')
  const nodeStores = node.memory_store_ids ? { memory_store_ids: node.memory_store_ids } : {}
  const body = { ...nodeStores, ...withNewNames(execution.input ?? {}), project_id: execution.project_id }
  const found = await invoke(services, search, callAs(caller, 'platform_tool', { body, signal }))
  return { artifact: { results: (found.body as SearchAnswer).results } }
}

/** Maps the older field name `memory_ids`. */
function withNewNames({ memory_ids, ...input }: Record<string, unknown>): Record<string, unknown> {
  return memory_ids === undefined ? input : { memory_store_ids: memory_ids, ...input }
}

/**
 * Writes the fact of a memory_write node with the permissions of the principal that started the run. The fact and the
 * outcome of the node execution commit together.
 */
export async function runMemoryNode(work: NodeWork, endNodeInTx: EndNodeInTx): Promise<AdvanceResult | null> {
  const { services, node, execution, idempotencyKey } = work
  const caller = await runCaller(work)
  if (!caller) return raise('UNAUTHORIZED')
  const { content, tags, metadata, source_type = 'manual', source_id, actor_id: input_actor_id } = execution.input ?? {}
  if (tags !== undefined && tags !== null && !isObject(tags))
    raiseInvalid({ code: 'INVALID_TYPE', path: 'input.tags', message: 'must be an object' })
  const fact = parse(
    MemoryEntryInput,
    {
      memory_store_id: node.memory_store_id,
      content: typeof content === 'string' || content === undefined ? content : JSON.stringify(content),
      ...(tags == null ? {} : { tags }),
      ...(metadata == null ? {} : { metadata }),
      source_type,
      ...(source_id == null ? {} : { source_id }),
      ...(input_actor_id === undefined ? {} : { actor_id: input_actor_id }),
    },
    'input',
  )
  const actor_id = await resolveFactActor(services.pool, caller, execution.project_id, fact.actor_id, 'input.actor_id')
  let after: AdvanceResult | null = null
  await writeFact(
    services,
    {
      ...fact,
      actor_id,
      mechanism: 'orchestration',
      attempt_key: idempotencyKey,
      principal: { type: 'orchestration_run', id: execution.run_id },
    },
    {
      async check(store) {
        if (store.project_id !== execution.project_id) raise('RESOURCE_NOT_FOUND', { meta: { id: store.id } })
        requirePermitted(caller, 'memories:CreateMemoryEntry', { kind: memoryStoreKind, row: store })
        if (fact.source_id != null)
          await requireAll(services.pool, kinds.get('conversation'), execution.project_id, [fact.source_id])
      },
      async within(tx, { entry }) {
        after = await endNodeInTx(tx, { artifact: { action: entry.action, memory_entry_id: entry.id } })
        if (!after) throw new ClaimLostError()
      },
    },
  )
  return after
}
