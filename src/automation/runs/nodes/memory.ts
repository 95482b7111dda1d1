import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import { kinds } from '../../../core/api/kind.ts'
import { requireAll } from '../../../core/api/references.ts'
import { parse } from '../../../core/api/validate.ts'
import { isObject } from '../../../core/expressions/evaluate.ts'
import { requirePermitted } from '../../../core/iam/access.ts'
import { ClaimLostError } from '../../../core/jobs/work-item.ts'
import { MemoryEntryInput } from '../../../memory/entries/model.ts'
import { writeFact } from '../../../memory/entries/write.ts'
import { claimedActor } from '../../../memory/entries/write-request.ts'
import { memoryStoreKind } from '../../../memory/stores/model.ts'
import type { AdvanceResult, Attempt, SettleInTx } from '../engine/node-execution.ts'
import { runCaller } from './tool.ts'

/** A memory_write node states a fact as whoever started the run; the fact and the end of the attempt are one transaction. */
export async function runMemoryNode(attempt: Attempt, finish: SettleInTx): Promise<AdvanceResult | null> {
  const { services, node, taken, key } = attempt
  const caller = await runCaller(attempt)
  if (!caller) return raise('UNAUTHORIZED')
  const { content, tags, metadata, source_type = 'manual', source_id, actor_id: given } = taken.input ?? {}
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
      ...(given === undefined ? {} : { actor_id: given }),
    },
    'input',
  )
  const actor_id = await claimedActor(services.pool, caller, taken.project_id, fact.actor_id, 'input.actor_id')
  let after: AdvanceResult | null = null
  await writeFact(
    services,
    {
      ...fact,
      actor_id,
      mechanism: 'orchestration',
      attempt_key: key,
      principal: { type: 'orchestration_run', id: taken.run_id },
    },
    {
      async check(store) {
        if (store.project_id !== taken.project_id) raise('RESOURCE_NOT_FOUND', { meta: { id: store.id } })
        requirePermitted(caller, 'memories:CreateMemoryEntry', { kind: memoryStoreKind, row: store })
        if (fact.source_id != null)
          await requireAll(services.pool, kinds.get('conversation'), taken.project_id, [fact.source_id])
      },
      async within(tx, { entry }) {
        after = await finish(tx, { artifact: { action: entry.action, memory_entry_id: entry.id } })
        if (!after) throw new ClaimLostError()
      },
    },
  )
  return after
}
