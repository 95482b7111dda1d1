import type { Services } from '../../core/operation.ts'
import { mergeContext } from '../../core/tool-context.ts'
import type { Tx } from '../../core/write.ts'
import type { Work } from './model.ts'
import { amendGeneration, findPendingWork } from './store.ts'
import { type TurnInput, workSeal } from './turn.ts'

/**
 * Changes a turn that has not started: who it runs as, and further keys of its tool_context (new keys win). The caller
 * holds what keeps the turn from starting meanwhile. Answers false when it has started or ended.
 */
export async function amendTurn(
  tx: Tx,
  services: Services,
  generationId: string,
  change: Pick<TurnInput, 'authority' | 'permission' | 'tool_context'>,
): Promise<boolean> {
  const found = await findPendingWork(tx, generationId)
  if (!found) return false
  const { sealed, ...generation } = found
  const seal = workSeal(generation.id, generation.project_id)
  const opened = services.secrets.open(sealed, seal)
  // What cannot be read is left; the turn fails with the reason when it starts.
  if (!opened.ok) return false
  const work = JSON.parse(opened.value) as Work
  work.tool_context = mergeContext(work.tool_context, change.tool_context)
  const shown = change.authority.via === null
  await amendGeneration(tx, generation, {
    authority: change.authority,
    permission: change.permission ?? generation.permission,
    started_by_principal_type: shown ? change.authority.type : null,
    started_by_principal_id: shown ? change.authority.id : null,
    sealedWork: services.secrets.seal(JSON.stringify(work), seal),
  })
  return true
}
