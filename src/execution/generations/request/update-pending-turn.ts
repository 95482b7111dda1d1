import { mergeContext } from '../../../core/api/tool-context.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import { openTurnData, sealTurnData } from '../loop/turn-data.ts'
import { findPendingTurnData, updatePendingGeneration } from '../store.ts'
import type { TurnInput } from './create.ts'

/**
 * Changes a turn that has not started: who it runs as, and further keys of its tool_context (new keys win). The caller
 * holds what keeps the turn from starting meanwhile. Returns false when it has started or ended.
 */
export async function updatePendingTurn(
  tx: Tx,
  services: Services,
  generationId: string,
  change: Pick<TurnInput, 'authority' | 'permission' | 'tool_context'>,
): Promise<boolean> {
  const found = await findPendingTurnData(tx, generationId)
  if (!found) return false
  const { sealed, ...generation } = found
  const work = openTurnData(services, generation, sealed)
  // What cannot be read is left; the turn fails with the reason when it starts.
  if (!work) return false
  work.tool_context = mergeContext(work.tool_context, change.tool_context)
  const shown = change.authority.via === null
  await updatePendingGeneration(tx, generation, {
    authority: change.authority,
    permission: change.permission ?? generation.permission,
    started_by_principal_type: shown ? change.authority.type : null,
    started_by_principal_id: shown ? change.authority.id : null,
    sealedWork: sealTurnData(services, generation, work),
  })
  return true
}
