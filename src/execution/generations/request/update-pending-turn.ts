import { mergeContext } from '#core/api/tool-context.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { openTurnData, sealTurnData } from '../loop/turn-data.ts'
import { findPendingTurnData, updatePendingGeneration } from '../store.ts'
import type { TurnInput } from './create.ts'

/**
 * Changes the principal of a turn that has not started and merges keys into its tool_context (new keys win). The caller
 * holds a lock that keeps the turn from starting. Returns false if it has started or settled.
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
  const data = openTurnData(services, generation, sealed)
  // Unreadable turn data is unchanged; the turn fails with the reason when it starts.
  if (!data) return false
  data.tool_context = mergeContext(data.tool_context, change.tool_context)
  const isDirect = change.authority.via === null
  await updatePendingGeneration(tx, generation, {
    authority: change.authority,
    permission: change.permission ?? generation.permission,
    started_by_principal_type: isDirect ? change.authority.type : null,
    started_by_principal_id: isDirect ? change.authority.id : null,
    sealedData: sealTurnData(services, generation, data),
  })
  return true
}
