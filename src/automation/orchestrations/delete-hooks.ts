import type { Tx } from '#core/db/writer.ts'
import { extensionPoint } from '#core/declarations.ts'
import type { Services } from '#core/process/services.ts'
import type { OrchestrationRow } from './model.ts'

/**
 * Called in the transaction that deletes an orchestration, after its row is locked. A hook may mark the orchestration
 * as deleted (`managed_by`), which defers the delete.
 */
export type OrchestrationDeleteHook = (tx: Tx, services: Services, orchestration: OrchestrationRow) => Promise<void>

export const orchestrationDeleteHooks = extensionPoint<OrchestrationDeleteHook>('orchestration delete hooks')
